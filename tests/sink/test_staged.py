"""A flush in two halves: tasks stage, one place commits, whatever stops or repeats them, on real files."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from bolts.parquet import with_origins
from downspout.errors import SinkError, StoreAwayError
from downspout.sink import BatchWriter, CommitLog, Disk, Identities, Layout, OutdatedError, SinkWriter, StagingWriter
from downspout.sink.writer import Staged
from downspout.testing import Killed
from tests.disks import SteppedDisk

COLUMNS = ["month:int8", "value:int64"]


def opened(cls: type[SinkWriter], directory: Path, writer: str = "driver", disk: Disk | None = None) -> SinkWriter:
    made = cls(
        directory,
        topology="t",
        component="sink",
        columns=COLUMNS,
        writer=writer,
        partition_by=["month"],
        disk=disk,
    )
    made.open()
    return made


def flush(writer: SinkWriter, offsets: Sequence[int], *, origins: bool = True) -> None:
    identities = Identities.of([("t", "id", offset % 2, offset, "") for offset in offsets])
    months = pa.array([offset % 3 for offset in offsets], pa.int8())
    table = pa.table({"month": months, "value": pa.array(list(offsets), pa.int64())})
    writer.flush(
        identities if origins else Identities.none(len(offsets)),
        lambda mask, rows: with_origins(table, rows).filter(pa.array(mask)),
    )


def staged(directory: Path, *flushes: Sequence[int], task: str = "task", origins: bool = True) -> list[Staged]:
    writer = opened(StagingWriter, directory, task)
    assert isinstance(writer, StagingWriter)
    for offsets in flushes:
        flush(writer, offsets, origins=origins)
    return writer.staged


def driver(directory: Path, disk: Disk | None = None) -> BatchWriter:
    writer = opened(BatchWriter, directory, disk=disk)
    assert isinstance(writer, BatchWriter)
    return writer


def visible(directory: Path) -> Counter[int]:
    """Return how often a reader of the directory sees each value."""
    files = [str(path) for path in directory.glob("month=*/*.parquet")]
    return Counter(ds.dataset(files).to_table(columns=["value"])["value"].to_pylist()) if files else Counter()


def hidden(directory: Path) -> list[Path]:
    return list(Layout(directory).staging.rglob("*.hidden"))


def test_a_batch_comes_into_sight_at_its_commit(tmp_path: Path) -> None:
    """What tasks have staged nobody sees; the commit makes one entry of all of it, and leaves nothing staged."""
    commits = driver(tmp_path)
    parts = [*staged(tmp_path, range(5), range(5, 8), task="a"), *staged(tmp_path, range(8, 10), task="b")]
    assert visible(tmp_path) == Counter()
    done = commits.commit("q-0", parts)
    assert (done.rows, visible(tmp_path), hidden(tmp_path)) == (10, Counter(range(10)), [])
    (entry,) = CommitLog(tmp_path).refresh()
    assert entry.writer == "q-0"


def test_rows_that_come_twice_to_one_task_are_staged_once(tmp_path: Path) -> None:
    """A task that is given a row again, by a retry, leaves it out; and so rows of a batch before."""
    commits = driver(tmp_path)
    commits.commit("q-0", staged(tmp_path, range(3)))
    parts = staged(tmp_path, range(5), range(2, 7), task="next")
    assert [part.covered for part in parts] == [3, 3]
    assert commits.commit("q-1", parts).covered == 6
    assert visible(tmp_path) == Counter(range(7))


@pytest.mark.parametrize("origins", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_the_same_batch_twice(tmp_path: Path, origins: bool, restarted: bool) -> None:
    """A batch that is computed again after its commit is left alone, with and without identities of rows."""
    commits = driver(tmp_path)
    commits.commit("q-0", staged(tmp_path, range(5), origins=origins))
    commits = driver(tmp_path) if restarted else commits
    again = staged(tmp_path, range(5), task="again", origins=origins)
    commits.commit("q-0", again)
    assert (visible(tmp_path), hidden(tmp_path)) == (Counter(range(5)), [])
    commits.commit("q-1", staged(tmp_path, range(5, 7), task="next", origins=origins))
    assert visible(tmp_path) == Counter(range(7))


def test_a_batch_that_was_staged_before_its_first_commit(tmp_path: Path) -> None:
    """Files that a first attempt staged and the second one too come into sight once."""
    commits = driver(tmp_path)
    first, second = staged(tmp_path, range(5), task="first"), staged(tmp_path, range(5), task="second")
    commits.commit("q-0", second)
    commits.discard(first)
    assert (visible(tmp_path), hidden(tmp_path)) == (Counter(range(5)), [])


def test_an_empty_batch_makes_no_entry(tmp_path: Path) -> None:
    commits = driver(tmp_path)
    assert commits.commit("q-0", []).rows == 0
    commits.commit("q-1", staged(tmp_path, range(2)))
    commits.commit("q-2", staged(tmp_path, range(2), task="covered"))
    assert [entry.writer for entry in CommitLog(tmp_path).refresh()] == ["q-1"]


def test_another_writer_meanwhile(tmp_path: Path) -> None:
    """Rows that another engine has written since they were staged make the batch outdated, and nothing of it stays."""
    commits = driver(tmp_path)
    parts = staged(tmp_path, range(5), range(8, 10))
    flush(opened(SinkWriter, tmp_path, "local"), range(4, 7))
    with pytest.raises(OutdatedError):
        commits.commit("q-0", parts)
    assert (visible(tmp_path), hidden(tmp_path)) == (Counter(range(4, 7)), [])
    commits.commit("q-0", staged(tmp_path, range(5), range(8, 10), task="again"))
    assert visible(tmp_path) == Counter([*range(7), 8, 9])


def test_another_writer_of_other_rows(tmp_path: Path) -> None:
    """Other rows of another engine do not keep a batch from being committed."""
    commits = driver(tmp_path)
    parts = staged(tmp_path, range(5))
    flush(opened(SinkWriter, tmp_path, "local"), range(5, 7))
    commits.commit("q-0", parts)
    assert visible(tmp_path) == Counter(range(7))


def test_two_tasks_with_one_identity(tmp_path: Path) -> None:
    """Rows of one identity from two tasks are an error, and none of the batch is in sight or stays."""
    commits = driver(tmp_path)
    parts = [*staged(tmp_path, range(5), task="a"), *staged(tmp_path, range(4, 6), task="b")]
    with pytest.raises(SinkError, match="two tasks of one batch made rows with the same identity") as caught:
        commits.commit("q-0", parts)
    assert "origin.child" in str(caught.value)
    assert (visible(tmp_path), hidden(tmp_path), CommitLog(tmp_path).refresh()) == (Counter(), [], [])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A batch whose files a task has written elsewhere is an error, not an entry for rows that nobody sees."""
    commits = driver(tmp_path)
    parts = staged(tmp_path, range(5))
    hidden(tmp_path)[0].unlink()
    with pytest.raises(SinkError, match="was written by a task, but is not here"):
        commits.commit("q-0", parts)
    assert (visible(tmp_path), hidden(tmp_path), CommitLog(tmp_path).refresh()) == (Counter(), [], [])
    commits.commit("q-0", staged(tmp_path, range(5), task="again"))
    assert visible(tmp_path) == Counter(range(5))


