"""What stages hand on: a few kinds of rows, all of one shape, so that Spark needs to know one schema only.

===========  =========================================================  ================================================
kind         payload (pickled)                                          who reads it
===========  =========================================================  ================================================
``tuple``    tuples for one task of a stateful bolt                      that task, in its stage
``staged``   files of a sink that wait for their entry                   the driver
``letter``   a record that failed for good                               the driver
``failed``   records of which a tuple failed in a later stage, and why   the driver: it computes the batch again
``figures``  what a stage read and did                                   the driver
``error``    why a stage cannot go on                                    the driver
===========  =========================================================  ================================================

Payloads are pickled by our own code and read by the same version of it, within one query. Nothing of them is kept.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from downspout.component import Failure
from downspout.kafka.replayed import PlainRecord

__all__ = [
    "ERROR", "FAILED", "FIGURES", "LETTER", "SCHEMA", "STAGED", "TUPLE", "Figures", "Item", "Letter", "Place", "Span",
    "from_wire", "narrowed", "places_of", "to_wire",
]  # fmt: skip

SCHEMA = "kind string, component string, task int, payload binary"
_TYPES: Any = {"kind": pa.string(), "component": pa.string(), "task": pa.int32(), "payload": pa.binary()}
ARROW = pa.schema(_TYPES)

TUPLE, STAGED, LETTER, FAILED, FIGURES, ERROR = "tuple", "staged", "letter", "failed", "figures", "error"


class Row(NamedTuple):
    """One row between stages; ``task`` is the index of a stateful bolt's task, else 0."""

    kind: str
    component: str
    task: int
    payload: bytes

    @classmethod
    def of(cls, kind: str, component: str, what: Any, task: int = 0) -> Row:
        """Return a row with this payload."""
        return cls(kind, component, task, pickle.dumps(what, pickle.HIGHEST_PROTOCOL))


def load(payload: bytes) -> Any:
    """Return what a payload holds."""
    return pickle.loads(payload)


def to_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return rows as Arrow."""
    columns: Any = list(zip(*rows, strict=True)) or [[], [], [], []]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


class Place(NamedTuple):
    """A record, as batches name it."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class Span(NamedTuple):
    """Several records of one partition that were one tuple, a chunk: what fails of it, no single one is to blame for.

    Attributes:
        topic: of the records.
        topic_id: Kafka's id of it.
        partition: its partition.
        offset: of the first record.
        runs: first and last offset, plus one, of each run of records without a gap.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    runs: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.runs[-1][1]

    @property
    def size(self) -> int:
        """How many records."""
        return sum(end - start for start, end in self.runs)


def places_of(places: Iterable[Place | Span]) -> Iterator[Place]:
    """Yield each record.

    >>> [place.offset for place in places_of([Place("t", "", 0, 1), Span("t", "", 0, 5, ((5, 7), (9, 10)))])]
    [1, 5, 6, 9]
    """
    for place in places:
        if isinstance(place, Place):
            yield place
            continue
        for start, end in place.runs:
            yield from (Place(*place[:3], offset) for offset in range(start, end))


def narrowed(places: tuple[Place | Span, ...], origin: Any) -> tuple[Place | Span, ...]:
    """Return the one record of a chunk that an origin names; the places as they are, if it names none of them.

    >>> narrowed((Span("t", "", 0, 5, ((5, 7), (9, 10))),), ("t", "", 0, 6, ""))
    (Place(topic='t', topic_id='', partition=0, offset=6),)
    >>> narrowed((Span("t", "", 0, 5, ((5, 7), (9, 10))),), ("t", "", 0, 8, ""))[0].size
    3
    """
    if len(places) != 1 or not isinstance(span := places[0], Span):
        return places
    if not isinstance(origin, list | tuple) or len(origin) != 5 or tuple(origin[:3]) != span[:3]:
        return places
    offset = origin[3]
    return (Place(*span[:3], offset),) if any(start <= offset < end for start, end in span.runs) else places


class Item(NamedTuple):
    """A tuple on its way to a task of a stateful bolt.

    Attributes:
        places: the records that it came from; empty for one that came from none, such as a tick's.
        source: the component that emitted it.
        task: that component's task id.
        stream: on which stream.
        values: the tuple; of a chunk its columns, in Arrow's format for streams.
        number: rises in the order in which the source's task has emitted.
    """

    places: tuple[Place | Span, ...]
    source: str
    task: int
    stream: str
    values: tuple[Any, ...] | bytes
    number: int = 0


def to_wire(chunk: pa.RecordBatch) -> bytes:
    """Return a chunk as bytes: its own rows alone, where it is a slice of others."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, chunk.schema) as writer:
        writer.write_batch(chunk)
    return sink.getvalue().to_pybytes()


def from_wire(data: bytes) -> pa.RecordBatch:
    """Return the chunk that :func:`to_wire` was given."""
    return pa.ipc.open_stream(data).read_next_batch()


@dataclass(frozen=True)
class Letter:
    """A record that failed for good.

    Attributes:
        spout: whose it is.
        place: where it is.
        record: itself; None where only its place is known: then it is read again.
        attempts: how often it was tried.
        first_ms: of the first failure, since the epoch.
        last_ms: of the last one.
        failure: the last one.
    """

    spout: str
    place: Place
    record: PlainRecord | None
    attempts: int
    first_ms: int
    last_ms: int
    failure: Failure


@dataclass
class Figures:
    """What one pass of a stage did.

    Attributes:
        reads: (spout, topic, partition, first offset, how many) of the records that came in.
        counts: by component: emitted, executed, acked, failed, errors, restarts.
        reports: the components' own figures.
        filtered: records without a tuple, by spout.
        errors: one line per kind of error.
    """

    reads: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    counts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reports: dict[str, dict[str, float]] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
