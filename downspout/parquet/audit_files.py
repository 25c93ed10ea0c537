"""The audit's first witness: what is in the data files, and whether they are those that the log names.

Nothing here trusts the sink. The rows' origins are read from every visible file, as any reader sees them. Only
aggregates, whose files hold no origins, are taken from the log, and only from entries whose files are all in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from downspout.parquet import spans
from downspout.parquet.coverage import Coverage, Stream
from downspout.parquet.entry import DataFile, Entry
from downspout.parquet.layout import STAGING_FOLDER
from downspout.parquet.log import CommitLog
from downspout.parquet.spans import Spans

__all__ = ["Found", "look_at_files", "visible_files"]

_ORIGIN = ("_topic", "_topic_id", "_partition", "_offset", "_path")
_TEXTS = ("_topic", "_topic_id", "_path")


@dataclass
class Found:
    """What the files and the log say.

    Attributes:
        entries: how many the log has.
        rows: in each stream, the offsets with a row that a reader sees.
        surplus: in each stream, the rows beyond the first of their offset: an offset with three rows stands here twice.
        repeated_in: files that hold rows of offsets with several: how many.
        logged: what the log covers.
        aggregates: whether the files hold partial results instead of rows.
        row_count: rows in all visible files.
        file_count: how many files are visible.
        without_origin: rows that tell no origin.
        gone: files that the log names and that are nowhere.
        staged: files that are committed but not renamed into sight yet.
        unknown: visible files that the log does not name.
        changed: files that have another size or number of rows than the log says.
        unreadable: files that are no Parquet, with the reason.
        leftovers: staged files that no entry names: of flushes that were stopped.
    """

    entries: int = 0
    rows: dict[Stream, Spans] = field(default_factory=dict)
    surplus: dict[Stream, Spans] = field(default_factory=dict)
    repeated_in: dict[str, int] = field(default_factory=dict)
    logged: dict[Stream, Spans] = field(default_factory=dict)
    aggregates: bool = False
    row_count: int = 0
    file_count: int = 0
    without_origin: int = 0
    gone: list[str] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    leftovers: int = 0

    @property
    def streams(self) -> list[Stream]:
        """All streams that files or log know, sorted."""
        return sorted({*self.rows, *self.logged})


def visible_files(directory: Path) -> Iterator[Path]:
    """Yield the data files that Spark reads: no part of the path is hidden by a leading ``.`` or ``_``.

    As in Spark, ``_x=1`` is not hidden, because it is a Hive folder.
    """
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.name[0] == "." or (path.name[0] == "_" and "=" not in path.name):
            continue
        if path.is_dir():
            yield from visible_files(path)
        elif path.suffix == ".parquet":
            yield path


def look_at_files(directory: Path) -> Found:
    """Read the log and the origins of all rows. Memory: about 40 bytes per row of the largest stream, 8 for the others.

    Writers may be at work meanwhile. The files are listed before the log is read: a file comes into sight after its
    entry was made, so the log names each file that was listed. A file of a later entry is looked up by its name.

    Raises:
        SinkError: the log is damaged or has holes: then nothing can be said.
    """
    found = Found()
    on_disk = {path.relative_to(directory).as_posix(): path for path in visible_files(directory)}
    log = CommitLog(directory, checkpoints=False)
    entries = log.refresh()
    log.check_complete()
    found.entries = len(entries)
    found.logged = {stream: log.coverage.ranges(stream) for stream in log.coverage.streams()}
    named = log.files
    for name in named.keys() - on_disk.keys():
        _look_up(name, directory, on_disk, found)
    reader = _OriginReader()
    counts = {name: _read(reader, name, path, found) for name, path in on_disk.items()}
    found.file_count = len(on_disk)
    _compare(found, directory, named, counts)
    found.aggregates = bool(found.logged) and reader.files == 0 and reader.without > 0
    if found.aggregates:
        _take_from_log(found, entries)
    else:
        found.without_origin = reader.without
        reader.result(found)
        if found.surplus:
            _name_repeats(found, on_disk)
    return found


def _look_up(name: str, directory: Path, on_disk: dict[str, Path], found: Found) -> None:
    """Say where a file of the log is that was not listed. It may be renamed into sight at this very moment."""
    path, staged = directory / name, directory / STAGING_FOLDER / name
    if path.exists() or (not staged.exists() and path.exists()):
        on_disk[name] = path
    elif staged.exists():
        found.staged.append(name)
    else:
        found.gone.append(name)


def _read(reader: _OriginReader, name: str, path: Path, found: Found) -> int:
    """Take a file's origins; return its number of rows, -1 where it cannot be read."""
    try:
        rows = reader.read(path)
    except (OSError, pa.ArrowException) as error:
        found.unreadable[name] = " ".join(str(error).split())[:200]
        return -1
    found.row_count += rows
    return rows


