"""Record batches as Kafka sends them, decoded straight into Arrow columns.

kafka-python builds an object for each record; most of the time of reading goes into that. Here its fetcher gets another
class for the records of a fetch, which leaves everything to the client (check sums, transactions, positions) but the
last step: a Kafka batch becomes one :class:`Chunk`, its bytes and where each record begins in them. All chunks of a
poll are then decoded at once, with numpy for the numbers and one Arrow ``take`` for keys and values.

The hook is one class attribute of the fetcher, which is private: :func:`install` looks whether it is as we know it, and
otherwise leaves the consumer as it is; its records are then taken one by one. So are those in formats older than
version 2.

The layout of a record (KIP-98, version 2): length, attributes (one byte), timestamp delta, offset delta, length of the
key, key, length of the value, value, number of headers, headers. All numbers are zigzag varints.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import decode_varint
from kafka.structs import TopicPartition

from downspout.spark.source.ranges import place

Whole = npt.NDArray[np.int64]

HEADERS: Any = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_COLUMNS: Any = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
SCHEMA = pa.schema(_COLUMNS)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))
"""The connector's columns, as Spark's Arrow types have them."""


class Chunk:
    """One Kafka batch; to the fetcher it looks like a single record with the batch's last offset."""

    key = None
    headers: tuple[()] = ()
    checksum = None

    def __init__(self, batch: DefaultRecordBatch, data: bytes, starts: list[int]) -> None:
        self.data = data
        self.starts = starts
        self.base_offset: int = batch.base_offset
        self.offset: int = batch.last_offset
        self.timestamp_type: int = batch.timestamp_type
        # With the broker's time all records have the batch's.
        self.timestamp: int = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp
        self.size_in_bytes = len(data)

    @property
    def value(self) -> Chunk:
        """Itself: the fetcher hands on what a record has for a value."""
        return self

    def __len__(self) -> int:
        return self.size_in_bytes

    def validate_crc(self) -> bool:
        """Version 2 has no check sums for records; the batch's was looked at."""
        return True


class ChunkBatch(DefaultRecordBatch):
    """A batch that iterates as one chunk. ``next()``, by which the fetcher reads markers, still gives records."""

    __slots__ = ()  # without, a batch could not become one of these

    def __iter__(self) -> Iterator[Any]:
        self._maybe_uncompress()
        data = bytes(memoryview(self._buffer)[self._pos :])
        starts = _starts(data, self._num_records)
        if starts:  # compaction may leave a batch without records
            yield Chunk(self, data, starts)


def _starts(data: bytes, count: int) -> list[int]:
    """Return where each record begins, hopping over their lengths, and at last where the last one ends."""
    starts, at = [], 0
    try:
        for _ in range(count):
            starts.append(at)
            first = data[at]
            if first < 0x80:
                at += 1 + (first >> 1)
            else:
                length, at = decode_varint(data, at)
                at += length
    except (IndexError, ValueError):
        at = -1
    if at != len(data):
        raise CorruptRecordError(f"{count} records take {at} of {len(data)} bytes")
    return starts


class _Batches:
    """The batches of one fetch, those of version 2 as chunks."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        """Return the next batch, or None."""
        batch = self._records.next_batch()
        if type(batch) is DefaultRecordBatch:
            batch.__class__ = ChunkBatch
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)


def chunked(known: type[Any]) -> type[Any]:
    """Return a class for the records of a fetch that makes chunks where ``known`` makes records."""

    class ChunkRecords(known):
        def __init__(self, fetch_offset: int, tp: Any, records: Any, **more: Any) -> None:
            super().__init__(fetch_offset, tp, _Batches(records), **more)

    return ChunkRecords


def install(consumer: Any) -> bool:
    """Let a consumer's polls return chunks; return whether its fetcher is one that we know."""
    fetcher = getattr(consumer, "_fetcher", None)
    known = getattr(fetcher, "PartitionRecords", None)
    if fetcher is None or not (isinstance(known, type) and issubclass(known, Fetcher.PartitionRecords)):
        return False
    parameters = list(inspect.signature(Fetcher.PartitionRecords.__init__).parameters)[:4]
    parts = (Fetcher.PartitionRecords, "_unpack_records"), (DefaultRecordBatch, "_maybe_uncompress")
    if parameters != ["self", "fetch_offset", "tp", "records"] or not all(hasattr(*part) for part in parts):
        return False
    fetcher.PartitionRecords = chunked(known)
    return True


