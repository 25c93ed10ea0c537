"""The batch coordinator: connects the state machine of ``core.coordinator`` to a store, a source and a clock.

Each call of :meth:`Coordinating.turn` takes the claim, performs due actions, and begins a batch. Actions are performed
in the state machine's order, none before the preceding write has succeeded: a store that is locked or away delays
everything after it. :class:`KafkaSource` provides the partitions of the topics, and the end of a bounded run.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kafka import errors

from downspout.batches.batch_reader import goes_on, ids_of
from downspout.batches.core.coordinator import Action, Coordinator, EmitBatch, EmitCommit, Status, Store
from downspout.batches.core.protocol import (
    BATCH,
    COMMIT,
    SUCCESS,
    Attempt,
    CoordinatorState,
    message_id,
    of_message_id,
    partition_id,
)
from downspout.batches.setup import BatchSetup
from downspout.batches.stores import BatchStore, BatchStoreError
from downspout.errors import ComponentError, coordinates
from downspout.kafka.port import ConsumerPort, TopicPartition
from downspout.kafka.retry_gate import LogThrottle, RetryGate
from downspout.offsets.stores.database import PassesError
from downspout.protocols import Failure
from downspout.spout.assignment import REFRESH_MS, partitions_to_read
from downspout.spout.ports import SpoutMetrics
from downspout.spout.settings import offsets_of
from downspout.spout.starting import another, missing_topics, no_topic

AGAIN_MS = 200
"""Wait after a failed write to the store."""


class BatchSource(Protocol):
    """The source that the emitter reads, as the coordinator sees it."""

    def partitions(self, now: int) -> Sequence[Any] | None:
        """Return the current partitions, in a stable order; None: not known yet."""

    def is_ready(self, txid: int) -> bool:
        """Return whether a transaction may begin."""

    def end_reached(self, current: int) -> bool:
        """Return whether the transactions before ``current`` reach the end of a bounded run."""


@dataclass
class BatchMetrics:
    """A coordinator's counters."""

    succeeded: int = 0
    failed: int = 0
    attempts: int = 0
    batch_s: float = 0.0


@dataclass
class _Begun:
    """An active transaction: its partitions and when it began."""

    partitions: Sequence[Any]
    at: int


