"""The transactional producer port on real brokers.

kafka-python knows no KIP-890: an end of a transaction that timed out may still reach the broker, and hit the next
transaction of the same producer. So after a time-out in ``begin``, ``send_offsets``, ``commit`` or ``abort``, and after
any error that ends a producer, this one is over: it is released, and takes nothing any more. Its owner makes a new one,
whose start waits until the old transaction is ended, and learns from the group's committed offsets how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.coordinator.base import ConsumerGroupMetadata

from downspout.kafka.partitioners import Partitioner
from downspout.kafka.patches import endless_transactions
from downspout.kafka.patches.stuck_close import abandon
from downspout.kafka.port import GroupMembership, OffsetAndMetadata, TopicPartition, TransactionalPort
from downspout.kafka.producer import KafkaProducerPort

OVER = (
    errors.KafkaTimeoutError, errors.ProducerFencedError, errors.InvalidProducerEpochError,
    errors.InvalidProducerIdMappingError, errors.UnknownProducerIdError,  # the brokers have forgotten it: it was idle
)  # fmt: skip
"""Errors after which the producer is not used again."""


Described = Callable[[], tuple[str, int, int]]
"""Asks the coordinator for the state of a transactional id, and the id and epoch of its producer."""


class KafkaTransactionalPort(KafkaProducerPort, TransactionalPort):
    """A transactional producer; see :class:`~downspout.kafka.port.TransactionalPort`.

    Args:
        described: says who has the transactional id now.

    Raises:
        KafkaTimeoutError: an older transaction of this id could not be ended in time (``max_block_ms``).
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
        """Make no new producer: what is sent fails, with the error of this one."""

    def has_successor(self) -> bool:
        """Return whether another producer has taken the transactional id.

        When brokers abort a transaction for its age they raise its producer's epoch by one, and it stays aborted until
        somebody begins with the id. Whoever does leaves another state, or another epoch.
        """
        state, producer_id, epoch = self._described()
        if state in ("PrepareAbort", "PrepareEpochFence"):
            raise errors.ConcurrentTransactionsError("the brokers are still ending the transaction")
        ours, our_epoch = endless_transactions.identity(self._producer)
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
        """Make offsets of a consumer group part of the transaction."""
        group = ConsumerGroupMetadata(membership.group, membership.generation, membership.member, membership.instance)
        self._guarded(lambda: endless_transactions.send_offsets(self._producer, offsets, group, timeout_s))

    def commit(self, timeout_s: float = 30.0) -> None:
        """Send what is queued, wait for the answers, and commit."""

        def ended() -> None:
            if not self._batches.flush(timeout_s):
                raise errors.KafkaTimeoutError(f"no answer within {timeout_s:g} s")
            self._raise()
            endless_transactions.end(self._producer, commit=True, timeout_s=timeout_s)

        self._guarded(ended)

    def abort(self, timeout_s: float = 30.0) -> None:
        """Drop what is queued, and abort."""
        self._batches.drop(errors.TransactionAbortedError())
        self._guarded(lambda: endless_transactions.end(self._producer, commit=False, timeout_s=timeout_s))

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
