"""A partition that is ours: what was read of it, what failed, and what is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from downspout.component import Failure
from downspout.errors import coordinates
from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from downspout.kafka.unreadable import Unreadable, UnreadableBatchError
from downspout.ledger.breaker import Breaker
from downspout.ledger.message_id import id_prefix, range_id
from downspout.ledger.offsets import PartitionLedger
from downspout.spout.crash_isolation import CrashIsolation
from downspout.spout.cursor import PartitionCursor, RetryCache, index_of, offset_at

RENEW_MS = 3_600_000
"""A commit that has not changed is sent again after so long: where the group has no members, as with
``kafka.mode=assign``, it expires by its own age (KIP-211; before Kafka 2.1 in any group), by default in a week."""


class CommitState:
    """The commit of one partition."""

    __slots__ = ("_sent_at", "last")

    def __init__(self, last: tuple[int, str] | None = None) -> None:
        self.last = last  # offset and metadata that the broker has from us, or from an earlier owner
        self._sent_at: int | None = None
        """When we sent it, in ms; None: an earlier owner did, or the broker may have another."""

    @property
    def offset(self) -> int:
        """Return the committed offset; -1 where there is none."""
        return -1 if self.last is None else self.last[0]

    def age_ms(self, now: int) -> int:
        """Return how old our last commit is; where it is not ours, it is as old as can be."""
        return now - (self._sent_at or 0)

    def is_due(self, point: int, metadata: str, now: int) -> bool:
        """Return whether a commit says something new, or something that was sent long ago, or at an unknown time."""
        return self.last != (point, metadata) or self._sent_at is None or now - self._sent_at >= RENEW_MS

    def sent(self, point: int, metadata: str, now: int) -> None:
        """The broker has this commit."""
        self.last, self._sent_at = (point, metadata), now

    def in_doubt(self) -> None:
        """The broker may have applied a commit or not: the next one says all, even what it said before."""
        self._sent_at = None


@dataclass(slots=True)
class LastFailure:
    """When a record failed first (None: before our time) and last, in ms since the epoch, and why, if known."""

    first_ms: int | None
    last_ms: int
    failure: Failure | None = None


@dataclass(slots=True)
class Tried:
    """A record that failed since the last commit: how often, why last, and whether it is not to be tried again."""

    attempts: int
    last: LastFailure | None
    is_exhausted: bool = False
    timeouts: int = 0


class Makers(NamedTuple):
    """The functions that make tuples of a topic's records."""

    make: Callable[[Record], Any]  # makes a tuple's values of a record; a translator's, a list of such values
    # makes the values of many tuples, where that needs no look at each record
    make_many: Callable[[Sequence[Record]], Sequence[Sequence[Any]] | None] | None = None
    make_chunk: Any = None  # makes a chunk of columns; None: each record is a tuple
    stream: str | None = None  # where a translator's tuples go; None: there is no translator


