"""Kill anything, at any step: each row is in the files exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from downspout.testing import Killed
from tests.crash import words
from tests.crash.matrix import CHUNKS, DEATHS, PROMPT, RECOVERIES, SCENARIOS, Matrix, Outcome
from tests.crash.world import GROUP, Life, World
from tests.killing import EVERY
from tests.machine import LOSSES, Step
from tests.sampling import sample

pytestmark = [pytest.mark.fake_only("stops a process between any two steps, in a simulated world")]

QUICK_EVERY = 13
"""``make check`` looks at every so many-th point of one scenario."""
TELLS_OF = {"checkpoints": "checkpoints", "fence": "fence", "rebuild": "rebuild"}
"""Scenario → what must be there in the end, or it did not tell what it is for."""


def expected_cells(outcome: Outcome, deaths: int) -> int:
    """Return how many cells a scenario of so many points has: deaths where something changes, sleeps everywhere."""
    return ((outcome.points - outcome.looks) * deaths + outcome.points) * len(LOSSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_any_step_neither_loses_nor_doubles_a_row(name: str, outcomes: dict[str, Outcome]) -> None:
    """With every recovery and each state of the disk each row is there once, at every step of the sample."""
    recoveries = PROMPT if SCENARIOS[name][2] is CHUNKS else RECOVERIES
    first = sample(range(1, EVERY + 1), EVERY, name)[0]
    outcome = outcomes[name] = Matrix(name, every=EVERY, first=first, recoveries=recoveries).run()
    assert outcome.violations == []
    assert outcome.cells == expected_cells(outcome, len(set(DEATHS) & set(recoveries)))
    assert outcome.points > 40 // EVERY
    assert TELLS_OF.get(name, "flush") in outcome.made


def test_some_crashes_neither_lose_nor_double_a_row() -> None:
    """What the matrix shows of every step holds for some steps; for the quick loop."""
    outcome = Matrix("recovery", every=QUICK_EVERY).run()
    assert outcome.violations == []
    assert outcome.cells > 20


def test_the_dead_reach_neither_disk_nor_kafka(tmp_path: Path) -> None:
    """What the engine does after the death of its process, in handlers too, changes neither files nor offsets."""
    world, left = World(tmp_path, words.Alone), []

    def before(life: Life, step: Step) -> None:
        if step.operation == "link" and not left:
            left.append((world.volume.files(), world.kafka.committed(GROUP), len(world.kafka.commits(GROUP))))
            world.kill(life, "keep")

    world.before = before
    life = world.start("dies")
    assert not world.live(life)
    assert left == [(world.volume.files(), world.kafka.committed(GROUP), len(world.kafka.commits(GROUP)))]
    for use in (life.kafka.consumer, life.kafka.producer, lambda: life.kafka.group_offsets(GROUP)):
        with pytest.raises(Killed):
            use()
    world.close()
