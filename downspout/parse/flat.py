"""Parses JSON objects of scalars a column at a time, whatever their keys and order.

Most records are ``{"key":scalar,"key":scalar,…}``, and one encoder has written them: the keys come from a small
vocabulary, and the blanks are always the same. So a block of records is cut at each comma before a quote. The key at
the beginning of each piece is looked up by a hash of its bytes, with numpy for all pieces at once, and all values of
one key are decoded together: whole numbers eight digits at a time within one 64-bit word, texts by copying them,
anything else by handing the values of one column to orjson as one array.

Nothing is guessed. A record counts as parsed only if it *is* ``{"key":token,"key":token,…}`` with known keys, which are
distinct, and each token was found to be one JSON scalar; then there is one way to read it, which is what any JSON
parser makes of it. All other records are left to other strategies. Only this check decides; how the pieces were found
does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from downspout.parse.columns import MOMENT_MAX_US, MOMENT_MIN_US, Ints, Mask, cast_texts, convert, is_utf8, joined
from downspout.sink.schema import Column

# --- tokens, decoded many at once with numpy ---

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
        starts: the first byte of each record.
        ends: the byte after each record.
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


# --- objects ---

KEYS_MAX = 250  # Keys that are known at once
PREFIX_MAX = PAD - 16
BLANKS_MAX = 7  # Blanks between a comma and the next key
SAMPLES, SAMPLES_MORE = 16, 4  # Records that teach keys: before any is known, and of those that a block leaves
SELDOM = 32  # If more than one of so many tokens of a column is beyond the short way, all of them go the long one
LONG_NUMBER = 16  # Bytes from which on a number may have more digits than a float holds
_QUOTE, _BACKSLASH, _COMMA, _BRACE = b'"\\,{'
_OPENING = re.compile(rb"\{([ \t\r\n]*)")
_PIECE = re.compile(
    rb'("([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*)(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'
)
_COMMA_AND_BLANKS = re.compile(rb",([ \t\r\n]*)")
_CLOSING = re.compile(rb"[ \t\r\n]*\}")
_NULL = np.uint64(int.from_bytes(b"null", "little"))
_QUOTES, _ONES, _HIGHS = (np.uint64(int.from_bytes(bytes([byte]) * 8, "little")) for byte in (_QUOTE, 0x01, 0x80))
_BEGINS_NUMBER = np.array([byte in b"-0123456789" for byte in range(256)])
_BEGINS_SCALAR = np.array([byte in b'-0123456789"tfn' for byte in range(256)])
_HASH_BITS = 14
_SHIFT, _MIX = np.uint64(64 - _HASH_BITS), np.uint64(0x9E3779B97F4A7C15)


class Style(NamedTuple):
    """How an encoder writes objects."""

    opening: bytes  # blanks behind the brace
    gap: bytes | None  # blanks behind each comma; None: no record had one
    suffix: bytes  # the closing brace, and blanks before it


class Lesson(NamedTuple):
    """The style and keys learned from one record."""

    style: Style
    prefixes: dict[bytes, bytes]  # of each key: its text with quotes and colon, up to its value


class FlatReader:
    """Reads JSON objects of scalars into columns. It remembers the keys that it has seen.

    Args:
        keys: of each column; they are distinct.
    """

    def __init__(self, keys: Sequence[str], columns: Sequence[Column]) -> None:
        encoded = [key.encode("utf-8", "surrogatepass") for key in keys]
        self._columns = dict(zip(encoded, columns, strict=True))
        self.forget()

    def forget(self) -> None:
        """Forget all learned keys, because they did not help."""
        self._style: Style | None = None
        self._prefixes: dict[bytes, bytes] = {}  # of each known key; its number is its place, from 1 on

    def parse(self, data: Any, starts: Ints, ends: Ints) -> list[tuple[Ints, list[Any]]]:
        """Return what could be parsed of some records, as pieces: their numbers, and their arrays by column.

        Args:
            data: text.
            starts: the first byte of each record, in rising order.
            ends: the byte after each record.
        """
        block = Block(data, starts, ends)
        parts: list[tuple[Ints, list[Any]]] = []
        left = np.arange(len(starts))
        for _ in range(2):
            if self._style is not None:
                done, arrays = self._read(block, left)
                if len(done):
                    parts.append((done, arrays))
                    left = np.setdiff1d(left, done, assume_unique=True)
            if not self._learn(block, left) or len(left) * 8 < len(starts):
                break
        return parts

    def _learn(self, block: Block, rows: Ints) -> bool:
        """Learn keys from some of these records; return whether any were new."""
        count = min(len(rows), SAMPLES if self._style is None else SAMPLES_MORE)
        texts = [
            block.data[block.starts[row] : block.ends[row]].tobytes()
            for row in rows[np.arange(count) * len(rows) // max(count, 1)].tolist()
        ]
        lessons = sorted(filter(None, map(learn, texts)), key=lambda lesson: -len(lesson.prefixes))
        if self._style is None and lessons:
            self._style = lessons[0].style
        known = len(self._prefixes)
        for lesson in lessons:
            style = self._style
            assert style is not None
            if style.gap is None:
                self._style = style = style._replace(gap=lesson.style.gap)
            if lesson.style not in (style, style._replace(gap=None)):
                continue  # another encoder's
            for key, prefix in lesson.prefixes.items():
                if len(self._prefixes) < KEYS_MAX:
                    self._prefixes.setdefault(key, prefix)
        if len(self._prefixes) > known:
            self._index()
        return len(self._prefixes) > known

    def _index(self) -> None:
        """Make the tables by which a key is found."""
        prefixes = list(self._prefixes.values())
        self._lengths = np.array([0, *map(len, prefixes)])
        self._is_other = np.array([False, *(key not in self._columns for key in self._prefixes)])
        text = np.frombuffer(b"".join(prefix[1:].ljust(2 * PAD, b"\0") for prefix in prefixes), dtype=np.uint8)
        words: Words = np.ndarray((len(text) - 7,), dtype="<u8", buffer=text, strides=(1,))
        places = np.arange(len(prefixes)) * 2 * PAD
        self._words = 1  # how many words of a key tell it from the others
        while len(set((codes := _codes(words, places, self._words)).tolist())) < len(prefixes):
            if 8 * self._words >= PAD:  # keys that were made to have one code
                self.forget()
                return
            self._words += 1
        random = np.random.default_rng(1)
        while True:  # until each key has a place of its own: with 250 keys, after a dozen draws
            self._factor = random.integers(2**63, 2**64, dtype=np.uint64) | np.uint64(1)
            slots = (codes * self._factor) >> _SHIFT
            if len(set(slots.tolist())) == len(prefixes):
                break
        self._numbers = np.zeros(2**_HASH_BITS, dtype=np.uint8)
        self._numbers[slots] = np.arange(1, len(prefixes) + 1)
        self._codes = np.array([0, *codes.tolist()], dtype=np.uint64)
        tails = [int.from_bytes(prefix[-8:].rjust(8, b"\0"), "little") for prefix in prefixes]
        self._tails = np.array([0, *tails], dtype=np.uint64)
        masks = [2**64 - 2 ** (64 - 8 * min(len(prefix), 8)) for prefix in prefixes]
        self._masks = np.array([0, *masks], dtype=np.uint64)
        # What a code of one word holds; one of several may be that of other words, too.
        covered = {key: 1 + (min(len(key) + 1, 8) if self._words == 1 else 0) for key in self._prefixes}
        self._middles = {
            key: prefix[covered[key] : -8] for key, prefix in self._prefixes.items() if len(prefix) > covered[key] + 8
        }
        self._has_others = bool(self._is_other.any())

    def _read(self, block: Block, rows: Ints) -> tuple[Ints, list[Any]]:
        """Return which of these records are parsed, and their arrays by column."""
        assert self._style is not None
        opening, gap, suffix = self._style.opening, self._style.gap or b"", self._style.suffix
        starts, ends, words = block.starts[rows], block.ends[rows], block.words
        pieces = _cut(block, starts, ends, self._style)
        fits = differences(words, ends - len(suffix), suffix) == 0
        if opening:
            fits &= differences(words, starts + 1, opening) == 0
        if gap:
            wrong = differences(words, pieces.begins - len(gap), gap) != 0
            fits[pieces.rows[wrong & ~pieces.are_first]] = False
        codes = _codes(words, pieces.begins + 1, self._words)
        numbers = self._numbers[(codes * self._factor) >> _SHIFT]
        froms = pieces.begins + self._lengths[numbers]
        # A key is known by its code, which holds its first bytes, and by the last bytes before the value.
        wrong = (numbers == 0) | (codes != self._codes[numbers])
        wrong |= (words[froms - 8] ^ self._tails[numbers]) & self._masks[numbers] != 0
        wrong |= block.data[pieces.begins] != _QUOTE
        if self._has_others:
            others = np.flatnonzero(self._is_other[numbers])
            wrong[others] |= ~_are_scalars(block, froms[others], pieces.untils[others])
        fits[pieces.rows[wrong]] = False
        # All that belongs to one key, in the order of the records.
        order = np.argsort(numbers, kind="stable")
        froms, untils, places, numbers = froms[order], pieces.untils[order], pieces.rows[order], numbers[order]
        bounds = np.searchsorted(numbers, np.arange(len(self._prefixes) + 2)).tolist()
        is_twice = (places[1:] == places[:-1]) & (numbers[1:] == numbers[:-1])
        fits[places[1:][is_twice]] = False
        has_twice = bool(is_twice.any())
        of_key = dict(zip(self._prefixes, pairwise(bounds[1:]), strict=True))
        for key, middle in self._middles.items():
            low, high = of_key[key]
            wrong = differences(words, froms[low:high] - 8 - len(middle), middle) != 0
            fits[places[low:high][wrong]] = False
        # A key that a record lacks has an empty token at its opening brace, where no token is.
        tokens = np.empty((2, len(self._columns), len(rows)), dtype=np.int64)
        for column, key in enumerate(self._columns):
            low, high = of_key.get(key, (0, 0))
            if high - low == len(rows) and not has_twice:
                tokens[0, column], tokens[1, column] = froms[low:high], untils[low:high]
                continue
            tokens[:, column] = starts
            tokens[0, column, places[low:high]] = froms[low:high]
            tokens[1, column, places[low:high]] = untils[low:high]
        arrays = _decode(block, tokens[0], tokens[1], fits, list(self._columns.values()))
        if not fits.all():
            arrays = [made.filter(pa.array(fits)) for made in arrays]
        return rows[fits], arrays


class _Pieces(NamedTuple):
    """The parts of records between commas."""

    begins: Ints  # of each, the quote before its key
    untils: Ints  # of each, the byte behind its value
    rows: Ints  # of each, the number of its record
    are_first: Mask  # which are the first ones of their record


def _cut(block: Block, starts: Ints, ends: Ints, style: Style) -> _Pieces:
    """Cut records at each comma before a quote."""
    gap = 1 + len(style.gap or b"")
    is_cut = block.data[:-gap] == _COMMA
    is_cut &= block.data[gap:] == _QUOTE
    commas = np.flatnonzero(is_cut)
    first = np.searchsorted(commas, starts)
    inner = np.searchsorted(commas, ends) - first
    rows = np.repeat(np.arange(len(starts)), inner + 1)
    behind = np.cumsum(inner + 1)
    if len(rows) - len(starts) < len(commas):  # some belong to other records
        commas = commas[np.arange(inner.sum()) + np.repeat(first + inner - np.cumsum(inner), inner)]
    are_first = np.zeros(len(rows), dtype=bool)
    are_first[behind - inner - 1] = True
    begins, untils = np.empty((2, len(rows)), dtype=np.int64)
    begins[are_first] = starts + 1 + len(style.opening)
    begins[~are_first] = commas + gap
    untils[:-1] = begins[1:] - gap
    untils[behind - 1] = ends - len(style.suffix)
    return _Pieces(begins, untils, rows, are_first)


def _codes(words: Words, places: Ints, count: int) -> Words:
    """Return a number for each key, made of the first words of its text up to its closing quote."""
    codes = np.zeros(len(places), dtype=np.uint64)
    is_open = np.ones(len(places), dtype=bool)
    for at in range(count):
        word = words[8 * at :][places]
        # The highest bit of the first byte that is a quote (a zero byte of ``found``), and of none before it.
        found = word ^ _QUOTES
        found = (found - _ONES) & ~found & _HIGHS
        found &= -found
        word &= (found + found) - np.uint64(1)  # all bits up to it; all, if there is none
        if at:
            word[~is_open] = 0
            codes *= _MIX
        codes += word
        if at + 1 < count:
            is_open &= found == 0
    return codes


def learn(text: bytes) -> Lesson | None:
    """Return what a record teaches, if it is an object of scalars with plain and distinct keys.

    >>> learn(b'{"id": "UA", "delay": 2}')
    Lesson(style=Style(opening=b'', gap=b' ', suffix=b'}'), prefixes={b'id': b'"id": ', b'delay': b'"delay": '})
    """
    if (opening := _OPENING.match(text)) is None:
        return None
    prefixes: dict[bytes, bytes] = {}
    gaps = set[bytes]()
    at = opening.end()
    while (piece := _PIECE.match(text, at)) is not None:
        prefix, key = piece.groups()
        if key in prefixes or len(prefix) > PREFIX_MAX or not is_utf8(key):
            return None
        prefixes[key] = prefix
        at = piece.end()
        if (comma := _COMMA_AND_BLANKS.match(text, at)) is None:
            break
        gaps.add(comma.group(1))
        at = comma.end()
    end = _CLOSING.fullmatch(text, at)
    if not prefixes or end is None or len(gaps) > 1:
        return None
    style = Style(opening.group(1), gaps.pop() if gaps else None, end.group())
    return Lesson(style, prefixes) if max(map(len, filter(None, style)), default=0) <= BLANKS_MAX else None


def differences(words: Words, places: Ints, text: bytes) -> Words:
    """Return 0 for each place at which a text stands, and something else for any other."""
    found: Words | None = None
    for at in range(0, len(text), 8):
        if len(text) - at < 8 <= len(text):
            at = len(text) - 8  # the last words overlap
        part = text[at : at + 8]
        differs = words[at:][places] ^ np.uint64(int.from_bytes(part, "little"))
        if len(part) < 8:
            differs &= np.uint64(2 ** (8 * len(part)) - 1)
        found = differs if found is None else np.bitwise_or(found, differs, out=found)
    return found if found is not None else np.zeros(len(places), dtype=np.uint64)


def _decode(block: Block, froms: Ints, untils: Ints, fits: Mask, columns: Sequence[Column]) -> list[Any]:
    """Return the tokens of each column as an array; take rows out of ``fits`` that have one that is not understood.

    Args:
        froms: of each column and row, where the token begins; anywhere in rows that do not fit, which must do no harm.
        untils: likewise, where it ends; in each column these rise. Both are the opening brace where there is none.
        fits: which rows are right so far.
        columns: what is declared for each.
    """
    whole = [number for number, column in enumerate(columns) if column.kind in WHOLE]
    numbers = dict(
        zip(whole, zip(*whole_numbers(block, froms[whole], untils[whole], _are_null), strict=True), strict=True)
    )
    arrays = []
    for number, column in enumerate(columns):
        made, understood = None, fits.copy()
        if number in numbers:
            made = numbers_of(*numbers[number], understood, column)
        elif column.kind in ("string", "date", "timestamp") or column.kind.startswith("decimal"):
            made = _text(block, froms[number], untils[number], understood, column)
        if made is not None and np.count_nonzero(fits) - np.count_nonzero(understood) <= len(fits) // SELDOM:
            fits &= understood
        else:
            made = _other(block, froms[number], untils[number], fits, column)
        arrays.append(made)
    return arrays


def _are_null(words: Words, untils: Ints, length: Ints) -> Mask:
    """Return which tokens are ``null``, or are missing."""
    nulls: Mask = (length == 4) & (words[untils - 8] >> np.uint64(32) == _NULL)
    return nulls | _are_missing(words, untils, length)


def _are_missing(words: Words, untils: Ints, length: Ints) -> Mask:
    missing: Mask = (length == 0) & (words[untils] & np.uint64(0xFF) == np.uint64(_BRACE))
    return missing


def _text(block: Block, froms: Ints, until: Ints, fits: Mask, column: Column) -> Any:
    """Texts without escapes, and null, as the column's type; for decimals also numbers. None: they are none at once."""
    quoted = (until - froms >= 2) & (block.data[froms] == _QUOTE) & (block.data[until - 1] == _QUOTE)
    begins, ends, missing = froms + 1, until - 1, None
    if not quoted.all():
        missing = ~quoted & _are_null(block.words, until, until - froms)
        good = quoted if column.required else quoted | missing
        if column.kind.startswith("decimal") and not good.all():
            bare = ~quoted & ~missing & _BEGINS_NUMBER[block.data[froms]]
            numbers = np.flatnonzero(bare & fits)
            bare[:] = False
            bare[numbers[_are_scalars(block, froms[numbers], until[numbers])]] = True
            begins, ends = np.where(bare, froms, begins), np.where(bare, until, ends)
            quoted, good = quoted | bare, good | bare
        fits &= good
        begins, ends = np.where(quoted, begins, until), np.where(quoted, ends, until)
    texts = block.spans(begins, ends, missing)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    if ((data < 0x20) | (data == _QUOTE) | (data == _BACKSLASH)).any():
        fits &= ~np.array(pc.match_substring_regex(texts, r'[\x00-\x1f"\\]').fill_null(False))
    found = utf8(texts, fits)
    if column.kind == "string":
        return found
    return cast_texts(pc.if_else(pa.array(fits), found, pa.scalar(None, pa.string())), column, fits)


