"""The log is inside its directory: cases in which one of them is deleted, moved or copied."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import SinkError
from downspout.sink import Disk, read_entries, read_table, take_snapshot
from tests.sink.compaction_support import compact, expected, flush, plain, through_the_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    flush(tmp_path / "rows", range(5), "w0")
    flush(tmp_path / "rows", range(5, 10), "w1")
    return tmp_path / "rows"


def test_a_directory_is_all_there_is(directory: Path, tmp_path: Path) -> None:
    """Nothing is beside it; by a link it is the same; moved, copied, deleted and put back it is what it was."""
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    (tmp_path / "link").symlink_to("rows")
    assert len(read_entries(tmp_path / "link")) == 2
    shutil.copytree(directory, tmp_path / "copy")
    directory.rename(tmp_path / "moved")
    flush(tmp_path / "moved", range(12), "w2")
    assert plain(tmp_path / "moved") == through_the_log(tmp_path / "moved") == expected(range(12))
    flush(directory, range(100, 105), "w2")
    assert plain(directory) == through_the_log(directory) == expected(range(100, 105))
    shutil.rmtree(directory)
    (tmp_path / "copy").rename(directory)
    flush(directory, range(12), "w3")
    assert plain(directory) == through_the_log(directory) == expected(range(12))


def test_whoever_meets_a_lost_log_has_the_same_cure(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sink, audit, compact and readers say the same, and nobody advises to move good files away."""
    shutil.rmtree(directory / "_downspout")
    cure = f"restore {directory}/_downspout"
    assert main(["audit", str(directory), "--files-only"]) == 13
    said = capsys.readouterr().out
    assert cure in said
    assert "move" not in said.replace("was moved or copied", "")
    assert main(["compact", str(directory)]) == SinkError.exit_code
    assert cure in capsys.readouterr().err
    for use in (read_table, lambda path: flush(path, range(12), "w2")):
        with pytest.raises(SinkError, match=r"holds data files .* but no commit log") as caught:
            use(directory)
        assert cure in (caught.value.cure or "")


def test_the_parent_of_several_sinks_is_not_taken_for_one_that_lost_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Audit, compact and readers name a sink's directory in it, and no backup."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        flush(tmp_path / name, range(4), "w")
    said = (
        f"{tmp_path} is not a sink's directory, but holds such directories: a, b. Try: the directory of one sink, such "
        "as"
    )
    for command in (["audit", str(tmp_path), "--files-only"], ["compact", str(tmp_path)]):
        assert main(command) == SinkError.exit_code
        assert said in capsys.readouterr().err
    for use in (read_table, lambda path: flush(path, range(4), "w2")):
        with pytest.raises(SinkError, match="holds such directories: a, b") as caught:
            use(tmp_path)
        assert said in str(caught.value)


def test_a_file_that_only_globs_read_is_named(
    directory: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A Parquet file in a hidden folder doubles rows for DuckDB's and Polars' globs: sink and audit name it."""
    (directory / "_temporary").mkdir()
    shutil.copy(next(directory.rglob("part-w0-*")), directory / "_temporary" / "x.parquet")
    assert main(["audit", str(directory), "--files-only"]) == 13
    assert "hidden from listings, but not from `**/*.parquet` of DuckDB and Polars" in capsys.readouterr().out
    flush(directory, range(12), "w2")
    assert "_temporary/x.parquet" in caplog.text


def test_a_snapshot_is_beside_the_directory(directory: Path) -> None:
    """Its files end in .parquet for all readers, so they are not in the directory; what stays of it is deleted."""
    left = take_snapshot(directory)
    assert left.parent == directory.with_name("_rows.snapshots")
    assert plain(left) == expected(range(10))
    assert compact(directory, keep_s=0.0).snapshots == 1
    assert not left.exists()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EXDEV])
def test_where_there_is_no_room_beside_it_a_snapshot_is_refused(directory: Path, number: int) -> None:
    """A mount point or a folder that cannot be written to: the error says what is read without a snapshot."""

    class Refusing(Disk):
        def make_folder(self, folder: Path) -> None:
            if number != errno.EXDEV and not folder.is_relative_to(directory):
                raise OSError(number, os.strerror(number), str(folder))
            super().make_folder(folder)

        def link(self, source: Path, target: Path) -> None:
            if number == errno.EXDEV and not target.is_relative_to(directory):
                raise OSError(number, os.strerror(number), str(target))
            super().link(source, target)

    with pytest.raises(SinkError, match=rf"{os.strerror(number)}\. Try: read_table, which needs no links"):
        take_snapshot(directory, disk=Refusing())
    assert not [path for path in directory.parent.rglob("*.parquet") if not path.is_relative_to(directory)]
    assert read_table(directory).num_rows == 10
