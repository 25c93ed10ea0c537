"""Compaction merges many small data files into few large ones without any reader of the log noticing.

A compactor is one more writer. It plans by file size (:func:`plan`), merges the rows of small files into a staged file,
checks that rows, order and columns are unchanged, and appends a ``compact`` entry: *this file replaces those*. As in a
flush, the entry is the commit point. Before it, nothing has happened. After it, whoever opens the directory can finish:
first publish the new file, then move the old ones to ``replaced/``, where they stay for a while.

Races, while the compactor works:

* *A flush* takes the entry's number. It changes nothing that the compactor read: read the entry, try the next number.
* *Another compaction* replaces one of the same files, or *a rebuild* all of them. They no longer count, so the staged
  file is dropped.
* *A fence* names this compactor: another writer presumed it dead, and its staged file may be swept at any moment. Drop
  it, and stage again under another name.
* *A stop* leaves a staged file for the sweeper, or an entry that is rolled forward.

Compaction never changes which rows the directory holds (its coverage), so replays remain covered.
"""

from __future__ import annotations

import errno
import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import SinkError
from downspout.formatting import counted, size
from downspout.sink.column_types import encode
from downspout.sink.layout import below, discard, logged, make_folders, rename, stage
from downspout.sink.log import DirectoryWriter, FencedError
from downspout.sink.log_entry import COMPACT, DataFile
from downspout.sink.recovery import SWEEP_AFTER_S, Recovery, lost_log
from downspout.sink.schema import ORIGIN_SCHEMA
from downspout.sink.snapshot import SWEPT, remove_snapshot
from downspout.sink.storage import Storage, hash_of, refused

TARGET_BYTES = 128_000_000
SMALL_BYTES = 1_000_000  # Below that a file costs its opening and not its reading: all such files weigh the same
OUTWEIGHS = 4
"""A file that is so many times as large as those it would be merged with is left out: it waits for more of them."""
INPUTS_MAX = 10_000
BINS_OPEN_MAX = 200  # Else many files of half the target would each look at all bins before theirs


def plan(files: Iterable[DataFile], target_bytes: int = TARGET_BYTES) -> list[list[DataFile]]:
    """Return the groups of files to merge, in the order of the log; no file is in two groups.

    Files of one Hive folder that are smaller than the target fill bins of that size: each goes to the first of the last
    :data:`BINS_OPEN_MAX` bins with room. A file that outweighs all others of its bin is left out: so a row is rewritten
    only when its file grows by a quarter, and compacting after each small flush does not rewrite the whole directory.

    >>> files = [DataFile(f"a=1/{n}", 1, n * 1_000_000) for n in (90, 2, 3, 200)] + [DataFile("b", 1, 5)]
    >>> [[file.path for file in one] for one in plan(files, 100_000_000)]
    [['a=1/2', 'a=1/3']]
    """
    bins: dict[PurePosixPath, list[list[DataFile]]] = {}
    room: dict[PurePosixPath, list[int]] = {}
    for file in files:
        if file.bytes >= target_bytes:
            continue
        folder = PurePosixPath(file.path).parent
        own, left = bins.setdefault(folder, []), room.setdefault(folder, [])
        for number in range(max(0, len(own) - BINS_OPEN_MAX), len(own)):
            if file.bytes <= left[number] and len(own[number]) < INPUTS_MAX:
                own[number].append(file)
                left[number] -= file.bytes
                break
        else:
            own.append([file])
            left.append(target_bytes - file.bytes)
    made = [_balanced(one) for folder in sorted(bins) for one in bins[folder]]
    return [one for one in made if len(one) > 1]


def _balanced(files: list[DataFile]) -> list[DataFile]:
    """Return the files without those that outweigh all that are smaller."""
    kept = sorted(files, key=_weight)
    others = sum(map(_weight, kept))
    while kept:
        others -= _weight(kept[-1])
        if _weight(kept[-1]) <= others * OUTWEIGHS:
            break
        kept.pop()
    chosen = {file.path for file in kept}
    return [file for file in files if file.path in chosen]


def _weight(file: DataFile) -> int:
    return max(file.bytes, SMALL_BYTES)


ROW_GROUP_ROWS = 1024 * 1024  # As many as pyarrow gives a row group, and so a sink
ROW_GROUP_BYTES = 64 << 20  # In memory. A row group that spans more is closed earlier: readers take one at a time.


