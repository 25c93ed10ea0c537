"""Records that are given up: they are dead-lettered, left behind, or end the run.

:class:`DeadLettering` writes each record that failed for good to the dead-letter topic, and only then resolves it.
(``downspout.spout.emit_records`` decides which records these are.) The spout does not wait: one batch at a time is sent
while the spout goes on and the next batch gathers. A later call finds the batch durable and resolves its records, or
finds that it failed. A dead letter holds the whole record. During its last try a record is held in memory; if there is
no room, or it was never held, it is read again: the spout seeks to it as for a retry, and dead-letters it instead of
emitting it. A circuit breaker (:mod:`downspout.ledger.breaker`) stops the run when too many records fail; from then on
nothing is written.

:class:`MaxLag` (``kafka.behind_max``, the ``maxOffsetBehind`` of the spout for Kafka 0.8; off by default) drops records
too far behind, for data that is worthless once old. A record that fails too far behind the newest emitted one is not
retried. A record in flight, or waiting for its retry, is dropped when it lies too far behind the newest finished
one. More failed attempts than that before the first ack end the run. All dropped records are counted as
``left_behind``. (``downspout.spout.starting`` does the same for a commit that lies too far behind.)

:class:`FailStreak` warns of a broken bolt long before the circuit breaker opens. The breaker counts exhausted
records. If every record fails, it takes minutes until the first ones are exhausted, and meanwhile the spout reads on,
up to ``kafka.uncommitted_max``. A sink that delays its acks must not make a few failed records look like the only ones:
the good ones are in flight meanwhile. So a streak requires that many first attempts have failed since the last ack, and
that no more records than these are in flight.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kafka.errors import KafkaError

from downspout.component import Failure
from downspout.dead_letters.dead_letter import DeadLetters
from downspout.dead_letters.outbox import BATCH_RECORDS, Outbox
from downspout.errors import RecordError
from downspout.formatting import counted
from downspout.kafka.port import Record, TopicPartition
from downspout.kafka.retry_gate import LogThrottle, describe
from downspout.ledger.retry_schedule import FOR_EVER, NEVER
from downspout.spout.assignment import PartitionAssignment
from downspout.spout.cursor import size_of
from downspout.spout.partition import LastFailure, Partition
from downspout.spout.ports import Hooks, SpoutMetrics

WRITE_MS_MAX = 1_000  # One call of ``next_tuple`` sends dead letters for at most this long (and one batch more)
FINISH_S = 0.5  # How long a spout that stops waits for dead letters; its commit may take 4 s, and no call more than 5

# A busy spout sends its dead letters when there are this many, or when the first has waited this long: each batch costs
# a request, which takes as long as making a hundred dead letters.
BATCH_WORTH = 250
LINGER_MS = 250
BATCH_BYTES = (
    4 * 1024 * 1024
)  # Dead letters sent together: at most :data:`BATCH_RECORDS`, or so many bytes and one more
NO_ROOM_MS = 1_000  # If there is no room to hold a record, it is read again after this time


class DeadLettering:
    """Holds exhausted records, writes their dead letters, and resolves the records once these are durable."""

    def __init__(
        self,
        dead_letters: DeadLetters | None,  # where to write; None: the run stops at the first record that fails for good
        metrics: SpoutMetrics,
        log: logging.Logger,
        # called with each record whose dead letter is durable
        on_written: Callable[[TopicPartition, Record], None] = lambda tp, record: None,
        # whether the run should end; then a dead letter that can never be written ends it, otherwise the spout warns
        bounded: bool = False,
    ) -> None:
        self._outbox: Outbox[tuple[Partition, Record]] | None = None
        if dead_letters is not None:
            self._outbox = Outbox(dead_letters, log, lambda each: (each[0], each[1].offset), self._failed)
        self._metrics = metrics
        self._on_written = on_written
        self._bounded = bounded
        self._queue: deque[tuple[Partition, int]] = deque()
        self._queued_at: int | None = None  # When the queue was first looked at since some were last taken out of it
        self._durable: list[tuple[Partition, Record]] = []
        """Records whose dead letters are durable, and which are not resolved yet."""
        self._alone: set[tuple[Partition, int]] = set()
        """Records whose dead letters could not be written: another try takes no others with it."""
        self._tripped: RecordError | None = None

    @property
    def busy(self) -> bool:
        """Return whether dead letters wait to be written, or for the broker's answer."""
        return bool(self._queue or self.out or self._durable)

    @property
    def out(self) -> bool:
        """Return whether dead letters are in flight: after a hand-over now they would be written again."""
        return self._outbox is not None and bool(self._outbox.sent)

    @property
    def not_before(self) -> int:
        """When the back-off after a failed write ends, in ms."""
        return 0 if self._outbox is None else self._outbox.not_before

    @property
    def tripped(self) -> bool:
        """Return whether the circuit breaker is open: the run ends."""
        return self._tripped is not None

    def report(self) -> Mapping[str, Any]:
        """Return the dead letters by exception, and the last ones; empty without a topic."""
        return {} if self._outbox is None else self._outbox.letters.written.report()

    def trip(self, error: RecordError) -> None:
        """End the run: single records are not to blame for the failures."""
        self._tripped = self._tripped or error

    def exhaust(self, part: Partition, offset: int) -> None:
        """Stop trying a record that waits for its retry; it is dead-lettered."""
        if offset not in part.exhausted:
            self._look_at_breaker(part, offset)
        part.exhausted.add(offset)
        retry = part.ledger.retry_state(offset)
        part.remember(offset, retry.failures if retry else 0, is_exhausted=True)
        if part.retry_cache.get(offset) is not None:
            part.ledger.postpone(offset, NEVER)
            self._queue.append((part, offset))

    def _look_at_breaker(self, part: Partition, offset: int) -> None:
        last = part.last_failures.get(offset)
        failure = last.failure if last else None
        error = (failure.error.partition(": ")[0] or failure.kind) if failure else "unknown"
        trip = part.breaker.give_up(offset, error)
        if trip is not None:
            self.trip(
                RecordError(
                    f"{part.place(offset)}: {trip.given_up:,} of the last {trip.read:,} records failed for good, "
                    f"most often with {trip.error} ({trip.times:,} times); {describe_failure(failure)}",
                    cure="fix the last deployment; these records are not committed and come again (kafka.breaker_ratio "
                    "decides how many may fail)",
                )
            )

    def enqueue_reread(self, part: Partition, record: Record, now: int) -> None:
        """Queue an exhausted record that was read again."""
        offset = record.offset
        if part.retry_cache.get(offset) is not None:
            return
        if part.retry_cache.hold(record):
            part.ledger.postpone(offset, NEVER)
            self._queue.append((part, offset))
        else:
            part.ledger.postpone(offset, now + NO_ROOM_MS)

    def write(self, now: Callable[[], int], owned: PartitionAssignment, *, eager: bool = True) -> None:
        """Send dead letters, and resolve the records of durable ones, without waiting.

        Args:
            owned: a partition that is not in its ``by_key`` was revoked, and its new owner decides about its records. A
                partition that is not in its ``parts`` is set aside in a rebalance: none of its records may be resolved
                for now.
            eager: send all queued dead letters; otherwise only a worthwhile batch.

        Raises:
            RecordError: there is no dead-letter topic, one can never be written, or the circuit breaker is open.
        """
        self._collect(now, owned)
        if self._tripped is not None:
            raise self._tripped
        left = len(self._queue)
        if not left or not (eager or self._worth_a_batch(now())):
            return
        until = now() + WRITE_MS_MAX
        while left > 0 and not self.out and self.not_before <= now() < until:
            batch, looked_at = self._take(left, owned)
            left -= looked_at
            if batch:
                self._send(batch, now)
                self._collect(now, owned)

    def _worth_a_batch(self, now: int) -> bool:
        if self._queued_at is None:
            self._queued_at = now
        waited = now - self._queued_at >= LINGER_MS
        return waited or len(self._queue) >= BATCH_WORTH or self._outbox is None

    def finish(self, now: Callable[[], int], owned: PartitionAssignment) -> None:
        """Before a last commit: wait briefly for the dead letters in flight, and write the queued ones."""
        for _ in range(2):
            if self._outbox is None:
                return
            may_send = self._tripped is None and self._outbox.letters.is_open and now() >= self.not_before
            if may_send and not self.out and (batch := self._take(len(self._queue), owned)[0]):
                self._send(batch, now)
            # If a dead letter is not durable in time, its record is not resolved: the next owner reads it and
            # dead-letters it.
            with suppress(RecordError):  # it would end the run, which is ending
                self._collect(now, owned, FINISH_S)

    def _take(self, most: int, owned: PartitionAssignment) -> tuple[list[tuple[Partition, Record]], int]:
        """Return the next batch from the queue, and how many entries were taken."""
        self._queued_at = None
        batch_max = BATCH_RECORDS if self._outbox is None else self._outbox.batch_max
        batch: list[tuple[Partition, Record]] = []
        mine = owned.parts.values()
        size = looked_at = 0
        while looked_at < most:
            looked_at += 1
            part, offset = self._queue.popleft()
            record = part.retry_cache.get(offset)
            if owned.by_key.get(part.key) is not part or record is None:
                self._alone.discard((part, offset))
                continue
            if part not in mine:
                self._queue.append((part, offset))
                continue
            alone = (part, offset) in self._alone
            # A dead letter that could not be written comes alone.
            if alone and batch:
                self._queue.appendleft((part, offset))
                looked_at -= 1
                break
            batch.append((part, record))
            size += size_of(record)
            if alone or len(batch) >= batch_max or size >= BATCH_BYTES:
                break
        return batch, looked_at

    def _send(self, batch: list[tuple[Partition, Record]], now: Callable[[], int]) -> None:
        """Hand dead letters to the producer."""
        if self._outbox is None:
            part, record = batch[0]
            retry = part.ledger.retry_state(record.offset)
            raise refuse(part, record.offset, retry.failures if retry else 0, part.last_failures.get(record.offset))
        letters = self._outbox.letters

        def queue(each: tuple[Partition, Record]) -> None:
            part, record = each
            retry = part.ledger.retry_state(record.offset)
            last = part.last_failures.get(record.offset)
            letters.queue(
                record,
                attempts=retry.failures if retry else 0,
                first_failure_ms=last.first_ms if last else None,
                last_failure_ms=last.last_ms if last else None,
                failure=last.failure if last else None,
                topic_id=part.topic_id,
                unreadable=part.broken.get(record.offset),
            )

        self._outbox.send(batch, queue, now)

    def _collect(self, now: Callable[[], int], owned: PartitionAssignment, wait_s: float = 0.0) -> None:
        """If all dead letters that were sent are durable, resolve their records."""
        if self._outbox is not None and self._outbox.sent:
            if not (durable := self._outbox.durable(now, wait_s)):
                return
            self._durable += durable
        if self._durable:
            self._resolve(owned)

    def _resolve(self, owned: PartitionAssignment) -> None:
        """Resolve the records whose dead letters are durable, except those that are set aside at the moment."""
        durable, self._durable = self._durable, []
        mine = owned.parts.values()
        for part, record in durable:
            if owned.by_key.get(part.key) is not part:
                continue
            if part not in mine:
                self._durable.append((part, record))
                continue
            part.ledger.resolve(record.offset)
            if (note := part.broken.get(record.offset)) is not None:
                self._metrics.unreadable += note.count
            part.forget(record.offset)
            self._alone.discard((part, record.offset))
            self._metrics.dead_lettered += 1
            self._on_written(part.tp, record)

    def _failed(self, batch: list[tuple[Partition, Record]], error: Exception, refusal: KafkaError | None) -> None:
        """Queue a failed batch again; in a bounded run, a dead letter that can never be written ends the run."""
        assert self._outbox is not None
        self._metrics.errors += 1
        if len(batch) == 1:
            part, record = batch[0]
            if self._bounded and refusal is not None:
                raise RecordError(
                    f"{part.place(record.offset)}: failed for good, and its dead letter cannot be written to topic "
                    f"{self._outbox.letters.topic}: {describe(refusal)}",
                    cure="correct the dead-letter topic (max.message.bytes, permissions); nothing after it is "
                    "committed",
                ) from error
            self._alone.add((part, record.offset))
        self._queue.extend((part, record.offset) for part, record in batch)

    def close(self) -> None:
        """Release the producer."""
        if self._outbox is not None:
            self._outbox.letters.close()


