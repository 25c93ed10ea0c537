"""The audit's sources for a directory: the data files, and the commit log.

**Data files.** The audit does not trust the sink: it reads the rows' origins from every visible file, as any reader
sees them. Only for aggregates, whose files hold no origins, it uses the log: those entries whose files, or the
compacted files that replaced them, are all in place.

**The log.** It is read entry by entry and checked for consistency. Checksums reveal torn entries. Entries edited by
hand, with a new checksum, are found if they contradict other entries or the files. All entries are read, from the
first: checkpoints are only compared with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from downspout import offset_ranges
from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import DownspoutError, SinkError
from downspout.offset_ranges import OffsetRanges
from downspout.settings.object_path import ObjectPath
from downspout.sink.aggregation import logged_schema
from downspout.sink.layout import Layout, below, incarnation_of, is_visible
from downspout.sink.log import CommitLog, DirectoryState
from downspout.sink.log_entry import COMPACT, FENCE, FLUSH, REBUILD, Coverage, DataFile, Entry, Stream
from downspout.sink.object_store import storage_of
from downspout.sink.recovery import SPARK_LOG
from downspout.sink.schema import logged_folders
from downspout.sink.storage import hash_of, hash_of_file

_ORIGIN = ("_topic", "_topic_id", "_partition", "_offset", "_path")
_TEXTS = ("_topic", "_topic_id", "_path")
TURNS, TURN_S = 6, 0.2  # Checks for a file that should move, and the seconds between them
ATTEMPTS = 5


@dataclass
class FoundRows:
    """The content of a directory, from its files and its log."""

    entries: int = 0  # entries in the log
    # by stream, the offsets with a visible row
    rows: dict[Stream, OffsetRanges] = field(default_factory=dict)
    # by stream, the rows beyond the first of their offset: an offset with three rows is listed twice
    surplus: dict[Stream, OffsetRanges] = field(default_factory=dict)
    repeated_in: dict[str, int] = field(default_factory=dict)  # by file, its rows of offsets with several rows
    logged: dict[Stream, OffsetRanges] = field(default_factory=dict)  # by stream, the offsets in the log
    aggregates: bool = False  # whether the files hold partial results instead of rows
    row_count: int = 0  # rows in all visible files
    file_count: int = 0  # visible files
    without_origin: int = 0  # rows without an origin
    gone: list[str] = field(default_factory=list)  # files in the log that do not exist
    staged: list[str] = field(default_factory=list)  # committed files that are not renamed yet
    # visible files that are not in the log, with any suffix
    unknown: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  # other such files that are not Parquet: readers fail on them
    # Spark's ``_spark_metadata``, if it exists: it hides all other files from Spark
    spark_log: list[str] = field(default_factory=list)
    # files that only globs read, so some readers see their rows and others do not
    hidden: list[str] = field(default_factory=list)
    # files whose size, row count or columns differ from the log
    changed: list[str] = field(default_factory=list)
    # deep: files whose content does not match the log's hash, with the damage
    corrupt: dict[str, str] = field(default_factory=dict)
    checked: int = 0  # deep: files whose content matches the log's hash
    read_back: bool = False  # whether a user's own sink has read the rows; there are no log and files of ours
    deep: bool = False  # whether all bytes of all files were read
    topology: str = ""
    unreadable: dict[str, str] = field(default_factory=dict)  # files that cannot be read as Parquet, with the reason
    leftovers: int = 0  # staged files of interrupted flushes, which are not in the log
    # files that a compaction has replaced but that are still visible
    replaced: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)  # visible files from before the last rebuild
    forgotten: list[str] = field(default_factory=list)  # missing files that ``--forget-missing`` removed from the log

    @property
    def streams(self) -> list[Stream]:
        """All streams in the files or the log, sorted."""
        return sorted({*self.rows, *self.logged})


def visible_files(directory: Path) -> Iterator[Path]:
    """Yield the files that readers take for the directory's data, with any suffix."""
    if isinstance(directory, ObjectPath):
        found = storage_of(directory).files_below(directory)
        yield from sorted(path for path in found if is_visible(path.relative_to(directory).as_posix()))
        return
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if not is_visible(path.name):
            continue
        if path.is_dir():
            yield from visible_files(path)
        elif path.is_file():
            yield path


