"""The exactly-once writer: one flush, one commit point, whatever stops it.

A flush (see docs/decisions/0006):

1. read the log entries that are new, drop rows that are covered by now;
2. stage hidden files, fsync them and their folders;
3. create the next log entry exclusively. Another writer was first? Read its entry, drop what it covers, stage again,
   try the next;
4. rename the files into sight. Only then may tuples be acked.

Stopped before 3, nothing happened: the staged files are hidden, and the rows come again. Stopped after 3, the rows are
committed: whoever opens the directory next rolls forward, renaming what an entry names and is still staged.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import SinkError
from downspout.parquet import hive
from downspout.parquet.coverage import Coverage
from downspout.parquet.disk import Disk
from downspout.parquet.identity import Identities, Mask
from downspout.parquet.inputs import resolve
from downspout.parquet.log import STAGING_FOLDER, CommitLog, DataFile, Entry

__all__ = ["Flushed", "SinkWriter"]

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
        self._writer = writer
        self._compression = compression
        self._clock = clock
        self._sequence = 0
        self._hidden: list[DataFile] = []
        """files of ours that are committed and not in sight: renaming them failed"""

    def open(self) -> None:
        """Read the log, check that the directory is ours, and finish what a stopped writer had committed."""
        try:
            self._make_directory()
            probe = self.log.folder / f".{self._writer}.probe"
            self.disk.write(probe, b"")
            self.disk.remove(probe)
            entries = self._catch_up()
            entries += self._catch_up_if_files_are_unknown(entries)
            self.log.check_complete()
            self._roll_forward(entries)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _make_directory(self) -> None:
        """Make the directory durable up to the folder that was there before: else a power cut may take all of it."""
        places = _up_to(self.log.folder, self.directory) + list(self.directory.absolute().parents)
        new = [place for place in places if not place.exists()]
        self.disk.make_folder(self.log.folder)
        for place in new:
            self.disk.sync(place.parent)

    def _catch_up(self) -> list[Entry]:
        """Read new entries; they must be of our sink and have our columns."""
        entries = self.log.refresh()
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
        if self.log.schema not in (None, self._schema):
            raise SinkError(
                f"{self.directory} has the columns {', '.join(self.log.schema or ())}; "
                f"this sink has {', '.join(self._schema)}",
                cure="another parquet.directory, or the old columns: one directory has one schema",
            )
        if entries or not self.steps:
            has_rows = len(self.log.coverage) > 0
            self.steps = resolve(self.directory, self._inputs, self._input_names, self.log.inputs, has_rows=has_rows)
        return entries

    def _catch_up_if_files_are_unknown(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return what a second look at the log finds, where there are data files that no entry names.

        Files that the second look does not explain are refused: the log, or its end, was deleted, and their rows would
        be written twice. Files of others (no name of ours) are refused only where there is no log at all.

        The race: another writer's flush, between our look at the log and our look at the files. Its entry was
        there before its files came into sight, so for files that we saw, a second look finds the entry.
        """
        visible = {
            path.relative_to(self.directory).as_posix()
            for path in self.disk.files_below(self.directory)
            if _is_data(path, self.directory) and (not entries or _OURS.fullmatch(path.name))
        }
        if not (unknown := visible - _names(entries)):
            return []
        more = self._catch_up()
        if not entries and not more:
            raise SinkError(
                f"{self.directory} holds data files ({min(unknown)}) but no commit log: what was written is not known",
                cure=f"restore {self.log.folder} from a backup, or use another parquet.directory",
            )
        unknown = {path for path in unknown - _names(more) if _OURS.fullmatch(path.rpartition("/")[2])}
        if unknown:
            raise SinkError(
                f"{self.directory / min(unknown)} is named by no entry of the commit log ({len(unknown)} such): "
                "were the log's last entries deleted, its rows would be written twice",
                cure=f"restore {self.log.folder} from a backup; or move the file away if its rows are not wanted",
            )
        return more

    def _roll_forward(self, entries: Sequence[Entry]) -> None:
        """Bring into sight what is committed and still staged. Looks at history only if anything is staged at all."""
        staged = {
            path.relative_to(self.directory / STAGING_FOLDER).as_posix()
            for path in self.disk.files_below(self.directory / STAGING_FOLDER)
        }
        for entry in entries if staged else ():
            self._reveal([file for file in entry.files if file.path in staged])

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
            staged = self._stage(build(wanted, rows))
            try:
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
            except OSError:
                if not self._is_committed(staged):
                    self._discard(staged)
                raise
            self._discard(staged)

    def _reveal_hidden(self) -> None:
        """Bring into sight what we committed; where that fails, the next flush or whoever opens next tries again."""
        self._reveal(self._hidden)
        self._hidden = []

    def _append(self, staged: Sequence[DataFile], coverage: Coverage) -> bool:
        return self.log.append(
            Entry(
                self.log.length, self._writer, self._topology, self._schema,
                int(self._clock.wall() * 1000), tuple(staged), coverage, self._component, self.steps,
            )
        )  # fmt: skip

    def _is_committed(self, staged: Sequence[DataFile]) -> bool:
        """Return whether the log names these files. In doubt yes: hidden files that stay harm nobody."""
        try:
            entry = Entry.from_bytes(self.log.path(self.log.length).read_bytes())
        except FileNotFoundError:
            # Not linked; or linked and taken into account, and the renaming failed.
            return self.log.length > 0 and self._last_is_ours(staged)
        except (OSError, ValueError):
            return True
        return entry.writer == self._writer

    def _last_is_ours(self, staged: Sequence[DataFile]) -> bool:
        try:
            entry = Entry.from_bytes(self.log.path(self.log.length - 1).read_bytes())
        except (OSError, ValueError):
            return True
        return entry.files == tuple(staged)

    def _stage(self, table: pa.Table) -> list[DataFile]:
        """Write the table's files where no reader looks, and force them to the disk."""
        staging = self.directory / STAGING_FOLDER
        name = f"part-{self._writer}-{self._sequence}.parquet"
        self._sequence += 1
        staged: list[DataFile] = []
        folders: set[Path] = set()
        try:
            for folder, part in hive.split(table, self._partition_by):
                content = _encode(part, self._compression)
                target = f"{folder}/{name}" if folder else name
                path = staging / target
                self.disk.make_folder(path.parent)
                staged.append(DataFile(target, part.num_rows, len(content)))
                self.disk.write(path, content)
                self.disk.sync(path)
                folders.update(_up_to(path.parent, self.directory))
            for place in sorted(folders):
                self.disk.sync(place)
        except OSError:
            self._discard(staged)
            raise
        return staged

    def _discard(self, staged: Sequence[DataFile]) -> None:
        for file in staged:
            self.disk.remove(self.directory / STAGING_FOLDER / file.path)

    def _reveal(self, files: Sequence[DataFile]) -> None:
        """Rename staged files into sight; whoever does it second finds nothing left to do."""
        folders: set[Path] = set()
        for file in files:
            target = self.directory / file.path
            self.disk.make_folder(target.parent)
            try:
                self.disk.rename(self.directory / STAGING_FOLDER / file.path, target)
            except FileNotFoundError:
                continue
            folders.update(_up_to(target.parent, self.directory))
        for place in sorted(folders):
            self.disk.sync(place)

    def _cannot_write(self, error: OSError) -> SinkError:
        place = error.filename or self.directory
        return SinkError(
            f"{self.directory} cannot be written: {error.strerror or error} ({place}); nothing of this flush was acked",
            cure="free the disk or correct the permissions, and start again: the rows come again",
        )


_OURS = re.compile(r"part-.+-\d+\.parquet")
"""Names that writers give. Spark's end with a codec: ``part-00000-…-c000.snappy.parquet``."""


def _names(entries: Sequence[Entry]) -> set[str]:
    return {file.path for entry in entries for file in entry.files}


def _is_data(path: Path, top: Path) -> bool:
    """Return whether readers of the directory see this file."""
    return path.suffix == ".parquet" and not any(part[0] in "_." for part in path.relative_to(top).parts)


def _encode(table: pa.Table, compression: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression=compression, coerce_timestamps="us")
    return buffer.getvalue()


def _up_to(folder: Path, top: Path) -> list[Path]:
    """Return a folder and those above it, up to and with ``top``."""
    places = [folder]
    while places[-1] != top:
        places.append(places[-1].parent)
    return places
