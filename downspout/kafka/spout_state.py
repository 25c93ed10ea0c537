"""What the spout keeps: per partition, in counters, and when what is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from downspout.component import Failure
from downspout.errors import coordinates
from downspout.kafka.kept import Kept, index_of, offset_at
from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from downspout.ledger.assignment import id_prefix, span_id
from downspout.ledger.breaker import Breaker
from downspout.ledger.offsets import PartitionLedger
from downspout.ledger.watch import AT_WORK, GROWTH, WINDOW, Watch

__all__ = ["Figures", "Partition", "Setback", "Timer"]


HELD_MAX = 1_000
"""Records that one partition holds in memory because they may fail for good."""
HELD_BYTES_MAX = 8 * 1024 * 1024
"""Their keys and values; a single larger record is held all the same."""


@dataclass(slots=True)
class Figures:
    """Counters of a spout's life; the names are in ``downspout.metrics``."""

    records: int = 0
    acked: int = 0
    failed: int = 0
    timeouts: int = 0
    retries: int = 0
    splits: int = 0
    dead_lettered: int = 0
    filtered: int = 0
    compacted: int = 0
    aborted: int = 0
    lost: int = 0
    skipped: int = 0
    stale: int = 0
    unclean: int = 0
    errors: int = 0
    uncommitted: int = 0
    retry_later: int = 0


@dataclass(slots=True)
class Setback:
    """When a record failed first (None: before our time) and last, in ms since the epoch, and why, if known."""

    first_ms: int | None
    last_ms: int
    failure: Failure | None = None


