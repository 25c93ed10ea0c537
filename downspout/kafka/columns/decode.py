"""Decode many record batches of one partition into columns at once.

Python only iterates over the lengths of the records. Then numpy decodes each field of all records together, and one
Arrow ``take`` each copies keys and values out of a binary array over the fetched bytes. The result keeps no reference
to these bytes.

The layout of a record (KIP-98): length, attributes (one byte), timestamp delta, offset delta, length of the key, key,
length of the value, value, headers. All numbers but the attributes are zigzag varints.

The input is untrusted: every offset is checked against the end of its record before use, no allocation depends on a
number alone, and the fields must fill their record exactly. Otherwise :class:`FastPathMiss` is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from kafka.record.util import decode_varint
from numpy.typing import NDArray

from downspout.kafka.columns.batch import Unpacked, WireBatch
from downspout.kafka.columns.record_columns import RecordColumns
from downspout.kafka.columns.wire import FastPathMiss, Octets, Whole, check_headers, indices, laid_on, varints

RECORD_BYTES_MIN = 7  # A record without key, value and headers: six numbers and the attributes, a byte each
BYTES_MAX = (1 << 31) - 1  # Arrow's binary arrays count in 32 bits
_FIRST = [(n >> 1) + 1 for n in range(0x80)] + [(n >> 1) + 2 for n in range(0x80)]
"""Distance to the next record by the first byte of a record's length, for lengths of one byte, then of two bytes."""


def decode(topic: str, partition: int, batches: Sequence[WireBatch], unpacked: Sequence[Unpacked]) -> RecordColumns:
    """Decode the records of batches, in offset order."""
    data, spans = _in_one(unpacked)
    places: list[int] = []
    counts = []
    for batch, (start, end) in zip(batches, spans, strict=True):
        counts.append(batch.records_count)
        _hop(data, start, end, batch.records_count, places)
    bounds = np.array(places, np.int64)
    starts, ends = _starts_and_ends(bounds, counts)
    octets = np.frombuffer(data, np.uint8)
    if (octets[starts] & 1).any():
        raise FastPathMiss("a record has a negative length")
    delta_ms, offsets, at = _numbers(octets, starts)
    offsets += _for_each(counts, [batch.base_offset for batch in batches])
    _check_order(offsets, counts, batches)
    timestamps, kinds = _timestamps(batches, counts, delta_ms)
    keys, values, at = _keys_and_values(data, octets, at, ends)
    headers = _headers(data, octets, at, ends)
    return RecordColumns(topic, partition, offsets, timestamps, kinds, keys, values, headers)


def _in_one(unpacked: Sequence[Unpacked]) -> tuple[bytes, list[tuple[int, int]]]:
    """Return bytes with all records, and the beginning and end of each batch; copies only if necessary."""
    data = unpacked[0][0]
    if all(each is data for each, _, _ in unpacked):
        spans = [(start, end) for _, start, end in unpacked]
    else:
        spans, at = [], 0
        for _, start, end in unpacked:
            spans.append((at, at + end - start))
            at += end - start
        data = b"".join(memoryview(each)[start:end] for each, start, end in unpacked)
    if len(data) > BYTES_MAX:
        raise FastPathMiss("too much for one array")
    return data, spans


def _hop(data: bytes, at: int, end: int, count: int, places: list[int]) -> None:
    """Append the beginning of each record, and the end of the last one."""
    if count < 0 or count * RECORD_BYTES_MIN > end - at:
        raise FastPathMiss(f"{count} records in {end - at} bytes")
    append, first = places.append, _FIRST  # this loop is a third of the total cost
    try:
        for _ in repeat(None, count):
            append(at)
            if (byte := data[at]) < 0x80:
                at += first[byte]
            elif (second := data[at + 1]) < 0x80:
                at += first[byte] + (second << 6)
            else:
                length, at = decode_varint(data, at)
                at += abs(length)
    except (IndexError, ValueError):
        raise FastPathMiss("a record goes on beyond the end") from None
    if at != end:
        raise FastPathMiss("the records do not fill their batch")
    append(at)


