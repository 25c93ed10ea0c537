"""The writer's protocol, stopped and interleaved at every single step, on real files."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from downspout.errors import SinkError
from downspout.sink import HIDDEN, CommitLog, Disk, Flushed, Identities, Layout, SinkWriter
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sampling import WHOLE
from tests.sink.support import write_rows

COLUMNS = ["month:int8", "value:int64"]


def opened(directory: Path, writer: str, disk: Disk | None = None) -> SinkWriter:
    sink = SinkWriter(
        directory,
        topology="t",
        component="sink",
        columns=COLUMNS,
        writer=writer,
        partition_by=["month"],
        disk=disk or Disk(),
    )
    sink.open()
    return sink


def write(sink: SinkWriter, offsets: range) -> Flushed:
    identities = Identities.of([("t", "id", offset % 2, offset, "") for offset in offsets])
    table = pa.table(
        {
            "month": pa.array([offset % 3 for offset in offsets], pa.int8()),
            "value": pa.array(offsets, pa.int64()),
        }
    )
    return sink.flush(identities, lambda mask, _: table.filter(pa.array(mask)))


def flush(directory: Path, offsets: range, writer: str, disk: Disk | None = None) -> Flushed:
    return write(opened(directory, writer, disk), offsets)


def visible(directory: Path) -> Counter[int]:
    """Return how often a reader of the directory sees each value."""
    files = [str(path) for path in directory.glob("month=*/*.parquet")]
    return Counter(ds.dataset(files).to_table(columns=["value"])["value"].to_pylist()) if files else Counter()


def steps_of_a_flush(directory: Path) -> int:
    disk = SteppedDisk(lambda step: None)
    flush(directory, range(10), "count", disk)
    return disk.steps


@pytest.mark.slow
def test_a_stop_at_any_step_neither_loses_nor_doubles_a_row(tmp_path: Path) -> None:
    steps = steps_of_a_flush(tmp_path / "count")
    assert steps > 20
    for stop in range(1, steps + 1):
        directory = tmp_path / f"stop-{stop}"

        def before(step: int, stop: int = stop) -> None:
            if step == stop:
                raise Killed

        with pytest.raises(Killed):
            flush(directory, range(10), "first", SteppedDisk(before))
        assert max(visible(directory).values(), default=0) <= 1
        flush(directory, range(5, 15), "second")
        flush(directory, range(10), "first-again")
        assert visible(directory) == Counter(range(15)), f"stopped before step {stop}"


@pytest.mark.sweep
@pytest.mark.slow
def test_a_second_stop_during_the_recovery_changes_nothing(tmp_path: Path) -> None:
    """Stopped between commit and rename, and stopped again in rolling forward, each row is there once."""
    steps = steps_of_a_flush(tmp_path / "count")
    for stop in range(steps // 2, steps + 1):
        for again in range(1 if WHOLE else 1 + stop % 4, steps + 1, 1 if WHOLE else 4):
            directory = tmp_path / f"stop-{stop}-{again}"

            def before(step: int, at: int = stop) -> None:
                if step == at:
                    raise Killed

            with pytest.raises(Killed):
                flush(directory, range(10), "first", SteppedDisk(before))
            try:
                flush(directory, range(10), "second", SteppedDisk(lambda step, at=again: before(step, at)))
            except Killed:
                flush(directory, range(10), "third")
            assert visible(directory) == Counter(range(10)), f"stopped before {stop}, then before {again}"


def test_a_writer_paused_at_any_step_gives_way(tmp_path: Path) -> None:
    """Whatever step a writer is paused before, while another commits overlapping rows, each row is there once."""
    steps = steps_of_a_flush(tmp_path / "count")
    for pause in range(1, steps + 1):
        directory = tmp_path / f"pause-{pause}"

        def before(step: int, pause: int = pause, directory: Path = directory) -> None:
            if step == pause:
                flush(directory, range(5, 15), "other")

        flush(directory, range(10), "paused", SteppedDisk(before))
        assert visible(directory) == Counter(range(15)), f"paused before step {pause}"


def test_a_fully_covered_flush_after_a_conflict_writes_nothing(tmp_path: Path) -> None:
    """A writer that finds all its rows committed by another leaves no file and no entry."""
    done = []

    def before(step: int) -> None:
        if step == steps - 8 and not done:
            done.append(flush(tmp_path / "out", range(10), "other"))

    steps = steps_of_a_flush(tmp_path / "count")
    result = flush(tmp_path / "out", range(10), "late", SteppedDisk(before))
    assert result.rows + done[0].rows == 10
    assert visible(tmp_path / "out") == Counter(range(10))
    assert not list((Layout(tmp_path / "out").staging).rglob("*.hidden"))


def test_an_error_after_the_link_still_counts_as_committed(tmp_path: Path) -> None:
    """A link that was made although an error hid it is found at the next flush, and its rows are not written again."""

    class LyingDisk(Disk):
        lies = 1

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            if self.lies:
                self.lies -= 1
                raise OSError(5, "Input/output error", str(target))

    disk = LyingDisk()
    sink = SinkWriter(tmp_path, topology="t", component="sink", columns=["value:int64"], writer="w", disk=disk)
    sink.open()
    identities = Identities.of([("t", "id", 0, offset, "") for offset in range(4)])
    table = pa.table({"value": pa.array(range(4), pa.int64())})
    with pytest.raises(SinkError, match="Input/output error"):
        sink.flush(identities, lambda mask, _: table.filter(pa.array(mask)))
    assert sink.flush(identities, lambda mask, _: table.filter(pa.array(mask))).covered == 4
    files = [str(path) for path in tmp_path.glob("*.parquet")]
    assert ds.dataset(files).to_table()["value"].to_pylist() == [0, 1, 2, 3]


def test_what_could_not_be_brought_into_sight_is_kept_though_others_go_on(tmp_path: Path) -> None:
    """A committed file whose renaming fails stays staged, also if another writer has committed since; then it comes."""

    class StuckDisk(Disk):
        stuck = 0

        def rename(self, source: Path, target: Path) -> None:
            if self.stuck and source.suffix == HIDDEN:
                self.stuck -= 1
                write(other, range(20, 24))
                raise OSError(5, "Input/output error", str(source))
            super().rename(source, target)

    disk, other = StuckDisk(), opened(tmp_path, "other")
    sink, disk.stuck = opened(tmp_path, "w", disk), 1
    with pytest.raises(SinkError, match="Input/output error"):
        write(sink, range(4))
    assert write(sink, range(4)).covered == 4
    assert visible(tmp_path) == Counter([*range(4), *range(20, 24)])


def test_rows_without_origin_are_written_as_often_as_they_come(tmp_path: Path) -> None:
    """Without identities the sink is at-least-once, still atomically."""
    sink = SinkWriter(tmp_path, topology="t", component="sink", columns=["value:int64"], writer="w")
    sink.open()
    table = pa.table({"value": pa.array([1, 1], pa.int64())})
    for _ in range(2):
        assert sink.flush(Identities.none(2), lambda mask, _: table.filter(pa.array(mask))).rows == 2
    assert CommitLog(tmp_path).refresh()[-1].number == 1
    files = [str(path) for path in tmp_path.glob("*.parquet")]
    assert ds.dataset(files).to_table()["value"].to_pylist() == [1, 1, 1, 1]


def test_files_without_a_log_are_refused(tmp_path: Path) -> None:
    """A directory whose log was deleted is not written to: its rows could be written twice."""
    flush(tmp_path, range(4), "first")
    for entry in CommitLog(tmp_path).folder.glob("*.json"):
        entry.unlink()
    with pytest.raises(SinkError, match=r"holds data files .* but no commit log"):
        flush(tmp_path, range(4), "second")
    assert visible(tmp_path) == Counter(range(4))


def test_a_directory_that_is_deleted_under_its_writer_takes_no_more_rows(tmp_path: Path) -> None:
    """The next flush of a writer whose directory was deleted is an error, and makes no new one."""
    directory = tmp_path / "sink"
    sink = opened(directory, "first")
    write(sink, range(4))
    shutil.rmtree(directory)
    with pytest.raises(SinkError, match="was deleted or replaced while it was in use"):
        write(sink, range(4, 8))
    assert not directory.exists()


class RetriedLinkDisk(Disk):
    """A network file system that loses the answer of a link and asks again: the second time it finds its own."""

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        super().link(source, target)


def test_a_link_that_was_made_but_reported_as_taken_is_ours(tmp_path: Path) -> None:
    """Rows whose entry was linked are in sight and not written again, though the link said that the name is taken."""
    assert flush(tmp_path, range(4), "first", RetriedLinkDisk()).rows == 4
    assert visible(tmp_path) == Counter(range(4))
    assert flush(tmp_path, range(6), "second", RetriedLinkDisk()).rows == 2
    assert visible(tmp_path) == Counter(range(6))


def test_files_that_the_log_does_not_name_are_refused(tmp_path: Path) -> None:
    """A log whose last entries were deleted is noticed by the files that they named, and nothing is written."""
    flush(tmp_path, range(4), "first")
    flush(tmp_path, range(4, 8), "second")
    CommitLog(tmp_path).path(1).unlink()
    with pytest.raises(SinkError, match=r"part-second-0.parquet is not named by any entry") as caught:
        flush(tmp_path, range(8), "third")
    assert caught.value.cure
    assert visible(tmp_path) == Counter(range(8))


def test_files_of_others_do_not_keep_a_writer_out(tmp_path: Path) -> None:
    """A data file that no writer of ours could have named is no sign of a damaged log."""
    flush(tmp_path, range(4), "first")
    (tmp_path / "part-00000-77-c000.snappy.parquet").write_bytes(b"")
    assert flush(tmp_path, range(6), "second").rows == 2


def test_a_flush_of_another_writer_during_the_opening_is_no_damage(tmp_path: Path) -> None:
    """Files that came into sight between the look at the log and the look at the files are explained by their entry."""
    flush(tmp_path, range(4), "first")

    class Late(Disk):
        def files_below(self, folder: Path, without: str = "") -> Iterator[Path]:
            flush(tmp_path, range(4, 8), "other")
            return super().files_below(folder, without)

    assert flush(tmp_path, range(10), "second", Late()).covered == 8
    assert visible(tmp_path) == Counter(range(10))


def test_a_directory_belongs_to_one_sink(tmp_path: Path) -> None:
    """Another component of the same topology is refused with both names, and another task of the same is not."""
    write_rows(tmp_path, [("t", "id", 0, 1, "")], component="delays")
    with pytest.raises(SinkError, match="belongs to delays of topology t, not to routes"):
        write_rows(tmp_path, [("t", "id", 0, 1, "")], component="routes")
    write_rows(tmp_path, [("t", "id", 0, 2, "")], component="delays", writer="other")


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_entry_is_named_and_not_the_files_that_it_named(tmp_path: Path, number: int) -> None:
    """Where an entry is gone and later ones are there, the error names the entry, not files that are good."""
    for writer in range(3):
        flush(tmp_path, range(4 * writer, 4 * writer + 4), f"w{writer}")
    path = CommitLog(tmp_path).path(number)
    path.unlink()
    with pytest.raises(SinkError, match=path.name):
        flush(tmp_path, range(12), "next")
