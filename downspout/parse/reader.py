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

from downspout.parse.columns import Ints, Mask, convert
from downspout.sink.schema import CONVERSION_ERRORS, Column

LONG = 1_000  # Bytes from which on a document may nest more deeply than orjson goes (1,024)
FAILURES_MAX = 16  # Times that it may not like a block, or parts of it, before the rest goes another way
BLOCKS_LEFT_OUT = 15
"""After a block with too many it is not asked for so many more: halving costs most where culprits stand densely."""
_EXACT_MAX = {"float32": 2**24, "float64": 2**53}
"""Up to here a whole number is a float; beyond, it does not fit a column of floats, and a float does."""
_NOT_FOR_ARROW = (b"\0", b"NaN", b"Inf", b"\\ud", b"\\uD")
_RAW: dict[str, pa.DataType] = {
    "string": pa.string(), "bool": pa.bool_(), "date": pa.string(), "timestamp": pa.string(),
    **dict.fromkeys(("int8", "int16", "int32", "int64"), pa.int64()),
    **dict.fromkeys(("timestamp_s", "timestamp_ms", "timestamp_us"), pa.int64()),
    **dict.fromkeys(("float32", "float64"), pa.float64()),
}  # fmt: skip
"""What a column is read as, before it becomes what is declared."""


def _raw_type(column: Column) -> pa.DataType | None:
    kind = column.kind
    if kind.startswith("list<"):
        item = _RAW.get(kind[5:-1].strip())
        return pa.list_(item) if item is not None else None
    return _RAW.get(kind)


class ArrowReader:
    """Reads JSON objects into columns."""

    def __init__(self, keys: Sequence[str], columns: Sequence[Column]) -> None:
        self._keys, self._columns = tuple(keys), tuple(columns)
        raw = [_raw_type(column) for column in columns]
        self.is_able = None not in raw and len(set(keys)) == len(self._keys)  # whether it can read these columns at all
        self._left_out = 0
        if self.is_able:
            schema = pa.schema(list(zip(keys, raw, strict=True)))  # type: ignore[arg-type]
            self._options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def parse(self, values: Any, rows: Ints) -> list[tuple[Ints, list[Any]]]:
        """Return what could be read of these rows of a binary array, as pieces: the rows, and their arrays."""
        if self._left_out:
            self._left_out -= 1
            return []
        rows = rows[self._harmless(values, rows)]
        parts: list[tuple[Ints, list[Any]]] = []
        failures, waiting = 0, [rows]
        while waiting and failures < FAILURES_MAX:
            part = waiting.pop()
            if not len(part):
                continue
            table = self._read(values.take(pa.array(part)), len(part))
            if table is not None:
                parts.append(self._convert(part, table))
                continue
            failures += 1
            if len(part) > 1:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
        if waiting:
            self._left_out = BLOCKS_LEFT_OUT
        return parts

    def _harmless(self, values: Any, rows: Ints) -> Mask:
        """Return which documents it reads as orjson would."""
        texts = values.take(pa.array(rows))
        good = np.ones(len(rows), dtype=bool)
        whole = _joined(texts).to_pybytes()
        for needle in _NOT_FOR_ARROW:
            if needle in whole:
                contains: Any = pc.match_substring  # its stubs know texts alone
                good &= ~np.array(contains(texts, needle))
        try:
            whole.decode()
        except UnicodeDecodeError:
            good &= np.array([_is_utf8(text) for text in texts.to_pylist()], dtype=bool)
        for row in np.flatnonzero(np.array(pc.binary_length(texts)) >= LONG):
            text = texts[int(row)].as_py()
            good[row] &= text.count(b"{") + text.count(b"[") < LONG
        return good

    def _read(self, texts: Any, count: int) -> pa.Table | None:
        """Return one row for each of so many documents; None: it did not like one."""
        text = _joined(texts)
        try:
            table = pj.read_json(
                cast(Any, pa.BufferReader(text)),
                read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=self._options,
            )
        except CONVERSION_ERRORS:
            return None
        return table if table.num_rows == count else None

    def _convert(self, rows: Ints, table: pa.Table) -> tuple[Ints, list[Any]]:
        """Return the rows as what is declared, without those that are better looked at one by one."""
        fits = np.ones(len(rows), dtype=bool)
        arrays = [_fit(_one_array(table.column(place)), column, fits) for place, column in enumerate(self._columns)]
        if not fits.all():
            kept = pa.array(fits)
            arrays = [array.filter(kept) for array in arrays]
        return rows[fits], arrays


def _joined(texts: Any) -> pa.Buffer:
    lists: Any = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined: Any = pc.binary_join(lists, b"\n")
    return joined.buffers()[2] or pa.py_buffer(b"")


def _one_array(found: Any) -> Any:
    return found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fit(found: Any, column: Column, fits: Mask) -> Any:
    """Return a column as it is declared; take rows out of ``fits`` that have no value there, or a doubtful one."""
    if column.required and found.null_count:
        fits &= np.array(found.is_valid())
    kind = column.kind
    if kind in ("string", "bool", "int64"):
        return found
    if kind in ("int8", "int16", "int32"):
        limits = np.iinfo(kind)
        numbers = found.fill_null(0).to_numpy(zero_copy_only=False)
        fits &= (numbers >= limits.min) & (numbers <= limits.max)
        return found.cast(column.type, safe=False)
    if kind in _EXACT_MAX:
        fits &= _exact(found, _EXACT_MAX[kind])
        return found if kind == "float64" else convert(column, found.to_pylist(), fits)
    item = kind.removeprefix("list<").removesuffix(">").strip()
    if item in _EXACT_MAX and not _exact(found.flatten(), _EXACT_MAX[item]).all():
        fits[:] = False
    return convert(column, found.to_pylist(), fits)


def _exact(found: Any, limit: int) -> Mask:
    """Return which floats are the same whether they were written as whole numbers or not."""
    numbers = found.fill_null(0.0).to_numpy(zero_copy_only=False)
    exact: Mask = (np.abs(numbers) < limit) & ~((numbers == 0) & np.signbit(numbers))
    return exact
