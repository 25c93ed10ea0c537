"""Compaction: many small files become few large ones, and nobody who reads through the log can tell.

A compactor is one more writer. It reads small files that count, writes their rows to a staged file of its own, and
appends a ``compact`` entry: *this file took the place of those*. The entry is the commit point, as a flush's is. Before
it nothing has happened; after it, whoever opens the directory can finish: the new file comes into sight first, then the
old ones go to the folder ``replaced/``, where they stay for a while.

Who can come in between, and what then:

* *A flush* takes the number. It changes nothing that we have read: we read it, and try the next number.
* *Another compaction* has replaced one of our files, or *a rebuild* all of them: by the log they count no more.
  What we have staged is given up.
* *A fence*: somebody has taken us for dead. What we have staged may be swept at any moment; it is given up, and made
  again under another name.
* *A stop* leaves a staged file that no entry names, for the sweeper, or an entry, which is rolled forward.

Which rows are in the directory (the coverage) is not changed by any of this, so replays stay covered.
"""

from __future__ import annotations

import errno
import logging
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import SinkError
from downspout.formatting import counted, size
from downspout.sink.compaction.merge import Source, alike, check, merge
from downspout.sink.compaction.packing import TARGET_BYTES, plan
from downspout.sink.log.commit_log import CommitLog, FencedError
from downspout.sink.log.entry import COMPACT, DataFile, Entry
from downspout.sink.ownership import lost_log
from downspout.sink.readers.snapshot import SWEPT, remove_snapshot
from downspout.sink.recovery import SWEEP_AFTER_S, Recovery
from downspout.sink.storage.data_files import below, discard, make_folders, rename, stage
from downspout.sink.storage.hashing import hash_of
from downspout.sink.storage.layout import data_name, logged
from downspout.sink.storage.places import storage_of
from downspout.sink.storage.port import Storage, refused

__all__ = ["KEEP_S", "TARGET_BYTES", "Compacted", "Compactor"]

logger = logging.getLogger("downspout.sink")

KEEP_S = 7 * 86_400.0
"""Seconds. A reader that holds a list of files, and a streaming query that stood still over a weekend, find them."""


@dataclass
class Compacted:
    """What a compaction did.

    Attributes:
        files_before, bytes_before: what counted at the beginning.
        files_after, bytes_after: what counts at the end; other writers' flushes are among them.
        merged: files that were replaced.
        made: files that took their place.
        gave_way: merged files that were given up, because somebody else was faster.
        swept: staged files of stopped writers that were deleted.
        deleted: replaced files that were deleted, being old enough.
        snapshots: readers' snapshots that were deleted, being old enough.
        forgotten: files that count no more, because they were gone.
    """

    files_before: int = 0
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    merged: int = 0
    made: int = 0
    gave_way: int = 0
    swept: int = 0
    deleted: int = 0
    snapshots: int = 0
    forgotten: list[str] = field(default_factory=list)


