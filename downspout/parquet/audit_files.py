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
from downspout.parquet.coverage import Stream
from downspout.parquet.log import STAGING_FOLDER, Entry, read_entries
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
        repeated: those with more than one row.
        surplus: in each stream, rows beyond the first of their identity.
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
    repeated: dict[Stream, Spans] = field(default_factory=dict)
    surplus: dict[Stream, int] = field(default_factory=dict)
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
    """Read the log and the origins of all rows. Memory: 12 bytes per row.

    Raises:
        SinkError: the log is damaged or has holes: then nothing can be said.
    """
    found = Found()
    entries = read_entries(directory)
    found.entries = len(entries)
    for entry in entries:
        _add(found.logged, _spans(entry))
    on_disk = {path.relative_to(directory).as_posix(): path for path in visible_files(directory)}
    reader = _OriginReader()
    counts = {name: _read(reader, name, path, found) for name, path in on_disk.items()}
    found.file_count = len(on_disk)
    _compare(found, directory, entries, counts)
    found.aggregates = bool(found.logged) and reader.files == 0 and reader.without > 0
    if found.aggregates:
        _take_from_log(found, entries)
    else:
        found.without_origin = reader.without
        reader.result(found)
    return found


def _spans(entry: Entry) -> dict[Stream, Spans]:
    return {stream: entry.coverage.ranges(stream) for stream in entry.coverage.streams()}


def _add(total: dict[Stream, Spans], more: dict[Stream, Spans]) -> None:
    for stream, ranges in more.items():
        total[stream] = spans.union(total.get(stream, []), ranges)


def _read(reader: _OriginReader, name: str, path: Path, found: Found) -> int:
    """Take a file's origins; return its number of rows, -1 where it cannot be read."""
    try:
        rows = reader.read(path)
    except (OSError, pa.ArrowException) as error:
        found.unreadable[name] = " ".join(str(error).split())[:200]
        return -1
    found.row_count += rows
    return rows


def _compare(found: Found, directory: Path, entries: Sequence[Entry], counts: dict[str, int]) -> None:
    """Say which files are not as the log has them."""
    staging = directory / STAGING_FOLDER
    named = {file.path: file for entry in entries for file in entry.files}
    for name, file in named.items():
        if name in counts:
            size = (directory / name).stat().st_size
            if name not in found.unreadable and (counts[name], size) != (file.rows, file.bytes):
                found.changed.append(name)
        elif (staging / name).exists():
            found.staged.append(name)
        else:
            found.gone.append(name)
    found.unknown = sorted(counts.keys() - named.keys()) if entries else []
    hidden = {path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file()}
    found.leftovers = len(hidden - named.keys())


def _take_from_log(found: Found, entries: Sequence[Entry]) -> None:
    """Take an aggregate's rows from those entries whose files are as they were written."""
    broken = {*found.gone, *found.staged, *found.changed, *found.unreadable}
    for entry in entries:
        if not broken.isdisjoint(file.path for file in entry.files):
            continue
        for stream, ranges in _spans(entry).items():
            known = found.rows.get(stream, [])
            if again := spans.intersect(known, ranges):
                found.repeated[stream] = spans.union(found.repeated.get(stream, []), again)
                found.surplus[stream] = found.surplus.get(stream, 0) + spans.count(again)
            found.rows[stream] = spans.union(known, ranges)


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
        metadata = pq.read_metadata(path)
        count = int(metadata.num_rows)
        if not set(_ORIGIN) <= set(metadata.schema.names):
            self.without += count
            return count
        with pq.ParquetFile(path, metadata=metadata, read_dictionary=list(_TEXTS)) as file:
            table = file.read(columns=list(_ORIGIN))
        self.files += 1
        known = table.filter(table.column("_offset").is_valid())
        self.without += count - known.num_rows
        if known.num_rows:
            self._take(known)
        return count

    def _take(self, table: pa.Table) -> None:
        offsets = table.column("_offset").to_numpy().astype(np.int64, copy=False)
        codes = np.zeros(len(offsets), dtype=np.int64)
        values: list[list[object]] = []
        for name in (*_TEXTS, "_partition"):
            column: Any = table.column(name).unify_dictionaries().combine_chunks()
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            values.append(encoded.dictionary.to_pylist())
            # A null in a text column never comes from a sink; code -1 + 1 keeps it apart from the others.
            codes = codes * (len(values[-1]) + 1) + encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False) + 1
        order = np.argsort(codes, kind="stable")
        present, first = np.unique(codes[order], return_index=True)
        for code, part in zip(present.tolist(), np.split(offsets[order], first[1:]), strict=True):
            self._offsets.setdefault(_stream(code, values), []).append(part)

    def result(self, found: Found) -> None:
        """Write down what was read."""
        for stream, parts in self._offsets.items():
            ordered = np.sort(np.concatenate(parts))
            found.rows[stream] = spans.of_offsets(ordered)
            again = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(again):
                found.repeated[stream] = spans.of_offsets(again)
                found.surplus[stream] = len(again)


def _stream(code: int, values: Sequence[Sequence[object]]) -> Stream:
    picked: list[object] = []
    for column in reversed(values):
        code, index = divmod(code, len(column) + 1)
        picked.append(column[index - 1] if index else None)
    partition, path, topic_id, topic = picked
    return Stream(str(topic or ""), str(topic_id or ""), int(str(partition or 0)), str(path or ""))