def decode(where: TopicPartition, chunks: Sequence[Chunk], begin: int, end: int, *, headers: bool) -> pa.RecordBatch:
    """Return the records of chunks whose offsets lie from ``begin`` up to, and without, ``end``.

    Raises:
        CorruptRecordError: a record's fields do not fill its length.
    """
    counts = [len(chunk.starts) for chunk in chunks]
    bases = np.cumsum([0] + [len(chunk.data) for chunk in chunks])
    data = b"".join(chunk.data for chunk in chunks)
    octets = np.frombuffer(data, np.uint8)
    starts = np.concatenate([np.asarray(chunk.starts, np.int64) + bases[n] for n, chunk in enumerate(chunks)])
    ends = np.append(starts[1:], len(data))
    _, at = _varints(octets, starts)
    delta_ms, at = _varints(octets, at + 1)
    delta, at = _varints(octets, at)
    offsets = np.repeat([chunk.base_offset for chunk in chunks], counts) + delta
    first, last = np.searchsorted(offsets, [begin, end])
    key, value, at = _keys_and_values(data, octets, at)
    number, at = _varints(octets, at)
    if bool((at > ends).any()) or bool((number < 0).any()) or bool(((number == 0) & (at != ends)).any()):
        raise CorruptRecordError(f"a record at or after {place(where, int(offsets[0]))} has another length")
    kinds = np.repeat([chunk.timestamp_type for chunk in chunks], counts).astype(np.int32)
    stamps = np.repeat([chunk.timestamp for chunk in chunks], counts) + np.where(kinds == 0, delta_ms, 0)
    count = len(starts)
    arrays: list[Any] = [
        key,
        value,
        pa.repeat(pa.scalar(where.topic), count),
        pa.repeat(pa.scalar(where.partition, pa.int32()), count),
        pa.array(offsets),
        pa.array(stamps * 1000).cast(pa.timestamp("us", tz="UTC")),
        pa.array(kinds),
    ]
    if headers:
        arrays.append(_headers(data, at, number))
    schema = SCHEMA_WITH_HEADERS if headers else SCHEMA
    return pa.RecordBatch.from_arrays(arrays, schema=schema).slice(int(first), int(last - first))


def _varints(octets: npt.NDArray[np.uint8], at: Whole) -> tuple[Whole, Whole]:
    """Return the zigzag varints that begin at these places, and where each ends."""
    try:
        byte = octets[at]
        value = (byte & 0x7F).astype(np.uint64)
        at = at + 1
        rows = np.flatnonzero(byte >= 0x80)
        shift = 7
        while len(rows):
            if shift > 63:
                raise CorruptRecordError("a number is longer than ten bytes")
            byte = octets[at[rows]]
            value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[rows] += 1
            rows = rows[byte >= 0x80]
            shift += 7
    except IndexError:
        raise CorruptRecordError("a record ends in the middle of a number") from None
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), at


def _keys_and_values(data: bytes, octets: npt.NDArray[np.uint8], at: Whole) -> tuple[Any, Any, Whole]:
    """Return both columns, and where each record's headers begin.

    One binary array is laid over the buffer whose elements are, for each record: key, what lies between, value, what
    lies up to the next key. ``take`` then gathers every fourth.
    """
    key_size, key_at = _varints(octets, at)
    key_end = key_at + np.maximum(key_size, 0)
    value_size, value_at = _varints(octets, key_end)
    value_end = value_at + np.maximum(value_size, 0)
    if int(value_end.max()) > len(data):
        raise CorruptRecordError("a value is longer than its record")
    places: Any = np.empty(4 * len(at) + 1, np.int32)
    places[0:-1:4], places[1::4], places[2::4], places[3::4] = key_at, key_end, value_at, value_end
    places[-1] = value_end[-1]
    laid: Any = pa.BinaryArray.from_buffers(pa.binary(), 4 * len(at), [None, pa.py_buffer(places), pa.py_buffer(data)])
    rows: Any = np.arange(0, 4 * len(at), 4)
    key = laid.take(pa.array(rows, mask=key_size < 0))
    return key, laid.take(pa.array(rows + 2, mask=value_size < 0)), value_end


def _headers(data: bytes, at: Whole, number: Whole) -> Any:
    """Return the column of headers; null for a record without."""
    if not number.any():
        return pa.nulls(len(at), HEADERS)
    found: list[list[dict[str, Any]] | None] = []
    for start, count in zip(at.tolist(), number.tolist(), strict=True):
        pairs, cursor = [], start
        for _ in range(count):
            size, cursor = decode_varint(data, cursor)
            key, cursor = data[cursor : cursor + size].decode(), cursor + size
            size, cursor = decode_varint(data, cursor)
            pairs.append({"key": key, "value": None if size < 0 else data[cursor : cursor + size]})
            cursor += max(size, 0)
        found.append(pairs or None)
    return pa.array(found, HEADERS)
