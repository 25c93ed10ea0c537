"""The auditor, audited: files, entries and checkpoints that somebody has changed, with checksums that fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from downspout.audit import AuditReport, visible_files
from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import COMPACT, CommitLog, Layout, read_entries, to_document, wherever
from downspout.sink import log as log_module
from tests.sink.compaction_support import compact, flush, opened

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with all that a log can hold: flushes, compactions of two folders, a fence, checkpoints."""
    monkeypatch.setattr(log_module, "CHECKPOINT_EVERY", 2)
    directory = tmp_path / "out"
    for number in range(3):
        flush(directory, range(number * 10, number * 10 + 10), f"first-{number}")
    staging = Layout(directory).staging
    (staging / "part-dead-0.hidden").write_bytes(b"half")
    compact(directory, sweep_after_s=0.0)
    flush(directory, range(30, 40), "last")
    assert [entry.kind for entry in read_entries(directory)] == ["flush"] * 3 + ["fence", "compact", "compact", "flush"]
    assert audit(directory).exit_code == 0
    return directory


def kinds(report: AuditReport) -> dict[str, set[int]]:
    """Return the offsets of each kind of problem, over all partitions."""
    found: dict[str, set[int]] = {}
    for part in report.partitions:
        for kind, ranges in part.offsets.items():
            found.setdefault(kind, set()).update(o for start, end in ranges for o in range(start, end))
    return found


def file_with(directory: Path, name: str) -> Path:
    """Return the first visible file whose name holds a text."""
    return next(path for path in visible_files(directory) if name in path.name)


def edit(path: Path, change: Change) -> None:
    """Change an entry or a checkpoint, and give it the checksum that fits."""
    document = json.loads(path.read_bytes())
    del document["checksum"]
    change(document)
    path.write_bytes(to_document(document))


def entry_path(directory: Path, kind: str) -> Path:
    return CommitLog(directory).path(max(e.number for e in read_entries(directory) if e.kind == kind))


def change_rows(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def with_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


# --- files -------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[Callable[[pa.Table], pa.Table], int]] = {
    "a row dropped": (lambda table: table.slice(1), 10),
    "all rows dropped": (lambda table: table.slice(0, 0), 10),
    "a row doubled": (lambda table: pa.concat_tables([table, table.slice(0, 1)]), 11),
    "a row instead of another": (lambda table: pa.concat_tables([table.slice(1), table.slice(1, 1)]), 10),
    "offsets changed": (lambda table: with_column(table, "_offset", pc.add(table["_offset"], 1000)), 10),
    "paths changed": (lambda table: with_column(table, "_path", pa.array(["x"] * table.num_rows)), 10),
    "origins gone": (lambda table: table.select(["value"]), 10),
    "values changed": (lambda table: with_column(table, "value", pa.array([7] * table.num_rows, pa.int64())), 13),
}


@pytest.mark.parametrize("name", ["last", "compact"])
@pytest.mark.parametrize(("change", "code"), FILES.values(), ids=FILES)
def test_a_file_with_other_rows_is_noticed(
    sink: Path, name: str, change: Callable[[pa.Table], pa.Table], code: int
) -> None:
    """Rows that were dropped, doubled or changed in a file, be it of a flush or of a compaction, end the audit with the
    code of the worst, and the file is named."""
    path = file_with(sink, name)
    change_rows(path, change)
    report = audit(sink)
    assert report.exit_code == code
    assert path.relative_to(sink).as_posix() in report.found.changed


@pytest.mark.parametrize("name", ["last", "compact"])
def test_a_file_in_another_folder_is_noticed(sink: Path, name: str) -> None:
    """A file that was moved to another Hive folder has its rows under a wrong value: it is gone, and unknown there."""
    path = file_with(sink, name)
    (sink / "month=9").mkdir()
    path.rename(sink / "month=9" / path.name)
    report = audit(sink)
    assert (report.exit_code, report.problems) == (10, ["missing", "extra"])
    assert report.found.unknown == [f"month=9/{path.name}"]


