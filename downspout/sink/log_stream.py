"""A directory as a stream: the files that hold its rows, each row once, in the order of the commit log.

A stream begins with the files that count after the first *base* entries of the log. From there on it takes the files of
each ``flush``. The files of a ``compact`` hold no new rows, and a ``fence`` names no files. So the stream lists no
folder, and whatever a compaction does, it neither reads a row again nor misses one.

A file of the stream may be replaced before it is read. It is then in ``replaced/``, where it is kept for a week by
default. A stream that falls further behind cannot go on and raises an error: its rows are in files together with
others, which it may have read.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from downspout.errors import ConfigError, SinkError
from downspout.sink.log import CommitLog, DirectoryState, read_entries
from downspout.sink.log_entry import COMPACT, FLUSH, DataFile, Entry
from downspout.sink.storage import Storage

AFRESH = "start over with another checkpoint, and another output"


@dataclass(frozen=True)
class Position:
    """How far a stream has read. A new position has read nothing and belongs to no log."""

    # which log, by the writer of its first entry; so a directory may be moved, and another one is noticed
    log: str = ""
    rebuild: int = 0  # the number of the directory's last rebuild
    base: int = 0  # the entries at the beginning that the stream takes as one: it reads the files that count after them
    entry: int = 0  # the next entry; below ``base`` while the first files are read
    file: int = 0  # the next file of that entry, or of the first files

    @property
    def is_new(self) -> bool:
        """Whether nothing was read."""
        return not self.log

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        """Return what :meth:`to_json` made."""
        wanted = {name: type(default) for name, default in cls().to_json().items()}
        if set(value) != set(wanted) or not all(type(value[name]) is kind for name, kind in wanted.items()):
            raise ConfigError(
                f"the checkpoint stands at {str(dict(value))[:200]}: it belongs to another query", cure=AFRESH
            )
        if min(value[name] for name in wanted if name != "log") < 0:
            raise ConfigError(f"the checkpoint stands at {dict(value)}: it was changed by hand", cure=AFRESH)
        return cls(*(value[name] for name in wanted))


class Follower:
    """Plans what a stream reads next. It reads only the log, no data."""

    def __init__(
        self, directory: Path, files_max: int | None = None, bytes_max: int | None = None, disk: Storage | None = None
    ) -> None:
        self.directory = directory  # the sink's; it need not exist yet
        self.files_max = files_max  # how many files a batch has at most; None: any number
        self.bytes_max = bytes_max  # how many bytes they have at most, if it is more than one; None: any number
        self._log = CommitLog(directory, disk)
        self._name = ""
        self._entries: dict[int, Entry] = {}
        self._first: tuple[int, tuple[DataFile, ...]] = 0, ()
        self._frozen: Position | None = None

    def freeze(self) -> None:
        """End the stream at the present end of the log."""
        self._frozen = None
        self._frozen = self.head()
        self._note_first()

    def head(self) -> Position:
        """Return the position before all present rows, where a new stream begins.

        Raises:
            SinkError: the log is damaged.
        """
        if self._frozen is not None:
            return self._frozen
        if not self._log.length:
            self._log.refresh()
            self._log.check_complete()
        self._entries.update((entry.number, entry) for entry in self._log.refresh())
        log = self._log
        if not log.length:
            return Position()
        self._name = self._name or self._entry(0).writer
        return Position(self._name, log.rebuild, base=log.length)

    def _note_first(self) -> None:
        self._first = self._log.length, tuple(self._log.files.values())

    def latest(self, start: Position, *, limited: bool = True) -> Position:
        """Return where a batch from ``start`` ends; that is ``start`` if there is no new data.

        Args:
            start: the end of the batch before.
            limited: whether the limits apply.

        Raises:
            SinkError: the log is damaged, or is not the one that was read.
        """
        head = self.head()
        if head.is_new and start.is_new:
            return start
        if start.is_new and self._frozen is None:
            self._note_first()
        begin = head if start.is_new else start
        self._check(begin, head)
        self._entries = {number: entry for number, entry in self._entries.items() if number >= begin.entry}
        end, files, size = start, 0, 0
        for file, after in self._after(begin, head.base):
            files, size = files + 1, size + file.bytes
            if limited and files > 1 and self._is_too_much(files, size):
                break
            end = after
        if end != start:
            self._make_durable()
        return end

    def _make_durable(self) -> None:
        """Force the entries to the disk before anyone records that they were read."""
        # The race: a writer has linked its entry, and not synced the folder yet. We read it, and the query's checkpoint
        # says so. A power cut now would take the entry, another one would get its number, and would never be read.
        try:
            self._log.sync()
        except OSError as error:
            if error.errno != errno.EROFS:  # nobody writes here
                raise SinkError(
                    f"{self._log.folder} cannot be synced to the disk: {error.strerror}", cure="a disk that works"
                ) from error

    def _is_too_much(self, files: int, size: int) -> bool:
        return (self.files_max is not None and files > self.files_max) or (
            self.bytes_max is not None and size > self.bytes_max
        )

    def _check(self, start: Position, head: Position) -> None:
        if start.log != head.log or max(start.base, start.entry) > head.base:
            raise SinkError(
                f"{self.directory} has another commit log than the one that was read, or its end was deleted",
                cure=f"restore it from a backup; if it was made anew, {AFRESH}",
            )
        if start.rebuild != head.rebuild:
            raise SinkError(
                f"{self.directory} was rebuilt: it is at rebuild {head.rebuild}, and rebuild "
                f"{start.rebuild} was read: all rows come again",
                cure=AFRESH,
            )

    def files(self, start: Position, end: Position) -> list[DataFile]:
        """Return the files between two positions; repeated calls, even in another process, return the same."""
        if end.is_new:
            return []
        self._check(end, replace(self.head(), rebuild=end.rebuild))
        begin = replace(end, entry=0, file=0) if start.is_new else start
        found: list[DataFile] = []
        if begin != end:
            for file, after in self._after(begin, end.entry + 1):
                found.append(file)
                if after == end:
                    break
            else:
                raise SinkError(f"{self.directory}: the commit log does not lead from {start} to {end}", cure=AFRESH)
        for file in found:
            if not is_anywhere(self._log, file):
                raise gone(self.directory, file)
        return found

    def _after(self, start: Position, stop: int) -> Iterator[tuple[DataFile, Position]]:
        """Yield the files from a position on, up to an entry, each with the position behind it."""
        base = start.base
        if start.entry < base:
            first = self._first_files(base)
            for place in range(start.file, len(first)):
                entry, file = (0, place + 1) if place + 1 < len(first) else (base, 0)
                yield first[place], replace(start, entry=entry, file=file)
            start = replace(start, entry=base, file=0)
        for number in range(start.entry, stop):
            files = self._new_files(number)
            for place in range(start.file if number == start.entry else 0, len(files)):
                entry, file = (number, place + 1) if place + 1 < len(files) else (number + 1, 0)
                yield files[place], replace(start, entry=entry, file=file)

    def _new_files(self, number: int) -> tuple[DataFile, ...]:
        entry = self._entry(number)
        return entry.files if entry.kind == FLUSH else ()

    def _entry(self, number: int) -> Entry:
        entry = self._entries.get(number) or self._log.entry(number)
        if entry is None:
            raise SinkError(
                f"{self._log.path(number)} is missing, so what was read is unknown",
                cure="restore it from a backup",
            )
        self._entries[number] = entry
        return entry

    def _first_files(self, base: int) -> tuple[DataFile, ...]:
        """Return the files that count after the first entries."""
        if self._first[0] != base:
            state = DirectoryState()
            for number in range(base):
                state.take(self._entry(number))
            self._first = base, tuple(state.files.values())
        return self._first[1]


def gone(directory: Path, file: DataFile) -> SinkError:
    """Return the error for a file that was deleted before a stream has read it."""
    return SinkError(
        f"{directory / file.path} was deleted before the stream read it: it was compacted away, and the stream was "
        "behind for longer than such files are kept",
        cure=f"{AFRESH}; and downspout compact --keep for as long as a stream may be behind",
    )


def is_anywhere(log: CommitLog, file: DataFile) -> bool:
    """Return whether a data file still exists: published, staged or replaced."""
    # In the order in which files go; one look at each place finds a file that moves meanwhile.
    return any(log.disk.exists(place) for place in log.layout.way(file.path))


def files_before(directory: Path, end: Position, disk: Storage | None = None) -> list[DataFile]:
    """Return files with all rows that a stream has read up to a position, as few as the log knows, and no others.

    If a file was deleted, those that replaced it are returned instead. They may hold rows of other files too, which
    were deleted with it; but a stream that had not read these could not go on.

    Raises:
        SinkError: the log is damaged, or files are gone that no compaction has replaced.
    """
    entries = read_entries(directory, disk)
    state, length = DirectoryState(), max(end.base if end.entry < end.base else end.entry, 0)
    for entry in entries[:length]:
        state.take(entry)
    files = list(state.files.values())
    if end.entry < end.base:
        files = files[: end.file]
    elif end.file:
        files += entries[end.entry].files[: end.file]
    return list(_there(CommitLog(directory, disk), files, entries))


def _there(log: CommitLog, files: Iterable[DataFile], entries: Iterable[Entry]) -> Iterator[DataFile]:
    instead = {path: entry.files for entry in entries if entry.kind == COMPACT for path in entry.removed}
    waiting, seen = list(files), set[str]()
    while waiting:
        file = waiting.pop()
        if file.path in seen:
            continue
        seen.add(file.path)
        if is_anywhere(log, file):
            yield file
        elif file.path in instead:
            waiting += instead[file.path]
        else:
            raise SinkError(f"{log.directory / file.path} is gone", cure="restore it from a backup")
