"""The input of stage 0: the records of a batch as tuples of their spouts, retried until they succeed.

In a Spark task it replaces KafkaSpout, except for polling, assignment and commits, which Spark does itself. A record
that fails is retried in the same task after the spout's back-off. An exhausted record is passed to the driver, which
writes its dead letter before the batch is committed.

**Chunks.** ``mapInArrow`` delivers some thousands of records of one partition as columns. If the spout emits chunks
(``kafka.emit``), they stay columns: a :class:`TrackedRange` of them becomes a chunk as in KafkaSpout. If it fails, its
halves are retried, until the bad record is alone; that is a record like any other, with the attempts, retries and dead
letter of record mode. As with the spout, a failure of several records counts against none of them.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.batches.core.protocol import MICRO_BATCHES
from downspout.component import Failure
from downspout.dead_letters.claims import PlainRecord
from downspout.engine.runtime import error_line
from downspout.errors import USER_ERRORS, RecordError, coordinates
from downspout.kafka.columns import RecordColumns
from downspout.kafka.columns.wire import encoded_headers
from downspout.kafka.port import TopicPartition
from downspout.kafka.unreadable import Unreadable, UnreadableBatchError
from downspout.ledger.breaker import Breaker, Trip
from downspout.offset_ranges import of_offsets
from downspout.settings.table import parse_scope
from downspout.spark.topology.stage_rows import EXHAUSTED, ChunkPlace, ExhaustedRecord, RecordPlace, StageMetrics
from downspout.spark.topology.stage_tuples import EMITS, InputSpout, Root, StageOutput, TaskInput
from downspout.spark.topology.stages import with_attempt
from downspout.spout.emit_chunks import ChunkMaker, UnreadableRowError
from downspout.spout.settings import policy_of, retries_of
from downspout.spout.tuples import mode_of, translator_of, tuple_maker

WAIT_S_MAX = 0.05


class TrackedRecord(Root):
    """A record with its attempts so far; translators and formats use it as the record."""

    __slots__ = (
        *("topic", "partition", "offset", "timestamp", "key", "value", "headers", "topic_id"),
        *("failure", "failures", "first_ms", "spout", "timeouts", "tries", "unreadable"),
    )

    def __init__(
        self, spout: SpoutSettings, topic: str, topic_id: str, partition: int, offset: int, timestamp: int, key: Any,
        value: Any, headers: Any, unreadable: Unreadable | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.spout, self.topic, self.topic_id = spout, topic, topic_id
        self.partition, self.offset, self.timestamp = partition, offset, timestamp
        self.key, self.value, self.headers = key, value, headers
        self.unreadable = unreadable
        self.failure: Failure | None = None
        self.failures = self.timeouts = self.tries = self.first_ms = 0

    @property
    def place(self) -> RecordPlace:
        """The record's coordinates."""
        return RecordPlace(self.topic, self.topic_id, self.partition, self.offset)

    @property
    def places(self) -> tuple[RecordPlace, ...]:
        """The record's coordinates."""
        return (self.place,)

    @property
    def record(self) -> PlainRecord:
        """The record itself."""
        return PlainRecord(self.topic, self.partition, self.offset, self.timestamp, self.key, self.value, self.headers)


