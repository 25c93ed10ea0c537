"""JSON parsed a chunk at a time, with the outcome that each value has by itself.

:func:`parse_object` and the declared columns define what a value is, one record at a time, as a bolt in record mode
does it. A chunk gives the same result, read by the fastest strategy that provably agrees with that definition:

1. :mod:`~downspout.parse.flat` for objects of scalars,
2. Arrow's reader for other plain objects (:class:`ArrowReader`),
3. :func:`parse_object` for the rest.

Each strategy returns row numbers and arrays, in any order. One that can read only few of the values it is given is
skipped for a while (:class:`Turns`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from downspout.errors import ConfigError
from downspout.parse import parser
from downspout.parse.columns import Ints, Mask, cast_texts, convert, is_utf8, joined
from downspout.parse.flat import WHOLE, FlatReader, numbers_of
from downspout.parse.parser import ChunkParser, Part
from downspout.sink.column_types import ExactNumber, Kind, kind_of
from downspout.sink.schema import CONVERSION_ERRORS, Column, Columns

# --- paths ---
#
# Where the value of a field stands in a JSON object: ``user.id``, ``items[0].sku``, ``"a.b"``.
#
# A path is the key of the object; behind it, keys of objects inside of it after a dot each, and places in lists in
# brackets, from 0 on or from -1 backwards. A key that holds a dot, a bracket or a quote stands in double quotes, as in
# JSON. What is not there, or null on the way, is null. An error is a value of another kind on the way, and an object in
# which a path leads nowhere while its whole text is a key: a field that is always null would hide a mistake.

Path = tuple[str | int, ...]
_STEP = re.compile(
    r"""(?P<dot>\.?)(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^.\[\]"]+))|\[(?P<place>-?[0-9]{1,9})\]""", re.VERBOSE
)
JSON_NAMES: dict[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def parse_path(text: str) -> Path:
    """Return the keys and indexes in a path.

    >>> parse_path("user.id"), parse_path("items[-1].sku"), parse_path('"a.b"')
    (('user', 'id'), ('items', -1, 'sku'), ('a.b',))
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None or (step["place"] is None and bool(step["dot"]) != bool(steps)) or (step["place"] and not at):
            break
        if step["place"] is not None:
            steps.append(int(step["place"]))
        else:
            steps.append(json.loads(step["quoted"], strict=False) if step["quoted"] is not None else step["bare"])
        at = step.end()
    if at < len(text) or not steps:
        raise ConfigError(
            f"parse.fields: {text!r} does not say where the value stands",
            cure='name=key, name=user.id, name=items[0].sku, or name="a.b" for a key with a dot',
        )
    return tuple(steps)


class Paths:
    """The paths of several fields' values.

    >>> Paths(["user.id", "items[0]"]).of({"user": {"id": 7}, "items": []})
    [7, None]
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.paths = [parse_path(text) for text in texts]
        roots = tuple(str(path[0]) for path in self.paths)
        # the plain keys of the object, one for each field; None where one is deeper
        self.keys = roots if all(len(path) == 1 for path in self.paths) else None
        # the values of several plain keys, fast; it raises a KeyError where the object lacks one
        self.of_many = itemgetter(*roots) if self.keys is not None and len(roots) > 1 else None

    def of(self, document: dict[str, Any]) -> list[Any]:
        """Return the value of each field.

        Raises:
            ValueError: something on the way is not an object, or not a list; or the path as a whole is a key.
        """
        if self.keys is not None:
            return list(map(document.get, self.keys))
        return [_value(document, path, text) for path, text in zip(self.paths, self.texts, strict=True)]


def _value(document: dict[str, Any], path: Path, text: str) -> Any:
    if path[0] not in document and text in document:
        quoted = json.dumps(text, ensure_ascii=False)
        raise ValueError(f"{text} is a key of the object, and no path into it: parse.fields needs {quoted}, in quotes")
    value: Any = document
    for depth, step in enumerate(path):
        if isinstance(step, str):
            if type(value) is not dict:
                raise _wrong(value, dict, path[:depth])
            value = value.get(step)
        else:
            if type(value) is not list:
                raise _wrong(value, list, path[:depth])
            value = value[step] if -len(value) <= step < len(value) else None
        if value is None:
            return None
    return value


def _wrong(value: Any, wanted: type, way: Path) -> ValueError:
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way).removeprefix(".")
    return ValueError(f"{where} is {JSON_NAMES[type(value)]}, {JSON_NAMES[wanted]} is needed")


