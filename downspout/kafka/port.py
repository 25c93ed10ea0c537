"""The consumer port: all that the spout needs of Kafka, and nothing else.

Two things stand behind it, under one contract suite (``tests/kafka/contract.py``): the real client
(``downspout.kafka.client``) and ``downspout.testing.FakeKafka``. Structures are kafka-python's own, so
the real client hands its records through without copying them.

A cluster is named by its bootstrap string. A string that was given to :func:`register` (the fake does that with
``fake://name``) is answered by that cluster; any other goes to real brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.config import resolve_client

__all__ = [
    "Cluster",
    "ConsumerPort",
    "OffsetAndMetadata",
    "ProducerPort",
    "RebalanceListener",
    "Record",
    "TopicPartition",
    "cluster_for",
    "is_registered",
    "register",
    "unregister",
]


class Record(Protocol):
    """One record as it was read; kafka-python's ConsumerRecord has this shape."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 where there is none."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class RebalanceListener(Protocol):
    """Receives rebalance facts, possibly on the client's own thread in the middle of ``poll``: record, do not act."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """These are ours from now on. Eager: the full set. Cooperative: the increment."""

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These are taken away, in order. Eager: all of them, before the new assignment."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """These were somebody else's already when we learned of it."""


class ConsumerPort(Protocol):
    """A consumer in a group. Errors are kafka-python's (``kafka.errors``); their ``retriable`` tells which may pass."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group for these topics at the next poll."""

    def subscribe_pattern(self, pattern: str, listener: RebalanceListener) -> None:
        """Join the group for topics whose whole name matches; new ones are picked up as they appear."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these without any group membership; commits still go to the group, where there is one."""

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return up to ``max_records`` in offset order per partition, waiting at most ``timeout_ms`` for the first."""

    def assignment(self) -> frozenset[TopicPartition]:
        """Return what is assigned now."""

    def rejoin_pending(self) -> bool:
        """Return whether the next poll may revoke partitions: a planned hand-over waits for us."""

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset that would be read."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``; records that were fetched but not returned are dropped."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until resumed; the position stays."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Undo ``pause``."""

    def paused(self) -> frozenset[TopicPartition]:
        """Return what is paused."""

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit and wait for the broker's word. Not callable from a rebalance listener."""

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Send a commit and do not wait."""

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's commits with their metadata. Not callable from a rebalance listener."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the lowest offset that is still in each log."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log (read_committed: the last stable offset)."""

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the first offset with a timestamp at or after the one given; None where there is none."""

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of the log as of the last fetch, without asking; None before the first."""

    def take_aborted(self) -> Sequence[tuple[TopicPartition, int, int]]:
        """Return what reading has passed since the last call because its transaction was aborted, read_committed alone.

        Each entry is a partition, the offset of the first of some records, and how many they are. What is read again
        is told again.
        """

    def partitions_for(self, topic: str) -> frozenset[int]:
        """Return the topic's partitions; empty where it does not exist."""

    def topic_names(self) -> frozenset[str]:
        """Return the names of all topics that are not Kafka's own."""

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of the topic; empty where unknown."""

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return Kafka's ids of several topics, in one request; empty where unknown."""

    def close(self, leave_group: bool = True) -> None:
        """Stop without committing anything. A static member that does not leave keeps its place for its session."""


class ProducerPort(Protocol):
    """What dead letters and publishing need."""

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue one record; errors surface here, in ``flush`` or in ``acknowledged``."""

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all queued records are acknowledged by all replicas; raise if one was not."""

    def acknowledged(self) -> bool:
        """Return whether all queued records are acknowledged by all replicas, without waiting; raise if one was not."""

    def close(self) -> None:
        """Release the client."""


class Cluster(Protocol):
    """A Kafka cluster: makes consumers and producers, and answers questions about topics.

    ``client`` holds kafka-python properties in its spelling (``session_timeout_ms=10_000``).
    """

    def consumer(
        self,
        *,
        group: str | None,
        instance_id: str | None = None,
        client: Mapping[str, Any] | None = None,
        auto_commit_ms: int | None = None,
        columns: bool = False,
    ) -> ConsumerPort:
        """Return a consumer; ``group=None`` for reading by ``assign`` alone.

        It commits only when told; with ``auto_commit_ms`` also by itself, so often: all that its polls have returned.
        With ``columns`` the records of a partition come as a :class:`~downspout.kafka.columns.RecordColumns`.
        """

    def producer(self, *, client: Mapping[str, Any] | None = None) -> ProducerPort:
        """Return an idempotent producer with acks=all."""

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        """Create the topic where it does not exist; return whether it was created."""

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition's log to ``before``: the records below are gone for good."""

    def group_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return all that a consumer group has committed; empty where there is no such group."""

    def group_members(self, group: str) -> Sequence[str]:
        """Return the names of a group's live members: static ones by their instance, others by their id."""


_registered: dict[str, Cluster] = {}


def register(bootstrap: str, cluster: Cluster) -> None:
    """Let ``cluster`` answer for ``bootstrap`` in this process."""
    _registered[bootstrap] = cluster


def unregister(bootstrap: str) -> None:
    """Undo :func:`register`."""
    _registered.pop(bootstrap, None)


def is_registered(bootstrap: str) -> bool:
    """Return whether a cluster of this process answers for ``bootstrap``."""
    return bootstrap in _registered


def cluster_for(bootstrap: str, client: Mapping[str, Any] | None = None) -> Cluster:
    """Return the cluster behind a bootstrap string: a registered one, else real brokers.

    ``embedded`` is the broker that `downspout kafka start` runs; what it needs to let us in is known then.

    Args:
        bootstrap: ``host:port,host:port``, ``embedded``, or a registered name.
        client: kafka-python properties. Those that say how to connect (TLS, SASL, proxies) hold for all that the
            cluster makes, its producers included; others are for whoever makes a consumer.

    Raises:
        BrokerError: nothing answers there, or does not let us in.
        ConfigError: the properties make no sense.
    """
    if (known := _registered.get(bootstrap)) is not None:
        return known
    if bootstrap == "embedded":
        from downspout.kafka.embedded import find_access

        bootstrap, own = find_access()
        client = {**resolve_client(own), **(client or {})}
    from downspout.kafka.client import KafkaCluster, connection_properties

    return KafkaCluster(bootstrap, connection_properties(client or {}))