def hidden_files(directory: Path) -> list[str]:
    """Return the files that globs match but directory listings omit."""
    paths = (
        (path for path in storage_of(directory).files_below(directory) if path.suffix == ".parquet")
        if isinstance(directory, ObjectPath)
        else (path for path in directory.rglob("*.parquet") if path.is_file())
    )
    below = (path.relative_to(directory).as_posix() for path in paths)
    return sorted(path for path in below if not is_visible(path))


def look_at_files(directory: Path, clock: Clock = SYSTEM_CLOCK, *, deep: bool = False) -> FoundRows:
    """Read the log and the origins of all rows. Memory: about 40 bytes per row of the largest stream, 8 for the others.

    Writers and compactions may run meanwhile. The result is the directory as of the last entry read: each file current
    then is read wherever it is now, visible or already replaced.
    """
    for _ in range(ATTEMPTS):
        try:
            return _Look(directory, clock, deep=deep).look()
        except _MovedOnError:
            continue
    raise SinkError(
        f"{directory}: compactions delete replaced files faster than they can be read",
        cure="downspout compact with a longer --keep; or audit again when it has ended",
    )


def look_at_rows(rows: pa.Table) -> FoundRows:
    """Take the origins of rows that a sink of the user's own has read back.

    Raises:
        SinkError: a column cannot be a part of an origin.
    """
    found, reader = FoundRows(row_count=rows.num_rows, read_back=True), _OriginReader()
    try:
        reader.take(rows.num_rows, _streams_of(rows) if set(_ORIGIN) <= set(rows.schema.names) else None)
    except pa.ArrowInvalid as error:
        raise SinkError(f"the rows that were read back cannot be audited: {error}", cure="ORIGIN_SCHEMA") from None
    found.without_origin = reader.without
    reader.result(found)
    return found


class _MovedOnError(Exception):
    """A current file was replaced and deleted meanwhile, or another became visible again."""


