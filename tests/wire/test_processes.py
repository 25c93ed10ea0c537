"""Components as Storm runs them: stock `streamparse_run` in a process of its own, a real broker, real signals."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downspout.kafka import TopicPartition, cluster_for
from tests.sink.support import write_rows
from tests.waiting import eventually
from tests.wire.storm_pipe import ROOT, Storm, handshake

if TYPE_CHECKING:
    from downspout.broker import EmbeddedKafka

pytestmark = pytest.mark.broker

CALL_S_MAX = 15.0
"""Storm's patience is 30 s, and a call that waits for the client takes as long. Ours wait for 5 s (``test_bounds.py``);
the rest is for a busy machine."""
END_S_MAX = 60.0
"""Likewise for the end: the last work is bounded, and the client alone would wait for a broker without end."""
"""No call may take longer under Storm (its heartbeat ends the worker after 30 s)."""
LAST_WILL_S_MAX = 120.0
"""Far more than any process should take to end; it is killed then."""
PIPE_BYTES = 65_536


class Kafka:
    """A topic of one partition, a group, and spouts that read it."""

    def __init__(self, broker: EmbeddedKafka, topic: str, directory: Path) -> None:
        self.broker, self.topic, self.directory = broker, topic, directory
        self.cluster = cluster_for(broker.bootstrap)
        self.cluster.ensure_topic(topic, 1)
        self.started: list[Storm] = []

    def fill(self, *values: bytes) -> None:
        producer = self.cluster.producer()
        for value in values:
            producer.send(self.topic, key=None, value=value, partition=0)
        producer.flush()
        producer.close()

    def spout(self, *, unhurried: bool = False, **settings: Any) -> Storm:
        """Start KafkaSpout as Storm does; unhurried: with time enough for its last work on any machine."""
        conf = {
            "kafka.bootstrap": self.broker.bootstrap,
            "kafka.group": self.topic,
            "kafka.topics": [self.topic],
            "kafka.fields": ["offset", "value"],
            "kafka.session_timeout_ms": 30_000,
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        context = {"stream->outputfields": {"default": ["offset", "value"]}}
        return self.start("spouts.kafka.KafkaSpout", handshake(self.directory, conf, context), unhurried)

    def start(self, component: str, hello: Any, unhurried: bool = False) -> Storm:
        """Start a component; it is killed at the end of the test if it still runs."""
        self.started.append(Storm(component, hello, unhurried=unhurried))
        return self.started[-1]

    def committed(self) -> int | None:
        consumer = self.cluster.consumer(group=self.topic)
        try:
            tp = TopicPartition(self.topic, 0)
            found = consumer.committed([tp])[tp]
            return None if found is None else found.offset
        finally:
            consumer.close()


@pytest.fixture
def kafka(kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> Iterator[Kafka]:
    made = Kafka(kafka_broker, topic_name, tmp_path)
    yield made
    end(made)


def end(kafka: Kafka) -> None:
    for storm in kafka.started:
        if storm.process.poll() is None:
            storm.process.kill()
        storm.process.wait()
        for stream in (storm.process.stdin, storm.process.stdout, storm.process.stderr):
            if stream is not None and not stream.closed:
                with suppress(BrokenPipeError):
                    stream.close()


def ids(emits: list[Any]) -> list[str]:
    return [message["id"] for message in sorted(emits, key=lambda message: message["tuple"][0])]


def test_all_five_commands_on_a_real_broker(kafka: Kafka) -> None:
    """next, ack, fail, deactivate and activate, each answered by one sync, and the commits that belong to them."""
    kafka.fill(*(b"%d" % number for number in range(6)))
    spout = kafka.spout(kafka__emits_per_next_max=4)
    assert spout.ask("activate") == []
    emits = spout.emits(count=6)
    assert [message["tuple"] for message in emits] == [[number, str(number)] for number in range(6)]
    for tup_id in ids(emits)[:3]:
        assert spout.ask("ack", tup_id) == []
    assert spout.ask("fail", ids(emits)[3]) == []
    (again,) = spout.emits(count=1)
    assert again["tuple"] == [3, "3"]
    assert spout.ask("deactivate") == []
    assert kafka.committed() == 3
    for tup_id in ids(emits)[3:]:
        spout.ask("ack", tup_id)
    assert kafka.committed() == 6
    kafka.fill(b"6")
    assert spout.ask("next") == []
    assert spout.ask("activate") == []
    assert [message["tuple"] for message in spout.emits()] == [[6, "6"]]


def process(kafka: Kafka, out: Path) -> list[str]:
    """Let a task of Storm's process a new record, beside a sink that writes to a directory; return what it logs."""
    end_before = kafka.committed() or 0
    kafka.fill(b"x")
    spout = kafka.spout(spout__sinks=[str(out)], pystorm__log__level="warning", unhurried=True)
    spout.send({"command": "activate", "id": ""})
    heard: list[Any] = []

    def emits() -> list[Any]:
        spout.send({"command": "next", "id": ""})
        heard.extend(spout.until(lambda message: message.get("command") == "sync"))
        return [message for message in heard if message.get("command") == "emit"]

    emitted = eventually(emits, every_s=0, otherwise=lambda: heard)
    assert [message["tuple"][0] for message in emitted] == [end_before]
    spout.ask("ack", emitted[0]["id"])
    assert spout.end_input() == 2
    assert kafka.committed() == end_before + 1
    return [message["msg"] for message in heard if message.get("command") == "log"]


