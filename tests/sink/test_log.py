"""The commit log: one order for all writers, and no entry is believed that is not whole."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.errors import SinkError
from downspout.sink import FENCE, CommitLog, Coverage, DataFile, Disk, Entry, Layout, Stream, read_entries
from downspout.sink.log import FencedError
from downspout.sink.log_entry import checksum_of

STREAM = Stream("t", "id", 0, "")


def entry(number: int, writer: str = "w", offsets: tuple[int, ...] = (), **changes: Any) -> Entry:
    """Return an entry with one file whose rows are these offsets (its own number where none are given)."""
    coverage = Coverage()
    coverage.add(STREAM, offsets or (number,))
    files = (DataFile(f"part-{writer}-{number}.parquet", coverage.total, 100),)
    given = {"topology": "topo", "schema": ("a:int64",), "created_ms": 5, "files": files, "coverage": coverage}
    return Entry(number, writer, **{**given, **changes})


def fill(directory: Path, count: int) -> CommitLog:
    log = CommitLog(directory)
    for number in range(count):
        assert log.append(entry(number))
    return log


def visible(log: CommitLog) -> list[str]:
    return sorted(path.name for path in log.folder.iterdir()) if log.folder.exists() else []


# --- order -------------------------------------------------------------------------------------------------


def test_entries_are_read_in_order(tmp_path: Path) -> None:
    """Entries come back as they were written, in their order, and what they cover adds up."""
    log = fill(tmp_path, 12)
    assert read_entries(tmp_path) == [entry(number) for number in range(12)]
    other = CommitLog(tmp_path)
    other.refresh()
    assert (other.coverage, other.length, other.rows) == (log.coverage, 12, 12)
    assert (other.topology, other.schema) == ("topo", ("a:int64",))
    assert other.coverage.ranges(STREAM) == [(0, 12)]


def test_refresh_reads_only_what_is_new(tmp_path: Path) -> None:
    """A second refresh returns the entries that were added since the first."""
    writer, reader = CommitLog(tmp_path), CommitLog(tmp_path)
    assert reader.refresh() == []
    writer.append(entry(0))
    assert reader.refresh() == [entry(0)]
    writer.append(entry(1))
    assert reader.refresh() == [entry(1)]


def test_a_log_that_is_deleted_under_its_writer_is_noticed(tmp_path: Path) -> None:
    """Who has read or written entries does not begin anew where they were, but names the directory and a cure."""
    directory = tmp_path / "sink"
    writer, reader = fill(directory, 3), CommitLog(directory)
    reader.refresh()
    shutil.rmtree(directory)
    for log in (writer, reader):
        with pytest.raises(SinkError, match=r"2\.json has disappeared: .*sink was deleted") as caught:
            log.refresh()
        assert "another kafka.group" in (caught.value.cure or "")
    assert not directory.exists()


def test_a_log_that_is_deleted_between_a_look_and_an_entry_is_noticed(tmp_path: Path) -> None:
    """An entry that comes to stand in a new folder, without those before it, is not taken for committed."""
    directory = tmp_path / "sink"

    class Deleted(Disk):
        def write(self, path: Path, content: bytes) -> None:
            shutil.rmtree(directory)
            for folder in (path.parent, log.folder):
                folder.mkdir(parents=True)
            super().write(path, content)

    fill(directory, 3)
    log = CommitLog(directory, Deleted())
    log.refresh()
    with pytest.raises(SinkError, match="was deleted or replaced"):
        log.append(entry(3))
    assert log.length == 3


def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    """A directory that does not exist has no entries, and asking does not make it."""
    assert read_entries(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_number_is_taken_once(tmp_path: Path) -> None:
    """The second writer of a number is told so, changes nothing, and gets the next number after reading."""
    first, second = CommitLog(tmp_path), CommitLog(tmp_path)
    assert first.append(entry(0, "first"))
    assert not second.append(entry(0, "second"))
    assert (second.length, second.coverage) == (0, Coverage())
    assert [found.writer for found in second.refresh()] == ["first"]
    assert second.append(entry(1, "second"))
    assert [found.writer for found in read_entries(tmp_path)] == ["first", "second"]
    assert all(name.endswith(".json") for name in visible(first))


def test_many_writers_make_one_order(tmp_path: Path) -> None:
    """Whatever the race, each entry of each writer is in the log exactly once, and all numbers are used."""
    count, errors = 15, list[BaseException]()

    def write(name: str) -> None:
        try:
            log = CommitLog(tmp_path)
            for number in range(count):
                while not log.append(entry(log.length, name, (number,))):
                    log.refresh()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    entries = read_entries(tmp_path)
    assert [found.number for found in entries] == list(range(3 * count))
    for name in "abc":
        own = [found.coverage.ranges(STREAM)[0][0] for found in entries if found.writer == name]
        assert own == list(range(count))


def test_numbers_are_not_skipped(tmp_path: Path) -> None:
    """An entry whose number is not the next is refused, so a log never gets a hole."""
    with pytest.raises(ValueError, match="entry 3 after 0"):
        CommitLog(tmp_path).append(entry(3))


# --- damage ------------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change an entry's content and give it the checksum that fits."""
    document = json.loads(path.read_bytes())
    del document["checksum"]
    change(document)
    path.write_text(json.dumps({**document, "checksum": checksum_of(document)}))


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"created_ms":5', '"created_ms":6'))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "torn": tear,
    "empty": lambda path: path.write_bytes(b""),
    "edited": edit,
    "not text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda path: path.write_text("[]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "another's number": lambda path: rewrite(path, lambda document: document.update(number=7)),
    "another format": lambda path: rewrite(path, lambda document: document.update(format=2)),
    "no files": lambda path: rewrite(path, lambda document: document.pop("files")),
    "files of another form": lambda path: rewrite(path, lambda document: document.update(files=[["a"]])),
    "a negative count": lambda path: rewrite(path, lambda document: document.update(files=[["a", -1, 5]])),
    "infinite": lambda path: rewrite(path, lambda document: document.update(created_ms=float("inf"))),
    "a path above": lambda path: rewrite(path, lambda document: document.update(files=[["../../a", 1, 5]])),
    "a path elsewhere": lambda path: rewrite(path, lambda document: document.update(files=[["/etc/a", 1, 5]])),
    "no path": lambda path: rewrite(path, lambda document: document.update(files=[["", 1, 5]])),
    "bad coverage": lambda path: rewrite(path, lambda document: document.update(coverage=[1])),
    "no inputs": lambda path: rewrite(path, lambda document: document.pop("inputs")),
    "a list of inputs": lambda path: rewrite(path, lambda document: document.update(inputs=["a"])),
    "a step that is not text": lambda path: rewrite(path, lambda document: document.update(inputs={"a": 1})),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_named(tmp_path: Path, damage: Callable[[Path], Any], number: int) -> None:
    """An entry that is torn, edited or out of form ends in a SinkError that names its file and a cure."""
    path = fill(tmp_path, 3).path(number)
    damage(path)
    with pytest.raises(SinkError) as caught:
        read_entries(tmp_path)
    assert str(path) in str(caught.value)
    assert caught.value.cure


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_entry_is_named(tmp_path: Path, number: int) -> None:
    """An entry that is gone while a later one is there ends in a SinkError that names its file."""
    path = fill(tmp_path, 4).path(number)
    path.unlink()
    with pytest.raises(SinkError, match=path.name):
        read_entries(tmp_path)


