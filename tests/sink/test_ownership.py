"""Files that a sink has not written: readers read them, so the sink and the audit name them, or the sink stays out."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamparse import Topology

from bolts.parquet import ParquetBolt
from downspout.audit import AuditReport, visible_files
from downspout.audit.audit import audit
from downspout.engine import from_class
from downspout.errors import SinkError
from downspout.run import topology_check as check
from downspout.sink import CommitLog, Compactor, Disk, is_visible, recovery
from spouts.kafka import KafkaSpout
from tests.sink.support import write_rows


@pytest.fixture(autouse=True)
def said_again() -> None:
    """A warning is said once in a process: each test is one of its own."""
    recovery.say.cache_clear()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    put(tmp_path / "out", range(4))
    return tmp_path / "out"


def put(directory: Path, offsets: range, writer: str = "w", disk: Disk | None = None) -> None:
    write_rows(directory, [("t", "id", 0, offset, "") for offset in offsets], writer=writer, disk=disk)


def data(directory: Path) -> Path:
    return next(path for path in visible_files(directory) if path.name.startswith("part-w-"))


def copied_to(name: str) -> Callable[[Path], None]:
    def copy(directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data(directory), directory / name)

    return copy


COPIES = [
    "part-w-0.parquet.bak", "part-w-0.PARQUET", "part-w-0.snappy.parquet.copy", "old/part", "_x=1/copy.parquet",
    "copy.parquet",
]  # fmt: skip
HIDDEN = ["_part-w-0.parquet", ".part-w-0.parquet", "_old/part-w-0.parquet", ".old/part-w-0.parquet"]


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_seen_whatever_its_name_ends_in(directory: Path, name: str) -> None:
    """Readers see the rows of a copy, so the audit says that they are there twice, and names the file and a cure."""
    copied_to(name)(directory)
    report = audit(directory)
    assert report.exit_code == 11
    assert report.problems == ["duplicate", "extra"]
    assert report.found.unknown == [name]
    assert f"1 file unknown to the log ({name})" in report.verdict
    assert any(name in note and "move them elsewhere" in note for note in report.notes)


@pytest.mark.parametrize("name", HIDDEN)
def test_what_only_globs_read_is_named_as_that(directory: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Parquet files whose names begin with _ or . are left alone by pyarrow and Spark, and read by globs."""
    copied_to(name)(directory)
    assert pq.read_table(directory).num_rows == 4
    assert len(pl.read_parquet(f"{directory}/**/*.parquet")) == 8
    report = audit(directory)
    assert (report.exit_code, report.found.hidden, report.found.unknown) == (13, [name], [])
    put(directory, range(4, 6), "v")
    assert name in caplog.text