class _Look:
    """One scan of a directory.

    It waits for files that are about to move: a committed one becomes visible at once, and a replaced one disappears,
    unless the process was stopped. Files that do not move are reported as a reader sees them.
    """

    def __init__(self, directory: Path, clock: Clock, *, deep: bool) -> None:
        self._directory = directory
        self._disk = storage_of(directory)
        self._layout = Layout(directory)
        self._clock = clock
        self._found = FoundRows(deep=deep)
        self._reader = _OriginReader()
        self._paths: dict[str, Path] = {}  # the files read, by name
        # Listed before the log is read: a file becomes visible after its entry, so each listed file is in the log.
        self._visible = {path.relative_to(directory).as_posix(): path for path in visible_files(directory)}
        self._log = self._later = read_log(directory)
        self._versions = {version: _columns_of(version) for version in self._log.schemas}

    def look(self) -> FoundRows:
        """Scan the directory."""
        found, log = self._found, self._log
        found.entries, found.forgotten, found.topology = log.length, log.forgotten, log.topology
        found.logged = {stream: log.coverage.ranges(stream) for stream in log.coverage.streams()}
        coming = [name for name in log.files if not self._read(name)]
        leaving = [name for name in self._visible if name in log.replaced]
        self._wait(coming, leaving)
        for name in self._visible.keys() - log.files.keys() - log.replaced.keys():
            if self._read(name):
                self._take_stranger(name)
        found.hidden = hidden_files(self._directory)
        found.spark_log = [SPARK_LOG] if self._disk.exists(self._directory / SPARK_LOG) else []
        self._sum_up()
        return found

    def _take_stranger(self, name: str) -> None:
        """Note a file that was read but is not in the log."""
        found = self._found
        if name in found.unreadable and not name.endswith(".parquet"):
            del found.unreadable[name], self._paths[name]
            found.foreign.append(name)
        # Without a log, a file is unknown only if its name is one that a sink gives.
        elif self._log.length or incarnation_of(name):
            found.unknown.append(name)

    def _wait(self, coming: list[str], leaving: list[str]) -> None:
        """Read the files that become visible, and those that should disappear but do not."""
        found = self._found
        for turn in range(TURNS):
            coming = [name for name in coming if not self._read(name) and not self._is_elsewhere(name)]
            leaving = [name for name in leaving if self._disk.exists(self._directory / name)]
            if not coming and not leaving:
                return
            if turn < TURNS - 1:
                self._clock.sleep(TURN_S)
        found.staged = coming
        for name in leaving:
            if not self._read(name):
                raise _MovedOnError  # it has disappeared, and its replacement may have become visible earlier
            (found.outdated if name in self._log.outdated else found.replaced).append(name)

    def _is_elsewhere(self, name: str) -> bool:
        """Return whether a current file is not staged: gone, or replaced since the log was read."""
        if self._disk.exists(self._layout.staged(name)):
            return False
        if self._read(name):  # it became visible between two checks
            return True
        if name in self._later.files:
            self._later = read_log(self._directory)
        if name in self._later.files:
            self._found.gone.append(name)
        elif not self._read(name, self._layout.at(self._layout.replaced, name)):
            raise _MovedOnError
        return True

    def _read(self, name: str, path: Path | None = None) -> bool:
        """Read a file's origins; return whether it exists."""
        found, path = self._found, path or self._directory / name
        try:
            source = _opened(path)
            size = path.stat().st_size if source is path else source.size()
            rows = self._reader.read(source)
        except FileNotFoundError:
            return False
        except (OSError, pa.ArrowException) as error:
            found.unreadable[name] = " ".join(str(error).split())[:200]
        else:
            found.row_count += rows
            logged = self._log.named.get(name)
            if logged is not None and ((logged.rows, logged.bytes) != (rows, size) or self._has_others(name, source)):
                found.changed.append(name)
        if found.deep and not self._look_deep(name, path):
            return False
        self._paths[name] = path
        return True

    def _has_others(self, name: str, source: Any) -> bool:
        """Return whether a current file's columns differ from its entry (those of folders are not in the file).

        A compaction merges files of one schema version, and does not record which.
        """
        if name not in self._log.files or None in self._versions.values():
            return False
        flushed = self._log.written.get(name)
        said = self._versions.values() if flushed is None else [self._versions[flushed]]
        try:
            schema = pq.read_schema(source)
        except FileNotFoundError:
            return False
        # A file without other columns than origins always matches.
        mine = {field.name: field.type for field in schema if field.name not in _ORIGIN}
        return bool(mine) and mine not in said

    def _look_deep(self, name: str, path: Path) -> bool:
        """Compare a file's content with its hash in the log; return whether it exists."""
        found, logged = self._found, self._log.named.get(name)
        try:
            if logged is None:
                damaged = _damaged_columns(path)
                if damaged and name not in found.unreadable:
                    found.unreadable[name] = damaged
            elif self._hash(path) == logged.hash:
                found.checked += 1
            else:
                found.corrupt[name] = _damaged_columns(path) or "other values"
        except FileNotFoundError:
            return False
        except OSError as error:
            found.unreadable.setdefault(name, " ".join(str(error).split())[:200])
        return True

    def _hash(self, path: Path) -> str:
        return hash_of(self._disk.read(path)) if self._disk.is_remote else hash_of_file(path)

    def _sum_up(self) -> None:
        found, log = self._found, self._log
        found.file_count = len(self._paths)
        for names in (
            found.gone,
            found.staged,
            found.unknown,
            found.foreign,
            found.changed,
            found.replaced,
            found.outdated,
        ):
            names.sort()
        staging = self._layout.staging
        hidden = below(self._disk, staging)
        found.leftovers = sum(name.endswith(".parquet") for name in hidden - log.named.keys())
        found.aggregates = bool(found.logged) and self._reader.files == 0 and self._reader.without > 0
        if found.aggregates:
            _take_from_log(found, log, self._paths.keys() - {*found.changed, *found.corrupt, *found.unreadable})
            return
        found.without_origin = self._reader.without
        self._reader.result(found)
        if found.surplus:
            _name_repeats(found, self._paths)


def _columns_of(logged: Sequence[str]) -> dict[str, pa.DataType] | None:
    """Return the data files' columns by the log, without those of folders; None if unknown."""
    folders = logged_folders(logged)
    try:
        schema = logged_schema(logged)
    except DownspoutError:
        return {}  # no sink wrote this, and no file has such columns
    if not logged or any(text.startswith("key ") for text in logged):
        return None
    return {field.name: field.type for field in schema if field.name not in {*folders, *_ORIGIN}}


