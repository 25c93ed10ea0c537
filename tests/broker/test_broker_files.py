from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from downspout.broker import EmbeddedCluster, EmbeddedKafka, broker_files, embedded, find_bootstrap
from downspout.broker.broker_files import Broker, ClusterFile
from downspout.errors import BrokerError, ConfigError
from downspout.kafka import address, ask_all, cluster_for, parse_bootstrap
from downspout.system import FileLock, loopback, process
from tests.kafka.programs import program


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and is ended by its own id."""
    started = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield started
    started.kill()
    started.wait()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that listens on a free port of the loopback address."""
    with socket.socket() as opened:
        opened.bind((loopback.HOST, 0))
        opened.listen()
        yield opened


def _answering(listener: socket.socket, answer: bytes) -> Callable[[], None]:
    """Answer one connection in the background; the function returned waits for its end."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return lambda: thread.join(30)


# --- who is who ---


def test_a_process_is_known_by_its_birth(sleeper: subprocess.Popen[bytes]) -> None:
    born = process.birth(sleeper.pid)
    assert born is not None
    assert not process.send_signal(sleeper.pid, "another", signal.SIGKILL)
    assert sleeper.poll() is None
    assert process.send_signal(sleeper.pid, born, signal.SIGKILL)
    assert sleeper.wait(120) == -signal.SIGKILL
    assert process.birth(sleeper.pid) is None


def test_a_zombie_is_no_process(sleeper: subprocess.Popen[bytes]) -> None:
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process.birth(sleeper.pid) is None


def test_the_watchdog_acts_when_its_master_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    master = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from downspout.system import process; pid = int(sys.argv[1]);"
            "process.start_watchdog(pid, process.birth(pid)); print('ready', flush=True); time.sleep(600)",
            str(sleeper.pid),
        ],
        stdout=subprocess.PIPE,
    )
    assert master.stdout is not None
    assert master.stdout.readline() == b"ready\n"
    master.kill()
    master.wait()
    master.stdout.close()
    assert sleeper.wait(120) == -signal.SIGTERM


def test_a_watchdog_that_is_called_off_does_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    """After stop_watchdog the watchdog is gone and the watched process runs on."""
    watchdog = process.start_watchdog(sleeper.pid, process.birth(sleeper.pid) or "")
    process.stop_watchdog(watchdog)
    assert watchdog.returncode is not None
    assert sleeper.poll() is None


# --- the files ---


def _broker(pid: int, born: str) -> Broker:
    return Broker("127.0.0.1", 20001, pid, born, "id")


def test_a_broker_file_is_read_back(tmp_path: Path) -> None:
    """What was written is read while its process lives."""
    me = _broker(os.getpid(), process.birth(os.getpid()) or "")
    broker_files.write(tmp_path, me)
    assert broker_files.read_broker(tmp_path) == me
    assert [path.name for path in tmp_path.iterdir()] == ["broker.json"]


@pytest.mark.parametrize("case", ["dead", "another process", "half written", "missing"])
def test_a_stale_broker_file_is_as_good_as_none(tmp_path: Path, case: str, sleeper: subprocess.Popen[bytes]) -> None:
    """A file whose process is gone, whose id belongs to a stranger, or that cannot be read, names no broker."""
    born = process.birth(sleeper.pid) or ""
    broker_files.write(tmp_path, _broker(sleeper.pid, "boot/1" if case == "another process" else born))
    if case == "dead":
        sleeper.kill()
        sleeper.wait()
    elif case == "half written":
        (tmp_path / "broker.json").write_text('{"host": "127', encoding="utf-8")
    elif case == "missing":
        (tmp_path / "broker.json").unlink()
    assert broker_files.read_broker(tmp_path) is None
    with pytest.raises(BrokerError, match="downspout kafka start"):
        find_bootstrap(tmp_path)


def test_a_cluster_keeps_its_id_and_port(tmp_path: Path) -> None:
    """The cluster file is read back, and one that cannot be read is none."""
    cluster = ClusterFile(broker_files.new_cluster_id(), 20001, formatted=True)
    broker_files.write(tmp_path, cluster)
    assert broker_files.read_cluster(tmp_path) == cluster
    (tmp_path / "cluster.json").write_text("[]", encoding="utf-8")
    assert broker_files.read_cluster(tmp_path) is None


def test_properties_are_for_one_machine() -> None:
    """Every listener is on the loopback address, nothing is deleted by age, and overrides win."""
    lines = broker_files.server_properties(20001, 20002, {"num.io.threads": "1"}).splitlines()
    values = dict(line.split("=", 1) for line in lines)
    assert len(values) == len(lines)
    addresses = [part.split("://")[1] for part in values["listeners"].split(",")]
    assert addresses == ["127.0.0.1:20001", "127.0.0.1:20002"]
    assert values["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert values["log.retention.ms"] == "-1"
    assert int(values["message.max.bytes"]) > 5 * 1024 * 1024
    assert values["num.io.threads"] == "1"


def test_a_port_in_use_is_not_free(listener: socket.socket) -> None:
    assert not loopback.is_free(listener.getsockname()[1])
    port = loopback.free_port()
    assert port in loopback.PORTS
    assert loopback.free_port(avoid=port) != port


# --- starting, before there is a broker ---


@pytest.fixture
def no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither jars nor Java: whatever would start one fails the test."""
    monkeypatch.setattr(embedded.jars, "resolve", lambda name, tell: [tmp_path / "x.jar"])
    monkeypatch.setattr(embedded, "find_java", lambda: tmp_path / "no-java")


