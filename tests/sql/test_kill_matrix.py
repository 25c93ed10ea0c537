"""Kill the process at any statement: each row is in the table once, and the offsets are the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downspout.offsets.stores.sql import SqlStore
from downspout.sql.sql_writer import SqlLog, SqlWriter
from tests.killing import kill_everywhere
from tests.sql.killing import MODES, World

pytestmark = [pytest.mark.fake_only("stops a process between any two statements, in virtual time")]

RECOVERIES = ("at once", "after the time-out", "by another worker", "killed again")
LATER_S = 2_000.0
"""After so long, the session of the dead is over, and tuples have timed out."""


def recover(world: Any, recovery: str, moment: int) -> None:
    """Let whoever comes after the dead go on to the end."""
    if recovery == "killed again":
        # Somewhere else in its life than the first: it has less to do, so the moment is counted round.
        world.lives(lambda number, _: number == 1 + moment * 7 % 40)
    if recovery in ("after the time-out", "by another worker"):
        world.clock.advance(LATER_S if recovery == "after the time-out" else 0.0)
    if recovery == "by another worker":
        assert world.lives(**{"run.member": 2})
    else:
        assert world.lives()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
def test_a_kill_at_any_statement_neither_loses_nor_doubles_a_row(mode: str) -> None:
    """Before and after each statement, with each recovery: rows exact, offsets the end, dead letter written."""
    kill_everywhere(lambda folder: World(folder, mode), recover, RECOVERIES, few=2)


def without_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqlLog, "append", lambda self, *entry: None)


def log_first(patch: pytest.MonkeyPatch) -> None:
    real = SqlWriter.insert_rows

    def insert(self: Any, *rows: Any) -> None:
        self.database.commit()
        self.database.begin()
        real(self, *rows)

    patch.setattr(SqlWriter, "insert_rows", insert)


def stale_store(patch: pytest.MonkeyPatch) -> None:
    real = SqlStore.store

    def store(self: Any, offsets: Any) -> None:
        real(self, {tp: each._replace(offset=each.offset + 1) for tp, each in offsets.items()})

    patch.setattr(SqlStore, "store", store)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [without_log, log_first, stale_store])
def test_the_matrix_sees_what_is_wrong(mutant: Callable[[Any], None], tmp_path: Path) -> None:
    """Each way to write rows twice or not at all is found at some moment."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for moment in range(20, 126, 3):
            world = World(tmp_path / str(moment))
            if not world.lives(lambda number, _, moment=moment: number == moment):
                world.clock.advance(LATER_S)
                if not world.lives():
                    continue
            if world.violations():
                return
    pytest.fail("it was not found")
