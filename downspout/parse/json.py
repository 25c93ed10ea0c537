"""JSON parsed a chunk at a time, with the outcome that each value has by itself.

What a value is, :func:`parse_object` and the declared columns decide, one record at a time: that is the *exact* way,
and it is what a bolt does in record mode. Here the same comes about for many values at once, by whichever way is the
fastest that can prove that it reads a value as the exact one does:

1. objects of scalars by :mod:`~downspout.parse.flat`,
2. other plain objects by Arrow's reader (:mod:`~downspout.parse.reader`),
3. all that is left, and all that is in any way odd, the exact way.

No way counts on its results being in order: each says of which rows they are. One that takes too little of what it is
given is left out for a while (:class:`Turns`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from downspout.parse import parser
from downspout.parse.columns import Ints, Mask
from downspout.parse.flat import WHOLE, FlatReader
from downspout.parse.parser import ChunkParser, Part
from downspout.parse.paths import JSON_NAMES, Paths
from downspout.parse.reader import ArrowReader
from downspout.sink.convert import ExactNumber, Kind, kind_of
from downspout.sink.schema import Columns

BLANKS_MAX = 4  # Blanks around a value that a fast way allows
_BLANK = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", dtype=np.uint8))
_LONG_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]{15,}")  # Each number that a float may not hold exactly, and others


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
    """Parses values that are JSON objects into declared columns. It remembers how they have been written."""

    def __init__(self, paths: Paths, columns: Columns) -> None:
        super().__init__(columns)
        self._paths = paths  # where the values stand in the objects, one for each column
        keys = paths.keys or ()
        is_flat = len(set(keys)) == len(columns.columns)  # each field has a key, and no key fills two fields
        self._flat = FlatReader(keys, columns.columns) if is_flat else None
        self._arrow = ArrowReader(paths, columns.columns)
        self._flat_turns, self._arrow_turns = Turns(), Turns()
        kinds = [kind_of(column.kind) for column in columns.columns]
        self._decimals = [place for place, kind in enumerate(kinds) if kind.name == "decimal"]
        self._nested = [place for place, kind in enumerate(kinds) if kind.name != "decimal" and kind.holds("decimal")]
        self._whole = [(place, kind) for place, kind in enumerate(kinds) if any(map(kind.holds, WHOLE))]

    def read(self, value: Any) -> Sequence[Any]:
        """Return the values of the fields; a number for which a float may not be exact as an ExactNumber.

        Raises:
            ValueError: it is not JSON, or not an object.
        """
        found = read_object(value, self._paths)
        rounded = [place for place, kind in self._whole if _has_floats(found[place], kind)]
        if self._decimals or self._nested:
            rounded += self._rounded_decimals(value if isinstance(value, bytes) else value.encode(), found)
        if rounded:
            exact = self._paths.of(json.loads(value, parse_float=ExactNumber, parse_int=_whole_number))
            for place in rounded:
                found[place] = exact[place]
        return found

    def _rounded_decimals(self, text: bytes, found: Sequence[Any]) -> list[int]:
        """Return the decimals of a record that orjson may have rounded: their float is that of a long number in it."""
        if not (long := _LONG_NUMBER.findall(text)):
            return []
        floats = set[float]()
        for number in long:
            with suppress(ValueError):  # part of a text
                floats.add(float(number))
        return self._nested + [at for at in self._decimals if type(found[at]) is float and found[at] in floats]

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
        given = len(rows)
        if self._flat is not None and self._flat_turns.has_come():
            found = self._flat.parse(data, starts[rows], ends[rows])
            parts += [(rows[places], arrays) for places, arrays in found]
            rows = np.delete(rows, np.concatenate([places for places, _ in found])) if found else rows
            if not self._flat_turns.note(given - len(rows), given):
                self._flat.forget()
        given = len(rows)
        if self._arrow.is_able and given >= parser.ROWS_MIN and self._arrow_turns.has_come():
            read = self._arrow.parse(texts, rows)
            parts += read
            for done, _ in read:
                rows = np.setdiff1d(rows, done, assume_unique=True)
            self._arrow_turns.note(given - len(rows), given)
        return rows


class Turns:
    """When a fast way is tried: after it took less than an eighth of a block, it sits out more and more blocks.

    >>> turns = Turns()
    >>> [turns.has_come() and turns.note(0, 100) is False for _ in range(10)]
    [True, False, True, False, False, False, True, False, False, False]
    """

    OUT_MAX = 63  # Blocks that it sits out at most

    def __init__(self) -> None:
        self._out = self._left = 0

    def has_come(self) -> bool:
        """Return whether it is to be tried."""
        self._left -= 1
        return self._left < 0

    def note(self, done: int, given: int) -> bool:
        """Take note of how many of a block's records it took; return whether these are enough."""
        self._out = 0 if done * 8 >= given else min(2 * self._out + 1, self.OUT_MAX)
        self._left = self._out
        return not self._out
