"""How long a turn of the spout waits for records."""

from __future__ import annotations

import pytest

from downspout.protocols import SpoutEngine
from downspout.testing import FakeKafka
from tests.spout.spout_driver import TOPIC, Driver


def waited_s(kafka: FakeKafka, driver: Driver, free_s: float) -> float:
    """Return how long the next turn takes, with an engine that has nothing else to do for so long."""
    driver.spout.engine_services = SpoutEngine(driver.emit_many, free_s=lambda: free_s)
    before = kafka.clock.monotonic()
    driver.spout.next_tuple()
    return kafka.clock.monotonic() - before


@pytest.mark.fake_only("the real client's polls take real time")
@pytest.mark.parametrize(
    ("free_s", "resting_s", "out_s"), [(0, 0.2, 0.01), (0.05, 0.2, 0.05), (0.5, 0.5, 0.2), (9, 1, 0.2)]
)
def test_a_turn_waits_as_long_as_nothing_else_is_due(free_s: float, resting_s: float, out_s: float) -> None:
    """At rest it waits up to five polls, with tuples out up to one; never while acks may come, nor into what is due."""
    kafka = FakeKafka()
    kafka.create_topic(TOPIC, 1)
    driver = Driver(kafka)
    driver.run(3)
    assert waited_s(kafka, driver, free_s) == pytest.approx(resting_s)
    kafka.produce(TOPIC, b"one", partition=0)
    assert driver.run(1) == [0]
    assert waited_s(kafka, driver, free_s) == pytest.approx(out_s)


@pytest.mark.fake_only("the real client's polls take real time")
def test_a_turn_does_not_wait_into_a_commit_that_is_due() -> None:
    """With tuples out a commit, or the end of a transaction, comes in time, though nothing else is to be done."""
    kafka = FakeKafka()
    kafka.create_topic(TOPIC, 1)
    driver = Driver(kafka, commit_period_ms=1_000)
    driver.run(3)
    kafka.produce(TOPIC, b"one", partition=0)
    assert driver.run(1) == [0]
    waits = [waited_s(kafka, driver, free_s=9) for _ in range(12)]
    assert max(waits) == pytest.approx(0.2)
    assert any(wait < 0.15 for wait in waits)