def committed(directory: Path, disk: Disk) -> None:
    """Stage and commit a batch after one that is there, as a driver does from its start."""
    commits = driver(directory, disk)
    commits.commit("q-1", [*staged(directory, range(5, 10), task="a"), *staged(directory, range(10, 14), task="b")])


def steps_of_a_commit(directory: Path) -> int:
    driver(directory).commit("q-0", staged(directory, range(5), task="before"))
    disk = SteppedDisk(lambda step: None)
    committed(directory, disk)
    return disk.steps


@pytest.mark.slow
def test_a_stop_at_any_step_neither_loses_nor_doubles_a_row(tmp_path: Path) -> None:
    """Whatever step a driver stops before, the batch is in sight whole or not at all, and after its repetition once."""
    steps = steps_of_a_commit(tmp_path / "count")
    assert steps > 10
    for stop in range(1, steps + 1):
        directory = tmp_path / f"stop-{stop}"

        def before(step: int, stop: int = stop) -> None:
            if step == stop:
                raise Killed

        driver(directory).commit("q-0", staged(directory, range(5), task="before"))
        with pytest.raises(Killed):
            committed(directory, SteppedDisk(before))
        assert max(visible(directory).values()) == 1
        restarted = driver(directory)
        assert visible(directory) in (Counter(range(5)), Counter(range(14))), f"stopped before step {stop}"
        restarted.commit("q-1", staged(directory, range(5, 14), task="again"))
        assert visible(directory) == Counter(range(14)), f"stopped before step {stop}"