@pytest.mark.usefixtures("no_jars")
def test_a_locked_directory_is_left_alone(tmp_path: Path) -> None:
    """Where somebody holds the lock nothing is written, and the error names the directory."""
    (tmp_path / "d").mkdir()
    with FileLock(tmp_path / "d" / "lock"):
        with pytest.raises(BrokerError, match="in use"):
            EmbeddedKafka(tmp_path / "d").start()
        assert [path.name for path in (tmp_path / "d").iterdir()] == ["lock"]
        assert EmbeddedKafka(tmp_path / "d").status().state == "starting"
    assert EmbeddedKafka(tmp_path / "d").status().state == "stopped"


@pytest.mark.usefixtures("no_jars")
def test_a_demanded_port_that_is_taken_is_an_error(tmp_path: Path, listener: socket.socket) -> None:
    """A port that the user demands and that is in use is named, and the lock is given back."""
    port = listener.getsockname()[1]
    with pytest.raises(BrokerError, match=str(port)):
        EmbeddedKafka(tmp_path, port).start()
    assert FileLock(tmp_path / "lock").acquire()


def test_a_start_says_what_it_waits_for(tmp_path: Path, no_jars: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that takes long says that Kafka formats its data, then that it has yet to answer, and where it logs."""
    formats_only = program(tmp_path / "java", 'case "$*" in *@format.args*) ;; *) exit 1; esac')
    monkeypatch.setattr(embedded, "find_java", lambda: formats_only)
    awaited: list[tuple[str, object]] = []

    @contextmanager
    def waiting(what: str, tell: object) -> Iterator[None]:
        awaited.append((what, tell))
        yield

    monkeypatch.setattr(embedded, "waiting", waiting)
    with pytest.raises(BrokerError, match="ended while starting"):
        EmbeddedKafka(tmp_path / "kafka").start(print)
    (format_what, first), (answer_what, second) = awaited
    assert "to format" in format_what
    assert "to answer (at most 180 s; its log is" in answer_what
    assert first is second is print


@pytest.mark.usefixtures("no_jars")
def test_an_unusable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BrokerError, match="file/kafka"):
        EmbeddedKafka(tmp_path / "file" / "kafka").start()


@pytest.mark.usefixtures("no_jars")
def test_data_without_their_cluster_file_are_not_touched(tmp_path: Path) -> None:
    """Data whose cluster id is lost are never formatted over."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("cluster.id=x", encoding="utf-8")
    with pytest.raises(BrokerError, match=r"cluster\.json"):
        EmbeddedKafka(tmp_path).start()
    assert not (tmp_path / "cluster.json").exists()


# --- asking an address ---


def test_bad_bootstrap_strings_are_refused() -> None:
    """A bootstrap string without host, with a bad port or with a scheme is an error that quotes it."""
    for text in ("", "host:", ":9092", "host:0", "host:70000", "host:x", "kafka://host:9092", "a:1,,b:2"):
        with pytest.raises(ConfigError, match=r"kafka\.bootstrap"):
            parse_bootstrap(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x0c" + b"\xff" * 12],
    ids=["none", "http", "odd"],
)
def test_what_is_no_broker_is_named(listener: socket.socket, answer: bytes) -> None:
    """Something that listens and is no Kafka broker is told from a broker."""
    port = listener.getsockname()[1]
    ended = _answering(listener, answer)
    trouble = "; ".join(each.what for each in ask_all([("127.0.0.1", port)])[1])
    ended()
    assert f"127.0.0.1:{port} is not a Kafka broker" in trouble


def test_a_silent_port_is_given_up(listener: socket.socket) -> None:
    """A port that accepts and says nothing ends in TimeoutError."""
    with pytest.raises(TimeoutError):
        address.ask("127.0.0.1", listener.getsockname()[1], timeout_s=0.2)


def test_every_address_is_explained() -> None:
    """A closed port and an unknown host are both named, each with its reason."""
    with socket.socket() as dead:  # its port is nobody else's meanwhile, and nobody listens
        dead.bind(("127.0.0.1", 0))
        port = dead.getsockname()[1]
        _, found = ask_all([("127.0.0.1", port), ("no-such-host.invalid", 9092)])
        trouble = "; ".join(each.what for each in found)
    assert f"127.0.0.1:{port}: connection refused" in trouble
    assert "no-such-host.invalid is unknown" in trouble


@pytest.mark.parametrize("advertised", ["127.0.0.1:1", "kafka-1.invalid:9092"])
def test_an_address_that_only_the_broker_knows_is_named(listener: socket.socket, advertised: str) -> None:
    """The bootstrap address works, and would be blamed: the wrong one is that in the broker's advertised listeners."""
    host, _, port = advertised.rpartition(":")
    broker = struct.pack(f">ih{len(host)}sih", 7, len(host), host.encode(), int(port), -1)
    answer = struct.pack(">ii", 1, 1) + broker + struct.pack(">h2sii", 2, b"id", 7, 0)
    ended = _answering(listener, struct.pack(">i", len(answer)) + answer)
    bootstrap = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(BrokerError, match=f"{bootstrap} answers, but its brokers advertise {advertised}") as said:
        cluster_for(bootstrap)
    ended()
    assert (said.value.cure or "").startswith("advertised.listeners of the broker")


def test_a_metadata_answer_is_read(listener: socket.socket) -> None:
    """Cluster id and brokers are found in an answer as a broker gives it, with a null rack."""
    body = b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x07\x00\x04host\x00\x00\x23\x84\xff\xff"
    body += b"\x00\x03abc" + b"\x00\x00\x00\x07" + b"\x00\x00\x00\x00"
    ended = _answering(listener, len(body).to_bytes(4, "big") + body)
    answer = address.ask("127.0.0.1", listener.getsockname()[1])
    ended()
    assert answer == ("abc", ("host:9092",))


def test_a_cluster_that_cannot_settle_leaves_the_directory_unlocked(tmp_path: Path) -> None:
    """What stands in the way is said each time, not that another cluster had the directory."""
    (tmp_path / "ports.json").mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match=r"ports\.json"):
            EmbeddedCluster(tmp_path).start()


@pytest.mark.parametrize("content", ["5", "null", "{}", '{"ports": 5}', '{"ports": "5"}', "[1]", "{"])
def test_ports_that_are_none_are_chosen_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "ports.json").write_text(content)
    assert broker_files.read_ports(tmp_path, 1) is None
