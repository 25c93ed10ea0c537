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

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.clock import Clock
from downspout.kafka import clusters, port
from downspout.kafka.describing import MISSING, NO_LEADER
from downspout.kafka.partitioners import Choose, partition_of_key
from downspout.kafka.unreadable import Unreadable
from downspout.testing.clock import VirtualClock
from downspout.testing.fake_commits import SentCommit
from downspout.testing.fake_consumer import FakeConsumer
from downspout.testing.fake_faults import Faults
from downspout.testing.fake_group import Commit, Group
from downspout.testing.fake_log import Header, PartitionLog, Topic, Transaction, topic_id
from downspout.testing.fake_producer import FakeProducer
from downspout.testing.fake_transactions import FakeTransactionalProducer

__all__ = ["FakeConsumer", "FakeKafka", "FakeProducer", "Faults"]

T = TypeVar("T")

COORDINATED = frozenset(
    {"commit", "committed", "group_offsets", "group_members", "has_joined", "delete_offsets", "delete_groups"}
)
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
        self.acks_after_s = 0.0  # How long a record is on its way from a producer to the log, unless it is flushed
        self.holds_commits = False  # Asynchronous commits stay on their way until a test lets them arrive
        self.sent_commits: list[SentCommit] = []
        """Asynchronous commits that are on their way, in the order in which they were sent."""
        self.refuses: Callable[[Any], BaseException | None] | None = None
        """Says why the brokers refuse a record that was sent; None: they take it."""
        self.transactional: dict[str, FakeTransactionalProducer] = {}  # The newest producer of each transactional id
        self.is_up = True
        self.has_coordinator = True
        self.leaderless: set[TopicPartition] = set()
        """Partitions without a leader: they are not read, nor is known where their logs end, and no producer has an
        answer from them; :meth:`produce` puts records there all the same."""
        self._cooperative = cooperative
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._created = 0
        self._transactions = 0
        self._round_robin = 0
        clusters.register(self.bootstrap, self)

    @property
    def bootstrap(self) -> str:
        """What to give as ``kafka.bootstrap``."""
        return f"fake://{self.name}"

    def close(self) -> None:
        """Answer for ``fake://NAME`` no longer."""
        clusters.unregister(self.bootstrap)

    def __enter__(self) -> FakeKafka:
        return self

    def __exit__(self, *_: object) -> None:
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

    def producer(
        self, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> FakeProducer:
        """Return a producer."""
        return FakeProducer(self, client or {}, partitioner)

    def transactional_producer(
        self, transactional_id: str, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> FakeTransactionalProducer:
        """Return a transactional producer; an older one with this id is fenced, and its transaction aborted."""
        return FakeTransactionalProducer(self, transactional_id, client or {}, partitioner)

    def ensure_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int | None = None
    ) -> bool:
        """Create the topic where it does not exist; return whether it was created."""

        def create() -> bool:
            missing = topic not in self._topics
            if missing:
                self.create_topic(topic, partitions, config)
            return missing

        return self.run_remote("ensure_topic", create)

    def open_transactions(self, group: str) -> list[port.OpenTransaction]:
        """Return the transactions that hold back what a group commits."""
        held = self.run_remote("open_transactions", lambda: self.held_commits(self.group(group)))
        return [
            port.OpenTransaction(name, self.transactional[name].timeout_ms, False)
            for name in sorted(set(held.values()))
        ]

    def held_commits(self, group: Group) -> dict[TopicPartition, str]:
        """Return the partitions whose commits open transactions hold back, and the transactional id of each."""
        return {tp: name for name, each in self.transactional.items() for tp in each.held(group)}

    def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all that a group has committed, as an admin client is told it."""
        return self.run_remote("group_offsets", lambda: self.committed(group))

    def group_members(self, group: str) -> list[str]:
        """Return the names of a group's live members."""
        self.tick()
        found = self._groups[group].members.values() if group in self._groups else ()
        return self.run_remote("group_members", lambda: sorted(member.instance or member.id for member in found))

    def describe_group(self, group: str) -> port.GroupDescription | None:
        """Return a group's state, coordinator and live members; None where there was never such a group."""
        self.tick()
        found = self._groups.get(group)

        def answer() -> port.GroupDescription | None:
            if found is None or not (found.members or found.offsets):
                return None
            owned = found.assignment if not found.preparing else {}
            members = [
                port.GroupMember(each.instance or each.id, "kafka-python", "127.0.0.1", sorted(owned.get(each.id, ())))
                for each in found.members.values()
            ]
            state = "Empty" if not members else "PreparingRebalance" if found.preparing else "Stable"
            return port.GroupDescription(state, f"{self.name}:0 (node 0)", sorted(members))

        return self.run_remote("group_members", answer)

    def describe_logs(self, topics: Collection[str]) -> dict[str, port.TopicState]:
        """Return where the logs of topics begin and end; a partition of ``leaderless`` has no answer."""

        def state(topic: str) -> port.TopicState:
            if topic not in self._topics:
                return port.TopicState("", {}, MISSING)
            logs = {
                log.partition.partition: port.LogState(None, None, None, NO_LEADER)
                if log.partition in self.leaderless
                else port.LogState(log.start, log.end, log.readable_end(True))
                for log in self._topics[topic].logs
            }
            return port.TopicState(self.topic_id(topic), logs)

        return self.run_remote("end_offsets", lambda: {topic: state(topic) for topic in sorted(topics)})

    def has_joined(self, group: str) -> bool:
        """Return whether a member has ever joined the group."""
        return self.run_remote("has_joined", lambda: group in self._groups and self._groups[group].generation > 0)

    def commit_ages(self, group: str, within_s: float) -> dict[TopicPartition, float]:
        """Return the ages in seconds of the commits that are younger than that."""
        now = self.clock.wall()
        found = {commit.partition: now - commit.at for commit in self.group(group).history}
        return self.run_remote("commit_ages", lambda: {tp: age for tp, age in found.items() if age <= within_s})

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Take static members, by their instances, out of a group."""
        known = self.group(group)
        for member in [member for member in known.members.values() if member.instance in names]:
            known.leave(member.id, self.clock.monotonic())

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete what a group has committed for these."""

        def delete() -> None:
            for tp in partitions:
                self.group(group).offsets.pop(tp, None)

        self.run_remote("delete_offsets", delete)

    def delete_groups(self, groups: Collection[str]) -> list[str]:
        """Delete groups with their commits; return those that have members still, and so stay."""
        self.tick()
        left = [group for group in groups if group in self._groups and self._groups[group].members]

        def delete() -> list[str]:
            for group in set(groups).difference(left):
                self._groups.pop(group, None)
            return left

        return self.run_remote("delete_groups", delete)

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
        why = "its check sum is not that of its bytes" if size is None else f"a record of {size:,} bytes"
        self.log(tp).damaged.append(Unreadable(tp, start, end, why, size))

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
            self._groups[name] = Group(name, self._partitions_of, self._cooperative, self.clock.wall)
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
