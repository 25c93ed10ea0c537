"""Decode numbers and headers of records, and view fetched bytes as Arrow arrays.

All numbers are zigzag varints; one pass of numpy decodes them for all records. A header is name and value, each after
its size; a value of size -1 is null (KIP-82, KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.record.util import decode_varint, encode_varint
from numpy.typing import NDArray

# --- Numbers ---

Octets = NDArray[np.uint8]
Whole = NDArray[np.int64]

BYTES_MAX = 9  # Enough for 63 bits; longer ones are left to the client

_SMALL = np.array([(n >> 1) ^ -(n & 1) for n in range(0x80)], np.int64)


class FastPathMiss(Exception):
    """The fast path does not support these bytes; the client's decoder decides."""


def varints(octets: Octets, at: Whole) -> tuple[Whole, Whole]:
    """Return the zigzag varints that begin at these positions, and the end of each.

    >>> numbers, ends = varints(np.array([2, 0x96, 1, 1], np.uint8), np.array([0, 1, 3]))
    >>> numbers.tolist(), ends.tolist()
    ([1, 75, -1], [1, 3, 4])
    """
    try:
        first = octets[at]
        long = first >= 0x80
        if not long.any():
            return _SMALL[first], at + 1
        rows = np.flatnonzero(long)
        numbers = _SMALL[first & 0x7F]
        at = at + 1
        numbers[rows], at[rows] = _long(octets, first[rows], at[rows])
    except IndexError:
        raise FastPathMiss("a number goes on beyond the end") from None
    return numbers, at


def _long(octets: Octets, first: Octets, at: Whole) -> tuple[Whole, Whole]:
    """Return varints of more than one byte, given their first bytes and the positions after these."""
    raw = (first & 0x7F).astype(np.int64)
    rows = np.arange(len(at))
    shift = 7
    while len(rows):
        if shift >= 7 * BYTES_MAX:
            raise FastPathMiss("a number is longer than any")
        byte = octets[at[rows]]
        raw[rows] |= (byte & 0x7F).astype(np.int64) << shift
        at[rows] += 1
        rows = rows[byte >= 0x80]
        shift += 7
    return (raw >> 1) ^ -(raw & 1), at


# --- Arrow arrays ---


