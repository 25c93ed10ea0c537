"""Where the spout emits chunks: which records of a batch of Spark's go together as one tuple, and how that is split.

What ``mapInArrow`` gives is some thousands of records of one partition as columns. They stay columns: a
:class:`Range` of them is a chunk, made as KafkaSpout makes it. If it fails, its halves are tried again, until the
culprit stands alone; that is a record like any other, with the attempts, retries and dead letter of record mode. As
with the spout, an attempt of many records says nothing about any of them, and none is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.component import Failure
from downspout.kafka.columns import RecordColumns
from downspout.kafka.columns.wire import encoded_headers
from downspout.offset_ranges import of_offsets
from downspout.spark.topology.rows import ChunkPlace
from downspout.spark.topology.stages.spout_settings import SpoutSettings
from downspout.spark.topology.stages.stage_output import Root

ChunkLimits = Mapping[ChunkPlace, int]
"""Chunks that failed in a later stage, and how many of their records may go together in the next try."""


class TrackedRange(Root):
    """Two records or more that go as one chunk, and how often it, or what they were part of, has failed so far."""

    __slots__ = ("failure", "rows", "spout", "timeouts", "topic_id", "tries")

    def __init__(
        self, spout: SpoutSettings, topic_id: str, rows: RecordColumns, tries: int = 0, timeouts: int = 0
    ) -> None:
        super().__init__()
        self.spout, self.topic_id, self.rows = spout, topic_id, rows
        self.tries, self.timeouts = tries, timeouts  # ``tries`` in a row, by which the back-off grows
        self.failure: Failure | None = None

    @property
    def places(self) -> tuple[ChunkPlace, ...]:
        """Where the records are."""
        rows = self.rows
        runs = tuple(of_offsets(rows.offsets))
        return (ChunkPlace(rows.topic, self.topic_id, rows.partition, int(rows.offsets[0]), runs),)

    def after(self, failure: Failure) -> list[RecordColumns]:
        """Take note of a failure; return what is tried next: halves, or after a timeout the same again."""
        timed_out = failure.kind == "timeout"
        self.timeouts += timed_out and not failure.outage
        # One that timed out too often is halved too: a bolt may have forgotten one record's ack.
        if timed_out and self.timeouts < self.spout.settings["timeouts_max"]:
            self.tries += 1
            return [self.rows]
        self.tries = 1  # halves were not tried yet: were the back-off twice as long with each, a culprit took 10 s
        half = (len(self.rows) + 1) // 2
        return [self.rows[:half], self.rows[half:]]

    def without(self, alone: Sequence[int]) -> list[RecordColumns]:
        """Return each of some rows by itself, and then the others together."""
        rest = np.delete(np.arange(len(self.rows)), alone)
        return [*(self.rows[row : row + 1] for row in alone), *([self.rows.take(rest)] if len(rest) else [])]


def from_source(batch: pa.RecordBatch, mask: NDArray[np.bool_] | None = None) -> RecordColumns:
    """Return records of one partition that came through Spark as the consumer has them; at least one row."""
    topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
    chosen = batch if mask is None else batch.filter(pa.array(mask))
    column: Any = chosen.column
    headers: Any = None
    if has_headers(column("headers")):
        given: Any = column("headers").to_pylist()
        pairs = ([(each["key"], each["value"]) for each in row or ()] for row in given)
        headers = pa.array(list(map(encoded_headers, pairs)), pa.binary())
    return RecordColumns(
        topic,
        partition,
        column("offset").to_numpy(),
        column("timestamp").cast(pa.int64()).to_numpy() // 1000,
        np.zeros(len(chosen), np.int8),
        column("key").cast(pa.binary()),
        column("value").cast(pa.binary()),
        headers,
    )


def has_headers(column: Any) -> bool:
    """Return whether any record has headers: without, they are null or empty.

    >>> [has_headers(pa.array(rows, pa.list_(pa.string()))) for rows in ([None, []], [[], ["a"]])]
    [False, True]
    """
    return len(column.flatten()) > 0


def cut(
    rows: RecordColumns, topic_id: str, settings: Mapping[str, Any], chunk_limits: ChunkLimits
) -> Iterator[RecordColumns]:
    """Yield records of one partition, in offset order, in portions that may go together."""
    offsets = rows.offsets
    bounds = {0: settings["chunk_records_max"]}  # row → the most records that go together from there on
    for chunk, most in sorted(chunk_limits.items(), key=lambda item: -item[1]):
        if (chunk.topic, chunk.topic_id, chunk.partition) == (rows.topic, topic_id, rows.partition):
            first, behind = (int(offsets.searchsorted(offset)) for offset in (chunk.offset, chunk.end))
            if first < behind:
                within = bounds[max(row for row in bounds if row <= behind)]
                bounds = {row: there for row, there in bounds.items() if not first <= row <= behind}
                bounds |= {first: most, behind: within}
    edges = sorted(bounds)
    for at, edge in enumerate(edges):
        end = min(edges[at + 1], len(rows)) if at + 1 < len(edges) else len(rows)
        for start in range(edge, end, bounds[edge]):
            yield from _by_bytes(rows[start : min(start + bounds[edge], end)], settings["chunk_bytes_max"])


def _by_bytes(rows: RecordColumns, bytes_max: int) -> Iterator[RecordColumns]:
    """Yield records in portions that fit, or of one record."""
    if len(rows) == 1 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = len(rows) // 2
    yield from _by_bytes(rows[:half], bytes_max)
    yield from _by_bytes(rows[half:], bytes_max)