def _compare(found: Found, directory: Path, named: dict[str, DataFile], counts: dict[str, int]) -> None:
    """Say which files are not as the log has them."""
    for name, file in named.items():
        if name in counts and name not in found.unreadable:
            size = (directory / name).stat().st_size
            if (counts[name], size) != (file.rows, file.bytes):
                found.changed.append(name)
    found.gone.sort()
    found.staged.sort()
    found.unknown = sorted(counts.keys() - named.keys()) if found.entries else []
    staging = directory / STAGING_FOLDER
    hidden = {path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file()}
    found.leftovers = len(hidden - named.keys())


def _name_repeats(found: Found, on_disk: dict[str, Path]) -> None:
    """Say which files hold the rows of offsets that have several. Reads all files again, which only damage needs."""
    repeated = Coverage()
    for stream, ranges in found.surplus.items():
        for start, end in spans.union(ranges):
            repeated.add_range(stream, start, end)
    for name, path in on_disk.items():
        if name in found.unreadable:
            continue
        _, parts = _origins(path)
        if rows := sum(int(repeated.contains(stream, offsets).sum()) for stream, offsets in parts or ()):
            found.repeated_in[name] = rows


def _take_from_log(found: Found, entries: Sequence[Entry]) -> None:
    """Take an aggregate's rows from those entries whose files are as they were written."""
    known = Coverage()
    broken = {*found.gone, *found.staged, *found.changed, *found.unreadable}
    for entry in entries:
        if not broken.isdisjoint(file.path for file in entry.files):
            continue
        if entry.coverage.intersects(known):
            for stream in entry.coverage.streams():
                again = spans.intersect(known.ranges(stream), entry.coverage.ranges(stream))
                found.surplus[stream] = [*found.surplus.get(stream, []), *again]
            found.repeated_in.update({file.path: file.rows for file in entry.files})
        known.update(entry.coverage)
    found.rows = {stream: known.ranges(stream) for stream in known.streams()}


class _OriginReader:
    """Collects the offsets of each stream, file by file, as arrays."""

    def __init__(self) -> None:
        self._offsets: dict[Stream, list[NDArray[np.int64]]] = {}
        self.files = 0
        """files with origin columns"""
        self.without = 0
        """rows without origins"""

    def read(self, path: Path) -> int:
        """Read one file; return how many rows it has."""
        count, parts = _origins(path)
        if parts is None:
            self.without += count
            return count
        self.files += 1
        self.without += count - sum(len(offsets) for _, offsets in parts)
        for stream, offsets in parts:
            self._offsets.setdefault(stream, []).append(offsets)
        return count

    def result(self, found: Found) -> None:
        """Write down what was read."""
        for stream in list(self._offsets):
            ordered = np.sort(np.concatenate(self._offsets.pop(stream)))
            found.rows[stream] = spans.of_offsets(ordered)
            further: Spans = []
            # One round for each time that the most frequent row is there too often.
            while len(ordered := ordered[1:][ordered[1:] == ordered[:-1]]):
                further += spans.of_offsets(ordered)
            if further:
                found.surplus[stream] = further


def _origins(path: Path) -> tuple[int, list[tuple[Stream, NDArray[np.int64]]] | None]:
    """Return the number of rows of a file and the offsets by stream; None where it has no origin columns.

    Rows of which a part of the origin is null have no origin.
    """
    metadata = pq.read_metadata(path)
    count = int(metadata.num_rows)
    schema = metadata.schema.to_arrow_schema()
    if not set(_ORIGIN) <= set(schema.names):
        return count, None
    _check_types(schema)
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=list(_TEXTS)) as file:
        table = file.read(columns=list(_ORIGIN))
    for name in _ORIGIN:
        if table.column(name).null_count:
            table = table.filter(table.column(name).is_valid())
    return count, _by_stream(table) if table.num_rows else []


def _check_types(schema: pa.Schema) -> None:
    """Raise ArrowInvalid where a column cannot be a part of an origin: the file is not a sink's."""
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