def test_an_entry_that_vanishes_after_it_was_read_is_named(tmp_path: Path) -> None:
    log = fill(tmp_path, 3)
    log.path(2).unlink()
    with pytest.raises(SinkError, match=log.path(2).name):
        log.check_complete()


def test_an_append_during_the_check_is_no_hole(tmp_path: Path) -> None:
    """Entries that another writer adds between reading and checking are not taken for a damaged log."""
    reader = CommitLog(tmp_path)
    writer = fill(tmp_path, 2)
    reader.refresh()
    writer.append(entry(2))
    writer.append(entry(3))
    reader.check_complete()
    assert [found.number for found in reader.refresh()] == [2, 3]


def test_files_that_are_no_entries_are_left_alone(tmp_path: Path) -> None:
    """Leftovers of stopped writers and copies made by people are no entries."""
    log = fill(tmp_path, 2)
    (log.folder / ".w-2.tmp").write_text("half")
    (log.folder / "copy of 7.json").write_text("{}")
    assert len(read_entries(tmp_path)) == 2
    assert log.append(entry(2))


def test_any_single_changed_byte_is_noticed(tmp_path: Path) -> None:
    """No entry with one byte changed is read as something else than it was."""
    whole = entry(0).to_bytes()
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(ValueError, match=r"."):
            Entry.from_bytes(changed)


@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: json.dumps({"checksum": text}).encode()))
def test_untrusted_content_is_refused(content: bytes) -> None:
    """Bytes from anywhere raise ValueError and nothing else."""
    with pytest.raises(ValueError, match=r"."):
        Entry.from_bytes(content)


