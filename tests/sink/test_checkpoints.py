"""Checkpoints of the log: they save reading, and change nothing that is known."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.errors import SinkError
from downspout.sink import (
    COMPACT,
    FENCE,
    FLUSH,
    REBUILD,
    CommitLog,
    Coverage,
    DataFile,
    DirectoryState,
    Disk,
    Entry,
    Stream,
    read_entries,
    to_document,
)
from downspout.sink.log import CHECKPOINT_EVERY, WRITERS_MAX

STREAM = Stream("t", "id", 0, "")


def flushed(number: int, writer: str = "w") -> Entry:
    coverage = Coverage()
    coverage.add(STREAM, [number])
    files = (DataFile(f"part-{writer}-{number}.parquet", 1, 100),)
    return Entry(number, writer, "topo", ("a:int64",), 5, files, coverage, "sink", {"parse": ""})


def fill(directory: Path, count: int, disk: Disk | None = None) -> CommitLog:
    log = CommitLog(directory, disk)
    log.refresh()
    while log.length < count:
        assert log.append(flushed(log.length))
    return log


def state(log: DirectoryState) -> bytes:
    return log.to_bytes()


class CountingDisk(Disk):
    reads = 0

    def read(self, path: Path) -> bytes:
        self.reads += 1
        return super().read(path)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250, 500])
def test_opening_reads_few_entries_whatever_the_history(tmp_path: Path, count: int) -> None:
    log = fill(tmp_path, count)
    disk = CountingDisk()
    other = CommitLog(tmp_path, disk)
    other.refresh()
    assert disk.reads <= count % CHECKPOINT_EVERY + 2
    whole = CommitLog(tmp_path, checkpoints=False)
    assert len(whole.refresh()) == count
    assert other.length == whole.length == count
    assert state(other) == state(whole) == state(log)


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    """Checkpoints do not pile up, and there is a second one if the last is damaged."""
    log = fill(tmp_path, 5 * CHECKPOINT_EVERY)
    folder = log.checkpoint_path(0).parent
    assert sorted(path.name for path in folder.iterdir()) == [log.checkpoint_path(n).name for n in (400, 500)]


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "edited": lambda path: path.write_text(path.read_text().replace('"rebuild":0', '"rebuild":1')),
    "another's": lambda path: path.write_bytes(path.with_name(f"{100:020d}.json").read_bytes()),
    "another format": lambda path: path.write_bytes(to_document({"format": 9})),
    "out of form": lambda path: path.write_bytes(to_document({"format": 1, "length": 200})),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, damage: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that cannot be read is named in a warning, and the entries say the same without it."""
    log = fill(tmp_path, 250)
    path = log.checkpoint_path(200)
    damage(path)
    with caplog.at_level(logging.WARNING):
        other = CommitLog(tmp_path)
        other.refresh()
    assert state(other) == state(log)
    assert (str(path) in caplog.text) == path.exists()


def test_a_log_whose_end_was_deleted_is_named(tmp_path: Path) -> None:
    """A checkpoint of entries that are gone is no state to begin with: rows would be written twice."""
    log = fill(tmp_path, 201)
    for number in range(190, 201):
        log.path(number).unlink()
    with pytest.raises(SinkError, match=log.path(199).name) as caught:
        CommitLog(tmp_path).refresh()
    assert caught.value.cure


def test_entries_below_a_checkpoint_are_asked_for_by_the_audit_alone(tmp_path: Path) -> None:
    """An old entry that is gone keeps no sink from starting; reading all entries says that it is missing."""
    log = fill(tmp_path, 150)
    log.path(7).unlink()
    other = CommitLog(tmp_path)
    other.refresh()
    other.check_complete()
    assert state(other) == state(log)
    with pytest.raises(SinkError, match=log.path(7).name):
        read_entries(tmp_path)


def test_a_disk_that_takes_no_checkpoint_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where a checkpoint cannot be written, the entry counts all the same, and a warning names the checkpoint."""

    class Full(Disk):
        def link(self, source: Path, target: Path) -> None:
            if target.parent.name == "checkpoints":
                raise OSError(28, "No space left on device", str(target))
            super().link(source, target)

    log = fill(tmp_path, 101, Full())
    assert log.length == 101
    assert str(log.checkpoint_path(100)) in caplog.text
    assert len(read_entries(tmp_path)) == 101


def test_the_names_of_writers_are_forgotten_in_the_end(tmp_path: Path) -> None:
    """Of very many writers the latest are known, and all of their rows."""
    history = DirectoryState()
    for number in range(WRITERS_MAX + 20):
        history.take(flushed(number, f"w{number}"))
    assert len(history.writers) == WRITERS_MAX
    assert "w19" not in history.writers
    assert "w20" in history.writers
    assert history.coverage.total == WRITERS_MAX + 20


# --- any history ------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Return entries of all kinds, as writers, compactions and sweepers make them."""
    history, entries = DirectoryState(), list[Entry]()
    for number in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from([FLUSH, FLUSH, FLUSH, COMPACT, FENCE, REBUILD]))
        entry = flushed(number, draw(st.sampled_from(["a", "b", "é-2"])))
        if kind == FENCE:
            entry = Entry(number, "s", "topo", ("a:int64",), 5, kind=kind, fenced=(draw(st.text(max_size=5)),))
        elif kind == COMPACT and history.files:
            removed = tuple(draw(st.lists(st.sampled_from(list(history.files)), min_size=1, unique=True)))
            gone = draw(st.integers(0, number))
            made = (DataFile(f"part-c-{number}.parquet", len(removed), 7),)
            entry = Entry(number, "c", "topo", ("a:int64",), 5, made, kind=kind, removed=removed, gone_before=gone)
        elif kind == REBUILD:
            entry = Entry(number, "g", "topo", ("b:int64",), 5, kind=kind, rebuild=history.rebuild + 1)
        entries.append(entry)
        history.take(entry)
    return entries


@settings(deadline=None)
@given(histories())
def test_an_entry_of_any_kind_survives_its_bytes(entries: list[Entry]) -> None:
    for entry in entries:
        assert Entry.from_bytes(entry.to_bytes()) == entry


@settings(deadline=None)
@given(histories(), st.integers(0, 25))
def test_a_checkpoint_anywhere_changes_nothing(entries: list[Entry], at: int) -> None:
    whole, first, second = DirectoryState(), DirectoryState(), DirectoryState()
    for entry in entries:
        whole.take(entry)
    for entry in entries[:at]:
        first.take(entry)
    if first.length:
        second.restore(first.to_bytes())
    for entry in entries[second.length :]:
        second.take(entry)
    assert state(second) == state(whole)


@settings(deadline=None)
@given(histories())
def test_a_file_counts_or_was_removed_and_never_both(entries: list[Entry]) -> None:
    """The files that count are those that came, without those that were replaced."""
    history, counts = DirectoryState(), dict[str, DataFile]()
    for entry in entries:
        history.take(entry)
        if entry.kind == REBUILD:
            counts = {}
        counts = {path: file for path, file in counts.items() if path not in entry.removed}
        counts |= {file.path: file for file in entry.files}
        assert history.files == counts
        assert not set(history.files) & set(history.removed)
        json.loads(history.to_bytes())
