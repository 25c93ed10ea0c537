"""Reading: which partitions are polled, from where, and what came."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import errors

from downspout.kafka.membership import Membership
from downspout.kafka.patience import Patience
from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from downspout.kafka.spout_state import Figures, Partition

__all__ = ["Reader"]

BUSY_POLL_MS = 10
"""Longest wait in a poll while something else may come: acks of tuples that are out, which need this thread, or word of
dead letters; or while a bounded run has nothing left to read."""
JOIN_POLL_MS = 100
"""Longest wait in a poll that is for a rebalance alone: once that is over, the rest of it would be idle."""
TURN_MS = 1_000
"""A partition that has had no records for so long, although there are some, is polled alone."""
TURNS_APART_MS = 100
"""Such polls are at least so far apart: they fetch for nobody else, and wait in vain where there is no leader."""
ALIVE_MS = 60_000
"""After so long without a poll, one with all partitions paused keeps the membership (the client allows 300 s)."""


class Reader:
    """Polls one consumer for the partitions of its membership.

    Args:
        consumer: what to poll.
        membership: which partitions.
        settings: those of the scope ``kafka``.
        figures: where compacted and aborted records are counted.
        patience: takes the client's errors.
        now: returns the time in ms.
    """

    def __init__(
        self,
        consumer: ConsumerPort,
        membership: Membership,
        settings: Mapping[str, Any],
        figures: Figures,
        patience: Patience,
        now: Callable[[], int],
    ) -> None:
        self._consumer = consumer
        self._membership = membership
        self._settings = settings
        self._figures = figures
        self._patience = patience
        self._topic_patience = patience.for_work("looking at the topics")
        self._now = now
        self._polled_at = now()
        self._turns_from = 0
        """From when on a partition may be polled alone, in ms."""

    def poll(self, now: int, busy: bool = False) -> list[Partition]:
        """Poll once; return the partitions that have records waiting now.

        Each is read from its lowest retry that is ready, where there is one. Partitions at their limit, or at the
        end of a bounded run, are paused meanwhile. If the poll changed what is ours, all that it brought is dropped,
        to be read again.

        Args:
            now: the time in ms.
            busy: whether there is soon something else to do than to read.
        """
        self._look_at_topics(now)
        parts = self._membership.parts
        resting = [tp for tp, part in parts.items() if not self._aim(part, now)]
        patience_ms = self._patience_ms(now, busy)
        if passed_over := self._passed_over([part for tp, part in parts.items() if tp not in resting], now):
            resting += parts.keys() - {passed_over, *resting}
            patience_ms = min(patience_ms, BUSY_POLL_MS)
        batches = self._poll(resting, patience_ms, now)
        if batches is None:
            return []
        if self._membership.listener.facts:
            self._put_back(batches)
            return []
        for tp, part in parts.items():
            self._accept(part, batches.get(tp, ()), now)
        if any(self._is_cut(part) for tp, part in parts.items() if tp not in resting):
            self._look_at_log(now)
        return [part for part in parts.values() if part.has_waiting]

    def _passed_over(self, parts: Collection[Partition], now: int) -> TopicPartition | None:
        """Return the one that has had no records for longest, if the next poll is its alone.

        The client hands out all that it has fetched of one partition before it turns to the next. That may be so many
        records that a slow topology leaves the other partitions alone for minutes. One at a time: of several the
        client would go on with the first of which it has records, and two partitions could keep all others waiting.
        """
        for part in parts:
            if part.served_at is None:
                part.served_at = now
        if len(parts) < 2 or now < self._turns_from:
            return None
        oldest = min((part for part in parts if self._has_more(part)), key=_served_at, default=None)
        if oldest is None or now - _served_at(oldest) < TURN_MS:
            return None
        oldest.served_at = now  # it had its turn, even if nothing comes of it
        oldest.turns_in_vain += 1
        self._turns_from = now + TURNS_APART_MS
        return oldest.tp

    def _has_more(self, part: Partition) -> bool:
        end = self._consumer.highwater(part.tp)
        return end is None or end > part.reading

    def _patience_ms(self, now: int, busy: bool) -> int:
        """Return how long a poll may wait for records: not past the moment at which a retry is due."""
        wait: int = self._settings["poll_timeout_ms"]
        parts = self._membership.parts.values()
        at_end = bool(parts) and all(part.at_stop for part in parts)
        if busy or at_end or any(part.ledger.in_flight for part in parts):
            wait = min(wait, BUSY_POLL_MS)
        for part in parts:
            if part.held_retry(now) is not None or (part.has_waiting and not part.held_up):
                return 0
            if (due := part.ledger.next_retry()) is not None:
                wait = min(wait, max(due - now, 0))
        return wait

    def crowded(self) -> bool:
        """Return whether a partition is at its limit and a commit would give it room, ahead of the timer."""
        return any(self._crowded(part) for part in self._membership.parts.values())

    def _crowded(self, part: Partition) -> bool:
        ledger, most = part.ledger, int(self._settings["uncommitted_max"])
        if part.alone is not None and not ledger.in_flight and not part.has_waiting:
            return True  # it has its answer, and no other commit says so soon
        if part.full:
            return part.commit_point(self._consumer) >= min(part.window_end, part.watch.until)
        return ledger.outstanding >= most and (ledger.commit_point() - ledger.base) * 8 >= most

    def join(self, now: int) -> None:
        """Poll with everything paused, so that a rebalance can go on."""
        in_flight = any(part.ledger.in_flight for part in self._membership.parts.values())
        self._poll_nothing(min(BUSY_POLL_MS if in_flight else JOIN_POLL_MS, self._settings["poll_timeout_ms"]), now)

    def stay_alive(self, now: int) -> None:
        """If the last poll is long ago, poll with everything paused: nothing comes, but the group sees us."""
        if now - self._polled_at >= ALIVE_MS and not self._patience.waits(now):
            self._poll_nothing(0, now)

    def _poll_nothing(self, timeout_ms: int, now: int) -> None:
        # What a rebalance in this poll has given back to us was not paused any more, and may have brought records.
        self._put_back(self._poll(list(self._consumer.assignment() - self._consumer.paused()), timeout_ms, now) or {})

    def _put_back(self, batches: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Let the next poll bring these again.

        At once, since the position counts as how far the log was looked at: until the rebalance is folded, whoever
        asks for the commit point would take what was dropped for a gap.
        """
        mine = self._consumer.assignment()
        for tp, records in batches.items():
            if tp in mine:
                self._consumer.seek(tp, records[0].offset)

    def _poll(
        self, resting: Collection[TopicPartition], timeout_ms: int, now: int
    ) -> Mapping[TopicPartition, Sequence[Record]] | None:
        """Poll with some partitions paused; None where that failed."""
        self._polled_at = now
        self._membership.expect()
        try:
            with self._paused(resting):
                batches = self._consumer.poll(timeout_ms, self._settings["poll_records_max"])
        except errors.NoOffsetForPartitionError:
            return {}  # the client has no start for what is new, and needs none: the spout decides it
        except (errors.OffsetOutOfRangeError, errors.LogTruncationError) as error:
            if not self._membership.listener.facts:  # else it may be of a partition that has just gone
                self._look_at_log(now, error)
            return None
        except errors.KafkaError as error:
            self._membership.suspect_topics()
            self._patience.bear(error, self._now())
            return None
        self._patience.succeeded()
        self._count_aborted()
        return batches

    def _count_aborted(self) -> None:
        """Count the records that were passed because their transaction was aborted, each once."""
        for tp, offset, count in self._consumer.take_aborted():
            part = self._membership.parts.get(tp)
            if part is not None and offset >= part.aborted_below:
                part.aborted_below = offset + count
                self._figures.aborted += count

    @contextmanager
    def _paused(self, resting: Collection[TopicPartition]) -> Iterator[None]:
        self._consumer.pause(resting)
        try:
            yield
        finally:
            # What was taken away in this poll cannot be resumed.
            mine = self._consumer.assignment()
            self._consumer.resume([tp for tp in resting if tp in mine])

    def _aim(self, part: Partition, now: int) -> bool:
        """Send the reader to a retry that is ready; return whether the partition should be polled."""
        if not part.ledger.may_poll(self._settings["uncommitted_max"], now):
            return False
        retry = part.ledger.earliest_ready_retry(now)
        from_memory = retry is not None and part.held_retry(now) is not None  # it is not read again
        if part.has_waiting:  # the watch lets them leave bit by bit
            if from_memory or retry is None or retry >= part.waiting[part.at].offset:
                return False
            part.drop_waiting(self._consumer)
        if from_memory:
            return part.ledger.outstanding < self._settings["uncommitted_max"] and not part.at_stop
        if retry is not None:
            part.sought = retry
            if part.reading != retry:
                part.seek(self._consumer, retry)
            return True
        part.sought = None
        if part.ledger.next - part.reading > self._settings["poll_records_max"]:
            # Back from a retry, and all from here to there was read before: no need to read it again.
            part.seek(self._consumer, part.ledger.next)
        return not part.at_stop

    def _is_cut(self, part: Partition) -> bool:
        """While something is read again: return whether the log seems to end below what was read before.

        The client does not notice: the place that it reads from is there. Only the broker's word on the end counts.
        """
        if part.reading >= part.ledger.next:
            return False
        end = self._consumer.highwater(part.tp)
        return end is not None and end < part.ledger.next

    def _accept(self, part: Partition, records: Sequence[Record], now: int) -> None:
        if records:
            part.served_at, part.turns_in_vain = now, 0
            self._figures.compacted += part.accept(records)
        elif part.sought is not None and (position := self._consumer.position(part.tp)) > part.sought:
            # Nothing but markers or emptied batches there: the reader has gone past it.
            self._figures.compacted += part.close_gap(position)
            part.reading = position

    def _look_at_topics(self, now: int) -> None:
        """See, now and then, whether a topic was created again. A broker that does not answer keeps nobody waiting."""
        if self._topic_patience.waits(now) or self._membership.unanswered_at == now:
            return
        try:
            self._membership.check_topics(now)
        except errors.KafkaError as error:
            self._topic_patience.bear(error, self._now())
        else:
            self._topic_patience.succeeded()

    def _look_at_log(self, now: int, error: errors.KafkaError | None = None) -> None:
        cut = error.divergent_offsets if isinstance(error, errors.LogTruncationError) else {}
        try:
            self._membership.check_log(now, {tp: None if at is None else at.offset for tp, at in cut.items()})
        except errors.KafkaError as error:
            self._patience.bear(error, self._now())


def _served_at(part: Partition) -> int:
    return part.served_at or 0
