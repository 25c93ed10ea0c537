"""Minimal cases of bugs that the matrix found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from downspout.testing import Killed
from tests.disks import SimulatedDisk
from tests.machine import Process, Step, Volume
from tests.sink.support import rows_of, write_rows

ORIGINS = [("t", "id", 0, 1, ""), ("t", "id", 0, 2, "")]


def numbers(directory: Path) -> list[int]:
    return sorted(row["n"] for row in rows_of(directory))


def at_sync_of(end: str, action: Callable[[], None]) -> Callable[[Process, Step], None]:
    """Let something happen ahead of the first sync of a path that ends so."""
    happened: list[Step] = []

    def before(process: Process, step: Step) -> None:
        if step.operation == "sync" and step.where.endswith(end) and not happened:
            happened.append(step)
            action()

    return before


def test_an_entry_that_its_writer_has_not_synced_is_not_believed(tmp_path: Path) -> None:
    """Rows found covered by an entry that is linked and not synced are durable before they are acked."""
    volume, directory = Volume(tmp_path), tmp_path / "out"

    def another_comes_and_the_power_goes() -> None:
        disk = SimulatedDisk(volume, Process("other"))
        write_rows(directory, ORIGINS, writer="other", disk=disk)  # all are covered: it may ack them now
        volume.power_cut()

    paused = Process("paused", at_sync_of("out/_downspout/log", another_comes_and_the_power_goes))
    # The folder is synced when the directory is made, too: that is not the sync that is meant.
    write_rows(directory, [], writer="makes it", disk=SimulatedDisk(volume, Process("makes it")))
    with pytest.raises(Killed):
        write_rows(directory, ORIGINS, writer="paused", disk=SimulatedDisk(volume, paused))
    write_rows(directory, [], writer="last", disk=SimulatedDisk(volume, Process("last")))
    assert numbers(directory) == [1, 2]


@pytest.mark.parametrize("folder", ["out/_downspout", "out", ""])
def test_folders_that_a_killed_process_made_are_made_durable(tmp_path: Path, folder: str) -> None:
    """A process that was killed after it made the directory, and before it synced it, leaves no trap for the next."""
    volume, directory = Volume(tmp_path), tmp_path / "out"

    def die() -> None:
        raise Killed

    first = Process("first", at_sync_of(folder or str(tmp_path), die))
    with pytest.raises(Killed):
        write_rows(directory, ORIGINS, writer="first", disk=SimulatedDisk(volume, first))
    write_rows(directory, ORIGINS, writer="second", disk=SimulatedDisk(volume, Process("second")))
    volume.power_cut()
    assert numbers(directory) == [1, 2]
