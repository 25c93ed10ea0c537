"""A partition that is ours: what was read of it, what failed, what is committed, and what may kill its process.

**Records that kill their process.** The rules of the search are in ``downspout.ledger.isolation``; its state travels in
the metadata of commits. Each partition has a :class:`CrashIsolation`, which says what may leave and what the next
commit says. :class:`UncleanStarts` decides with which state that begins.

The last commit says that a process died, not which. A worker that is killed takes the spout with it, and all that the
spout knew about the record that was out. So the processes' notes (``downspout.system.process_notes``) are read:

* A process that died with a record in its hands makes that record a suspect: it is tried alone.
* A record that was out alone has failed only if a process has died with it. If no note says so, and all processes that
  keep notes ended together, it was another death: a kill of the worker, the spout, another component. But not for
  ever (:data:`STRANGERS_MAX`): a record may kill what keeps no note, the worker's JVM or a component that is not ours.
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
"""So many deaths in a row are no accident: a record may kill what keeps no note: a stock bolt, or by its size the
worker's JVM."""
WAITS_MS_MAX = 10_000
"""So long after its last turn other partitions keep back for one with a record that failed before and waits to be out
alone."""
CAUGHT_UP = 1_000  # A partition that is so few records behind the end of its log has caught up
HURRY_MS_MAX = 60_000  # What takes longer to catch up with goes at its usual pace then: short steps make small files


class UncleanStarts:
    """Counts them, warns, and decides with which state a partition begins."""

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
        """Return the state to start with; and what was found, with a death while a record was alone as its attempt.

        Args:
            ours: whether this process made that commit: then it lives, and its session ran out.
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
                "%s: the process before did not end in order%s: it was killed, it crashed, or another one took over "
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
        """Return whether a process has died with a record that was out alone, as far as can be known."""
        if any(not death.topic or death.first <= alone <= death.last for death in deaths):
            return True
        keeping = self._tasks & self._notes.tasks()
        return not keeping or (keeping < self._tasks and self._notes.outlived())


def _consequence(isolation: Isolation) -> str:
    if isolation.single:
        return f"; records up to @{isolation.narrow_until - 1} are tried one at a time"
    return f"; records up to @{isolation.until - 1} are tried {isolation.window:,} at a time" if isolation.until else ""


class CrashIsolation:
    """The search for a record that kills its process, in one partition; passive where no process has died."""

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
        """Return the index behind the last waiting record that may leave before the next commit."""
        cursor = self._cursor
        if not self.state.until:
            return len(cursor.waiting)
        if self.single:
            return min(len(cursor.waiting), cursor.at + 1)
        return self._end_of_window()

    @property
    def full(self) -> bool:
        """Return whether nothing that waits may leave before the next commit, which begins another window."""
        return self.searches and self._cursor.has_waiting and self._cursor.at >= self._end_of_window()

    @property
    def held_up(self) -> bool:
        """Return whether nothing more may leave before what is out has its answer."""
        return self._ledger.in_flight > 0 and (self.single or self.full)

    def may_leave_alone(self, offset: int, others: Iterable[CrashIsolation], now: int) -> bool:
        """Return whether a record may be out alone in its partition beside those of other partitions."""
        others = [other for other in others if other is not self]
        out = [other for other in others if other.single and other._ledger.in_flight]
        waiting = [other._waits_since for other in others if other._waits(now)]
        # Partitions try single records at the same time, those of other spouts of the process too: 100 of each, one
        # after the other, would take too long. A death then counts for the record that each has out. So a record that
        # failed before, perhaps by being out at a death, is out while no other is: from the second death on, only the
        # culprit is blamed. Until it is out no other leaves, or a partition that is never at rest would keep it
        # waiting; of several such records the one goes first that has waited longest.
        if not self._failed_before(offset):
            self._waits_since = None
            return not waiting and not any(other._failed_before(other.alone) for other in out)
        self._waits_since, self._asked_at = now if self._waits_since is None else self._waits_since, now
        if out or any(since is not None and since < self._waits_since for since in waiting):
            return False
        self._waits_since = None
        return True

    def stop_waiting(self) -> None:
        """What waits next will not be emitted, so that no other partition need wait for it."""
        self._waits_since = None

    @property
    def concerns_others(self) -> bool:
        """Return whether a record is out alone, or about to be, or waiting to be."""
        return self.alone is not None or self._waits_since is not None

    def _waits(self, now: int) -> bool:
        """Return whether a record that failed before waits here, and will go as soon as it may."""
        waits = self._waits_since is not None and self._cursor.has_waiting and self.single
        # A partition that gets no turns any more (its spout is deactivated, or hears nothing of its broker) is soon no
        # reason to wait.
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
            alone = None  # it has its answer, and this is not the commit that must be there before its emit
        return self.state.at(point, moved=point > self._ledger.base, through=self.is_through(point), alone=alone)

    def at_end(self, state: Isolation) -> Isolation:
        """Return the state that a commit holds which ends our ownership in order."""
        return state.end(idle=self._ledger.next == self._began)

    def committed(self, point: int, state: Isolation) -> None:
        """A commit at ``point`` holds this state: where it ends a window, begin the next."""
        self.state, self.alone = state, state.alone
        if state.until and self.is_through(point):
            self._window_end = state.window_end(point)

    def is_through(self, point: int) -> bool:
        """Return whether a commit at ``point`` ends a window."""
        return point >= self._window_end

    @property
    def is_answered(self) -> bool:
        """Return whether the record that was out alone has its answer, and no other commit will soon say so."""
        return self.alone is not None and not self._ledger.in_flight and not self._cursor.has_waiting

    # --- how fast ---

    @property
    def awaited(self) -> bool:
        """Return whether a process has died here, and nothing, or not all that may be the reason, is committed since.

        The sooner what is out has its answer, the less will be suspected at the next death.
        """
        return self.state.starts > 0 and self._ledger.in_flight > 0

    def hurries(self, now: int, end: int | None) -> bool:
        """Return whether sinks should flush as soon as they can: a search, or what a death has left to catch up with.

        Else each round of ``topology.max.spout.pending`` tuples would take as long as a sink may hold a row.
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
    def is_idle(self) -> bool:
        """Return whether the partition only needs to be read: nothing is out, waits, failed, or is searched for."""
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
