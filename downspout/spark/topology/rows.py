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
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from downspout.component import Failure
from downspout.kafka.replayed import PlainRecord

__all__ = ["ERROR", "FAILED", "FIGURES", "LETTER", "SCHEMA", "STAGED", "TUPLE", "Figures", "Item", "Letter", "Place"]

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


class Item(NamedTuple):
    """A tuple on its way to a task of a stateful bolt.

    Attributes:
        places: the records that it came from; empty for one that came from none, such as a tick's.
        source: the component that emitted it.
        task: that component's task id.
        stream: on which stream.
        values: the tuple.
    """

    places: tuple[Place, ...]
    source: str
    task: int
    stream: str
    values: tuple[Any, ...]


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
