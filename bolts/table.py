"""TableBolt: a bolt whose work is a function from a table to a table, with pyarrow, pandas or Polars.

::

    class LateFlights(TableBolt):
        outputs = ["origin", "carrier", "dep_delay"]
        frame = "polars"

        def process_table(self, flights):
            return flights.filter(pl.col("dep_delay") > 60)

A chunk is a table of thousands of records, so the work is done in C and not row by row. The column ``origin``, which
makes the sink exactly-once, is in the table as a number: hand it on like any other column, and the engine knows which
record each row came from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from downspout.errors import ConfigError, MissingExtraError, TopologyError
from downspout.origins import FIELD, ITSELF, under
from downspout.parse.chunk_bolt import ChunkBolt

__all__ = ["TableBolt"]


def _pandas(batch: pa.RecordBatch) -> Any:
    import pandas as pd

    # With Arrow's types, a null is a null: numpy's would make floats of whole numbers that have one.
    return pa.Table.from_batches([batch]).to_pandas(types_mapper=pd.ArrowDtype)


def _polars(batch: pa.RecordBatch) -> Any:
    import polars as pl

    return pl.from_arrow(batch)


FRAMES: Mapping[str, Callable[[pa.RecordBatch], Any]] = {
    "pyarrow": lambda batch: pa.Table.from_batches([batch]),
    "pandas": _pandas,
    "polars": _polars,
}
_PLAIN = {
    pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(),
}  # fmt: skip


class TableBolt(ChunkBolt):
    """Base of bolts that implement only ``process_table``; they get a record as a table of one row.

    A subclass that has an ``initialize`` calls this one first. Attributes of the class:

    ``outputs``
        the fields of the stream; the table that is returned has these columns, in any order, and may have others.
    ``frame``
        what ``process_table`` is given: ``"pyarrow"`` (a ``pyarrow.Table``, the default), ``"pandas"`` (a DataFrame
        whose columns have Arrow's types) or ``"polars"`` (a DataFrame). It may return any of them.
    """

    frame: ClassVar[str] = "pyarrow"

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Find out which columns are wanted, and whether rejects are read.

        Raises:
            ConfigError: ``frame`` is unknown.
            MissingExtraError: its library is not installed.
        """
        super().initialize(storm_conf, context)
        if self.frame not in FRAMES:
            raise ConfigError(
                f"{type(self).__name__}.frame = {self.frame!r} is unknown", cure=f"one of {', '.join(FRAMES)}"
            )
        try:
            FRAMES[self.frame](pa.record_batch([pa.array([0])], names=["n"]))
        except ImportError:
            raise MissingExtraError(
                f"{type(self).__name__}.frame is {self.frame}, which is not installed",
                cure=f"pip install {self.frame}",
            ) from None
        outputs = context.get("stream->outputfields") or {}
        declared = [each for each in type(self).outputs or () if isinstance(each, str)]
        self._wanted: list[str] = list(outputs.get("default") or declared)

    @abstractmethod
    def process_table(self, table: Any) -> Any:
        """Make a table of a table.

        Args:
            table: the records of a chunk. Where they have an ``origin``, that column holds numbers; a row that is
                returned has the number of the record that it comes from.

        Returns:
            A table with the columns of ``outputs``; None, or one without rows, if nothing is to be emitted.
        """

    def process_chunk(self, tup: Any) -> None:
        """Emit what ``process_table`` makes of a chunk."""
        self._batch = batch = tup.values
        if FIELD in batch.schema.names:
            place, numbers = batch.schema.get_field_index(FIELD), pa.array(np.arange(batch.num_rows, dtype=np.int64))
            batch = batch.set_column(place, FIELD, numbers)
        made = self.process_table(FRAMES[self.frame](batch))
        if made is not None and (table := self._as_arrow(made)).num_rows:
            self.emit(table)

    def reject_rows(self, table: Any, reason: str) -> None:
        """Reject records; call it before ``process_table`` returns.

        Args:
            table: rows of the table that was given, with the column ``origin``; each names the record to reject.
            reason: what is wrong with them.

        Raises:
            RecordError: no bolt reads the rejects, or too many were rejected. Do not catch it: the tuple must fail.
        """
        rows = sorted(set(self._numbers(_table_of(table)).tolist()))
        if rows:
            self.reject(self._batch, rows, [reason] * len(rows))

    def _as_arrow(self, made: Any) -> pa.RecordBatch:
        """Return the columns that are wanted of a table, each row with its origin."""
        table = _table_of(made)
        if missing := [name for name in self._wanted if name not in table.column_names]:
            raise TopologyError(
                f"{self.component_name}: the table that process_table returned has no column {', '.join(missing)}; "
                f"it has {', '.join(table.column_names) or 'none'}",
                cure="return a column for each of the bolt's outputs, and hand origin on",
            )
        columns = [self._origins(table) if name == FIELD else _plain(table.column(name)) for name in self._wanted]
        return pa.RecordBatch.from_arrays(columns, names=self._wanted)

    def _numbers(self, table: pa.Table) -> Any:
        """Return which record of the chunk each row is of."""
        column = table.column(FIELD) if FIELD in table.column_names else None
        if column is None or column.null_count or not pa.types.is_integer(column.type):
            raise self._odd_origin()
        numbers = column.to_numpy().astype(np.int64)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self._batch.num_rows):
            raise self._odd_origin()
        return numbers

    def _odd_origin(self) -> TopologyError:
        return TopologyError(
            f"{self.component_name}: the column origin of process_table's table does not hold the numbers that it was "
            "given",
            cure="hand origin on as it is; rows that come of no one record have none: leave origin out of outputs",
        )

    def _origins(self, table: pa.Table) -> Any:
        """Return the origins of the rows; of several rows of one record, each has its own."""
        if FIELD not in self._batch.schema.names:
            raise self._odd_origin()
        numbers = self._numbers(table)
        origins = self._batch.column(FIELD).take(pa.array(numbers))
        siblings = np.bincount(numbers, minlength=self._batch.num_rows)[numbers]
        if not (siblings > 1).any():
            return origins
        # A record that makes one row of itself hands its origin on, whatever its neighbours in the chunk do: the same
        # record must have the same rows when it comes again, beside others.
        return under(origins, self.component_name, np.where(siblings > 1, _place_among_equals(numbers), ITSELF))


