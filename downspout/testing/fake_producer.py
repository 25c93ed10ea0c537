"""The producers of the fake Kafka: batches, answers, refusals and transactions.

Records reach the log in order, ``acks_after_s`` seconds after the send, or when :meth:`FakeProducer.flush` returns.
Faults (``FakeKafka.faults``):

===========  ===================================================================================================
operation    what fails
===========  ===================================================================================================
``send``     a ``send``, at once
``flush``    a ``flush``, or an ``acknowledged``; with ``applied`` the records are in the log
``produce``  the answer for a batch; with ``applied`` its records are in the log and only the answer was lost
===========  ===================================================================================================

In a transaction also ``begin``, ``send_offsets``, ``commit_transaction`` and ``abort_transaction``; with ``applied``
the call takes effect and its answer is lost. Records are in the log, but hidden, before their transaction ends. A
transactional id has one owner.

A partition of :attr:`FakeKafka.leaderless` never answers: its records fail after the delivery timeout.

:attr:`FakeKafka.refuses` refuses single records, and so do the brokers' rules: too large for the topic, without a key
in a compacted topic, or later than ``message.timestamp.after.max.ms`` allows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition
from kafka.util import ensure_valid_topic_name

from downspout.kafka.client_values import producer_properties
from downspout.kafka.partitioners import Partitions, StuckPartitions, check_partition, make_partitioner
from downspout.kafka.port import GroupMembership, Sent
from downspout.kafka.producer_batches import check_time
from downspout.testing.fake_group import FakeGroup

if TYPE_CHECKING:
    from downspout.kafka.partitioners import Choose
    from downspout.testing.fake_broker import FakeBroker
    from downspout.testing.fake_log import Header, Topic, Transaction


TOPIC_WAIT_MS = 10_000
DELIVERY_MS = 120_000
OVERHEAD_BYTES = 61
HOUR_MS = 3_600_000
INTERNAL = ("__consumer_offsets", "__transaction_state")


class SentRecord(NamedTuple):
    """A record in flight."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int | None
    token: Any
    at: float

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class FakeProducer:
    """A producer of a :class:`FakeKafka`; a :class:`~downspout.kafka.port.ProducerPort`."""

    def __init__(self, cluster: FakeBroker, client: Mapping[str, Any], partitioner: str | Choose = "sticky") -> None:
        properties = producer_properties(client)
        self._cluster = cluster
        self._tells = properties["acks"] != 0
        self._linger_s = properties["linger_ms"] / 1000 if "linger_ms" in client else 0.0
        self._wait_s = float(properties.get("max_block_ms", TOPIC_WAIT_MS)) / 1000
        self._partitioner = make_partitioner(partitioner, random.Random(0))
        self._queue: list[SentRecord] = []
        self._results: list[Sent] = []
        self._error: BaseException | None = None
        self._closed = False
        self._stuck = StuckPartitions()
        self._delivery_s = float(properties.get("delivery_timeout_ms", DELIVERY_MS)) / 1000
        self.retried = 0  # always: the first try writes a record, or fails

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
        """Queue one record."""
        self._cluster.faults.raise_next("send")
        if token is None:
            self._raise()
        now = self._cluster.clock.monotonic()
        given: Any = tuple(headers)
        record = SentRecord(topic, -1 if partition is None else partition, key, value, given, timestamp_ms, token, now)
        try:
            ensure_valid_topic_name(topic)
            if timestamp_ms is not None:
                check_time(timestamp_ms)
            record = self._placed(record, chosen=partition is not None)
            if not self._stuck.takes(topic, record.partition):
                raise self._stuck.refusal(topic, record.partition)
            self._queue.append(record)
        except (ValueError, errors.KafkaTimeoutError) as error:
            if token is None:
                raise
            number = partition if isinstance(partition, int) else -1
            self._results.append(Sent([token], topic, number, -1, error, now))

    def _placed(self, record: SentRecord, chosen: bool) -> SentRecord:
        """Return a record with its partition, if its topic is known."""
        count = len(self._cluster.partitions(record.topic))
        if not count:
            return record
        if chosen:
            return record._replace(partition=check_partition(record.partition, record.topic, count))
        free = self._stuck.without(record.topic, Partitions(count, range(count)))
        where = self._partitioner.choose(record.topic, record.key, record.value, free)
        return record._replace(partition=where)

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- answers ----------------------------------------------------------------------------------------

    def results(self) -> list[Sent]:
        """Return the results of records with tokens since the last call."""
        now = self._cluster.clock.monotonic()
        if self._closed:
            self._fail_all(errors.IllegalStateError("the producer is closed"))
        elif self._cluster.is_up:
            self._give_up(now)
            due = [r for r in self._queue if now >= r.at + self._linger_s + self._cluster.acks_after_s]
            self._append([record for record in due if not self._is_silent(record)])
            self._stuck.update((((r.topic, r.partition), r.at) for r in self._queue), now)
        found, self._results = self._results, []
        return found

    def refuse_when_stuck(self, seconds: float) -> None:
        """Refuse records for a partition that is silent for so long while others answer."""
        self._stuck.after_s = seconds

    def _is_silent(self, record: SentRecord) -> bool:
        return TopicPartition(record.topic, record.partition) in self._cluster.leaderless

    def _give_up(self, now: float) -> None:
        """Fail records whose delivery timeout is over."""
        late = [r for r in self._queue if self._is_silent(r) and now >= r.at + self._delivery_s]
        self._queue = [record for record in self._queue if record not in late]
        for record in late:
            error = errors.KafkaTimeoutError(f"no answer within {self._delivery_s:g} s")
            self._note(Sent([record.token], record.topic, record.partition, -1, error, record.at))

    def _fail_all(self, error: BaseException) -> None:
        queue, self._queue = self._queue, []
        for record in queue:
            self._note(Sent([record.token], record.topic, record.partition, -1, error, record.at))

    def _append(self, records: Sequence[SentRecord]) -> None:
        """Append records, one batch per partition; keep those whose topic does not exist yet."""
        now = self._cluster.clock.monotonic()
        batches: dict[tuple[str, int], list[SentRecord]] = {}
        taken = set()
        for record in records:
            topic = self._cluster.topic(record.topic)
            if record.topic in INTERNAL:
                taken.add(id(record))
                error: BaseException = errors.InvalidTopicError("it is Kafka's own")
                self._note(Sent([record.token], record.topic, 0, -1, error, record.at))
                continue
            if topic is None:
                if now - record.at < self._wait_s and record.token is not None:
                    continue
                taken.add(id(record))
                error = errors.UnknownTopicOrPartitionError(f"there is no topic {record.topic}")
                self._note(Sent([record.token], record.topic, -1, -1, error, record.at))
                continue
            taken.add(id(record))
            try:
                placed = self._placed(record, chosen=record.partition >= 0)
            except ValueError as wrong:
                self._note(Sent([record.token], record.topic, record.partition, -1, wrong, record.at))
                continue
            batches.setdefault((placed.topic, placed.partition), []).append(placed)
        self._queue = [record for record in self._queue if id(record) not in taken]
        for (name, partition), batch in batches.items():
            self._partitioner.batch_full(name, partition)
            self._append_batch(batch)

    def _append_batch(self, batch: Sequence[SentRecord]) -> None:
        first = batch[0]
        topic = self._cluster.topic(first.topic)
        assert topic is not None
        fault = self._cluster.faults.take("produce")
        if fault is not None and not fault.applied:
            self._note(Sent([r.token for r in batch], first.topic, first.partition, -1, fault.error, first.at))
            return
        good = []
        for record in batch:
            if (error := self._refusal(topic, record)) is None:
                good.append(record)
            elif self._tells:
                self._note(Sent([record.token], record.topic, record.partition, -1, error, record.at))
            else:
                self._note(Sent([record.token], record.topic, record.partition, -1, None, record.at))
        if not good:
            return
        offsets = [self._write(record) for record in good]
        tokens = [record.token for record in good]
        if fault is not None:
            self._note(Sent(tokens, first.topic, first.partition, -1, fault.error, first.at))
        else:
            self._note(Sent(tokens, first.topic, first.partition, offsets[0] if self._tells else -1, None, first.at))

    def _write(self, record: SentRecord) -> int:
        """Append a record; return its offset."""
        return self._cluster.produce(
            record.topic, record.value, record.key, partition=record.partition, headers=record.headers,
            timestamp_ms=record.timestamp_ms,
        )  # fmt: skip

    def _refusal(self, topic: Topic, record: SentRecord) -> Any:
        """Return the broker's error for a record, or None."""
        if self._cluster.refuses is not None and (error := self._cluster.refuses(record)) is not None:
            return error
        if record.size > topic.max_message_bytes:
            return errors.MessageSizeTooLargeError(f"{record.size} bytes for {record.topic}")
        if "compact" in topic.config.get("cleanup.policy", "") and record.key is None:
            return errors.InvalidRecordError("Compacted topic cannot accept message without key")
        after_ms = int(topic.config.get("message.timestamp.after.max.ms", HOUR_MS))
        now_ms = self._cluster.clock.wall() * 1000
        if record.timestamp_ms is not None and record.timestamp_ms - now_ms > after_ms:
            return errors.InvalidTimestampError(f"Timestamp {record.timestamp_ms} is out of range")
        return None

    def _note(self, sent: Sent) -> None:
        if sent.error is None:
            self._stuck.answered((sent.topic, sent.partition), self._cluster.clock.monotonic())
        if sent.error is not None and self._error is None and None in sent.tokens:
            self._error = sent.error
        if any(token is not None for token in sent.tokens):
            self._results.append(sent)

    # --- waiting ----------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Bytes of unanswered records."""
        return sum(record.size + OVERHEAD_BYTES for record in self._queue if not self._is_stuck(record))

    def _is_stuck(self, record: SentRecord) -> bool:
        return bool(self._stuck) and (record.topic, record.partition) in self._stuck

    def oldest_s(self) -> float:
        """Return the age in seconds of the oldest unanswered record."""
        oldest = next((record.at for record in self._queue if not self._is_stuck(record)), None)
        return 0.0 if oldest is None else self._cluster.clock.monotonic() - oldest

    def flush(self, timeout_s: float = 30.0) -> None:
        """Append queued records; on an error, raise and drop those without tokens, like a real producer."""
        cluster = self._cluster
        if self._queue and self._queue[-1].at + cluster.acks_after_s > cluster.clock.monotonic() + timeout_s:
            if all(record.token is None for record in self._queue):
                self._queue.clear()
            raise errors.KafkaTimeoutError(f"not acknowledged within {timeout_s:g} s")
        untold = [record for record in self._queue if record.token is None]
        try:
            cluster.run_remote("flush", lambda: self._append([r for r in self._queue if not self._is_silent(r)]))
        except errors.KafkaError:
            gone = {id(record) for record in untold}
            self._queue = [record for record in self._queue if id(record) not in gone]
            raise
        if self._queue:  # a topic is missing, or a partition has no leader
            cluster.clock.sleep(timeout_s)
            self._append([record for record in self._queue if not self._is_silent(record)])
        if self._queue:
            raise errors.KafkaTimeoutError(f"not acknowledged within {timeout_s:g} s")
        self._raise()

    def acknowledged(self) -> bool:
        """Return whether all records are in the log, ``acks_after_s`` seconds after their send."""
        if self._queue:
            if self._cluster.clock.monotonic() < self._queue[-1].at + self._cluster.acks_after_s:
                return False
            if any(map(self._is_silent, self._queue)):
                self._append([record for record in self._queue if not self._is_silent(record)])
                return False
            self.flush()
        self._raise()
        return True

    def close(self) -> None:
        """Release the client; queued records fail."""
        self._closed = True


OVER = (errors.KafkaTimeoutError, errors.ProducerFencedError)


class FakeTransactionalProducer(FakeProducer):
    """A :class:`~downspout.kafka.port.TransactionalPort` of a :class:`FakeKafka`."""

    def __init__(
        self, cluster: FakeBroker, transactional_id: str, client: Mapping[str, Any], partitioner: str | Choose
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
        """Let the coordinator abort the open transaction."""
        opened, self.under_way = self.under_way, None
        if opened is not None:
            opened.abort()

    def _end_if_late(self) -> None:
        """Let the coordinator abort a transaction that is open for too long, and fence its producer."""
        if self.under_way is not None and self._cluster.clock.monotonic() - self._begun_s > self.timeout_ms / 1000:
            self.end_by_coordinator()
            self._is_late = True

    def held(self, group: FakeGroup) -> set[TopicPartition]:
        """Return the partitions whose commits for a group the open transaction blocks, unless it is too old."""
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
        """Add a consumer group's offsets to the transaction."""

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
        """Send queued records, and commit."""
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
        """Drop queued records, and abort."""
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
        """Return the error for a record; after one, the transaction refuses all others."""
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
