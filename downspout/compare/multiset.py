"""Are tables of several engines the same rows, each as often? And if not, which rows are not?

A table is taken as a multiset: the order of rows says nothing, how often a row is there does. Values are compared to
the last bit, with what a person would expect of equality: null equals null, NaN equals NaN, 0.0 equals -0.0.
Pure functions of Arrow tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIFFERENCES_MAX = 1_000  # So many differing rows are kept, the first in the order of their columns


@dataclass(frozen=True)
class Difference:
    """A row that is not equally often in all tables."""

    row: Mapping[str, Any]  # its values by column
    counts: Mapping[str, int]  # how often each table has it


@dataclass(frozen=True)
class Comparison:
    """What comparing found."""

    rows: Mapping[str, int]  # how many rows each table has
    duplicates: Mapping[str, int]  # how many of them are repetitions of another one
    differing: Mapping[str, int]  # how many different rows each table does not have as often as the first table
    differences: Sequence[Difference]  # rows that are not equally often in all tables, at most 1,000

    @property
    def equal(self) -> bool:
        """Whether all tables hold the same rows equally often."""
        return not any(self.differing.values())


def compare(tables: Mapping[str, pa.Table]) -> Comparison:
    """Compare tables with the same columns; the first is what the others are held against.

    One pass: all rows together are grouped by all columns, and counted by table. O(rows × columns).

    Args:
        tables: by name; columns and types must be the same in all, see :func:`downspout.compare.tables.columns_wrong`.

    >>> found = compare({"a": pa.table({"x": [1, 1, 2]}), "b": pa.table({"x": [2, 1]})})
    >>> found.differing, found.differences
    ({'a': 0, 'b': 1}, [Difference(row={'x': 1}, counts={'a': 2, 'b': 1})])
    """
    names = list(tables)
    types = next(iter(tables.values())).schema
    columns = types.names
    counted = pa.concat_tables(_countable(table, number, len(names)) for number, table in enumerate(tables.values()))
    places = [str(number) for number in range(len(columns))]
    marks = [f"n{number}" for number in range(len(names))]
    grouped = counted.group_by(places, use_threads=False).aggregate([(mark, "sum") for mark in marks])
    counts = np.stack([grouped.column(f"{mark}_sum").to_numpy() for mark in marks])
    unlike_first = counts != counts[0]
    unequal = unlike_first.any(axis=0)
    wrong = grouped.filter(pa.array(unequal))
    shown = pa.table([_shown(wrong.column(p), t.type) for p, t in zip(places, types, strict=True)], names=columns)
    order = _order(wrong.select(places))[:DIFFERENCES_MAX]
    found = counts[:, unequal]
    differences = [
        Difference(row, dict(zip(names, found[:, place].tolist(), strict=True)))
        for place, row in zip(order.tolist(), shown.take(pa.array(order)).to_pylist(), strict=True)
    ]
    rows = {name: table.num_rows for name, table in tables.items()}
    distinct = (counts > 0).sum(axis=1).tolist()
    duplicates = {name: rows[name] - number for name, number in zip(names, distinct, strict=True)}
    differing = dict(zip(names, unlike_first.sum(axis=1).tolist(), strict=True))
    return Comparison(rows, duplicates, differing, differences)


def _countable(table: pa.Table, number: int, tables: int) -> pa.Table:
    """Return the rows in a form that can be grouped, and for each table whether they are its own."""
    table = table.combine_chunks()
    columns = [_groupable(column) for column in table.columns]
    ones, zeros = np.ones(table.num_rows, dtype=np.int64), np.zeros(table.num_rows, dtype=np.int64)
    marks = [pa.array(ones if other == number else zeros) for other in range(tables)]
    names = [*map(str, range(len(columns))), *(f"n{other}" for other in range(tables))]
    return pa.table([*columns, *marks], names=names)


def _groupable(column: Any) -> Any:
    """Return values that are equal bit by bit where they are equal: floats as their bits, lists as text."""
    kind = column.type
    if pa.types.is_floating(kind):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        values = np.array(array.fill_null(0).to_numpy(zero_copy_only=False))
        values[np.isnan(values)] = np.nan  # of several bit patterns one
        values += 0.0  # -0.0 + 0.0 is 0.0
        bits = values.view(np.int64 if kind == pa.float64() else np.int32)
        return pa.array(bits, mask=np.asarray(array.is_null().to_numpy(zero_copy_only=False)))
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else _text(value) for value in column.to_pylist()], pa.string())
    return column


def _text(value: Any) -> str:
    """Return a list or a struct as text, which is the same where they are.

    >>> _text([1.0, -0.0, None]), _text({"a": float("nan")})
    ('[1.0, 0.0, None]', "{'a': nan}")
    """
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_text(each)}' for key, each in value.items())}}}"
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def _shown(column: Any, kind: pa.DataType) -> Any:
    """Return values for people, of what :func:`_groupable` made."""
    if not pa.types.is_floating(kind):
        return column
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    floats = np.array(values).view(np.float64 if kind == pa.float64() else np.float32)
    return pa.array(floats, mask=np.asarray(array.is_null().to_numpy(zero_copy_only=False)), from_pandas=False)


def _order(table: pa.Table) -> Any:
    keys: Any = [(name, "ascending") for name in table.column_names]
    return pc.sort_indices(table, sort_keys=keys).to_numpy()