def _table_of(made: Any) -> pa.Table:
    """Return any library's table as Arrow's."""
    if isinstance(made, pa.RecordBatch):
        return pa.Table.from_batches([made])
    if hasattr(made, "collect"):  # a LazyFrame
        made = made.collect()
    try:
        return pa.table(made)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise TopologyError(
            f"process_table returned a {type(made).__name__}, which is no table: {error}",
            cure="return a table of pyarrow, pandas or Polars",
        ) from error


def _plain(column: Any) -> Any:
    """Return a column in one piece, with the type that parsers and sinks have for such values."""
    kind = _plain_type(column.type)
    return (column if kind == column.type else column.cast(kind)).combine_chunks()


def _plain_type(kind: Any) -> Any:
    """Return the type for Polars' and pandas' variants of texts, bytes, lists and categories.

    >>> _plain_type(pa.large_list(pa.large_string()))
    ListType(list<item: string>)
    """
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, _plain_type(field.type)) for field in kind])
    return _PLAIN.get(kind, kind)


def _place_among_equals(numbers: Any) -> Any:
    """Return for each number how many equal ones stand before it.

    >>> _place_among_equals(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    begins = np.maximum.accumulate(np.where(first, np.arange(len(numbers)), 0))
    places = np.empty(len(numbers), dtype=np.int64)
    places[order] = np.arange(len(numbers)) - begins
    return places
