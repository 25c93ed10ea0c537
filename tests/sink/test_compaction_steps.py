"""A compaction, stopped and interleaved at every single step, on real files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from downspout.audit import look_at_files
from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import CommitLog, Layout
from downspout.testing import Killed, VirtualClock
from tests.disks import SteppedDisk
from tests.sampling import WHOLE
from tests.sink.compaction_support import compact, expected, flush, opened, plain, sweep, through_the_log, write

ROWS = range(30)


def fill(directory: Path) -> Path:
    template = directory.parent / "filled"
    if not template.exists():
        for number in range(3):
            flush(template, range(number * 10, number * 10 + 10), f"first-{number}")
    shutil.copytree(template, directory)
    return directory


def steps_of_a_compaction(directory: Path) -> int:
    disk = SteppedDisk(lambda step: None)
    compact(fill(directory), disk)
    return disk.steps


def at(stop: int, act: Callable[[], object]) -> SteppedDisk:
    return SteppedDisk(lambda step: step == stop and act())


def stop() -> None:
    raise Killed


@pytest.mark.slow
def test_a_stop_at_any_step_changes_no_row(tmp_path: Path) -> None:
    """Whatever step a compaction stops before: through the log the rows are the same, a plain reader misses none, and
    the next start of the topology, or of a compaction, leaves each row in sight once."""
    steps = steps_of_a_compaction(tmp_path / "count")
    assert steps > 40
    doubled = 0
    for number in range(1, steps + 1):
        for finish in (lambda path: opened(path, "next"), compact):
            directory = fill(tmp_path / f"{number}-{finish.__name__}")
            with pytest.raises(Killed):
                compact(directory, at(number, stop))
            assert through_the_log(directory) == expected(ROWS), f"stopped before step {number}"
            assert plain(directory).keys() == expected(ROWS).keys(), f"stopped before step {number}"
            doubled += plain(directory) != expected(ROWS)
            finish(directory)
            assert plain(directory) == through_the_log(directory) == expected(ROWS), f"stopped before step {number}"
            assert audit(directory).exit_code == 0
            flush(directory, range(5, 35), "replay")
            assert plain(directory) == expected(range(35)), f"stopped before step {number}"
    assert doubled  # a reader of the plain directory may see rows twice: the docs say so


@pytest.mark.sweep
@pytest.mark.slow
def test_a_second_stop_in_the_recovery_changes_no_row(tmp_path: Path) -> None:
    """Killed, and stopped again in whatever finishes it, no reader through the log sees a difference."""
    steps = steps_of_a_compaction(tmp_path / "count")
    for number in range(steps // 4, steps + 1, 1 if WHOLE else 3):
        for again in range(1 + number % 3, steps + 1, 1 if WHOLE else 5):
            directory = fill(tmp_path / f"{number}-{again}")
            with pytest.raises(Killed):
                compact(directory, at(number, stop))
            try:
                compact(directory, at(again, stop))
            except Killed:
                assert through_the_log(directory) == expected(ROWS), f"{number}, {again}"
                opened(directory, "last")
            assert plain(directory) == through_the_log(directory) == expected(ROWS), f"{number}, {again}"


@pytest.mark.sweep
@pytest.mark.slow
def test_a_flush_at_any_step_is_kept(tmp_path: Path) -> None:
    """Whatever step of a compaction another writer's flush comes before, its rows are there once, and so are all."""
    steps = steps_of_a_compaction(tmp_path / "count")
    for number in range(1, steps + 1):
        directory = fill(tmp_path / str(number))
        done = compact(directory, at(number, lambda at=directory: flush(at, range(20, 40), "other")))
        assert done.made, f"before step {number}"
        assert plain(directory) == through_the_log(directory) == expected(range(40)), f"before step {number}"
        assert audit(directory).exit_code == 0


@pytest.mark.sweep
@pytest.mark.slow
def test_a_writer_that_stays_open_goes_on(tmp_path: Path) -> None:
    """A writer that was open before a compaction flushes replays and new rows behind it, at whatever step."""
    steps = steps_of_a_compaction(tmp_path / "count")
    for number in range(1, steps + 1):
        directory = fill(tmp_path / str(number))
        sink = opened(directory, "open")
        compact(directory, at(number, lambda sink=sink: write(sink, range(25, 40))))
        write(sink, range(45))
        assert plain(directory) == expected(range(45)), f"before step {number}"