def _damaged_columns(path: Path) -> str:
    """Name the columns of a file that cannot be read or have wrong page checksums; empty: none.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    try:
        with pq.ParquetFile(_opened(path), page_checksum_verification=True) as file:
            names = [name for name in file.schema_arrow.names if not _can_be_read(file, name)]
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        return " ".join(str(error).split())[:200]
    return f"damaged pages in {', '.join(names)}" if names else ""


def _can_be_read(file: pq.ParquetFile, name: str) -> bool:
    try:
        for group in range(file.num_row_groups):
            file.read_row_group(group, columns=[name])
    except (OSError, pa.ArrowException):
        return False
    return True


def _name_repeats(found: FoundRows, paths: dict[str, Path]) -> None:
    """Find the files with duplicate rows. Reads all files again, but only if duplicates exist."""
    repeated = Coverage()
    for stream, ranges in found.surplus.items():
        for start, end in offset_ranges.union(ranges):
            repeated.add_range(stream, start, end)
    for name, path in paths.items():
        if name in found.unreadable:
            continue
        try:
            _, parts = _origins(_opened(path))
        except FileNotFoundError:
            raise _MovedOnError from None
        if rows := sum(int(repeated.contains(stream, offsets).sum()) for stream, offsets in parts or ()):
            found.repeated_in[name] = rows


def _take_from_log(found: FoundRows, log: LogSide, shown: Collection[str]) -> None:
    """Take an aggregate's offsets from the entries whose files, or their replacements, are intact."""
    known = Coverage()
    copies = log.copies(shown)
    for entry in log.flushes:
        # An entry's rows are visible once, unless a compaction was interrupted.
        counts = [copies[file.path] for file in entry.files]
        if not min(counts):
            continue
        for stream in entry.coverage.streams():
            ranges = entry.coverage.ranges(stream)
            if surplus := offset_ranges.intersect(known.ranges(stream), ranges) + ranges * (max(counts) - 1):
                found.surplus[stream] = [*found.surplus.get(stream, []), *surplus]
                found.repeated_in.update({file.path: file.rows for file in entry.files if file.path in shown})
        known.update(entry.coverage)
    found.rows = {stream: known.ranges(stream) for stream in known.streams()}


class _OriginReader:
    """Collects the offsets of each stream, file by file, as arrays."""

    def __init__(self) -> None:
        self._offsets: dict[Stream, list[NDArray[np.int64]]] = {}
        self.files = 0  # files with origin columns
        self.without = 0  # rows without origins

    def read(self, source: Any) -> int:
        """Read one file; return its row count."""
        count, parts = _origins(source)
        self.take(count, parts)
        return count

    def take(self, count: int, parts: list[tuple[Stream, NDArray[np.int64]]] | None) -> None:
        """Take so many rows: their offsets by stream; None where they have no origin columns."""
        if parts is None:
            self.without += count
            return
        self.files += 1
        self.without += count - sum(len(offsets) for _, offsets in parts)
        for stream, offsets in parts:
            self._offsets.setdefault(stream, []).append(offsets)

    def result(self, found: FoundRows) -> None:
        """Store the rows read in ``found``."""
        for stream in list(self._offsets):
            ordered = np.sort(np.concatenate(self._offsets.pop(stream)))
            found.rows[stream] = offset_ranges.of_offsets(ordered)
            further: OffsetRanges = []
            # One pass per copy of the most frequent row, beyond the first.
            while len(ordered := ordered[1:][ordered[1:] == ordered[:-1]]):
                further += offset_ranges.of_offsets(ordered)
            if further:
                found.surplus[stream] = further


def _opened(path: Path) -> Any:
    """Return a source for pyarrow: a path, or the content of an object."""
    return pa.BufferReader(storage_of(path).read(path)) if isinstance(path, ObjectPath) else path


def _origins(source: Any) -> tuple[int, list[tuple[Stream, NDArray[np.int64]]] | None]:
    """Return the row count of a file, and its offsets by stream; None without origin columns."""
    metadata = pq.read_metadata(source)
    count = int(metadata.num_rows)
    schema = metadata.schema.to_arrow_schema()
    if not set(_ORIGIN) <= set(schema.names):
        return count, None
    _check_types(schema)  # before anything is read
    with pq.ParquetFile(
        source, metadata=metadata, read_dictionary=list(_TEXTS), page_checksum_verification=True
    ) as file:
        return count, _streams_of(file.read(columns=list(_ORIGIN)))


