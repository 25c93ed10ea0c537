"""From what a sink left to its finished table: rows without their origins, or finished aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from downspout.engine.graph import Component
from downspout.sink.columns.aggregate import Aggregation
from downspout.sink.schema import Columns

ROUNDING = 1e-9
"""Sums of floats depend on the order in which they were added up. Those that differ by less than this part of the
larger one are taken as equal."""


@dataclass(frozen=True)
class Sink:
    """A sink of a topology, and the table that it is there for."""

    name: str
    schema: pa.Schema  # of the finished table
    folders: tuple[str, ...] = ()  # columns that name Hive folders
    aggregation: Aggregation | None = None  # of an AggregateBolt; a ParquetBolt has none

    @classmethod
    def of(cls, component: Component, settings: Mapping[str, Any]) -> Sink:
        """Return the sink that a component is, with its settings of the scope ``parquet``.

        Raises:
            ConfigError: they contradict each other.
        """
        columns, folders = Columns.parse(settings["schema"] or ()), tuple(settings["partition_by"])
        if not settings["aggregates"]:
            return cls(component.name, pa.schema(list(columns.schema)), folders)
        aggregation = Aggregation.parse(settings["keys"], settings["aggregates"], columns)
        schema = aggregation.finish(aggregation.schema(columns).empty_table()).schema
        return cls(component.name, schema, folders, aggregation)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that are the key of an AggregateBolt."""
        return self.aggregation.keys if self.aggregation else ()

    def read(self, directory: Path) -> pa.Table:
        """Return the finished table of a directory that the sink wrote; no rows where there is no file.

        Raises:
            OSError, ValueError: a file cannot be read (Arrow's errors are of these kinds).
        """
        if not directory.is_dir():
            return self.schema.empty_table()
        folders = pa.schema([self.schema.field(name) for name in self.folders])
        rows = ds.dataset(
            directory,
            format="parquet",
            schema=self.schema,
            partitioning=ds.partitioning(folders, flavor="hive") if self.folders else None,
        ).to_table(columns=self.schema.names)
        return self.aggregation.finish(rows) if self.aggregation else rows

    @property
    def float_sums(self) -> list[str]:
        """The columns that hold sums of floats."""
        aggregates = self.aggregation.aggregates if self.aggregation else ()
        named = [each.name for each in aggregates if each.function == "sum"]
        return [name for name in named if pa.types.is_floating(self.schema.field(name).type)]


def read_finished(directory: Path) -> pa.Table:
    """Return a table that is finished already, with the columns that its files have."""
    return ds.dataset(directory, format="parquet").to_table()


def columns_wrong(found: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return in what the columns of a table differ from those that the sink's settings declare; order says nothing.

    >>> wanted = pa.schema({"hour": pa.int8(), "route": pa.string()})
    >>> columns_wrong(pa.schema({"hour": pa.int64(), "gate": pa.string()}), wanted)
    ['hour is int64 instead of int8', 'no column route', 'a column gate too many']
    """
    wrong = []
    for field in wanted:
        if field.name not in found.names:
            wrong.append(f"no column {field.name}")
        elif (kind := found.field(field.name).type) != field.type:
            wrong.append(f"{field.name} is {kind} instead of {field.type}")
    return wrong + [f"a column {name} too many" for name in found.names if name not in wanted.names]


def rounded_alike(tables: Mapping[str, pa.Table], keys: Sequence[str], columns: Sequence[str]) -> dict[str, pa.Table]:
    """Return the tables with one value for all float sums of a key that differ by rounding alone.

    >>> one, other = pa.table({"k": ["a"], "s": [0.1 + 0.2]}), pa.table({"k": ["a"], "s": [0.3]})
    >>> rounded_alike({"one": one, "other": other}, ["k"], ["s"])["other"]["s"].to_pylist()
    [0.3]
    >>> rounded_alike({"one": one, "other": other}, ["k"], ["s"])["one"]["s"].to_pylist()
    [0.3]
    """
    if not columns:
        return dict(tables)
    everything = pa.concat_tables(tables.values()).combine_chunks()
    groups = _group_numbers(everything.select(list(keys)))
    for name in columns:
        column = everything.column(name).combine_chunks()
        kind, nulls = column.type, np.asarray(column.is_null())
        values = np.asarray(column.cast(pa.float64()).fill_null(np.nan), dtype=np.float64).copy()
        lowest, highest = np.full(groups.max(initial=-1) + 1, np.inf), np.full(groups.max(initial=-1) + 1, -np.inf)
        np.fmin.at(lowest, groups, values)
        np.fmax.at(highest, groups, values)
        finite = np.isfinite(lowest) & np.isfinite(highest)
        width = np.where(finite, highest, 0.0) - np.where(finite, lowest, 0.0)
        alike = finite & (width <= ROUNDING * np.maximum(np.abs(lowest), np.abs(highest)))
        take = alike[groups] & np.isfinite(values)
        values[take] = lowest[groups][take]
        made = pa.array(values, mask=nulls, from_pandas=False).cast(kind)
        everything = everything.set_column(everything.schema.get_field_index(name), name, made)
    parts, start = {}, 0
    for name, table in tables.items():
        parts[name] = everything.slice(start, table.num_rows)
        start += table.num_rows
    return parts


def _group_numbers(keys: pa.Table) -> Any:
    """Return for each row a number that rows with the same keys share; null is a key like any other."""
    numbers = np.zeros(keys.num_rows, dtype=np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = np.asarray(encoded.indices, dtype=np.int64)
        numbers = np.unique(numbers * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1]
    return numbers
