"""The sweeper and its fences: leftovers of stopped writers are removed, and a paused one loses no row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from downspout.errors import SinkError
from downspout.sink import (
    FENCE,
    FLUSH,
    SWEEP_AFTER_S,
    BatchWriter,
    Disk,
    Flushed,
    Identities,
    Layout,
    OutdatedError,
    SinkWriter,
    StagingWriter,
    read_entries,
)
from downspout.testing import Killed, VirtualClock
from tests.disks import SteppedDisk


class OldDisk(Disk):
    """All files are as old as it says."""

    def __init__(self, age_s: float = SWEEP_AFTER_S + 1) -> None:
        self.age_s = age_s

    def modified(self, path: Path) -> float:
        """Return the time before which nothing was written for so long."""
        return VirtualClock().wall() - self.age_s


def opened(directory: Path, writer: str, disk: Disk | None = None, cls: type[SinkWriter] = SinkWriter) -> SinkWriter:
    """Return an open writer, at a time of its own."""
    made = cls(
        directory, topology="t", component="sink", columns=["month:int8", "value:int64"], writer=writer,
        partition_by=["month"], disk=disk, clock=VirtualClock(),
    )  # fmt: skip
    made.open()
    return made


def flush(sink: SinkWriter, offsets: range) -> Flushed:
    table = pa.table(
        {
            "month": pa.array([offset % 3 for offset in offsets], pa.int8()),
            "value": pa.array(offsets, pa.int64()),
        }
    )
    identities = Identities.of([("t", "id", 0, offset, "") for offset in offsets])
    return sink.flush(identities, lambda mask, _: table.filter(pa.array(mask)))


def visible(directory: Path) -> Counter[int]:
    """Return how often a reader of the directory sees each value."""
    files = [str(path) for path in directory.glob("month=*/*.parquet")]
    return Counter(ds.dataset(files).to_table(columns=["value"])["value"].to_pylist()) if files else Counter()


def hidden(directory: Path) -> list[str]:
    """Return what waits in the staging folder and among the entries."""
    return sorted(path.name for path in Layout(directory).staging.rglob("*") if path.is_file())


def steps_of_a_flush(directory: Path) -> int:
    disk = SteppedDisk(lambda step: None)
    flush(opened(directory, "count", disk), range(10))
    return disk.steps


def stopped(directory: Path, step: int, writer: str = "dead") -> None:
    """Leave what a writer leaves that is stopped before a step."""

    def before(at: int) -> None:
        if at == step:
            raise Killed

    with pytest.raises(Killed):
        flush(opened(directory, writer, SteppedDisk(before)), range(10))


def test_whatever_a_stopped_writer_leaves_is_swept(tmp_path: Path) -> None:
    """Stopped before any step, a writer's hidden files are gone after the next opening, and no row with them."""
    left = 0
    for step in range(1, steps_of_a_flush(tmp_path / "count") + 1):
        directory = tmp_path / f"stop-{step}"
        stopped(directory, step)
        committed = sum(entry.rows for entry in read_entries(directory))
        left += bool(hidden(directory)) and not committed
        sink = opened(directory, "next", OldDisk())
        assert hidden(directory) == []
        assert sum(visible(directory).values()) == committed
        flush(sink, range(12))
        assert visible(directory) == Counter(range(12)), f"stopped before step {step}"
    assert left > 5


def test_files_of_writers_that_may_live_are_left_alone(tmp_path: Path) -> None:
    """Staged files that are young stay where they are, and no fence is written."""
    directory = tmp_path / "out"
    stopped(directory, steps_of_a_flush(tmp_path / "count") - 12)
    before = hidden(directory)
    assert any(name.startswith("part-dead") for name in before)
    opened(directory, "next", OldDisk(SWEEP_AFTER_S - 1))
    assert hidden(directory) == before
    assert read_entries(directory) == []


def test_a_fence_is_written_before_anything_is_deleted(tmp_path: Path) -> None:
    """A sweeper that is stopped before any step leaves the files there, or an entry that fences their writer."""
    at = steps_of_a_flush(tmp_path / "count") - 12
    for step in range(1, 40):
        directory = tmp_path / f"stop-{step}"
        stopped(directory, at)
        files = hidden(directory)

        def before(now: int, step: int = step) -> None:
            if now == step:
                raise Killed

        class Old(SteppedDisk, OldDisk):
            pass

        disk = Old(before)
        disk.age_s = SWEEP_AFTER_S + 1
        try:
            opened(directory, "next", disk)
        except Killed:
            fenced = [entry.fenced for entry in read_entries(directory) if entry.kind == FENCE]
            assert set(files) <= set(hidden(directory)) or fenced == [("dead",)]
        else:
            assert disk.steps < step
            return
    pytest.fail("the sweeper never came to an end")