def _streams_of(table: pa.Table) -> list[tuple[Stream, NDArray[np.int64]]]:
    """Return the offsets of a table's rows by stream."""
    _check_types(table.schema)
    # A row with a null in its origin has none.
    for name in _ORIGIN:
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return _by_stream(table) if table.num_rows else []


def _check_types(schema: pa.Schema) -> None:
    """Raise ArrowInvalid if a column's type does not fit an origin: the file is not a sink's."""
    for name in _ORIGIN:
        kind: Any = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        fits = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if name not in _TEXTS:
            fits = pa.types.is_integer(kind)
        if not fits:
            raise pa.ArrowInvalid(f"its column {name} is {kind}")


def _by_stream(table: pa.Table) -> list[tuple[Stream, NDArray[np.int64]]]:
    offsets = table.column("_offset").to_numpy().astype(np.int64, copy=False)
    codes = np.zeros(len(offsets), dtype=np.int64)
    values: list[list[Any]] = []
    for name in (*_TEXTS, "_partition"):
        column: Any = table.column(name).unify_dictionaries().combine_chunks()
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        values.append(encoded.dictionary.to_pylist())
        codes = codes * len(values[-1]) + encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    present, first = np.unique(codes[order], return_index=True)
    parts = np.split(offsets[order], first[1:])
    return [(_stream(code, values), part) for code, part in zip(present.tolist(), parts, strict=True)]


def _stream(code: int, values: Sequence[Sequence[Any]]) -> Stream:
    picked: list[Any] = []
    for column in reversed(values):
        code, index = divmod(code, len(column))
        picked.append(column[index])
    partition, path, topic_id, topic = picked
    return Stream(topic, topic_id, partition, path)


# --- the commit log ---

_CURE = "restore the log from a backup; a log that was changed by hand cannot be trusted"


@dataclass
class LogSide:
    """The content of a log."""

    length: int = 0  # number of entries
    topology: str = ""
    schemas: tuple[tuple[str, ...], ...] = ()  # the versions of the columns, oldest first
    written: dict[str, tuple[str, ...]] = field(default_factory=dict)  # path → the columns of the flush that wrote it
    coverage: Coverage = field(default_factory=Coverage)  # the rows in the directory
    files: Mapping[str, DataFile] = field(default_factory=dict)  # current files, by path
    named: dict[str, DataFile] = field(default_factory=dict)  # all files that were ever in the log, by path
    # path of a removed file → number of the entry that removed it
    replaced: dict[str, int] = field(default_factory=dict)
    # number of a compaction's entry → the files that it made
    compactions: dict[int, tuple[DataFile, ...]] = field(default_factory=dict)
    flushes: list[Entry] = field(default_factory=list)  # flushes with files since the last rebuild
    outdated: set[str] = field(default_factory=set)  # paths removed by a rebuild
    forgotten: list[str] = field(default_factory=list)  # paths removed because the files were missing

    def take(self, entry: Entry, before: DirectoryState) -> None:
        """Apply the next entry to the state ``before`` it."""
        if entry.kind == REBUILD:
            self.outdated.update(before.files)
            self.replaced.update(dict.fromkeys(before.files, entry.number))
            self.flushes.clear()
            self.forgotten.clear()
        if entry.kind == COMPACT and not entry.files:
            self.forgotten += entry.removed  # without a replacement; one that reappears is unknown
        elif entry.kind == COMPACT:
            self.replaced.update(dict.fromkeys(entry.removed, entry.number))
            self.compactions[entry.number] = entry.files
        if entry.kind == FLUSH and entry.files:
            self.flushes.append(entry)
            self.written.update(dict.fromkeys((file.path for file in entry.files), entry.schema))
        self.named.update((file.path, file) for file in entry.files)

    def copies(self, shown: Collection[str]) -> dict[str, int]:
        """Return how often the rows of each file ever in the log are visible."""
        found: dict[str, int] = {}
        # Rows are visible in the file they were written to, and in the files that compactions copied them to. Reverse
        # order, because replacements are always younger.
        for path in reversed(self.named):
            heirs = self.compactions.get(self.replaced.get(path, -1), ())
            found[path] = (path in shown) + min((found[heir.path] for heir in heirs), default=0)
        return found


