"""Stage 0's way in: the records of a batch as tuples of the spouts that they belong to, tried again until they succeed.

It does in a task what KafkaSpout does on the other engines, but for what Spark does itself: nothing is polled,
assigned or committed here. A record that fails is tried again in the same task, after the spout's own back-off; one
that fails for good is handed to the driver, which writes its dead letter before the batch is committed. Where the spout
emits chunks (``kafka.emit``), records go together as columns until one of them fails (``chunked``).
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import streamparse

from downspout.component import Failure
from downspout.errors import USER_ERRORS
from downspout.kafka.columns import RecordColumns
from downspout.kafka.emit_chunk import Unreadable
from downspout.kafka.replayed import PlainRecord
from downspout.local.world import said
from downspout.spark.topology.chunked import Apart, Range, cut, from_source
from downspout.spark.topology.outbox import Outbox, Root
from downspout.spark.topology.rows import LETTER, Figures, Letter, Place
from downspout.spark.topology.spout import Spout, breaker_opens

__all__ = ["EMITS", "Feed", "Inlet", "Records"]

EMITS = 256
"""Tuples that one call of next_tuple emits."""
WAIT_S_MAX = 0.05


class Inlet:
    """Where a stage's tuples come from."""

    idle: bool
    """Whether nothing is left to emit, retries included."""

    def feed(self, feed: Feed) -> None:
        """Emit some tuples, if any are for this feed."""
        raise NotImplementedError

    def done(self, root: Any) -> None:
        """A tree is complete."""
        raise NotImplementedError

    def failed(self, root: Any, failure: Failure) -> None:
        """A tree failed."""
        raise NotImplementedError


class Feed(streamparse.Spout):
    """Stands in a stage for what feeds it."""

    inlet: Inlet
    task: Any
    """The engine's view of it."""

    def next_tuple(self) -> None:
        """Emit what there is."""
        self.inlet.feed(self)

    def ack(self, tup_id: Any) -> None:
        """A tree is complete."""
        self.inlet.done(tup_id)

    def fail_with(self, tup_id: Any, failure: Failure) -> None:
        """A tree failed."""
        self.inlet.failed(tup_id, failure)