def refuse(part: Partition, offset: int, attempts: int, last: LastFailure | None) -> RecordError:
    """Return the error that stops a run without a dead-letter topic."""
    failure = last.failure if last else None
    return RecordError(
        f"{part.place(offset)}: failed {counted(attempts, 'time')}; {describe_failure(failure)}",
        cure="repair the bolt, or set kafka.dead_letter_topic; the record is not committed and comes again",
    )


def describe_failure(failure: Failure | None) -> str:
    """Describe where and with which error a record failed."""
    if failure is None:
        return "the reason is not known"
    where = f" in {failure.component}" if failure.component else ""
    return f"last by {failure.kind}{where}{': ' + failure.error if failure.error else ''}"


class MaxLag:
    """Drops records that lie more than ``most`` offsets behind."""

    def __init__(
        self, most: int, metrics: SpoutMetrics, hooks: Hooks, dead_lettering: DeadLettering, log: logging.Logger
    ) -> None:
        self._most = most
        self._metrics = metrics
        self._hooks = hooks
        self._dead_lettering = dead_lettering
        self._log = log
        self._throttle = LogThrottle()

    def leaves_failed(self, part: Partition, offset: int, timed_out: bool, now: int) -> bool:
        """Process a fail; return whether the record is too far behind and dropped."""
        ledger = part.ledger
        end = ledger.out_until(offset) or offset + 1
        if end - 1 < ledger.next - self._most:
            self._leave(part, offset, end, ledger.mark_done(offset), now)
            return True
        part.fails += not timed_out
        if not ledger.acks and part.fails > self._most:
            self._dead_lettering.trip(
                RecordError(
                    f"{part.place(offset)}: {part.fails:,} attempts failed and none was acked; kafka.behind_max = "
                    f"{self._most:,} allows no more",
                    cure="fix the last deployment; nothing after these records is committed, and they come again",
                )
            )
        return False

    def prune(self, parts: Iterable[Partition], now: int) -> None:
        """Stop waiting for records too far behind the newest one that is done."""
        for part in parts:
            for start, end, records in part.ledger.mark_done_below(part.ledger.newest_done - self._most):
                self._leave(part, start, end, records, now)

    def _leave(self, part: Partition, start: int, end: int, records: int, now: int) -> None:
        self._metrics.left_behind += records
        if self._throttle.due("left out", now):
            self._log.warning(
                "%s: lies more than kafka.behind_max = %d behind, and is dropped, as %d others were before",
                part.place(start), self._most, self._metrics.left_behind - records,
            )  # fmt: skip
        part.shared.pop(start, None)
        for offset in part.listened.pop(start, ()) or (start,):
            self._hooks.done(part.tp, offset)
        part.forget(start)
        if end > start + 1:
            part.forget_done()


