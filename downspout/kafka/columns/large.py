"""A batch that unpacks to more than one record may be: its records a few megabytes at a time, within the limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafka.errors import CorruptRecordError
from kafka.record.util import decode_varint

from downspout.kafka.columns.batch import Batch
from downspout.kafka.unreadable import CUT_BYTES, Limits, UnreadableBatchError

PORTION_BYTES = 4 * 1024 * 1024
PASSED_BYTES_MAX = 1 << 30
"""How much of records that are too large is unpacked, without keeping it, to come to the records behind them."""
_LENGTH_BYTES_MAX = 5


class Whole(NamedTuple):
    """Bytes of some records, one after the other."""

    data: bytes
    records: int


class Cut(NamedTuple):
    """What is known of a record that is too large: its size in bytes, and how it begins."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    size: int


def portions(batch: Batch, limits: Limits) -> Iterator[Whole | Cut]:
    """Yield the records of a batch in order; of those that are too large, the beginning.

    Raises:
        CorruptRecordError: this is no batch.
    """
    stream = _Stream(batch.stream(limits))
    kept = passed = size = count = 0
    parts: list[bytes] = []
    for number in range(batch.records_count):
        prefix, length = stream.length()
        is_large = length > limits.record_bytes
        if not is_large:
            kept += length
            if kept > limits.batch_bytes:
                break
            parts += (prefix, stream.take(length))
            size, count = size + length, count + 1
        if parts and (is_large or size >= PORTION_BYTES):
            yield Whole(b"".join(parts), count)
            parts, size, count = [], 0, 0
        if is_large:
            head = stream.take(min(length, CUT_BYTES))
            yield _cut(batch, head, length)
            passed += length
            if number + 1 == batch.records_count:
                return
            if passed > PASSED_BYTES_MAX:
                raise UnreadableBatchError(f"{passed:,} bytes of records before it are too large")
            stream.skip(length - len(head))
    if parts:
        yield Whole(b"".join(parts), count)
    if kept > limits.batch_bytes:
        raise UnreadableBatchError(
            f"its records unpack to more than {limits.batch_bytes:,} bytes",
            cure="kafka.batch_bytes_max, if the batch is sound; or kafka.on_corrupt_batch=dead_letter",
        )


class _Stream:
    """Reads pieces of bytes as if they were one."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._now = b""
        self._at = 0

    def length(self) -> tuple[bytes, int]:
        """Return the length of a record as it is written, and the number."""
        found = b""
        while not found or (found[-1] >= 0x80 and len(found) < _LENGTH_BYTES_MAX):
            found += self.take(1)
        try:
            number: int = decode_varint(found, 0)[0]
        except (IndexError, ValueError):
            number = -1
        if number < 0:
            raise CorruptRecordError("a record with an impossible length")
        return found, number

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        parts = []
        while size:
            part = self._some(size)
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> None:
        """Go on behind the next bytes."""
        while size:
            size -= len(self._some(size))

    def _some(self, most: int) -> bytes:
        while self._at == len(self._now):
            piece = next(self._pieces, None)
            if piece is None:
                raise CorruptRecordError("a record goes on beyond the end of its batch")
            self._now, self._at = piece, 0
        part = self._now[self._at : self._at + most]
        self._at += len(part)
        return part


def _cut(batch: Batch, head: bytes, size: int) -> Cut:
    """Return what the beginning of a record says."""
    try:
        delta_ms, at = decode_varint(head, 1)  # behind the attributes
        delta, at = decode_varint(head, at)
        key, at = _field(head, at)
        value = _field(head, at)[0] if at < len(head) else None
    except (IndexError, ValueError):
        raise CorruptRecordError("a record with impossible fields") from None
    offset = batch.base_offset + delta
    if not batch.base_offset <= offset <= batch.last_offset:
        raise CorruptRecordError("a record whose offset is not of its batch")
    timestamp = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + delta_ms
    return Cut(offset, timestamp, key, value, size)


def _field(head: bytes, at: int) -> tuple[bytes | None, int]:
    """Return as much of a key or a value as is there, and where the record goes on."""
    size, at = decode_varint(head, at)
    return (None, at) if size < 0 else (head[at : at + size], at + size)
