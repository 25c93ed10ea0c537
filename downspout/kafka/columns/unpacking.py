"""Unpacking, piece by piece: the reader may stop at any time, with no more than a piece made in advance.

kafka-python unpacks a batch whole, whatever comes of it. Its functions are not used for that, anywhere.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from kafka import codec
from kafka.errors import CorruptRecordError, UnsupportedCodecError

PIECE_BYTES = 1024 * 1024
INPUT_BYTES = 64 * 1024
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_NUMBER_BYTES_MAX = 5


def unpacked(kind: int, data: bytes, most: int) -> Iterator[bytes]:
    """Yield what was packed, in pieces of at most a mebibyte; with snappy, of at most ``most`` bytes.

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
        yield from _WAYS[name](data, most)
    except (CorruptRecordError, GeneratorExit, MemoryError):
        raise
    except Exception as error:  # each package has errors of its own
        raise CorruptRecordError(f"it cannot be unpacked: {name}: {error}") from error


def unpacked_whole(kind: int, data: bytes, most: int, block_max: int) -> bytes | None:
    """Return what was packed; None where that is more than ``most`` bytes. Errors are those of :func:`unpacked`."""
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
        # The last block may claim more bytes than are left: the client takes those that are, and so do we.
        yield _snappy_block(data[at : at + size], most)
        at += size


def _snappy_block(block: bytes, most: int) -> bytes:
    """Unpack a block, which says how large it will be, and is wrong if it does not become that."""
    size = shift = 0
    for byte in block[:_NUMBER_BYTES_MAX]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most:
        raise CorruptRecordError(
            f"a block of snappy unpacks to {size:,} bytes, and kafka.batch_bytes_max allows {most:,}"
        )
    found: bytes = codec.snappy.decompress(block)
    return found


_WAYS: dict[str, Callable[[bytes, int], Iterator[Any]]] = {
    "gzip": _gzip, "snappy": _snappy, "lz4": _lz4, "zstd": _zstd,
}  # fmt: skip