def _starts_and_ends(bounds: Whole, counts: Sequence[int]) -> tuple[Whole, Whole]:
    """Return the beginning and end of each record, from ``n + 1`` bounds for each batch of ``n`` records."""
    if len(counts) == 1:
        return bounds[:-1], bounds[1:]
    last = np.cumsum(np.array(counts, np.int64) + 1)
    return np.delete(bounds, last - 1), np.delete(bounds, np.concatenate([[0], last[:-1]]))


def _for_each(counts: Sequence[int], values: Sequence[int], kind: Any = np.int64) -> NDArray[Any]:
    """Repeat the value of each batch for each of its records."""
    return np.repeat(np.array(values, kind), counts)


def _numbers(octets: Octets, starts: Whole) -> tuple[Whole, Whole, Whole]:
    """Return the deltas of timestamps and offsets, and the position after them."""
    _, at = varints(octets, starts)
    _, at = varints(octets, at)  # the attributes: zero; the client reads a varint
    delta_ms, at = varints(octets, at)
    delta, at = varints(octets, at)
    return delta_ms, delta, at


def _check_order(offsets: Whole, counts: Sequence[int], batches: Sequence[WireBatch]) -> None:
    """Raise unless the offsets ascend within the bounds of their batches."""
    if not len(offsets):
        return
    filled = [batch.last_offset for batch in batches if batch.records_count]
    lasts = offsets[np.cumsum([count for count in counts if count]) - 1]
    if offsets[0] < batches[0].base_offset or (lasts > filled).any() or (np.diff(offsets) <= 0).any():
        raise FastPathMiss("the offsets do not ascend")


def _timestamps(batches: Sequence[WireBatch], counts: Sequence[int], delta_ms: Whole) -> tuple[Whole, NDArray[np.int8]]:
    """Return each record's timestamp and its type. With the broker's time, all records have their batch's."""
    kinds = [batch.timestamp_type for batch in batches]
    bases = [batch.max_timestamp if kind else batch.first_timestamp for batch, kind in zip(batches, kinds, strict=True)]
    types = _for_each(counts, kinds, np.int8)
    if any(kinds):
        delta_ms = np.where(types == 0, delta_ms, 0)
    return _for_each(counts, bases) + delta_ms, types


def _keys_and_values(
    data: bytes, octets: Octets, at: Whole, ends: Whole
) -> tuple[pa.BinaryArray, pa.BinaryArray, Whole]:
    """Return both columns, and the position after them.

    They are taken from a binary array over the bytes with four elements per record: key, gap, value, and the gap to
    the next key.
    """
    key_size, key_at = varints(octets, at)
    key_end = _end(key_at, key_size, ends)
    value_size, value_at = varints(octets, key_end)
    value_end = _end(value_at, value_size, ends)
    count = len(at)
    places = np.empty(4 * count + 1, np.int32)
    places[0:-1:4], places[1::4], places[2::4], places[3::4] = key_at, key_end, value_at, value_end
    places[-1] = value_end[-1] if count else 0
    laid = laid_on(data, places)
    rows = np.arange(0, 4 * count, 4)
    return _taken(laid, rows, key_size), _taken(laid, rows + 2, value_size), value_end


def _end(at: Whole, size: Whole, ends: Whole) -> Whole:
    """Return the end of a field; with size -1 (null) it is empty."""
    size = np.maximum(size, 0)
    if (size > ends - at).any():
        raise FastPathMiss("a field is longer than its record")
    return at + size


def _taken(laid: Any, rows: Whole, size: Whole) -> pa.BinaryArray:
    found: pa.BinaryArray = laid.take(indices(rows, size < 0))
    return found


def _headers(data: bytes, octets: Octets, at: Whole, ends: Whole) -> pa.BinaryArray | None:
    """Return the encoded headers, checked; None: no record has any."""
    number, after = varints(octets, at)
    if not number.any():
        if (after != ends).any():
            raise FastPathMiss("a record is longer than its fields")
        return None
    check_headers(data, octets, number, after, ends)
    places = np.empty(2 * len(at) + 1, np.int32)
    places[0:-1:2], places[1::2] = at, ends
    places[-1] = ends[-1]
    return _taken(laid_on(data, places), np.arange(0, 2 * len(at), 2), number)
