"""From parsed values to declared columns, whichever way they were parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.parquet.schema import MISFITS, Column, Columns, Rejected

__all__ = [
    "MOMENT_MAX_US",
    "MOMENT_MIN_US",
    "Ints",
    "Mask",
    "Parsed",
    "convert",
    "in_reach",
    "nulls",
    "put_together",
]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MOMENT_MIN_US = int(datetime.min.replace(tzinfo=UTC).timestamp()) * 1_000_000
MOMENT_MAX_US = int(datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()) * 1_000_000 + 999_999
"""The years 1 to 9999: other moments have no ``datetime``, and so could not leave a chunk as a record's value."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became of the values of a chunk.

    Attributes:
        rows: of each row in ``batch``, its place among the values given; rising.
        batch: the columns.
        rejected: the values that are none, in order.
        filtered: how many values were null, and so are in neither.
    """

    rows: Ints
    batch: pa.RecordBatch
    rejected: list[Rejected]
    filtered: int


def nulls(count: int, kind: pa.DataType) -> Any:
    """Return so many nulls of a type."""
    of_any_type: Any = pa.nulls  # its stubs know each type apart, and a declared column may have any
    return of_any_type(count, kind)


def convert(column: Column, values: list[Any], fits: Mask) -> Any:
    """Return values as an array of a column; take rows out of ``fits`` whose value is none.

    What such a row has in the array means nothing. ``values`` of rows that did not fit before are not looked at.
    """
    if column.required:
        fits &= np.array([value is not None for value in values], dtype=bool)
    good = np.flatnonzero(fits)
    if not len(good):
        return nulls(len(values), column.type)
    filler = values[int(good[0])] if column.required else None
    if len(good) < len(values):
        values = [value if fit else filler for value, fit in zip(values, fits.tolist(), strict=True)]
    try:
        made = column.array(values)
    except MISFITS:
        bad = _misfits(column, values, 0)
        # None need be bad by itself: 2**60 + 1 and 1.5 only have no type together. Then none is taken here.
        fits[bad if bad else slice(None)] = False
        return convert(column, values, fits)
    fits &= in_reach(made)
    return made


def in_reach(made: Any) -> Mask | np.bool_:
    """Return which values of a column have a counterpart in Python: moments have a ``datetime``, or have not."""
    if not pa.types.is_timestamp(made.type):
        return np.True_
    numbers = made.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    near: Mask = (numbers >= MOMENT_MIN_US) & (numbers <= MOMENT_MAX_US)
    return near


def _misfits(column: Column, values: Sequence[Any], first: int) -> list[int]:
    """Return the places of the values that do not fit a column, by halving: O(k log n) for k of them."""
    try:
        column.array(values)
        return []
    except MISFITS:
        if len(values) == 1:
            return [first]
    half = len(values) // 2
    return _misfits(column, values[:half], first) + _misfits(column, values[half:], first + half)


def put_together(columns: Columns, parts: Sequence[tuple[Ints, Sequence[Any]]]) -> tuple[Ints, pa.RecordBatch]:
    """Return rows that were parsed in several ways as one batch, in their order.

    Args:
        columns: what is declared.
        parts: places of rows, rising, and their arrays by column.
    """
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return np.empty(0, dtype=np.int64), pa.RecordBatch.from_pylist([], schema=columns.schema)
    if len(parts) == 1:
        rows, arrays = parts[0]
        return rows, pa.RecordBatch.from_arrays(list(arrays), schema=columns.schema)
    rows = np.concatenate([part[0] for part in parts])
    joined: list[Any] = [pa.concat_arrays(list(pieces)) for pieces in zip(*(part[1] for part in parts), strict=True)]
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows, kind="stable")
        rows, joined = rows[order], [array.take(pa.array(order)) for array in joined]
    return rows, pa.RecordBatch.from_arrays(joined, schema=columns.schema)
