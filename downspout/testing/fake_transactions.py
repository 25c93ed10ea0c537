"""The transactional producer of the fake Kafka: one owner per id, and ends that may be lost.

Faults: ``begin``, ``send_offsets``, ``commit_transaction`` and ``abort_transaction``; with ``applied`` the call takes
effect and its answer is lost. What was sent is in the log before the end of its transaction, and hidden until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.kafka.port import GroupMembership, Sent
from downspout.testing.fake_group import Group
from downspout.testing.fake_producer import FakeProducer, SentRecord

if TYPE_CHECKING:
    from downspout.kafka.partitioners import Choose
    from downspout.testing.fake_kafka import FakeKafka
    from downspout.testing.fake_log import Transaction

OVER = (errors.KafkaTimeoutError, errors.ProducerFencedError)


class FakeTransactionalProducer(FakeProducer):
    """A :class:`~downspout.kafka.port.TransactionalPort` of a :class:`FakeKafka`."""

    def __init__(
        self, cluster: FakeKafka, transactional_id: str, client: Mapping[str, Any], partitioner: str | Choose
    ) -> None:
        super().__init__(cluster, {**client, "enable_idempotence": True}, partitioner)
        self.is_over = False
        self._id = transactional_id
        self.under_way: Transaction | None = None
        self._offsets: list[tuple[GroupMembership, Mapping[TopicPartition, OffsetAndMetadata]]] = []
        self._refused: BaseException | None = None
        self.timeout_ms = int(client.get("transaction_timeout_ms", 60_000))
        self._begun_s = 0.0
        self._is_late = False  # whether the coordinator has aborted a transaction for its age
        cluster.run_remote("begin", lambda: None)
        if (older := cluster.transactional.get(transactional_id)) is not None:
            older.end_by_coordinator()
        cluster.transactional[transactional_id] = self

    def end_by_coordinator(self) -> None:
        """Let the coordinator abort what is open."""
        opened, self.under_way = self.under_way, None
        if opened is not None:
            opened.abort()

    def _end_if_late(self) -> None:
        """Let the coordinator abort what is open for too long, and fence its producer."""
        if self.under_way is not None and self._cluster.clock.monotonic() - self._begun_s > self.timeout_ms / 1000:
            self.end_by_coordinator()
            self._is_late = True

    def held(self, group: Group) -> set[TopicPartition]:
        """Return the partitions whose commits for a group are held back by what is open; what is too old is aborted."""
        self._end_if_late()
        if self.under_way is None:
            return set()
        return {
            tp
            for membership, offsets in self._offsets
            if self._cluster.group(membership.group) is group
            for tp in offsets
        }

    # --- the port ---

    def has_successor(self) -> bool:
        """Return whether another producer has taken the transactional id."""
        return self._cluster.transactional.get(self._id) is not self

    def begin(self) -> None:
        """Begin a transaction."""

        def begin() -> None:
            if self.under_way is not None:
                raise errors.IllegalStateError("a transaction is open")
            self.under_way, self._offsets, self._refused = self._cluster.transaction(), [], None
            self._begun_s = self._cluster.clock.monotonic()

        self._guarded("begin", begin)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], membership: GroupMembership, timeout_s: float = 30.0
    ) -> None:
        """Make offsets of a consumer group part of the transaction."""

        def send() -> None:
            self._opened()
            group = self._cluster.group(membership.group)
            self._cluster.tick()
            if membership.member or group.members:
                try:
                    group.check(membership.member, membership.generation, membership.instance)
                except errors.KafkaError as error:
                    self._refused = errors.CommitFailedError(str(error))
                    raise self._refused from None
            self._offsets.append((membership, dict(offsets)))

        self._guarded("send_offsets", send)

    def commit(self, timeout_s: float = 30.0) -> None:
        """Send what is queued, and commit."""
        if not self.is_over and self._owns():
            self.flush(timeout_s)

        def commit() -> None:
            opened = self._opened()
            if self._refused is not None:
                raise self._refused
            self.under_way = None
            opened.commit()
            for membership, offsets in self._offsets:
                self._cluster.group(membership.group).commit_in_transaction(offsets)

        self._guarded("commit_transaction", commit)

    def abort(self, timeout_s: float = 30.0) -> None:
        """Drop what is queued, and abort."""
        self._fail_all(errors.TransactionAbortedError())

        def abort() -> None:
            opened, self.under_way = self._opened(), None
            opened.abort()

        self._guarded("abort_transaction", abort)

    # --- how ---

    def _owns(self) -> bool:
        self._end_if_late()
        return not self._is_late and not self.has_successor()

    def _opened(self) -> Transaction:
        if self.under_way is None:
            raise errors.IllegalStateError("no transaction is open")
        return self.under_way

    def _guarded(self, operation: str, call: Callable[[], None]) -> None:
        if self.is_over:
            raise errors.IllegalStateError("this producer is over: another one takes its place")

        def owned() -> None:
            if not self._owns():
                raise errors.ProducerFencedError()
            call()

        try:
            self._cluster.run_remote(operation, owned)
        except OVER:
            self.is_over = True
            self._fail_all(errors.IllegalStateError("the producer is over"))
            raise

    def _write(self, record: SentRecord) -> int:
        stamp = int(self._cluster.clock.wall() * 1000) if record.timestamp_ms is None else record.timestamp_ms
        return self._opened().send(record.topic, record.value, record.key, record.partition, stamp, record.headers)

    def _refusal(self, topic: Any, record: SentRecord) -> Any:
        """Return why a record is refused; after one, the transaction takes no other."""
        if self._refused is None:
            if not self._owns():
                self._refused = errors.ProducerFencedError()
            elif self.under_way is None:
                return errors.IllegalStateError("no transaction is open")
            else:
                self._refused = super()._refusal(topic, record)
            return self._refused
        if isinstance(self._refused, errors.ProducerFencedError):
            return self._refused
        aborted = errors.TransactionAbortedError(str(self._refused))
        aborted.__cause__ = self._refused
        return aborted

    def _note(self, sent: Sent) -> None:
        if sent.error is not None and self.under_way is not None and self._refused is None:
            self._refused = sent.error
        super()._note(sent)
