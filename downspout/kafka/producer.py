"""The producer ports on real brokers: kafka-python's producer with our own batches, without losing an error.

Each batch has one answer (``downspout.kafka.producer_batches``). Errors of records without a token are raised by the
next ``send``, ``flush`` or ``acknowledged``. A producer that is over (fenced, or denied all writes) fails every further
batch with the same error; the next record gets a new producer.

kafka-python does not implement KIP-890: a late request to end a transaction may end the producer's next one instead.
After a timeout in ``begin``, ``send_offsets``, ``commit`` or ``abort``, or a fatal error, a transactional producer is
closed for good. Its owner makes a new one, whose start waits until the old transaction has ended, and learns the
outcome from the group's committed offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import errors
from kafka.coordinator.base import ConsumerGroupMetadata

from downspout.errors import SilentBrokersError
from downspout.kafka.partitioners import Partitioner
from downspout.kafka.patches import transactional
from downspout.kafka.patches.producing import abandon
from downspout.kafka.port import (
    GroupMembership,
    OffsetAndMetadata,
    ProducerPort,
    Sent,
    TopicPartition,
    TransactionalPort,
)
from downspout.kafka.producer_batches import RecordBatches

CLOSE_S = 5.0


class KafkaProducerPort(ProducerPort):
    """A producer; see :class:`~downspout.kafka.port.ProducerPort`. Made by :meth:`KafkaCluster.producer`.

    Args:
        make: returns a ``kafka.KafkaProducer``.
        partitioner: chooses for records without a partition.
        linger_s: how long a batch waits for more records.
    """

    def __init__(self, make: Callable[[], Any], partitioner: Partitioner | None = None, linger_s: float = 0.0) -> None:
        self._make, self._partitioner, self._linger_s = make, partitioner, linger_s
        self._retried = 0  # by previous producers
        self._stuck_s = float("inf")
        self._renew()

    def _renew(self) -> None:
        self._producer = self._make()
        self._batches = RecordBatches(self._producer, self._partitioner, self._linger_s)
        self._batches.stuck.after_s = self._stuck_s
        self._late = self._closed = False

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        token: Any = None,
    ) -> None:
        """Queue one record.

        Raises:
            KafkaError: for a record without a token: it, or an earlier one, cannot be sent.
        """
        if token is None:
            self._batches.collect()
            self._raise()
        if self._batches.is_over:
            try:
                self._give_up()
            except SilentBrokersError as error:  # may pass before the next record
                if token is None:
                    raise
                lost = errors.KafkaTimeoutError(error.message)
                self._batches.keep([Sent([token], topic, -1, -1, lost, time.monotonic())])
                return
        self._batches.add(topic, key, value, headers, partition, timestamp_ms, token)

    def refuse_when_stuck(self, seconds: float) -> None:
        """Refuse records for a partition that is silent for so long while others answer."""
        self._stuck_s = self._batches.stuck.after_s = seconds

    def _give_up(self) -> None:
        """Make a new producer; report the old one's remaining records as failed."""
        self._closed = True
        abandon(self._producer)
        old = self._batches
        old.keep(self.results())  # reported even if no new one can be made now
        self._renew()
        self._retried += old.retried
        self._batches.keep(old.take_results())

    def _raise(self) -> None:
        error, self._batches.error = self._batches.error, None
        if error is not None:
            raise error

    def results(self) -> list[Sent]:
        """Return the results of records with tokens since the last call; send batches that have lingered."""
        batches = self._batches
        if self._closed:
            batches.end()
        batches.hand_over(old=True)
        batches.collect()
        return batches.take_results()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are queued or unanswered."""
        return self._batches.buffered_bytes

    def oldest_s(self) -> float:
        """Return the age in seconds of the oldest unanswered record."""
        return self._batches.oldest_s()

    @property
    def retried(self) -> int:
        """How often records were sent again."""
        return self._retried + self._batches.retried

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all queued records are answered.

        Raises:
            KafkaError: a record without a token was refused, or timed out; others may have failed, too.
        """
        if not self._batches.flush(timeout_s):
            self._late = True
            raise errors.KafkaTimeoutError(f"no answer within {self._batches.oldest_s():.1f} s")
        self._raise()

    def acknowledged(self) -> bool:
        """Send queued records; return whether all are answered, without waiting.

        Raises:
            KafkaError: a record without a token was refused; others may have failed, too.
        """
        self._batches.hand_over()
        self._batches.collect()
        self._raise()
        return not self._batches.waits

    def close(self) -> None:
        """Release the client; send queued records within 5 s, or drop them if a flush has timed out."""
        self._closed = True
        if not self._late:
            try:
                if self._batches.flush(CLOSE_S):
                    self._producer.close(timeout=CLOSE_S)
                    return
            except errors.KafkaError:
                pass
        abandon(self._producer)


