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

from collections.abc import Collection, Mapping
from typing import Any

from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.clock import Clock
from downspout.kafka import clusters, port
from downspout.kafka.describing import MISSING, NO_LEADER
from downspout.kafka.partitioners import Choose
from downspout.testing.fake_broker import FakeBroker
from downspout.testing.fake_consumer import FakeConsumer
from downspout.testing.fake_producer import FakeProducer, FakeTransactionalProducer


class FakeKafka(FakeBroker):
    """A Kafka cluster in memory; a :class:`~downspout.kafka.port.Cluster`.

    Args:
        name: it is reached as ``fake://NAME`` until :meth:`close`, or the end of the ``with`` block.
        clock: what time is; the default is a :class:`~downspout.testing.VirtualClock`, on which a poll that finds
            nothing takes its time-out and no real time.
        cooperative: groups rebalance incrementally (KIP-429) instead of revoking everything first.
    """

    def __init__(self, name: str = "kafka", clock: Clock | None = None, *, cooperative: bool = False) -> None:
        super().__init__(name, clock, cooperative=cooperative)
        clusters.register(self.bootstrap, self)

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
