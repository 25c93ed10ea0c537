"""The embedded broker's life: start, crash, restart, rivals, and whoever leaves first."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka, broker_files, find_bootstrap
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import BrokerError
from downspout.kafka import TopicPartition, address, cluster_for
from downspout.system import FileLock, loopback

pytestmark = pytest.mark.broker

RUN = [sys.executable, "-m", "downspout", "kafka"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker of this test's own, not started; whatever runs in its directory at the end is stopped."""
    made = EmbeddedKafka(tmp_path / "kafka")
    yield made
    EmbeddedKafka(tmp_path / "kafka").stop()
    made.stop()


def _command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *arguments, "--dir", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT, check=False)


def _wait_until(done: Callable[[], bool]) -> None:
    end = SYSTEM_CLOCK.monotonic() + 120
    while not done():
        assert SYSTEM_CLOCK.monotonic() < end, "it does not happen"
        SYSTEM_CLOCK.sleep(0.05)


def _write(bootstrap: str, values: list[bytes]) -> None:
    cluster = cluster_for(bootstrap)
    cluster.ensure_topic("kept")
    producer = cluster.producer()
    for value in values:
        producer.send("kept", key=None, value=value)
    producer.flush()
    producer.close()


def _read(bootstrap: str) -> list[bytes | None]:
    consumer = cluster_for(bootstrap).consumer(group=None)
    partition = TopicPartition("kept", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    end, found = consumer.end_offsets([partition])[partition], []
    for _ in range(400):
        if consumer.position(partition) == end:
            break
        found += [record.value for record in consumer.poll(200, 1000).get(partition, ())]
    consumer.close()
    return found


@pytest.mark.sweep
def test_a_crash_and_a_restart_keep_everything(kafka: EmbeddedKafka) -> None:
    """After kill -9 and after an orderly stop the cluster has its id, its port and all records."""
    kafka.start()
    first = kafka.broker
    values = [b"%d" % number for number in range(1000)]
    _write(first.bootstrap, values)
    assert kafka.kill()
    assert kafka.status().state == "stopped"
    with pytest.raises(BrokerError, match="downspout kafka start"):
        find_bootstrap(kafka.directory)
    kafka.start()
    second = kafka.broker
    assert (second.port, second.cluster_id) == (first.port, first.cluster_id)
    assert second.pid != first.pid
    assert _read(second.bootstrap) == values
    kafka.restart()
    assert _read(kafka.bootstrap) == values
    assert kafka.stop()
    assert not kafka.stop()
    assert (kafka.directory / "logs" / "server.log").stat().st_size > 0


class Ended:
    """A broker that was started under an open umask, has a record, and was ended by SIGTERM."""

    def __init__(self, directory: Path) -> None:
        self.kafka = EmbeddedKafka(directory)
        before = os.umask(0o022)
        try:
            self.kafka.start()
            _write(self.kafka.bootstrap, [b"x"])
        finally:
            os.umask(before)
        self.port = self.kafka.broker.port
        self.modes: dict[Path, int] = {}
        """what may be done with each file, and by whom, as it runs"""
        for path in (directory, *directory.rglob("*")):
            with suppress(FileNotFoundError):  # Kafka replaces some as we look
                self.modes[path] = path.stat().st_mode
        jvm = self.kafka._process
        assert jvm is not None
        os.kill(self.kafka.broker.pid, signal.SIGTERM)
        self.exit_code = jvm.wait(120)
        self.log = (directory / "logs" / "server.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    made = Ended(tmp_path_factory.mktemp("ended") / "kafka")
    yield made
    made.kafka.stop()


def _has_let_go(kafka: EmbeddedKafka) -> bool:
    """Return whether the directory is free for the next one."""
    lock = FileLock(kafka.directory / "lock")
    is_free = lock.acquire()
    lock.release()
    return is_free


@pytest.mark.sweep
def test_all_that_a_broker_keeps_is_its_owners_alone(ended: Ended) -> None:
    """Whatever the umask, nothing in the directory can be read by another user: neither records nor logs nor ids."""
    assert len(ended.modes) > 10
    assert [path for path, mode in ended.modes.items() if mode & 0o077] == []


def test_sigterm_ends_the_broker_in_order(ended: Ended) -> None:
    """SIGTERM ends the JVM through its shutdown hooks, the lock is free then, and stop reports that it ran no more."""
    assert ended.exit_code == 128 + signal.SIGTERM
    assert "shut down completed" in ended.log
    assert _has_let_go(ended.kafka)
    assert not ended.kafka.stop()


@pytest.mark.sweep
def test_a_remembered_port_that_is_taken_is_given_up(ended: Ended) -> None:
    """When another process took the former port meanwhile, the broker moves to another one and keeps its data."""
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind((loopback.HOST, ended.port))
        rival.listen()
        ended.kafka.start()
        assert ended.kafka.broker.port != ended.port
        assert _read(ended.kafka.bootstrap) == [b"x"]


def test_one_directory_has_one_broker(kafka_broker: EmbeddedKafka) -> None:
    """A second start on the same directory is refused, says who has it, and disturbs nobody."""
    kafka = kafka_broker
    with pytest.raises(BrokerError, match=kafka.bootstrap):
        EmbeddedKafka(kafka.directory).start()
    again = _command(kafka.directory, "start", "--foreground")
    assert again.returncode == BrokerError.exit_code
    assert kafka.bootstrap in again.stderr
    assert find_bootstrap(kafka.directory) == kafka.bootstrap


@pytest.mark.sweep
def test_of_two_processes_one_starts_the_broker(kafka: EmbeddedKafka) -> None:
    command = [*RUN, "start", "--dir", str(kafka.directory)]
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"
    ]
    outputs = [each.communicate(timeout=200) for each in both]
    codes = [each.returncode for each in both]
    assert codes.count(0) >= 1, outputs
    for code, (out, err) in zip(codes, outputs, strict=True):
        assert code == 0 or (code == BrokerError.exit_code and "in use" in err)
        assert code != 0 or find_bootstrap(kafka.directory) in out
    assert sum("is running at" in out for out, _ in outputs) == 1


@pytest.mark.sweep
def test_another_cluster_on_the_port_is_not_taken_for_ours(
    kafka: EmbeddedKafka, kafka_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser of the race for a port, which another broker won, does not adopt that broker but tries elsewhere."""
    rival = kafka_broker.broker
    first = iter([rival.port])
    choose = loopback.free_port
    monkeypatch.setattr(loopback, "free_port", lambda avoid=None: next(first, None) or choose(avoid))
    kafka.start()
    assert kafka.broker.port != rival.port
    assert kafka.broker.cluster_id != rival.cluster_id
    assert address.ask(rival.host, rival.port).cluster_id == rival.cluster_id


def test_a_machine_too_slow_to_format_is_told(tmp_path: Path) -> None:
    """Storage that is not made in time is an error of the broker with a cure, and no password stays behind."""
    slow = EmbeddedKafka(tmp_path / "kafka", start_s_max=0.01)
    with pytest.raises(BrokerError, match=r"longer than 0\.01 s to format") as raised:
        slow.start()
    assert "server.log" in raised.value.cure
    assert not (tmp_path / "kafka" / "format.args").exists()
    assert EmbeddedKafka(tmp_path / "kafka").status().state == "stopped"


def test_a_broker_that_dies_at_the_start_is_quoted(kafka: EmbeddedKafka) -> None:
    """A start that fails raises with the end of Kafka's own log, and leaves neither process nor lock."""
    failing = EmbeddedKafka(kafka.directory, properties={"num.io.threads": "none"})
    with pytest.raises(BrokerError, match=r"num\.io\.threads"):
        failing.start()
    assert failing.status().state == "stopped"
    assert _has_let_go(kafka)


def test_a_background_broker_outlives_the_command(kafka: EmbeddedKafka) -> None:
    """`start` returns, the broker stays until `stop`, and `status` tells which of the two it is."""
    assert _command(kafka.directory, "status").returncode == 1
    started = _command(kafka.directory, "start")
    assert started.returncode == 0, started.stderr
    status = _command(kafka.directory, "status", "--json")
    facts = json.loads(status.stdout)
    assert (status.returncode, facts["state"]) == (0, "running")
    assert facts["bootstrap"] == find_bootstrap(kafka.directory)
    assert facts["pid"] == kafka.broker.pid
    assert "already running" in _command(kafka.directory, "start").stdout
    assert _command(kafka.directory, "stop").returncode == 0
    assert json.loads(_command(kafka.directory, "status", "--json").stdout)["state"] == "stopped"


# `downspout kafka start` to which its broker never answers: however quick that is, the command has not written it down.
HEARS_NOTHING = """
import sys, time
from downspout.cli import main
from downspout.broker import embedded
embedded.address.ask = lambda *_, **__: time.sleep(600)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.sweep
def test_a_background_broker_whose_start_is_killed_ends(kafka: EmbeddedKafka) -> None:
    """A broker whose command was killed before it wrote down who that is ends as well: nobody could stop it."""
    log = kafka.directory / "logs" / "server.log"
    arguments = ["kafka", "start", "--dir", str(kafka.directory)]
    starter = subprocess.Popen([sys.executable, "-c", HEARS_NOTHING, *arguments], stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        _wait_until(lambda: log.exists() and "KafkaRaftServer" in log.read_text(encoding="utf-8"))  # it is on its way
        assert kafka.status().state == "starting"
    finally:
        starter.kill()
        starter.wait()
    _wait_until(lambda: kafka.status().state == "stopped")
    assert _has_let_go(kafka)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.sweep)])
def test_a_foreground_broker_ends_with_its_command(kafka: EmbeddedKafka, number: int) -> None:
    """Ctrl-C and SIGTERM reach the command alone, which stops the broker in order and exits with 0."""
    command = [*RUN, "start", "--foreground", "--dir", str(kafka.directory)]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert started.stdout is not None
        assert "is running at" in started.stdout.readline()
        os.killpg(started.pid, number)  # as a terminal does: the whole foreground group gets it
        assert "is stopped" in started.stdout.read()
        assert started.wait(120) == 0
        started.stdout.close()
    finally:
        started.kill()
        started.wait()
    assert kafka.status().state == "stopped"
    assert "shut down completed" in (kafka.directory / "logs" / "server.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.sweep), signal.SIGKILL])
def test_the_fixture_s_broker_ends_with_pytest(tmp_path: Path, number: int) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import time\n"
        "def test_it(kafka_broker, topic_name):\n"
        "    print(kafka_broker.directory, topic_name, flush=True)\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(test),
    ]
    command += ["--basetemp", str(tmp_path / "temp")]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        directory, topic = next(line for line in started.stdout if "test-it-" in line).split()
        broker = broker_files.read_broker(Path(directory))
        assert broker is not None
        assert topic.startswith("test-it-")
        started.send_signal(number)
        started.wait(120)
        started.stdout.close()
    finally:
        started.kill()
        started.wait()
    _wait_until(lambda: not broker.is_alive)


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    """Loading the pytest plugin imports neither the Kafka client nor pyarrow."""
    code = (
        "import sys, downspout.testing.plugin; sys.exit(bool({'kafka', 'pyarrow', 'streamparse'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=200, check=False).returncode == 0