def _other(block: Block, froms: Ints, until: Ints, fits: Mask, column: Column) -> Any:
    """Any scalars: orjson reads them, and the column's own code converts them."""
    missing = _are_missing(block.words, until, until - froms)
    fits &= missing | (froms < until)
    if column.kind.startswith("decimal"):
        fits &= until - froms < LONG_NUMBER  # orjson's floats would not be exact; the exact way has another reader
    absent = ~fits | missing
    tokens = block.spans(np.where(absent, until, froms), until, absent).fill_null(b"null")
    values = _scalars(tokens, fits)
    if column.kind in WHOLE:  # a float may stand for another number than its text does
        for row, value in enumerate(values):
            if type(value) is float and not is_exact(tokens[row].as_py()):
                values[row], fits[row] = None, False
    return convert(column, values, fits)


def _are_scalars(block: Block, froms: Ints, untils: Ints) -> Mask:
    """Return which tokens are JSON scalars."""
    good: Mask = (froms < untils) & _BEGINS_SCALAR[block.data[froms]]
    good &= (block.data[froms] == _QUOTE) == (block.data[untils - 1] == _QUOTE)  # else cut within a text
    if good.any():
        _scalars(block.spans(np.where(good, froms, untils), untils, ~good).fill_null(b"null"), good)
    return good


