"""Zigzag varints, many at once: one pass of numpy over the bytes of all records instead of a loop over each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Octets = NDArray[np.uint8]
Whole = NDArray[np.int64]

BYTES_MAX = 9  # Longer ones (63 bits take no more) are left to the client

_SMALL = np.array([(n >> 1) ^ -(n & 1) for n in range(0x80)], np.int64)


class NotStraight(Exception):
    """The bytes are not what the straight way through them expects; the client's decoder has the word."""


def varints(octets: Octets, at: Whole) -> tuple[Whole, Whole]:
    """Return the zigzag varints that begin at these places, and where each ends.

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
        raise NotStraight("a number goes on beyond the end") from None
    return numbers, at


def _long(octets: Octets, first: Octets, at: Whole) -> tuple[Whole, Whole]:
    """Return varints of more than one byte: their first bytes are given, and where each goes on."""
    raw = (first & 0x7F).astype(np.int64)
    rows = np.arange(len(at))
    shift = 7
    while len(rows):
        if shift >= 7 * BYTES_MAX:
            raise NotStraight("a number is longer than any")
        byte = octets[at[rows]]
        raw[rows] |= (byte & 0x7F).astype(np.int64) << shift
        at[rows] += 1
        rows = rows[byte >= 0x80]
        shift += 7
    return (raw >> 1) ^ -(raw & 1), at