@dataclass(slots=True, eq=False)
class Partition:
    """One partition that is ours, during one epoch."""

    tp: TopicPartition
    topic_id: str  # Kafka's id of the topic
    epoch: int  # of the assignment
    ledger: PartitionLedger  # what happened to its records
    cursor: PartitionCursor  # where it is read, and what waits to be looked at
    retry_cache: RetryCache  # records that may be needed again
    commits: CommitState  # what the broker has
    log_begin: int  # the lowest offset in its log as of the last fetch that is known of, at first as of its start
    log_end: int  # the end of its log, likewise
    isolation: CrashIsolation  # the search for a record that kills its process
    breaker: Breaker  # opens when too many of its records are exhausted
    make: Callable[[Record], Any]  # makes a tuple's values of a record; a translator's, a list of such values
    # makes the values of many tuples, where that needs no look at each record
    make_many: Callable[[Sequence[Record]], Sequence[Sequence[Any]] | None] | None = None
    make_chunk: Any = None  # makes a chunk of columns; None: each record is a tuple
    stream: str | None = None  # where a translator's tuples go; None: there is no translator
    # by offset, of records that failed and are not resolved
    last_failures: dict[int, LastFailure] = field(default_factory=dict)
    # offsets that will not be tried again: they go to the dead-letter topic
    exhausted: set[int] = field(default_factory=set)
    # by offset, what Kafka cannot give whole; a record stands in its place
    broken: dict[int, Unreadable] = field(default_factory=dict)
    # by offset, of records with several tuples out: how many have no answer yet, and what failed
    shared: dict[int, tuple[int, Failure | None]] = field(default_factory=dict)
    # by lowest offset, the offsets of the records of ranges that are out, where a listener hears of each
    listened: dict[int, list[int]] = field(default_factory=dict)
    # called with each offset that is not there any more when it should be tried again
    on_compacted: Callable[[TopicPartition, int], None] = lambda tp, offset: None
    # by offset, what failed since the last commit, resolved meanwhile or not; None where that is not needed
    tried: dict[int, Tried] | None = None
    # by offset, timeouts before the partition was started anew with its transaction
    timed_out: dict[int, int] = field(default_factory=dict)
    # where its log began when it was asked how old the first record is, and that record's timestamp in ms
    first_record: tuple[int, int | None] = (-1, None)
    fails: int = 0  # failed attempts that count before the first ack (``kafka.behind_max``)
    prefix: str = field(init=False)  # What all its message ids begin with

    def __post_init__(self) -> None:
        self.prefix = id_prefix(self.epoch, self.tp.topic, self.topic_id, self.tp.partition)

    @property
    def key(self) -> str:
        """What message ids of this partition and epoch are found by."""
        return self.prefix[:-1]

    def tup_id(self, offset: int) -> str:
        """Return the message id of what is out and begins at an offset."""
        end = self.ledger.out_until(offset) if self.make_chunk is not None else None
        return self.prefix + (str(offset) if end is None else range_id(offset, end))

    def place(self, offset: int | None = None) -> str:
        """Name the partition, or a record in it, for messages."""
        return coordinates(self.tp.topic, self.tp.partition, offset)

    def make_whole(self, record: Record) -> Any:
        """Return a tuple's values.

        Raises:
            (and what a format or a translator raises)
        """
        if record.offset in self.broken:
            raise UnreadableBatchError(str(self.broken[record.offset]))
        return self.make(record)

    @property
    def quiet(self) -> bool:
        """Return whether nothing of it is out, waits, failed or is searched for: it only needs to be read."""
        cursor, isolation = self.cursor, self.isolation
        return not (
            self.ledger.pending
            or cursor.at < len(cursor.waiting)
            or cursor.sought is not None
            or cursor.reading < self.ledger.next
            or isolation.state.starts
            or isolation.behind_until
        )

    # --- what is read ---

    def accept(self, records: Sequence[Record]) -> int:
        """Take what a poll brought; return how many records it resolved as compacted (see :meth:`close_gap`)."""
        compacted = self.close_gap(offset_at(records, 0))
        self.retry_cache.pass_on(self.cursor.waiting)
        self.cursor.take(records)
        return compacted

    def close_gap(self, first: int) -> int:
        """After a seek to a retry, the first record is at ``first``: what waits below it is not there any more."""
        compacted = 0
        if self.cursor.sought is not None:
            compacted = self.ledger.gone(self.cursor.sought, first)
            for offset in self.forget_done():
                self.on_compacted(self.tp, offset)
            self.cursor.sought = None
        return compacted

    def note_read(self) -> None:
        """Let the breaker count the records that were looked at, each once."""
        cursor, breaker = self.cursor, self.breaker
        records, at, start = cursor.waiting, cursor.at, cursor.noted
        if start < at and offset_at(records, start) < cursor.noted_below:  # some are read again
            start = index_of(records, cursor.noted_below)
        if start < at:
            for first in range(start, at, breaker.width):
                breaker.read(offset_at(records, first), min(breaker.width, at - first))
            cursor.noted_below = offset_at(records, at - 1) + 1
        cursor.noted = at

    def commit_point(self, consumer: ConsumerPort) -> int:
        """Return the offset to commit now, by what is acked."""
        # What waits was read in order: there is nothing between what was seen and the first of it.
        waiting = self.cursor.next_waiting
        self.ledger.passed(self.cursor.position(consumer) if waiting is None else waiting)
        return self.ledger.commit_point()

    def read_to_end(self, consumer: ConsumerPort) -> bool:
        """Bounded run: return whether all below the stop was read and emitted, retries included."""
        stop = self.cursor.stop
        if stop is None or self.cursor.has_waiting or self.ledger.failed or self.exhausted:
            return False
        return self.ledger.next >= stop or consumer.position(self.tp) >= stop

    # --- what failed ---

    def remember(
        self, offset: int, attempts: int, *, is_exhausted: bool = False, end: int | None = None, timeouts: int = 0
    ) -> None:
        """Keep how often a record, or each of a range, failed: an aborted transaction takes the ledger along."""
        if self.tried is not None:
            last = self.last_failures.get(offset)
            for each in range(offset, offset + 1 if end is None else end):
                if (before := self.tried.get(each)) is None or before.attempts <= attempts:
                    self.tried[each] = Tried(attempts, last, is_exhausted, timeouts)

    def cached_retry(self, now: int) -> int | None:
        """Return the lowest retry that is due, if it is in memory."""
        if not self.retry_cache or self.isolation.single:
            return None
        retry = self.ledger.earliest_ready_retry(now)
        if retry is None or retry in self.exhausted or not self.retry_cache.has(retry):
            return None
        return retry

    def answered(self, offset: int, failure: Failure | None) -> tuple[bool, Failure | None]:
        """Take the answer to one of several tuples of a record; return whether it is the last, and what failed."""
        left, failed = self.shared.pop(offset, (1, None))
        failed = failed or failure
        if left > 1:
            self.shared[offset] = (left - 1, failed)
        return left == 1, failed

    def failed_here(self, offset: int) -> bool:
        """Return whether a record failed since the partition is ours, otherwise than by the death of a process."""
        last = self.last_failures.get(offset)
        return last is not None and last.failure is not None and last.failure.kind != "crash"

    def forget(self, offset: int) -> None:
        """Drop what was kept about the failures of a record that is resolved."""
        self.last_failures.pop(offset, None)
        self.timed_out.pop(offset, None)
        self.exhausted.discard(offset)
        if self.broken:
            self.broken.pop(offset, None)
        if self.retry_cache:
            self.retry_cache.release(offset, self.ledger)

    def forget_done(self) -> list[int]:
        """Drop what was kept about records that the ledger has resolved by itself; return their offsets."""
        done = [offset for offset in self.last_failures if self.ledger.is_done(offset)]
        for offset in done:
            self.forget(offset)
        self.retry_cache.sweep(self.ledger)
        return done
