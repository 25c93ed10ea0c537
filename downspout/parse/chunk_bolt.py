"""ChunkBolt: a bolt that is written only for chunks, and takes records too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from downspout.component import Bolt
from downspout.origins import FIELD, column_of, rows_of
from downspout.parse.rejects import Rejects
from downspout.sink.columns.schema import Rejected

__all__ = ["ChunkBolt"]


class ChunkBolt(Bolt):
    """Base of bolts that implement only ``process_chunk``; they get a record as a chunk of one row.

    A subclass that has an ``initialize`` calls this one first. If it declares a stream ``rejects`` with
    ``downspout.parse.rejects.REJECT_FIELDS``, or the first four of them, :meth:`reject` emits rows on it.

    ::

        class Late(ChunkBolt):
            outputs = ["origin", "carrier", "dep_delay"]

            def process_chunk(self, tup):
                flights = tup.values
                self.emit(flights.filter(pc.greater(flights.column("dep_delay"), 60)).select(self.outputs))
    """

    def initialize(self, storm_conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Find out whether rejects are read."""
        self._rejects = Rejects(self, storm_conf, context)

    @abstractmethod
    def process_chunk(self, tup: Any) -> None:
        """Process a chunk.

        Args:
            tup: a tuple; ``tup.values`` is a ``pyarrow.RecordBatch`` with the fields as columns.
        """

    def process(self, tup: Any) -> None:
        """Process a record as a chunk of one row, and emit as records what it emits."""
        bolt: Any = self
        emit = bolt.emit

        def emit_records(batch: Any, *given: Any, **how: Any) -> None:
            for values in rows_of(batch):
                emit(list(values), *given, **how)

        bolt.emit = emit_records
        try:
            self.process_chunk(tup._replace(values=_chunk(tup.values)))
        finally:
            bolt.emit = emit

    def reject(self, batch: pa.RecordBatch, rows: Sequence[int], reasons: Sequence[str]) -> None:
        """Reject rows of a chunk; call it before anything of this chunk is emitted.

        Args:
            batch: the chunk as it came in.
            rows: their places in it.
            reasons: what is wrong with each.

        Raises:
            RecordError: no bolt reads the rejects, or too many were rejected. Do not catch it: the tuple must fail.
        """
        self._rejects.of_chunk(batch, [Rejected(row, reason) for row, reason in zip(rows, reasons, strict=True)])


def _chunk(values: Any) -> pa.RecordBatch:
    """Return the values of a record as a chunk."""
    columns: list[Any] = [
        column_of([value]) if name == FIELD else pa.array([value])
        for name, value in zip(values._fields, values, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(values._fields))