class RecordInput(TaskInput):
    """The records of one task."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        spouts: Mapping[str, Mapping[str, Any]],
        skip: Collection[RecordPlace],
        output: StageOutput,
        metrics: StageMetrics,
        chunk_limits: ChunkLimits | None = None,
    ) -> None:
        self._batches = batches
        self._chunk_limits = chunk_limits or {}
        self._spouts = {name: SpoutSettings(name, conf) for name, conf in spouts.items()}
        self._skip = frozenset(skip)
        self._output = output
        self._metrics = metrics
        self._rows: Iterator[TrackedRecord | TrackedRange] | None = None
        self._spout: SpoutSettings | None = None
        self._more = True
        self._retries: list[tuple[float, int, TrackedRecord | TrackedRange]] = []
        self._number = itertools.count()

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """Whether all records were emitted and none waits for a retry."""
        return not (self._more or self._rows or self._retries)

    def emit_next(self, stage_spout: InputSpout) -> None:
        """Emit retries that are due, then new records."""
        if self._retries and self._try_again(stage_spout):
            return
        if self._rows is None and not self._load():
            if self._retries:  # only these are left: wait for the back-off
                time.sleep(max(0.0, min(self._retries[0][0] - time.monotonic(), WAIT_S_MAX)))
            return
        if self._spout is None or self._spout.name != stage_spout.component_name or self._rows is None:
            return
        most = 1 if self._spout.in_chunks else EMITS
        rows = list(itertools.islice(self._rows, most))
        if len(rows) < most:
            self._rows = None
        for item in rows:
            self._emit(stage_spout, item)

    def _load(self) -> bool:
        """Load the next rows; return whether there are any."""
        while self._more:
            if (batch := next(self._batches, None)) is None:
                self._more = False
            elif batch.num_rows:
                self._rows = self._tracked_records(batch)
                return True
        return False

    def _tracked_records(self, batch: pa.RecordBatch) -> Iterator[TrackedRecord | TrackedRange]:
        columns = {name: batch.column(name) for name in batch.schema.names}
        name, topic, topic_id, partition = (columns[c][0].as_py() for c in ("spout", "topic", "topicId", "partition"))
        spout, first = self._spouts[name], columns["offset"][0].as_py()
        self._spout = spout
        self._metrics.reads.append((name, topic, partition, first, len(batch)))
        spout.note_read(topic, partition, first, len(batch))
        broken = _broken(batch)
        if spout.in_chunks:
            return self._ranges(spout, topic_id or "", batch, broken)
        stamps: Any = columns["timestamp"].cast(pa.int64()).to_pylist()
        headers = columns["headers"]
        pairs = map(_headers, headers.to_pylist()) if has_headers(headers) else itertools.repeat(())
        offsets: Any = columns["offset"].to_pylist()
        notes = map(broken.get, offsets) if broken else itertools.repeat(None)
        rows = zip(
            offsets, stamps, columns["key"].to_pylist(), columns["value"].to_pylist(), pairs, notes, strict=False
        )
        return (
            TrackedRecord(spout, topic, topic_id or "", partition, offset, stamp // 1000, key, value, given, note)
            for offset, stamp, key, value, given, note in rows
        )

    def _ranges(
        self, spout: SpoutSettings, topic_id: str, batch: pa.RecordBatch, broken: Mapping[int, Unreadable]
    ) -> Iterator[TrackedRecord | TrackedRange]:
        """Yield ranges of records without the skipped ones; each unreadable row separately."""
        offsets, mask = batch.column("offset").to_numpy(), np.ones(len(batch), dtype=bool)
        topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
        for row in np.flatnonzero(np.isin(offsets, list(broken))) if broken else ():
            mask[row] = False
            (record,) = from_source(batch.slice(int(row), 1))
            place = topic, topic_id, partition, record.offset
            yield TrackedRecord(spout, *place, record.timestamp, record.key, record.value, (), broken[record.offset])
        if skip := [place.offset for place in self._skip if place[:3] == (topic, topic_id, partition)]:
            mask &= ~np.isin(offsets, skip)
        if mask.any():
            rows = from_source(batch, None if mask.all() else mask)
            for part in cut(rows, topic_id, spout.settings, self._chunk_limits):
                yield _tracked(spout, topic_id, part)

    def _emit(self, stage_spout: InputSpout, item: TrackedRecord | TrackedRange) -> None:
        if isinstance(item, TrackedRange):
            self._emit_range(stage_spout, item)
        else:
            self._emit_record(stage_spout, item)

    def _emit_range(self, stage_spout: InputSpout, item: TrackedRange) -> None:
        maker = item.spout.chunk_maker(item.rows.topic, item.topic_id)
        try:
            chunk = maker.make(item.rows)
        except UnreadableRowError:
            for part in item.without(maker.unreadable(item.rows)):
                self._emit(stage_spout, _tracked(item.spout, item.topic_id, part, item.tries, item.timeouts))
            return
        item.failure, item.left = None, 1
        stage_spout.emit(chunk, tup_id=item)

    def _emit_record(self, stage_spout: InputSpout, item: TrackedRecord) -> None:
        if self._skip and item.place in self._skip:
            return
        spout = item.spout
        make, stream = spout.maker(item.topic, item.topic_id)
        try:
            if item.unreadable is not None:
                raise UnreadableBatchError(str(item.unreadable))
            made = make(item)
        except USER_ERRORS as error:  # a retry would raise the same
            item.failures += 1
            item.first_ms = _now_ms()
            self._exhaust(item, Failure("exception", component=spout.name, error=error_line(error)))
            return
        item.failure = None
        if stream is None:
            item.left = 1
            stage_spout.emit(made, tup_id=item)
            return
        item.left = len(made)
        for values in made:
            stage_spout.emit(values, tup_id=item, stream=stream)
        if not made:
            self._metrics.filtered[spout.name] = self._metrics.filtered.get(spout.name, 0) + 1

    def _try_again(self, stage_spout: InputSpout) -> bool:
        now, tried = time.monotonic(), False
        while (
            self._retries
            and self._retries[0][0] <= now
            and self._retries[0][2].spout.name == stage_spout.component_name
        ):
            self._emit(stage_spout, heapq.heappop(self._retries)[2])
            tried = True
        return tried

    def done(self, root: TrackedRecord | TrackedRange) -> None:
        """Process the completion of one of the record's trees."""
        root.left -= 1
        if not root.left:
            self._answered(root)

    def failed(self, root: TrackedRecord | TrackedRange, failure: Failure) -> None:
        """Process the failure of one of the record's trees."""
        root.left -= 1
        root.failure = failure
        if not root.left:
            self._answered(root)

    def _answered(self, item: TrackedRecord | TrackedRange) -> None:
        # A tuple from this record and others is dropped with it, so the others are retried although complete.
        for tied in self._output.settle(item, complete=item.failure is None):
            self._push(time.monotonic(), tied)
        if (failure := item.failure) is None:
            return
        if isinstance(item, TrackedRange):
            for part in item.after(failure):  # not counted as an attempt of any of these records
                self._try_later(_tracked(item.spout, item.topic_id, part, item.tries, item.timeouts), item.tries)
            return
        item.first_ms = item.first_ms or _now_ms()
        item.tries += 1
        if failure.kind != "timeout":
            item.failures += 1
        elif not failure.outage:  # an outage never counts against a record
            item.timeouts += 1
        settings = item.spout.settings
        if item.failures > settings["retries_max"] or item.timeouts >= settings["timeouts_max"]:
            self._exhaust(item, failure)
            return
        self._try_later(item, item.tries)

    def _try_later(self, item: TrackedRecord | TrackedRange, tries: int) -> None:
        self._push(time.monotonic() + item.spout.backoff.delay(tries) / 1000, item)

    def _push(self, due: float, item: Any) -> None:
        heapq.heappush(self._retries, (due, next(self._number), item))

    def _exhaust(self, item: TrackedRecord, failure: Failure) -> None:
        """Pass the record to the driver; raise a RecordError if too many of this task's records are exhausted."""
        spout = item.spout
        attempts = item.failures + item.timeouts
        exhausted = ExhaustedRecord(
            spout.name, item.place, item.record, attempts, item.first_ms, _now_ms(), failure, item.unreadable
        )
        self._output.put(EXHAUSTED, spout.name, exhausted)
        trip = spout.breaker(item.topic, item.partition).give_up(item.offset, failure.error.partition(":")[0])
        if trip is not None:
            raise breaker_opens(item.place, trip, failure)


