"""A run's messages while nothing happens, and its reaction to signals."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from downspout.spark import Signals
from downspout.spark.topology.query import Silence
from downspout.testing import VirtualClock


def test_what_is_waited_for_is_said_every_ten_seconds() -> None:
    """A batch, or Spark before it, is named every 10 s; where there is nothing new that is said ever less often."""
    clock, said = VirtualClock(), []
    batches: Any = SimpleNamespace(totals=SimpleNamespace(batches=0), busy=False, number=7)
    silence, started = Silence(batches, lambda text: said.append((clock.monotonic() - started, text)), clock), 0.0
    started = clock.monotonic()
    for second in range(100):
        clock.advance(1.0)
        batches.busy = 20 <= second < 40
        silence.look((lambda: "Waiting for data to arrive") if second >= 40 else lambda: "Getting offsets from Kafka")
    assert said == [
        (10.0, "waiting for Spark (Getting offsets from Kafka); nothing was committed for 10 s"),
        (20.0, "waiting for Spark (Getting offsets from Kafka); nothing was committed for 20 s"),
        (30.0, "batch 7 is still running; nothing was committed for 30 s"),
        (40.0, "batch 7 is still running; nothing was committed for 40 s"),
        (50.0, "nothing new for 50 s"),
        (60.0, "nothing new for 60 s"),
        (70.0, "nothing new for 70 s"),
        (80.0, "nothing new for 80 s"),
    ]
    batches.totals.batches = 1
    silence.look(lambda: "Waiting for data to arrive")
    clock.advance(10.0)
    silence.look(lambda: "Waiting for data to arrive")
    assert said[-1][1] == "nothing new for 10 s"


def test_signals_are_noted_whoever_has_set_other_handlers_meanwhile() -> None:
    """Two are only noted while somebody looks, a third one interrupts; afterwards the handlers are those of before."""
    before = signal.getsignal(signal.SIGINT)
    with Signals() as signals:
        signals.watched = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as PySpark sets its own
        signals.arm()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == [signal.SIGINT, signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("number", "again"), [(signal.SIGINT, "Ctrl-C again"), (signal.SIGTERM, "a second SIGTERM")])
def test_the_first_signal_is_answered_at_once(capfd: pytest.CaptureFixture[str], number: int, again: str) -> None:
    """It says what is waited for and that a second one stops now; that one does, where nobody looks."""
    name = signal.Signals(number).name
    with Signals() as signals:
        os.kill(os.getpid(), number)
        assert capfd.readouterr().err == f"downspout: {name}: waiting for Spark to start; {again} stops at once\n"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    said = f"downspout: {name}: stopping at once; uncommitted batches will be computed again\n"
    assert capfd.readouterr().err == said
    with Signals() as signals:
        signals.doing = lambda: "batch 7"
        os.kill(os.getpid(), number)
    assert f"{name}: waiting for batch 7; " in capfd.readouterr().err