@pytest.mark.sweep
def test_an_older_copy_of_the_output_is_said_in_the_workers_log(kafka: Kafka) -> None:
    """A directory that was put back under a group that moved on: the spout's task says so to Storm as it starts."""
    out, copy = kafka.directory / "out", kafka.directory / "copy"
    write_rows(out, [(kafka.topic, "", 0, 0, "")])
    first = process(kafka, out)
    shutil.copytree(out, copy)
    second = process(kafka, out)
    assert not any("is behind group" in said for said in first + second)
    shutil.rmtree(out)
    shutil.move(copy, out)
    (warning,) = [said for said in process(kafka, out) if "is behind group" in said]
    assert f"{out} is behind group {kafka.topic}" in warning
    assert f"has no rows of {kafka.topic}[0]@1 to @1" in warning


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_what_is_acked_is_committed_before_the_end(kafka: Kafka, how: str) -> None:
    """Storm goes away in the middle of a batch: the acked part is committed, the rest is emitted to the next one."""
    kafka.fill(*(b"%d" % number for number in range(10)))
    spout = kafka.spout(unhurried=True)
    spout.ask("activate")
    for tup_id in ids(spout.emits(count=10))[:4]:
        spout.ask("ack", tup_id)
    assert kafka.committed() in (None, 0)
    if how == "SIGTERM":
        spout.process.send_signal(signal.SIGTERM)
        assert spout.process.wait(LAST_WILL_S_MAX) == 2
    else:
        assert spout.end_input() == 2
    assert kafka.committed() == 4
    after = kafka.spout()  # a static member: the same place again
    after.ask("activate")
    assert [message["tuple"][0] for message in after.emits(count=6)] == [4, 5, 6, 7, 8, 9]


def test_sigterm_while_storm_does_not_listen(kafka: Kafka) -> None:
    """A worker that hangs reads nothing: the spout, stuck in a full pipe, still commits and ends."""
    kafka.fill(*([b"small"] * 3 + [b"x" * 50_000] * 40))
    spout = kafka.spout(unhurried=True, kafka__emits_per_next_max=3, kafka__poll_records_max=3)
    spout.ask("activate")
    for tup_id in ids(spout.emits(count=3)):
        spout.ask("ack", tup_id)
    spout.send(*[{"command": "next", "id": ""}] * 40)  # and nobody reads the answers
    wait_for_full_pipe(spout)
    spout.process.send_signal(signal.SIGTERM)
    assert spout.process.wait(LAST_WILL_S_MAX) == 2
    assert kafka.committed() == 3


