"""JSON parsed a chunk at a time, with the outcome that each value has by itself.

What a value is, :func:`parse_object` and the declared columns decide, one record at a time: that is the *exact* way,
and it is what a bolt does in record mode. Here the same comes about for many values at once, by whichever way is the
fastest that can prove that it reads a value as the exact one does:

1. values of one shape by :mod:`~downspout.parse.template`,
2. other plain objects by Arrow's reader (:mod:`~downspout.parse.reader`),
3. all that is left, and all that is in any way odd, the exact way.

No way counts on its results being in order: each says of which rows they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from downspout.parse import parser
from downspout.parse.columns import Ints, Mask, nulls
from downspout.parse.parser import ChunkParser, Part
from downspout.parse.paths import JSON_NAMES, Paths
from downspout.parse.reader import ArrowReader
from downspout.parse.template import Template, learn
from downspout.parse.tokens import WHOLE, Block
from downspout.sink.convert import ExactNumber, Kind, kind_of
from downspout.sink.schema import Columns

BLANKS_MAX = 4  # Blanks around a value that a fast way allows
SHAPES_MAX = 4  # Shapes that are looked for in a block, and that are remembered
_BLANK = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", dtype=np.uint8))
_LONG_NUMBER = re.compile(rb"[0-9][0-9.]{15}")  # What every number has in it that a float may not hold exactly


def parse_object(value: str | bytes, paths: Paths) -> list[Any]:
    """Return the values of the fields in the JSON object ``value``; None for one that it lacks.

    Raises:
        ValueError: ``value`` is not JSON, or not an object; or a value on the way to a field is of another kind.

    >>> parse_object('{"carrier": "UA", "plane": {"year": 1998}}', Paths(["carrier", "tailnum", "plane.year"]))
    ['UA', None, 1998]
    """
    return paths.of(_checked(orjson.loads(value)))  # its error is a ValueError that says where


def _checked(document: Any) -> dict[str, Any]:
    if type(document) is not dict:
        raise ValueError(f"a JSON object is needed, this is {JSON_NAMES[type(document)]}")
    return document


def parse_objects(values: Sequence[Any], paths: Paths) -> list[Sequence[Any]]:
    """Return what :func:`parse_object` returns for each value, up to the first that it would raise for.

    >>> parse_objects([b'{"a": 1}', b'{"b": 2}', b"[]", b'{"a": 3}'], Paths(["a"]))
    [(1,), (None,)]
    >>> parse_objects([b'{"a": 1, "b": 2}', b'{"b": 3}', b'"ab"'], Paths(["a", "b"]))
    [(1, 2), (None, 3)]
    """
    found: list[Sequence[Any]] = []
    with suppress(ValueError, TypeError):  # not JSON, no bytes, not an object
        if paths.of_many is not None:
            with suppress(KeyError):  # a field that not all have: the slower way, from that one on
                found.extend(map(paths.of_many, map(orjson.loads, values)))
                return found
        for document in map(orjson.loads, values[len(found) :]):
            if type(document) is not dict:
                break
            found.append(tuple(paths.of(document)))
    return found


def read_object(value: Any, paths: Paths) -> list[Any]:
    """Do what :func:`parse_object` does, with an error that says of what it is."""
    try:
        return parse_object(value, paths)
    except ValueError as error:
        raise ValueError(f"value is not as expected: {error}") from error


def _whole_number(text: str) -> int | ExactNumber:
    """Return a whole number as orjson does: beyond 64 bits it is a float."""
    number = int(text) if len(text) <= 20 else 2**64  # to make a number of very many digits takes very long
    return number if -(2**63) <= number < 2**64 else ExactNumber(text)


def _has_floats(value: Any, kind: Kind) -> bool:
    """Return whether a float stands where a whole number is declared.

    >>> _has_floats([1, 2.0], kind_of("list<int8>")), _has_floats({"a": 1.5}, kind_of("struct<a:float64>"))
    (True, False)
    """
    if type(value) is float:
        return kind.name in WHOLE
    if not kind.parts or value is None:
        return False
    if kind.name == "list":
        return type(value) is list and any(_has_floats(item, kind.parts[0]) for item in value)
    if type(value) is not dict:
        return False
    if kind.name == "map":
        return any(_has_floats(item, kind.parts[1]) for item in value.values())
    return any(_has_floats(value.get(name), part) for name, part in zip(kind.names, kind.parts, strict=True))


class JsonParser(ChunkParser):
    """Parses values that are JSON objects into declared columns. It remembers the shapes that it has seen."""

    def __init__(self, paths: Paths, columns: Columns) -> None:
        super().__init__(columns)
        self._paths = paths  # where the values stand in the objects, one for each column
        self._keys = paths.keys or ()
        self._wanted = dict(zip(self._keys, columns.columns, strict=False))
        self._has_plain_keys = len(self._wanted) == len(columns.columns)
        """whether each field has a key, and no key fills two fields"""
        self._needed = {key for key, column in self._wanted.items() if column.required}
        self._reader = ArrowReader(self._keys, columns.columns) if self._has_plain_keys else None
        self._shapes: list[Template] = []
        kinds = [kind_of(column.kind) for column in columns.columns]
        self._decimals = [place for place, kind in enumerate(kinds) if kind.holds("decimal")]
        self._whole = [(place, kind) for place, kind in enumerate(kinds) if any(map(kind.holds, WHOLE))]

    def read(self, value: Any) -> Sequence[Any]:
        """Return the values of the fields; a number for which a float may not be exact as an ExactNumber.

        Raises:
            ValueError: it is not JSON, or not an object.
        """
        found = read_object(value, self._paths)
        rounded = [place for place, kind in self._whole if _has_floats(found[place], kind)]
        if self._decimals and _LONG_NUMBER.search(value if isinstance(value, bytes) else value.encode()):
            rounded += self._decimals
        if rounded:
            exact = self._paths.of(json.loads(value, parse_float=ExactNumber, parse_int=_whole_number))
            for place in rounded:
                found[place] = exact[place]
        return found

    def _trim(self, data: Any, starts: Ints, ends: Ints) -> None:
        for _ in range(BLANKS_MAX):
            some = np.flatnonzero(ends > starts)
            behind = some[_BLANK[data[ends[some] - 1]]]
            ends[behind] -= 1
            some = np.flatnonzero(ends > starts)
            before = some[_BLANK[data[starts[some]]]]
            starts[before] += 1
            if not len(behind) and not len(before):
                break

    def _is_plain(self, data: Any, starts: Ints, ends: Ints) -> Mask:
        length = ends - starts
        plain: Mask = (length >= 2) & (length < parser.LARGE)
        some = np.flatnonzero(plain)
        plain[some] = (data[starts[some]] == ord("{")) & (data[ends[some] - 1] == ord("}"))
        return plain

    def _fast(self, texts: Any, data: Any, starts: Ints, ends: Ints, rows: Ints, parts: list[Part]) -> Ints:
        if self._has_plain_keys:
            rows = self._by_shape(data, starts, ends, rows, parts)
        if self._reader is not None and self._reader.is_able and len(rows) >= parser.ROWS_MIN:
            for part in self._reader.parse(texts, rows):
                parts.append(part)
                rows = np.setdiff1d(rows, part[0], assume_unique=True)
        return rows

    def _by_shape(self, data: Any, starts: Ints, ends: Ints, rows: Ints, parts: list[Part]) -> Ints:
        """Parse rows that have a known shape, or one that some rows teach; return the others."""
        block = Block(data, starts[rows], ends[rows])
        left = np.arange(len(rows))
        known, tried = list(self._shapes), set[Template]()
        for number in range(2 * SHAPES_MAX):
            if len(left) < parser.ROWS_MIN:
                break
            if known:
                shape: Template | None = known.pop(0)
            else:  # the first may be an odd one: each time another row teaches
                teacher = int(rows[left[number * len(left) // (2 * SHAPES_MAX)]])
                shape = learn(data[starts[teacher] : ends[teacher]].tobytes())
            if shape is None or shape in tried or not self._needed.issubset(shape.keys):
                continue
            tried.add(shape)
            done, arrays = shape.parse(block, left, self._wanted)
            self._remember(shape, is_good=len(done) * 8 >= len(left))
            if len(done):
                parts.append((rows[done], self._in_order(arrays, len(done))))
                left = np.setdiff1d(left, done, assume_unique=True)
        return rows[left]

    def _remember(self, shape: Template, is_good: bool) -> None:
        """Look for a shape first the next time, or no more."""
        if shape in self._shapes:
            self._shapes.remove(shape)
        if is_good:
            self._shapes.insert(0, shape)
            del self._shapes[SHAPES_MAX:]

    def _in_order(self, arrays: Mapping[str, Any], count: int) -> list[Any]:
        """Return one array for each column; a key that the shape has not is null."""
        return [
            arrays[key] if key in arrays else nulls(count, column.type)
            for key, column in zip(self._keys, self._columns.columns, strict=True)
        ]
