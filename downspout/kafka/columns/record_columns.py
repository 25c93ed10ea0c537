"""Records of one partition as columns, the result of ``poll`` for a consumer with ``columns=True``.

A :class:`RecordColumns` is a sequence of records. Its columns need no object per record: offsets and timestamps are
numpy arrays, keys and values Arrow arrays with nulls. Headers stay encoded until they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.kafka.columns.wire import NO_HEADERS, decoded_column, decoded_headers, encoded_headers, no_headers
from downspout.kafka.port import Record

_TIME_SPAN = 1 << 64
_new: Any = tuple.__new__


class ColumnRecord(NamedTuple):
    """One record of a :class:`RecordColumns`; a :class:`~downspout.kafka.port.Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp_type: int = 0


class RecordColumns(Sequence[Record]):
    """Records of one partition in offset order, as columns. Slices share the memory of what they were taken from.

    >>> first, second = ColumnRecord("t", 0, 7, 1000, None, b"a", []), ColumnRecord("t", 0, 9, 1001, b"k", b"b", [])
    >>> columns = RecordColumns.of([first, second])
    >>> len(columns), columns.offsets.tolist(), columns.values.to_pylist(), columns[-1].key
    (2, [7, 9], [b'a', b'b'], b'k')
    >>> [record.value for record in columns[1:]]
    [b'b']
    """

    __slots__ = ("_headers", "keys", "offsets", "partition", "timestamp_types", "timestamps", "topic", "values")

    def __init__(
        self,
        topic: str,
        partition: int,
        offsets: NDArray[np.int64],
        timestamps: NDArray[np.int64],
        timestamp_types: NDArray[np.int8],
        keys: pa.BinaryArray,
        values: pa.BinaryArray,
        headers: pa.BinaryArray | None = None,
    ) -> None:
        """``headers`` holds each record's encoded headers; None: no record has any."""
        self.topic = topic  # of all records
        self.partition = partition
        self.offsets = offsets  # int64, ascending, with gaps
        self.timestamps = timestamps  # int64, milliseconds since the epoch; -1: none
        self.timestamp_types = timestamp_types  # int8; 0: the producer's time, 1: the broker's, -1: none
        self.keys = keys  # binary, with nulls
        self.values = values  # binary, with nulls
        self._headers = headers

    @classmethod
    def of(cls, records: Sequence[Any]) -> RecordColumns:
        """Convert records of one partition to columns."""
        if isinstance(records, RecordColumns):
            return records
        if not records:
            raise ValueError("no records")
        first = records[0]
        kinds = [_kind(record) for record in records]
        return cls(
            first.topic,
            first.partition,
            np.array([record.offset for record in records], np.int64),
            np.array([_wrapped(record.timestamp) for record in records], np.int64),
            np.array(kinds, np.int8),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            _headers_of(records),
        )

    @classmethod
    def join(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """Join consecutive columns of one partition; a copy, unless there is only one."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        headers = None
        if any(part.has_headers for part in parts):
            headers = pa.concat_arrays([part.wire_headers() for part in parts])
        return cls(
            first.topic,
            first.partition,
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.timestamps for part in parts]),
            np.concatenate([part.timestamp_types for part in parts]),
            pa.concat_arrays([part.keys for part in parts]),
            pa.concat_arrays([part.values for part in parts]),
            headers,
        )

    # --- as columns ---

    @property
    def has_headers(self) -> bool:
        """Whether any record may have headers; False is certain."""
        return self._headers is not None

    def headers(self) -> Any:
        """Return the decoded headers: a list of structs ``<key: string, value: binary>`` for each record."""
        return no_headers(len(self)) if self._headers is None else decoded_column(self._headers)

    def may_have_header(self, name: str) -> bool:
        """Return whether any record may have a header whose name contains ``name``; False is certain. No decoding."""
        if self._headers is None:
            return False
        import pyarrow.compute as pc  # a quarter of a second of CPU, which few need

        return bool(pc.any(pc.match_substring(self._headers, name)).as_py())

    def wire_headers(self) -> pa.BinaryArray:
        """Return each record's encoded headers."""
        if self._headers is not None:
            return self._headers
        return pa.array(repeat(NO_HEADERS, len(self)), pa.binary(), size=len(self))

    @property
    def nbytes(self) -> int:
        """The size of keys, values and headers."""
        return sum(_bytes(array) for array in (self.keys, self.values, self._headers) if array is not None)

    # --- as a sequence of records ---

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> RecordColumns: ...

    def __getitem__(self, index: int | slice) -> Record | RecordColumns:
        if isinstance(index, slice):
            return self._slice(*index.indices(len(self)))
        row = range(len(self))[index]
        headers = [] if self._headers is None else decoded_headers(self._headers[row].as_py())
        record: Any = ColumnRecord(
            self.topic,
            self.partition,
            int(self.offsets[row]),
            int(self.timestamps[row]),
            self.keys[row].as_py(),
            self.values[row].as_py(),
            headers,
            int(self.timestamp_types[row]),
        )
        return record  # type: ignore[no-any-return]

    def _slice(self, start: int, stop: int, step: int) -> RecordColumns:
        if step != 1:
            return self.take(range(start, stop, step))
        count = max(stop - start, 0)
        return RecordColumns(
            self.topic,
            self.partition,
            self.offsets[start : start + count],
            self.timestamps[start : start + count],
            self.timestamp_types[start : start + count],
            self.keys.slice(start, count),
            self.values.slice(start, count),
            None if self._headers is None else self._headers.slice(start, count),
        )

    def take(self, rows: Any) -> RecordColumns:
        """Copy the records at ascending places."""
        at = np.array(rows, np.int64)
        chosen: Any = pa.array(at)
        return RecordColumns(
            self.topic,
            self.partition,
            self.offsets[at],
            self.timestamps[at],
            self.timestamp_types[at],
            self.keys.take(chosen),
            self.values.take(chosen),
            None if self._headers is None else self._headers.take(chosen),
        )

    def __iter__(self) -> Iterator[Record]:
        known: Any = self._headers
        headers: Any = iter(list, None) if known is None else map(decoded_headers, known.to_pylist())  # a list for each
        # One call into C per record, without Python code: record mode uses this.
        rows = zip(
            repeat(self.topic),
            repeat(self.partition),
            self.offsets.tolist(),
            self.timestamps.tolist(),
            self.keys.to_pylist(),
            self.values.to_pylist(),
            headers,
            self.timestamp_types.tolist(),
            strict=False,
        )
        return map(_new, repeat(ColumnRecord), rows)

    def __repr__(self) -> str:
        span = f"{self.offsets[0]} to {self.offsets[-1]}" if len(self) else "none"
        return f"<{len(self)} records of {self.topic}[{self.partition}]: {span}>"


def _kind(record: Record) -> int:
    """Return the type of a record's timestamp. Formats before version 1 have none: the client returns None."""
    kind = getattr(record, "timestamp_type", 0)
    return -1 if kind is None else int(kind)


def _wrapped(timestamp: int | None) -> int:
    """Wrap a timestamp to 64 bits, like Java's client: the sum of base and delta may exceed them."""
    if timestamp is None:
        return -1
    return (timestamp + _TIME_SPAN // 2) % _TIME_SPAN - _TIME_SPAN // 2


def _headers_of(records: Sequence[Record]) -> pa.BinaryArray | None:
    if not any(record.headers for record in records):
        return None
    return pa.array([encoded_headers(record.headers) for record in records], pa.binary())


def _bytes(array: pa.BinaryArray) -> int:
    """Return the size of a binary array's data in O(1)."""
    if not len(array):
        return 0
    places: Any = array.buffers()[1]
    ends = np.frombuffer(places, np.int32)
    return int(ends[array.offset + len(array)] - ends[array.offset])
