"""Find, parse and unpack record batches of version 2 (KIP-98) in fetched bytes.

kafka-python unpacks a batch whole, whatever its size. Here it is unpacked in pieces: the reader may stop at any time,
and at most one piece is unpacked in advance.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import Any

from kafka import codec
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatch
from kafka.record.util import calc_crc32c

from downspout.kafka.columns.wire import FastPathMiss
from downspout.kafka.patches.fetching import ReadableBatch, old_batch, unpacked_batch
from downspout.kafka.unreadable import Limits, UnreadableBatchError

# --- Unpacking ---

PIECE_BYTES = 1024 * 1024
INPUT_BYTES = 64 * 1024
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_NUMBER_BYTES_MAX = 5


def unpacked(kind: int, data: bytes, most: int) -> Iterator[bytes]:
    """Yield unpacked data, in pieces of at most a mebibyte; with snappy, of at most ``most`` bytes.

    >>> b"".join(unpacked(1, zlib.compress(b"x" * 5, wbits=31), most=100))
    b'xxxxx'

    ``kind`` is 1 to 4: gzip, snappy, lz4, zstd. Snappy unpacks whole blocks only: one above ``most`` is refused.
    """
    name = CODECS.get(kind)
    if name is None:
        raise UnsupportedCodecError(f"Unrecognized compression type: {kind}")
    if not getattr(codec, f"has_{name}")() or (name == "lz4" and codec.lz4 is None):
        raise UnsupportedCodecError(f"Libraries for {name} compression codec not found")
    try:
        yield from _UNPACKERS[name](data, most)
    except (CorruptRecordError, GeneratorExit, MemoryError):
        raise
    except Exception as error:  # each package has errors of its own
        raise CorruptRecordError(f"it cannot be unpacked: {name}: {error}") from error


def unpacked_whole(kind: int, data: bytes, most: int, block_max: int) -> bytes | None:
    """Return unpacked data; None: more than ``most`` bytes. Raises like :func:`unpacked`."""
    parts, size = [], 0
    for part in unpacked(kind, data, block_max):
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _gzip(data: bytes, most: int) -> Iterator[bytes]:
    left = data
    while left:
        one = zlib.decompressobj(31)
        at = 0
        while not one.eof:
            if at >= len(left):
                raise CorruptRecordError("it cannot be unpacked: gzip: it ends too soon")
            found = one.decompress(left[at : at + INPUT_BYTES], PIECE_BYTES)
            at += INPUT_BYTES
            while found:
                yield found
                found = one.decompress(one.unconsumed_tail, PIECE_BYTES) if not one.eof else b""
        left = (one.unused_data + left[at:]).lstrip(b"\0")


def _lz4(data: bytes, most: int) -> Iterator[bytes]:
    one = codec.lz4.LZ4FrameDecompressor()
    for at in range(0, len(data), INPUT_BYTES):
        if one.eof:
            return
        found = one.decompress(data[at : at + INPUT_BYTES], PIECE_BYTES)
        while found:
            yield found
            found = b"" if one.eof or one.needs_input else one.decompress(b"", PIECE_BYTES)
    if not one.eof:
        raise CorruptRecordError("it cannot be unpacked: lz4: it ends too soon")


def _zstd(data: bytes, most: int) -> Iterator[bytes]:
    with codec.zstd.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while found := reader.read(PIECE_BYTES):
            yield found


def _snappy(data: bytes, most: int) -> Iterator[bytes]:
    if len(data) <= _XERIAL_HEADER or not data.startswith(_XERIAL):
        yield _snappy_block(data, most)
        return
    at = _XERIAL_HEADER
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size <= 0:
            raise CorruptRecordError(f"it cannot be unpacked: snappy: a block of {size} bytes")
        # The last block may claim more bytes than remain: like the client, accept those.
        yield _snappy_block(data[at : at + size], most)
        at += size


def _snappy_block(block: bytes, most: int) -> bytes:
    """Unpack a block, which begins with its unpacked size."""
    size = shift = 0
    for byte in block[:_NUMBER_BYTES_MAX]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most:
        raise CorruptRecordError(
            f"a block of snappy unpacks to {size:,} bytes, the limit is {most:,} (four times kafka.record_bytes_max)"
        )
    found: bytes = codec.snappy.decompress(block)
    return found


_UNPACKERS: dict[str, Callable[[bytes, int], Iterator[Any]]] = {
    "gzip": _gzip, "snappy": _snappy, "lz4": _lz4, "zstd": _zstd,
}  # fmt: skip


# --- Batches ---

_PREFIX = Struct(">qi")  # Offset and size, in all formats
_MAGIC_AT = 16
_PREFIX_AND_MAGIC = _MAGIC_AT + 1
_HEADER = Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and maximum timestamp, producer
id and epoch, base sequence, count."""
_CHECKED_FROM = 21  # The CRC covers what follows it
_CODEC, _BROKERS_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