@pytest.mark.slow
@pytest.mark.parametrize("month", [0, 1])
def test_a_replaced_file_copied_back_is_a_duplicate(sink: Path, month: int) -> None:
    """A file that was compacted away and that somebody has brought back shows its rows twice, and is named; the next
    start moves it away, or refuses to start, where it was known to be out of sight for good."""
    name = f"month={month}/part-first-1-0.parquet"
    (sink / name).write_bytes(wherever(Layout(sink), name, Path.read_bytes))
    report = audit(sink)
    assert (report.exit_code, report.found.replaced, report.found.unknown) == (11, [name], [])
    assert kinds(report) == {"duplicate": set(pq.ParquetFile(sink / name).read(["_offset"])["_offset"].to_pylist())}
    if month == 0:  # the compaction of the other folder said so
        with pytest.raises(SinkError, match="was compacted away"):
            opened(sink, "next")
        (sink / name).unlink()
    opened(sink, "next")
    assert audit(sink).exit_code == 0


def test_a_compacted_file_that_is_gone_is_missing(sink: Path) -> None:
    """Rows of a compacted file that somebody has deleted are missing, though the replaced files are still there."""
    path = file_with(sink, "compact")
    gone = set(pq.ParquetFile(path).read(["_offset"])["_offset"].to_pylist())
    path.unlink()
    report = audit(sink)
    assert (report.exit_code, kinds(report)) == (10, {"missing": gone})


# --- entries -----------------------------------------------------------------------------------------------


def widen(document: dict[str, Any]) -> None:
    document["coverage"][0]["ranges"][-1] += 3


def narrow(document: dict[str, Any]) -> None:
    """Let an entry cover the rows of one partition alone."""
    document["coverage"].pop()


def first_file(document: dict[str, Any]) -> list[Any]:
    file: list[Any] = document["files"][0]
    return file


BY_FILES: dict[str, tuple[str, Change, int]] = {
    "coverage widened": ("flush", widen, 10),
    "coverage narrowed": ("flush", narrow, 13),
    "rows of a file": ("flush", lambda d: first_file(d).__setitem__(1, 4), 13),
    "bytes of a file": ("flush", lambda d: first_file(d).__setitem__(2, 4), 13),
    "path of a file": ("flush", lambda d: first_file(d).__setitem__(0, "part-x-0.parquet"), 10),
    "a file left out": ("flush", lambda d: d["files"].pop(), 13),
    "bytes of a compacted file": ("compact", lambda d: first_file(d).__setitem__(2, 4), 13),
    "path of a compacted file": ("compact", lambda d: first_file(d).__setitem__(0, "month=1/part-x-0.parquet"), 10),
}


@pytest.mark.parametrize(("kind", "change", "code"), BY_FILES.values(), ids=BY_FILES)
def test_an_edited_entry_shows_by_the_files(sink: Path, kind: str, change: Change, code: int) -> None:
    """An entry that was edited, checksum and all, does not fit the files, and the audit ends with the code of how."""
    shutil.rmtree(Layout(sink).checkpoints)
    edit(entry_path(sink, kind), change)
    assert audit(sink).exit_code == code


def restore_one(document: dict[str, Any]) -> None:
    document["removed"].pop()


def remove_another(document: dict[str, Any]) -> None:
    """Let a compaction remove a file besides, that no other has its rows."""
    document["removed"].append("month=0/part-first-0-0.parquet")


CONTRADICTIONS: dict[str, tuple[str, Change]] = {
    "a removed file left out": ("compact", restore_one),
    "a removed file twice": ("compact", lambda d: d["removed"].append(d["removed"][0])),
    "a file removed that is none": ("compact", remove_another),
    "rows of a compacted file": ("compact", lambda d: first_file(d).__setitem__(1, 4)),
    "no compacted file": ("compact", lambda d: (d["files"].clear(), d["removed"].append("month=0/nothing"))),
    "settled before its time": ("compact", lambda d: d.update(gone_before=99)),
    "a compaction with rows": (
        "compact",
        lambda d: d["coverage"].append({"topic": "t", "topic_id": "", "partition": 0, "path": "", "ranges": [0, 5]}),
    ),
    "a flush that says compaction": ("flush", lambda d: d.update(kind="compact", removed=[], gone_before=0)),
    "a flush that says fence": ("flush", lambda d: d.update(kind="fence", fenced=["a"])),
    "a flush that says rebuild": ("flush", lambda d: d.update(kind="rebuild", rebuild=2)),
    "a fence that says rebuild": ("fence", lambda d: d.update(kind="rebuild", rebuild=0)),
    "a compaction that says flush": (
        "compact",
        lambda d: d["files"].append(["month=0/part-first-0-0.parquet", 1, 1, "crc32c:0"]),
    ),
    "a writer fenced": ("fence", lambda d: d["fenced"].append("last")),
    "a file named twice": ("flush", lambda d: d["files"].append(d["files"][0])),
    "another schema version": ("flush", lambda d: d.update(format=99)),
    "another number": ("flush", lambda d: d.update(number=1)),
}