# --- Arrow's JSON reader, kept to what it reads as orjson does ---
#
# Arrow reads several documents as one text. It reports neither where each document ended nor, in every case, which one
# was invalid. So documents are given to it only where that does not matter: each begins with ``{`` and ends with ``}``,
# with a line feed between two. A truncated document cannot continue in the next one, because ``{`` may not follow ``}``
# and a string may not contain a line feed. So each document gives at least one row, and if there are as many rows as
# documents, each gave exactly one.
#
# Documents that Arrow accepts and orjson rejects are not given to it: those with NUL, which ends its input, NaN,
# infinity, invalid UTF-8 in a field that is not read, lone surrogates (in some versions), or too many levels of
# nesting. A value that the two read differently is found afterwards: a whole number in a column of floats that is at
# least 2^53 or is -0.

DEPTH_MAX = 1_000  # Brackets in a document; with more it might nest more deeply than orjson reads (1,024)
FAILURES_MAX = 16  # Blocks, or parts of blocks, that Arrow may reject before the rest is read by orjson
_EXACT_MAX = {"float32": 2**24, "float64": 2**53}
"""Up to here a whole number is a float; beyond, it does not fit a column of floats, and a float does."""
_NOT_FOR_ARROW = (b"NaN", b"Inf", b"\\ud", b"\\uD")
_BRACE, _BRACKET, _BACKSLASH = b"{[\\"
_RAW: dict[str, pa.DataType] = {
    "string": pa.string(), "bool": pa.bool_(), "date": pa.string(), "timestamp": pa.string(),
    **dict.fromkeys(WHOLE, pa.int64()), **dict.fromkeys(_EXACT_MAX, pa.float64()),
}  # fmt: skip
"""What a column is read as, before it becomes what is declared."""


def _raw_type(kind: Kind) -> pa.DataType | None:
    if kind.name == "decimal":
        return kind.type
    if kind.name not in ("list", "struct"):
        return _RAW.get(kind.name)
    parts = [found for part in kind.parts if (found := _raw_type(part)) is not None]
    if len(parts) < len(kind.parts):
        return None
    fields: Any = list(zip(kind.names, parts, strict=True)) if kind.name == "struct" else None
    return pa.list_(parts[0]) if fields is None else pa.struct(fields)


def _merged(paths: Sequence[tuple[Path, pa.DataType]]) -> pa.DataType | None:
    """Return the type of a document in which values of these types stand at these paths; None: there is none.

    >>> _merged([(("a", "b"), pa.int64()), (("a", "c", 0), pa.string())])
    StructType(struct<a: struct<b: int64, c: list<item: string>>>)
    """
    if not all(path for path, _ in paths):
        types = {kind for _, kind in paths}
        return types.pop() if len(types) == 1 and not any(path for path, _ in paths) else None
    inside: dict[str, list[tuple[Path, pa.DataType]]] = {}
    for path, kind in paths:
        inside.setdefault(path[0] if isinstance(path[0], str) else "", []).append((path[1:], kind))
    if all(isinstance(path[0], int) for path, _ in paths):
        item = _merged(inside[""])
        return None if item is None else pa.list_(item)
    if any(isinstance(path[0], int) for path, _ in paths):
        return None
    fields = [(name, found) for name, more in inside.items() if (found := _merged(more)) is not None]
    return pa.struct(cast(Any, fields)) if len(fields) == len(inside) else None


