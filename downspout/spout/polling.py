"""Polling: which partitions are polled, and from which offset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import errors

from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from downspout.kafka.retry_gate import RetryGate
from downspout.spout.assignment import PartitionAssignment
from downspout.spout.cursor import offset_at
from downspout.spout.partition import Partition
from downspout.spout.ports import SpoutMetrics

BUSY_POLL_MS = 10
"""Longest wait in a poll while other events may come: acks of tuples in flight, which need this thread, or the outcome
of dead letters; or while a bounded run has no more to read. An engine that knows when acks may come says so."""
IDLE_FACTOR = 5
"""How many times longer a poll may wait if no record is out and the engine is idle."""
JOIN_POLL_MS = 100
"""Longest wait in a poll that only serves a rebalance: the rest of a longer one would be idle."""
TURN_MS = 1_000  # A partition that got no records for this long, although its log has some, is polled alone
TURNS_APART_MS = 100
"""Least time between such polls: they fetch for one partition only, and get nothing without a leader."""
BEGINNINGS_MS = 60_000
"""How often the beginning of logs, and the age of their first records, is checked for partitions that are behind."""
ALIVE_MS = 60_000
"""After this long without a poll, a poll with all partitions paused keeps the membership (the client allows 300 s)."""
PROGRESS_MS = 250  # How often progress is committed after a death


class PollReader:
    """Polls one consumer for the partitions of its membership."""

    def __init__(
        self,
        consumer: ConsumerPort,
        assignment: PartitionAssignment,
        settings: Mapping[str, Any],
        metrics: SpoutMetrics,
        gate: RetryGate,
        now: Callable[[], int],
    ) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._settings = settings
        self._metrics = metrics
        self._gate = gate
        self._topic_gate = gate.for_work("looking at the topics")
        self._now = now
        self._polled_at = now()
        self._beginnings_due = now() + BEGINNINGS_MS
        self._turns_from = 0  # From when on a partition may be polled alone, in ms

    def poll(self, now: int, busy: bool = False, free_ms: int = 0) -> list[Partition]:
        """Poll once; return the partitions that have records waiting now.

        Each is read from its lowest ready retry, if it has one. Partitions at their limit, or at the end of a bounded
        run, are paused meanwhile. If the assignment changed during the poll, its records are dropped, to be read again.

        Args:
            busy: whether there will soon be other work than reading.
            free_ms: how long the engine is idle, if it knows.
        """
        self._look_at_topics(now)
        self._look_at_beginnings(now)
        parts = self._assignment.parts
        active: list[Partition] = []
        resting: list[TopicPartition] = []
        for part in parts.values():
            if part.is_idle:
                reads = self._may_read_on(part)
            else:
                active.append(part)
                reads = self._prepare_read(part, now)
            if not reads:
                resting.append(part.tp)
        poll_ms = self._poll_ms(now, active, busy, free_ms)
        if passed_over := self._pick_starved([part for tp, part in parts.items() if tp not in resting], now):
            resting += parts.keys() - {passed_over, *resting}
            poll_ms = min(poll_ms, BUSY_POLL_MS)
        batches = self._poll(resting, poll_ms, now)
        if batches is None:
            return []
        if self._assignment.listener.facts:
            self._put_back(batches)
            return []
        for part in parts.values() if batches else active:
            self._accept(part, batches.get(part.tp, ()), now)
        if any(self._is_cut(part) for part in active if part.tp not in resting):
            self._look_at_log(now)
        return [part for part in (parts.values() if batches else active) if part.cursor.has_waiting]

    def _pick_starved(self, parts: Collection[Partition], now: int) -> TopicPartition | None:
        """Return the partition without records for longest, if the next poll is for it alone."""
        for part in parts:
            if part.cursor.served_at is None:
                part.cursor.served_at = now
        if len(parts) < 2 or now < self._turns_from:
            return None
        # The client returns all fetched records of one partition before the next partition's. There may be so many that
        # a slow topology starves the other partitions for minutes. One at a time: of several, the client would continue
        # with the first that has records, and two partitions could keep all others waiting.
        oldest = min((part for part in parts if self._has_more(part)), key=_served_at, default=None)
        if oldest is None or now - _served_at(oldest) < TURN_MS:
            return None
        oldest.cursor.served_at = now  # it had its turn, even if nothing comes of it
        oldest.cursor.turns_in_vain += 1
        self._turns_from = now + TURNS_APART_MS
        return oldest.tp

    def _has_more(self, part: Partition) -> bool:
        end = self._consumer.highwater(part.tp)
        return end is None or end > part.cursor.reading

    def _poll_ms(self, now: int, active: Collection[Partition], busy: bool, free_ms: int) -> int:
        """Return how long a poll may wait for records: at most until a retry is due."""
        wait: int = self._settings["poll_timeout_ms"]
        parts = self._assignment.parts.values()
        at_end = bool(parts) and all(part.cursor.at_stop for part in parts)
        if busy or at_end:
            wait = min(wait, BUSY_POLL_MS)
        elif any(part.ledger.in_flight for part in parts):
            wait = min(wait, max(BUSY_POLL_MS, free_ms))
        else:
            wait = max(wait, min(IDLE_FACTOR * wait, free_ms))
        for part in active:
            if part.cached_retry(now) is not None or (part.cursor.has_waiting and not part.isolation.held_up):
                return 0
            if (due := part.ledger.next_retry()) is not None:
                wait = min(wait, max(due - now, 0))
        return wait

    def needs_early_commit(self, now: int, active: Collection[Partition]) -> bool:
        """Return whether a partition is at its limit and a commit would give it room, ahead of the timer."""
        most = int(self._settings["uncommitted_max"])
        for part in self._assignment.parts.values():
            ledger = part.ledger
            if ledger.outstanding >= most and (ledger.commit_point() - ledger.base) * 8 >= most:
                return True
        # A partition whose last owner died needs one too: the commit shows that its records get through.
        return any(self._gets_through(part, now) for part in active)

    def _gets_through(self, part: Partition, now: int) -> bool:
        """Return whether a commit would clear records suspected of killing their process."""
        ledger = part.ledger
        if part.isolation.hurries(now, self._consumer.highwater(part.tp)) and not part.isolation.searches:
            if part.commits.age_ms(now) < PROGRESS_MS:
                return False
            return part.commit_point(self._consumer) > ledger.base
        if part.isolation.is_answered:
            return True
        return part.isolation.full and part.isolation.is_through(part.commit_point(self._consumer))

    def join(self, now: int) -> None:
        """Poll with everything paused, so that a rebalance can go on."""
        in_flight = any(part.ledger.in_flight for part in self._assignment.parts.values())
        self._poll_nothing(min(BUSY_POLL_MS if in_flight else JOIN_POLL_MS, self._settings["poll_timeout_ms"]), now)

    def stay_alive(self, now: int) -> None:
        """If the last poll is long ago, poll with everything paused, without records, to remain a member."""
        if now - self._polled_at >= ALIVE_MS and not self._gate.waits(now):
            self._poll_nothing(0, now)

    def _poll_nothing(self, timeout_ms: int, now: int) -> None:
        # Partitions that a rebalance in this poll returned to us were not paused any more, and may have brought
        # records.
        self._put_back(self._poll(list(self._consumer.assignment() - self._consumer.paused()), timeout_ms, now) or {})

    def _put_back(self, batches: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Seek back, so that the next poll returns these records again."""
        mine = self._consumer.assignment()
        for tp, records in batches.items():
            if tp in mine:
                # At once, since the position counts as how far the log was looked at: until the rebalance is applied, a
                # commit point would take what was dropped for a gap.
                self._consumer.seek(tp, records[0].offset)

    def _poll(
        self, resting: Collection[TopicPartition], timeout_ms: int, now: int
    ) -> Mapping[TopicPartition, Sequence[Record]] | None:
        """Poll with some partitions paused; None where that failed."""
        self._polled_at = now
        self._assignment.expect()
        try:
            with self._paused(resting):
                batches = self._consumer.poll(timeout_ms, self._settings["poll_records_max"])
        except errors.NoOffsetForPartitionError:
            return {}  # the client has no position for new partitions, and needs none: the spout decides it
        except (errors.OffsetOutOfRangeError, errors.LogTruncationError) as error:
            if not self._assignment.listener.facts:  # else it may be of a partition that has just gone
                self._look_at_log(now, error)
            return None
        except errors.KafkaError as error:
            self._assignment.suspect_topics()
            self._gate.record_error(error, self._now())
            return None
        self._gate.succeeded()
        self._count_aborted()
        for note in self._consumer.take_unreadable():
            if (part := self._assignment.parts.get(note.partition)) is not None:
                part.broken[note.offset] = note
        return batches

    def _count_aborted(self) -> None:
        """Count the records that were passed because their transaction was aborted, each once."""
        for tp, offset, count in self._consumer.take_aborted():
            part = self._assignment.parts.get(tp)
            if part is not None and offset >= part.cursor.aborted_below:
                part.cursor.aborted_below = offset + count
                self._metrics.aborted += count

    @contextmanager
    def _paused(self, resting: Collection[TopicPartition]) -> Iterator[None]:
        self._consumer.pause(resting)
        try:
            yield
        finally:
            # What was taken away in this poll cannot be resumed.
            mine = self._consumer.assignment()
            self._consumer.resume([tp for tp in resting if tp in mine])

    def _may_read_on(self, part: Partition) -> bool:
        """Return whether an idle partition should be polled: it has room, and is not at the end of a bounded run."""
        return part.ledger.outstanding < self._settings["uncommitted_max"] and not part.cursor.at_stop

    def _prepare_read(self, part: Partition, now: int) -> bool:
        """Seek to the lowest retry that is ready; return whether the partition should be polled."""
        if not part.ledger.may_poll(self._settings["uncommitted_max"], now):
            return False
        retry = part.ledger.earliest_ready_retry(now)
        from_memory = retry is not None and part.cached_retry(now) is not None  # it is not read again
        if part.cursor.has_waiting:  # crash isolation lets them leave bit by bit
            if from_memory or retry is None or retry >= offset_at(part.cursor.waiting, part.cursor.at):
                return False
            part.cursor.put_back(self._consumer)
        if from_memory:
            return self._may_read_on(part)
        if retry is not None:
            part.cursor.sought = retry
            if part.cursor.reading != retry:
                part.cursor.seek(self._consumer, retry)
            return True
        part.cursor.sought = None
        if part.ledger.next - part.cursor.reading > self._settings["poll_records_max"]:
            # After a retry, the records up to ``next`` were read before: do not read them again.
            part.cursor.seek(self._consumer, part.ledger.next)
        return not part.cursor.at_stop

    def _is_cut(self, part: Partition) -> bool:
        """While something is read again: return whether the log seems to end below what was read before."""
        if part.cursor.reading >= part.ledger.next:
            return False
        # The client does not notice, since its position exists. Only the end that the broker reports counts.
        end = self._consumer.highwater(part.tp)
        return end is not None and end < part.ledger.next

    def _accept(self, part: Partition, records: Sequence[Record], now: int) -> None:
        if records:
            part.cursor.served_at, part.cursor.turns_in_vain = now, 0
            self._metrics.compacted += part.accept(records)
        elif part.cursor.sought is not None and (position := self._consumer.position(part.tp)) > part.cursor.sought:
            # Nothing but markers or emptied batches there: the reader has gone past it.
            self._metrics.compacted += part.close_gap(position)
            part.cursor.reading = position

    def _look_at_topics(self, now: int) -> None:
        """Periodically check whether a topic was created again. An unresponsive broker is not waited for."""
        if now < self._assignment.topics_due or self._topic_gate.waits(now) or self._assignment.unanswered_at == now:
            return
        try:
            self._assignment.check_topics(now)
        except errors.KafkaError as error:
            self._topic_gate.record_error(error, self._now())
        else:
            self._topic_gate.succeeded()

    def _look_at_beginnings(self, now: int) -> None:
        """For partitions that are behind, ask for the age of the first record: it shows how near retention is to the
        commit.

        A fetch says where a log begins, so a partition is asked for when that has changed, or when it is at its limit
        and not fetched.
        """
        if now < self._beginnings_due or self._topic_gate.waits(now):
            return
        self._beginnings_due = now + BEGINNINGS_MS
        fetches, most = self._consumer.fetches.by_partition, self._settings["uncommitted_max"]
        wanted = {}
        for tp, part in self._assignment.parts.items():
            begin = fetches[tp].begin if tp in fetches else None
            if part.is_idle and not self._has_more(part):
                continue
            if part.ledger.outstanding >= most or (begin is not None and begin != part.first_record[0]):
                wanted[tp] = begin
        try:
            found = self._consumer.first_records(wanted) if wanted else {}
        except errors.KafkaError as error:
            self._topic_gate.record_error(error, self._now())
            return
        for tp, (offset, at_ms) in found.items():
            part = self._assignment.parts[tp]
            begin = wanted[tp]
            part.first_record = offset if begin is None else begin, at_ms if at_ms >= 0 else None
            if tp in fetches and part.ledger.outstanding >= most:
                fetches[tp].begin = offset

    def _look_at_log(self, now: int, error: errors.KafkaError | None = None) -> None:
        cut = error.divergent_offsets if isinstance(error, errors.LogTruncationError) else {}
        try:
            self._assignment.check_log(now, {tp: None if at is None else at.offset for tp, at in cut.items()})
        except errors.KafkaError as error:
            self._gate.record_error(error, self._now())


def _served_at(part: Partition) -> int:
    return part.cursor.served_at or 0