@pytest.mark.sweep
@pytest.mark.slow
def test_a_compaction_at_any_step_of_a_flush_changes_no_row(tmp_path: Path) -> None:
    """Whatever step of a flush a whole compaction comes before, also where replaced files are deleted at once, each
    row is there once."""
    disk = SteppedDisk(lambda step: None)
    flush(fill(tmp_path / "count"), range(20, 40), "other", disk)
    for number in range(1, disk.steps + 1):
        directory = fill(tmp_path / str(number))
        flush(directory, range(20, 40), "other", at(number, lambda at=directory: compact(at, keep_s=0.0)))
        assert plain(directory) == through_the_log(directory) == expected(range(40)), f"before step {number}"
        assert audit(directory).exit_code == 0


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("keep_s", [0.0, 1e6])
def test_another_compaction_at_any_step_is_harmless(tmp_path: Path, keep_s: float) -> None:
    """Of two compactions of the same files one makes way, whichever step they meet at, and each row stays once."""
    steps = steps_of_a_compaction(tmp_path / "count")
    gave_way = 0
    for number in range(1, steps + 1):
        directory = fill(tmp_path / str(number))
        done = compact(directory, at(number, lambda at=directory: compact(at, keep_s=keep_s)), keep_s=keep_s)
        gave_way += done.gave_way
        assert plain(directory) == through_the_log(directory) == expected(ROWS), f"before step {number}"
        assert audit(directory).exit_code == 0
        assert len(CommitLog(directory).refresh()) == 5  # three flushes, and each folder compacted once
    assert gave_way


@pytest.mark.sweep
@pytest.mark.slow
def test_a_new_generation_at_any_step_stays_empty(tmp_path: Path) -> None:
    """Rows from before a rebuild do not come back, whatever step of their compaction the new one begins before."""
    steps = steps_of_a_compaction(tmp_path / "count")
    for number in range(1, steps + 1):
        directory = fill(tmp_path / str(number))
        compact(directory, at(number, lambda at=directory: flush(at, range(100, 110), "new", rebuild=2)))
        opened(directory, "next")
        assert plain(directory) == through_the_log(directory) == expected(range(100, 110)), f"before step {number}"
        assert audit(directory).exit_code == 0


@pytest.mark.slow
def test_a_compactor_that_is_taken_for_dead_starts_again(tmp_path: Path) -> None:
    """Whatever step a sweeper comes before, what it deletes is made again under another name, and no row is lost."""
    steps = steps_of_a_compaction(tmp_path / "count")
    swept = 0
    for number in range(1, steps + 1):
        directory = fill(tmp_path / str(number))
        count: list[int] = []
        disk = at(number, lambda at=directory, count=count: count.append(sweep(at)))
        done = compact(directory, disk)
        swept += bool(sum(count))
        assert done.made == 2, f"before step {number}"
        assert plain(directory) == through_the_log(directory) == expected(ROWS), f"before step {number}"
        assert audit(directory).exit_code == 0
    assert swept


def test_a_reader_through_the_log_sees_the_same_rows_at_every_step(tmp_path: Path) -> None:
    directory, seen = fill(tmp_path / "data"), 0

    def look(step: int) -> None:
        nonlocal seen
        seen += through_the_log(directory) == expected(ROWS)

    disk = SteppedDisk(look)
    compact(directory, disk)
    assert seen == disk.steps
    assert through_the_log(directory) == expected(ROWS)


def test_what_a_stopped_compaction_has_staged_is_swept(tmp_path: Path) -> None:
    """The staged file of a compaction that was stopped before its entry is deleted once it is old."""
    directory = fill(tmp_path / "data")
    writes = 0

    def before(step: int) -> None:
        nonlocal writes
        writes = step

    steps = SteppedDisk(before)
    compact(fill(tmp_path / "count"), steps)
    for number in range(1, steps.steps):
        with pytest.raises(Killed):
            compact(directory, at(number, stop), writer="dead")
        if any(Layout(directory).staging.rglob("part-dead-*")):
            break
    else:
        pytest.fail("no step left a staged file")
    assert compact(directory).swept == 0
    clock = VirtualClock()
    clock.advance(1e10)
    assert compact(directory, clock=clock).swept == 1
    assert plain(directory) == expected(ROWS)


@pytest.mark.slow
def test_an_interrupted_compaction_leaves_nothing_staged(tmp_path: Path) -> None:
    """Ctrl-C at any step leaves no staged file that no entry names, and no row changed."""
    steps = steps_of_a_compaction(tmp_path / "count")

    def interrupt() -> None:
        raise KeyboardInterrupt

    for number in range(1, steps + 1):
        directory = fill(tmp_path / str(number))
        with pytest.raises(KeyboardInterrupt):
            compact(directory, at(number, interrupt))
        assert through_the_log(directory) == expected(ROWS)
        assert look_at_files(directory, VirtualClock()).leftovers == 0, f"before step {number}"


@pytest.mark.sweep
@pytest.mark.slow
def test_a_disk_that_fails_at_any_step_is_named(tmp_path: Path) -> None:
    """A disk that is full at any one step ends in an error that names the directory, and changes no row."""
    steps = steps_of_a_compaction(tmp_path / "count")
    named = 0

    def full() -> None:
        raise OSError(28, "No space left on device", "the file")

    for number in range(1, steps + 1):
        directory = fill(tmp_path / str(number))
        try:
            compact(directory, at(number, full))
        except SinkError as error:
            named += "No space left on device" in str(error) and str(directory) in str(error)
        assert through_the_log(directory) == expected(ROWS), f"before step {number}"
        compact(directory)
        assert plain(directory) == expected(ROWS), f"before step {number}"
    assert named > steps * 3 / 4