class ArrowReader:
    """Reads JSON objects into columns."""

    def __init__(self, paths: Paths, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._paths = paths.paths
        raw = [(path, _raw_type(kind_of(column.kind))) for path, column in zip(self._paths, columns, strict=True)]
        schema = _merged(cast(Any, raw)) if raw and all(kind is not None for _, kind in raw) else None
        # A key that is the whole text of a path is an error, unless the path leads to something.
        texts = [text for text, path in zip(paths.texts, self._paths, strict=True) if (text,) != path]
        self._keys_like_paths = [b'"%s"' % text.encode() for text in texts]
        # whether it can read these columns at all
        self.is_able = schema is not None and all(text.isascii() and '"' not in text for text in texts)
        if self.is_able:
            self._options = pj.ParseOptions(
                explicit_schema=pa.schema(list(cast(Any, schema))), unexpected_field_behavior="ignore"
            )

    def parse(self, values: Any, rows: Ints) -> list[tuple[Ints, list[Any]]]:
        """Return what could be read of these rows of a binary array, as pieces: the rows, and their arrays."""
        texts = values.take(pa.array(rows))
        if not (good := self._harmless(texts)).all():
            texts, rows = texts.filter(pa.array(good)), rows[good]
        parts: list[tuple[Ints, list[Any]]] = []
        failures, waiting = 0, [(0, len(rows))]
        while waiting and failures < FAILURES_MAX:
            begin, end = waiting.pop()
            if begin == end:
                continue
            table = self._read(texts[begin:end])
            if table is not None:
                parts.append(self._convert(rows[begin:end], table))
                continue
            failures += 1
            if end - begin > 1:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
        return parts

    def _harmless(self, texts: Any) -> Mask:
        """Return which documents it reads as orjson would."""
        good = np.ones(len(texts), dtype=bool)
        offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32, count=len(texts) + 1, offset=4 * texts.offset)
        data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
        if (data == 0).any():
            good &= ~_having(texts, b"\0")
        has_escapes = (data == _BACKSLASH).any()
        # First two or three bytes of each: to look for them in all documents at once costs next to nothing.
        for needle in _NOT_FOR_ARROW:
            if has_escapes if needle[0] == _BACKSLASH else ((data[:-1] == needle[0]) & (data[1:] == needle[1])).any():
                good &= ~_having(texts, needle)
        marks = {mark: np.flatnonzero(data[1:-1] == mark) for mark in b".["} if self._keys_like_paths else {}
        for needle in self._keys_like_paths:
            at = next(place for place, byte in enumerate(needle) if byte in marks)
            found = marks[needle[at]]
            if ((data[found] == needle[at - 1]) & (data[found + 2] == needle[at + 1])).any():
                good &= ~_having(texts, needle)
        if has_escapes and self._keys_like_paths:
            good &= ~np.array(pc.match_substring_regex(texts, r"\\u00[2-7]"))
        try:
            pa.Array.from_buffers(pa.string(), len(texts), texts.buffers(), 0, texts.offset).validate(full=True)
        except pa.ArrowInvalid:
            good &= np.array([is_utf8(text) for text in texts.to_pylist()], dtype=bool)
        openings = np.flatnonzero((data == _BRACE) | (data == _BRACKET))
        places = np.searchsorted(openings, offsets)
        good &= np.diff(places) < DEPTH_MAX
        return good

    def _read(self, texts: Any) -> pa.Table | None:
        """Return one row for each document; None: it did not like one."""
        text = joined(texts, b"\n")
        try:
            table = pj.read_json(
                cast(Any, pa.BufferReader(text)),
                read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=self._options,
            )
        except CONVERSION_ERRORS:
            return None
        return table if table.num_rows == len(texts) else None

    def _convert(self, rows: Ints, table: pa.Table) -> tuple[Ints, list[Any]]:
        """Return the rows as what is declared, without those that are better looked at one by one."""
        fits = np.ones(len(rows), dtype=bool)
        arrays = [
            _fit(_at(_one_array(table.column(str(path[0]))), path[1:]), column, fits)
            for path, column in zip(self._paths, self._columns, strict=True)
        ]
        if not fits.all():
            kept = pa.array(fits)
            arrays = [array.filter(kept) for array in arrays]
        return rows[fits], arrays


