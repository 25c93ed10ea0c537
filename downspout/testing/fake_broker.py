"""The broker's side of the fake Kafka: its topics and their logs, its groups, and the failures that are due.

Clients of the fake Kafka (in ``fake_kafka`` and ``fake_producer``) know this class; ``FakeKafka`` makes them.
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
"""What the group coordinator is asked; the rest is the business of other brokers."""
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
"""Methods of the port that can be made to fail."""


@dataclass(frozen=True)
class FakeFault:
    """One failure to come; ``applied`` means that the operation took effect and only its answer was lost."""

    error: Exception
    applied: bool = False


class FakeFaults:
    """Failures as data: what the next calls of an operation will run into."""

    def __init__(self) -> None:
        self._due: dict[str, deque[FakeFault]] = defaultdict(deque)

    def fail_next(
        self, operation: str, error: Exception | type[Exception], times: int = 1, *, applied: bool = False
    ) -> None:
        """Let the next ``times`` calls of ``operation`` raise ``error``.

        Args:
            operation: one of ``OPERATIONS``.
            error: usually one of ``kafka.errors``. That of ``commit_async`` is its answer.
            times: how many calls.
            applied: the operation takes effect all the same, and only its answer is lost (not for ``poll``).
        """
        if operation not in OPERATIONS:
            raise ValueError(f"{operation!r} is none of {', '.join(OPERATIONS)}")
        if applied and operation == "poll":
            raise ValueError("a poll that fails takes no effect: a client keeps its position")
        raised = error() if isinstance(error, type) else error
        self._due[operation].extend([FakeFault(raised, applied)] * times)

    def take(self, operation: str) -> FakeFault | None:
        """Return the fault that is due for this call, if any, and count it as used."""
        due = self._due[operation]
        return due.popleft() if due else None

    def raise_next(self, operation: str) -> None:
        """Raise the error that is due for this call, if any."""
        if (fault := self.take(operation)) is not None:
            raise fault.error

    def pending(self) -> dict[str, int]:
        """Return how many faults have not been met yet, by operation."""
        return {operation: len(due) for operation, due in self._due.items() if due}

    def clear(self) -> None:
        """Forget all that are due."""
        self._due.clear()


class SentCommit:
    """An asynchronous commit. It arrives at once, unless ``FakeKafka.holds_commits``: then a test says when."""

    def __init__(self, cluster: FakeBroker, sender: object, request: Callable[[], None], answered: Answered) -> None:
        self.sender = sender
        self._cluster, self._request, self._answered = cluster, request, answered
        cluster.sent_commits.append(self)
        if not cluster.holds_commits:
            self.arrive()

    def arrive(self, error: errors.KafkaError | None = None, *, applied: bool = True) -> None:
        """Reach the coordinator; the sender hears of it in its next call.

        Args:
            error: what it hears, instead of what the coordinator says.
            applied: whether the commit takes effect all the same.
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
    """The state of a :class:`~downspout.testing.FakeKafka`; arguments as there."""

    def __init__(self, name: str = "kafka", clock: Clock | None = None, *, cooperative: bool = False) -> None:
        self.name = name
        self.clock = clock if clock is not None else VirtualClock()
        self.faults = FakeFaults()
        self.acks_after_s = 0.0  # How long a record is on its way from a producer to the log, unless it is flushed
        self.holds_commits = False  # Asynchronous commits stay on their way until a test lets them arrive
        self.sent_commits: list[SentCommit] = []
        """Asynchronous commits that are on their way, in the order in which they were sent."""
        self.refuses: Callable[[Any], BaseException | None] | None = None
        """Says why the brokers refuse a record that was sent; None: they take it."""
        self.transactional: dict[str, Any] = {}  # The newest producer of each transactional id
        self.is_up = True
        self.has_coordinator = True
        self.leaderless: set[TopicPartition] = set()
        """Partitions without a leader: they are not read, nor is known where their logs end, and no producer has an
        answer from them; :meth:`produce` puts records there all the same."""
        self._cooperative = cooperative
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, FakeGroup] = {}
        self._created = 0
        self._transactions = 0
        self._round_robin = 0

    @property
    def bootstrap(self) -> str:
        """What to give as ``kafka.bootstrap``."""
        return f"fake://{self.name}"

    # --- topics ---

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; created again after :meth:`delete_topic`, it has another id and starts at offset 0."""
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
        """Let the topic have ``total`` partitions."""
        logs = self._topics[topic].logs
        logs.extend(PartitionLog(topic, number) for number in range(len(logs), total))

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topics)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the topic's partitions; none where it does not exist."""
        return self._topics[topic].partitions if topic in self._topics else []

    def topic_id(self, topic: str) -> str:
        """Return the topic's id; empty where it does not exist."""
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
            KafkaTimeoutError: there is none; a real client asks again until its time is over.
        """
        if (found := self.find_log(partition)) is None:
            raise errors.KafkaTimeoutError(f"no such partition: {partition}")
        return found

    def led_log(self, partition: TopicPartition) -> PartitionLog:
        """Return a partition's log, which is asked of its leader.

        Raises:
            KafkaTimeoutError: there is no such partition, or it has no leader.
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
        """Append one record at once and return its offset; the topic is created with one partition where it is missing.

        Without ``partition`` the key decides as in kafka-python's default partitioner; without a key they take turns.
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
        """Let ``count`` offsets at the end of the log hold nothing."""
        self.log(TopicPartition(topic, partition)).append_gap(count)

    def compact(self, topic: str, partition: int = 0, *, keep: Collection[int] | None = None) -> None:
        """Compact the log now: keep the last record of each key, or the offsets in ``keep`` alone."""
        log = self.log(TopicPartition(topic, partition))
        if keep is None:
            log.compact()
        else:
            log.remove(set(range(log.start, log.end)) - set(keep))

    def remove_offsets(self, topic: str, partition: int, offsets: Iterable[int]) -> None:
        """Take records away and leave holes; the start of the log stays."""
        self.log(TopicPartition(topic, partition)).remove(offsets)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of the log to ``before``, as DeleteRecords does; beyond the end that is an error."""
        log = self.log(TopicPartition(topic, partition))
        if before > log.end:
            raise errors.OffsetOutOfRangeError(f"{topic}[{partition}] ends at {log.end}: {before}")
        self.run_remote("delete_records", lambda: log.delete_before(before))

    def retain(self, topic: str, retention_ms: int) -> None:
        """Delete from the start of each log what is older than that, as retention by time does."""
        oldest = int(self.clock.wall() * 1000) - retention_ms
        for partition in self.partitions(topic):
            log = self.log(partition)
            young = log.first_since(oldest, committed_only=False)
            log.delete_before(log.end if young is None else young)

    def damage(self, topic: str, partition: int, start: int, end: int, *, size: int | None = None) -> None:
        """Let a batch with these offsets be damaged; with ``size``, a record at ``start`` be that large, unpacked."""
        tp = TopicPartition(topic, partition)
        why = "its checksum does not match its bytes" if size is None else f"a record of {size:,} bytes"
        self.log(tp).damaged.append(Unreadable(tp, start, end, why, size))

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Cut the end of the log off, as an unclean leader election does."""
        self.log(TopicPartition(topic, partition)).truncate(end)

    def records(self, topic: str, partition: int | None = None) -> list[port.Record]:
        """Return what a read_committed reader sees of the topic, partition by partition."""
        wanted = [tp for tp in self.partitions(topic) if partition in (None, tp.partition)]
        return [record for tp in wanted for record in self.log(tp).visible()]

    # --- groups ---

    def group(self, name: str) -> FakeGroup:
        """Return a group's coordinator; it is made on first use."""
        if name not in self._groups:
            self._groups[name] = FakeGroup(name, self._partitions_of, self._cooperative, self.clock.wall)
        return self._groups[name]

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all that a group has committed."""
        return dict(self.group(group).offsets)

    def commits(self, group: str) -> list[AcceptedCommit]:
        """Return every commit that was accepted, in order."""
        return list(self.group(group).history)

    def expire_members(self, group: str) -> None:
        """Throw all members out, as if their sessions had run out; each learns it by its next heartbeat."""
        for member in list(self.group(group).members):
            self.group(group).leave(member, self.clock.monotonic())

    def rebalance(self, group: str) -> None:
        """Let the coordinator ask all members to join again."""
        self.group(group).prepare(self.clock.monotonic())

    def tick(self) -> None:
        """Let the coordinators look at the clock; every call of a consumer does it."""
        if self.coordinates:
            for group in self._groups.values():
                group.tick(self.clock.monotonic())

    def _partitions_of(self, topics: Collection[str]) -> dict[str, list[TopicPartition]]:
        return {topic: self.partitions(topic) for topic in sorted(topics) if topic in self._topics}

    # --- faults ---

    def broker_down(self) -> None:
        """Let nothing be reachable: polls find nothing, other calls time out, no session ends."""
        self.is_up = False

    def broker_up(self) -> None:
        """Be reachable again; every session starts anew, as it does when a coordinator moves."""
        self.is_up = True
        self._sessions_anew()

    @property
    def coordinates(self) -> bool:
        """Whether the group coordinator answers."""
        return self.is_up and self.has_coordinator

    def coordinator_down(self) -> None:
        """Let the group coordinator be on the move: polls of members find nothing, what asks it times out."""
        self.has_coordinator = False

    def coordinator_up(self) -> None:
        """Let a broker have taken the groups over: what was committed is there, and every session starts anew."""
        self.has_coordinator = True
        self._sessions_anew()

    def _sessions_anew(self) -> None:
        now = self.clock.monotonic()
        for group in self._groups.values():
            for member in group.members.values():
                member.polled_at = now
                member.silent_since = None if member.silent_since is None else now

    def run_remote(self, operation: str, action: Callable[[], T]) -> T:
        """Run what a client would send to the broker, with the fault that is due for it."""
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
        """Return the partitions whose commits open transactions hold back, and the transactional id of each."""
        return {tp: name for name, each in self.transactional.items() for tp in each.held(group)}
