"""The commit log of a directory: one totally ordered list of entries, each created exactly once.

Entry *n* is the file ``log/<n, 20 digits>.json``; ``layout.py`` says where that folder is. It is written under another
name, forced to disk, and then linked to its own name, which fails if somebody was first. So there is one order that
all writers see, without any lock. An entry names the data files of one flush and the rows that are in them. A row is
in the directory if and only if an entry covers it.

Whoever appends has read all entries before. So an entry is also a message to all later writers, which none can miss. A
``fence`` relies on that: a writer that was paused for a year reads, before its next entry, that it may commit no more.

The log does not know Parquet, tuples or Kafka.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from downspout.clock import Clock
from downspout.errors import SinkError
from downspout.settings.object_path import place
from downspout.sink.aggregation import Watermark
from downspout.sink.identity import KnownInputs
from downspout.sink.layout import Layout, data_name, incarnation_of, temporary_name
from downspout.sink.log_entry import (
    COMPACT,
    FENCE,
    FLUSH,
    REBUILD,
    Coverage,
    DataFile,
    Entry,
    files_in,
    from_document,
    in_form,
    listed,
    path_below,
    steps,
    text,
    to_document,
    whole,
)
from downspout.sink.object_store import storage_of
from downspout.sink.schema import merge_schemas, refusals
from downspout.sink.storage import PASSES, Storage, refused

# --- what the entries add up to, and how a checkpoint holds it ---
#
# A checkpoint caches the state after *n* entries, so that opening a directory takes one checkpoint and a few entries,
# however long its history is. It holds nothing that cannot be computed from the entries.

CHECKPOINT_FORMAT = 1
WRITERS_MAX = 1000  # The names of the latest writers and Spark batches are kept, up to this many


class DirectoryState:
    """The state of a directory after some entries."""

    def __init__(self) -> None:
        self.length = 0  # how many entries; the number of the next one
        self.coverage = Coverage()  # the rows that are in the directory
        self.inputs = KnownInputs()  # the inputs that rows came through, and their steps
        self.topology: str | None = None  # whose the directory is; None before the first entry
        self.component: str | None = None
        self.schemas: tuple[tuple[str, ...], ...] = ()  # the columns of the entries, each version once, as they came
        self.files: dict[str, DataFile] = {}  # the data files that count, by path, in the order in which they came
        # path → number of the entry that removed it, for files that may still be published
        self.removed: dict[str, int] = {}
        self.fenced: set[str] = set()  # writers that may commit no more
        self.writers: dict[str, int] = {}  # who wrote lately → the number of their last entry
        self.rebuild = 0  # the number of the last rebuild of the directory; 0: there was none
        self.watermark = Watermark()  # which windows are final

    @property
    def rows(self) -> int:
        """How many rows are in the files."""
        return sum(file.rows for file in self.files.values())

    @property
    def schema(self) -> tuple[str, ...] | None:
        """The columns with which all files can be read; None before the first entry."""
        return merge_schemas(self.schemas) if self.schemas else None

    def refusals(self, schema: tuple[str, ...]) -> list[str]:
        """Return why these columns are refused: they are neither a version in the log nor an extension of all of them.

        Empty if they are accepted.
        """
        if schema in self.schemas:
            return []
        known = self.schema
        return refusals(known, schema) if known else []

    def take(self, entry: Entry) -> None:
        """Add the next entry."""
        if entry.kind == REBUILD:
            self._remove(list(self.files), entry.number)
            self.coverage, self.inputs = Coverage(), KnownInputs()
            self.writers = {}  # a Spark batch of before is to be written again
            self.schemas = ()
            self.watermark = Watermark()
            self.rebuild = entry.rebuild
        elif entry.kind == FENCE:
            self.fenced.update(entry.fenced)
        elif entry.kind == COMPACT:
            self.removed = {path: number for path, number in self.removed.items() if number >= entry.gone_before}
            self._remove(entry.removed, entry.number)
        self.files.update((file.path, file) for file in entry.files)
        self.coverage.update(entry.coverage)
        self.watermark.take(entry.times, entry.created_ms)
        self.inputs.take(entry.inputs)
        self.length += 1
        self.topology, self.component = entry.topology, entry.component
        if entry.schema not in self.schemas:
            self.schemas = (*self.schemas, entry.schema)
        self.writers.pop(entry.writer, None)
        self.writers[entry.writer] = entry.number
        if len(self.writers) > WRITERS_MAX:
            del self.writers[next(iter(self.writers))]

    def _remove(self, paths: Any, number: int) -> None:
        for path in paths:
            if self.files.pop(path, None) is not None:
                self.removed[path] = number

    def to_bytes(self) -> bytes:
        """Return the state as a checkpoint holds it. Checkpoints of one log after n entries are the same bytes."""
        return to_document(
            {
                "format": CHECKPOINT_FORMAT,
                "length": self.length,
                "coverage": self.coverage.to_json(),
                "steps": self.inputs.steps,
                "last_inputs": list(self.inputs.last),
                "topology": self.topology,
                "component": self.component,
                "schemas": list(map(list, self.schemas)),
                "files": [file.to_json() for file in self.files.values()],
                "removed": list(self.removed.items()),
                "fenced": sorted(self.fenced),
                "writers": list(self.writers.items()),
                "rebuild": self.rebuild,
                **({"event_times": times} if (times := self.watermark.to_json()) else {}),
            }
        )

    def restore(self, content: bytes) -> None:
        """Load the state of a checkpoint."""
        document = from_document(content, CHECKPOINT_FORMAT)
        with in_form():
            vars(self).update(_read(document))


def _read(document: Mapping[str, Any]) -> dict[str, Any]:
    inputs = KnownInputs()
    inputs.steps = steps(document["steps"])
    inputs.last = tuple(map(text, listed(document["last_inputs"])))
    return {
        "length": whole(document["length"]),
        "coverage": Coverage.from_json(document["coverage"]),
        "inputs": inputs,
        "topology": text(document["topology"]),
        "component": text(document["component"]),
        "schemas": tuple(tuple(map(text, listed(each))) for each in listed(document["schemas"])),
        "files": {file.path: file for file in files_in(document)},
        "removed": {path_below(path): whole(number) for path, number in listed(document["removed"])},
        "fenced": set(map(text, listed(document["fenced"]))),
        "writers": {text(name): whole(number) for name, number in listed(document["writers"])},
        "rebuild": whole(document["rebuild"]),
        "watermark": Watermark.from_json(document.get("event_times", [])),
    }


# --- the log ---

log = logging.getLogger("downspout.sink")

CHECKPOINT_EVERY = 100  # Entries. Who opens a directory reads fewer than so many.
CHECKPOINTS_KEPT = 2
_NAME = re.compile(r"([0-9]{20})\.json")
_CURE = "restore it from a backup; a log that was changed by hand cannot be trusted"


TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)
OPEN_FILES_CURE = "a higher limit of open files (ulimit -n); ls -l /proc/PID/fd shows what the process has open"


class FencedError(Exception):
    """Files belong to a fenced writer: they may have been swept, and must be made again under another name."""


class CommitLog(DirectoryState):
    """A directory's log, up to the last entry that this process has read."""

    def __init__(self, directory: Path, disk: Storage | None = None, *, checkpoints: bool = True) -> None:
        super().__init__()
        self.directory = directory  # the sink's directory; it need not exist
        self.disk = disk or storage_of(directory)
        self.layout = Layout(directory)
        self._use_checkpoints = checkpoints  # whether to begin at the latest checkpoint. An audit reads every entry.
        self._base = 0  # entries below are known from a checkpoint alone
        self._durable = 0  # entries below are durable, as far as we know

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return self.layout.log

    def _unreadable(self, error: OSError, place: object) -> SinkError:
        what = f"{place} cannot be read: {error.strerror}"
        return refused(error, self.disk.named(self.directory), what, cure=self._cure(error))

    def _cure(self, error: OSError) -> str:
        if error.errno in TOO_MANY_OPEN:
            return OPEN_FILES_CURE
        if error.errno == errno.ENAMETOOLONG:
            return "a shorter parquet.directory"
        return (
            "correct the credentials or parquet.storage_options" if self.disk.is_remote else "correct the permissions"
        )

    def path(self, number: int) -> Path:
        """Return where entry ``number`` is."""
        return self.folder / f"{number:020d}.json"

    def checkpoint_path(self, length: int) -> Path:
        """Return the path of the checkpoint after this many entries."""
        return self.layout.checkpoints / f"{length:020d}.json"

    def refresh(self) -> list[Entry]:
        """Read the entries that were added since; O(new entries). The first time it begins behind a checkpoint.

        Raises:
            SinkError: an entry is torn, was edited, or is not the one its name says; or one that was read is gone.
        """
        if self._use_checkpoints and not self.length:
            self._begin_at_checkpoint()
        self._check_latest(self.length)
        new: list[Entry] = []
        while (entry := self.entry(self.length)) is not None:
            new.append(entry)
            self.take(entry)
        return new

    def sync(self) -> None:
        """Make the entries that were read durable, before acting on them."""
        # The race: a writer has linked its entry and not synced the folder yet; it may be paused, or dead. We read the
        # entry, find our rows covered, and let them be acked; or bring its files into sight; or append the next one. A
        # power cut now would take the entry, and leave what we did: rows that are lost, files without an entry, a hole.
        if self._durable < self.length:
            self.disk.sync(self.folder)
            self._durable = self.length

    def entry(self, number: int) -> Entry | None:
        """Return one entry, read again; None if it does not exist."""
        path = self.path(number)
        try:
            content = self.disk.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error, path) from None
        try:
            entry = Entry.from_bytes(content)
        except ValueError as error:
            raise SinkError(f"{path} is damaged: {error}", cure=_CURE) from None
        if entry.number != number:
            raise SinkError(f"{path} holds entry {entry.number}", cure=_CURE)
        return entry

    def _check_latest(self, length: int) -> None:
        """Raise a SinkError if the last of so many entries is gone."""
        if not length:
            return
        # Somebody deletes the directory under a writer. Its folders are made when they are needed: without this look it
        # would go on in a new directory, and who reads that would never see the rows that are gone, nor where they
        # were.
        if not self.disk.exists(path := self.path(length - 1)):
            raise SinkError(
                f"{path} has disappeared: {self.directory} was deleted or replaced while it was in use, together with "
                "the rows of its entries",
                cure="restore it from a backup, or start over with another directory and another kafka.group",
            )

    def check_complete(self) -> None:
        """Raise a SinkError if an entry is missing below one that is there. It lists the folder."""
        listed = self._numbers(self.folder, at_least=self._base)
        # Other writers may append meanwhile, and a listing may show n + 1 without n. But n was linked first: so a
        # number that was not listed is missing only if its file is not there now.
        for number in range(self._base, max(self.length, max(listed, default=-1) + 1)):
            if number not in listed and not self.disk.exists(self.path(number)):
                raise SinkError(
                    f"{self.path(number)} is missing, although later entries exist: rows would be written twice",
                    cure="restore it from a backup; without it the directory's history is unknown",
                )

    def _numbers(self, folder: Path, at_least: int = 0) -> set[int]:
        """Return the numbers of the files of a folder; of very many, those that do not matter cost next to nothing."""
        first = f"{at_least:020d}"
        try:
            names = self.disk.names(folder, first if at_least else "")
        except OSError as error:
            raise self._unreadable(error, folder) from None
        return {int(found[1]) for name in names if name >= first and (found := _NAME.fullmatch(name))}

    # --- writing ----------------------------------------------------------------------------------------

    def append(self, entry: Entry) -> bool:
        """Create the entry; False if its number is taken: refresh and try the next.

        When this returns True the entry is on disk.

        Raises:
            SinkError: the entry before it is gone.
            OSError: the disk refused. If the last step failed, the entry may exist: :meth:`refresh` shows it.
        """
        # All entries before it have been read: so no fence, and no row that is there already, can have been missed.
        if entry.number != self.length:
            raise ValueError(f"entry {entry.number} after {self.length} entries")
        if self.fenced and (entry.writer in self.fenced or self.fenced_files([file.path for file in entry.files])):
            raise FencedError(entry.writer)
        content = entry.to_bytes()
        Entry.from_bytes(content)  # an entry that cannot be read back would stop every later writer at this number
        if not entry.number:
            self.disk.make_folder(self.folder)
            self.disk.sync(self.layout.home)  # a power cut must not take the folder with the entry
        if not self.disk.put_if_absent(self.path(entry.number), content, self._temporary(entry.writer, entry.number)):
            return False
        self._check_latest(entry.number)  # again: since the last look it may have gone, and the next looks at ours
        self.take(entry)
        self._durable = self.length  # put_if_absent has synced the folder, and with it the entries before ours
        if self.length % CHECKPOINT_EVERY == 0:
            self._write_checkpoint(entry.writer)
        return True

    def _temporary(self, writer: str, number: int) -> Path:
        return self.layout.staging / temporary_name(writer, number)

    def unfenced(self, writer: str) -> str:
        """Return a writer's name; if it is fenced, the first of ``writer.1``, ``writer.2`` … that is not."""
        names = itertools.chain([writer], (f"{writer}.{number}" for number in itertools.count(1)))
        return next(name for name in names if name not in self.fenced)

    def fenced_files(self, paths: Sequence[str]) -> list[str]:
        """Return the files of fenced writers."""
        return [path for path in paths if incarnation_of(path) in self.fenced]

    # --- checkpoints ------------------------------------------------------------------------------------

    def _write_checkpoint(self, writer: str) -> None:
        """Write down the state. The flush is done by now: an error here costs time at the next opening, no more."""
        path = self.checkpoint_path(self.length)
        try:
            self.disk.put_if_absent(path, self.to_bytes(), self._temporary(writer, self.length))
            for length in sorted(self._numbers(path.parent))[:-CHECKPOINTS_KEPT]:
                self.disk.remove(self.checkpoint_path(length))
        except (OSError, SinkError) as error:
            log.warning("%s could not be written: %s; the next start reads more entries", path, error)

    def _begin_at_checkpoint(self) -> None:
        """Take the state from the latest checkpoint that can be read; from none, if none can."""
        for length in sorted(self._numbers(self.layout.checkpoints), reverse=True):
            path = self.checkpoint_path(length)
            try:
                made = DirectoryState()
                made.restore(self.disk.read(path))
                if made.length != length or not length:
                    raise ValueError(f"it holds the state after {made.length} entries")
            except FileNotFoundError:  # a writer has removed it meanwhile: there are newer ones
                continue
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in PASSES:
                    raise self._unreadable(error, path) from None
                log.warning("%s is not a checkpoint: %s; reading the entries instead", path, error)
                continue
            if not self.disk.exists(self.path(length - 1)):
                raise SinkError(
                    f"{self.path(length - 1)} is missing, although {path} covers it: rows would be written twice",
                    cure=f"restore {self.folder} from a backup; without it the directory's history is unknown",
                )
            vars(self).update(vars(made))
            self._base = length
            return