@pytest.mark.parametrize("name", ["_SUCCESS", ".part-w-0.parquet.crc", "_old/notes.txt", ".DS_Store"])
def test_what_readers_do_not_see_is_no_stranger(directory: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Other names that begin with _ or . are left alone by all readers, by the audit and by the sink."""
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text("text", encoding="utf-8")
    assert pq.read_table(directory).num_rows == 4
    assert audit(directory).exit_code == 0
    put(directory, range(4, 6), "v")
    assert caplog.messages == []


@pytest.mark.parametrize("name", [*COPIES, *HIDDEN, "_SUCCESS"])
def test_visible_is_what_a_reader_reads(directory: Path, name: str) -> None:
    """The rule is pyarrow's own, but for folders such as _x=1, which only Spark reads."""
    copied_to(name)(directory)
    is_read = pq.read_table(directory).num_rows == 8
    assert is_visible(name) == (is_read or "=" in name)


@pytest.mark.parametrize(("name", "content"), [("notes.txt", b"do not delete"), ("month=1/list.csv", b"a,b"),
                                               ("EMPTY", b"")])  # fmt: skip
def test_what_is_no_parquet_breaks_readers_and_is_named(directory: Path, name: str, content: bytes) -> None:
    """Where pyarrow cannot read the directory any more, the audit is not exact, and names the file and a cure."""
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(directory)
    for deep in (False, True):
        report = audit(directory, deep=deep)
        assert (report.exit_code, report.problems) == (13, ["extra"])
        assert f"1 file not Parquet ({name})" in report.verdict
        assert any("move them elsewhere" in note for note in report.notes)
        assert report.found.file_count == 1


def test_a_list_of_sparks_hides_all_files_from_it(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beside _spark_metadata Spark reads none of the sink's files: the audit is not exact, and the sink warns."""
    (directory / "_spark_metadata").mkdir()
    (directory / "_spark_metadata" / "0").write_text("v1\n", encoding="utf-8")
    report = audit(directory)
    assert (report.exit_code, report.problems) == (13, ["extra"])
    assert "that hides the others from Spark (_spark_metadata)" in report.verdict
    put(directory, range(4, 6), "v")
    (said,) = caplog.messages
    assert f"{directory / '_spark_metadata'} belongs to a Spark job" in said
    assert "Try: " in said
    assert (directory / "_spark_metadata" / "0").exists()


def test_a_sink_names_strangers_when_it_starts_and_deletes_none(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All its tasks together warn once, with names and a cure; the sink goes on, and so does a compaction."""
    for name in COPIES[:4]:
        copied_to(name)(directory)
    (directory / "notes.txt").write_text("x", encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in visible_files(directory)}
    for writer in ("v", "u"):
        put(directory, range(8), writer)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    said = caplog.messages[0]
    assert said.startswith(
        f"{directory} holds 5 files that no sink has written: notes.txt, old/part, part-w-0.PARQUET, …"
    )
    assert "Try: move them elsewhere" in said
    Compactor(directory).run()
    strangers_ = {path: at for path, at in before.items() if path != data_or_none(before)}
    assert {path: path.stat().st_mtime_ns for path in strangers_} == strangers_


def data_or_none(paths: dict[Path, int]) -> Path | None:
    """Return the sink's own file, which a compaction may replace."""
    return next((path for path in paths if path.name == "part-w-0.parquet"), None)


# --- no log -------------------------------------------------------------------------------------------------


def without_log(directory: Path) -> None:
    """Delete the directory's log, as somebody does who tidies up."""
    shutil.rmtree(CommitLog(directory).folder)


def test_a_directory_whose_log_is_gone_is_neither_exact_nor_written_to(directory: Path) -> None:
    """Its rows would be written twice: the sink names the directory and both cures, and the audit names the files."""
    name = data(directory).name
    without_log(directory)
    with pytest.raises(
        SinkError, match=r"holds data files \(part-w-0.parquet\) but no commit log.*Try: restore"
    ) as caught:
        put(directory, range(8), "v")
    assert "another parquet.directory" in str(caught.value.cure)
    assert not CommitLog(directory).folder.exists()
    report: AuditReport = audit(directory)
    assert (report.exit_code, report.found.unknown) == (13, [name])
    assert any("no commit log" in note and "Try: restore" in note for note in report.notes)


def _spark(directory: Path) -> None:
    (directory / "_spark_metadata").mkdir()
    (directory / "_spark_metadata" / "0").write_text("v1\n", encoding="utf-8")


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (lambda place: (place / "notes.txt").write_text("x", encoding="utf-8"), "notes.txt"),
    "a project": (lambda place: [(place / n).mkdir() or (place / n / "a.py").touch() for n in ("bolts", "spouts")],
                  "bolts, spouts"),
    "a table of others": (lambda place: pq.write_table(pa.table({"a": [1]}), place / "part-0.snappy.parquet"),
                          "part-0.snappy.parquet"),
    "a Spark job's": (_spark, "_spark_metadata"),
}  # fmt: skip


class Lines(Topology):
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    out = ParquetBolt.spec(inputs=[spout], directory="out", schema=["value:string"])


def found(directory: Path) -> list[str]:
    """Return what check says of a topology that writes to a directory."""
    graph = from_class(Lines, "lines")
    settings = check.resolve(graph, {"parquet.directory": str(directory)}, environ={})
    return [str(finding) for finding in check.findings(graph, settings)]


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_folder_is_refused_at_check_and_at_start(tmp_path: Path, what: str) -> None:
    """A folder that holds something and has no log is another's: the error names what is in it, and none is added."""
    fill, shown = FOREIGN[what]
    fill(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    message = f"{tmp_path} is not empty and no sink has written to it: it holds {shown}. Try: another parquet.directory"
    with pytest.raises(SinkError, match=re.escape(message)):
        put(tmp_path, range(4))
    assert found(tmp_path)[0].startswith(f"error: out: {message}")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    """An empty folder, one with files that readers ignore, and one that a sink has opened before its first flush."""
    for name in (".gitkeep", ".DS_Store", "_SUCCESS"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path, [])
    assert found(tmp_path) == []
    put(tmp_path, range(4))
    assert audit(tmp_path).exit_code == 0


def test_a_first_flush_during_the_opening_is_nobody_elses(tmp_path: Path) -> None:
    """Two tasks open an empty directory, and one flushes while the other looks: its files are no ownership."""

    class Late(Disk):
        def files_below(self, folder: Path, without: str = "") -> Iterator[Path]:
            if not CommitLog(tmp_path).folder.exists():
                put(tmp_path, range(4), "other")
            return super().files_below(folder, without)

    put(tmp_path, range(8), "w", Late())
    assert pq.read_table(tmp_path).num_rows == 8
