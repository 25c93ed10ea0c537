"""ChunkBolt: a bolt that is written only for chunks, and accepts records too. And rows that a bolt cannot use.

Such rows are emitted on a separate stream, or the tuple fails. A record of a chunk that is not JSON, or does not fit,
must neither hold up the others nor vanish. So the bolt emits it on its stream ``rejects``, anchored like any other
tuple, and continues. A DeadLetterBolt that reads this stream writes a dead letter and acks when the letter is durable.
If no bolt reads ``rejects``, the record would be acked unprocessed; so its tuple fails. The spout splits a failed chunk
until the bad record is alone, and writes its dead letter itself.

A dead letter is for a bad record, not for a broken bolt. The spout's circuit breaker does not see rejected rows; so if
there are too many (``kafka.breaker_ratio`` of the last 1,000 rows), the tuples fail too, which it does see.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property, wraps
from inspect import signature
from typing import Any, ClassVar

import pyarrow as pa
from streamparse.dsl.bolt import ShellBoltSpec

from downspout.component import Bolt
from downspout.errors import ConfigError, RecordError, coordinates
from downspout.formatting import counted
from downspout.ledger.breaker import MINIMUM, Breaker
from downspout.ledger.origin import Origin
from downspout.origins import FIELD, column_of, each, origin_at, rows_of
from downspout.settings.table import SETTINGS
from downspout.sink.schema import Rejected

REJECTS = "rejects"
REJECT_FIELDS = ("origin", "key", "value", "error", "timestamp", "headers")
"""What is told of a rejected row: where it comes from, what the bolt was given of its record, and why.

``timestamp`` is null unless the bolt was given the whole record: key, value, timestamp and headers. A bolt may declare
the first four alone."""
_RECORD = ("key", "value", "timestamp", "headers")
CURE = "correct the producer, or the topology's declaration of the value; its dead letter holds the whole record"


def is_read(context: Mapping[str, Any], stream: str) -> bool:
    """Return whether any bolt reads a stream of this component, from the arguments of ``initialize``.

    Storm tells it in ``stream->target->grouping`` (``TopologyContext.getThisTargets``), and so do the other engines.
    Without this information the answer is False: a stream without a known reader is not safe.

    >>> is_read({"stream->target->grouping": {"rejects": {"letters": {"type": "SHUFFLE"}}}}, "rejects")
    True
    >>> is_read({"stream->target->grouping": {"rejects": {}}}, "rejects"), is_read({}, "rejects")
    (False, False)
    """
    targets = context.get("stream->target->grouping") or {}
    return bool(targets.get(stream))


class Rejects:
    """Rejects rows that one bolt cannot use."""

    def __init__(self, bolt: Any, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        self._bolt = bolt
        self.is_read = is_read(context, REJECTS)  # whether rows leave on the stream; otherwise their tuples fail
        outputs = context.get("stream->outputfields") or {}
        self._fields = list(outputs.get(REJECTS) or REJECT_FIELDS)
        self.count = 0  # rows that have left
        self.seen = 0  # rows that the bolt was given: it counts them here, before it processes them
        self._recent: deque[int] = deque()  # for each of the last rejected rows: how many had been seen
        ratio = SETTINGS["kafka.breaker_ratio"]
        self._ratio = float(ratio.parse(conf.get(ratio.key, ratio.default), "topology"))
        self._window = Breaker.WINDOW

    def of_record(self, tup: Any, reason: str, cause: Exception | None = None) -> None:
        """Reject the record of a tuple: emit it on the stream, or make the tuple fail.

        Raises:
            RecordError: the tuple must fail. Do not catch it.
        """
        values = tup.values
        error = self._error(Origin.of(values.origin), reason)
        if self.is_read:
            self._recent.append(self.seen)
        if not self.is_read or self._are_too_many():
            raise error from cause
        known = {name: getattr(values, name, None) for name in _RECORD}
        if not all(hasattr(values, name) for name in _RECORD):
            known["timestamp"] = None
        known |= {"origin": values.origin, "error": _text_of(error)}
        self._bolt.emit([known[name] for name in self._fields], stream=REJECTS, anchors=[tup])
        self.count += 1

    def of_chunk(self, batch: pa.RecordBatch, rejected: Sequence[Rejected]) -> None:
        """Reject rows of a chunk that has been counted; call it before emitting any row of this chunk.

        Raises:
            RecordError: the tuple must fail. Do not catch it.
        """
        if not rejected:
            return
        if self.is_read:
            self._recent.extend(self.seen - batch.num_rows + reject.row for reject in rejected)
        origins = batch.column(FIELD)
        if not self.is_read or self._are_too_many():
            more = f" (and {counted(len(rejected) - 1, 'other')} of this chunk)" if len(rejected) > 1 else ""
            raise self._error(origin_at(origins, rejected[0].row), rejected[0].reason + more)
        rows = pa.array([reject.row for reject in rejected])
        names = set(batch.schema.names)
        known: dict[str, Any] = {
            name: batch.column(name).take(rows) if name in names else pa.nulls(len(rejected)) for name in _RECORD
        }
        if not names.issuperset(_RECORD):
            known["timestamp"] = pa.nulls(len(rejected))
        taken: Any = origins.take(rows)
        told = zip(each(taken), rejected, strict=True)
        errors = [_text_of(self._error(origin, reject.reason)) for origin, reject in told]
        known |= {"origin": taken, "error": pa.array(errors, pa.string())}
        columns = [known[name] for name in self._fields]
        self._bolt.emit(pa.RecordBatch.from_arrays(columns, names=self._fields), stream=REJECTS)
        self.count += len(rejected)

    def _error(self, origin: Origin, reason: str) -> RecordError:
        where = coordinates(origin.topic, origin.partition, origin.offset)
        return RecordError(f"{where}: {self._bolt.component_name}: {reason}", cure=CURE)

    @property
    def takes_another(self) -> bool:
        """Whether the next bad record would be emitted on the stream, instead of failing its tuple."""
        return self.is_read and not self._are_too_many(1)

    def _are_too_many(self, more: int = 0) -> bool:
        """Return whether the share of rejected rows is too large, with so many more that are bad."""
        recent, seen = self._recent, self.seen + more
        while recent and recent[0] < seen - self._window:
            recent.popleft()
        rows = min(seen, self._window)
        return rows >= min(MINIMUM, self._window) and 0 < self._ratio * rows <= len(recent) + more


def _text_of(error: RecordError) -> str:
    """Return class and message, as the engine tells a spout of an error."""
    return f"{type(error).__name__}: {error}"


__all__ = ["ChunkBolt"]


class ChunkBolt(Bolt):
    """Base of bolts that implement only ``process_chunk``; they get a record as a chunk of one row.

    If a subclass declares a stream ``rejects`` with ``downspout.parse.chunk_bolt.REJECT_FIELDS``, or the first four of
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