FAILS_MIN = 100  # Fewer prove nothing; also how often the streak is checked


class FailStreak:
    """Counts the first attempts that failed since the last ack."""

    def __init__(self, metrics: SpoutMetrics, settings: Mapping[str, Any], log: logging.Logger) -> None:
        self._metrics = metrics
        retries_max = settings["retries_max"]
        times = "for ever" if retries_max == FOR_EVER else counted(retries_max, "time")
        self._prospect = f"each is tried again {times} (kafka.retries_max)"
        if retries_max != FOR_EVER and settings["breaker_ratio"]:
            self._prospect += ", and the run ends when too many have failed for good (kafka.breaker_ratio)"
        self._log = log
        self._acked = metrics.acked
        self._fails = 0
        self._throttle = LogThrottle()

    def note(self, part: Partition, offset: int, failure: Failure, parts: Collection[Partition], now: int) -> None:
        """Count a failed first attempt, not a timeout; warn if there were no acks in between."""
        if self._metrics.acked != self._acked:
            self._acked, self._fails = self._metrics.acked, 0
        self._fails += 1
        if self._fails % FAILS_MIN:
            return
        if self._fails >= sum(each.ledger.in_flight for each in parts) and self._throttle.due("streak", now):
            self._log.warning(
                "%s: nothing gets through: the last %s answers are fails, this one %s. %s records wait for another "
                "try; %s. If a bolt is broken, stop the run now: what has failed is not committed",
                part.place(offset), f"{self._fails:,}", describe_failure(failure),
                f"{sum(each.ledger.failed for each in parts):,}", self._prospect,
            )  # fmt: skip