@given(st.text(), st.lists(st.text(), max_size=3), st.text(), st.integers(0, 2**40))
def test_an_entry_survives_its_bytes(writer: str, schema: list[str], topic: str, created_ms: int) -> None:
    """Any text in an entry, half surrogate pairs too, is read back as it was."""
    coverage = Coverage()
    coverage.add(Stream(topic, "", 0, "split.0"), [1, 2, 5])
    files, inputs = (DataFile("a=1/é.parquet", 3, 9),), {topic: "", writer + "\ud800": writer}
    made = Entry(3, writer + "\ud800", "t", tuple(schema), created_ms, files, coverage, "sink", inputs)
    assert Entry.from_bytes(made.to_bytes()) == made


def test_an_entry_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    """An entry out of form is refused before it is linked: in the log it would block the directory for ever."""
    log, coverage = fill(tmp_path, 1), Coverage()
    coverage.add(Stream("t", "", -1, ""), [4])
    with pytest.raises(ValueError, match="not a stream"):
        log.append(entry(1, coverage=coverage))
    assert len(read_entries(tmp_path)) == 1


# --- a disk that says no -----------------------------------------------------------------------------------


class FailingDisk(Disk):
    """Raises at the ``nth`` call of one operation, before or after it was done."""

    def __init__(self, operation: str, nth: int = 1, *, done: bool = False, code: int = errno.ENOSPC) -> None:
        self.calls = 0

        def fail(*arguments: Any) -> None:
            self.calls += 1
            if self.calls != nth:
                return real(*arguments)
            if done:
                real(*arguments)
            raise OSError(code, os.strerror(code), str(arguments[0]))

        real = getattr(super(), operation)
        setattr(self, operation, fail)


@pytest.mark.parametrize("operation", ["make_folder", "write", "sync", "link"])
def test_a_failed_step_before_the_link_leaves_no_entry(tmp_path: Path, operation: str) -> None:
    """Where the disk fails before the link, the error goes on, no entry is there, and the number stays free."""
    log = CommitLog(tmp_path, FailingDisk(operation))
    with pytest.raises(OSError, match="No space left"):
        log.append(entry(0))
    assert (log.length, log.coverage, visible(log)) == (0, Coverage(), [])
    assert log.append(entry(0))
    assert read_entries(tmp_path) == [entry(0)]


@pytest.mark.parametrize("operation", ["link", "sync"])
def test_a_failed_step_after_the_link_leaves_the_entry(tmp_path: Path, operation: str) -> None:
    """Where the disk fails after the link, the entry counts though append raised: refresh finds it."""
    fill(tmp_path, 1)
    nth = 2 if operation == "sync" else 1  # the second sync is that of the folder
    log = CommitLog(tmp_path, FailingDisk(operation, nth, done=operation == "link"))
    log.refresh()
    with pytest.raises(OSError, match="No space left"):
        log.append(entry(1))
    assert log.length == 1
    assert log.refresh() == [entry(1)]
    assert visible(log) == [log.path(0).name, log.path(1).name]


def test_the_content_is_on_disk_before_it_is_linked(tmp_path: Path) -> None:
    """The steps come in the order that the promise needs: the log's folder; then write, sync, link, sync of it."""
    steps: list[str] = []

    class Noting(Disk):
        def write(self, path: Path, content: bytes) -> None:
            steps.append("write")
            super().write(path, content)

        def sync(self, path: Path) -> None:
            steps.append("sync folder" if path.is_dir() else "sync file")
            super().sync(path)

        def link(self, source: Path, target: Path) -> None:
            steps.append("link")
            super().link(source, target)

    CommitLog(tmp_path, Noting()).append(entry(0))
    assert steps == ["sync folder", "write", "sync file", "link", "sync folder"]


def test_a_write_that_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    """A disk that takes no more leaves no half-written file behind, and the error names the file."""
    used = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, used[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            Disk().write(tmp_path / "a", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, used)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    """A log folder that is a file ends in a SinkError that names it, not in an empty log."""
    Layout(tmp_path).home.mkdir(parents=True)
    Layout(tmp_path).log.write_text("not a folder")
    with pytest.raises(SinkError, match="log"):
        read_entries(tmp_path)


@pytest.mark.parametrize(("writer", "file"), [("old", "new"), ("new", "old")], ids=["the writer", "a file"])
def test_an_entry_with_anything_fenced_is_refused(tmp_path: Path, writer: str, file: str) -> None:
    """No entry follows a fence that is by its writer, or has a file of it: the files may have been swept."""
    log = fill(tmp_path, 1)
    assert log.append(entry(1, kind=FENCE, fenced=("old",), files=(), coverage=Coverage()))
    files = (DataFile("part-new-1.parquet", 1, 100), DataFile(f"part-{file}-2.parquet", 1, 100))
    with pytest.raises(FencedError):
        log.append(entry(2, writer=writer, files=files))
    assert [found.number for found in read_entries(tmp_path)] == [0, 1]
    assert log.append(entry(2, writer="new", files=files[:1]))
