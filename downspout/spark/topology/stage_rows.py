"""The rows that stages emit. All kinds share one schema, as Spark's operators require.

=============  =========================================================  =============================================
kind           payload (pickled)                                          reader
=============  =========================================================  =============================================
``tuple``      tuples for one task of a stateful bolt                     that task, in its stage
``tick``       nothing: the last tick of a bounded run                    a task of a stateful bolt, in its stage
``staged``     staged files of a sink                                     the driver: it commits them
``exhausted``  a record that used up its retries                          the driver: it writes the dead letter
``failed``     records of which a tuple failed in a later stage, and why  the driver: it computes the batch again
``metrics``    the records read and the metrics of a stage                the driver
``state``      a task's values of a batch for a state, by key             the driver: it applies the batch
``error``      the error that ended a stage                               the driver: it raises the error
=============  =========================================================  =============================================

Payloads are pickled and read by the same version of our code within one query, and never stored.
"""

from __future__ import annotations

import io
import pickle
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from downspout.component import Failure
from downspout.dead_letters.claims import PlainRecord
from downspout.engine.result import Counts
from downspout.kafka.unreadable import Unreadable

SCHEMA = "kind string, component string, task int, payload binary"
_TYPES: Any = {"kind": pa.string(), "component": pa.string(), "task": pa.int32(), "payload": pa.binary()}
ARROW = pa.schema(_TYPES)

TUPLE, TICK, STAGED, EXHAUSTED, FAILED = "tuple", "tick", "staged", "exhausted", "failed"
METRICS, ERROR, STATE = "metrics", "error", "state"
_VALUES_MODULE = "downspout.engine.lifecycle"


class Row(NamedTuple):
    """One row between stages; ``task`` is the index of a stateful bolt's task, otherwise 0."""

    kind: str
    component: str
    task: int
    payload: bytes

    @classmethod
    def of(cls, kind: str, component: str, what: Any, task: int = 0) -> Row:
        """Return a row with this payload."""
        # Only a state may hold tuples' values, which need the slower `dump`.
        return cls(kind, component, task, dump(what) if kind == STATE else pickle.dumps(what, pickle.HIGHEST_PROTOCOL))


def dump(value: Any) -> bytes:
    """Pickle a value that may contain values of tuples."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles the values of tuples, whose types are created dynamically and cannot be imported."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to recreate such values."""
        if isinstance(value, tuple) and type(value).__module__ == _VALUES_MODULE and hasattr(value, "_fields"):
            return _values, (type(value).__name__, value._fields, tuple(value))
        return NotImplemented


def _values(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return values_type(name, fields)._make(values)


@lru_cache
def values_type(name: str, fields: tuple[str, ...]) -> Any:
    """Return the type of the values of a stream's tuples, as the engine creates it."""
    made = namedtuple(name, fields)  # type: ignore[misc]
    made.__module__ = _VALUES_MODULE
    return made


def load(payload: bytes) -> Any:
    """Return the content of a payload."""
    return pickle.loads(payload)


def to_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    """Convert rows to an Arrow batch."""
    columns: Any = list(zip(*rows, strict=True)) or [[], [], [], []]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


class RecordPlace(NamedTuple):
    """The coordinates of a record."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class ChunkPlace(NamedTuple):
    """The coordinates of a chunk's records. A failure of the chunk counts against no single record."""

    topic: str
    topic_id: str
    partition: int
    offset: int  # of the first record
    runs: tuple[tuple[int, int], ...]  # offset ranges without a gap

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.runs[-1][1]

    @property
    def size(self) -> int:
        """The number of records."""
        return sum(end - start for start, end in self.runs)


def places_of(places: Iterable[RecordPlace | ChunkPlace]) -> Iterator[RecordPlace]:
    """Yield each record.

    >>> chunk = ChunkPlace("t", "", 0, 5, ((5, 7), (9, 10)))
    >>> [place.offset for place in places_of([RecordPlace("t", "", 0, 1), chunk])]
    [1, 5, 6, 9]
    """
    for place in places:
        if isinstance(place, RecordPlace):
            yield place
            continue
        for start, end in place.runs:
            yield from (RecordPlace(*place[:3], offset) for offset in range(start, end))


def narrowed(places: tuple[RecordPlace | ChunkPlace, ...], origin: Any) -> tuple[RecordPlace | ChunkPlace, ...]:
    """Return the record of a chunk that an origin names, or the places unchanged if it names none of them.

    >>> narrowed((ChunkPlace("t", "", 0, 5, ((5, 7), (9, 10))),), ("t", "", 0, 6, ""))
    (RecordPlace(topic='t', topic_id='', partition=0, offset=6),)
    >>> narrowed((ChunkPlace("t", "", 0, 5, ((5, 7), (9, 10))),), ("t", "", 0, 8, ""))[0].size
    3
    """
    if len(places) != 1 or not isinstance(chunk := places[0], ChunkPlace):
        return places
    if not isinstance(origin, list | tuple) or len(origin) != 5 or tuple(origin[:3]) != chunk[:3]:
        return places
    offset = origin[3]
    return (RecordPlace(*chunk[:3], offset),) if any(start <= offset < end for start, end in chunk.runs) else places


class ShuffledTuple(NamedTuple):
    """A tuple for a task of a stateful bolt."""

    places: tuple[RecordPlace | ChunkPlace, ...]
    """the records that it came from; empty if none, as for a tick's tuples"""
    source: str
    task: int  # the source's task id
    stream: str
    values: tuple[Any, ...] | bytes  # bytes: a chunk in Arrow's streaming format
    number: int = 0  # increases in the order in which the source's task emitted


def to_wire(chunk: pa.RecordBatch) -> bytes:
    """Return a chunk as bytes; for a slice, only its own rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, chunk.schema) as writer:
        writer.write_batch(chunk)
    return sink.getvalue().to_pybytes()


def from_wire(data: bytes) -> pa.RecordBatch:
    """Return the chunk from the bytes of :func:`to_wire`."""
    return pa.ipc.open_stream(data).read_next_batch()


@dataclass(frozen=True)
class ExhaustedRecord:
    """A record that used up its retries, with the data for its dead letter."""

    spout: str
    place: RecordPlace
    record: PlainRecord | None  # None if only its place is known; it is read again then
    attempts: int
    first_ms: int  # time of the first failure, since the epoch
    last_ms: int  # time of the last one
    failure: Failure  # the last one
    unreadable: Unreadable | None = None  # set if the record represents unreadable data


@dataclass
class StageMetrics:
    """The metrics of one run of a stage."""

    reads: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """(spout, topic, partition, first offset, number) of the records read"""
    counts: dict[str, Counts] = field(default_factory=dict)
    reports: dict[str, dict[str, float]] = field(default_factory=dict)  # the components' own metrics
    filtered: dict[str, int] = field(default_factory=dict)  # records without a tuple, by spout
    errors: list[str] = field(default_factory=list)  # one line per kind of error