Unpacked = tuple[bytes, int, int]  # Bytes with the records of a batch, and the beginning and end of these


class WireBatch:
    """The header of one batch, without a copy of its records. Members used by the client have its names."""

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
        """Whether it is part of a transaction."""
        return bool(self._attributes & _TRANSACTIONAL)

    @property
    def is_control_batch(self) -> bool:
        """Whether it is a transaction marker."""
        return bool(self._attributes & _CONTROL)

    @property
    def timestamp_type(self) -> int:
        """1: the records have the broker's time, 0: the producer's."""
        return int(bool(self._attributes & _BROKERS_TIME))

    def has_producer_id(self) -> bool:
        """Return whether its producer was idempotent."""
        return bool(self.producer_id >= 0)

    def validate_crc(self) -> bool:
        """Return whether the checksum matches the bytes."""
        return bool(calc_crc32c(memoryview(self._data)[self._start + _CHECKED_FROM : self.end]) == self._crc)

    def of_the_client(self, records: Unpacked | None = None) -> Any:
        """Return kafka-python's object for the batch, with its records unpacked if given."""
        whole = memoryview(self._data)[self._start : self.end]
        if records is None:
            return ReadableBatch(whole)
        data, start, end = records
        return unpacked_batch(whole, data[start:end], self.records_count)

    def part(self, count: int) -> WireBatch:
        """Return the same header with another number of records."""
        made = WireBatch(self._data, self._start, self.end)
        made.records_count = count
        return made

    def records(self, limits: Limits = Limits()) -> Unpacked | None:  # noqa: B008 - it cannot change
        """Return the unpacked records; None: they exceed the limit of one record, so use :meth:`stream`.

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
            raise FastPathMiss(str(error)) from error
        return None if found is None else (found, 0, len(found))

    def stream(self, limits: Limits) -> Iterator[bytes]:
        """Yield the unpacked records in pieces of bytes. Raises like :meth:`records`."""
        packed = self._data[self._start + _HEADER.size : self.end]
        kind = self._attributes & _CODEC
        yield from unpacked(kind, packed, limits.batch_bytes) if kind else (packed,)


def batches(data: bytes, limits: Limits = Limits()) -> Iterator[Any]:  # noqa: B008 - it cannot change
    """Yield a :class:`WireBatch` for each batch of version 2, and the client's own object for an older one.

    A partial batch at the end is dropped; it will be fetched again.

    Raises:
        CorruptRecordError: a batch has an impossible size.
    """
    at, end = 0, len(data)
    while end - at >= _PREFIX.size:
        _, length = _PREFIX.unpack_from(data, at)
        next_at = at + _PREFIX.size + length
        if next_at > end:
            return
        if next_at - at >= _PREFIX_AND_MAGIC and data[at + _MAGIC_AT] == WireBatch.magic:
            yield WireBatch(data, at, next_at)
        else:
            yield _of_the_client(data, at, next_at, limits)
        at = next_at


def _of_the_client(data: bytes, start: int, end: int, limits: Limits) -> Any:
    """Return the client's object for a batch."""
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
    """Unpack a batch older than version 2."""
    found = unpacked_whole(kind, packed, most, most)
    if found is None:
        raise UnreadableBatchError(f"it unpacks to more than {most:,} bytes (four times kafka.record_bytes_max)")
    return found
