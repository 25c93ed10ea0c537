"""Staged and replaced files do not end in .parquet; those of earlier versions do, and are taken as they are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import Disk, View, cut_to_copy, layout_of, read_table, take_snapshot, wherever
from downspout.sink.readers.snapshot import snapshot
from downspout.sink.storage import layout as layout_module
from downspout.testing import Killed
from tests.audit.copies import copy_sink
from tests.disks import SteppedDisk
from tests.sink.compaction_support import compact, expected, flush, opened, plain, sweep

Work = Callable[[Path, Disk], object]
Earlier = Callable[[Callable[[], object]], bool]


@pytest.fixture(params=["beside", "inside"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with two flushes of five rows."""
    if request.param == "inside":
        (tmp_path / "rows" / "_downspout" / "log").mkdir(parents=True)
    for number in range(2):
        flush(tmp_path / "rows", range(number * 5, number * 5 + 5), f"w{number}")
    return tmp_path / "rows"


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Earlier:
    """Do something as an earlier version does, by which files keep their names wherever they are; and say whether it
    came to its end."""

    def do(work: Callable[[], object]) -> bool:
        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(layout_module, "HIDDEN", ".parquet")
            work()
            return True
        return False

    return do


def stopped_at(stop: int) -> Disk:
    """Return a disk of a process that is killed before a step."""

    def before(step: int) -> None:
        if step == stop:
            raise Killed

    return SteppedDisk(before)


def globbed(directory: Path) -> int:
    """Return how many rows DuckDB's recursive glob counts."""
    [(count,)] = duckdb.sql(f"select count(*) from read_parquet('{directory}/**/*.parquet')").fetchall()
    return int(count)


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [lambda path, disk: flush(path, range(10, 15), "before", disk), lambda path, disk: compact(path, disk, "before")],
    ids=["flush", "compaction"],
)
def test_what_an_earlier_version_has_begun_is_finished(
    directory: Path, tmp_path: Path, earlier: Earlier, work: Work
) -> None:
    """Wherever a flush or a compaction of an earlier version was stopped, its files are found by readers, brought into
    sight or swept by the next start, and hidden by the next compaction."""
    for stop in range(1, 60):
        copy = copy_sink(directory, tmp_path / str(stop) / "rows")
        ended = earlier(lambda copy=copy, stop=stop: work(copy, stopped_at(stop)))  # type: ignore[misc]
        rows = read_table(copy).num_rows
        assert rows in (10, 15)
        sweep(copy)
        assert plain(copy) == expected(range(rows))
        assert read_table(copy).num_rows == rows
        assert not any(layout_of(copy).staging.rglob("*.parquet"))
        compact(copy)
        flush(copy, range(15), "after")
        assert plain(copy) == expected(range(15))
        assert globbed(copy) == 15
        assert audit(copy).exit_code == 0
        assert compact(copy, keep_s=0.0).deleted > 0
        assert not any(path.is_file() for path in layout_of(copy).replaced.rglob("*"))
        if ended:
            break
    assert 10 < stop < 59


def test_what_an_earlier_version_has_replaced_is_kept_and_hidden(directory: Path, earlier: Earlier) -> None:
    """A reader with the list of before finds each file after a compaction of an earlier version, and after the next one
    of ours. In between, where the log is inside, the audit says that globs see rows twice."""
    view = View.of(directory)
    earlier(lambda: compact(directory))
    is_inside = layout_of(directory).is_inside
    assert globbed(directory) == (20 if is_inside else 10)
    report = audit(directory)
    assert report.exit_code == (13 if is_inside else 0)
    assert any("left by an earlier version" in note for note in report.notes) == is_inside
    for _ in range(2):
        assert sum(wherever(view.layout, file.path, pq.read_metadata).num_rows for file in view.files) == 10
        assert compact(directory).deleted == 0
        assert globbed(directory) == 10
        assert audit(directory).exit_code == 0


def test_a_cut_finds_what_is_staged_under_either_name(tmp_path: Path) -> None:
    """A file that is committed and staged is there, whatever its name, when a log is cut to a restored copy."""
    for number, writer in enumerate(("before", "now", "gone")):
        flush(tmp_path / "rows", range(number * 5, number * 5 + 5), writer)
    layout = layout_of(tmp_path / "rows")
    for path in sorted(layout.directory.rglob("part-*")):
        now, before = layout.names(layout.staging, path.relative_to(layout.directory).as_posix())
        if "gone" in path.name:
            path.unlink()
        else:
            path.rename(now if "now" in path.name else before)
    assert cut_to_copy(layout.directory).after == 2
    assert plain(layout.directory) == expected(range(10))


# --- snapshots of a directory that has its log inside ------------------------------------------------------------


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """A directory that has its log inside."""
    (tmp_path / "rows" / "_downspout" / "log").mkdir(parents=True)
    flush(tmp_path / "rows", range(5), "w0")
    return tmp_path / "rows"


def test_a_snapshot_is_beside_the_directory(inside: Path) -> None:
    """Its files end in .parquet for all readers, so they are not in the directory; it goes as others do."""
    with snapshot(inside) as path:
        assert not path.is_relative_to(inside)
        assert (globbed(inside), globbed(path), audit(inside).exit_code) == (5, 5, 0)
    left = take_snapshot(inside)
    assert compact(inside, keep_s=0.0).snapshots == 1
    assert not left.exists()
    opened(inside, "next")
    assert layout_of(inside).is_inside


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EXDEV])
def test_where_there_is_no_room_beside_it_a_snapshot_is_refused(inside: Path, number: int) -> None:
    """A mount point or a folder that cannot be written to: the error says what is read without a snapshot."""

    class Refusing(Disk):
        def make_folder(self, folder: Path) -> None:
            if number != errno.EXDEV and not folder.is_relative_to(inside):
                raise OSError(number, os.strerror(number), str(folder))
            super().make_folder(folder)

        def link(self, source: Path, target: Path) -> None:
            if number == errno.EXDEV and not target.is_relative_to(inside):
                raise OSError(number, os.strerror(number), str(target))
            super().link(source, target)

    with pytest.raises(SinkError, match=rf"{os.strerror(number)}\. Try: read_table, which needs no links"):
        take_snapshot(inside, disk=Refusing())
    assert not [path for path in inside.parent.rglob("*.parquet") if not path.is_relative_to(inside)]
    assert read_table(inside).num_rows == 5


def test_a_snapshot_of_an_earlier_version_is_named_and_deleted(inside: Path) -> None:
    """It lies in the directory, where globs count its rows: the audit says so, and it is deleted when it is old."""
    with snapshot(inside) as path:
        old = inside / "_downspout" / "snapshots" / "old"
        old.parent.mkdir()
        path.rename(old)
    assert (globbed(inside), audit(inside).exit_code) == (10, 13)
    assert compact(inside).snapshots == 0
    assert compact(inside, keep_s=0.0).snapshots == 1
    assert (globbed(inside), audit(inside).exit_code) == (5, 0)
