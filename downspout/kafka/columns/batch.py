"""Record batches of version 2 (KIP-98): where they begin and end in what was fetched, and what their headers say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import Any

from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatch
from kafka.record.util import calc_crc32c

from downspout.kafka.columns.unpacking import unpacked, unpacked_whole
from downspout.kafka.columns.varints import NotStraight
from downspout.kafka.patches.unbounded_unpacking import ReadableBatch, old_batch, unpacked_batch
from downspout.kafka.unreadable import Limits, UnreadableBatchError

_PREFIX = Struct(">qi")  # Offset and size, which all formats have
_MAGIC_AT = 16
_PREFIX_AND_MAGIC = _MAGIC_AT + 1
_HEADER = Struct(">qiibIhiqqqhii")
"""base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and maximal timestamp, producer's
id and epoch, base sequence, count"""
_CHECKED_FROM = 21  # The CRC covers what follows it
_CODEC, _BROKERS_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


Unpacked = tuple[bytes, int, int]  # Bytes with the records of a batch, where they begin and where they end


class Batch:
    """The header of one batch; its records stay where they are. What the client asks of it has the client's names."""

    __slots__ = (
        "_attributes", "_crc", "_data", "_start", "base_offset", "end", "first_timestamp", "last_offset",
        "leader_epoch", "max_timestamp", "producer_id", "records_count",
    )  # fmt: skip

    magic = 2

    def __init__(self, data: bytes, start: int, end: int) -> None:
        if end - start < _HEADER.size:
            raise CorruptRecordError(f"a batch of {end - start} bytes at {start}; its header alone has {_HEADER.size}")
        (
            self.base_offset, _, self.leader_epoch, _, self._crc, self._attributes, delta, self.first_timestamp,
            self.max_timestamp, self.producer_id, _, _, self.records_count,
        ) = _HEADER.unpack_from(data, start)  # fmt: skip
        self.last_offset = self.base_offset + delta
        self._data, self._start, self.end = data, start, end

    @property
    def next_offset(self) -> int:
        """The offset after the batch, even if compaction took its last records."""
        return int(self.last_offset + 1)

    @property
    def is_transactional(self) -> bool:
        """Whether a transaction must be committed for it to count."""
        return bool(self._attributes & _TRANSACTIONAL)

    @property
    def is_control_batch(self) -> bool:
        """Whether it is a marker, not for consumers."""
        return bool(self._attributes & _CONTROL)

    @property
    def timestamp_type(self) -> int:
        """1: the records have the broker's time, 0: the producer's."""
        return int(bool(self._attributes & _BROKERS_TIME))

    def has_producer_id(self) -> bool:
        """Return whether it came from an idempotent producer."""
        return bool(self.producer_id >= 0)

    def validate_crc(self) -> bool:
        """Return whether the check sum is that of the bytes."""
        return bool(calc_crc32c(memoryview(self._data)[self._start + _CHECKED_FROM : self.end]) == self._crc)

    def of_the_client(self, records: Unpacked | None = None) -> Any:
        """Return the same batch as kafka-python has it; with its records unpacked, where they are given."""
        whole = memoryview(self._data)[self._start : self.end]
        if records is None:
            return ReadableBatch(whole)
        data, start, end = records
        return unpacked_batch(whole, data[start:end], self.records_count)

    def part(self, count: int) -> Batch:
        """Return the header of a batch with this number of records."""
        made = Batch(self._data, self._start, self.end)
        made.records_count = count
        return made

    def records(self, limits: Limits = Limits()) -> Unpacked | None:  # noqa: B008 - it cannot change
        """Return bytes in which the records are, uncompressed, where they begin, and where they end.

        None: they are more than one record may be, and :meth:`stream` gives them bit by bit.

        Raises:
            CorruptRecordError: they cannot be unpacked.
        """
        start = self._start + _HEADER.size
        kind, most = self._attributes & _CODEC, min(limits.record_bytes, limits.batch_bytes)
        if not kind:
            return (self._data, start, self.end) if self.end - start <= most else None
        try:
            found = unpacked_whole(kind, self._data[start : self.end], most, limits.batch_bytes)
        except UnsupportedCodecError as error:
            raise NotStraight(str(error)) from error
        return None if found is None else (found, 0, len(found))

    def stream(self, limits: Limits) -> Iterator[bytes]:
        """Yield the bytes of the records, uncompressed, in pieces. Errors are those of :meth:`records`."""
        packed = self._data[self._start + _HEADER.size : self.end]
        kind = self._attributes & _CODEC
        yield from unpacked(kind, packed, limits.batch_bytes) if kind else (packed,)


def batches(data: bytes, limits: Limits = Limits()) -> Iterator[Any]:  # noqa: B008 - it cannot change
    """Yield a :class:`Batch` for each of version 2, and the client's own object for an older one.

    What a fetch has cut off at its end is left out; it will be fetched again.

    Raises:
        CorruptRecordError: a batch has a size that cannot be.
    """
    at, end = 0, len(data)
    while end - at >= _PREFIX.size:
        _, length = _PREFIX.unpack_from(data, at)
        next_at = at + _PREFIX.size + length
        if next_at > end:
            return
        if next_at - at >= _PREFIX_AND_MAGIC and data[at + _MAGIC_AT] == Batch.magic:
            yield Batch(data, at, next_at)
        else:
            yield _of_the_client(data, at, next_at, limits)
        at = next_at


def _of_the_client(data: bytes, start: int, end: int, limits: Limits) -> Any:
    """Return a batch as the client makes it."""
    try:
        found = MemoryRecords(data[start:end]).next_batch() if end > start else None
    except StructError as error:
        raise CorruptRecordError(f"a batch of {end - start} bytes at {start}: {error}") from error
    if found is None:
        raise CorruptRecordError(f"a batch of {end - start} bytes at {start}")
    if isinstance(found, LegacyRecordBatch):
        return old_batch(found, partial(_unpacked_old, limits.batch_bytes))
    return found


def _unpacked_old(most: int, kind: int, packed: bytes) -> bytes:
    """Return what was packed in a batch older than version 2."""
    found = unpacked_whole(kind, packed, most, most)
    if found is None:
        raise UnreadableBatchError(f"it unpacks to more than {most:,} bytes (kafka.batch_bytes_max)")
    return found