def _scalars(tokens: Any, fits: Mask) -> list[Any]:
    """Return what tokens are, of which none is empty; take those out of ``fits`` that are no scalars."""
    text = joined(tokens, b",")
    data = np.frombuffer(text, dtype=np.uint8)
    if (data == _BACKSLASH).any():
        return _scalars_and_escapes(tokens, fits)
    # All at once only if no text can go on in the next token: each that begins or ends with a quote does both, and
    # there is no other quote. Then there are more items than tokens, or a list or an object, unless each is a scalar.
    length = pc.binary_length(tokens).to_numpy(zero_copy_only=False)
    behind = np.cumsum(length + 1) - 1
    quoted = (data[behind - length] == _QUOTE) & (data[behind - 1] == _QUOTE) & (length > 1)
    if np.count_nonzero(data == _QUOTE) == 2 * np.count_nonzero(quoted):
        with suppress(ValueError):
            values: list[Any] = orjson.loads(b"[" + text.to_pybytes() + b"]")
            if len(values) == len(tokens) and not _COMPOUND & set(map(type, values)):
                return values
    if len(tokens) > 64:
        half = len(tokens) // 2
        return _scalars(tokens[:half], fits[:half]) + _scalars(tokens[half:], fits[half:])
    return [_scalar(token, fits, row) for row, token in enumerate(tokens.to_pylist())]


