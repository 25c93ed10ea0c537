"""How long the engine lets a spout wait for its records."""

from __future__ import annotations

from typing import Any

import pytest
from streamparse import Spout, Topology

from downspout.component import Bolt
from downspout.engine import FREE_S_MAX, Bounds, Engine, from_class
from downspout.protocols import SpoutEngine
from downspout.testing import VirtualClock

FOR_S, TICK_S, AGE_S = 30.0, 0.75, 0.5


class Source(Spout):
    outputs = ("word",)
    clock = None
    engine_services: SpoutEngine | None = None
    hurries = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.left = [["a"]]

    def next_tuple(self) -> None:
        if self.left:
            self.emit(self.left.pop(), tup_id=1)

    def waits_for_acks(self) -> bool:
        return self.hurries


class Holding(Bolt):
    auto_ack = False
    due: float | None = None

    def process(self, tup: Any) -> None:
        pass

    def drain_at(self) -> float | None:
        return self.due


class One(Topology):
    source = Source.spec()
    holding = Holding.spec(inputs=[source])


class Two(Topology):
    source = Source.spec()
    other = Source.spec()
    holding = Holding.spec(inputs=[source, other])


def free_s(topology: Any = One, passed_s: float = 0.0, conf: Any = None, **given: Any) -> float:
    """Return what a spout is told after a round and some time, with attributes given to the components."""
    engine = Engine(from_class(topology, "t"), dict.fromkeys(("source", "other", "holding"), conf or {}),
                    bounds=Bounds(for_s=FOR_S), clock=VirtualClock())  # fmt: skip
    engine.start()
    engine.round()
    for name, value in given.items():
        task = engine.bolts[0] if name == "due" else engine.spouts[0]
        setattr(task.instance, name, engine.clock.monotonic() + value if name == "due" else value)
    engine.clock.sleep(passed_s)
    found: float = engine.spouts[0].services().free_s()
    engine.wind_up(quietly=True)
    return found


def test_a_spout_that_is_alone_may_wait_until_something_is_due() -> None:
    """A tick, a flush, a timeout and the end of the run each bound the wait, and so does a second."""
    assert free_s() == FREE_S_MAX
    assert free_s(conf={"topology.tick.tuple.freq.secs": TICK_S}) == pytest.approx(TICK_S, abs=0.1)
    assert free_s(due=AGE_S) == pytest.approx(AGE_S)
    assert free_s(conf={"topology.message.timeout.secs": 5}, passed_s=4.25) == pytest.approx(0.75, abs=0.1)
    assert free_s(conf={"topology.message.timeout.secs": 60}, passed_s=FOR_S - 0.25) == pytest.approx(0.25, abs=0.1)
    assert free_s(conf={"topology.message.timeout.secs": 60}, passed_s=FOR_S + 1) == 0


def test_a_spout_that_others_wait_for_may_not() -> None:
    """With a second spout, or while acks are hurried, nobody says that there is time."""
    assert free_s(Two) == 0
    assert free_s(hurries=True) == 0
