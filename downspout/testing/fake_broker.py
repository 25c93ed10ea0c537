"""The broker's side of the fake Kafka: topics, logs, groups, and injected failures.

The fake's clients (``fake_kafka`` and ``fake_producer``) use this class; ``FakeKafka`` makes them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.clock import Clock
from downspout.kafka import port
from downspout.kafka.partitioners import partition_of_key
from downspout.kafka.port import Answered
from downspout.kafka.unreadable import Unreadable
from downspout.testing.fake_group import AcceptedCommit, FakeGroup
from downspout.testing.fake_log import Header, PartitionLog, Topic, Transaction, topic_id
from downspout.testing.virtual_clock import VirtualClock

T = TypeVar("T")
COORDINATED = frozenset(
    {"commit", "committed", "group_offsets", "group_members", "has_joined", "delete_offsets", "delete_groups"}
)
"""Operations of the group coordinator; other brokers serve the rest."""
OPERATIONS = (
    "poll",
    "commit",
    "commit_async",
    "committed",
    "beginning_offsets",
    "end_offsets",
    "offsets_for_times",
    "first_records",
    "partitions_for",
    "topic_id",
    "topic_names",
    "send",
    "flush",
    "produce",
    "begin",
    "send_offsets",
    "commit_transaction",
    "abort_transaction",
    "ensure_topic",
)
"""Operations that can be made to fail."""


@dataclass(frozen=True)
class FakeFault:
    """One injected failure; ``applied``: the operation takes effect, and only its answer is lost."""

    error: Exception
    applied: bool = False


class FakeFaults:
    """The failures of the next calls, by operation."""

    def __init__(self) -> None:
        self._due: dict[str, deque[FakeFault]] = defaultdict(deque)

    def fail_next(
        self, operation: str, error: Exception | type[Exception], times: int = 1, *, applied: bool = False
    ) -> None:
        """Make the next ``times`` calls of ``operation`` raise ``error``.

        Args:
            operation: one of ``OPERATIONS``.
            error: usually one of ``kafka.errors``; for ``commit_async``, its answer.
            times: the number of calls.
            applied: the operation takes effect, and only its answer is lost (not for ``poll``).
        """
        if operation not in OPERATIONS:
            raise ValueError(f"{operation!r} is none of {', '.join(OPERATIONS)}")
        if applied and operation == "poll":
            raise ValueError("a poll that fails takes no effect: a client keeps its position")
        raised = error() if isinstance(error, type) else error
        self._due[operation].extend([FakeFault(raised, applied)] * times)

    def take(self, operation: str) -> FakeFault | None:
        """Remove and return the fault for this call, if any."""
        due = self._due[operation]
        return due.popleft() if due else None

    def raise_next(self, operation: str) -> None:
        """Raise the error for this call, if any."""
        if (fault := self.take(operation)) is not None:
            raise fault.error

    def pending(self) -> dict[str, int]:
        """Return the number of remaining faults by operation."""
        return {operation: len(due) for operation, due in self._due.items() if due}

    def clear(self) -> None:
        """Remove all faults."""
        self._due.clear()


class SentCommit:
    """An asynchronous commit. It arrives at once, or with ``FakeKafka.holds_commits`` when a test calls ``arrive``."""

    def __init__(self, cluster: FakeBroker, sender: object, request: Callable[[], None], answered: Answered) -> None:
        self.sender = sender
        self._cluster, self._request, self._answered = cluster, request, answered
        cluster.sent_commits.append(self)
        if not cluster.holds_commits:
            self.arrive()

    def arrive(self, error: errors.KafkaError | None = None, *, applied: bool = True) -> None:
        """Reach the coordinator; the sender gets the answer in its next call.

        Args:
            error: the answer, instead of the coordinator's.
            applied: whether the commit takes effect despite the error.
        """
        self._cluster.sent_commits.remove(self)
        fault = self._cluster.faults.take("commit_async")
        if error is None and fault is not None:
            error, applied = fault.error, fault.applied
        found: errors.KafkaError | None = None
        if not self._cluster.coordinates:
            found = errors.CoordinatorNotAvailableError()
        elif error is None or applied:
            try:
                self._request()
            except errors.KafkaError as refused:
                found = refused
        self._answered(error or found)


class FakeBroker:
    """The state of a :class:`~downspout.testing.FakeKafka`, with the same arguments."""

    def __init__(self, name: str = "kafka", clock: Clock | None = None, *, cooperative: bool = False) -> None:
        self.name = name
        self.clock = clock if clock is not None else VirtualClock()
        self.faults = FakeFaults()
        self.acks_after_s = 0.0  # Delay between a send and the log, unless a flush ends it
        self.holds_commits = False  # Keep asynchronous commits in flight until a test lets them arrive
        self.sent_commits: list[SentCommit] = []
        """Asynchronous commits in flight, in the order of sending."""
        self.refuses: Callable[[Any], BaseException | None] | None = None
        """Returns the brokers' error for a record, or None."""
        self.transactional: dict[str, Any] = {}  # The newest producer of each transactional id
        self.is_up = True
        self.has_coordinator = True
        self.leaderless: set[TopicPartition] = set()
        """Partitions without a leader: consumers cannot read them or learn their ends, and producers get no answer.
        :meth:`produce` still works."""
        self._cooperative = cooperative
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, FakeGroup] = {}
        self._created = 0
        self._transactions = 0
        self._round_robin = 0

    @property
    def bootstrap(self) -> str:
        """The value for ``kafka.bootstrap``."""
        return f"fake://{self.name}"

    # --- topics ---

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; after :meth:`delete_topic` it has a new id and starts at offset 0."""
        if topic in self._topics:
            raise errors.TopicAlreadyExistsError(topic)
        self._created += 1
        identity = topic_id(f"{self.name}/{topic}/{self._created}")
        logs = [PartitionLog(topic, number) for number in range(partitions)]
        self._topics[topic] = Topic(topic, identity, logs, dict(config or {}))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, its records and the commits of all groups for it."""
        del self._topics[topic]
        for group in self._groups.values():
            for partition in [tp for tp in group.offsets if tp.topic == topic]:
                del group.offsets[partition]

    def add_partitions(self, topic: str, total: int) -> None:
        """Increase the number of partitions to ``total``."""
        logs = self._topics[topic].logs
        logs.extend(PartitionLog(topic, number) for number in range(len(logs), total))

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topics)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the topic's partitions; empty if it does not exist."""
        return self._topics[topic].partitions if topic in self._topics else []

    def topic_id(self, topic: str) -> str:
        """Return the topic's id; empty if it does not exist."""
        return self._topics[topic].id if topic in self._topics else ""

    def topic(self, name: str) -> Topic | None:
        """Return a topic, or None."""
        return self._topics.get(name)

    def find_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return a partition's log, or None."""
        topic = self._topics.get(partition.topic)
        return topic.logs[partition.partition] if topic and partition.partition < len(topic.logs) else None

    def log(self, partition: TopicPartition) -> PartitionLog:
        """Return a partition's log.

        Raises:
            KafkaTimeoutError: there is none; a real client retries until it times out.
        """
        if (found := self.find_log(partition)) is None:
            raise errors.KafkaTimeoutError(f"no such partition: {partition}")
        return found

    def led_log(self, partition: TopicPartition) -> PartitionLog:
        """Return a partition's log from its leader.

        Raises:
            KafkaTimeoutError: no such partition, or no leader.
        """
        if partition in self.leaderless:
            raise errors.KafkaTimeoutError(f"no leader: {partition}")
        return self.log(partition)

    # --- records ---

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Append one record and return its offset; create a missing topic with one partition.

        Without ``partition``, the key decides like kafka-python's default partitioner; without a key, in turn.
        """
        if topic not in self._topics:
            self.create_topic(topic)
        where = self._topics[topic].logs[self._choose(topic, key) if partition is None else partition]
        stamp = int(self.clock.wall() * 1000) if timestamp_ms is None else timestamp_ms
        return where.append(key, value, headers, stamp)

    def _choose(self, topic: str, key: bytes | None) -> int:
        count = len(self._topics[topic].logs)
        if key is not None:
            return partition_of_key(key, count)
        self._round_robin += 1
        return (self._round_robin - 1) % count

    def transaction(self) -> Transaction:
        """Begin a transaction: ``send`` in it, then ``commit`` or ``abort`` it."""
        self._transactions += 1

        def log_of(topic: str, partition: int) -> PartitionLog:
            if topic not in self._topics:
                self.create_topic(topic)
            return self.log(TopicPartition(topic, partition))

        return Transaction(self._transactions, log_of)

    def gap(self, topic: str, partition: int = 0, count: int = 1) -> None:
        """Leave a gap of ``count`` offsets at the end of the log."""
        self.log(TopicPartition(topic, partition)).append_gap(count)

    def compact(self, topic: str, partition: int = 0, *, keep: Collection[int] | None = None) -> None:
        """Compact the log: keep the last record of each key, or only the offsets in ``keep``."""
        log = self.log(TopicPartition(topic, partition))
        if keep is None:
            log.compact()
        else:
            log.remove(set(range(log.start, log.end)) - set(keep))

    def remove_offsets(self, topic: str, partition: int, offsets: Iterable[int]) -> None:
        """Remove records and leave gaps; keep the start of the log."""
        self.log(TopicPartition(topic, partition)).remove(offsets)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of the log to ``before``, as DeleteRecords does; beyond the end that is an error."""
        log = self.log(TopicPartition(topic, partition))
        if before > log.end:
            raise errors.OffsetOutOfRangeError(f"{topic}[{partition}] ends at {log.end}: {before}")
        self.run_remote("delete_records", lambda: log.delete_before(before))

    def retain(self, topic: str, retention_ms: int) -> None:
        """Delete older records from the start of each log, like retention by time."""
        oldest = int(self.clock.wall() * 1000) - retention_ms
        for partition in self.partitions(topic):
            log = self.log(partition)
            young = log.first_since(oldest, committed_only=False)
            log.delete_before(log.end if young is None else young)

    def damage(self, topic: str, partition: int, start: int, end: int, *, size: int | None = None) -> None:
        """Damage a batch with these offsets; with ``size``, make the record at ``start`` that large instead."""
        tp = TopicPartition(topic, partition)
        why = "its checksum does not match its bytes" if size is None else f"a record of {size:,} bytes"
        self.log(tp).damaged.append(Unreadable(tp, start, end, why, size))

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Truncate the log, like an unclean leader election."""
        self.log(TopicPartition(topic, partition)).truncate(end)

    def records(self, topic: str, partition: int | None = None) -> list[port.Record]:
        """Return the topic's records for a read_committed reader, partition by partition."""
        wanted = [tp for tp in self.partitions(topic) if partition in (None, tp.partition)]
        return [record for tp in wanted for record in self.log(tp).visible()]

    # --- groups ---

    def group(self, name: str) -> FakeGroup:
        """Return a group; make it on first use."""
        if name not in self._groups:
            self._groups[name] = FakeGroup(name, self._partitions_of, self._cooperative, self.clock.wall)
        return self._groups[name]

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all commits of a group."""
        return dict(self.group(group).offsets)

    def commits(self, group: str) -> list[AcceptedCommit]:
        """Return every accepted commit in order."""
        return list(self.group(group).history)

    def expire_members(self, group: str) -> None:
        """Expire the sessions of all members; each learns it by its next heartbeat."""
        for member in list(self.group(group).members):
            self.group(group).leave(member, self.clock.monotonic())

    def rebalance(self, group: str) -> None:
        """Start a rebalance: the coordinator asks all members to rejoin."""
        self.group(group).prepare(self.clock.monotonic())

    def tick(self) -> None:
        """Advance the coordinators to the current time; every call of a consumer does it."""
        if self.coordinates:
            for group in self._groups.values():
                group.tick(self.clock.monotonic())

    def _partitions_of(self, topics: Collection[str]) -> dict[str, list[TopicPartition]]:
        return {topic: self.partitions(topic) for topic in sorted(topics) if topic in self._topics}

    # --- faults ---

    def broker_down(self) -> None:
        """Make all brokers unreachable: polls return nothing, other calls time out, no session ends."""
        self.is_up = False

    def broker_up(self) -> None:
        """Be reachable again; every session restarts, like after a move of the coordinator."""
        self.is_up = True
        self._sessions_anew()

    @property
    def coordinates(self) -> bool:
        """Whether the group coordinator answers."""
        return self.is_up and self.has_coordinator

    def coordinator_down(self) -> None:
        """Stop the group coordinator: polls of members return nothing, its operations time out."""
        self.has_coordinator = False

    def coordinator_up(self) -> None:
        """Start a new coordinator with all commits; every session restarts."""
        self.has_coordinator = True
        self._sessions_anew()

    def _sessions_anew(self) -> None:
        now = self.clock.monotonic()
        for group in self._groups.values():
            for member in group.members.values():
                member.polled_at = now
                member.silent_since = None if member.silent_since is None else now

    def run_remote(self, operation: str, action: Callable[[], T]) -> T:
        """Run a client's request, with its fault if any."""
        fault = self.faults.take(operation)
        if fault is not None and not fault.applied:
            raise fault.error
        if not (self.coordinates if operation in COORDINATED else self.is_up):
            raise errors.KafkaTimeoutError(f"{operation}: {self.bootstrap} is down")
        answer = action()
        if fault is not None:
            raise fault.error
        return answer

    def held_commits(self, group: FakeGroup) -> dict[TopicPartition, str]:
        """Return the partitions whose commits are blocked by open transactions, with the transactional ids."""
        return {tp: name for name, each in self.transactional.items() for tp in each.held(group)}
