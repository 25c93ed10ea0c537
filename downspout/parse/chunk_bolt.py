"""ChunkBolt: a bolt that is written only for chunks, and accepts records too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, wraps
from inspect import signature
from typing import Any, ClassVar

import pyarrow as pa
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.component import Bolt
from downspout.errors import ConfigError
from downspout.origins import FIELD, column_of, rows_of
from downspout.parse.rejects import Rejects
from downspout.sink.schema import Rejected

__all__ = ["ChunkBolt"]


class ChunkBolt(Bolt):
    """Base of bolts that implement only ``process_chunk``; they get a record as a chunk of one row.

    If a subclass declares a stream ``rejects`` with ``downspout.parse.rejects.REJECT_FIELDS``, or the first four of
    them, :meth:`reject` emits rows on it.

    ::

        class Late(ChunkBolt):
            outputs = ["origin", "carrier", "dep_delay"]

            def process_chunk(self, tup):
                flights = tup.values
                self.emit(flights.filter(pc.greater(flights.column("dep_delay"), 60)).select(self.outputs))
    """

    implements: ClassVar[str] = "process_chunk"  # what a subclass must have; pystorm's classes cannot be abstract
    _counted: Any = None  # The tuple that is being processed

    def __init_subclass__(cls, **how: Any) -> None:
        """Count each chunk before a subclass gets it: the limit on rejects depends on the number of rows."""
        super().__init_subclass__(**how)
        own = cls.__dict__.get("process_chunk")
        if own is None:
            return

        @wraps(own)
        def process_chunk(self: ChunkBolt, tup: Any) -> None:
            if self._counted is tup:  # a subclass calls its base's
                own(self, tup)
                return
            self._counted = tup
            self._rejects.seen += tup.values.num_rows
            try:
                own(self, tup)
            finally:
                self._counted = None

        cls.process_chunk = process_chunk  # type: ignore[method-assign]

    @classmethod
    def spec(cls, *given: Any, **how: Any) -> ShellBoltSpec:
        """Put the bolt into a topology; the arguments are those of :meth:`Bolt.spec`.

        Raises:
            ConfigError: the class does not implement its method.
        """
        method = getattr(cls, cls.implements)
        if getattr(method, "__isabstractmethod__", False):
            raise ConfigError(
                f"{cls.__name__} has no {cls.implements}, so it would emit nothing",
                cure=f"def {cls.implements}(self, …)",
            )
        try:
            signature(method).bind(*[None] * 2)
        except TypeError:
            raise ConfigError(
                f"{cls.__name__}.{cls.implements} cannot be called with one argument",
                cure=f"def {cls.implements}(self, …)",
            ) from None
        return super().spec(*given, **how)

    @abstractmethod
    def process_chunk(self, tup: Any) -> None:
        """Process a chunk.

        Args:
            tup: a tuple; ``tup.values`` is a ``pyarrow.RecordBatch`` with the fields as columns.
        """

    @cached_property
    def _rejects(self) -> Rejects:
        return Rejects(self, self.storm_conf or {}, self.context or {})

    @cached_property
    def _types(self) -> dict[str, Any]:
        """The type of each field, from the last record with a value there: a null has no type."""
        return {}

    def process(self, tup: Any) -> None:
        """Process a record as a chunk of one row, and emit the resulting rows as records."""
        bolt: Any = self
        emit = bolt.emit

        def emit_records(batch: Any, *given: Any, **how: Any) -> None:
            for values in rows_of(batch):
                emit(list(values), *given, **how)

        bolt.emit = emit_records
        try:
            self.process_chunk(tup._replace(values=self._chunk(tup.values)))
        finally:
            bolt.emit = emit

    def reject(self, batch: pa.RecordBatch, rows: Sequence[int], reasons: Sequence[str]) -> None:
        """Reject rows of a chunk; call it before emitting any row of this chunk.

        Args:
            batch: the chunk as it came in.
            rows: their places in it.
            reasons: what is wrong with each.

        Raises:
            RecordError: no bolt reads the rejects, or too many were rejected. Do not catch it: the tuple must fail.
        """
        rejected = [Rejected(row, reason) for row, reason in zip(rows, reasons, strict=True)]
        self._rejects.of_chunk(batch, rejected)

    def _chunk(self, values: Any) -> pa.RecordBatch:
        """Return the values of a record as a chunk."""
        columns: list[Any] = []
        for name, value in zip(values._fields, values, strict=True):
            if name == FIELD:
                columns.append(column_of([value]))
                continue
            column = pa.array([value], self._types.get(name) if value is None else None)
            if value is not None:
                self._types[name] = column.type
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, names=list(values._fields))
