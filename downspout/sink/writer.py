"""The exactly-once writer: a flush has one commit point, wherever it is stopped.

A flush (docs/decisions/0006):

1. reads new log entries and drops rows that they cover;
2. stages hidden files, and syncs them and their folders;
3. creates the next log entry exclusively. If another writer was first, read its entry, drop the rows it covers, stage
   again and try the next number. If that entry is a fence for this writer, take another name and stage again;
4. renames the files to their final names. Only then may tuples be acked.

Stopped before 3, nothing happened: the staged files are hidden, and the rows are replayed. Stopped after 3, the rows
are committed: whoever opens the directory next rolls forward by renaming staged files that an entry names.

**In two halves, for Spark.** Many tasks write parts of one batch, some more than once, and only the driver knows which
attempt counts. So a task's :class:`StagingWriter` stops after the staged file, and the driver's :class:`BatchWriter`
appends one entry for the whole batch. The batch's name is the entry's writer: if the driver must commit the batch again
after a crash between this commit and Spark's, it finds the entry and appends none.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import SinkError
from downspout.sink.column_types import encode
from downspout.sink.identity import Identities, Mask, resolve
from downspout.sink.layout import discard, move, probe, stage
from downspout.sink.log import OPEN_FILES_CURE, TOO_MANY_OPEN, CommitLog, DirectoryWriter, FencedError
from downspout.sink.log_entry import REBUILD, Coverage, DataFile, Entry, Partition
from downspout.sink.notes import Run, note_run
from downspout.sink.recovery import Recovery, refuse_foreign, refuse_other_topics
from downspout.sink.schema import by_hive_folder
from downspout.sink.storage import Storage, hash_of, refused

logger = logging.getLogger("downspout.sink")

Build = Callable[[Mask, Identities], pa.Table]


@dataclass(frozen=True)
class Times:
    """The times of the rows of a flush, for a sink with a window; see ``aggregation.py``."""

    latest: Mapping[Partition, int]  # by partition the greatest one
    late: Callable[[int | None], Mask]  # which rows have no window that is open yet at a watermark
    aside: bool = False  # whether those are left out


@dataclass(frozen=True)
class Flushed:
    """The result of a flush."""

    rows: int = 0  # written
    covered: int = 0  # dropped, because they were in the directory already
    files: int = 0  # made
    bytes: int = 0  # their size
    late: int = 0  # rows that came when all their windows were final
    aside: Mask | None = None  # which those are, where they were left out


class SinkWriter(DirectoryWriter):
    """Writes to a directory that any number of writers share.

    Raises (from ``open`` and ``flush``):
        StoreAwayError: the store does not answer, or is full. Another flush of the same rows may succeed.
        SinkError: the directory cannot be written, is damaged, belongs to another sink or has other columns; or it is
            unknown which of its rows came from which input.
    """

    def __init__(
        self,
        directory: Path,  # made where it does not exist
        *,
        topology: str,  # the topology's name
        # the sink's name in the topology. A directory belongs to one sink of one topology, all its tasks.
        component: str,
        columns: Sequence[str],  # the columns as declared, partition columns included
        writer: str,  # this incarnation: unique for each time a task starts
        inputs: Sequence[str] = (),  # the names of the sink's inputs that carry origins
        input_names: Mapping[str, str] | None = None,  # what ``parquet.input_names`` says of them
        partition_by: Sequence[str] = (),  # columns that become folders
        compression: str = "zstd",  # codec of the files
        rebuild: int = 0,  # the number of the rebuild that the directory must be at; a higher one rebuilds it. 0: any.
        lateness_s: float = 0.0,  # how far behind a later row of its partition a row may be, before it is late
        idle_s: float = 60.0,  # for how long a partition without rows holds windows open
        run: Run | None = None,  # the settings of the run, for the directory to remember; None: they are not known
        disk: Storage | None = None,  # the file operations
        clock: Clock = SYSTEM_CLOCK,  # for the entries' time stamps
    ) -> None:
        super().__init__(directory, writer, disk, clock)
        self._run = run
        self._topology = topology
        self._component = component
        self._partition_by = list(partition_by)
        self._schema = (*columns, *(f"/{name}" for name in partition_by))
        self._inputs = tuple(inputs)
        self._input_names = input_names or {}
        # of each input (see ``downspout/sink/identity.py``), as of the entries read so far
        self.steps: Mapping[str, str] = {}
        self._compression = compression
        self._wanted_rebuild = rebuild
        self._lateness_us, self._idle_ms = int(lateness_s * 1_000_000), int(idle_s * 1_000)
        self._rebuild: int | None = None  # what the directory was when we opened it, or what we have made of it
        self._hidden: list[DataFile] = []  # files of ours that are committed and not in sight: renaming them failed

    def open(self) -> None:
        """Read the log, check that the directory is ours, finish the commits of stopped writers, and sweep."""
        try:
            refuse_foreign(self.log)
            self._make_directory()
            # See that a file can be written and brought into sight, before anything is committed.
            probe(self.disk, self.log.layout, self._writer)
            self.catch_up()
            self.log.check_complete()  # before the data files: without an entry they are named by none
            self._begin_rebuild()
            recovery = Recovery(self)
            recovery.repair()
            recovery.sweep()  # after it: of the staged files, those that are committed are in sight by now
            if self._run is not None:
                note_run(self.directory, self._run, self.disk, self._writer)
        except OSError as error:
            raise self._cannot_write(error) from error

    def check(self) -> None:
        """Read the log, and raise the errors that ``open`` would raise for its content; change nothing."""
        refuse_foreign(self.log)
        self._refuse_others(self.log.refresh())
        self.log.check_complete()

    def _make_directory(self) -> None:
        """Make the directory durable: else a power cut may take all of it."""
        if self.disk.is_remote:
            return
        layout = self.log.layout
        ours, above = [layout.home, self.directory], list(self.directory.absolute().parents)
        new = {place.parent for place in [*ours, *above] if not place.exists()}
        # First, and then the look at what is in it: on NFS, a folder that was just made is not one of a stale listing.
        self.disk.make_folder(layout.log)
        # The folders above it may be there, and not durable: who made them was killed before it could sync them. So all
        # are synced up to the top; but of those that were there before, some may not be ours to sync.
        for place in dict.fromkeys([*ours, *above]):
            try:
                self.disk.sync(place)
            except OSError as error:
                if place in new or place in ours or error.errno not in _NOT_OURS_TO_SYNC:
                    raise

    def catch_up(self) -> list[Entry]:
        """Read new entries, durably; raise if they make the directory another's."""
        entries = super().catch_up()
        # Entries of our own among the new ones: the link was made, and an error hid that from us (a full disk at the
        # sync of the folder, say); or the request arrived after we had given up, which may be in the middle of a later
        # flush. They are committed, so their files must come into sight, though nothing was acked.
        self._hidden += [file for entry in entries if entry.writer == self._writer for file in entry.files]
        self._refuse_others(entries)
        return entries

    def _refuse_others(self, entries: Sequence[Entry]) -> None:
        """Raise if new entries are not of our sink and our topics, or do not have our columns."""
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
            return
        if why := self.log.refusals(self._schema):
            raise SinkError(
                f"{self.directory} cannot take this sink's columns: {'; '.join(why)}. It has the columns "
                f"{', '.join(self.log.schema or ())}; this sink has {', '.join(self._schema)}",
                cure="only add columns without !, or widen columns; or another parquet.directory; or "
                f"parquet.rebuild={self.log.rebuild + 1}, to rebuild it",
            )
        # Not only at the opening: if two sinks start on an empty directory together, both find it empty, and the first
        # entry decides. After our first row, this check can never fail again.
        refuse_other_topics(self.log, self._run)
        if entries or not self.steps:
            has_rows = len(self.log.coverage) > 0
            self.steps = resolve(self.directory, self._inputs, self._input_names, self.log.inputs, has_rows=has_rows)

    def _of_the_past(self) -> bool:
        """Return whether the directory's content is older than our rebuild."""
        if self._rebuild is None:
            self._rebuild = self._wanted_rebuild or self.log.rebuild
        if self.log.rebuild > self._rebuild:
            raise SinkError(
                f"{self.directory} was rebuilt (rebuild {self.log.rebuild}); this sink writes for rebuild "
                f"{self._rebuild}, so it has stopped writing",
                cure=f"parquet.rebuild={self.log.rebuild}, or no such setting, and start again",
            )
        return self.log.rebuild < self._rebuild

    def _begin_rebuild(self) -> None:
        """Rebuild the directory, if no other task has done so yet."""
        while self._of_the_past():
            if self.log.append(self.entry(REBUILD, rebuild=self._rebuild)) and self.log.length > 1:
                logger.warning(
                    "%s is rebuilt (rebuild %d) and starts empty. The old files are kept in %s for a while. The new "
                    "rows start where kafka.group and kafka.start say",
                    self.directory, self._rebuild, self.log.layout.replaced,
                )  # fmt: skip
            self.catch_up()

    @property
    def times_of(self) -> str:
        """The name under which the log keeps the times of our rows."""
        return self._writer

    def flush(self, identities: Identities, build: Build, times: Times | None = None) -> Flushed:
        """Write the rows that are not in the directory yet; when this returns, they are durable and visible.

        Args:
            identities: of the rows, in their order; may be of rows without origin.
            build: makes the table to write, from a mask that selects rows and the identities of all rows in the
                directory's form. It is called again after a conflict.
            times: of the rows, if they have windows.
        """
        try:
            return self._flush(identities, build, times)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _flush(self, identities: Identities, build: Build, times: Times | None) -> Flushed:
        self.catch_up()
        while True:
            self._reveal_hidden()
            steps, watermark = self.steps, self.log.watermark.value
            rows = identities.under(steps)
            wanted, flushed = self._sorted_out(rows, times)
            if not wanted.any():
                # Acked without a file. That is safe because the entries that cover the rows are durable: catch_up has
                # synced them, even if it was another writer's that had not done so yet.
                return flushed
            self._renew_if_fenced()  # before staging: the writer's name is in the names of the files
            staged: list[DataFile] = []
            try:
                # Killed during this: hidden files that no entry names, for a sweeper. The rows come again.
                staged = self._stage(build(wanted, rows))
                # The commit point. Killed before it, nothing happened; killed after it, the rows are in the directory:
                # their replays are dropped as covered, and whoever opens the directory brings the files into sight.
                while not self._append(staged, rows.coverage(wanted), times.latest if times else {}):
                    # Another writer took the number. What it wrote may be our rows: two tasks can hold the same records
                    # after a rebalance. If it was other rows, what is staged still fits, and we try the next number.
                    self.catch_up()
                    # Two versions of a topology, with other inputs each, may start on an empty directory together
                    # and give their inputs other steps. Whose entry comes first decides; the other one looks again.
                    # And rows that were in time may be late by now.
                    if (self.steps, self.log.watermark.value) != (steps, watermark):
                        break
                    if not np.array_equal(self._sorted_out(rows, times)[0], wanted):
                        break
                else:
                    # Noted first: if the renaming fails, the next flush knows which of its files are committed.
                    self._hidden += staged
                    self._reveal_hidden()
                    size = sum(file.bytes for file in staged)
                    return replace(flushed, rows=int(wanted.sum()), files=len(staged), bytes=size)
            except FencedError:
                pass  # what we staged may be swept at any moment: give it up, and stage again under another name
            except (OSError, SinkError):
                # An error says nothing about whether the entry is there: the link may have been made and its answer
                # lost. Deleting the files of a committed entry would lose their rows for ever. And a request may still
                # be on its way: there a sweeper deletes them, after its fence has taken the number of such an entry.
                if not self.disk.is_remote and not self._is_committed(staged):
                    self._discard(staged)
                raise
            self._discard(staged)

    def _sorted_out(self, rows: Identities, times: Times | None, known: Mask | None = None) -> tuple[Mask, Flushed]:
        """Return which rows to write, and what to report about the others."""
        wanted = rows.not_in(self.log.coverage)
        if known is not None:
            wanted &= known
        covered = int((~wanted).sum())
        late = wanted & times.late(self.log.watermark.value) if times else np.zeros(len(wanted), dtype=bool)
        flushed = Flushed(covered=covered, late=int(late.sum()))
        if times is None or not times.aside or not flushed.late:
            return wanted, flushed
        return wanted & ~late, replace(flushed, aside=late)

    def _raise_if_fenced(self, paths: Sequence[str]) -> None:
        """Raise a FencedError if files that are gone were swept."""
        self.catch_up()
        if self.log.fenced_files(paths):
            raise FencedError(self._writer)

    def _reveal_hidden(self) -> None:
        """Publish our committed files; if that fails, the next flush or the next to open the directory tries again."""
        self._reveal(self._hidden)
        self._hidden = []

    def _append(self, staged: Sequence[DataFile], coverage: Coverage, latest: Mapping[Partition, int]) -> bool:
        for file in staged:
            # Swept, or deleted by somebody: an entry that names it would cover rows that nobody will ever see.
            if not self.disk.exists(path := self.log.layout.staged(file.path)):
                self._raise_if_fenced([file.path])
                raise FileNotFoundError(errno.ENOENT, "it was deleted while it was waiting", str(path))
        times = self.log.watermark.next(
            self.times_of, latest, now_ms=int(self.clock.wall() * 1000), lateness_us=self._lateness_us,
            idle_ms=self._idle_ms,
        )  # fmt: skip
        return self.log.append(self.entry(files=tuple(staged), coverage=coverage, inputs=self.steps, times=times))

    def _owner(self) -> tuple[str, str, tuple[str, ...]]:
        return self._topology, self._component, self._schema

    def _is_committed(self, staged: Sequence[DataFile]) -> bool:
        """Return whether the log names these files. If in doubt, True: leftover hidden files are harmless."""
        if any(file in self._hidden for file in staged):
            return True  # and others may have appended since
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
        """Write the table's files to the staging folder, and force them to the disk."""
        name = self._new_name()
        staged: list[DataFile] = []

        def files() -> Iterator[tuple[str, bytes]]:
            for folder, part in by_hive_folder(table, self._partition_by):
                content = encode([part], part.schema, self._compression)
                path = f"{folder}/{name}" if folder else name
                staged.append(DataFile(path, part.num_rows, len(content), hash_of(content)))
                yield path, content

        try:
            stage(self.disk, self.log.layout, files())
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._raise_if_fenced([name])
            self._discard(staged)
            raise
        return staged

    def _discard(self, staged: Sequence[DataFile]) -> None:
        discard(self.disk, self.log.layout, (file.path for file in staged))

    def _reveal(self, files: Sequence[DataFile]) -> None:
        """Rename staged files to their final names; a second process finds none left to rename."""
        layout = self.log.layout
        for path in move(self.disk, layout, [file.path for file in files], layout.staging, self.directory):
            if any(layout.holds(self.disk, place, path) for place in layout.places[1:]):
                continue
            log = CommitLog(self.directory, self.disk)
            log.refresh()
            if path in log.files:  # else we were paused until it was compacted away, and that deleted for its age
                raise SinkError(
                    f"{layout.staged(path)} was deleted, although the commit log names it: its rows are missing, and "
                    "would not be written again",
                    cure=f"restore it from a backup; downspout audit {self.directory} names the records",
                )

    def _cannot_write(self, error: OSError) -> SinkError:
        place = error.filename or self.directory
        cure = (
            "correct the permissions, the credentials or parquet.storage_options"
            if self.disk.is_remote
            else ("free the disk or correct the permissions")
        )
        if error.errno in TOO_MANY_OPEN:
            cure = OPEN_FILES_CURE
        elif error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            cure = "a file is in the way of a directory: move it away, or use another parquet.directory"
        elif error.errno == errno.ENAMETOOLONG:
            cure = "a shorter parquet.directory, or shorter names in it (writers are named by topology and component)"
        return refused(
            error,
            self.disk.named(self.directory),
            f"{self.directory} cannot be written: {error.strerror or error} ({place}); no row of this flush was acked",
            cure=f"{cure}; then start again: the rows come again",
        )


