"""Where the log of a directory is: beside it, or in it; and what happens when one of the two is deleted or moved."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from downspout.cli import main
from downspout.errors import SinkError
from downspout.sink import cut_to_copy, home_beside, layout_of, read_entries, read_table
from tests.audit.copies import copy_sink, delete_sink, move_sink
from tests.sink.compaction_support import compact, expected, flush, plain, through_the_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with two flushes."""
    flush(tmp_path / "rows", range(5), "w0")
    flush(tmp_path / "rows", range(5, 10), "w1")
    return tmp_path / "rows"


def test_a_log_in_the_directory_stays_there(tmp_path: Path) -> None:
    """A directory of an earlier version, whose log is in it, is continued, compacted and read as it is."""
    (tmp_path / "rows/_downspout/log").mkdir(parents=True)
    flush(tmp_path / "rows", range(5), "w0")
    flush(tmp_path / "rows", range(5, 10), "w1")
    assert compact(tmp_path / "rows").made == 2
    assert layout_of(tmp_path / "rows").home == tmp_path / "rows/_downspout"
    assert plain(tmp_path / "rows") == through_the_log(tmp_path / "rows") == expected(range(10))
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


@pytest.mark.parametrize("reason", ["mounted", "not writable"])
def test_where_there_is_no_room_beside_it_the_log_is_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Files are renamed from beside the directory into it: not across file systems, nor where nobody may write."""
    if reason == "mounted":
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "rows")
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    flush(tmp_path / "rows", range(5), "w0")
    assert layout_of(tmp_path / "rows").home == tmp_path / "rows/_downspout"
    assert plain(tmp_path / "rows") == expected(range(5))


def test_a_link_to_a_directory_has_its_log_beside_the_directory(tmp_path: Path) -> None:
    """Whoever comes by the link or by the directory finds the same log, and files are renamed on one file system."""
    (tmp_path / "disk/real").mkdir(parents=True)
    (tmp_path / "rows").symlink_to("disk/real")
    flush(tmp_path / "rows", range(5), "w0")
    flush(tmp_path / "disk/real", range(5, 10), "w1")
    assert len(read_entries(tmp_path / "rows")) == len(read_entries(tmp_path / "disk/real")) == 2
    assert (tmp_path / "disk/_real.downspout/1").is_dir()


def test_a_directory_that_was_deleted_begins_anew(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``rm -r`` of the directory alone starts it over, with a log of its own; a warning names the old one, once."""
    shutil.rmtree(directory)
    for _ in range(2):
        flush(directory, range(3), "w2")
    assert plain(directory) == through_the_log(directory) == expected(range(3))
    assert layout_of(directory).home == home_beside(directory) / "2"
    assert [f"{home_beside(directory)}/1" in text for text in caplog.messages] == [True]


def test_an_old_copy_finds_its_log_again(directory: Path, tmp_path: Path) -> None:
    """A directory that is put back after another took its place goes on with the log that its mark names."""
    directory.rename(tmp_path / "away")
    flush(directory, range(100, 105), "w2")
    shutil.rmtree(directory)
    (tmp_path / "away").rename(directory)
    flush(directory, range(12), "w3")
    assert plain(directory) == through_the_log(directory) == expected(range(12))


def test_a_lost_mark_is_named(directory: Path) -> None:
    """Without the mark the sink refuses to write the rows again, and says which file to make."""
    shutil.rmtree(directory / "_downspout")
    with pytest.raises(SinkError, match=r"holds data files .* but no commit log") as caught:
        flush(directory, range(12), "w2")
    mark = directory / "_downspout" / "1"
    assert (caught.value.cure or "").startswith(
        f"if {home_beside(directory)}/1 is its log, make the empty file {mark} again"
    )
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    flush(directory, range(12), "w2")
    assert plain(directory) == expected(range(12))


def test_a_directory_that_was_moved_alone_is_named(directory: Path, tmp_path: Path) -> None:
    """Moved without its log, the directory is refused; with it, it goes on."""
    directory.rename(tmp_path / "moved")
    with pytest.raises(SinkError, match=r"no commit log: .*if the directory was moved or copied, do so with its log"):
        flush(tmp_path / "moved", range(12), "w2")
    assert not home_beside(tmp_path / "moved").exists()
    (tmp_path / "moved").rename(directory)
    move_sink(directory, tmp_path / "moved")
    flush(tmp_path / "moved", range(12), "w2")
    assert plain(tmp_path / "moved") == expected(range(12))


