"""How long bolts were at work, and how long trees took, as counters."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import streamparse
from streamparse import Topology

from downspout.component import Bolt
from downspout.engine import Bounds, Engine, Latencies, PendingTrees, Tree, from_class, quantile_ms
from downspout.testing import VirtualClock

TUPLES = 10
WORK_S = 0.5
CLOCK = VirtualClock()


class Source(streamparse.Spout):
    outputs: ClassVar[list[str]] = ["n"]
    left = TUPLES

    def next_tuple(self) -> None:
        if self.left:
            self.left -= 1
            self.emit([self.left], tup_id=self.left)


class Slow(Bolt):
    """Works for half a second on each tuple, and raises on the last."""

    outputs: ClassVar[list[str]] = []
    clock = CLOCK

    def process(self, tup: Any) -> None:
        CLOCK.sleep(WORK_S)
        if tup.values.n == 0:
            raise ValueError("nought")


class Work(Topology):
    source = Source.spec()
    slow = Slow.spec(inputs=[source])


def test_a_bolt_is_busy_for_as_long_as_it_works() -> None:
    """Ten tuples of half a second are five seconds, and a tuple that fails counts too; a spout has none."""
    engine = Engine(from_class(Work, "work"), {"source": {}, "slow": {}}, bounds=Bounds(for_s=20), clock=CLOCK)
    result = engine.run()
    assert result.components["slow"].executed == TUPLES
    assert result.components["slow"].busy_s == pytest.approx(TUPLES * WORK_S)
    assert result.components["source"].busy_s == 0
    assert result.last_errors["slow"] == "ValueError: nought"
    assert result.stacks["slow"].startswith("Traceback")
    assert result.stacks["slow"].endswith("ValueError: nought")


def test_the_histogram_counts_every_tree() -> None:
    """Also those that are not sampled any more: 50,000 of a millisecond and 5,000 of a second."""
    latencies, forest = Latencies(), PendingTrees()
    for took, count in ((0.001, 50_000), (1.0, 5_000)):
        for _ in range(count // 100):
            latencies.add([Tree(forest, number, 0.0) for number in range(100)], lambda took=took: took)
    assert sum(latencies.histogram.values()) == pytest.approx(55_000)
    assert quantile_ms(latencies.histogram, 0.5) == pytest.approx(1, rel=0.02)
    assert quantile_ms(latencies.histogram, 0.99) == pytest.approx(1_000, rel=0.02)
    assert quantile_ms({}, 0.5) is None
