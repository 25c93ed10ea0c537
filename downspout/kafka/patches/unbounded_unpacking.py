"""Batches that are unpacked whole, whatever comes of it, and names of headers that end it.

Wrong: the client unpacks a compressed batch in one go, with no limit: some kilobytes may hold gigabytes, and one
    such batch ends the process. A batch whose records we have unpacked cannot be handed to it. And a header's name that
    is not UTF-8 makes the whole batch unreadable, though any producer may write one; Java's client replaces the bytes.
Patch: batches are unpacked by us, within limits, and put into the client's own objects, so that it reads their
    records as ever. A batch older than format 2 is unpacked by a function that it is given. A record with such a name
    is read once more, with bytes that are no text replaced.
Self-test: what the client's batches keep, and what unpacks an old one.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client takes a limit for what a batch may unpack to, and raises beyond it; and reads such names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka import codec
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecordBatch

CLASSES = {
    "MemoryRecords._buffer": "member_descriptor",
    "DefaultRecordBatch._buffer": "member_descriptor",
    "DefaultRecordBatch._pos": "member_descriptor",
    "DefaultRecordBatch._decompressed": "member_descriptor",
    "DefaultRecordBatch._num_records": "member_descriptor",
    "DefaultRecordBatch._read_msg": "function",
    "LegacyRecordBatch._buffer": "member_descriptor",
    "LegacyRecordBatch._magic": "member_descriptor",
    "LegacyRecordBatch._decompress": "function",
    "LegacyRecordBatch._read_key_value": "function",
}
OPTIONAL = {"Fetcher.PartitionRecords._unpack_records": "function"}  # Replaced by a class that calls it

_LZ4 = 3

Unpack = Callable[[int, bytes], bytes]  # Unpacks bytes of a kind (1 to 4: gzip, snappy, lz4, zstd), or raises


class _Name(bytes):
    """Bytes of which the client makes a text: those that are none are replaced."""

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")


class _Names(bytes):
    """A buffer whose slices are such bytes."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Name(found) if isinstance(found, bytes) else found


class ReadableBatch(DefaultRecordBatch):
    """A batch whose headers may have any names."""

    __slots__ = ()

    def _read_msg(self, *given: Any) -> Any:
        clients: Any = super()
        try:
            return clients._read_msg(*given)
        except UnicodeDecodeError:  # the place in the buffer is moved on behind a record that was read whole
            batch: Any = self
            batch._buffer = _Names(batch._buffer)  # for the rest of the batch: to copy it for each record would add up
            return clients._read_msg(*given)


class _UnpackedBatch(ReadableBatch):
    """A batch that we have unpacked for the client, and whose check sum we have looked at."""

    __slots__ = ()

    def validate_crc(self) -> bool:
        return True


def unpacked_batch(data: memoryview, records: bytes, count: int) -> Any:
    """Return a batch of format 2 as the client has it, unpacked."""
    made: Any = _UnpackedBatch(data)
    made._buffer, made._pos, made._decompressed = bytearray(records), 0, True
    made._num_records = count
    return made


class _OldBatch(LegacyRecordBatch):
    """A batch older than format 2, which the client reads, and does not unpack."""

    __slots__ = ("unpack",)

    unpack: Unpack

    def _decompress(self, key_offset: int) -> bytes:
        _, packed = self._read_key_value(key_offset)
        if packed is None:
            raise CorruptRecordError("a compressed message without a value")
        if self.compression_type == _LZ4 and self._magic == 0:
            packed = _with_right_check(packed)
        return self.unpack(self.compression_type, packed)


def old_batch(found: LegacyRecordBatch, unpack: Unpack) -> Any:
    """Return a batch that is unpacked so, in place of the client's."""
    made = _OldBatch(found._buffer, found._magic)
    made.unpack = unpack
    return made


def _with_right_check(frame: bytes) -> bytes:
    """Return a frame of lz4 with the check of its header made right: producers before 0.10 covered too much by it."""
    xxhash: Any = codec.xxhash
    if xxhash is None:
        raise UnsupportedCodecError("pip install xxhash for lz4 encoding with 0.8/0.9 brokers")
    end = 6 + 8 * (frame[4] >> 3 & 1)  # a flag says whether the size of what was packed is in the header, too
    return frame[:end] + bytes([xxhash.xxh32(frame[4:end]).intdigest() >> 8 & 0xFF]) + frame[end + 1 :]


def bytes_of(records: MemoryRecords) -> bytes:
    """Return what was fetched, of the client's object for it."""
    found: bytes = records._buffer
    return found


def bounded_records(known: type[Any], bounded: Callable[[bytes], Any]) -> type[Any]:
    """Return a class that gives records as ``known`` does, of batches that we unpack."""

    class BoundedRecords(known):
        """The records of one partition in one fetch."""

        def _unpack_records(self, tp: Any, records: Any, *more: Any) -> Any:
            return super()._unpack_records(tp, bounded(bytes_of(records)), *more)

    return BoundedRecords