_NOT_OURS_TO_SYNC = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)


@dataclass(frozen=True)
class Staged:
    """Staged files that wait for their entry."""

    files: tuple[DataFile, ...]  # below the staging folder
    coverage: Coverage  # the rows that are in them
    steps: dict[str, str]  # of the sink's inputs, as the coverage was made
    covered: int = 0  # rows that were left out, because they are in the directory already
    latest: Mapping[Partition, int] = field(default_factory=dict)  # the greatest times of the rows, by partition
    watermark: int | None = None  # by which late rows were told


class OutdatedError(Exception):
    """Staged files no longer fit the directory: another writer has changed it. Stage them again."""


class StagingWriter(SinkWriter):
    """Stages the rows of a flush; when ``flush`` returns, the files are durable but hidden."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.staged: list[Staged] = []  # what was staged so far
        self._own = Coverage()

    def open(self) -> None:
        """Read the log. The committer has made and checked the directory."""
        try:
            self.catch_up()
        except OSError as error:
            raise self._cannot_write(error) from error

    def _flush(self, identities: Identities, build: Build, times: Times | None) -> Flushed:
        self.catch_up()
        rows = identities.under(self.steps)
        wanted, flushed = self._sorted_out(rows, times, rows.not_in(self._own))
        if not wanted.any():
            self.staged.append(Staged((), Coverage(), dict(self.steps), flushed.covered))
            return flushed
        files, coverage = self._stage_again_if_swept(build(wanted, rows)), rows.coverage(wanted)
        self._own.update(coverage)
        latest = times.latest if times else {}
        self.staged.append(
            Staged(tuple(files), coverage, dict(self.steps), flushed.covered, latest, self.log.watermark.value)
        )
        return replace(flushed, rows=int(wanted.sum()), files=len(files), bytes=sum(file.bytes for file in files))

    def _stage_again_if_swept(self, table: pa.Table) -> list[DataFile]:
        while True:
            self._renew_if_fenced()
            try:
                return self._stage(table)
            except FencedError:
                continue


class BatchWriter(SinkWriter):
    """Commits the files that tasks have staged, one entry per batch."""

    times_of = ""  # batches are committed whole and one after the other: to the watermark they are one writer

    def commit(self, batch: str, parts: Sequence[Staged]) -> Flushed:
        """Publish the staged files of a batch, all at once; if the log has the batch already, discard them.

        Args:
            batch: the batch's name, the same whenever it is computed, and of no other. The log remembers the latest
                thousand; rows with origins are known by these in any case.
            parts: the staged files of its tasks; one attempt per task.

        Raises:
            SinkError: the directory cannot be written, a file is not there, or two tasks have made rows with one
                identity.
        """
        files = [file for part in parts for file in part.files]
        covered = sum(part.covered for part in parts)
        try:
            self._writer = batch
            while True:
                self.catch_up()
                if batch in self.log.writers:
                    # By an earlier computation of it, which had other files; or by an earlier try for these, whose end
                    # we have not seen.
                    self._discard([file for file in files if not self._is_known(file)])
                    files = [file for file in files if file.path in self.log.files]
                    break
                if not files:
                    return Flushed(covered=covered)
                if self.log.fenced_files([file.path for file in files]):
                    raise FencedError(batch)
                self._check_that_all_are_here(files)
                coverage = self._joined(parts, files)
                if self._append(files, coverage, _latest(parts)):
                    break
            self._reveal(files)
        except FencedError:
            self._discard(files)
            raise OutdatedError from None
        except OSError as error:
            raise self._cannot_write(error) from error
        return Flushed(sum(file.rows for file in files), covered, len(files), sum(file.bytes for file in files))

    def _is_known(self, file: DataFile) -> bool:
        return file.path in self.log.files or file.path in self.log.removed

    def discard(self, parts: Sequence[Staged]) -> None:
        """Delete staged files that will not be committed."""
        self._discard([file for part in parts for file in part.files])

    def _check_that_all_are_here(self, files: Sequence[DataFile]) -> None:
        """Check that each file exists: an entry with a missing file would cover rows that are lost."""
        for file in files:
            if not self.disk.exists(path := self.log.layout.staged(file.path)):
                self._discard(files)
                raise SinkError(
                    f"{path} was written by a task, but is not here: tasks see another {self.directory} than the "
                    "driver",
                    cure="a directory that all machines share, under the same path; none of this batch is visible",
                )

    def _joined(self, parts: Sequence[Staged], files: Sequence[DataFile]) -> Coverage:
        """Return the joint coverage of all parts."""
        joined = Coverage()
        for part in parts:
            outdated = part.steps != self.steps or part.watermark != self.log.watermark.value
            if part.coverage.intersects(self.log.coverage) or (part.files and outdated):
                self._discard(files)
                raise OutdatedError
            if part.coverage.intersects(joined):
                self._discard(files)
                raise SinkError(
                    f"{self.directory}: two tasks of one batch made rows with the same identity",
                    cure="give each row its own, with origin.child(component, index), in the bolt that makes them",
                )
            joined.update(part.coverage)
        return joined


def _latest(parts: Sequence[Staged]) -> dict[Partition, int]:
    """Return the latest times over all parts."""
    found: dict[Partition, int] = {}
    for part in parts:
        for place, time in part.latest.items():
            found[place] = max(time, found.get(place, time))
    return found
