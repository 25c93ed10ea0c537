"""Tokens in a text, decoded many at once with numpy: whole numbers within 64-bit words, texts by copying them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.parse.columns import MOMENT_MAX_US, MOMENT_MIN_US, Ints, Mask
from downspout.sink.schema import Column

PAD = 1_024  # Bytes before and behind a block's text, so that words may be read around each of its bytes
_MINUS = ord("-")
_ASCII_ZEROS = np.uint64(0x3030303030303030)
_KEPT = np.array([0] + [(2**64 - 1) ^ (2 ** (8 * (8 - n)) - 1) for n in range(1, 9)], dtype=np.uint64)
"""For a number of n digits that ends with a word: the bits of its digits."""
_SIXES, _HIGH_NIBBLES = np.uint64(0x0606060606060606), np.uint64(0xF0F0F0F0F0F0F0F0)
_DIGITS_MAX = 16
_LEAST = np.array([2**62, 0, *(10**n for n in range(1, _DIGITS_MAX)), 2**62])
"""The least number of so many digits; for none and for too many, more than any is."""
_EPOCH_US = {"timestamp_s": 1_000_000, "timestamp_ms": 1_000, "timestamp_us": 1}
WHOLE = {"int8", "int16", "int32", "int64", *_EPOCH_US}  # Types of columns that are whole numbers in the text
Words = NDArray[np.uint64]


class Block:
    """The text of some records, end to end.

    Args:
        starts: of each record, its first byte.
        ends: of each record, the byte behind it.
    """

    def __init__(self, data: NDArray[np.uint8], starts: Ints, ends: Ints, separator: str = ",") -> None:
        first, last = (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)
        self.data = np.empty(last - first + 2 * PAD, dtype=np.uint8)
        self.data[:PAD] = self.data[PAD + last - first :] = 0
        self.data[PAD : PAD + last - first] = data[first:last]
        self.starts, self.ends = starts - (first - PAD), ends - (first - PAD)
        self.words: Words = np.ndarray((len(self.data) - 7,), dtype="<u8", buffer=self.data, strides=(1,))
        self.buffer = pa.py_buffer(self.data.data)
        self._separator = ord(separator)

    @cached_property
    def separators(self) -> Ints:
        """The places of the byte between values."""
        return np.flatnonzero(self.data == self._separator)

    def spans(self, froms: Ints, untils: Ints, nulls: Mask | None) -> Any:
        """Return what lies between the pairs of places as an array; they must rise."""
        offsets = np.empty(2 * len(froms) + 1, dtype=np.int32)
        offsets[:-1:2], offsets[1::2], offsets[-1] = froms, untils, len(self.data)
        laid: Any = pa.Array.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.data), self.buffer]
        )
        places = np.arange(0, len(offsets) - 1, 2)
        return laid.take(pa.array(places, mask=nulls))


def whole_numbers(
    block: Block, froms: Ints, untils: Ints, are_null: Callable[[Words, Ints, Ints], Mask]
) -> tuple[Ints, Mask, Mask]:
    """Return whole numbers of up to 16 digits without zeros in front, which tokens are such, and which are null.

    Args:
        are_null: tells which of some tokens are, from the block's words, their ends and their lengths.
    """
    shape = froms.shape
    froms, untils = froms.ravel(), untils.ravel()
    length = untils - froms
    numbers, good = _digits(block.words, untils, length)
    nulls = np.zeros(len(froms), dtype=bool)
    others = np.flatnonzero(~good)
    if len(others):
        below = others[block.data[froms[others]] == _MINUS]
        found, good[below] = _digits(block.words, untils[below], length[below] - 1)
        numbers[below] = -found
        nulls[others] = are_null(block.words, untils[others], length[others])
        numbers[others[~good[others]]] = 0
    return numbers.reshape(shape), good.reshape(shape), nulls.reshape(shape)


def _digits(words: Words, until: Ints, length: Ints) -> tuple[Ints, Mask]:
    """Return the numbers of so many digits that end at these places, and where there is such a number."""
    if not len(length):
        return length, length > 0
    longest = int(length.max())
    low, good = _eight(words[until - 8], np.clip(length, 0, 8) if longest > 8 or length.min() < 0 else length)
    numbers = low.view(np.int64)
    if longest > 8:
        high, also = _eight(words[until - 16], np.clip(length - 8, 0, 8))
        numbers += high.view(np.int64) * 100_000_000
        good &= also
    # With a zero in front it would be less than any number of its length.
    if longest > _DIGITS_MAX or length.min() < 0:
        length = np.clip(length, 0, _DIGITS_MAX + 1)
    good &= numbers >= _LEAST[length]
    return numbers, good


def _eight(words: Words, digits: Ints) -> tuple[Words, Mask]:
    """Return the numbers that words of text end with, and which of them are digits alone."""
    # Digits are added up in pairs, the pairs in pairs and so on, all within the word (D. Lemire, "Quickly parsing eight
    # digits", 2018). What stands before the digits is made zeros.
    words = (words ^ _ASCII_ZEROS) & _KEPT[digits]
    plain: Mask = ((words + _SIXES) | words) & _HIGH_NIBBLES == 0
    words = (words * np.uint64(2561)) >> np.uint64(8)
    words = ((words & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    return ((words & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32), plain


def numbers_of(numbers: Ints, good: Mask, nulls: Mask, fits: Mask, column: Column) -> Any:
    """Return whole numbers as what is declared; take rows out of ``fits`` that are none, or out of range."""
    if not good.all():
        fits &= good if column.required else good | nulls
    mask = nulls if nulls.any() else None
    if (unit := _EPOCH_US.get(column.kind)) is not None:
        in_range = (numbers > MOMENT_MIN_US // unit) & (numbers <= MOMENT_MAX_US // unit)
        fits &= in_range
        made: Any = pa.array(np.where(in_range, numbers, 0) * unit, mask=mask)
        return made.cast(column.type)
    if column.type != pa.int64():
        limits = np.iinfo(column.kind)
        if len(numbers) and not limits.min <= int(numbers.min()) <= int(numbers.max()) <= limits.max:
            fits &= (numbers >= limits.min) & (numbers <= limits.max)
        numbers = numbers.astype(column.kind)
    return pa.array(numbers, mask=mask)


def utf8(texts: Any, fits: Mask) -> Any:
    """Return bytes as texts; those that are no UTF-8 become null, and no longer fit."""
    found: Any = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers(), texts.null_count, texts.offset)
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        kept = []
        for row, value in enumerate(texts.to_pylist()):
            try:
                kept.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                kept.append(None)
                fits[row] = False
        return pa.array(kept, pa.string())
    return found
