"""CSV parsed a chunk at a time: one record is one line of RFC 4180, without a header.

What a line is (:func:`split_line`, then :func:`value_of` for each field):

* Fields stand between delimiters. A field in quotes may hold delimiters, line ends, and quotes doubled. A quote
  anywhere else is an error, and so is a line end, except one at the end of the record.
* Another number of fields than declared is an error. An empty record is one empty field.
* An empty field is null; an empty field in quotes is an empty text.
* Numbers are decimal, with ASCII digits, and without blanks around them; ``true`` and ``false`` are what a bool is; a
  date or timestamp is a text that such a column takes.

The fast strategy handles lines without quotes and line ends by splitting them at the delimiters. All others are parsed
exactly, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from downspout.errors import ConfigError
from downspout.formatting import counted
from downspout.parse import parser
from downspout.parse.columns import Ints, Mask, convert
from downspout.parse.flat import SELDOM, WHOLE, Block, Words, numbers_of, utf8, whole_numbers
from downspout.parse.parser import ChunkParser, Part
from downspout.sink.column_types import ExactNumber, kind_of
from downspout.sink.schema import Column, Columns

SKIPPED = "-"  # Stands in the list of fields for one that nobody wants
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,4})?|[+-]?\.[0-9]+([eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_QUOTE, _LINE_FEED, _RETURN = b'"\n\r'


def split_line(line: str, delimiter: str = ",") -> list[str | None]:
    """Return the fields of a line; an empty field without quotes is None.

    >>> split_line('UA,,"","a ""b"", c"')
    ['UA', None, '', 'a "b", c']
    """
    line = line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
    if '"' not in line and "\n" not in line and "\r" not in line:
        return [field or None for field in line.split(delimiter)]
    fields: list[str | None] = []
    at = 0
    while True:
        if line.startswith('"', at):
            text, at = _quoted(line, at + 1)
            fields.append(text)
        else:
            end = line.find(delimiter, at)
            end = len(line) if end < 0 else end
            field = line[at:end]
            if found := [char for char in '"\n\r' if char in field]:
                what = "a quote" if found[0] == '"' else "a line end"
                raise ValueError(f"{what} in field {len(fields) + 1}, which does not begin with a quote")
            fields.append(field or None)
            at = end
        if at == len(line):
            return fields
        if not line.startswith(delimiter, at):
            raise ValueError(f"field {len(fields)} continues after its closing quote")
        at += len(delimiter)


def _quoted(line: str, at: int) -> tuple[str, int]:
    """Return a field whose quotes opened before this position, and its end."""
    parts = []
    while True:
        end = line.find('"', at)
        if end < 0:
            raise ValueError("a quote that is not closed")
        parts.append(line[at:end])
        if not line.startswith('"', end + 1):
            return '"'.join(parts), end + 1
        at = end + 2


def value_of(text: str | None, kind: str) -> Any:
    """Return the value of a field for a column of this type.

    Raises:
        ValueError: the field does not fit the type.

    >>> value_of("007", "int16"), value_of("2.50", "decimal(5,2)"), value_of("true", "bool"), value_of(None, "int8")
    (7, Decimal('2.50'), True, None)
    """
    if text is None or kind in ("string", "date", "timestamp"):
        return text
    if kind == "binary":
        return text.encode()
    if kind == "bool":
        return {"true": True, "false": False}[text]
    if kind.startswith("decimal"):
        return Decimal(_checked(_NUMBER, text))
    if kind.startswith("float"):
        return _finite(float(_checked(_NUMBER, text)))
    if kind not in WHOLE:
        raise ValueError(f"a CSV field cannot be a {kind}")
    return int(text) if _INTEGER.fullmatch(text) else ExactNumber(_checked(_NUMBER, text))


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError("no number")
    return text


def _finite(number: float) -> float:
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number out of range")
    return number


class CsvParser(ChunkParser):
    """Parses lines of CSV into declared columns.

    Args:
        fields: names of a line's fields, in order; SKIPPED for unwanted ones.
        columns: the declared columns, in the order of the fields that are not skipped.

    Raises:
        ConfigError: a column is a list, a map or a struct, which CSV does not have.
    """

    def __init__(self, fields: Sequence[str], columns: Columns, delimiter: str = ",") -> None:
        super().__init__(columns)
        self._delimiter = delimiter  # one character of ASCII
        self._width = len(fields)
        wanted = iter(columns.columns)
        self._places: list[tuple[int, Column]] = [
            (place, next(wanted)) for place, field in enumerate(fields) if field != SKIPPED
        ]
        for column in columns.columns:
            if kind_of(column.kind).parts:
                raise ConfigError(f"parse.types: {column.declared}: a field of CSV holds one value", cure="string")

    def read(self, value: Any) -> Sequence[Any]:
        """Return the values of the wanted fields."""
        fields = fields_of(value, self._width, self._delimiter)
        found = []
        for place, column in self._places:
            text = fields[place]
            try:
                found.append(value_of(text, column.kind))
            except (ValueError, KeyError, ArithmeticError) as error:
                why = f": {error}" if isinstance(error, ValueError) else ""
                raise ValueError(
                    f"{column.name} = {_shown(text)} does not fit {column.declared.partition(':')[2]}{why}"
                ) from None
        return found

    def _trim(self, data: Any, starts: Ints, ends: Ints) -> None:
        some = np.flatnonzero(ends > starts)
        fed = some[data[ends[some] - 1] == _LINE_FEED]
        ends[fed] -= 1
        fed = fed[ends[fed] > starts[fed]]
        ends[fed[data[ends[fed] - 1] == _RETURN]] -= 1

    def _is_plain(self, data: Any, starts: Ints, ends: Ints) -> Mask:
        plain: Mask = ends - starts < parser.LARGE
        odd = np.flatnonzero((data == _QUOTE) | (data == _LINE_FEED) | (data == _RETURN))
        if len(odd):
            plain &= np.searchsorted(odd, starts) == np.searchsorted(odd, ends)
        return plain

    def _fast(self, texts: Any, data: Any, starts: Ints, ends: Ints, rows: Ints, parts: list[Part]) -> Ints:
        block = Block(data, starts[rows], ends[rows], self._delimiter)
        first = np.searchsorted(block.separators, block.starts)
        fits = np.searchsorted(block.separators, block.ends) - first == self._width - 1
        good = np.flatnonzero(fits)
        between = block.separators[first[good] + np.arange(self._width - 1)[:, None]]
        begins = np.vstack([block.starts[good], between + 1])
        untils = np.vstack([between, block.ends[good]])
        understood = np.ones(len(good), dtype=bool)
        arrays = self._decode(block, begins, untils, understood)
        if not understood.all():
            arrays = [array.filter(understood) for array in arrays]
            good = good[understood]
        parts.append((rows[good], arrays))
        fits[:] = True
        fits[good] = False
        left: Ints = rows[fits]
        return left

    def _decode(self, block: Block, begins: Ints, untils: Ints, fits: Mask) -> list[Any]:
        """Return the array of each wanted field; clear ``fits`` for rows that need the exact strategy."""
        whole = [place for place, column in self._places if column.kind in WHOLE]
        numbers = dict(
            zip(whole, zip(*whole_numbers(block, begins[whole], untils[whole], _are_empty), strict=True), strict=True)
        )
        arrays = []
        for place, column in self._places:
            made, understood = None, fits.copy()
            froms, until = begins[place], untils[place]
            nulls = froms == until
            if column.required:
                understood &= ~nulls
            if place in numbers:
                made = numbers_of(*numbers[place], understood, column)
            elif column.kind == "string":
                made = utf8(block.spans(froms, until, nulls if nulls.any() else None), understood)
            if made is not None and np.count_nonzero(fits) - np.count_nonzero(understood) <= len(fits) // SELDOM:
                fits &= understood
            else:
                made = _other(block.spans(froms, until, nulls | ~fits).to_pylist(), fits, column)
            arrays.append(made)
        # What nobody wants must be UTF-8 too.
        for place in set(range(self._width)) - {place for place, _ in self._places}:
            utf8(block.spans(begins[place], untils[place], None), fits)
        return arrays


def fields_of(value: Any, width: int, delimiter: str) -> list[str | None]:
    """Return the fields of a record, which must be ``width`` in number."""
    if not isinstance(value, str | bytes):
        raise ValueError(f"value is not as expected: {type(value).__name__} instead of text")
    try:
        fields = split_line(value if isinstance(value, str) else value.decode(), delimiter)
    except ValueError as error:
        raise ValueError(f"value is not as expected: {error}") from error
    if len(fields) != width:
        raise ValueError(f"value is not as expected: {counted(len(fields), 'field')} instead of {width}")
    return fields


def _are_empty(words: Words, untils: Ints, length: Ints) -> Mask:
    empty: Mask = length == 0
    return empty


def _other(tokens: list[bytes | None], fits: Mask, column: Column) -> Any:
    values: list[Any] = []
    for row, token in enumerate(tokens):
        value = None
        try:
            value = value_of(token.decode() if token is not None else None, column.kind)
        except (ValueError, KeyError, ArithmeticError):
            fits[row] = False
        values.append(value)
    return convert(column, values, fits)


def _shown(text: str | None) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
