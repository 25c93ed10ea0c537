"""What a run says while nothing happens, and how it hears signals."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from downspout.spark.topology.signals import Signals
from downspout.spark.topology.silence import Silence
from downspout.testing import VirtualClock


def test_a_long_silence_is_broken_more_and_more_seldom() -> None:
    """After 15, 30, 60 … seconds without a batch something is said; a batch that is done begins anew."""
    clock, said = VirtualClock(), []
    batches: Any = SimpleNamespace(totals=SimpleNamespace(batches=0), busy=False, number=7)
    silence, started = Silence(batches, lambda text: said.append((clock.monotonic() - started, text)), clock), 0.0
    started = clock.monotonic()
    for second in range(70):
        clock.advance(1.0)
        batches.busy = second >= 40
        silence.look()
    assert said == [
        (15.0, "nothing new since 15 s"),
        (30.0, "nothing new since 30 s"),
        (60.0, "batch 7 is under way; nothing is done since 60 s"),
    ]
    batches.totals.batches = 1
    silence.look()
    clock.advance(15.0)
    silence.look()
    assert said[3][1] == "batch 7 is under way; nothing is done since 15 s"


def test_signals_are_noted_whoever_has_set_other_handlers_meanwhile() -> None:
    """Two signals are only noted, a third one interrupts; afterwards the handlers are those of before."""
    before = signal.getsignal(signal.SIGINT)
    with Signals() as signals:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as PySpark sets its own
        signals.arm()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == [signal.SIGINT, signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