@dataclass(slots=True, eq=False)
class Partition:
    """One partition that is ours, during one epoch.

    Attributes:
        tp: which.
        topic_id: Kafka's id of the topic.
        epoch: of the assignment.
        ledger: what happened to its records.
        make: makes a tuple's values of a record; a translator's, a list of such values.
        breaker: opens when too many of its records are given up.
        reading: the next offset to read, as far as this spout has asked for.
        stop: bounded run: nothing at or beyond it is emitted or committed.
        waiting: records that were polled and not yet looked at, from index ``at`` on.
        sought: the retry that the reader was sent back to, until records come from there.
        served_at: when records came last, or should have, in ms.
        turns_in_vain: how often it was polled alone since records came, and none did.
        aborted_below: aborted records below it were counted.
        commit: offset and metadata that the broker has from us, or from an earlier owner.
        committed_at: when we said so last, in ms; None: it is an earlier owner's.
        watch: what is suspected of killing processes, as of that commit.
        window: how many offsets the watch lets out before the commit has moved past them.
        window_end: where that window ends; nothing from there on may be out.
        alone: the record that is out alone, or about to be, while the watch wants that.
        waits_since: when its lone record, a suspect, was first to wait until no other is out, in ms; None: none waits.
        waited_at: when it was last told to.
        killed_by: the record that was out alone when an earlier owner died.
        setbacks: by offset, of records that failed and are not resolved.
        condemned: offsets that will not be tried again: they go to the dead-letter topic.
        stream: where a translator's tuples go; None: there is no translator.
        shared: by offset, of records with several tuples out: how many have no answer yet, and what failed.
        began: the first offset that was not seen when the partition became ours.
        on_compacted: is told of each offset that is not there any more when it should be tried again.
        retry_cache_bytes: room for records that failed; 0: all are read again.
        recent: the records that were waiting before those of ``waiting`` came.
        make_chunk: makes a chunk of columns; None: each record is a tuple.
        make_many: makes the values of many tuples, where that needs no look at each record.
        unreadable: indexes into ``waiting`` of records that are not in their format; None: nobody has looked.
        kept: records of ranges that failed.
        listened: by lowest offset, the offsets of the records of ranges that are out, where somebody hears of each.
        held: records of ``setbacks`` (those that were in memory when they failed, and those in their last try) and of
            ``condemned``, as far as there is room.
    """

    tp: TopicPartition
    topic_id: str
    epoch: int
    ledger: PartitionLedger
    make: Callable[[Record], Any]
    breaker: Breaker
    reading: int
    stop: int | None = None
    retry_cache_bytes: int = 0
    waiting: Sequence[Record] = ()
    recent: Sequence[Record] = ()
    at: int = 0
    sought: int | None = None
    served_at: int | None = None
    turns_in_vain: int = 0
    aborted_below: int = 0
    commit: tuple[int, str] | None = None
    committed_at: int | None = None
    watch: Watch = AT_WORK
    window: int = WINDOW // GROWTH
    window_end: int = 0
    alone: int | None = None
    waits_since: int | None = None
    waited_at: int = 0
    killed_by: int | None = None
    setbacks: dict[int, Setback] = field(default_factory=dict)
    condemned: set[int] = field(default_factory=set)
    held: dict[int, Record] = field(default_factory=dict)
    held_bytes: int = 0
    prefix: str = ""
    stream: str | None = None
    shared: dict[int, tuple[int, Failure | None]] = field(default_factory=dict)
    on_compacted: Callable[[Partition, int], None] = lambda part, offset: None
    make_chunk: Any = None
    make_many: Callable[[Sequence[Record]], Sequence[Sequence[Any]] | None] | None = None
    unreadable: list[int] | None = None
    kept: Kept = field(init=False)
    listened: dict[int, list[int]] = field(default_factory=dict)

    began: int = 0

    def __post_init__(self) -> None:
        self.began = self.ledger.next
        self.prefix = id_prefix(self.epoch, self.tp.topic, self.topic_id, self.tp.partition)
        self.kept = Kept(self.retry_cache_bytes)

    @property
    def untouched(self) -> bool:
        """Return whether no record of it was seen since it is ours."""
        return self.ledger.next == self.began

    @property
    def key(self) -> str:
        """What message ids of this partition and epoch are found by."""
        return self.prefix[:-1]

    def tup_id(self, offset: int) -> str:
        """Return the message id of what is out and begins at an offset."""
        end = self.ledger.out_until(offset) if self.make_chunk is not None else None
        return self.prefix + (str(offset) if end is None else span_id(offset, end))

    def place(self, offset: int | None = None) -> str:
        """Name the partition, or a record in it, for messages."""
        return coordinates(self.tp.topic, self.tp.partition, offset)

    def accept(self, records: Sequence[Record]) -> int:
        """Take what a poll brought; return how many records it resolved as compacted (see :meth:`close_gap`)."""
        compacted = self.close_gap(offset_at(records, 0))
        self.reading = offset_at(records, -1) + 1
        if self.stop is not None and self.reading > self.stop:
            records = records[: index_of(records, self.stop)]
        if self.retry_cache_bytes:
            self.recent = self.waiting
        self.waiting, self.at, self.unreadable = records, 0, None
        return compacted

    def close_gap(self, first: int) -> int:
        """After a seek to a retry, the first record is at ``first``: what waits below it is not there any more."""
        compacted = 0
        if self.sought is not None:
            compacted = self.ledger.gone(self.sought, first)
            for offset in self.forget_done():
                self.on_compacted(self, offset)
            self.sought = None
        return compacted

    def note_read(self, start: int, seen: int) -> None:
        """Tell the breaker of the waiting records from index ``start`` to ``at`` that were not seen before."""
        records, at, breaker = self.waiting, self.at, self.breaker
        if start < at and offset_at(records, start) < seen:
            start = index_of(records, seen)
        for first in range(start, at, breaker.width):
            breaker.read(offset_at(records, first), min(breaker.width, at - first))

    def drop_waiting(self, consumer: ConsumerPort) -> None:
        """Put unread records back: they will be read again."""
        if self.at < len(self.waiting):
            self.seek(consumer, offset_at(self.waiting, self.at))
        self.waiting, self.at = (), 0

    def drop_waiting_below(self, offset: int) -> None:
        """Skip waiting records that a commit has covered."""
        if self.has_waiting and offset_at(self.waiting, self.at) < offset:
            self.at = index_of(self.waiting, offset)

    @property
    def has_waiting(self) -> bool:
        """Return whether records wait to be looked at."""
        return self.at < len(self.waiting)

    @property
    def at_stop(self) -> bool:
        """Return whether there is no more to read in a bounded run."""
        return self.stop is not None and self.reading >= self.stop

    def seek(self, consumer: ConsumerPort, offset: int) -> None:
        """Read on from ``offset``."""
        consumer.seek(self.tp, offset)
        self.reading = offset

    def hold(self, record: Record) -> bool:
        """Keep a record in its last try, if there is room; return whether it is kept."""
        if record.offset in self.held:
            return True
        size = _size(record)
        if self.held and (len(self.held) >= HELD_MAX or self.held_bytes + size > HELD_BYTES_MAX):
            return False
        self.held[record.offset] = record
        self.held_bytes += size
        return True

    def remember(self, offset: int) -> None:
        """Hold a record that failed, if it is still in memory and there is room: then it need not be read again."""
        if offset in self.held or not self.retry_cache_bytes:
            return
        for records in (self.waiting, self.recent):
            at = index_of(records, offset)
            if at < len(records) and offset_at(records, at) == offset:
                if self.held_bytes + _size(records[at]) <= self.retry_cache_bytes:
                    self.hold(records[at])
                return

    def remember_range(self, start: int, end: int) -> None:
        """Keep the records of a range that failed, if they are still in memory and there is room."""
        for records in (self.waiting, self.recent):
            at = index_of(records, start)
            if at < len(records) and offset_at(records, at) == start and offset_at(records, -1) >= end - 1:
                self.kept.keep(records[at : index_of(records, end)])
                return

    def held_retry(self, now: int) -> int | None:
        """Return the lowest retry that is due, if it is in memory."""
        if not (self.held or self.kept) or self.watch.solo:
            return None
        retry = self.ledger.earliest_ready_retry(now)
        if retry is None or retry in self.condemned:
            return None
        return retry if retry in self.held or (self.kept and self.kept.find(retry) is not None) else None

    def answered(self, offset: int, failure: Failure | None) -> tuple[bool, Failure | None]:
        """Take the answer to one of several tuples of a record; return whether it is the last, and what failed."""
        left, failed = self.shared.pop(offset, (1, None))
        failed = failed or failure
        if left > 1:
            self.shared[offset] = (left - 1, failed)
        return left == 1, failed

    def failed_here(self, offset: int) -> bool:
        """Return whether a record failed since the partition is ours, otherwise than by the death of a process."""
        setback = self.setbacks.get(offset)
        return setback is not None and setback.failure is not None and setback.failure.kind != "crash"

    def forget(self, offset: int) -> None:
        """Drop what was kept about the failures of a record that is resolved."""
        self.setbacks.pop(offset, None)
        self.condemned.discard(offset)
        if (record := self.held.pop(offset, None)) is not None:
            self.held_bytes -= _size(record)
        if self.kept:
            self.kept.release(offset, self.ledger)

    def forget_done(self) -> list[int]:
        """Drop what was kept about records that the ledger has resolved by itself; return their offsets."""
        done = [offset for offset in self.setbacks if self.ledger.is_done(offset)]
        for offset in done:
            self.forget(offset)
        self.kept.sweep(self.ledger)
        return done

    def commit_point(self, consumer: ConsumerPort) -> int:
        """Return the offset to commit now, by what is acked."""
        # What waits was read in order: there is nothing between what was seen and the first of it.
        waiting = self._next_waiting()
        self.ledger.passed(self.position(consumer) if waiting is None else waiting)
        return self.ledger.commit_point()

    def _next_waiting(self) -> int | None:
        return offset_at(self.waiting, self.at) if self.has_waiting else None

    def watch_at(self, point: int) -> Watch:
        """Return the watch that a commit at ``point`` tells."""
        if not self.watch.starts:
            return self.watch
        alone = self.alone
        if alone is not None and self.ledger.emitted_at(alone) is None and self._next_waiting() != alone:
            alone = None  # it has its answer, and this is not the commit that must be there before its emit
        return self.watch.at(point, moved=point > self.ledger.base, alone=alone)

    def end_of_window(self) -> int:
        """Under a watch: return the index behind the last waiting record that may be out before the next commit."""
        return index_of(self.waiting, min(self.window_end, self.watch.until))

    def keep_watch(self, point: int, watch: Watch) -> None:
        """A commit at ``point`` has told this watch: where that ends a window, begin the next."""
        self.watch, self.alone = watch, watch.alone
        if watch.until and not watch.solo and point >= self.window_end:
            self.window *= GROWTH
            self.window_end = point + self.window

    @property
    def full(self) -> bool:
        """Return whether, under a watch, nothing that waits may leave before the next commit."""
        return bool(self.watch.until) and self.has_waiting and self.at >= self.end_of_window()

    @property
    def held_up(self) -> bool:
        """Return whether the watch lets nothing more out before what is out has its answer."""
        return self.ledger.in_flight > 0 and (self.watch.solo or self.full)

    def position(self, consumer: ConsumerPort) -> int:
        """Return how far it was read, what waits included; in a bounded run not beyond the stop."""
        position = self.reading if self.has_waiting else consumer.position(self.tp)
        return position if self.stop is None else min(position, self.stop)

    def read_to_end(self, consumer: ConsumerPort) -> bool:
        """Bounded run: return whether all below the stop was read and emitted, retries included."""
        if self.stop is None or self.has_waiting or self.ledger.failed or self.condemned:
            return False
        return self.ledger.next >= self.stop or consumer.position(self.tp) >= self.stop


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


class Timer:
    """Something that is due every ``period_ms``, first after ``period_ms + delay_ms``.

    >>> timer = Timer(30_000, delay_ms=500, now=0)
    >>> timer.due(30_499), timer.due(30_500)
    (False, True)
    >>> timer.restart(30_500); timer.due(60_499), timer.due(60_500)
    (False, True)
    """

    def __init__(self, period_ms: float, now: int, delay_ms: int = 0) -> None:
        self._period = period_ms
        self._at = now + period_ms + delay_ms

    def due(self, now: int) -> bool:
        """Return whether the time has come."""
        return now >= self._at

    def restart(self, now: int) -> None:
        """Wait one more period from now."""
        self._at = now + self._period

    def expedite(self) -> None:
        """Be due at once."""
        self._at = 0
