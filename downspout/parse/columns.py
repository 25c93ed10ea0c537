"""From parsed values to declared columns, whichever way they were parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.sink.schema import CONVERSION_ERRORS, Column, Columns, Rejected

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MOMENT_MIN_US = int(datetime.min.replace(tzinfo=UTC).timestamp()) * 1_000_000
MOMENT_MAX_US = int(datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()) * 1_000_000 + 999_999
"""The years 1 to 9999: other moments have no ``datetime``, and so could not leave a chunk as a record's value."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became of the values of a chunk."""

    rows: Ints  # of each row in ``batch``, its place among the values given; rising
    batch: pa.RecordBatch  # the columns
    rejected: list[Rejected]  # the values that are none, in order
    filtered: int  # how many values were null, and so are in neither

    def with_nulls(self, values: Any) -> Parsed:
        """Return the same with a row of nulls for each null among ``values``, in its place; no column may be required.

        >>> batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
        >>> found = Parsed(np.array([0, 2]), batch, [], filtered=1).with_nulls(pa.array([b"1", None, b"2"]))
        >>> found.rows.tolist(), found.batch.column("n").to_pylist(), found.filtered
        ([0, 1, 2], [1, None, 2], 0)
        """
        places = np.flatnonzero(np.array(values.is_null()))
        order = np.argsort(np.concatenate([self.rows, places]))
        columns: list[Any] = self.batch.columns
        arrays = [pa.concat_arrays([made, nulls(len(places), made.type)]).take(pa.array(order)) for made in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.batch.schema)
        return Parsed(np.concatenate([self.rows, places])[order], batch, self.rejected, 0)


def nulls(count: int, kind: pa.DataType) -> Any:
    """Return so many nulls of a type."""
    of_any_type: Any = pa.nulls  # its stubs know each type apart, and a declared column may have any
    return of_any_type(count, kind)


def convert(column: Column, values: list[Any], fits: Mask) -> Any:
    """Return values as an array of a column; take rows out of ``fits`` whose value is none."""
    if column.required:
        fits &= np.array([value is not None for value in values], dtype=bool)
    good = np.flatnonzero(fits)
    if not len(good):
        return nulls(len(values), column.type)
    # What such a row has in the array means nothing. ``values`` of rows that did not fit before are not looked at.
    filler = values[int(good[0])] if column.required else None
    if len(good) < len(values):
        values = [value if fit else filler for value, fit in zip(values, fits.tolist(), strict=True)]
    try:
        made = column.array(values)
    except CONVERSION_ERRORS:
        bad = _invalid_rows(column, values, 0)
        # None need be bad by itself: 2**60 + 1 and 1.5 only have no type together. Then none is taken here.
        fits[bad if bad else slice(None)] = False
        return convert(column, values, fits)
    fits &= in_reach(made)
    return made


def in_reach(made: Any) -> Mask | np.bool_:
    """Return which values of a column have a counterpart in Python: moments have a ``datetime``, or have not."""
    if pa.types.is_nested(made.type):
        return _nested_in_reach(made) if "timestamp" in str(made.type) else np.True_
    if not pa.types.is_timestamp(made.type):
        return np.True_
    numbers = made.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    near: Mask = (numbers >= MOMENT_MIN_US) & (numbers <= MOMENT_MAX_US)
    return near


def _nested_in_reach(made: Any) -> Mask:
    """Return the same for lists, maps and structs that hold moments: row by row, unless all are in reach."""
    try:
        made.to_pylist()
        return np.ones(len(made), dtype=bool)
    except (ValueError, OverflowError):
        if len(made) == 1:
            return np.zeros(1, dtype=bool)
    half = len(made) // 2
    return np.concatenate([_nested_in_reach(made[:half]), _nested_in_reach(made[half:])])


def _invalid_rows(column: Column, values: Sequence[Any], first: int) -> list[int]:
    """Return the places of the values that do not fit a column, by halving: O(k log n) for k of them."""
    try:
        column.array(values)
        return []
    except CONVERSION_ERRORS:
        if len(values) == 1:
            return [first]
    half = len(values) // 2
    return _invalid_rows(column, values[:half], first) + _invalid_rows(column, values[half:], first + half)


def put_together(columns: Columns, parts: Sequence[tuple[Ints, Sequence[Any]]]) -> tuple[Ints, pa.RecordBatch]:
    """Return rows that were parsed in several ways as one batch, in their order."""
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