def laid_on(data: bytes | memoryview, bounds: NDArray[np.int32]) -> Any:
    """Return a binary array over the data with these bounds, without a copy.

    >>> laid_on(b"keyvalue", np.array([0, 3, 8], np.int32)).to_pylist()
    [b'key', b'value']
    """
    places: Any = bounds
    buffers: Any = [None, pa.py_buffer(places), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def indices(rows: NDArray[np.int64], is_null: NDArray[np.bool_] | None = None) -> Any:
    """Return indices with nulls for Arrow's ``take``. ``pyarrow.array`` would load pandas (0.3 CPU-seconds).

    >>> indices(np.array([2, 0, 1]), np.array([False, True, False])).to_pylist()
    [2, None, 1]
    """
    numbers: Any = rows
    valid: Any = None
    if is_null is not None and is_null.any():
        valid = pa.py_buffer(np.packbits(~is_null, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.int64(), len(rows), [valid, pa.py_buffer(numbers)])


# --- Headers ---

NO_HEADERS = b"\0"
TYPE: Any = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The type of the headers column, like that of Spark's Kafka connector."""
AT_ONCE_MAX = 32  # Records with more headers are left to the client: each header is a pass over all records


def encoded_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Encode headers for the wire.

    >>> encoded_headers([("a", b"xy"), ("b", None)])
    b'\\x04\\x02a\\x04xy\\x02b\\x01'
    """
    pairs = list(headers)
    found = bytearray()
    encode_varint(len(pairs), found.append)
    for name, value in pairs:
        octets = name.encode()
        encode_varint(len(octets), found.append)
        found += octets
        encode_varint(-1 if value is None else len(value), found.append)
        found += value or b""
    return bytes(found)


def decoded_headers(encoded: bytes) -> list[tuple[str, bytes]]:
    """Decode headers that were checked when they were fetched. A null value is None, as in the client.

    >>> decoded_headers(encoded_headers([("a", b"xy"), ("é", b"")]))
    [('a', b'xy'), ('é', b'')]
    """
    if encoded == NO_HEADERS:
        return []
    count, at = decode_varint(encoded)
    pairs: list[tuple[str, Any]] = []
    for _ in range(count):
        size, at = decode_varint(encoded, at)
        name, at = encoded[at : at + size].decode(), at + size
        size, at = decode_varint(encoded, at)
        pairs.append((name, None if size < 0 else encoded[at : at + size]))
        at += max(size, 0)
    return pairs


def decoded_column(encoded: pa.BinaryArray) -> Any:
    """Decode each record's headers as a list of structs; they were checked when they were fetched.

    >>> rows = pa.array([encoded_headers([("a", b"xy"), ("b", None)]), NO_HEADERS])
    >>> decoded_column(rows).to_pylist()
    [[{'key': 'a', 'value': b'xy'}, {'key': 'b', 'value': None}], []]
    """
    if not len(encoded):
        return no_headers(0)
    content: Any = encoded.buffers()[2]
    bounds, data = _bounds(encoded), memoryview(content)
    octets = np.frombuffer(data, np.uint8)
    number, at = varints(octets, bounds[:-1])
    if number.max() > AT_ONCE_MAX:
        rows: list[Any] = encoded.to_pylist()
        found: Any = pa.array([[{"key": k, "value": v} for k, v in decoded_headers(row)] for row in rows], TYPE)
        return found
    firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(number)])
    places = np.empty((int(firsts[-1]), 4), np.int64)
    is_null = np.zeros(len(places), np.bool_)
    for turn in range(int(number.max())):
        rows_left = np.flatnonzero(number > turn)
        to = firsts[rows_left] + turn
        sizes, name_at = varints(octets, at[rows_left])
        sizes, value_at = varints(octets, name_end := name_at + sizes)
        at[rows_left] = value_end = value_at + np.maximum(sizes, 0)
        places[to] = np.column_stack([name_at, name_end, value_at, value_end])
        is_null[to] = sizes < 0
    return _lists(data, places, is_null, firsts)


def _bounds(encoded: pa.BinaryArray) -> Whole:
    """Return the bounds of a binary array's elements in its data."""
    ends: Any = encoded.buffers()[1]
    found = np.frombuffer(ends, np.int32)[encoded.offset : encoded.offset + len(encoded) + 1]
    return found.astype(np.int64)


def _lists(data: memoryview, places: Whole, is_null: NDArray[np.bool_], firsts: Whole) -> Any:
    """Return lists of names and values; ``places`` has beginning and end of each header's name and of its value."""
    count = len(places)
    bounds = np.append(places.ravel(), places[-1, 3] if count else 0).astype(np.int32)
    laid = laid_on(data, bounds)
    rows = np.arange(0, 4 * count, 4)
    names, values = laid.take(indices(rows)).cast(pa.string()), laid.take(indices(rows + 2, is_null))
    pairs: Any = pa.StructArray.from_arrays([names, values], fields=list(TYPE.value_type))
    starts: Any = firsts.astype(np.int32)
    return pa.ListArray.from_buffers(TYPE, len(firsts) - 1, [None, pa.py_buffer(starts)], children=[pairs])


def no_headers(count: int) -> Any:
    """Return an empty headers column."""
    return _lists(memoryview(b""), np.empty((0, 4), np.int64), np.zeros(0, np.bool_), np.zeros(count + 1, np.int64))


def check_headers(data: bytes, octets: Octets, number: Whole, at: Whole, ends: Whole) -> None:
    """Raise unless the client could decode these headers.

    For each record, ``number`` counts its headers, ``at`` is the beginning of the first, and ``ends`` the record's end.
    """
    if (number < 0).any() or number.max(initial=0) > AT_ONCE_MAX:
        raise FastPathMiss("a number of headers")
    at = at.copy()
    rows = np.flatnonzero(number)
    while len(rows):
        names, at_names = varints(octets, at[rows])
        if (names < 0).any() or (names > ends[rows] - at_names).any():
            raise FastPathMiss("the name of a header goes on beyond its record")
        _check_text(data, at_names, names)
        sizes, at_values = varints(octets, at_names + names)
        if (sizes > ends[rows] - at_values).any():
            raise FastPathMiss("the value of a header goes on beyond its record")
        at[rows] = at_values + np.maximum(sizes, 0)
        number = number - 1
        rows = np.flatnonzero(number > 0)
    if (at != ends).any():
        raise FastPathMiss("a record is longer than its fields")


def _check_text(data: bytes, at: Whole, sizes: Whole) -> None:
    """Raise unless these names are UTF-8."""
    places: Any = np.empty(2 * len(at), np.int32)
    places[0::2], places[1::2] = at, at + sizes
    try:
        laid_on(data, places).take(indices(np.arange(0, len(places), 2))).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise FastPathMiss("the name of a header is not text") from error