def _tracked(
    spout: SpoutSettings, topic_id: str, rows: RecordColumns, tries: int = 0, timeouts: int = 0
) -> TrackedRecord | TrackedRange:
    """Return a range, or for a single row a record, whose attempts start at zero."""
    if len(rows) > 1:
        return TrackedRange(spout, topic_id, rows, tries, timeouts)
    record = rows[0]
    place = rows.topic, topic_id, rows.partition
    return TrackedRecord(spout, *place, record.offset, record.timestamp, record.key, record.value, record.headers)


def _broken(batch: pa.RecordBatch) -> dict[int, Unreadable]:
    """Return the notes of unreadable rows by offset."""
    notes = batch.column("unreadable")
    if notes.null_count == len(notes):
        return {}
    where = TopicPartition(batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())
    rows: Any = zip(batch.column("offset").to_pylist(), notes.to_pylist(), strict=True)
    return {at: Unreadable(where, at, note["end"], note["reason"], note["size"]) for at, note in rows if note}


def _headers(given: Any) -> Any:
    return [(header["key"], header["value"]) for header in given] if given else ()


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- chunks ---

ChunkLimits = Mapping[ChunkPlace, int]
"""Chunks that failed in a later stage, and how many of their records may go together in the next attempt."""


class TrackedRange(Root):
    """Two or more records of one chunk, with its failures and those of the chunks that it was part of."""

    __slots__ = ("failure", "rows", "spout", "timeouts", "topic_id", "tries")

    def __init__(
        self, spout: SpoutSettings, topic_id: str, rows: RecordColumns, tries: int = 0, timeouts: int = 0
    ) -> None:
        super().__init__()
        self.spout, self.topic_id, self.rows = spout, topic_id, rows
        self.tries, self.timeouts = tries, timeouts  # ``tries``: consecutive ones, for the back-off
        self.failure: Failure | None = None

    @property
    def places(self) -> tuple[ChunkPlace, ...]:
        """The records' coordinates."""
        rows = self.rows
        runs = tuple(of_offsets(rows.offsets))
        return (ChunkPlace(rows.topic, self.topic_id, rows.partition, int(rows.offsets[0]), runs),)

    def after(self, failure: Failure) -> list[RecordColumns]:
        """Count a failure; return the ranges to retry: halves, or after a timeout the same range."""
        timed_out = failure.kind == "timeout"
        self.timeouts += timed_out and not failure.outage
        # After too many timeouts it is halved as well: a bolt may have forgotten the ack of one record.
        if timed_out and self.timeouts < self.spout.settings["timeouts_max"]:
            self.tries += 1
            return [self.rows]
        self.tries = 1  # a back-off that doubles with each halving would take 10 s to isolate a bad record
        half = (len(self.rows) + 1) // 2
        return [self.rows[:half], self.rows[half:]]

    def without(self, alone: Sequence[int]) -> list[RecordColumns]:
        """Return each of these rows separately, then all others together."""
        rest = np.delete(np.arange(len(self.rows)), alone)
        return [*(self.rows[row : row + 1] for row in alone), *([self.rows.take(rest)] if len(rest) else [])]


