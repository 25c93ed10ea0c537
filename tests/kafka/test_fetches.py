"""How long fetches took, of late."""

from __future__ import annotations

import pytest

from downspout.kafka import Fetches, TopicPartition
from downspout.kafka.port import PERIOD_S

TP = TopicPartition("orders", 0)


def test_mean_and_longest_are_of_late() -> None:
    """What is older than two periods is forgotten, what is younger than one counts, and counters stay."""
    fetches = Fetches()
    fetches.answered(9.0, now=100.0)
    fetches.answered(1.0, now=100.0 + PERIOD_S)
    assert (fetches.mean_s(131.0), fetches.max_s(131.0)) == (5.0, 9.0)
    fetches.answered(3.0, now=100.0 + 2 * PERIOD_S)
    assert (fetches.mean_s(161.0), fetches.max_s(161.0)) == (2.0, 3.0)
    assert (fetches.mean_s(500.0), fetches.max_s(500.0)) == (0.0, 0.0)
    assert fetches.calls == 3
    fetches.of(TP).answered(2.0, now=500.0)
    assert (fetches.calls, fetches.of(TP).calls, fetches.by_partition.keys()) == (3, 1, {TP})


def test_a_long_silence_is_forgotten() -> None:
    """The first answer after a pause is the only one that counts."""
    fetches = Fetches()
    fetches.answered(9.0, now=100.0)
    fetches.answered(1.0, now=100.0 + 2 * PERIOD_S)
    assert (fetches.mean_s(161.0), fetches.max_s(161.0)) == (1.0, 1.0)


@pytest.mark.parametrize("later", [0.0, PERIOD_S - 1, PERIOD_S + 1])
def test_reading_changes_nothing(later: float) -> None:
    """Whoever looks, and how often, the figures are the same."""
    fetches = Fetches()
    fetches.answered(2.0, now=100.0)
    assert [fetches.max_s(100.0 + later) for _ in range(3)] == [2.0] * 3