@pytest.mark.slow
def test_a_failing_disk_at_any_step(tmp_path: Path) -> None:
    """Whatever step fails, the driver says so, and a new one ends in the same rows."""
    steps = steps_of_a_commit(tmp_path / "count")
    for bad in range(1, steps + 1):
        directory = tmp_path / f"bad-{bad}"

        def before(step: int, bad: int = bad) -> None:
            if step == bad:
                raise OSError(28, "No space left on device")

        driver(directory).commit("q-0", staged(directory, range(5), task="before"))
        with pytest.raises(SinkError, match="No space left on device"):
            committed(directory, SteppedDisk(before))
        driver(directory).commit("q-1", staged(directory, range(5, 14), task="again"))
        assert visible(directory) == Counter(range(14)), f"step {bad} failed"


class FullOnce:
    """Lets one step fail, counted from when it begins."""

    def __init__(self, bad: int) -> None:
        self.left, self.has_failed = -1, False
        self._bad = bad

    def begin(self) -> None:
        self.left = self._bad

    def __call__(self, _: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.has_failed = True
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("origins", [True, False])
def test_a_store_that_was_full_at_any_step_is_written_by_the_next_try(tmp_path: Path, origins: bool) -> None:
    """The same parts are committed again by the same driver, though the entry may be there; each row is there once."""
    told = 0
    for bad in range(1, 100):
        directory, full = tmp_path / f"bad-{bad}", FullOnce(bad)
        commits = driver(directory, SteppedDisk(full))
        parts = staged(directory, range(5), range(5, 8), origins=origins)
        full.begin()
        try:
            commits.commit("q-0", parts)
        except StoreAwayError as error:
            told += "No space left on device" in error.message
            commits.commit("q-0", parts)
        assert (visible(directory), hidden(directory)) == (Counter(range(8)), []), f"step {bad} failed"
        if not full.has_failed:
            break
    assert told == bad - 1 > 8


@pytest.mark.sweep
@pytest.mark.slow
def test_another_engine_at_any_step(tmp_path: Path) -> None:
    """Whatever step another engine writes before, the batch is outdated or committed, and each row is there once."""
    steps = steps_of_a_commit(tmp_path / "count")
    outdated = 0
    for pause in range(1, steps + 1):
        directory = tmp_path / f"pause-{pause}"

        def before(step: int, pause: int = pause, directory: Path = directory) -> None:
            if step == pause:
                flush(opened(SinkWriter, directory, "local"), range(8, 16))

        driver(directory).commit("q-0", staged(directory, range(5), task="before"))
        try:
            committed(directory, SteppedDisk(before))
        except OutdatedError:
            outdated += 1
            driver(directory).commit("q-1", staged(directory, range(5, 14), task="again"))
        assert visible(directory) == Counter(range(16)), f"paused before step {pause}"
    assert outdated