def wait_for_full_pipe(spout: Storm) -> None:
    """Wait until what the component says fills the pipe: then it is stuck in its next word, or about to be."""
    waiting = array("i", [0])

    def is_full() -> bool:
        fcntl.ioctl(spout.process.stdout, termios.FIONREAD, waiting)
        return waiting[0] >= PIPE_BYTES - 2 * mmap.PAGESIZE

    eventually(is_full, otherwise=lambda: f"{waiting[0]} bytes are in the pipe")


@pytest.fixture
def own_broker(tmp_path: Path, topic_name: str) -> Iterator[Kafka]:
    from downspout.broker import EmbeddedKafka

    with EmbeddedKafka(tmp_path / "kafka") as broker:
        made = Kafka(broker, topic_name, tmp_path)
        yield made
        end(made)


def starved(spout: Storm) -> float:
    """Return for how many seconds the threads of the component, and ours, have waited for a processor so far.

    That is the machine's doing and not the component's; where the system does not tell, it is nothing.
    """
    found = [path for pid in (spout.process.pid, os.getpid()) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    waited_ns = 0
    for path in found:
        with suppress(OSError):  # the thread has ended
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.sweep), "silent"])
def test_no_call_outlasts_storms_patience(own_broker: Kafka, how: str) -> None:
    """With the broker stopped, or hanging, every command is answered within 5 s, and the end is bounded too."""
    own_broker.fill(*(b"%d" % number for number in range(20)))
    spout = own_broker.spout(kafka__emits_per_next_max=20, kafka__commit_period_ms=500)
    spout.ask("activate")
    tuples = ids(spout.emits(count=20))
    spout.ask("ack", tuples.pop(0))
    pid = own_broker.broker.broker.pid
    if how == "silent":
        os.kill(pid, signal.SIGSTOP)
    else:
        own_broker.broker.kill()
    took: list[tuple[float, str]] = []
    again: set[str] = set()

    def timed(command: str, tup_id: str = "") -> None:
        start, starved_s = time.monotonic(), starved(spout)
        again.update(message["id"] for message in spout.ask(command, tup_id))
        took.append((time.monotonic() - start - (starved(spout) - starved_s), command))

    try:
        for tup_id in tuples[:6]:
            timed("ack", tup_id)
            timed("next")
        timed("fail", tuples[6])
        for _ in range(6):
            timed("next")
        time.sleep(1.1)
        for tup_id in tuples[7:12]:
            timed("ack", tup_id)
        timed("deactivate")
        for tup_id in [*tuples[12:], *sorted(again)]:  # the last one lets the spout leave the group
            timed("ack", tup_id)
        timed("activate")
        for _ in range(4):
            timed("next")
        start = time.monotonic()
        assert spout.end_input() == 2
        ended_s = time.monotonic() - start
    finally:
        if how == "silent":
            os.kill(pid, signal.SIGCONT)
    assert max(took)[0] < CALL_S_MAX, sorted(took, reverse=True)[:6]
    # Nobody can tell for how long a process that is gone was starved; one that waits for the client takes 30 s.
    assert ended_s < END_S_MAX


def test_a_component_that_cannot_be_imported(tmp_path: Path) -> None:
    """The traceback of a failed import is on stderr, where Storm's error message takes it from."""
    module = tmp_path / "broken_bolt.py"
    module.write_text("import no_such_package_anywhere\n")
    done = subprocess.run(
        [sys.executable, "-m", "streamparse.run", "broken_bolt.Bolt"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, input="",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ModuleNotFoundError: No module named 'no_such_package_anywhere'" in done.stderr
    assert f'{module}", line 1' in done.stderr


def test_a_spout_that_cannot_start(kafka: Kafka) -> None:
    """No broker at the address: Storm gets the error with its cure, its log the traceback, and the process ends."""
    spout = kafka.spout(kafka__bootstrap="127.0.0.1:1")
    (error,) = [m for m in spout.until(lambda m: m.get("command") == "error") if m.get("command") == "error"]
    assert "KafkaSpout could not start" in error["msg"]
    assert "SilentBrokersError: No Kafka at 127.0.0.1:1" in error["msg"]
    assert "Try: start the broker" in error["msg"]
    said = spout.rest()
    assert spout.process.returncode == 1
    assert "Traceback" in said
    assert "SilentBrokersError: No Kafka at 127.0.0.1:1" in said