def read_log(directory: Path) -> LogSide:
    """Read a directory's log; check its consistency, also with its checkpoints."""
    # Listed before the log is read: a checkpoint is written after its entries.
    log = CommitLog(directory, checkpoints=False)
    checkpoints = _checkpoints(log.layout.checkpoints)
    entries = log.refresh()
    log.check_complete()
    side, history = LogSide(), DirectoryState()
    for entry in entries:
        if contradiction := _contradiction(entry, history, side.named):
            raise SinkError(f"{log.path(entry.number)} is damaged: {contradiction}", cure=_CURE)
        side.take(entry, history)
        history.take(entry)
        if (checkpoint := checkpoints.pop(history.length, None)) is not None:
            _compare(log.checkpoint_path(history.length), checkpoint, history)
    for length in checkpoints:
        raise SinkError(
            f"{log.path(length - 1)} is missing, although {log.checkpoint_path(length)} covers it",
            cure=f"restore {log.folder} from a backup; without it the directory's history is unknown",
        )
    side.length, side.coverage, side.files = history.length, history.coverage, history.files
    side.topology, side.schemas = history.topology or "", history.schemas
    return side


def _checkpoints(folder: Path) -> dict[int, DirectoryState]:
    """Return the checkpoints that a writer would load, by their length; it ignores others."""
    found: dict[int, DirectoryState] = {}
    disk = storage_of(folder)
    for name in disk.names(folder):
        made = DirectoryState()
        try:
            made.restore(disk.read(folder / name))
        except (OSError, ValueError):
            continue
        if made.length and name == f"{made.length:020d}.json":
            found[made.length] = made
    return found


def _compare(path: Path, checkpoint: DirectoryState, history: DirectoryState) -> None:
    if checkpoint.to_bytes() != history.to_bytes():
        raise SinkError(
            f"{path} does not say what the {history.length:,} entries before it say, and the next writer would trust "
            "it",
            cure=f"stop all writers of the directory, delete {path}, and audit again: it is only a cache of the "
            "entries",
        )


def _contradiction(entry: Entry, before: DirectoryState, named: Mapping[str, DataFile]) -> str:
    """Return how an entry contradicts the entries before it; empty if it does not."""
    for what in ("topology", "component"):
        known, said = getattr(before, what), getattr(entry, what)
        if known not in (None, said):
            return f"its {what} is {said}, but in the entries before it {known}"
    if wrong := _wrong_columns(entry, before):
        return wrong
    paths = [file.path for file in entry.files]
    if again := _first(path for path in paths if path in named):
        return f"it names {again}, which an earlier entry already names"
    if len(set(paths)) < len(paths):
        return "it names a file twice"
    if late := _first(path for path in paths if incarnation_of(path) in before.fenced):
        return f"it names {late}, whose writer was fenced before"
    if entry.kind in (FENCE, REBUILD) and (paths or entry.coverage.total):
        return f"a {entry.kind} has no files and no rows"
    if entry.kind == REBUILD and entry.rebuild <= before.rebuild:
        return f"rebuild {entry.rebuild} after rebuild {before.rebuild}"
    return _contradiction_of_compact(entry, before) if entry.kind == COMPACT else ""


def _contradiction_of_compact(entry: Entry, before: DirectoryState) -> str:
    if entry.coverage.total:
        return "a compaction adds rows"
    if absent := _first(path for path in entry.removed if path not in before.files):
        return f"it replaces {absent}, which is not a current file"
    removed = sum(before.files[path].rows for path in entry.removed)
    if entry.files and removed != entry.rows:
        return f"it replaces {removed:,} rows by {entry.rows:,}"
    if entry.gone_before > entry.number:
        return f"it says that files removed before the later entry {entry.gone_before} are gone"
    return ""


def _wrong_columns(entry: Entry, before: DirectoryState) -> str:
    """Return how an entry's columns contradict earlier ones: they may only repeat a version or grow."""
    if entry.kind == REBUILD:
        return ""
    try:
        why = before.refusals(entry.schema)
    except DownspoutError as error:  # no sink writes this
        why = [error.message]
    if not why:
        return ""
    said, known = ", ".join(entry.schema), ", ".join(before.schema or ())
    return f"its schema is {said}, but in the entries before it {known}: {'; '.join(why)}"


def _first(paths: Iterable[str]) -> str:
    return next(iter(paths), "")
