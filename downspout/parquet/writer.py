"""The exactly-once writer: one flush, one commit point, whatever stops it.

A flush (see docs/decisions/0006):

1. read the log entries that are new, drop rows that are covered by now;
2. stage hidden files, fsync them and their folders;
3. create the next log entry exclusively. Another writer was first? Read its entry, drop what it covers, stage again,
   try the next. It was a fence, and for us? Take another name and stage again;
4. rename the files into sight. Only then may tuples be acked.

Stopped before 3, nothing happened: the staged files are hidden, and the rows come again. Stopped after 3, the rows are
committed: whoever opens the directory next rolls forward, renaming what an entry names and is still staged.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import SinkError
from downspout.parquet import hive
from downspout.parquet.coverage import Coverage
from downspout.parquet.disk import Disk
from downspout.parquet.encoding import encode
from downspout.parquet.entry import FLUSH, GENERATION, DataFile, Entry
from downspout.parquet.identity import Identities, Mask
from downspout.parquet.inputs import resolve
from downspout.parquet.layout import REPLACED_FOLDER, STAGING_FOLDER, data_name, temporary_name, up_to
from downspout.parquet.log import CommitLog, FencedError
from downspout.parquet.recovery import Recovery, move

__all__ = ["Flushed", "SinkWriter"]

logger = logging.getLogger("downspout.parquet")

Build = Callable[[Mask, Identities], pa.Table]


@dataclass(frozen=True)
class Flushed:
    """What a flush did.

    Attributes:
        rows: written.
        covered: dropped, because they were in the directory already.
        files: made.
        bytes: their size.
    """

    rows: int = 0
    covered: int = 0
    files: int = 0
    bytes: int = 0


class SinkWriter:
    """Writes to a directory that any number of writers share.

    Args:
        directory: made where it does not exist.
        topology: the topology's name.
        component: the sink's name in the topology. A directory belongs to one sink of one topology, all its tasks.
        columns: the columns as declared, partition columns included; the same for ever.
        inputs: the names of the sink's inputs that carry origins.
        input_names: what ``parquet.input_names`` says of them.
        writer: this incarnation: unique for each time a task starts.
        partition_by: columns that become folders.
        compression: codec of the files.
        generation: what the directory's number must be; one that is higher starts it anew. 0: whatever it is.
        disk: the file operations.
        clock: for the entries' time stamps.

    Raises (from ``open`` and ``flush``):
        SinkError: the directory cannot be written, is damaged, belongs to another sink or has other columns; or it
            cannot be told which of its rows are those of which input.

    Attributes:
        steps: of each input (see ``downspout/parquet/inputs.py``), as of the entries read so far.
    """

    def __init__(
        self,
        directory: Path,
        *,
        topology: str,
        component: str,
        columns: Sequence[str],
        writer: str,
        inputs: Sequence[str] = (),
        input_names: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        compression: str = "zstd",
        generation: int = 0,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.directory = directory
        self.disk = disk or Disk()
        self.log = CommitLog(directory, self.disk)
        self._topology = topology
        self._component = component
        self._partition_by = list(partition_by)
        self._schema = (*columns, *(f"/{name}" for name in partition_by))
        self._inputs = tuple(inputs)
        self._input_names = input_names or {}
        self.steps: Mapping[str, str] = {}
        self._name = self._writer = writer
        self._compression = compression
        self._wanted_generation = generation
        self._generation: int | None = None
        """what the directory was when we opened it, or what we have made of it"""
        self._clock = clock
        self._sequence = 0
        self._hidden: list[DataFile] = []
        """files of ours that are committed and not in sight: renaming them failed"""

    def open(self) -> None:
        """Read the log, check that the directory is ours, finish what a stopped writer had committed, and sweep."""
        try:
            self._make_directory()
            probe = self.directory / STAGING_FOLDER / temporary_name(self._writer, 0)
            self.disk.make_folder(probe.parent)
            self.disk.write(probe, b"")
            self.disk.remove(probe)
            self._catch_up()
            self.log.check_complete()  # before the data files: without an entry they are named by none
            self._begin_generation()
            recovery = Recovery(self.log, self._catch_up, self._entry, self._clock)
            recovery.settle()
            recovery.sweep()
        except OSError as error:
            raise self._cannot_write(error) from error

    def _make_directory(self) -> None:
        """Make the directory durable: else a power cut may take all of it.

        The folders above it may be there, and not durable: who made them was killed before it could sync them. So all
        are synced up to the top; but of those that were there before, some may not be ours to sync.
        """
        places = up_to(self.log.folder, self.directory)
        above = list(self.directory.absolute().parents)
        new = {place.parent for place in [*places, *above] if not place.exists()}
        self.disk.make_folder(self.log.folder)
        for place in [*places[1:], *above]:
            try:
                self.disk.sync(place)
            except OSError as error:
                if place in new or place in places or error.errno not in _NOT_OURS_TO_SYNC:
                    raise

    def _catch_up(self) -> list[Entry]:
        """Read new entries; they must be of our sink and have our columns."""
        entries = self.log.refresh()
        self.log.sync()
        if self.log.topology not in (None, self._topology):
            raise SinkError(
                f"{self.directory} belongs to topology {self.log.topology}, not to {self._topology}",
                cure="another parquet.directory",
            )
        if self.log.component not in (None, self._component):
            raise SinkError(
                f"{self.directory} belongs to {self.log.component} of topology {self.log.topology}, not to "
                f"{self._component}: rows of two sinks may have the same identities",
                cure="another parquet.directory: one for each sink; or the sink's old name",
            )
        if self._of_the_past():
            return entries
        if self.log.schema not in (None, self._schema):
            raise SinkError(
                f"{self.directory} has the columns {', '.join(self.log.schema or ())}; "
                f"this sink has {', '.join(self._schema)}",
                cure="another parquet.directory, or the old columns: one directory has one schema; "
                f"or parquet.generation={self.log.generation + 1}, to start it anew",
            )
        if entries or not self.steps:
            has_rows = len(self.log.coverage) > 0
            self.steps = resolve(self.directory, self._inputs, self._input_names, self.log.inputs, has_rows=has_rows)
        return entries

    def _of_the_past(self) -> bool:
        """Return whether what the directory holds is of a generation before ours.

        Raises:
            SinkError: we are the past: the directory was started anew without us, and nobody wants what we hold.
        """
        if self._generation is None:
            self._generation = self._wanted_generation or self.log.generation
        if self.log.generation > self._generation:
            raise SinkError(
                f"{self.directory} was started anew as generation {self.log.generation}; this sink is of generation "
                f"{self._generation}, and writes no more to it",
                cure=f"parquet.generation={self.log.generation}, or no such setting, and start again",
            )
        return self.log.generation < self._generation

    def _begin_generation(self) -> None:
        """Start the directory anew, if we are the first of our generation."""
        while self._of_the_past():
            if self.log.append(self._entry(GENERATION, generation=self._generation)) and self.log.length > 1:
                logger.warning(
                    "%s starts anew as generation %d, without a row: what it held is kept in %s for a while. It fills "
                    "up from where kafka.group and kafka.start begin",
                    self.directory, self._generation, self.directory / REPLACED_FOLDER,
                )  # fmt: skip
            self._catch_up()

    def flush(self, identities: Identities, build: Build) -> Flushed:
        """Write the rows that are not in the directory yet; when this returns, they are durable and visible.

        Args:
            identities: of the rows, in their order; may be of rows without origin.
            build: makes the table to write from the rows that a mask leaves, and the identities of all rows as they
                are in the directory. It is called again after a conflict.
        """
        try:
            return self._flush(identities, build)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _flush(self, identities: Identities, build: Build) -> Flushed:
        # Entries of our own among the new ones: the link was made, but an error hid that from us. They are committed.
        for entry in self._catch_up():
            if entry.writer == self._writer:
                self._hidden += entry.files
        self._reveal_hidden()
        while True:
            steps = self.steps
            rows = identities.under(steps)
            wanted = rows.not_in(self.log.coverage)
            if not wanted.any():
                return Flushed(covered=len(identities))
            self._renew_if_fenced()
            staged: list[DataFile] = []
            try:
                staged = self._stage(build(wanted, rows))
                while not self._append(staged, rows.coverage(wanted)):
                    self._catch_up()
                    # Two versions of a topology, with other inputs each, may start on an empty directory together
                    # and give their inputs other steps. Whose entry comes first decides; the other one looks again.
                    if self.steps != steps or not np.array_equal(rows.not_in(self.log.coverage), wanted):
                        break
                else:
                    self._hidden += staged
                    self._reveal_hidden()
                    size = sum(file.bytes for file in staged)
                    return Flushed(int(wanted.sum()), int((~wanted).sum()), len(staged), size)
            except FencedError:
                pass  # what we staged may be swept at any moment
            except OSError:
                if not self._is_committed(staged):
                    self._discard(staged)
                raise
            self._discard(staged)

    def _renew_if_fenced(self) -> None:
        """Take another name if somebody has taken us for dead: we may have been paused for longer than others wait."""
        self._writer = self.log.unfenced(self._name)

    def _raise_if_fenced(self, paths: Sequence[str]) -> None:
        """Raise a FencedError if files that are gone were swept."""
        self._catch_up()
        if self.log.fenced_files(paths):
            raise FencedError(self._writer)

    def _reveal_hidden(self) -> None:
        """Bring into sight what we committed; where that fails, the next flush or whoever opens next tries again."""
        self._reveal(self._hidden)
        self._hidden = []

    def _append(self, staged: Sequence[DataFile], coverage: Coverage) -> bool:
        for file in staged:
            # Swept, or deleted by somebody: an entry that names it would cover rows that nobody will ever see.
            if not self.disk.exists(path := self.directory / STAGING_FOLDER / file.path):
                self._raise_if_fenced([file.path])
                raise FileNotFoundError(errno.ENOENT, "it was deleted while it was waiting", str(path))
        return self.log.append(self._entry(files=tuple(staged), coverage=coverage, inputs=self.steps))

    def _entry(self, kind: str = FLUSH, **fields: Any) -> Entry:
        """Return the next entry."""
        if kind != FLUSH:
            self._renew_if_fenced()
        return Entry(
            self.log.length, self._writer, self._topology, self._schema, int(self._clock.wall() * 1000),
            component=self._component, kind=kind, **fields,
        )  # fmt: skip

    def _is_committed(self, staged: Sequence[DataFile]) -> bool:
        """Return whether the log names these files. In doubt yes: hidden files that stay harm nobody."""
        try:
            entry = Entry.from_bytes(self.disk.read(self.log.path(self.log.length)))
        except FileNotFoundError:
            # Not linked; or linked and taken into account, and the renaming failed.
            return self.log.length > 0 and self._last_is_ours(staged)
        except (OSError, ValueError):
            return True
        return entry.writer == self._writer

    def _last_is_ours(self, staged: Sequence[DataFile]) -> bool:
        try:
            entry = Entry.from_bytes(self.disk.read(self.log.path(self.log.length - 1)))
        except (OSError, ValueError):
            return True
        return entry.files == tuple(staged)

    def _stage(self, table: pa.Table) -> list[DataFile]:
        """Write the table's files where no reader looks, and force them to the disk."""
        staging = self.directory / STAGING_FOLDER
        name = data_name(self._writer, self._sequence)
        self._sequence += 1
        staged: list[DataFile] = []
        folders: set[Path] = set()
        try:
            for folder, part in hive.split(table, self._partition_by):
                content = encode([part], part.schema, self._compression)
                target = f"{folder}/{name}" if folder else name
                path = staging / target
                self.disk.make_folder(path.parent)
                staged.append(DataFile(target, part.num_rows, len(content)))
                self.disk.write(path, content)
                self.disk.sync(path)
                folders.update(up_to(path.parent, self.directory))
            for place in sorted(folders):
                self.disk.sync(place)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._raise_if_fenced([name])
            self._discard(staged)
            raise
        return staged

    def _discard(self, staged: Sequence[DataFile]) -> None:
        for file in staged:
            self.disk.remove(self.directory / STAGING_FOLDER / file.path)

    def _reveal(self, files: Sequence[DataFile]) -> None:
        """Rename staged files into sight; whoever does it second finds nothing left to do."""
        for path in move(self.disk, self.directory, [file.path for file in files], STAGING_FOLDER, Path()):
            if any(self.disk.exists(self.directory / place / path) for place in (Path(), REPLACED_FOLDER)):
                continue
            log = CommitLog(self.directory, self.disk)
            log.refresh()
            if path in log.files:  # else we were paused until it was compacted away, and that deleted for its age
                raise SinkError(
                    f"{self.directory / STAGING_FOLDER / path} was deleted, and the commit log names it: its rows are "
                    "missing, and would not be written again",
                    cure=f"restore it from a backup; downspout audit {self.directory} names the records",
                )

    def _cannot_write(self, error: OSError) -> SinkError:
        place = error.filename or self.directory
        cure = "free the disk or correct the permissions"
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            cure = "a file is in the way of a directory: move it away, or use another parquet.directory"
        elif error.errno == errno.ENAMETOOLONG:
            cure = "a shorter parquet.directory, or shorter names in it (writers are named by topology and component)"
        return SinkError(
            f"{self.directory} cannot be written: {error.strerror or error} ({place}); nothing of this flush was acked",
            cure=f"{cure}; then start again: the rows come again",
        )


_NOT_OURS_TO_SYNC = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)
