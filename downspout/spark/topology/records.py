"""Stage 0's way in: the records of a batch as tuples of the spouts that they belong to, tried again until they succeed.

It does in a task what KafkaSpout does on the other engines, but for what Spark does itself: nothing is polled,
assigned or committed here. A record that fails is tried again in the same task, after the spout's own back-off; one
that fails for good is handed to the driver, which writes its dead letter before the batch is committed.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import streamparse

from downspout import config
from downspout.component import Failure
from downspout.errors import USER_ERRORS, RecordError, coordinates
from downspout.kafka.emit import tuple_maker
from downspout.kafka.replayed import PlainRecord
from downspout.kafka.translate import translator_of
from downspout.ledger.breaker import Breaker, Trip
from downspout.ledger.retries import Backoff
from downspout.local.world import said
from downspout.spark.topology.outbox import Outbox, Root
from downspout.spark.topology.rows import LETTER, Figures, Letter, Place

__all__ = ["EMITS", "Feed", "Inlet", "Records", "breaker_opens"]

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


class Spout:
    """What the settings of one KafkaSpout say of its records.

    Args:
        name: the spout's.
        conf: its configuration.
    """

    def __init__(self, name: str, conf: Mapping[str, Any]) -> None:
        self.name = name
        self.settings = settings = config.parse_scope(conf, "kafka")
        self.backoff = Backoff(settings["retry_initial_ms"], settings["retry_delay_ms"], settings["retry_delay_ms_max"])
        self._makers: dict[tuple[str, str], tuple[Callable[[Any], Any], str | None]] = {}
        self._breakers: dict[tuple[str, int], Breaker] = {}

    def maker(self, topic: str, topic_id: str) -> tuple[Callable[[Any], Any], str | None]:
        """Return what makes tuples of a topic's records; and their stream, where it makes several of one record."""
        if (found := self._makers.get((topic, topic_id))) is None:
            settings = self.settings
            if (translator := translator_of(settings, topic)) is not None:
                make = translator.maker(topic_id, settings["emit_null"], settings["honour_replays"])
                found = make, translator.stream
            else:
                formats = settings["key_format"], settings["value_format"]
                found = tuple_maker(settings["fields"], *formats, topic_id, settings["honour_replays"]), None
            self._makers[topic, topic_id] = found
        return found

    def breaker(self, topic: str, partition: int) -> Breaker:
        """Return the circuit breaker of a partition."""
        if (found := self._breakers.get((topic, partition))) is None:
            found = Breaker(self.settings["breaker_ratio"], self.settings["breaker_window"])
            self._breakers[topic, partition] = found
        return found

    def note_read(self, topic: str, partition: int, first: int, count: int) -> None:
        """Tell the breaker of records that were read."""
        breaker = self.breaker(topic, partition)
        for start in range(0, count, breaker.width):
            breaker.read(first + start, min(breaker.width, count - start))


def breaker_opens(place: Place, trip: Trip, failure: Failure) -> RecordError:
    """Return the error of a batch in which too many records failed for good."""
    where = coordinates(place.topic, place.partition, place.offset)
    return RecordError(
        f"{where}: {trip.given_up:,} of the last {trip.read:,} records "
        f"failed for good, most often with {trip.error} ({trip.times:,} times); last by {failure.kind}"
        f"{f' in {failure.component}' if failure.component else ''}{f': {failure.error}' if failure.error else ''}",
        cure="repair what was deployed last; nothing of this batch is written, and its records come again "
        "(kafka.breaker_ratio decides how many may fail)",
    )


class Records(Inlet):
    """The records of one task.

    Args:
        batches: the source's columns, the name of the spout (``spout``) and the topic's id (``topicId``).
        spouts: the settings of each spout.
        skip: records that are given up: they are left out.
        outbox: for letters, and for what waits for records.
        figures: of the pass.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        spouts: Mapping[str, Mapping[str, Any]],
        skip: Collection[Place],
        outbox: Outbox,
        figures: Figures,
    ) -> None:
        self._batches = batches
        self._spouts = {name: Spout(name, conf) for name, conf in spouts.items()}
        self._skip = frozenset(skip)
        self._outbox = outbox
        self._figures = figures
        self._rows: Iterator[Work] | None = None
        self._spout: Spout | None = None
        self._more = True
        self._retries: list[tuple[float, int, Work]] = []
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
        rows = list(itertools.islice(self._rows, EMITS))
        if len(rows) < EMITS:
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

    def _works(self, batch: pa.RecordBatch) -> Iterator[Work]:
        columns = {name: batch.column(name) for name in batch.schema.names}
        name, topic, topic_id, partition = (columns[c][0].as_py() for c in ("spout", "topic", "topicId", "partition"))
        offsets: Any = columns["offset"].to_pylist()
        spout = self._spout = self._spouts[name]
        self._figures.reads.append((name, topic, partition, offsets[0], len(offsets)))
        spout.note_read(topic, partition, offsets[0], len(offsets))
        stamps: Any = columns["timestamp"].cast(pa.int64()).to_pylist()
        headers = columns["headers"]
        told = itertools.repeat(()) if headers.null_count == len(headers) else map(_headers, headers.to_pylist())
        rows = zip(offsets, stamps, columns["key"].to_pylist(), columns["value"].to_pylist(), told, strict=False)
        return (
            Work(spout, topic, topic_id or "", partition, offset, stamp // 1000, key, value, given)
            for offset, stamp, key, value, given in rows
        )

    def _emit(self, feed: Feed, work: Work) -> None:
        if self._skip and work.place in self._skip:
            return
        spout = work.spout
        make, stream = spout.maker(work.topic, work.topic_id)
        if work.value is None and stream is None and not spout.settings["emit_null"]:
            self._filter(work)
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
            self._filter(work)

    def _filter(self, work: Work) -> None:
        self._figures.filtered[work.spout.name] = self._figures.filtered.get(work.spout.name, 0) + 1

    def _try_again(self, feed: Feed) -> bool:
        now, tried = time.monotonic(), False
        while self._retries and self._retries[0][0] <= now and self._retries[0][2].spout.name == feed.component_name:
            self._emit(feed, heapq.heappop(self._retries)[2])
            tried = True
        return tried

    def done(self, root: Work) -> None:
        """A tree of the record is complete; it may have several."""
        root.left -= 1
        if not root.left:
            self._answered(root)

    def failed(self, root: Work, failure: Failure) -> None:
        """A tree of the record failed."""
        root.left -= 1
        root.failure = failure
        if not root.left:
            self._answered(root)

    def _answered(self, work: Work) -> None:
        self._outbox.settle(work, complete=work.failure is None)
        if (failure := work.failure) is None:
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
        due = time.monotonic() + work.spout.backoff.delay(work.failures) / 1000
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


def _headers(told: Any) -> Any:
    return [(header["key"], header["value"]) for header in told] if told else ()


def _now_ms() -> int:
    return int(time.time() * 1000)