class Work(Root):
    """A record and what became of it so far; it looks like a record to whoever makes a tuple of it."""

    __slots__ = (
        *("topic", "partition", "offset", "timestamp", "key", "value", "headers", "topic_id"),
        *("failure", "failures", "first_ms", "spout", "timeouts"),
    )

    def __init__(
        self, spout: Spout, topic: str, topic_id: str, partition: int, offset: int, timestamp: int, key: Any,
        value: Any, headers: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.spout, self.topic, self.topic_id = spout, topic, topic_id
        self.partition, self.offset, self.timestamp = partition, offset, timestamp
        self.key, self.value, self.headers = key, value, headers
        self.failure: Failure | None = None
        self.failures = self.timeouts = self.first_ms = 0

    @property
    def place(self) -> Place:
        """Where the record is."""
        return Place(self.topic, self.topic_id, self.partition, self.offset)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the record is."""
        return (self.place,)

    @property
    def record(self) -> PlainRecord:
        """The record itself."""
        return PlainRecord(self.topic, self.partition, self.offset, self.timestamp, self.key, self.value, self.headers)


class Records(Inlet):
    """The records of one task.

    Args:
        batches: the source's columns, the name of the spout (``spout``) and the topic's id (``topicId``).
        spouts: the settings of each spout.
        skip: records that are given up: they are left out.
        outbox: for letters, and for what waits for records.
        figures: of the pass.
        apart: records that go with few others, or alone, and not in a large chunk.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        spouts: Mapping[str, Mapping[str, Any]],
        skip: Collection[Place],
        outbox: Outbox,
        figures: Figures,
        apart: Apart | None = None,
    ) -> None:
        self._batches = batches
        self._apart = apart or {}
        self._spouts = {name: Spout(name, conf) for name, conf in spouts.items()}
        self._skip = frozenset(skip)
        self._outbox = outbox
        self._figures = figures
        self._rows: Iterator[Work | Range] | None = None
        self._spout: Spout | None = None
        self._more = True
        self._retries: list[tuple[float, int, Work | Range]] = []
        self._number = itertools.count()

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """Whether all records were emitted, and none waits for a retry."""
        return not (self._more or self._rows or self._retries)

    def feed(self, feed: Feed) -> None:
        """Emit retries that are due, then new records."""
        if self._retries and self._try_again(feed):
            return
        if self._rows is None and not self._load():
            if self._retries:  # nothing else to do: wait for the back-off
                time.sleep(max(0.0, min(self._retries[0][0] - time.monotonic(), WAIT_S_MAX)))
            return
        if self._spout is None or self._spout.name != feed.component_name or self._rows is None:
            return
        most = 1 if self._spout.in_chunks else EMITS
        rows = list(itertools.islice(self._rows, most))
        if len(rows) < most:
            self._rows = None
        for work in rows:
            self._emit(feed, work)

    def _load(self) -> bool:
        """Take the next rows; return whether there are any."""
        while self._more:
            if (batch := next(self._batches, None)) is None:
                self._more = False
            elif batch.num_rows:
                self._rows = self._works(batch)
                return True
        return False

    def _works(self, batch: pa.RecordBatch) -> Iterator[Work | Range]:
        columns = {name: batch.column(name) for name in batch.schema.names}
        name, topic, topic_id, partition = (columns[c][0].as_py() for c in ("spout", "topic", "topicId", "partition"))
        spout, first = self._spouts[name], columns["offset"][0].as_py()
        self._spout = spout
        self._figures.reads.append((name, topic, partition, first, len(batch)))
        spout.note_read(topic, partition, first, len(batch))
        if spout.in_chunks:
            return self._ranges(spout, topic_id or "", batch)
        stamps: Any = columns["timestamp"].cast(pa.int64()).to_pylist()
        headers = columns["headers"]
        told = itertools.repeat(()) if headers.null_count == len(headers) else map(_headers, headers.to_pylist())
        offsets: Any = columns["offset"].to_pylist()
        rows = zip(offsets, stamps, columns["key"].to_pylist(), columns["value"].to_pylist(), told, strict=False)
        return (
            Work(spout, topic, topic_id or "", partition, offset, stamp // 1000, key, value, given)
            for offset, stamp, key, value, given in rows
        )

    def _ranges(self, spout: Spout, topic_id: str, batch: pa.RecordBatch) -> Iterator[Work | Range]:
        """Yield what goes together, without the records that are given up or filtered."""
        offsets, mask = batch.column("offset").to_numpy(), np.ones(len(batch), dtype=bool)
        topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
        if skip := [place.offset for place in self._skip if place[:3] == (topic, topic_id, partition)]:
            mask &= ~np.isin(offsets, skip)
        if batch.column("value").null_count and not spout.settings["emit_null"]:
            valid = batch.column("value").is_valid().to_numpy(zero_copy_only=False)
            self._filter(spout, int((mask & ~valid).sum()))
            mask &= valid
        if mask.any():
            rows = from_source(batch, None if mask.all() else mask)
            for part in cut(rows, topic_id, spout.settings, self._apart):
                yield _work_of(spout, topic_id, part)

    def _emit(self, feed: Feed, work: Work | Range) -> None:
        if isinstance(work, Range):
            self._emit_range(feed, work)
        else:
            self._emit_record(feed, work)

    def _emit_range(self, feed: Feed, work: Range) -> None:
        maker = work.spout.chunk_maker(work.rows.topic, work.topic_id)
        try:
            chunk = maker.make(work.rows)
        except Unreadable:
            for part in work.without(maker.unreadable(work.rows)):
                self._emit(feed, _work_of(work.spout, work.topic_id, part, work.setbacks, work.timeouts))
            return
        work.failure, work.left = None, 1
        feed.emit(chunk, tup_id=work)

    def _emit_record(self, feed: Feed, work: Work) -> None:
        if self._skip and work.place in self._skip:
            return
        spout = work.spout
        make, stream = spout.maker(work.topic, work.topic_id)
        if work.value is None and stream is None and not spout.settings["emit_null"]:
            self._filter(spout)
            return
        try:
            made = make(work)
        except USER_ERRORS as error:  # it will not be another one the next time
            work.failures += 1
            work.first_ms = _now_ms()
            self._give_up(work, Failure("exception", component=spout.name, error=said(error)))
            return
        work.failure = None
        if stream is None:
            work.left = 1
            feed.emit(made, tup_id=work)
            return
        work.left = len(made)
        for values in made:
            feed.emit(values, tup_id=work, stream=stream)
        if not made:
            self._filter(spout)

    def _filter(self, spout: Spout, count: int = 1) -> None:
        self._figures.filtered[spout.name] = self._figures.filtered.get(spout.name, 0) + count

    def _try_again(self, feed: Feed) -> bool:
        now, tried = time.monotonic(), False
        while self._retries and self._retries[0][0] <= now and self._retries[0][2].spout.name == feed.component_name:
            self._emit(feed, heapq.heappop(self._retries)[2])
            tried = True
        return tried

    def done(self, root: Work | Range) -> None:
        """A tree of the record is complete; it may have several."""
        root.left -= 1
        if not root.left:
            self._answered(root)

    def failed(self, root: Work | Range, failure: Failure) -> None:
        """A tree of the record failed."""
        root.left -= 1
        root.failure = failure
        if not root.left:
            self._answered(root)

    def _answered(self, work: Work | Range) -> None:
        for tied in self._outbox.settle(work, complete=work.failure is None):
            self._push(time.monotonic(), tied)
        if (failure := work.failure) is None:
            return
        if isinstance(work, Range):
            for part in work.after(failure):
                self._try_later(_work_of(work.spout, work.topic_id, part, work.setbacks, work.timeouts), work.setbacks)
            return
        work.first_ms = work.first_ms or _now_ms()
        if failure.kind == "timeout":
            work.timeouts += 1
        else:
            work.failures += 1
        settings = work.spout.settings
        if work.failures > settings["retries_max"] or work.timeouts >= settings["timeouts_max"]:
            self._give_up(work, failure)
            return
        self._try_later(work, work.failures)

    def _try_later(self, work: Work | Range, failures: int) -> None:
        self._push(time.monotonic() + work.spout.backoff.delay(failures) / 1000, work)

    def _push(self, due: float, work: Any) -> None:
        heapq.heappush(self._retries, (due, next(self._number), work))

    def _give_up(self, work: Work, failure: Failure) -> None:
        """Hand the record to the driver.

        Raises:
            RecordError: too many of this task's records went that way.
        """
        spout = work.spout
        attempts = work.failures + work.timeouts
        letter = Letter(spout.name, work.place, work.record, attempts, work.first_ms, _now_ms(), failure)
        self._outbox.put(LETTER, spout.name, letter)
        trip = spout.breaker(work.topic, work.partition).give_up(work.offset, failure.error.partition(":")[0])
        if trip is not None:
            raise breaker_opens(work.place, trip, failure)


def _work_of(spout: Spout, topic_id: str, rows: RecordColumns, setbacks: int = 0, timeouts: int = 0) -> Work | Range:
    """Return what goes together, or a record alone: that has no past."""
    if len(rows) > 1:
        return Range(spout, topic_id, rows, setbacks, timeouts)
    record = rows[0]
    place = rows.topic, topic_id, rows.partition
    return Work(spout, *place, record.offset, record.timestamp, record.key, record.value, record.headers)


def _headers(told: Any) -> Any:
    return [(header["key"], header["value"]) for header in told] if told else ()


def _now_ms() -> int:
    return int(time.time() * 1000)
