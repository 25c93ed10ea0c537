"""An owned partition: what was read, what failed, what is committed, and which records may kill the process.

**Records that kill their process.** The rules of the search are in ``downspout.ledger.isolation``; its state travels in
the metadata of commits. Each partition has a :class:`CrashIsolation`, which decides which records may be emitted and
what the next commit records. :class:`UncleanStarts` decides its initial state.

The last commit shows that a process died, not which one. When a worker is killed, so is the spout, with all it knew
about the record that was out. So the processes' notes (``downspout.system.process_notes``) are read:

* If a process died while it had a record, that record is a suspect: it is tried alone.
* A record that was out alone has failed only if a process has died with it. If no note says so, and all processes that
  keep notes ended together, the death had another cause: a kill of the worker, the spout or another component. This
  holds for a limited number of deaths (:data:`STRANGERS_MAX`): a record may kill a process without notes, such as the
  worker's JVM or a component that is not ours.
* If a task keeps no note (bolts on other machines, components that are not ours) and others outlived the death, the
  commit alone decides, as it does if no task keeps one, and the record counts as failed. It takes several deaths at one
  offset until a record is out alone, and more than ``kafka.retries_max`` with that very record until it is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from downspout.component import Failure
from downspout.errors import coordinates
from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from downspout.kafka.unreadable import Unreadable, UnreadableBatchError
from downspout.ledger.breaker import Breaker
from downspout.ledger.isolation import AT_WORK, Isolation
from downspout.ledger.metadata import CommitMetadata
from downspout.ledger.offsets import PartitionLedger
from downspout.ledger.origin import id_prefix, range_id
from downspout.spout.cursor import PartitionCursor, RetryCache, index_of, offset_at
from downspout.spout.ports import SpoutMetrics
from downspout.system.process_notes import ComponentDeath, NoteReader

STRANGERS_MAX = 25
"""This many deaths in a row are no accident: a record may kill a process without notes: a stock bolt or, by its size,
the worker's JVM."""
WAITS_MS_MAX = 10_000
"""How long after its last turn other partitions wait for one with a record that failed before and waits to be out
alone."""
CAUGHT_UP = 1_000  # A partition at most this many records behind the end of its log has caught up
HURRY_MS_MAX = 60_000  # If catching up takes longer, it continues at the usual pace: short steps make small files