@dataclass(frozen=True)
class Source:
    """A file to merge: its log entry and its content."""

    file: DataFile
    content: bytes

    @cached_property
    def parquet(self) -> pq.ParquetFile:
        """The file, opened; pages whose checksum is wrong are an OSError when they are read."""
        return pq.ParquetFile(pa.BufferReader(self.content), page_checksum_verification=True)

    @property
    def codec(self) -> str:
        """The codec of its columns."""
        metadata = self.parquet.metadata
        has_columns = metadata.num_row_groups and metadata.num_columns
        return metadata.row_group(0).column(0).compression.lower() if has_columns else "zstd"

    def check(self, path: object) -> None:
        """Raise a SinkError if the file does not match its log entry."""
        try:
            rows = self.parquet.metadata.num_rows
        except pa.ArrowException as error:
            raise SinkError(f"{path} cannot be read: {error}", cure="restore it from a backup") from None
        if (rows, len(self.content)) != (self.file.rows, self.file.bytes):
            raise SinkError(
                f"{path} holds {rows:,} rows in {len(self.content):,} bytes, but by the commit log {self.file.rows:,} "
                f"in {self.file.bytes:,}",
                cure="restore it from a backup; downspout audit names the records",
            )
        if hash_of(self.content) != self.file.hash:
            raise SinkError(
                f"{path} was changed since it was written: its content does not match its hash in the commit log",
                cure="restore it from a backup; downspout audit --deep lists all such files",
            )

    def check_values(self, path: object) -> None:
        """Raise a SinkError if its values cannot be read. Reads all of them."""
        try:
            self.parquet.read()
        except (OSError, pa.ArrowException) as error:
            raise SinkError(f"{path} cannot be read: {error}", cure="restore it from a backup") from None


def alike(sources: Sequence[Source]) -> list[list[Source]]:
    """Return the files in groups of one schema, metadata included, and one codec; each group in the order given."""
    groups: list[list[Source]] = []
    for source in sources:
        for group in groups:
            first = group[0]
            same = first.parquet.schema_arrow.equals(source.parquet.schema_arrow, check_metadata=True)
            if same and first.codec == source.codec:
                group.append(source)
                break
        else:
            groups.append([source])
    return groups


def merge(sources: Sequence[Source]) -> bytes:
    """Return one file with the rows of all, which are alike; written with a sink's options.

    Memory: the files as they are, and one row group unpacked.
    """
    codec = "none" if sources[0].codec == "uncompressed" else sources[0].codec
    return encode(_row_groups(sources), sources[0].parquet.schema_arrow, codec, ROW_GROUP_ROWS)


def _row_groups(sources: Sequence[Source]) -> Iterator[pa.Table]:
    """Yield the rows, in pieces that make good row groups."""
    held: list[pa.Table] = []
    rows = size = 0
    for source in sources:
        for number in range(source.parquet.num_row_groups):
            table = source.parquet.read_row_group(number)
            if held and (rows + table.num_rows > ROW_GROUP_ROWS or size + table.nbytes > ROW_GROUP_BYTES):
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
            held.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
    if held:
        yield pa.concat_tables(held)


def check(sources: Sequence[Source], merged: Source, path: object) -> None:
    """Raise a SinkError unless the merged file, read again, holds the rows of the others, each once."""
    wanted = sum(source.file.rows for source in sources)
    schema = sources[0].parquet.schema_arrow
    if merged.parquet.metadata.num_rows != wanted or not merged.parquet.schema_arrow.equals(schema):
        raise _differs(path, f"{merged.parquet.metadata.num_rows:,} rows instead of {wanted:,}, or other columns")
    # Rows keep their order, so each column is compared piece by piece: those that tell which row it is, or all columns
    # where there are none of these. It costs a second reading of these columns, and is what the promise rests on.
    names = [name for name in ORIGIN_SCHEMA.names if name in schema.names]
    # NaN is not equal to itself, so a column of floats cannot be compared like this.
    for name in names or [
        column.name for column in schema if "float" not in str(column.type) and "double" not in str(column.type)
    ]:
        whole: Any = merged.parquet.read(columns=[name]).column(0)
        at = 0
        for source in sources:
            if not whole.slice(at, source.file.rows).equals(source.parquet.read(columns=[name]).column(0)):
                raise _differs(path, f"column {name} differs from that of {source.file.path}")
            at += source.file.rows


def _differs(path: object, what: str) -> SinkError:
    return SinkError(
        f"{path} was not written correctly ({what}); it was discarded, and nothing was replaced",
        cure="start again; if it happens twice, report it: pyarrow, the memory or Downspout is at fault",
    )


__all__ = ["KEEP_S", "TARGET_BYTES", "Compacted", "Compactor"]

logger = logging.getLogger("downspout.sink")

KEEP_S = 7 * 86_400.0
"""Seconds. A reader that holds a list of files, and a streaming query that stood still over a weekend, find them."""


