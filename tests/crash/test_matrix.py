"""Kill anything, at any step: each row is in the files exactly once."""

from __future__ import annotations

import pytest

from downspout.testing.simulated_disk import LOSSES
from tests.crash.matrix import DEATHS, SCENARIOS, Matrix, Outcome

pytestmark = [pytest.mark.fake_only("stops a process between any two steps, in a simulated world")]

QUICK_EVERY = 13
"""``make check`` looks at every so many-th point of one scenario."""
TELLS_OF = {"checkpoints": "checkpoints", "fence": "fence", "generation": "generation"}
"""Scenario → what must be there in the end, or it did not tell what it is for."""


def expected_cells(outcome: Outcome) -> int:
    """Return how many cells a scenario of so many points has: deaths where something changes, sleeps everywhere."""
    return ((outcome.points - outcome.looks) * len(DEATHS) + outcome.points) * len(LOSSES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_any_step_neither_loses_nor_doubles_a_row(name: str, outcomes: dict[str, Outcome]) -> None:
    """At every step of a scenario, with every recovery and every state of the disk, each row is there exactly once."""
    outcome = outcomes[name] = Matrix(name).run()
    assert outcome.violations == []
    assert outcome.cells == expected_cells(outcome)
    assert outcome.points > 40
    assert TELLS_OF.get(name, "flush") in outcome.made


def test_some_crashes_neither_lose_nor_double_a_row() -> None:
    """What the matrix shows of every step holds for some steps; for the quick loop."""
    outcome = Matrix("recovery", every=QUICK_EVERY).run()
    assert outcome.violations == []
    assert outcome.cells > 20