@pytest.mark.slow
def test_a_paused_writer_that_was_swept_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Whatever step a writer is paused before while it is swept, its flush ends with each row there once."""
    renamed = 0
    for pause in range(1, steps_of_a_flush(tmp_path / "count") + 1):
        directory = tmp_path / f"pause-{pause}"

        def before(step: int, pause: int = pause, directory: Path = directory) -> None:
            if step == pause:
                opened(directory, "sweeper", OldDisk())

        sink = opened(directory, "paused", SteppedDisk(before))
        flush(sink, range(10))
        assert visible(directory) == Counter(range(10)), f"paused before step {pause}"
        flush(sink, range(8, 14))
        assert visible(directory) == Counter(range(14)), f"paused before step {pause}"
        assert not [name for name in hidden(directory) if name.startswith("part-")]
        entries = read_entries(directory)
        fenced = {writer for entry in entries for writer in entry.fenced}
        at = min((entry.number for entry in entries if entry.kind == FENCE), default=len(entries))
        assert not [e for e in entries if e.kind == FLUSH and e.writer in fenced and e.number > at]
        renamed += any(entry.writer.startswith("paused.") for entry in entries)
    assert renamed > 3


def test_a_writer_can_be_fenced_again_and_again(tmp_path: Path) -> None:
    """However often a writer is taken for dead, its next flush goes through under the next name."""
    sweeps = 0

    class Paused(Disk):
        def sync(self, path: Path) -> None:
            nonlocal sweeps
            super().sync(path)
            if path.suffix == ".hidden" and sweeps % 4 < 3:
                sweeps += 1
                opened(tmp_path, f"sweeper-{sweeps}", OldDisk())

    sink = opened(tmp_path, "paused", Paused())
    flush(sink, range(3))
    sweeps = 4
    flush(sink, range(3, 6))
    assert visible(tmp_path) == Counter(range(6))
    assert sweeps > 4


def test_the_next_name_of_a_writer_is_no_other_writers(tmp_path: Path) -> None:
    """Two writers of a component with a dot in its name that are both fenced do not become one."""
    names = ("my.flights-3-0a1b", "my.flights-4-2c3d")
    log = opened(tmp_path, names[0]).log
    log.fenced.update(names)
    assert [log.unfenced(name) for name in names] == [f"{name}.1" for name in names]
    log.fenced.add(f"{names[0]}.1")
    assert log.unfenced(names[0]) == f"{names[0]}.2"


def test_a_batch_whose_files_were_swept_is_made_again(tmp_path: Path) -> None:
    """What tasks have staged under a fenced name is never committed: the batch is outdated, and nothing is in sight."""
    committer = opened(tmp_path, "driver", cls=BatchWriter)
    task = opened(tmp_path, "task", cls=StagingWriter)
    assert isinstance(task, StagingWriter)
    assert isinstance(committer, BatchWriter)
    flush(task, range(5))
    opened(tmp_path, "sweeper", OldDisk())
    with pytest.raises(OutdatedError):
        committer.commit("batch-1", task.staged)
    assert visible(tmp_path) == Counter()
    again = opened(tmp_path, "task-again", cls=StagingWriter)
    assert isinstance(again, StagingWriter)
    flush(again, range(5))
    committer.commit("batch-1", again.staged)
    assert visible(tmp_path) == Counter(range(5))


def test_a_staged_file_that_somebody_deletes_is_an_error_and_costs_nothing(tmp_path: Path) -> None:
    """A staged file that vanishes before the commit is named in an error; the rows come again and are written."""

    class Thief(Disk):
        stolen = ""

        def sync(self, path: Path) -> None:
            super().sync(path)
            if path.name == "staging" and not self.stolen:
                victim = next(path.rglob("*.hidden"))
                victim.unlink()
                self.stolen = str(victim)

    disk = Thief()
    sink = opened(tmp_path, "w", disk)
    with pytest.raises(SinkError, match="was deleted while it was waiting") as caught:
        flush(sink, range(6))
    assert disk.stolen in str(caught.value)
    assert read_entries(tmp_path) == []
    assert flush(sink, range(6)).rows == 6
    assert visible(tmp_path) == Counter(range(6))


def test_a_data_file_that_somebody_deletes_is_named_at_the_next_start(tmp_path: Path) -> None:
    """A sink does not go on as if nothing were missing: its error names the file, and what can be done."""
    flush(opened(tmp_path, "w"), range(6))
    victim = min(tmp_path.glob("month=*/*.parquet"))
    content = victim.read_bytes()
    victim.unlink()
    with pytest.raises(SinkError, match="is gone, although the commit log names it") as caught:
        opened(tmp_path, "next")
    assert str(victim) in str(caught.value)
    assert caught.value.cure
    victim.write_bytes(content)
    assert flush(opened(tmp_path, "next"), range(6)).covered == 6


class ListedTooEarly(Disk):
    """A file is gone when its age is asked for: its writer has given it its name in the meantime."""

    def modified(self, path: Path) -> float:
        return 0.0


def test_a_writer_whose_file_has_just_moved_is_alive(tmp_path: Path) -> None:
    """The race: a sweeper lists a file, its writer renames it, and the sweeper finds nothing of that name."""
    staging = opened(tmp_path, "alive", cls=StagingWriter)
    flush(staging, range(5))
    opened(tmp_path, "another", ListedTooEarly())
    assert [entry.kind for entry in read_entries(tmp_path)] == []