def _scalars_and_escapes(tokens: Any, fits: Mask) -> list[Any]:
    """Read tokens with a backslash one by one, because it may hide where a text ends, and the others all at once."""
    has_escape = np.array(pc.match_substring(tokens, "\\"))
    values: list[Any] = [None] * len(tokens)
    rows = np.flatnonzero(has_escape)
    for row, token in zip(rows.tolist(), tokens.take(pa.array(rows)).to_pylist(), strict=True):
        values[row] = _scalar(token, fits, row)
    rows = np.flatnonzero(~has_escape)
    if len(rows):
        understood = fits[rows]
        for row, value in zip(rows.tolist(), _scalars(tokens.take(pa.array(rows)), understood), strict=True):
            values[row] = value
        fits[rows] = understood
    return values


def _scalar(token: bytes, fits: Mask, row: int) -> Any:
    """Return what a token is; take its row out of ``fits`` if it is no scalar."""
    value: Any = None
    try:
        value = orjson.loads(token)
    except ValueError:
        fits[row] = False
    if type(value) in _COMPOUND:
        value, fits[row] = None, False
    return value


def is_exact(token: bytes) -> bool:
    """Return whether the float of a number is whole only if the number is, and is then the same.

    >>> is_exact(b"12.0"), is_exact(b"4.9999999999999999"), is_exact(b"1e3")
    (True, False, False)
    """
    return len(token) < LONG_NUMBER and b"e" not in token and b"E" not in token


_COMPOUND = {list, dict}
