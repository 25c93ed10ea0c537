"""A Kafka in memory for tests: deterministic, instant, and able to fail on command.

It stands behind the same port as the real client (``downspout.kafka.port``) and passes the same contract suite. It is
registered under ``fake://NAME``, so a topology whose ``kafka.bootstrap`` says so reads from it:

>>> with FakeKafka("doc") as kafka:
...     kafka.create_topic("orders", partitions=2)
...     offset = kafka.produce("orders", b"first", key=b"k", partition=1)
...     consumer = kafka.consumer(group="g")
...     consumer.assign([TopicPartition("orders", 1)])
...     [record.value for records in consumer.poll(0, 10).values() for record in records]
[b'first']

What it does not know: replication, leaders, quotas, ACLs, time spent on the network, and records that a client has
fetched and not returned yet (a real one returns them even after they were deleted). It is for one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from kafka import errors
from kafka.partitioner.default import murmur2
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.clock import Clock
from downspout.kafka import port
from downspout.testing.clock import VirtualClock
from downspout.testing.fake_consumer import FakeConsumer
from downspout.testing.fake_faults import Faults
from downspout.testing.fake_group import Commit, Group
from downspout.testing.fake_log import Header, PartitionLog, Topic, Transaction, topic_id

__all__ = ["FakeConsumer", "FakeKafka", "FakeProducer", "Faults"]

T = TypeVar("T")

COORDINATED = frozenset({"commit", "committed", "group_offsets", "group_members"})
"""What the group coordinator is asked; the rest is the business of other brokers."""


class FakeKafka:
    """A Kafka cluster in memory; a :class:`~downspout.kafka.port.Cluster`.

    Args:
        name: it is reached as ``fake://NAME`` until :meth:`close`, or the end of the ``with`` block.
        clock: what time is; the default is a :class:`~downspout.testing.VirtualClock`, on which a poll that finds
            nothing takes its time-out and no real time.
        cooperative: groups rebalance incrementally (KIP-429) instead of revoking everything first.
    """

    def __init__(self, name: str = "kafka", clock: Clock | None = None, *, cooperative: bool = False) -> None:
        self.name = name
        self.clock = clock if clock is not None else VirtualClock()
        self.faults = Faults()
        self.acks_after_s = 0.0
        """How long a record is on its way from a producer to the log, unless it is flushed."""
        self.is_up = True
        self.has_coordinator = True
        self._cooperative = cooperative
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._created = 0
        self._transactions = 0
        self._round_robin = 0
        port.register(self.bootstrap, self)

    @property
    def bootstrap(self) -> str:
        """What to give as ``kafka.bootstrap``."""
        return f"fake://{self.name}"

    def close(self) -> None:
        """Answer for ``fake://NAME`` no longer."""
        port.unregister(self.bootstrap)

    def __enter__(self) -> FakeKafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the Cluster port ---

    def consumer(
        self,
        *,
        group: str | None,
        instance_id: str | None = None,
        client: Mapping[str, Any] | None = None,
        auto_commit_ms: int | None = None,
        columns: bool = False,
    ) -> FakeConsumer:
        """Return a consumer that commits only when told, and with ``auto_commit_ms`` also by itself."""
        return FakeConsumer(self, group, instance_id, client or {}, auto_commit_ms, columns)

    def producer(self, *, client: Mapping[str, Any] | None = None) -> FakeProducer:
        """Return a producer."""
        return FakeProducer(self)

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        """Create the topic where it does not exist; return whether it was created."""

        def create() -> bool:
            missing = topic not in self._topics
            if missing:
                self.create_topic(topic, partitions, config)
            return missing

        return self.run_remote("ensure_topic", create)

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all that a group has committed, as an admin client is told it."""
        return self.run_remote("group_offsets", lambda: self.committed(group))

    def group_members(self, group: str) -> list[str]:
        """Return the names of a group's live members."""
        self.tick()
        found = self._groups[group].members.values() if group in self._groups else ()
        return self.run_remote("group_members", lambda: sorted(member.instance or member.id for member in found))

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
            return int((murmur2(key) & 0x7FFFFFFF) % count)
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

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Cut the end of the log off, as an unclean leader election does."""
        self.log(TopicPartition(topic, partition)).truncate(end)

    def records(self, topic: str, partition: int | None = None) -> list[port.Record]:
        """Return what a read_committed reader sees of the topic, partition by partition."""
        wanted = [tp for tp in self.partitions(topic) if partition in (None, tp.partition)]
        return [record for tp in wanted for record in self.log(tp).visible()]

    # --- groups ---

    def group(self, name: str) -> Group:
        """Return a group's coordinator; it is made on first use."""
        if name not in self._groups:
            self._groups[name] = Group(name, self._partitions_of, self._cooperative)
        return self._groups[name]

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all that a group has committed."""
        return dict(self.group(group).offsets)

    def commits(self, group: str) -> list[Commit]:
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

    def append_sent(self, record: Mapping[str, Any]) -> None:
        """Append what a producer has sent, checked as a broker checks it."""
        if record["topic"] not in self._topics:
            raise errors.UnknownTopicOrPartitionError(record["topic"])
        size = len(record["key"] or b"") + len(record["value"] or b"")
        if size > self._topics[record["topic"]].max_message_bytes:
            raise errors.MessageSizeTooLargeError(f"{size} bytes for {record['topic']}")
        self.produce(**record)


class FakeProducer:
    """A producer of a :class:`FakeKafka`: what was sent is in the log once :meth:`flush` returns, in order."""

    def __init__(self, cluster: FakeKafka) -> None:
        self._cluster = cluster
        self._queue: list[dict[str, Any]] = []
        self._sent_at = 0.0

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue one record."""
        self._cluster.faults.raise_next("send")
        self._sent_at = self._cluster.clock.monotonic()
        self._queue.append(
            {
                "topic": topic,
                "key": key,
                "value": value,
                "headers": tuple(headers),
                "partition": partition,
                "timestamp_ms": timestamp_ms,
            }
        )

    def flush(self, timeout_s: float = 30.0) -> None:
        """Append what is queued; raise if that fails (what failed is not kept, as with a real producer)."""
        queue, self._queue = self._queue, []
        if queue and self._sent_at + self._cluster.acks_after_s > self._cluster.clock.monotonic() + timeout_s:
            raise errors.KafkaTimeoutError(f"not acknowledged within {timeout_s:g} s")

        def append() -> None:
            for record in queue:
                self._cluster.append_sent(record)

        self._cluster.run_remote("flush", append)

    def acknowledged(self) -> bool:
        """Return whether all is in the log; what was sent gets there in ``acks_after_s`` seconds without a flush."""
        if self._queue:
            if self._cluster.clock.monotonic() < self._sent_at + self._cluster.acks_after_s:
                return False
            self.flush()
        return True

    def close(self) -> None:
        """Release the client."""
