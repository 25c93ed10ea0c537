"""A compaction under power cuts: what was not synced is gone, stays, or stays in part."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from downspout.audit import output_files as files
from downspout.audit.audit import audit
from downspout.testing import Killed
from tests.disks import SimulatedDisk
from tests.machine import LOSSES, Loss, Process, Step, Volume
from tests.sampling import WHOLE
from tests.sink.compaction_support import compact, expected, flush, opened, plain, through_the_log

ROWS = range(30)


def cut_before(directory: Path, wanted: int, volume: Volume) -> bool:
    """Compact until a step that changes something; return whether it got there."""
    count = itertools.count(1)

    def before(process: Process, step: Step) -> None:
        if step.changes and next(count) == wanted:
            raise Killed

    try:
        compact(directory, SimulatedDisk(volume, Process("compactor", before)))
    except Killed:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_a_power_cut_at_any_step_of_a_compaction_changes_no_row(
    tmp_path: Path, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step the power is cut before, and whatever of the unsynced survives: through the log all rows are there
    once, a plain reader misses none, and the next start, or the next compaction and another cut, leaves each once.

    In `make test` the losses take turns over the steps.
    """
    monkeypatch.setattr(files, "TURN_S", 0.0)
    for step in itertools.count(1) if WHOLE else itertools.count(1 + LOSSES.index(loss), len(LOSSES)):
        root = tmp_path / str(step)
        root.mkdir()
        volume, directory = Volume(root, seed=step), root / "out"
        for number in range(3):
            disk = SimulatedDisk(volume, Process("writer"))
            flush(directory, range(number * 10, number * 10 + 10), f"w{number}", disk)
        reached = cut_before(directory, step, volume)
        volume.power_cut(loss)
        assert through_the_log(directory) == expected(ROWS), f"cut before step {step}"
        assert plain(directory).keys() == expected(ROWS).keys(), f"cut before step {step}"
        opened(directory, "next", SimulatedDisk(volume, Process("next")))
        assert plain(directory) == expected(ROWS), f"cut before step {step}"
        assert audit(directory).exit_code == 0
        compact(directory, SimulatedDisk(volume, Process("again")))
        volume.power_cut(loss)
        opened(directory, "last", SimulatedDisk(volume, Process("last")))
        assert plain(directory) == through_the_log(directory) == expected(ROWS), f"cut before step {step}"
        shutil.rmtree(root)
        if not reached:
            break
    assert step > 40