class UncleanStarts:
    """Counts unclean starts, warns, and decides the initial state of a partition."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topology_id: str,
        tasks: Collection[int],
        metrics: SpoutMetrics,
        log: logging.Logger,
    ) -> None:
        self._tracks = settings["guarantee"] == "AT_LEAST_ONCE"
        self._reach = settings["uncommitted_max"] + settings["poll_records_max"]
        self._notes = NoteReader(topology_id)
        self._tasks = frozenset(tasks)
        self._metrics = metrics
        self._log = log

    def look_back(
        self, tp: TopicPartition, base: int, end: int, found: CommitMetadata, *, ours: bool
    ) -> tuple[Isolation, CommitMetadata]:
        """Return the state to start with, and the metadata; a death while a record was alone counts as its attempt.

        Args:
            ours: whether this process made that commit: then it did not die, but its session expired.
        """
        if not self._tracks:
            return AT_WORK, found
        before = found.isolation.end() if ours else found.isolation
        deaths = [] if before.ended else self._deaths(tp)
        suspects = [death.first for death in deaths if death.topic and death.first == death.last >= base]
        isolation = before.start(base, self._reach, end, min(suspects, default=None))
        blamed = before.alone is not None and (
            before.starts >= STRANGERS_MAX or self._is_to_blame(before.alone, deaths)
        )
        if not before.ended and isolation.starts:
            self._metrics.unclean += 1
            self._log.warning(
                "%s: the previous process did not stop cleanly%s: it was killed, it crashed, or another one took over "
                "from it%s",
                coordinates(tp.topic, tp.partition, base),
                f" ({isolation.starts} in a row)" if isolation.starts > 1 else "", _consequence(isolation),
            )  # fmt: skip
        failures = found.failures
        if blamed and before.alone is not None:
            failures = {**failures, before.alone: failures.get(before.alone, 0) + 1}
        else:
            before = replace(before, alone=None)
        return isolation, replace(found, failures=failures, isolation=before)

    def _deaths(self, tp: TopicPartition) -> list[ComponentDeath]:
        """Return the deaths with records of a partition, or with something unknown; the former are counted now."""
        found = [death for death in self._notes.deaths() if death.topic in ("", tp.topic)]
        found = [death for death in found if not death.topic or death.partition == tp.partition]
        for death in found:
            if death.topic:
                self._notes.forget(death)
        return found

    def _is_to_blame(self, alone: int, deaths: Collection[ComponentDeath]) -> bool:
        """Return whether a process seems to have died with a record that was out alone."""
        if any(not death.topic or death.first <= alone <= death.last for death in deaths):
            return True
        keeping = self._tasks & self._notes.tasks()
        return not keeping or (keeping < self._tasks and self._notes.outlived())


def _consequence(isolation: Isolation) -> str:
    if isolation.single:
        return f"; records up to @{isolation.narrow_until - 1} are tried one at a time"
    return f"; records up to @{isolation.until - 1} are tried {isolation.window:,} at a time" if isolation.until else ""


class CrashIsolation:
    """The search for a record that kills its process, in one partition; passive if no process has died."""

    def __init__(
        self,
        ledger: PartitionLedger,
        cursor: PartitionCursor,
        state: Isolation = AT_WORK,
        killed_by: int | None = None,  # the record that was out alone when an earlier owner died
        behind_until: int = 0,  # after a death, where the log ended at our start; 0: there is nothing to catch up with
    ) -> None:
        self.state = state
        self.killed_by = killed_by
        self.alone: int | None = None  # The record that is out alone, or about to be
        self._ledger = ledger
        self._cursor = cursor
        self._began = ledger.next
        self._window_end = state.window_end(ledger.base)  # Nothing from there on may be out
        self._waits_since: int | None = None
        """Since when a record that failed before waits until no other is out alone, in ms; None: none does."""
        self._asked_at = 0  # When it last asked whether it may leave
        self.behind_until = behind_until  # 0: it has caught up
        self._hurries_until: int | None = None  # For how long it catches up in short steps, in ms; None: not asked yet

    # --- what may leave ---

    @property
    def searches(self) -> bool:
        """Return whether records leave in windows."""
        return self.state.until > 0

    @property
    def single(self) -> bool:
        """Return whether one record may be out at a time."""
        return self.state.window == 1

    def emit_end(self) -> int:
        """Return the index after the last waiting record that may be emitted before the next commit."""
        cursor = self._cursor
        if not self.state.until:
            return len(cursor.waiting)
        if self.single:
            return min(len(cursor.waiting), cursor.at + 1)
        return self._end_of_window()

    @property
    def full(self) -> bool:
        """Return whether no waiting record may be emitted before the next commit, which begins another window."""
        return self.searches and self._cursor.has_waiting and self._cursor.at >= self._end_of_window()

    @property
    def held_up(self) -> bool:
        """Return whether no more records may be emitted until those in flight are answered."""
        return self._ledger.in_flight > 0 and (self.single or self.full)

    def may_leave_alone(self, offset: int, others: Iterable[CrashIsolation], now: int) -> bool:
        """Return whether a record may be out alone in its partition beside those of other partitions."""
        others = [other for other in others if other is not self]
        out = [other for other in others if other.single and other._ledger.in_flight]
        waiting = [other._waits_since for other in others if other._waits(now)]
        # Partitions try single records at the same time, those of other spouts in the process too: 100 of each, one
        # after the other, would take too long. A death then counts for the record that each has out. So a record that
        # failed before, perhaps by being out at a death, is out while no other is: from the second death on, only the
        # bad record is blamed. Until it is out no other is emitted, or a busy partition would keep it waiting; of
        # several such records, the longest waiting goes first.
        if not self._failed_before(offset):
            self._waits_since = None
            return not waiting and not any(other._failed_before(other.alone) for other in out)
        self._waits_since, self._asked_at = now if self._waits_since is None else self._waits_since, now
        if out or any(since is not None and since < self._waits_since for since in waiting):
            return False
        self._waits_since = None
        return True

    def stop_waiting(self) -> None:
        """Note that the next waiting record will not be emitted, so that no other partition waits for it."""
        self._waits_since = None

    @property
    def concerns_others(self) -> bool:
        """Return whether a record is out alone, or about to be, or waiting to be."""
        return self.alone is not None or self._waits_since is not None

    def _waits(self, now: int) -> bool:
        """Return whether a record that failed before waits here and will be emitted as soon as possible."""
        waits = self._waits_since is not None and self._cursor.has_waiting and self.single
        # Do not wait long for a partition that gets no more turns (its spout is deactivated, or its broker is silent).
        return waits and not self._ledger.in_flight and now - self._asked_at < WAITS_MS_MAX

    def _failed_before(self, offset: int | None) -> bool:
        if offset is None:
            return False
        retry = self._ledger.retry_state(offset)
        return bool(self._ledger.earlier_failures.get(offset) or (retry is not None and retry.failures))

    def _end_of_window(self) -> int:
        return index_of(self._cursor.waiting, self._window_end)

    # --- what is committed ---

    def to_commit(self, point: int) -> Isolation:
        """Return the state that a commit at ``point`` holds."""
        if not self.state.starts:
            return self.state
        alone = self.alone
        if alone is not None and self._ledger.emitted_at(alone) is None and self._cursor.next_waiting != alone:
            alone = None  # it is answered, and this is not the commit that must precede its emit
        return self.state.at(point, moved=point > self._ledger.base, through=self.is_through(point), alone=alone)

    def at_end(self, state: Isolation) -> Isolation:
        """Return the state for the commit that ends our ownership in order."""
        return state.end(idle=self._ledger.next == self._began)

    def committed(self, point: int, state: Isolation) -> None:
        """Note that a commit at ``point`` holds this state; if it ends a window, begin the next."""
        self.state, self.alone = state, state.alone
        if state.until and self.is_through(point):
            self._window_end = state.window_end(point)

    def is_through(self, point: int) -> bool:
        """Return whether a commit at ``point`` ends a window."""
        return point >= self._window_end

    @property
    def is_answered(self) -> bool:
        """Return whether the record that was out alone is answered, and no other commit will soon record that."""
        return self.alone is not None and not self._ledger.in_flight and not self._cursor.has_waiting

    # --- how fast ---

    @property
    def awaited(self) -> bool:
        """Return whether a process has died here, and records that may be the cause are not committed yet.

        The sooner records in flight are answered, the fewer are suspected at the next death.
        """
        return self.state.starts > 0 and self._ledger.in_flight > 0

    def hurries(self, now: int, end: int | None) -> bool:
        """Return whether sinks should flush early: during a search, or while catching up after a death.

        Otherwise each round of ``topology.max.spout.pending`` tuples takes as long as a sink may hold a row.
        """
        if self.state.starts or not self.behind_until:
            return self.state.starts > 0
        if self._hurries_until is None:
            self._hurries_until = now + HURRY_MS_MAX
        base = self._ledger.base
        if now >= self._hurries_until or (base >= self.behind_until and (end or 0) - base < CAUGHT_UP):
            self.behind_until = 0
        return self.behind_until > 0


RENEW_MS = 3_600_000
"""An unchanged commit is resent after this time: in a group without members, as with ``kafka.mode=assign``, it expires
by its own age (KIP-211; before Kafka 2.1 in any group), by default in a week."""


class CommitState:
    """The commit of one partition."""

    __slots__ = ("_sent_at", "last")

    def __init__(self, last: tuple[int, str] | None = None) -> None:
        self.last = last  # offset and metadata that the broker has from us, or from an earlier owner
        self._sent_at: int | None = None
        """When we sent it, in ms; None: an earlier owner did, or the broker may have another."""

    @property
    def offset(self) -> int:
        """Return the committed offset; -1 if there is none."""
        return -1 if self.last is None else self.last[0]

    def age_ms(self, now: int) -> int:
        """Return the age of our last commit; a commit that is not ours counts as infinitely old."""
        return now - (self._sent_at or 0)

    def is_due(self, point: int, metadata: str, now: int) -> bool:
        """Return whether a commit says something new, or something that was sent long ago, or at an unknown time."""
        return self.last != (point, metadata) or self._sent_at is None or now - self._sent_at >= RENEW_MS

    def sent(self, point: int, metadata: str, now: int) -> None:
        """Note that the broker has this commit."""
        self.last, self._sent_at = (point, metadata), now

    def in_doubt(self) -> None:
        """Note that a commit's outcome is unknown: the next one is sent even if it is unchanged."""
        self._sent_at = None


