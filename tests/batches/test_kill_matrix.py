"""Kill the process before and after any statement that it sends to the database: counts are exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bolts.state import StateBolt
from downspout.batches import Base
from downspout.batches.sql_metadata import SqlMetadata
from downspout.batches.sql_state import SqlStateTransaction
from tests.batches.killing import World
from tests.killing import kill_everywhere

pytestmark = [pytest.mark.fake_only("stops a process between any two statements, in virtual time")]

RECOVERIES = ("at once", "with other batches", "killed again")
"""An opaque batch that comes again with another ``batch.records_max`` holds other records, fewer of them above all; a
transactional one holds the same, and only those after it differ."""


def recover(world: Any, recovery: str, moment: int) -> None:
    """Let whoever comes after the dead go on to the end."""
    if recovery == "killed again":
        # Somewhere else in its life than the first: it has less to do, so the moment is counted round.
        world.lives(lambda number, _: number == 1 + moment * 7 % 60, **{"batch.records_max": 7})
    assert world.lives(**({} if recovery == "at once" else {"batch.records_max": 2}))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_kill_at_any_statement_neither_loses_nor_doubles_a_record(kind: str) -> None:
    """Before and after each statement of coordinator, emitters and states, with each recovery: counts exact."""
    kill_everywhere(lambda folder: World(folder, kind), recover, RECOVERIES, few=1)


def as_trident(patch: pytest.MonkeyPatch) -> None:
    """Let keys that a later attempt lacks keep what an earlier one has stored, as Trident does."""
    patch.setattr(SqlStateTransaction, "replaced", lambda self: {})


def acked_first(patch: pytest.MonkeyPatch) -> None:
    """Say that a commit is done, and do it never."""
    patch.setattr(StateBolt, "_apply", lambda self, attempt, held: [])


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """Store no attempt: after a restart the numbers begin again."""
    real = SqlMetadata.save_coordinator

    def save(self: Any, epoch: int, state: Any) -> None:
        real(self, epoch, state._replace(current=1))

    patch.setattr(SqlMetadata, "save_coordinator", save)


def without_txid(patch: pytest.MonkeyPatch) -> None:
    """Apply a batch to whatever is stored, as if no attempt had been before."""
    patch.setattr(
        "downspout.batches.core.state_values.base",
        lambda kind, stored, txid: Base(None if stored is None else stored[1]),
    )


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("mutant", [as_trident, acked_first, forgetful, without_txid])
def test_the_matrix_sees_what_is_wrong(mutant: Callable[[Any], None], tmp_path: Path) -> None:
    """Each way to count twice or not at all is found at some moment."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        settings: dict[str, Any] = {"batch.records_max": 2}
        for moment in range(40, 200, 4):
            world = World(tmp_path / str(moment), "opaque")
            if not world.lives(lambda number, _, moment=moment: number == moment):
                try:
                    ended = world.lives(**settings)
                except AssertionError:  # it ended with an error: the mutant is found
                    return
                if not ended:
                    continue
            if world.violations():
                return
    pytest.fail("it was not found")