# --- an older copy, restored without its log --------------------------------------------------------------------


def _restore_without_log(directory: Path, *, compacted: bool = False) -> None:
    """Copy the directory, write more, and put the copy back; the log stays as it is."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    flush(directory, range(10, 15), "w2")
    if compacted:
        compact(directory)
    flush(directory, range(15, 20), "w3")
    shutil.rmtree(directory)
    copy.rename(directory)


@pytest.mark.parametrize("compacted", [False, True])
def test_an_older_copy_without_its_log_is_refused_and_can_be_cut(
    directory: Path, capsys: pytest.CaptureFixture[str], *, compacted: bool
) -> None:
    """The error names the records and the command; after that command their rows are written again, and no others."""
    _restore_without_log(directory, compacted=compacted)
    said = "was compacted away" if compacted else r"such files, flushed with rows of orders\[0\]@10 to @18, orders"
    with pytest.raises(SinkError, match=said) as caught:
        flush(directory, range(20), "w4")
    assert f"downspout compact {directory} --restored" in (caught.value.cure or "")
    assert main(["compact", str(directory), "--restored"]) == 0
    assert "of the " in capsys.readouterr().out
    assert plain(directory) == through_the_log(directory) == expected(range(10))
    flush(directory, range(20), "w4")
    assert plain(directory) == through_the_log(directory) == expected(range(20))


def test_a_copy_with_its_log_needs_no_cut(directory: Path, tmp_path: Path) -> None:
    """Where directory and log are of the same moment, nothing is refused, and nothing can be cut."""
    copy_sink(directory, tmp_path / "copy")
    flush(directory, range(10, 15), "w2")
    delete_sink(directory)
    move_sink(tmp_path / "copy", directory)
    with pytest.raises(SinkError, match="has all files that its log names"):
        cut_to_copy(directory)
    flush(directory, range(15), "w3")
    assert plain(directory) == expected(range(15))


def test_deleted_files_are_no_copy(directory: Path) -> None:
    """Where later files are there and earlier ones are gone, no end of the log fits, and nothing is cut."""
    for path in directory.rglob("part-w0-*"):
        path.unlink()
    with pytest.raises(SinkError, match=r"is not a copy of one moment: .*part-w1-"):
        cut_to_copy(directory)
    assert len(read_entries(directory)) == 2


def test_a_cut_that_was_stopped_is_done_by_the_next(directory: Path) -> None:
    """A new log without a mark counts for nothing, and a second attempt finishes it."""
    _restore_without_log(directory)
    os.makedirs(home_beside(directory) / "2/log")
    os.link(layout_of(directory).log / f"{0:020d}.json", home_beside(directory) / f"2/log/{0:020d}.json")
    assert len(read_entries(directory)) == 4
    assert cut_to_copy(directory).after == 2
    assert len(read_entries(directory)) == 2


# --- what is said where the mark or the log is gone --------------------------------------------------------------


@pytest.mark.parametrize("deleted", ["mark", "log"])
def test_whoever_meets_a_lost_log_has_the_same_cure(
    directory: Path, capsys: pytest.CaptureFixture[str], deleted: str
) -> None:
    """The audit, compact and readers say what the sink says, and nobody advises to move good files away."""
    shutil.rmtree(directory / "_downspout" if deleted == "mark" else home_beside(directory))
    cure = f"make the empty file {directory}/_downspout/1" if deleted == "mark" else f"restore {home_beside(directory)}"
    assert main(["audit", str(directory), "--files-only"]) == 13
    said = capsys.readouterr().out
    assert cure in said
    assert "move" not in said.replace("was moved or copied", "")
    assert main(["compact", str(directory)]) == SinkError.exit_code
    assert cure in capsys.readouterr().err
    with pytest.raises(SinkError, match="holds data files") as caught:
        read_table(directory)
    assert cure in (caught.value.cure or "")


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