class Compactor:
    """Compacts a sink's directory, while others write to it and read from it.

    Args:
        directory: what ``parquet.directory`` says.
        target_bytes: no file is made larger than that, and none that is as large is touched. Memory: about four times
            as much.
        keep_s: how long replaced files are kept, in seconds.
        sweep_after_s: from which age on staged files are those of a dead writer, in seconds.
        forget_missing: files that the log names and that are gone count no more; else they are an error.
        say: hears a line for each file that is made.
        disk: the file operations.
        clock: for ages and time stamps.
        writer: the name of this incarnation; unique.

    Raises (from ``run`` and ``plan``):
        SinkError: it is no sink's directory, it is damaged, or the disk says no.
    """

    def __init__(
        self,
        directory: Path,
        *,
        target_bytes: int = TARGET_BYTES,
        keep_s: float = KEEP_S,
        sweep_after_s: float = SWEEP_AFTER_S,
        forget_missing: bool = False,
        say: Callable[[str], object] = logger.info,
        disk: Storage | None = None,
        clock: Clock = SYSTEM_CLOCK,
        writer: str = "",
    ) -> None:
        self.directory = directory
        self.disk = disk or storage_of(directory)
        self.log = CommitLog(directory, self.disk)
        self._target_bytes = target_bytes
        self._keep_s = keep_s
        self._sweep_after_s = sweep_after_s
        self._forget_missing = forget_missing
        self._say = say
        self._clock = clock
        self._name = self._writer = writer or f"compact-{uuid.uuid4().hex[:12]}"
        self._sequence = 0
        self._done = Compacted()
        self._times: dict[int, float] = {}  # of entries: when they were made
        self._recovery = Recovery(self.log, self._catch_up, self._entry, clock)

    # --- what a user calls ------------------------------------------------------------------------------

    def plan(self) -> list[list[DataFile]]:
        """Return what :meth:`run` would merge. Changes nothing."""
        try:
            self._open()
        except OSError as error:
            raise self._cannot(error) from error
        return plan(self.log.files.values(), self._target_bytes)

    def missing(self) -> list[str]:
        """Return the files that count and are gone: what ``forget_missing`` would forget. Changes nothing."""
        return self._recovery.gone()

    def run(self) -> Compacted:
        """Compact, and delete what is old; return what was done."""
        try:
            self._open()
            done = self._done = Compacted(len(self.log.files), self._live_bytes())
            if self._forget_missing:
                self._forget()
            self._recovery.repair()
            done.swept = self._recovery.sweep(self._sweep_after_s)
            while not self._merge_all():
                self._recovery.repair()  # a file that somebody has deleted by hand ends the loop here
            self._delete_old()
        except OSError as error:
            raise self._cannot(error) from error
        done.files_after, done.bytes_after = len(self.log.files), self._live_bytes()
        return done

    def _live_bytes(self) -> int:
        return sum(file.bytes for file in self.log.files.values())

    # --- the log ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Read the log.

        Raises:
            SinkError: there is none.
        """
        if not self.disk.is_remote and not self.disk.exists(self.directory):
            raise SinkError(f"{self.directory} does not exist", cure="the directory that parquet.directory names")
        self._catch_up()
        self.log.check_complete()
        if self.log.length:
            return
        if self.disk.exists(self.directory / "_spark_metadata"):
            raise SinkError(
                f"{self.directory} belongs to a Spark streaming query (_spark_metadata), not to a sink",
                cure="read it with Spark and write it anew: its files are Spark's to replace",
            )
        if (error := lost_log(self.log)) is not None:
            raise error
        raise SinkError(
            f"{self.directory} holds no commit log: it is not a sink's directory, or its log was deleted",
            cure=f"the directory that parquet.directory names; or restore {self.log.folder} from a backup",
        )

    def _catch_up(self) -> list[Entry]:
        entries = self.log.refresh()
        self.log.sync()
        return entries

    def _entry(self, kind: str, **fields: Any) -> Entry:
        """Return the next entry; the directory stays its sink's."""
        if kind != COMPACT:
            self._renew_if_fenced()
        return Entry(
            self.log.length, self._writer, self.log.topology or "", self.log.schema or (),
            int(self._clock.wall() * 1000), component=self.log.component or "", kind=kind, **fields,
        )  # fmt: skip

    def _renew_if_fenced(self) -> None:
        self._writer = self.log.unfenced(self._name)

    def _gone_before(self) -> int:
        """Return the number below which no entry has removed a file that is still in sight, or may come into it.

        A file goes one way: from staging into sight, from there away. So one that is not seen in staging, and after
        that not in sight, is away for good, whoever else may be moving it; as soon as that is durable, for a power cut
        would bring it back.
        """
        length = self.log.length
        near = self._near() if self.log.removed else set()
        lingering = [number for path, number in self.log.removed.items() if path in near]
        for folder in sorted({(self.directory / path).parent for path in self.log.removed}):
            if self.disk.exists(folder):
                self.disk.sync(folder)
        return min(lingering, default=length)

    def _near(self) -> set[str]:
        """Return the removed files that are in sight or may come into it."""
        layout = self.log.layout
        if not self.disk.is_remote:
            places = layout.places[:2]
            return {path for path in self.log.removed if any(layout.holds(self.disk, place, path) for place in places)}
        staged = below(self.disk, layout.staging)
        # The race: a store was asked to copy a file into sight, and takes its time, while we move the file away.
        now = self._clock.wall()
        young = {number for number in {*self.log.removed.values()} if now - self._made_at(number) < SWEEP_AFTER_S}
        late = {path for path, number in self.log.removed.items() if number in young}
        return late | staged | below(self.disk, layout.directory)

    def _made_at(self, number: int) -> float:
        """Return when an entry was made, in seconds since the epoch."""
        if number not in self._times:
            entry = self.log.entry(number)
            self._times[number] = entry.created_ms / 1000 if entry is not None else 0.0
        return self._times[number]

    def _forget(self) -> None:
        """Let the log say that files which are gone count no more. What they covered stays covered."""
        while gone := self._recovery.gone():
            self._renew_if_fenced()
            if self.log.append(self._entry(COMPACT, removed=tuple(gone), gone_before=0)):
                self._done.forgotten += gone
                return
            self._catch_up()

    # --- merging ----------------------------------------------------------------------------------------

    def _merge_all(self) -> bool:
        """Merge what there is to merge; False if somebody else was faster at some of it, so that a new plan is due."""
        self._catch_up()
        undisturbed = True
        for files in plan(self.log.files.values(), self._target_bytes):
            sources = self._read(files)
            if sources is None:
                undisturbed = False
                continue
            for group in alike(sources):
                if len(group) > 1:
                    undisturbed &= self._replace(group)
        return undisturbed

    def _read(self, files: Sequence[DataFile]) -> list[Source] | None:
        """Return the files with their content; None if one of them is not there any more."""
        sources: list[Source] = []
        for file in files:
            content = self._content(file.path)
            if content is None:
                self._catch_up()
                return None
            sources.append(Source(file, content))
            sources[-1].check(self.directory / file.path)
        return sources

    def _content(self, path: str) -> bytes | None:
        # Its writer may be moving it from staging into sight: who looks there first and then here finds it.
        layout = self.log.layout
        for name in (self.directory / path, layout.staged(path), self.directory / path):
            try:
                return self.disk.read(name)
            except FileNotFoundError:
                continue
        return None

    def _replace(self, sources: Sequence[Source]) -> bool:
        """Put one file in the place of several; False if others have changed these meanwhile."""
        self._renew_if_fenced()
        removed = [source.file.path for source in sources]
        made = (PurePosixPath(removed[0]).parent / data_name(self._writer, self._sequence)).as_posix()
        self._sequence += 1
        committed = False
        try:
            new = self._stage(made, sources)
            committed = self._commit(new, removed)
        except FileNotFoundError:
            self._catch_up()
            if not self.log.fenced_files([made]):
                raise
        finally:
            if not committed:  # given up, failed or interrupted; in doubt the log knows
                self._discard_unless_committed(made)
        if not committed:
            self._done.gave_way += 1
            return False
        self._bring(made, removed)
        self._done.merged += len(removed)
        self._done.made += 1
        self._report(sources, new)
        return True

    def _report(self, sources: Sequence[Source], new: DataFile) -> None:
        folder = new.path.rpartition("/")[0] or self.directory
        before = sum(source.file.bytes for source in sources)
        self._say(
            f"{folder}: {counted(len(sources), 'file')} ({size(before)}) → 1 ({size(new.bytes)}), "
            f"{counted(new.rows, 'row')}"
        )

    def _merged(self, sources: Sequence[Source]) -> bytes:
        """Return the merged file.

        Raises:
            SinkError: a source cannot be decoded. Arrow says so by an OSError that has no number and names no file.
        """
        try:
            return merge(sources)
        except OSError:
            for source in sources:
                source.check_values(self.directory / source.file.path)
            raise

    def _stage(self, made: str, sources: Sequence[Source]) -> DataFile:
        """Merge the files into a staged one, force it to the disk, read it again and compare."""
        path = self.log.layout.staged(made)
        content = self._merged(sources)
        new = DataFile(made, sum(source.file.rows for source in sources), len(content), hash_of(content))
        stage(self.disk, self.log.layout, [(made, content)])
        del content  # as large as the file that is read again
        written = Source(new, self.disk.read(path))
        check(sources, written, path)
        written.check(path)
        return new

    def _commit(self, new: DataFile, removed: Sequence[str]) -> bool:
        """Append the entry; False if by now a file of ours counts no more, or we are fenced."""
        staged = self.log.layout.staged(new.path)
        while all(path in self.log.files for path in removed):
            gone_before = self._gone_before()
            if not self.disk.exists(staged):
                raise FileNotFoundError(errno.ENOENT, "it was deleted while it was waiting", str(staged))
            try:
                if self.log.append(self._entry(COMPACT, removed=tuple(removed), files=(new,), gone_before=gone_before)):
                    return True
            except FencedError:
                return False
            self._catch_up()
        return False

    def _discard_unless_committed(self, path: str) -> None:
        self._catch_up()
        if self.disk.is_remote and sys.exception() is not None:  # also Ctrl-C, between a request and the look after it
            return  # the entry may be on its way: a sweeper deletes the file once its fence has taken that number
        if path not in self.log.files and path not in self.log.removed:
            discard(self.disk, self.log.layout, [path])

    def _bring(self, made: str, removed: Sequence[str]) -> None:
        """Bring the new file into sight, then take the old ones out of it.

        In this order, because between the two a reader of the plain directory may see rows twice, which their
        identities tell, but never too few, which nothing would tell. What can be done before is done before: between
        the two the new name is made durable, no more.
        """
        layout = self.log.layout
        staging, sight, replaced = layout.places
        make_folders(self.disk, layout, [made], sight)
        make_folders(self.disk, layout, removed, replaced)
        rename(self.disk, layout, [made], staging, sight)
        if self.disk.is_remote:  # a writer that was stopped between a copy and its removal has left a file in both
            staged = below(self.disk, staging)
            rename(self.disk, layout, [path for path in removed if path in staged], staging, replaced)
        left = rename(self.disk, layout, removed, sight, replaced)
        left = rename(self.disk, layout, left, staging, replaced)  # their writer was about to bring them into sight
        rename(self.disk, layout, left, sight, replaced)  # and has just done so

    # --- what is old ------------------------------------------------------------------------------------

    def _delete_old(self) -> None:
        """Delete what was replaced or frozen so long ago that no reader should want it any more."""
        before = self._clock.wall() - self._keep_s
        layout = self.log.layout
        top = layout.replaced
        for path in list(self.disk.files_below(top)):
            name = logged(path.relative_to(top).as_posix())
            if name not in self.log.files and self.disk.changed(path) <= before:
                self.disk.remove(path)
                self._done.deleted += 1
        for name in self.disk.names(layout.snapshots):
            if name.startswith(SWEPT) or self.disk.modified(layout.snapshots / name) <= before:
                self._done.snapshots += remove_snapshot(layout.snapshots / name, self.disk)

    def _cannot(self, error: OSError) -> SinkError:
        place = error.filename or self.directory
        return refused(
            error,
            self.disk.named(self.directory),
            f"{self.directory} cannot be compacted: {error.strerror or error} ({place}); the rows are as they were",
            cure="correct the permissions or the credentials, and start again",
        )
