"""TableBolt: a bolt whose work is a function from a table to a table, with pyarrow, pandas or Polars.

::

    class LateFlights(TableBolt):
        outputs = ["origin", "carrier", "dep_delay"]
        frame = "polars"

        def process_table(self, flights):
            return flights.filter(pl.col("dep_delay") > 60)

A chunk is a table of thousands of records, so the work is done in C and not row by row. The column ``origin``, which
makes the sink exactly-once, holds numbers in the table: pass it on like any other column, so that the engine knows
which record each row came from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.errors import ConfigError, MissingExtraError, TopologyError
from downspout.origins import FIELD, ITSELF, places_among_equals, under
from downspout.parse.chunk_bolt import ChunkBolt

__all__ = ["TableBolt"]


def _pandas(batch: pa.RecordBatch) -> Any:
    import pandas as pd

    # Arrow's types keep nulls; NumPy's would turn integers with nulls into floats.
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

    Attributes of the class:

    ``outputs``
        the fields of the stream; the table that is returned has these columns, in any order, and may have others.
    ``frame``
        what ``process_table`` is given: ``"pyarrow"`` (a ``pyarrow.Table``, the default), ``"pandas"`` (a DataFrame
        whose columns have Arrow's types) or ``"polars"`` (a DataFrame). It may return any of them.
    """

    frame: ClassVar[str] = "pyarrow"
    implements: ClassVar[str] = "process_table"

    @classmethod
    def spec(cls, *given: Any, **how: Any) -> ShellBoltSpec:
        """Put the bolt into a topology; the arguments are those of :meth:`Bolt.spec`.

        Raises:
            ConfigError: the class has no ``process_table``, or its ``frame`` is unknown.
        """
        if cls.frame not in FRAMES:
            raise ConfigError(f"{cls.__name__}.frame = {cls.frame!r} is unknown", cure=f"one of {', '.join(FRAMES)}")
        return super().spec(*given, **how)

    @cached_property
    def _wanted(self) -> list[str]:
        """The fields of the stream."""
        return list(((self.context or {}).get("stream->outputfields") or {}).get("default") or ())

    def _framed(self, batch: pa.RecordBatch) -> Any:
        """Return a chunk as the argument of ``process_table``."""
        try:
            return FRAMES[self.frame](batch)
        except ImportError:
            raise MissingExtraError(
                f"{self.component_name}: {type(self).__name__}.frame is {self.frame}, which is not installed",
                cure=f"pip install {self.frame}",
            ) from None

    @abstractmethod
    def process_table(self, table: Any) -> Any:
        """Return a new table made from a chunk's table.

        Args:
            table: the records of a chunk. Their column ``origin``, if any, holds numbers; each returned row has the
                number of the record that it comes from.

        Returns:
            A table with the columns of ``outputs``; if it has no rows, nothing is emitted. Any rows of records that
            were passed to :meth:`reject_rows` are dropped.
        """

    def process_chunk(self, tup: Any) -> None:
        """Emit the table that ``process_table`` returns for a chunk."""
        self._batch, self._rejected = tup.values, set[int]()
        batch = self._batch
        if FIELD in batch.schema.names:
            place, numbers = batch.schema.get_field_index(FIELD), pa.array(np.arange(batch.num_rows, dtype=np.int64))
            batch = batch.set_column(place, FIELD, numbers)
        made = self._table(self.process_table(self._framed(batch)), "process_table returned")
        if made.num_rows:
            made = self._chosen(made)
        if self._rejected and FIELD in made.column_names:
            made = made.filter(pa.array([number not in self._rejected for number in self._numbers(made).tolist()]))
        if made.num_rows:
            self.emit(self._batch_of(made))

    def reject_rows(self, table: Any, reason: str) -> None:
        """Reject records; call it before ``process_table`` returns.

        Args:
            table: rows of the table that was given, with the column ``origin``; each names the record to reject.
            reason: what is wrong with them.

        Raises:
            RecordError: no bolt reads the rejects, or too many were rejected. Do not catch it: the tuple must fail.
            TopologyError: these are not rows of the table.
        """
        numbers = self._numbers(self._table(table, "reject_rows was given"), "the rows that reject_rows was given")
        rows = sorted(set(numbers.tolist()) - self._rejected)
        self._rejected.update(rows)
        if rows:
            self.reject(self._batch, rows, [str(reason)] * len(rows))

    def _table(self, made: Any, where: str) -> pa.Table:
        """Return any library's table as Arrow's; values that Arrow cannot convert are an error of these records."""
        if isinstance(made, pa.RecordBatch):
            return pa.Table.from_batches([made])
        if hasattr(made, "collect"):  # a LazyFrame
            made = made.collect()
        if isinstance(made, pa.Table):
            return made
        if hasattr(made, "__arrow_c_stream__") and hasattr(made, "columns"):
            return pa.table(made)
        raise TopologyError(
            f"{self.component_name}: {where} {type(made).__name__}, which is no table",
            cure="a table of pyarrow, pandas or Polars: for rows, table[mask] or table.filter(…); for none, one "
            "without rows",
        )

    def _chosen(self, table: pa.Table) -> pa.Table:
        """Return the output columns of a table and the record numbers, with ordinary types."""
        if missing := [name for name in self._wanted if name not in table.column_names]:
            raise TopologyError(
                f"{self.component_name}: the table that process_table returned has no column {', '.join(missing)}; "
                f"it has {', '.join(table.column_names) or 'none'}",
                cure="return a column for each of the bolt's outputs, and hand origin on",
            )
        names = [name for name in table.column_names if name == FIELD or name in self._wanted]
        return pa.table({name: _plain(table.column(name)) for name in names})

    def _batch_of(self, table: pa.Table) -> pa.RecordBatch:
        """Return the chosen columns as a batch: each in one piece, each row with its origin."""
        columns = [
            self._origins(table) if name == FIELD else table.column(name).combine_chunks() for name in self._wanted
        ]
        return pa.RecordBatch.from_arrays(columns, names=self._wanted)

    def _numbers(self, table: pa.Table, what: str = "the table that process_table returned") -> Any:
        """Return the number of each row's record in the chunk."""
        column = table.column(FIELD) if FIELD in table.column_names else None
        if column is None or column.null_count or not pa.types.is_integer(column.type):
            raise self._odd_origin(what)
        numbers = column.to_numpy().astype(np.int64)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self._batch.num_rows):
            raise self._odd_origin(what)
        return numbers

    def _odd_origin(self, what: str) -> TopologyError:
        return TopologyError(
            f"{self.component_name}: {what} has not the numbers in its column origin that the given table has",
            cure="hand origin on as it is; rows that come of no one record have none: leave origin out of outputs",
        )

    def _origins(self, table: pa.Table) -> Any:
        """Return the origins of the rows; several rows of one record get distinct origins."""
        numbers = self._numbers(table)
        if FIELD not in self._batch.schema.names:
            raise self._odd_origin("the table that process_table returned")
        origins = self._batch.column(FIELD).take(pa.array(numbers))
        siblings = np.bincount(numbers, minlength=self._batch.num_rows)[numbers]
        if not (siblings > 1).any():
            return origins
        # A record with a single row keeps its origin, whatever its neighbours in the chunk do: if it comes again in
        # another chunk, it must have the same rows.
        return under(origins, self.component_name, np.where(siblings > 1, places_among_equals(numbers), ITSELF))


def _plain(column: Any) -> Any:
    """Return a column with the type that parsers and sinks use for such values.

    Arrow cannot even filter some other types, such as Polars' ``string_view``.
    """
    kind = _plain_type(column.type)
    if pa.types.is_dictionary(column.type):  # Arrow cannot look values up in a dictionary of views
        chunks: Any = [
            pa.DictionaryArray.from_arrays(each.indices, each.dictionary.cast(kind)) for each in column.chunks
        ]
        column = pa.chunked_array(chunks)
    return column if kind == column.type else column.cast(kind)


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