class DirectoryWriter:
    """What appends to a directory's log: a sink's task, or a compaction."""

    def __init__(self, directory: Path, writer: str, disk: Storage | None, clock: Clock) -> None:
        self.directory = directory
        self.disk = disk or storage_of(directory)
        self.log = CommitLog(directory, self.disk)
        self._name = self._writer = writer  # this incarnation; the second has a number once it is fenced
        self.clock = clock  # for the entries' time stamps
        self._sequence = 0

    def catch_up(self) -> list[Entry]:
        """Read new entries, durably."""
        entries = self.log.refresh()
        self.log.sync()  # before anything is done because of them, an ack above all
        return entries

    def entry(self, kind: str = FLUSH, **fields: Any) -> Entry:
        """Return the next entry."""
        if kind in (FENCE, REBUILD):  # the others name files, in whose names the writer's name is already
            self._renew_if_fenced()
        topology, component, schema = self._owner()
        return Entry(
            self.log.length, self._writer, topology, schema, int(self.clock.wall() * 1000), component=component,
            kind=kind, **fields,
        )  # fmt: skip

    def _owner(self) -> tuple[str, str, tuple[str, ...]]:
        """Return the topology, the component and the columns of the next entry: the directory stays its sink's."""
        return self.log.topology or "", self.log.component or "", self.log.schema or ()

    def _renew_if_fenced(self) -> None:
        """Take another name if we were presumed dead: we may have been paused for longer than others wait."""
        self._writer = self.log.unfenced(self._name)

    def _new_name(self) -> str:
        """Return the name of a data file."""
        # A name is never given twice, not even after a flush that failed: whoever reads it in the log, or sweeps it,
        # means one content.
        self._sequence += 1
        return data_name(self._writer, self._sequence - 1)


def read_entries(directory: str | os.PathLike[str], disk: Storage | None = None) -> Sequence[Entry]:
    """Return all entries of a directory's log, in order; none without a log.

    Raises:
        SinkError: the log is damaged or has holes.
        ConfigError: it is neither a local path nor an object store that sinks can write to.
    """
    log = CommitLog(place(directory), disk, checkpoints=False)
    entries = log.refresh()
    log.check_complete()
    return entries


def logged_columns(directory: Path, disk: Storage | None = None) -> tuple[str, ...] | None:
    """Return the present columns of a directory in the words of its log; None without a log.

    Raises:
        SinkError: the log is damaged.
    """
    log = CommitLog(directory, disk)
    log.refresh()
    return log.schema
