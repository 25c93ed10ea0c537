"""JSON objects that all look alike, parsed a column at a time.

What one producer writes has one shape: the same keys in the same order, the same blanks, and scalar values. So a
record's bytes are a fixed text with gaps. The shape is learned from one record; then all records are compared with it
at once, with numpy, and what stands in the gaps is decoded column by column: whole numbers eight digits at a time
within one 64-bit word, texts by copying them, anything else by handing the gaps of one column to orjson as one array.

Nothing is guessed. A record counts as parsed only if it *is* ``{"key":token,"key":token,…}`` with the learned keys,
which are distinct, and each token was found to be one JSON scalar; then there is one way to read it, which is what any
JSON parser makes of it. All others are left to others. That alone decides; how the gaps were found does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from downspout.parse.columns import Ints, Mask, convert
from downspout.parse.tokens import PAD, WHOLE, Block, Words, numbers_of, utf8, whole_numbers
from downspout.sink.schema import Column

PREFIX_MAX = PAD - 16
LONG_NUMBER = 16  # Bytes from which on a number may have more digits than a float holds
_QUOTE = ord('"')
_ODD = np.array([byte < 0x20 or byte in b'"\\' for byte in range(256)])
"""Bytes that do not stand for themselves in a text."""
_KEY = re.compile(rb'[ \t\r\n]*"([^"\\,{}\[\]\x00-\x1f]+)"[ \t\r\n]*:[ \t\r\n]*')
_TOKEN = re.compile(rb'"[^"\\\x00-\x1f]*"|-?[0-9][0-9.eE+-]*|true|false|null')
_OPEN = re.compile(rb"\{")
_END = re.compile(rb"[ \t\r\n]*\}")
_NULL = np.uint64(int.from_bytes(b"null", "little"))
SELDOM = 32  # Where more than one of so many tokens of a column is beyond the short way, all of them go the long one


@dataclass(frozen=True)
class Template:
    """The shape of a record."""

    prefixes: tuple[bytes, ...]  # what stands before each token, from the comma before it on
    suffix: bytes  # what stands behind the last one
    keys: tuple[str, ...]  # of each token

    def parse(self, block: Block, rows: Ints, wanted: Mapping[str, Column]) -> tuple[Ints, dict[str, Any]]:
        """Return which of these rows are parsed, and the arrays of their wanted keys.

        A key that is wanted and not in the shape has no array: it is null in all of them.
        """
        starts, ends = block.starts[rows], block.ends[rows] - len(self.suffix)
        first = np.searchsorted(block.separators, starts)
        alike = np.searchsorted(block.separators, ends) - first == len(self.keys) - 1
        alike &= (ends > starts) & (_differences(block.words, ends, self.suffix) == 0)
        if not alike.all():
            rows, starts, ends, first = rows[alike], starts[alike], ends[alike], first[alike]
        separators = block.separators[first + np.arange(len(self.keys) - 1)[:, None]]
        begins, untils = np.vstack([starts, separators + 1]), np.vstack([separators, ends])
        wrong = np.zeros(len(rows), dtype=np.uint64)
        for begin, prefix in zip(begins, self.prefixes, strict=True):
            wrong |= _differences(block.words, begin, prefix)
        fits = wrong == 0
        begins += np.array([len(prefix) for prefix in self.prefixes])[:, None]
        arrays = _decode(block, begins, untils, fits, [wanted.get(key) for key in self.keys])
        if not fits.all():
            kept = pa.array(fits)
            arrays = [made.filter(kept) if made is not None else None for made in arrays]
            rows = rows[fits]
        return rows, {key: made for key, made in zip(self.keys, arrays, strict=True) if made is not None}


def learn(text: bytes) -> Template | None:
    """Return the shape of a record, if it is an object of scalars with plain and distinct keys.

    >>> learn(b'{"carrier": "UA", "delay": 2}').prefixes
    (b'{"carrier": ', b' "delay": ')
    """
    prefixes: list[bytes] = []
    keys: list[bytes] = []
    begin, opening = 0, _OPEN.match(text)
    at = opening.end() if opening is not None else len(text)
    while (key := _KEY.match(text, at)) is not None and (token := _TOKEN.match(text, key.end())) is not None:
        prefixes.append(text[begin : key.end()])
        keys.append(key.group(1))
        begin = at = token.end()
        if text[at : at + 1] != b",":
            break
        begin = at = at + 1
    end = _END.fullmatch(text, at)
    if not keys or end is None or len(end.group()) >= 8 or max(map(len, prefixes)) > PREFIX_MAX:
        return None
    try:
        names = tuple(key.decode() for key in keys)
    except UnicodeDecodeError:
        return None
    return Template(tuple(prefixes), end.group(), names) if len(set(names)) == len(names) else None


def _differences(words: Words, places: Ints, text: bytes) -> Words:
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


def _decode(block: Block, froms: Ints, untils: Ints, fits: Mask, columns: Sequence[Column | None]) -> list[Any]:
    """Return the tokens of each column as an array; take rows out of ``fits`` that have one that is not understood.

    Args:
        froms: of each column and row, where the token begins; anywhere in rows that do not fit, which must do no harm.
        untils: likewise, where it ends; in each column these rise.
        fits: which rows are right so far.
        columns: what is declared for each; None: nobody wants it, but it must be a token all the same.
    """
    whole = [number for number, column in enumerate(columns) if column is not None and column.kind in WHOLE]
    numbers = dict(
        zip(whole, zip(*whole_numbers(block, froms[whole], untils[whole], _are_null), strict=True), strict=True)
    )
    arrays = []
    for number, column in enumerate(columns):
        made, understood = None, fits.copy()
        if column is not None and number in numbers:
            made = numbers_of(*numbers[number], understood, column)
        elif column is not None and column.kind == "string":
            made = _text(block, froms[number], untils[number], understood, column)
        if made is not None and np.count_nonzero(fits) - np.count_nonzero(understood) <= len(fits) // SELDOM:
            fits &= understood
        else:
            made = _other(block, froms[number], untils[number], fits, column)
        arrays.append(made)
    return arrays


def _are_null(words: Words, untils: Ints, length: Ints) -> Mask:
    nulls: Mask = (length == 4) & (words[untils - 8] >> np.uint64(32) == _NULL)
    return nulls


def _text(block: Block, froms: Ints, until: Ints, fits: Mask, column: Column) -> Any:
    """Texts without escapes, and null."""
    quoted = (until - froms >= 2) & (block.data[froms] == _QUOTE) & (block.data[until - 1] == _QUOTE)
    nulls = None
    if not quoted.all():
        nulls = ~quoted & _are_null(block.words, until, until - froms)
        fits &= quoted if column.required else quoted | nulls
    texts = block.spans(np.where(quoted, froms + 1, until), np.where(quoted, until - 1, until), nulls)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    if _ODD[data].any():
        fits &= ~np.array(pc.match_substring_regex(texts, r'[\x00-\x1f"\\]').fill_null(False))
    return utf8(texts, fits)


def _other(block: Block, froms: Ints, until: Ints, fits: Mask, column: Column | None) -> Any:
    """Any scalars: orjson reads them as one array, and the column's own code converts them."""
    fits &= froms < until
    if column is not None and column.kind.startswith("decimal"):
        fits &= until - froms < LONG_NUMBER  # orjson's floats would not be exact; the exact way has another reader
    tokens = block.spans(np.where(fits, froms, until), until, ~fits).fill_null(b"null")
    is_whole = column is not None and column.kind in WHOLE
    # No token holds a comma. So if the array has as many items as there are tokens, and each is a scalar, each item is
    # a token.
    values = _scalars(tokens.to_pylist(), fits)
    if is_whole:  # likewise: a float may stand for another number than its text does
        for row, value in enumerate(values):
            if type(value) is float and not is_exact(tokens[row].as_py()):
                values[row], fits[row] = None, False
    return convert(column, values, fits) if column is not None else None


def is_exact(token: bytes) -> bool:
    """Return whether the float of a number is whole only if the number is, and is then the same.

    >>> is_exact(b"12.0"), is_exact(b"4.9999999999999999"), is_exact(b"1e3")
    (True, False, False)
    """
    return len(token) < LONG_NUMBER and b"e" not in token and b"E" not in token


def _scalars(tokens: Sequence[bytes], fits: Mask) -> list[Any]:
    try:
        values: list[Any] = orjson.loads(b"[" + b",".join(tokens) + b"]")
        if len(values) == len(tokens) and not _COMPOUND & set(map(type, values)):
            return values
    except ValueError:
        pass
    values = []
    for row, token in enumerate(tokens):
        value: Any = None
        try:
            value = orjson.loads(token)
        except ValueError:
            fits[row] = False
        if type(value) in _COMPOUND:
            value, fits[row] = None, False
        values.append(value)
    return values


_COMPOUND = {list, dict}