@pytest.mark.parametrize(("kind", "change"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_an_entry_that_cannot_be_so_ends_the_audit(sink: Path, kind: str, change: Change) -> None:
    """An entry that contradicts those before it, though its checksum fits, is named, and nothing is called exact."""
    shutil.rmtree(Layout(sink).checkpoints)
    path = entry_path(sink, kind)
    edit(path, change)
    with pytest.raises(SinkError, match=r"damaged|holds entry") as caught:
        audit(sink)
    named = path if kind != "fence" or "fenced before" not in str(caught.value) else entry_path(sink, "flush")
    assert str(named) in str(caught.value)
    assert caught.value.exit_code == 7


def test_a_removal_that_was_dropped_is_noticed(sink: Path) -> None:
    """A compaction that was turned into another with none of its files makes what it replaced count, and be gone."""
    shutil.rmtree(Layout(sink).checkpoints)
    edit(entry_path(sink, "compact"), lambda d: (d["files"].clear(), d["removed"].clear()))
    report = audit(sink)
    assert report.exit_code == 10
    assert any("part-first-0" in path for path in report.found.gone)
    assert any("compact" in path for path in report.found.unknown)


def test_a_removal_without_files_is_missing_and_noted(sink: Path) -> None:
    """A compaction whose made file was struck out is taken for one that forgets: its rows do not count as there."""
    shutil.rmtree(Layout(sink).checkpoints)
    edit(entry_path(sink, "compact"), lambda d: d["files"].clear())
    file_with(sink, "compact").unlink()
    report = audit(sink)
    assert report.exit_code == 10
    assert any("--forget-missing" in note for note in report.notes)


def test_the_log_without_its_end_is_noticed(sink: Path) -> None:
    """The end of the log, deleted: its checkpoint remembers, and without that its files are unknown."""
    entries = read_entries(sink)
    last = CommitLog(sink).path(len(entries) - 1)
    last.unlink()
    report = audit(sink)  # the last checkpoint is older
    assert (report.exit_code, len(report.found.unknown)) == (13, 2)
    CommitLog(sink).path(len(entries) - 2).unlink()
    with pytest.raises(SinkError, match=r"is missing, although .* covers it"):
        audit(sink)


# --- checkpoints -------------------------------------------------------------------------------------------

CHECKPOINTS: dict[str, Change] = {
    "coverage widened": widen,
    "coverage narrowed": narrow,
    "a file left out": lambda d: d["files"].pop(),
    "a file's rows": lambda d: first_file(d).__setitem__(1, 4),
    "nothing removed": lambda d: d["removed"].clear(),
    "nobody fenced": lambda d: d["fenced"].clear(),
    "a step": lambda d: d.update(steps={"parse": "x"}),
    "another rebuild": lambda d: d.update(rebuild=3),
    "another writer": lambda d: d.update(writers=[]),
}


@pytest.mark.parametrize("change", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_that_differs_from_the_entries_ends_the_audit(sink: Path, change: Change) -> None:
    """A checkpoint that was edited, checksum and all, would be believed by the next writer: it is named, code 7."""
    path = max(Layout(sink).checkpoints.glob("*.json"))
    edit(path, change)
    with pytest.raises(SinkError, match="does not say what the") as caught:
        audit(sink)
    assert str(path) in str(caught.value)
    path.unlink()  # what the error says
    assert audit(sink).exit_code == 0


def test_a_torn_checkpoint_is_no_witness(sink: Path) -> None:
    path = max(Layout(sink).checkpoints.glob("*.json"))
    path.write_bytes(path.read_bytes()[:50])
    (path.parent / "notes.txt").write_text("x")
    assert audit(sink).exit_code == 0


def test_all_kinds_of_entries_are_edited(sink: Path) -> None:
    """The tables above hold a change for each kind that the directory has."""
    edited = {kind for kind, *_ in [*BY_FILES.values(), *CONTRADICTIONS.values()]}
    assert edited == {entry.kind for entry in read_entries(sink)}
    assert COMPACT in edited
