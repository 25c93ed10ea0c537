"""An older copy of a directory was restored, and the log beside it was not: the log is cut to what the copy holds.

The log names files that came after the copy, and says that their rows are there. Nobody but its owner knows that the
directory is a copy, and not one from which files were deleted by mistake. So this is done on demand, by ``downspout
compact DIR --restored``, with no writer running.

The log is not changed. A new one is made of links to its first entries, as many as the files allow, under the next
number (``layout.py``), and the directory is marked with that number. The mark is the commit point: stopped before it,
nothing happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from downspout.errors import SinkError
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.log.entry import REBUILD, Entry
from downspout.sink.log.history import History
from downspout.sink.storage.data_files import move
from downspout.sink.storage.layout import OURS, Layout, incarnation_of, is_data, logged, next_layout, up_to
from downspout.sink.storage.places import storage_of
from downspout.sink.storage.port import Storage


@dataclass(frozen=True)
class Cut:
    """What was done."""

    before: int  # the entries of the log as it was
    after: int  # those of the new one
    former: Path  # the folder of the log as it was, which stays


def cut_to_copy(directory: Path, disk: Storage | None = None) -> Cut:
    """Let a directory's log end where its files do. O(entries). Raises OSError: the disk says no."""
    disk = disk or storage_of(directory)
    if disk.is_remote:
        raise SinkError(
            f"{directory} is on an object store, where a log cannot be cut: objects have no links",
            cure="restore the log of the same copy beside it; or another parquet.directory",
        )
    log = CommitLog(directory, disk, checkpoints=False)
    entries = log.refresh()
    log.check_complete()
    layout = log.layout
    if not entries or layout.is_inside:
        why = "has no commit log" if not entries else f"has its log in it ({layout.log}): a copy brings its own"
        raise SinkError(f"{directory} {why}", cure="--restored is for a directory whose log lies beside it")
    there = {path for path in _names(disk, directory) if is_data(path) and incarnation_of(path)}
    staged = {logged(path) for path in _names(disk, layout.staging)}
    history = _longest(entries, there | staged)
    if history.length == log.length:
        raise SinkError(f"{directory} has all files that its log names: nothing is to be cut", cure="no --restored")
    _refuse_others(directory, there, history)
    move(disk, layout, [path for path in staged if path in history.files], layout.staging, directory)
    _make_log(layout, next_layout(layout), history.length, log, disk)
    return Cut(log.length, history.length, layout.home)


def _names(disk: Storage, top: Path) -> set[str]:
    return {path.relative_to(top).as_posix() for path in disk.files_below(top, without=OURS)}


def _longest(entries: list[Entry], there: set[str]) -> History:
    """Return the state after as many entries as possible of which all files that count are there."""
    missing, length = set[str](), 0
    for entry in entries:
        missing = set() if entry.kind == REBUILD else missing.difference(entry.removed)
        missing.update(file.path for file in entry.files if file.path not in there)
        if not missing:
            length = entry.number + 1
    history = History()
    for entry in entries[:length]:
        history.take(entry)
    return history


def _refuse_others(directory: Path, there: set[str], history: History) -> None:
    """Raise where files would be named by no entry, since they came later than a file that is gone."""
    others = sorted(there - history.files.keys() - history.removed.keys())
    if others:
        raise SinkError(
            f"{directory} is not a copy of one moment: {others[0]} is there ({len(others)} such), and files of earlier "
            "entries are gone",
            cure="restore these from a backup; or downspout compact --forget-missing, if their rows are not wanted",
        )


def _make_log(old: Layout, new: Layout, length: int, log: CommitLog, disk: Storage) -> None:
    disk.make_folder(new.log)
    for number in range(length):
        path = new.log / log.path(number).name
        if not disk.exists(path):  # from a stopped attempt
            disk.link(log.path(number), path)
    for folder in up_to(new.log, new.home.parent):
        disk.sync(folder)
    disk.write(new.mark, b"")
    disk.sync(new.mark)
    disk.sync(new.mark.parent)
    disk.remove(old.mark)  # a writer that was running after all ends here, instead of adding to the old log