def _having(texts: Any, needle: bytes) -> Mask:
    contains: Any = pc.match_substring  # its stubs know texts alone
    found: Mask = np.array(contains(texts, needle))
    return found


def _one_array(found: Any) -> Any:
    return found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)


def _at(found: Any, path: Path) -> Any:
    """Return the item at a path in each value; null if a step of the path is missing."""
    for step in path:
        if isinstance(step, str):
            found = pc.struct_field(found, [found.type.get_field_index(step)])
            continue
        length = pc.list_value_length(found).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = found.offsets.to_numpy(zero_copy_only=False)
        place = (offsets[:-1] if step >= 0 else offsets[1:]) + step
        found = found.values.take(pa.array(place, mask=length <= step if step >= 0 else length < -step))
    return found


def _fit(found: Any, column: Column, fits: Mask) -> Any:
    """Return a column as it is declared; take rows out of ``fits`` that have no value there, or a doubtful one."""
    if column.required and found.null_count:
        fits &= np.array(found.is_valid())
    kind = kind_of(column.kind)
    if kind.name in WHOLE:
        nulls = np.array(found.is_null())
        return numbers_of(found.fill_null(0).to_numpy(zero_copy_only=False), ~nulls, nulls, fits, column)
    if kind.name in ("date", "timestamp") and (made := cast_texts(found, column, fits)) is not None:
        return made
    if kind.name in _EXACT_MAX:
        fits &= _exact(found, _EXACT_MAX[kind.name])
    elif not _all_exact(found, kind):
        fits[:] = False
    if found.type == column.type:
        return found
    return convert(column, found.to_pylist(), fits)


def _all_exact(found: Any, kind: Kind) -> bool:
    """Return whether all floats inside of values are the same whether they were written as whole numbers or not."""
    if kind.name in _EXACT_MAX:
        return bool(_exact(found, _EXACT_MAX[kind.name]).all())
    inside = [found.flatten()] if kind.name == "list" else found.flatten() if kind.name == "struct" else []
    return all(_all_exact(part, what) for part, what in zip(inside, kind.parts, strict=False))


def _exact(found: Any, limit: int) -> Mask:
    """Return which floats are the same whether they were written as whole numbers or not."""
    numbers = found.fill_null(0.0).to_numpy(zero_copy_only=False)
    exact: Mask = (np.abs(numbers) < limit) & ~((numbers == 0) & np.signbit(numbers))
    return exact


# --- objects ---

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
    """Like :func:`parse_object`, with errors that name the value."""
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
    """Parses JSON objects into declared columns. It learns how they are written."""

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
            try:
                exact = self._paths.of(json.loads(value, parse_float=ExactNumber, parse_int=_whole_number))
            except RecursionError:
                raise ValueError("value is not as expected: it is nested too deeply") from None
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
    """Decides when to try a fast strategy: after it parsed less than an eighth of a block, it skips ever more blocks.

    >>> turns = Turns()
    >>> [turns.has_come() and turns.note(0, 100) is False for _ in range(10)]
    [True, False, True, False, False, False, True, False, False, False]
    """

    OUT_MAX = 63  # Blocks that it sits out at most

    def __init__(self) -> None:
        self._out = self._left = 0

    def has_come(self) -> bool:
        """Return whether to try it."""
        self._left -= 1
        return self._left < 0

    def note(self, done: int, given: int) -> bool:
        """Record how many of a block's records it parsed; return whether these are enough."""
        self._out = 0 if done * 8 >= given else min(2 * self._out + 1, self.OUT_MAX)
        self._left = self._out
        return not self._out