@dataclass(slots=True)
class LastFailure:
    """When a record failed first (None: under an earlier owner) and last, in ms since the epoch, and why, if known."""

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
    prefix: str = field(init=False)  # The prefix of all its message ids

    def __post_init__(self) -> None:
        self.prefix = id_prefix(self.epoch, self.tp.topic, self.topic_id, self.tp.partition)

    @property
    def key(self) -> str:
        """What message ids of this partition and epoch are found by."""
        return self.prefix[:-1]

    def tup_id(self, offset: int) -> str:
        """Return the message id of the entry that is out at an offset."""
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
    def is_idle(self) -> bool:
        """Return whether the partition only needs polling: no record is out, waits, has failed or is searched for."""
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
        """Take the records of a poll; return how many it resolved as compacted (see :meth:`close_gap`)."""
        compacted = self.close_gap(offset_at(records, 0))
        self.retry_cache.pass_on(self.cursor.waiting)
        self.cursor.take(records)
        return compacted

    def close_gap(self, first: int) -> int:
        """After a seek to a retry that returned ``first``: resolve the retries below it, which the log has lost."""
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
        # Waiting records were read in order: there is no record between those seen and the first of these.
        waiting = self.cursor.next_waiting
        self.ledger.passed(self.cursor.position(consumer) if waiting is None else waiting)
        return self.ledger.commit_point()

    def read_to_end(self, consumer: ConsumerPort) -> bool:
        """Bounded run: return whether all records below the stop were read and emitted, retries included."""
        stop = self.cursor.stop
        if stop is None or self.cursor.has_waiting or self.ledger.failed or self.exhausted:
            return False
        return self.ledger.next >= stop or consumer.position(self.tp) >= stop

    # --- what failed ---

    def remember(
        self, offset: int, attempts: int, *, is_exhausted: bool = False, end: int | None = None, timeouts: int = 0
    ) -> None:
        """Keep the failure count of a record, or of each in a range: an aborted transaction discards the ledger."""
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
        """Process the answer to one of several tuples of a record; return whether it is the last, and what failed."""
        left, failed = self.shared.pop(offset, (1, None))
        failed = failed or failure
        if left > 1:
            self.shared[offset] = (left - 1, failed)
        return left == 1, failed

    def failed_here(self, offset: int) -> bool:
        """Return whether a record has failed since we own the partition, other than by the death of a process."""
        last = self.last_failures.get(offset)
        return last is not None and last.failure is not None and last.failure.kind != "crash"

    def forget(self, offset: int) -> None:
        """Drop the failure data of a resolved record."""
        self.last_failures.pop(offset, None)
        self.timed_out.pop(offset, None)
        self.exhausted.discard(offset)
        if self.broken:
            self.broken.pop(offset, None)
        if self.retry_cache:
            self.retry_cache.release(offset, self.ledger)

    def forget_done(self) -> list[int]:
        """Drop the failure data of records that the ledger has resolved by itself; return their offsets."""
        done = [offset for offset in self.last_failures if self.ledger.is_done(offset)]
        for offset in done:
            self.forget(offset)
        self.retry_cache.sweep(self.ledger)
        return done