@dataclass
class Compacted:
    """What a compaction did.

    Attributes:
        files_before, bytes_before: the directory's files at the beginning.
        files_after, bytes_after: the directory's files at the end; other writers' flushes are included.
        merged: files that were replaced.
        made: files that replaced them.
        gave_way: merged files that were dropped, because another writer was faster.
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


class Compactor(DirectoryWriter):
    """Compacts a sink's directory, while others write to it and read from it.

    Args:
        directory: as in ``parquet.directory``.
        target_bytes: the size limit of merged files; larger files are not touched. Memory: about four times as much.
        keep_s: how long replaced files are kept, in seconds.
        sweep_after_s: the age in seconds at which the writer of staged files is presumed dead.
        forget_missing: whether to drop missing files from the log; otherwise they are an error.
        say: called with a line for each merged file.
        disk: the file operations.
        clock: for ages and time stamps.
        writer: the name of this incarnation; unique.

    Raises (from ``run`` and ``plan``):
        SinkError: it is no sink's directory, it is damaged, or the disk fails.
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
        super().__init__(directory, writer or f"compact-{uuid.uuid4().hex[:12]}", disk, clock)
        self._target_bytes = target_bytes
        self._keep_s = keep_s
        self._sweep_after_s = sweep_after_s
        self._forget_missing = forget_missing
        self._say = say
        self._done = Compacted()
        self._times: dict[int, float] = {}  # of entries: when they were made
        self._recovery = Recovery(self)

    # --- what a user calls ------------------------------------------------------------------------------

    def plan(self) -> list[list[DataFile]]:
        """Return what :meth:`run` would merge. Changes nothing."""
        try:
            self._open()
        except OSError as error:
            raise self._cannot(error) from error
        return plan(self.log.files.values(), self._target_bytes)

    def missing(self) -> list[str]:
        """Return the committed files that are gone: those that ``forget_missing`` would drop. Changes nothing."""
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
        self.catch_up()
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

    def _gone_before(self) -> int:
        """Return the number below which no entry has removed a file that is still visible or may become so.

        A file only moves from staging to its final name, and from there away. So if a file is not in staging, and then
        not visible either, it is gone for good, even if other processes move files meanwhile. This holds once the move
        is durable: a power cut could undo it before that.
        """
        length = self.log.length
        near = self._near() if self.log.removed else set()
        lingering = [number for path, number in self.log.removed.items() if path in near]
        for folder in sorted({(self.directory / path).parent for path in self.log.removed}):
            if self.disk.exists(folder):
                self.disk.sync(folder)
        return min(lingering, default=length)

    def _near(self) -> set[str]:
        """Return the removed files that are visible or may become so."""
        layout = self.log.layout
        if not self.disk.is_remote:
            places = layout.places[:2]
            return {path for path in self.log.removed if any(layout.holds(self.disk, place, path) for place in places)}
        staged = below(self.disk, layout.staging)
        # The race: a store was asked to copy a file into sight, and takes its time, while we move the file away.
        now = self.clock.wall()
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
        """Drop missing files from the log. Their rows remain covered."""
        while gone := self._recovery.gone():
            self._renew_if_fenced()
            if self.log.append(self.entry(COMPACT, removed=tuple(gone), gone_before=0)):
                self._done.forgotten += gone
                return
            self.catch_up()

    # --- merging ----------------------------------------------------------------------------------------

    def _merge_all(self) -> bool:
        """Merge all planned files; False if another writer was faster at some, so that a new plan is due."""
        self.catch_up()
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
        """Return the files with their content; None if one is gone."""
        sources: list[Source] = []
        for file in files:
            content = self._content(file.path)
            if content is None:
                self.catch_up()
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
        """Replace several files by one; False if others have changed them meanwhile."""
        self._renew_if_fenced()
        removed = [source.file.path for source in sources]
        made = (PurePosixPath(removed[0]).parent / self._new_name()).as_posix()
        committed = False
        try:
            new = self._stage(made, sources)
            committed = self._commit(new, removed)
        except FileNotFoundError:
            self.catch_up()
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
                if self.log.append(self.entry(COMPACT, removed=tuple(removed), files=(new,), gone_before=gone_before)):
                    return True
            except FencedError:
                return False
            self.catch_up()
        return False

    def _discard_unless_committed(self, path: str) -> None:
        self.catch_up()
        if self.disk.is_remote and sys.exception() is not None:  # also Ctrl-C, between a request and the look after it
            return  # the entry may be on its way: a sweeper deletes the file once its fence has taken that number
        if path not in self.log.files and path not in self.log.removed:
            discard(self.disk, self.log.layout, [path])

    def _bring(self, made: str, removed: Sequence[str]) -> None:
        """Publish the new file, then move the old ones away.

        In this order, because between the two a reader of the plain directory may see rows twice, which their
        identities show, but never too few, which would go unnoticed. Between the two, the new name is only made
        durable; all other work is done before.
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
        """Delete files that were replaced or frozen so long ago that no reader should need them."""
        before = self.clock.wall() - self._keep_s
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
