"""A component that does not return: it is named, and neither a signal nor the drain's time waits for it."""

from __future__ import annotations

import fcntl
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from streamparse import Bolt, Spout, Topology

from downspout.cli import main
from downspout.clock import SYSTEM_CLOCK
from downspout.engine import Engine, from_class
from downspout.kafka import TopicPartition
from downspout.outages import Outages
from downspout.run import watchdog as module
from downspout.run.watchdog import END_S, GRACE_S, Watchdog
from downspout.testing import FakeKafka


class Clicks(Spout):
    outputs = ("topic", "partition", "offset")
    clicks: ClassVar[list[int]] = []

    def next_tuple(self) -> None:
        if not self.clicks:
            self.clicks.append(0)
            self.emit(["clicks", 0, 0], tup_id="0")


class Hangs(Bolt):
    entered: ClassVar[threading.Event]
    leave: ClassVar[threading.Event]

    def process(self, tup: Any) -> None:
        self.entered.set()
        self.leave.wait()  # this line is named


class Made(Topology):
    clicks = Clicks.spec()
    b = Hangs.spec(inputs=[clicks])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Watchdog, Engine, list[str]]]:
    """Give an watchdog of a run that hangs in a bolt, that run, and what is said."""
    said: list[str] = []
    monkeypatch.setattr(module, "say", lambda text, **_: said.append(text))
    Clicks.clicks.clear()
    Hangs.entered, Hangs.leave = threading.Event(), threading.Event()
    engine = Engine(from_class(Made, "made"), {"clicks": {}, "b": {}})
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    try:
        Hangs.entered.wait()
        assert thread.ident is not None
        yield Watchdog(engine, thread.ident, stuck_s=30, drain_s=5, supervised=False), engine, said
    finally:
        Hangs.leave.set()
        engine.stop()
        thread.join()


HERE = str(Path(__file__).relative_to(Path.cwd())) if Path(__file__).is_relative_to(Path.cwd()) else __file__
LINE = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "# this line" in line)


def test_a_bolt_that_hangs_is_named(watched: Any, caplog: pytest.LogCaptureFixture) -> None:
    """After run.stuck_s, and each time that has doubled: the bolt, the record, the line."""
    watchdog, _, _ = watched
    for now in (0, 29, 30, 59, 60, 119, 120):
        watchdog.look(float(now))
    expected = [f"b has worked on clicks[0]@0 for {took}, {HERE}:{LINE}" for took in ("30 s", "60 s", "2 min")]
    assert [record.getMessage() for record in caplog.records if "has worked" in record.getMessage()] == expected


def test_what_waits_for_a_service_that_is_away_blames_no_record(
    watched: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outage has a line of its own, and a run that waits for it is alive."""
    watchdog, _, _ = watched
    outages = Outages()
    monkeypatch.setattr(module, "OUTAGES", outages)
    outages.waiting("s3://bucket", "b")
    for now in (1, 40, 90):
        watchdog.look(float(now))
    assert ("has worked" in caplog.text, watchdog.hang(90.0)) == (False, "")
    outages.over("s3://bucket", "b")
    watchdog.look(120.0)
    assert "b has worked on clicks[0]@0" in caplog.text
    assert watchdog.hang(120.0)


def test_a_loop_that_gets_on_is_not_named(watched: Any, caplog: pytest.LogCaptureFixture) -> None:
    watchdog, engine, _ = watched
    for now in range(0, 300, 10):
        engine.beats += 1
        watchdog.look(float(now))
    assert "has worked" not in caplog.text


def test_the_first_signal_is_answered_at_once(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is waited for, how long, and what a second one does; an echo of our own is no signal."""
    watchdog, _, said = watched
    sent: list[int] = []
    monkeypatch.setattr(module.signal, "pthread_kill", lambda thread, number: sent.append(number))
    watchdog.look(100.0)
    watchdog.hear(signal.SIGINT, 112.0)
    (answer,) = said
    assert answer.startswith("SIGINT: waiting for 1 tuple in flight; b has worked on clicks[0]@0 for ")
    assert answer.endswith("at most 5 s (run.drain_s); Ctrl-C again stops at once")
    watchdog.look(112 + 5 + GRACE_S - 0.1)
    assert sent == []
    watchdog.look(112 + 5 + GRACE_S)
    assert (sent, watchdog.interrupts) == ([signal.SIGINT], 1)
    watchdog.hear(signal.SIGINT, 119.0)
    assert len(said) == 1


def test_it_watches_in_a_process_with_very_many_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond descriptor 1,023 it looks at the loop and hears signals as it does below: a notebook may have so many."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 2_000:
        pytest.skip("this process may not open so many files")
    pair = socket.socketpair

    def high() -> list[socket.socket]:
        ends = pair()
        found = [socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 1_100)) for end in ends]
        for end in ends:
            end.close()
        return found

    class Noting:
        looked, heard = threading.Event(), threading.Event()

        def look(self, now: float) -> None:
            self.looked.set()

        def hear(self, number: int, now: float) -> None:
            self.heard.set()

    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module.socket, "socketpair", high)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with module.watched(Noting()):  # type: ignore[arg-type]
            assert Noting.looked.wait(10)
            signal.raise_signal(signal.SIGTERM)
            assert Noting.heard.wait(10)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_bolt_that_swallows_interrupts_is_left_behind(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second signal the spouts rest, which commits, though the bolt never returns; then the process ends."""
    watchdog, engine, said = watched
    codes: list[int] = []
    monkeypatch.setattr(module, "leave_at_once", codes.append)
    rested = threading.Event()
    monkeypatch.setattr(engine.spouts[0], "deactivate", rested.set)
    watchdog.hear(signal.SIGTERM, 0.0)
    watchdog.hear(signal.SIGTERM, 1.0)
    watchdog.look(1 + END_S)
    assert rested.is_set()
    assert codes == [128 + signal.SIGTERM]
    assert "the run does not end (b has worked on clicks[0]@0" in said[-1]


HANGING = """
import signal, socket, time
from streamparse import Bolt, Topology
from spouts.kafka import KafkaSpout

def sleep():
    time.sleep(600)

def read():
    one, other = socket.socketpair()
    one.recv(1)

def loop():
    while True:
        pass

class Hangs(Bolt):
    def process(self, tup):
        if tup.values.value == "7":
            signal.raise_signal(signal.SIGTERM)
            HOW()

class Made(Topology):
    reader = KafkaSpout.spec(topics=["orders"], fields=["value"], group="readers", bootstrap="fake://hangs")
    hangs = Hangs.spec(inputs=[reader])
"""


@pytest.mark.fake_only("a bolt that hangs, and what is committed all the same")
@pytest.mark.parametrize("how", ["sleep", "read", "loop"])
def test_the_drains_time_holds_while_a_bolt_hangs(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """One signal is enough: after run.drain_s the call is interrupted, and what was acked is committed."""
    (tmp_path / "hanging.py").write_text(HANGING.replace("HOW", how))
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    with FakeKafka("hangs", clock=SYSTEM_CLOCK) as kafka:
        for value in range(10):
            kafka.produce("orders", str(value).encode(), partition=0)
        assert main(["run", str(tmp_path / "hanging.py"), "--set", "run.drain_s=0"]) == 143
        assert kafka.committed("readers")[TopicPartition("orders", 0)].offset == 7
    err = capfd.readouterr().err
    assert "downspout: SIGTERM: waiting for " in err
    assert "hangs has worked on orders[0]@7 for " in caplog.text
    assert "interrupted, because run.drain_s has passed" in caplog.text
    assert "stopped by SIGTERM with 3 tuples in flight, to be processed again at the next start" in err
