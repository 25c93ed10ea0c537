"""Arrow's JSON reader, kept to what it reads as orjson does.

It reads a text of several documents, and tells neither where one ended nor always which one it did not like. So a
document goes through it only if that cannot matter. Each begins with ``{`` and ends with ``}``, and a line feed
stands between two: a document that is cut short cannot go on in the next one, because ``{`` may not follow ``}`` and a
text may hold no line feed. So each gives one row at least; and where there are as many rows as documents, each gave
one.

What it takes and orjson does not is kept from it: NUL, which ends its input; NaN and infinity; bytes that are no UTF-8
in a value that nobody asked for; lone surrogates, on some versions; and depth. What it reads otherwise is told apart
afterwards: whole numbers in a column of floats, from 2^53 on or with a sign before zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from downspout.parse.columns import Ints, Mask, cast_texts, convert, is_utf8, joined
from downspout.parse.flat import WHOLE, numbers_of
from downspout.parse.paths import Path, Paths
from downspout.sink.convert import Kind, kind_of
from downspout.sink.schema import CONVERSION_ERRORS, Column

DEPTH_MAX = 1_000  # Brackets in a document from which on it may nest more deeply than orjson goes (1,024)
FAILURES_MAX = 16  # Times that it may not like a block, or parts of it, before the rest goes another way
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
    """Return what stands at a path inside of each value; null for what is missing on the way."""
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