# --- Transactions ---


OVER = (
    errors.KafkaTimeoutError, errors.ProducerFencedError, errors.InvalidProducerEpochError,
    errors.InvalidProducerIdMappingError, errors.UnknownProducerIdError,  # the brokers have expired an idle producer
)  # fmt: skip
"""Errors after which the producer must not be used again."""


Described = Callable[[], tuple[str, int, int]]
"""Asks the coordinator for a transactional id's state, producer id and epoch."""


class KafkaTransactionalPort(KafkaProducerPort, TransactionalPort):
    """A transactional producer; see :class:`~downspout.kafka.port.TransactionalPort`.

    Args:
        described: describes the transactional id.

    Raises:
        KafkaTimeoutError: an older transaction of this id did not end within ``max_block_ms``.
    """

    def __init__(
        self, make: Callable[[], Any], described: Described, partitioner: Partitioner | None = None,
        linger_s: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(make, partitioner, linger_s)
        self._described = described
        self.is_over = False
        self._guarded(self._producer.init_transactions)

    def _give_up(self) -> None:
        """Make no new producer: further records fail with this one's error."""

    def has_successor(self) -> bool:
        """Return whether another producer has taken the transactional id.

        Brokers that abort a transaction for its age increment its producer's epoch. A successor changes the state or
        the epoch again.
        """
        state, producer_id, epoch = self._described()
        if state in ("PrepareAbort", "PrepareEpochFence"):
            raise errors.ConcurrentTransactionsError("the brokers are still ending the transaction")
        ours, our_epoch = transactional.identity(self._producer)
        return (state, producer_id, epoch) != ("CompleteAbort", ours, our_epoch + 1)

    def begin(self) -> None:
        """Begin a transaction."""
        self._guarded(self._producer.begin_transaction)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        membership: GroupMembership,
        timeout_s: float = 30.0,
    ) -> None:
        """Add a consumer group's offsets to the transaction."""
        group = ConsumerGroupMetadata(membership.group, membership.generation, membership.member, membership.instance)
        self._guarded(lambda: transactional.send_offsets(self._producer, offsets, group, timeout_s))

    def commit(self, timeout_s: float = 30.0) -> None:
        """Send queued records, wait for the answers, and commit."""

        def ended() -> None:
            if not self._batches.flush(timeout_s):
                raise errors.KafkaTimeoutError(f"no answer within {timeout_s:g} s")
            self._raise()
            transactional.end(self._producer, commit=True, timeout_s=timeout_s)

        self._guarded(ended)

    def abort(self, timeout_s: float = 30.0) -> None:
        """Drop queued records, and abort."""
        self._batches.drop(errors.TransactionAbortedError())
        self._guarded(lambda: transactional.end(self._producer, commit=False, timeout_s=timeout_s))

    def _guarded(self, call: Callable[[], None]) -> None:
        if self.is_over:
            raise errors.IllegalStateError("this producer is over: another one takes its place")
        try:
            call()
        except errors.KafkaError as error:
            if isinstance(error, OVER) or self._batches.is_over:
                self.is_over = self._late = self._closed = True
                abandon(self._producer)
            raise