def from_source(batch: pa.RecordBatch, mask: NDArray[np.bool_] | None = None) -> RecordColumns:
    """Convert Spark's rows of one partition (at least one) into the consumer's columns."""
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
    """Return whether any record has headers; otherwise all are null or empty.

    >>> [has_headers(pa.array(rows, pa.list_(pa.string()))) for rows in ([None, []], [[], ["a"]])]
    [False, True]
    """
    return len(column.flatten()) > 0


def cut(
    rows: RecordColumns, topic_id: str, settings: Mapping[str, Any], chunk_limits: ChunkLimits
) -> Iterator[RecordColumns]:
    """Yield records of one partition, in offset order, in portions of permitted size."""
    offsets = rows.offsets
    bounds = {0: settings["chunk_records_max"]}  # row → maximum size of portions from there on
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
    """Yield records in portions up to ``bytes_max``, or of one record."""
    if len(rows) == 1 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = len(rows) // 2
    yield from _by_bytes(rows[:half], bytes_max)
    yield from _by_bytes(rows[half:], bytes_max)


# --- settings of the spout ---


class SpoutSettings:
    """A KafkaSpout's settings that concern its records."""

    def __init__(self, name: str, conf: Mapping[str, Any]) -> None:
        self.name = name
        settings = parse_scope(conf, "kafka")
        self.settings = settings = {**settings, "retries_max": retries_of(settings["retries_max"])}
        self.backoff = policy_of(settings, logging.getLogger(__name__))
        self._is_batched = bool(conf.get(MICRO_BATCHES))
        self.in_chunks = mode_of(settings).columns
        self._makers: dict[tuple[str, str], tuple[Callable[[Any], Any], str | None]] = {}
        self._chunk_makers: dict[tuple[str, str], ChunkMaker] = {}
        self._breakers: dict[tuple[str, int], Breaker] = {}

    def maker(self, topic: str, topic_id: str) -> tuple[Callable[[Any], Any], str | None]:
        """Return a function from a topic's records to tuples; with a translator, to lists of tuples, and their
        stream."""
        if (found := self._makers.get((topic, topic_id))) is None:
            settings = self.settings
            if (translator := translator_of(settings, topic)) is not None:
                make = translator.maker(topic_id, settings["emit_null"], settings["honour_replays"])
                found = make, translator.stream
            else:
                make = tuple_maker(*self._formats, topic_id, settings["honour_replays"])
                make = with_attempt(make) if self._is_batched else make
                found = self._alone(make, topic, topic_id) if self.in_chunks else make, None
            self._makers[topic, topic_id] = found
        return found

    def chunk_maker(self, topic: str, topic_id: str) -> ChunkMaker:
        """Return the maker of chunks for a topic."""
        if (found := self._chunk_makers.get((topic, topic_id))) is None:
            found = ChunkMaker(*self._formats, topic_id, self.settings["honour_replays"])
            self._chunk_makers[topic, topic_id] = found
        return found

    @property
    def _formats(self) -> tuple[Any, Any, Any]:
        return self.settings["fields"], self.settings["key_format"], self.settings["value_format"]

    def _alone(self, make: Callable[[Any], Any], topic: str, topic_id: str) -> Callable[[Any], Any]:
        """Return a function from a record to a chunk of one row."""
        chunks = self.chunk_maker(topic, topic_id)

        def make_chunk(record: Any) -> Any:
            make(record)  # raises the error of record mode, which is more detailed
            return chunks.make(RecordColumns.of([record]))

        return make_chunk

    def breaker(self, topic: str, partition: int) -> Breaker:
        """Return the circuit breaker of a partition."""
        if (found := self._breakers.get((topic, partition))) is None:
            found = Breaker(self.settings["breaker_ratio"])
            self._breakers[topic, partition] = found
        return found

    def note_read(self, topic: str, partition: int, first: int, count: int) -> None:
        """Report records that were read to the breaker."""
        breaker = self.breaker(topic, partition)
        for start in range(0, count, breaker.width):
            breaker.read(first + start, min(breaker.width, count - start))


def breaker_opens(place: RecordPlace, trip: Trip, failure: Failure) -> RecordError:
    """Return the error for a batch in which too many records failed for good."""
    where = coordinates(place.topic, place.partition, place.offset)
    return RecordError(
        f"{where}: {trip.given_up:,} of the last {trip.read:,} records "
        f"failed for good, most often with {trip.error} ({trip.times:,} times); last by {failure.kind}"
        f"{f' in {failure.component}' if failure.component else ''}{f': {failure.error}' if failure.error else ''}",
        cure="fix the last deployment; none of this batch is written, and its records come again "
        "(kafka.breaker_ratio decides how many may fail)",
    )