class Coordinating:
    """Drives the batches of one id.

    Args:
        store: their metadata.
        owner: the topology's id.
        source: read by the emitter.
        emit: emits values to a stream, with a message id or None.
        settings: of the scope ``batch``.
        log: for warnings.
    """

    def __init__(
        self,
        store: BatchStore,
        owner: str,
        source: BatchSource,
        emit: Callable[[str, list[Any], str | None], None],
        settings: Mapping[str, Any],
        log: logging.Logger,
    ) -> None:
        self._store, self._owner, self._source, self._emit = store, owner, source, emit
        self._is_transactional = settings["kind"] == "transactional"
        self._max_active: int = settings["max_active"]
        self._interval_ms: int = settings["emit_interval_ms"]
        self._attempts_max: int = settings["attempts_max"]
        self._log = log
        self._throttle = LogThrottle()
        self._coordinator = Coordinator(CoordinatorState(), self._max_active)
        self._epoch: int | None = None
        self._due: deque[Action] = deque()
        self._begun: dict[int, _Begun] = {}
        self._raised_in: Counter[int] = Counter()  # attempts in which a bolt has raised, by transaction
        self._begin_at = self._again_at = 0
        self._done = 0  # the last finished transaction, until the metadata below it is deleted
        self._has_ended = False
        self._may_begin = 0  # how many batches acks may still begin before the next turn
        self.metrics = BatchMetrics()

    # --- turns ---

    def turn(self, now: int, *, begins: bool = True) -> None:
        """Perform due actions.

        Args:
            now: milliseconds on a monotonic clock.
            begins: whether batches may begin.

        Raises:
            BatchStoreError: the store failed, and a retry will not help.
            StaleCoordinatorError: another process coordinates these batches.
        """
        self._may_begin = self._max_active if begins else 0
        self._unless_away(now, lambda: self._turn(now, begins))

    def _turn(self, now: int, begins: bool) -> None:
        self._claim()
        self._do_what_is_due(now)
        if begins:
            self._begin(now)
        self._clean()

    def _unless_away(self, now: int, work: Callable[[], None]) -> None:
        """Call ``work``, unless the store failed within the last AGAIN_MS."""
        if now < self._again_at:
            return
        try:
            work()
        except BatchStoreError as error:
            if not error.passes:
                raise
            self._again_at = now + AGAIN_MS
            # A database that is away, full or locked is logged already (``told``).
            if not isinstance(error.__cause__, PassesError) and self._throttle.due("store", now):
                self._log.warning("%s; retrying", error)

    def _claim(self) -> None:
        """Take the claim and load the stored state, once."""
        if self._epoch is None:
            epoch = self._store.claim(self._owner)
            state = self._store.load_coordinator() or CoordinatorState()
            self._epoch, self._coordinator = epoch, Coordinator(state, self._max_active)

    def _do_what_is_due(self, now: int) -> None:
        assert self._epoch is not None
        while self._due:
            action = self._due[0]
            if isinstance(action, Store):
                self._store.save_coordinator(self._epoch, action.state)
                self._due.popleft()
                continue
            self._due.popleft()
            attempt = action.attempt
            if isinstance(action, EmitBatch):
                self.metrics.attempts += 1
                values = [attempt, self._epoch, self._begun[attempt.txid].partitions]
                self._emit(BATCH, values, message_id(BATCH, attempt))
            elif isinstance(action, EmitCommit):
                self._emit(COMMIT, [attempt, self._epoch], message_id(COMMIT, attempt))
            else:
                self._succeeded(attempt, now)

    def _succeeded(self, attempt: Attempt, now: int) -> None:
        assert self._epoch is not None
        begun = self._begun.pop(attempt.txid)
        self._raised_in.pop(attempt.txid, None)
        self.metrics.succeeded += 1
        self.metrics.batch_s = (now - begun.at) / 1000
        self._emit(SUCCESS, [attempt, self._epoch], None)
        self._done = attempt.txid

    def _clean(self) -> None:
        """Delete the metadata of finished transactions, after beginning the next batch."""
        if self._done and self._is_transactional:
            assert self._epoch is not None
            self._store.delete_below(self._epoch, self._done, ())
        self._done = 0

    def _begin(self, now: int) -> bool:
        """Begin the next batch if it may begin now; return whether it did."""
        txid = self._coordinator.next_txid()
        if txid is None or now < self._begin_at or self.end_reached() or not self._source.is_ready(txid):
            return False
        partitions = self._partitions(txid, now)
        if partitions is None:
            return False
        others = [self._begun[attempt.txid].partitions for attempt, _ in self._coordinator.active]
        if others and others[-1] != partitions:
            # Partitions may move between tasks now. Until their batches are committed, the new task would not know
            # their positions.
            return False
        self._begin_at = now + self._interval_ms
        self._begun[txid] = _Begun(partitions, now)
        self._due += self._coordinator.begin(txid)
        self._do_what_is_due(now)
        return True

    def _partitions(self, txid: int, now: int) -> Sequence[Any] | None:
        """Return the partitions of an attempt; None: not known yet."""
        assert self._epoch is not None
        if not self._is_transactional:
            return self._source.partitions(now)
        if self._coordinator.is_replay(txid):
            stored = self._store.load_partitions(txid)
            if stored is not None:
                return stored
        partitions = self._source.partitions(now)
        if partitions is not None:
            self._store.save_partitions(self._epoch, txid, partitions)
        return partitions

    # --- answers ---

    def acked(self, tup_id: str, now: int) -> None:
        """Handle an ack; it has no effect unless the attempt is active.

        The next batch begins at once, so that one is always active; but between two turns no more than
        ``batch.max_active`` begin, so a run that stops, and gives no more turns, ends.

        Args:
            tup_id: the message id of the complete tree.
            now: as in :meth:`turn`.
        """
        stream, attempt = of_message_id(tup_id)
        done = self._coordinator.processed if stream == BATCH else self._coordinator.committed
        self._due += done(attempt)
        if self._due:
            self._unless_away(now, lambda: self._go_on(now))

    def _go_on(self, now: int) -> None:
        self._do_what_is_due(now)
        if self._may_begin and self._begin(now):
            self._may_begin -= 1

    def failed(self, tup_id: str, failure: Failure | None, now: int) -> None:
        """Handle a fail; it has no effect unless the attempt is active.

        Raises:
            ComponentError: a bolt has raised in too many attempts of this transaction.
        """
        stream, attempt = of_message_id(tup_id)
        expected = Status.PROCESSING if stream == BATCH else Status.COMMITTING
        if (attempt, expected) not in self._coordinator.active:
            return
        self.metrics.failed += 1
        given_up = self._coordinator.failed(attempt)
        for each in given_up:
            self._begun.pop(each.txid)
        later = {each.txid for each in given_up}
        # Due emits of attempts that are given up are dropped; their stored numbers stay.
        self._due = deque(each for each in self._due if isinstance(each, Store) or each.attempt.txid not in later)
        if failure is not None and failure.kind == "exception":
            self._raised(attempt, failure)
        if failure is not None and failure.kind == "timeout" and self._throttle.due("timeout", now):
            self._log.warning(
                "%s timed out. If that goes on, a batch takes longer than the message timeout. Try: a smaller "
                "batch.records_max, or a longer topology.message.timeout.secs", attempt,
            )  # fmt: skip
        elif self._throttle.due("failed", now):
            why = f": {failure.component} {failure.error}" if failure and failure.error else ""
            self._log.warning("%s failed%s; it is retried, and so are the %d after it", attempt, why, len(later) - 1)

    def _raised(self, attempt: Attempt, failure: Failure) -> None:
        self._raised_in[attempt.txid] += 1
        if self._raised_in[attempt.txid] >= self._attempts_max:
            raise ComponentError(
                f"transaction {attempt.txid}: {failure.component} raised in {self._attempts_max} attempts in a row, "
                f"last with {failure.error}; nothing after transaction {attempt.txid - 1} is committed",
                cure="fix the cause, and start again: the run resumes with this transaction",
            )

    # --- the end ---

    def end_reached(self) -> bool:
        """Return whether all of a bounded run is committed."""
        if not self._has_ended and self._epoch is not None and not self._due:
            try:
                self._has_ended = self._source.end_reached(self._coordinator.current)
            except BatchStoreError as error:
                if not error.passes:
                    raise
        return self._has_ended

    @property
    def waits(self) -> bool:
        """Whether the next batch can begin only after one that is being processed."""
        is_full = self._coordinator.next_txid() is None or self._has_ended or not self._may_begin
        return is_full and any(status is Status.PROCESSING for _, status in self._coordinator.active)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is active or due."""
        return self._coordinator.is_idle and not self._due

    def report(self) -> dict[str, float]:
        """Return the metrics."""
        counted = self.metrics
        return {
            "batch_txid": self._coordinator.current,
            "batches_active": sum(1 for _ in self._coordinator.active),
            "batches_succeeded": counted.succeeded,
            "batches_failed": counted.failed,
            "batch_attempts": counted.attempts,
            "batch_s": counted.batch_s,
        }

    def close(self) -> None:
        """Release the claim and close the store."""
        try:
            if self._epoch is not None:
                self._store.release(self._epoch)
        except BatchStoreError as error:
            self._log.warning("%s", error)
        finally:
            self._store.close()


class KafkaSource:
    """See :class:`BatchSource`.

    Args:
        setup: the settings.
        consumer: for metadata only.
        store: the metadata of the batches.
        is_ready: the component's hook.
        log: for warnings.
    """

    def __init__(
        self,
        setup: BatchSetup,
        consumer: ConsumerPort,
        store: BatchStore,
        is_ready: Callable[[int], bool],
        log: logging.Logger,
    ) -> None:
        self._setup, self._consumer, self._store, self._log = setup, consumer, store, log
        self.is_ready = is_ready
        self._settings = setup.kafka.settings
        self._gate = RetryGate("listing partitions", self._settings["bootstrap"], SpoutMetrics(), log)
        self._known: list[list[Any]] | None = None
        self._look_at = 0
        self._ends: dict[TopicPartition, int] | None = None
        self._ids: dict[str, str] = {}  # of these ends' topics
        self._looked_for_end = 0
        self._missed: set[str] = set()

    def partitions(self, now: int) -> Sequence[Any] | None:
        """Return the partitions; if Kafka does not answer, the last known ones.

        Raises:
            BrokerError: Kafka refuses, or a bounded run lacks a topic.
        """
        if now >= self._look_at and not self._gate.waits(now):
            try:
                self._look(now)
                self._gate.succeeded(now)
            except errors.KafkaError as error:
                self._gate.record_error(error, now)
        return self._known

    def _look(self, now: int) -> None:
        missing = set(missing_topics(self._consumer, self._settings["topics"] or []))
        for topic in sorted(missing - self._missed):
            if self._setup.kafka.bounded and self._ends is None:
                raise no_topic(topic, self._settings["bootstrap"])
            self._log.warning("topic %s does not exist on %s; waiting for it", topic, self._settings["bootstrap"])
        self._missed = missing
        found = sorted(partitions_to_read(self._consumer, self._settings))
        if self._setup.kafka.bounded:
            self._bound(found)
        if found:
            # A bounded run reads only records that existed at its start, so it ignores partitions added later.
            self._known = [[*tp] for tp in found if self._ends is None or tp in self._ends]
        self._look_at = now + REFRESH_MS

    def _bound(self, found: Sequence[TopicPartition]) -> None:
        """Set the ends of a bounded run to the current ends of the logs; later, update those of re-created topics."""
        ids = ids_of(self._consumer, found)
        if self._ends is None:
            self._ends, self._ids = self._ends_of(found), ids
            return
        if new := {topic for topic, now in ids.items() if another(self._ids.get(topic, ""), now)}:
            ends = self._ends_of([tp for tp in found if tp.topic in new])
            self._ends = {tp: end for tp, end in self._ends.items() if tp.topic not in new} | ends
            self._ids |= {topic: ids[topic] for topic in new}

    def _ends_of(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        ends = dict(self._consumer.end_offsets(partitions)) if partitions else {}
        for tp, stop in offsets_of("kafka.stop_offsets", self._settings["stop_offsets"]).items():
            if tp in ends:
                if stop > ends[tp]:
                    self._log.warning("%s ends at %d, before kafka.stop_offsets; the run stops there",
                                      coordinates(*tp), ends[tp])  # fmt: skip
                ends[tp] = min(stop, ends[tp])
        return ends

    @property
    def ends(self) -> Mapping[TopicPartition, int] | None:
        """The ends of a bounded run; None: it is not bounded, or they are not known yet."""
        return self._ends

    def end_reached(self, current: int) -> bool:
        """Return whether the transactions before ``current`` reach the end of a bounded run. Reads once per commit.

        Raises:
            BatchStoreError: the store does not answer.
        """
        if self._ends is None or self._looked_for_end == current:
            return False
        ranges = self._store.load_ranges([partition_id(*tp) for tp in self._ends])
        self._looked_for_end = current
        for tp, end in self._ends.items():
            done = {txid: found for txid, found in ranges.get(partition_id(*tp), {}).items() if txid < current}
            last = done[max(done)] if done else None
            if last is not None and not goes_on(self._settings["start"], last, self._setup.topology_id):
                last = None  # stored by another topology; this one starts anew
            if last is not None and another(last.topic_id, self._ids.get(tp.topic, "")):
                # The topic was created again. If the known end is the old topic's, it must be updated.
                self._look_at = 0
                return False
            if end > 0 and (last is None or last.next < end):
                return False
        return True

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close()
