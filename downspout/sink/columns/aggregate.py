"""Partial aggregates: what a flush adds up, to be finished by whoever reads.

An aggregate is declared as ``count`` (rows), or ``function:column`` with sum, min, max or count (values that are not
null). Its column is named ``count`` or ``function_column``. Rows are folded *after* the check against the log, so each
row is added up in exactly one committed file. Sums and counts are finished by adding, minima and maxima by min and
max. A mean is a sum and a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from downspout.errors import ConfigError
from downspout.sink.columns.schema import Columns

FUNCTIONS = ("sum", "min", "max", "count")


@dataclass(frozen=True)
class Aggregate:
    """One aggregate: ``function`` over ``column``; a column of None counts rows."""

    function: str
    column: str | None

    @property
    def name(self) -> str:
        """The column in the files."""
        return f"{self.function}_{self.column}" if self.column else self.function


def parse(declared: Sequence[str], columns: Columns, keys: Sequence[str]) -> list[Aggregate]:
    """Return the aggregates that a list declares.

    >>> columns = Columns.parse(["route:string", "delay:int16"])
    >>> [a.name for a in parse(["count", "sum:delay"], columns, ["route"])]
    ['count', 'sum_delay']
    """
    if not keys:
        raise ConfigError("parquet.keys is not set", cure=f"some of {', '.join(columns.names)}")
    for name in keys:
        if name not in columns.names:
            raise ConfigError(f"parquet.keys: no column {name}", cure=f"some of {', '.join(columns.names)}")
    if not declared:
        raise ConfigError("parquet.aggregates is not set", cure='aggregates=["count", "sum:delay"]')
    aggregates = [_aggregate(text, columns) for text in declared]
    seen: dict[str, str] = {}
    for name in [*keys, *(aggregate.name for aggregate in aggregates)]:
        if name.lower() in seen:  # to Spark case makes no difference
            raise ConfigError(
                f"parquet.keys, parquet.aggregates: {seen[name.lower()]} and {name} would be one column of the files",
                cure="name each once; rename a key that is named like an aggregate's column",
            )
        seen[name.lower()] = name
    return aggregates


def _aggregate(text: str, columns: Columns) -> Aggregate:
    function, colon, column = text.partition(":")
    if text == "count":
        return Aggregate("count", None)
    if function not in FUNCTIONS or not colon:
        raise ConfigError(f"parquet.aggregates: {text!r} is none", cure="count, sum:x, min:x, max:x or count:x")
    kind = next((c.kind for c in columns.columns if c.name == column), None)
    if kind is None:
        raise ConfigError(f"parquet.aggregates: {text}: no column {column}", cure=f"one of {', '.join(columns.names)}")
    if function == "sum" and not kind.startswith(("int", "float", "decimal")):
        raise ConfigError(f"parquet.aggregates: {text}: a {kind} cannot be added up", cure="min, max or count")
    return Aggregate(function, column)


def fold(table: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Return one row per key.

    Types do not depend on the data: counts and sums of whole numbers are int64, of floats float64, of decimals
    ``decimal(38,s)``; minima and maxima keep their type. Where a sum might go beyond int64, which Arrow would not say,
    the rows are not folded: each is a partial aggregate of its own.

    >>> rows = pa.table({"route": ["a", "b", "a"], "delay": [1, 2, None]})
    >>> fold(rows, ["route"], [Aggregate("count", None), Aggregate("sum", "delay")]).sort_by("route").to_pylist()
    [{'route': 'a', 'count': 2, 'sum_delay': 1}, {'route': 'b', 'count': 1, 'sum_delay': 2}]
    """
    if any(a.function == "sum" and _may_overflow(table.column(str(a.column))) for a in aggregates):
        alone = [fold(table.slice(row, 1), keys, aggregates) for row in range(table.num_rows)]
        return pa.concat_tables(alone)
    wanted: list[Any] = [([], "count_all") if a.column is None else (a.column, a.function) for a in aggregates]
    grouped = table.group_by(list(keys)).aggregate(wanted)
    columns: dict[str, Any] = {name: grouped.column(name) for name in keys}
    for aggregate in aggregates:
        made = grouped.column("count_all" if aggregate.column is None else f"{aggregate.column}_{aggregate.function}")
        columns[aggregate.name] = made.cast(pa.int64()) if aggregate.function == "count" else made
    return pa.table(columns)


def _may_overflow(column: Any) -> bool:
    if column.type != pa.int64() or not len(column):  # sums of smaller numbers do not get there in one flush
        return False
    bounds: Any = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    return bool(largest * len(column) >= 2**63)
