"""The port to Kafka: the interface of a cluster, its consumers and its producers.

Two implementations pass one contract suite (``tests/kafka/contract.py``): the real client (``downspout.kafka.client``)
and ``downspout.testing.FakeKafka``. Structures are kafka-python's own, which saves the real client a copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.kafka.partitioners import Choose
from downspout.kafka.unreadable import Limits, Unreadable

__all__ = [
    "TOPIC_LEGAL",
    "Answered",
    "Cluster",
    "ConsumerPort",
    "Fetches",
    "Gathering",
    "GroupDescription",
    "GroupMember",
    "GroupMembership",
    "LogState",
    "OffsetAndMetadata",
    "OpenTransaction",
    "ProducerPort",
    "RebalanceHandler",
    "Record",
    "Sent",
    "TopicPartition",
    "TopicState",
    "TransactionalPort",
]

PERIOD_S = 30.0  # Mean and maximum cover the last one to two periods


class Fetches:
    """Counts answered fetch requests; times are seconds on the caller's clock.

    A consumer's object also holds one for each partition. An answer counts once for the consumer, and once for each
    partition in it.

    >>> fetches = Fetches()
    >>> fetches.answered(0.2, now=1.0)
    >>> fetches.answered(0.4, now=2.0)
    >>> fetches.calls, round(fetches.mean_s(3.0), 1), fetches.max_s(3.0), fetches.max_s(70.0)
    (2, 0.3, 0.4, 0.0)
    """

    __slots__ = ("_before", "_latest", "_since", "begin", "by_partition", "calls", "records")

    def __init__(self) -> None:
        self.calls = 0
        self.records = 0  # returned by polls
        self.begin: int | None = None  # of a partition: the lowest offset in its log, as of the last answer
        self.by_partition: dict[TopicPartition, Fetches] = {}  # of a consumer
        # Count, sum and maximum of this period and the previous one. Written by the client's thread; others read.
        self._latest: tuple[int, float, float] = (0, 0.0, 0.0)
        self._before: tuple[int, float, float] = (0, 0.0, 0.0)
        self._since = 0.0

    def of(self, partition: TopicPartition) -> Fetches:
        """Return the counts of one partition of a consumer; only the client's thread may add one."""
        found = self.by_partition.get(partition)
        if found is None:
            found = self.by_partition[partition] = Fetches()
        return found

    def answered(self, took_s: float, now: float) -> None:
        """Note an answer."""
        self._turn(now)
        self.calls += 1
        calls, total_s, longest_s = self._latest
        self._latest = calls + 1, total_s + took_s, max(longest_s, took_s)

    def mean_s(self, now: float) -> float:
        """Return the mean time of recent answers; 0: none."""
        periods = self._lately(now)
        calls = sum(calls for calls, _, _ in periods)
        return sum(total_s for _, total_s, _ in periods) / calls if calls else 0.0

    def max_s(self, now: float) -> float:
        """Return the time of the slowest recent answer; 0: none."""
        return max((longest_s for _, _, longest_s in self._lately(now)), default=0.0)

    def _lately(self, now: float) -> list[tuple[int, float, float]]:
        """Return the periods that count; read-only, because another thread writes."""
        age_s = now - self._since
        if age_s < PERIOD_S:
            return [self._latest, self._before]
        return [self._latest] if age_s < 2 * PERIOD_S else []

    def _turn(self, now: float) -> None:
        if now - self._since >= PERIOD_S:
            self._before = self._latest if now - self._since < 2 * PERIOD_S else (0, 0.0, 0.0)
            self._latest, self._since = (0, 0.0, 0.0), now


TOPIC_LEGAL = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""Matches a legal topic name."""

Answered = Callable[[KafkaError | None], None]
"""Called with the error of an asynchronous commit, or None."""


class Gathering(NamedTuple):
    """How much a broker collects before it answers a fetch, and how long it waits for that."""

    min_bytes: int
    wait_ms: int


class Record(Protocol):
    """A consumed record, in the shape of kafka-python's ConsumerRecord."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # Milliseconds since the epoch; -1: none
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class RebalanceHandler(Protocol):
    """Receives rebalance events, possibly on the client's own thread inside ``poll``: record them, do not act."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions were assigned. Eager: the full set. Cooperative: the increment."""

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions are being revoked. Eager: all of them, before the new assignment."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions may belong to another member already."""


class ConsumerPort(Protocol):
    """A consumer. Errors are kafka-python's (``kafka.errors``); those that may pass are ``retriable``."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceHandler) -> None:
        """Join the group for these topics at the next poll."""

    def subscribe_pattern(self, pattern: str, listener: RebalanceHandler) -> None:
        """Join the group for topics whose whole name matches, including new ones."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these without joining the group; commits still go to it."""

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return up to ``max_records`` in offset order per partition, waiting at most ``timeout_ms`` for the first."""

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""

    def rejoin_pending(self) -> bool:
        """Return whether the next poll may revoke partitions."""

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset to read."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at ``offset``; drop records that were fetched but not returned."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until resumed; keep the position."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Undo ``pause``."""

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit and wait for the broker's answer. Not callable from a rebalance listener.

        First wait for earlier asynchronous commits that have an ``answered``, so none arrives after this one.
        """

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Send a commit without waiting. Of two unanswered commits, either may arrive last.

        ``answered`` is called once on this thread: in this call, or in a later ``poll``, ``commit`` or
        ``commit_async``.
        """

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's commits with their metadata. Not callable from a rebalance listener.

        Raises:
            UnstableOffsetCommitError: open transactions block some; its first argument holds the partitions.
        """

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the beginning of each log."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log (read_committed: the last stable offset)."""

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the first offset with a timestamp at or after the given one; None: no such record."""

    def first_records(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return offset and timestamp in ms of the first record in each log; omit logs without records."""

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of the log as of the last fetch, without a request; None before the first."""

    def connected(self) -> bool:
        """Return whether any broker is connected and answers, without a request."""

    @property
    def fetches(self) -> Fetches:
        """Counts and times of fetches, on the monotonic clock."""

    def note_aborted(self) -> None:
        """Note the records of aborted transactions that read_committed polls skip. Before the first poll."""

    def take_aborted(self) -> Sequence[tuple[TopicPartition, int, int]]:
        """Return ranges of aborted records skipped since the last call, as partition, first offset and count.

        Records that are read again are reported again. Without :meth:`note_aborted`, empty.
        """

    def gather(self, gathering: Gathering) -> None:
        """Make brokers batch records before they answer a fetch, unless the partitions are idle."""

    def tolerate(self, limits: Limits, *, large: bool = True, corrupt: bool) -> None:
        """Note unreadable records instead of raising UnreadableBatchError. Before the first poll.

        One record with the first offset, and the readable part of the data, stands for them.

        Args:
            limits: how much may be unpacked.
            large: note records above the limit.
            corrupt: note damaged batches, and batches above the limit.
        """

    def take_unreadable(self) -> Sequence[Unreadable]:
        """Return the notes since the last call; records that are read again are noted again."""

    def partitions_for(self, topic: str) -> frozenset[int]:
        """Return the topic's partitions; empty if it does not exist."""

    def topic_names(self) -> frozenset[str]:
        """Return the names of all topics but Kafka's own."""

    def topic_id(self, topic: str) -> str:
        """Return the topic's id (base64 of its UUID); empty: unknown."""

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the ids of topics, in one request; empty: unknown."""

    def membership(self) -> GroupMembership:
        """Return this member's identity in the group."""

    def close(self, leave_group: bool = True) -> None:
        """Stop without committing.

        With ``leave_group``, others take over at once. Otherwise the group waits until the session ends: a static
        member that returns in time keeps its partitions without a rebalance.
        """


class Sent(NamedTuple):
    """The result of sending records with tokens to one partition."""

    tokens: Sequence[Any]  # Of the records, in order; None for a record without
    topic: str
    partition: int  # -1: none was chosen
    offset: int
    """Of the first record, the others follow; -1: unknown (acks=0), or refused."""
    error: BaseException | None  # The same for all of these
    since: float  # When the first record of the batch was sent, on the monotonic clock


class GroupMembership(NamedTuple):
    """A member's identity in a consumer group; a stale one is refused."""

    group: str
    generation: int = -1
    member: str = ""
    instance: str | None = None


class GroupMember(NamedTuple):
    """A live member of a consumer group."""

    name: str  # the instance of a static member, the id of a dynamic one
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]  # none while the group rebalances


class GroupDescription(NamedTuple):
    """A consumer group."""

    state: str  # Stable, Empty, PreparingRebalance, CompletingRebalance or Dead
    coordinator: str  # ``host:port (node 1)``; empty: unknown
    members: Sequence[GroupMember]


class LogState(NamedTuple):
    """The log of a partition, according to its leader."""

    begin: int | None  # the lowest offset still in the log
    high_watermark: int | None  # all in-sync replicas have the records below it: the end for read_uncommitted
    stable: int | None  # the beginning of the first open transaction, or the high watermark: the end for read_committed
    problem: str = ""  # why the offsets are None


class TopicState(NamedTuple):
    """A topic with its logs."""

    id: str  # Kafka's
    partitions: Mapping[int, LogState]
    problem: str = ""  # why it has no partitions


class ProducerPort(Protocol):
    """A producer.

    A record with a token never waits, and only ``results`` reports its outcome. The error of a record without one is
    raised by ``send``, ``flush`` or ``acknowledged``.
    """

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
        """Queue one record; without a partition, the key or the producer's partitioner decides."""

    def results(self) -> Sequence[Sent]:
        """Return the results of records since the last call, one per batch; send batches that have lingered.

        Records refused only because of others in their batch are sent again, and reported later.
        """

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are queued or unanswered."""

    def refuse_when_stuck(self, seconds: float) -> None:
        """Refuse records for a partition that is silent for so long while others answer: they would fill the buffer."""

    def oldest_s(self) -> float:
        """Return the age in seconds of the oldest unanswered record; 0: none."""

    @property
    def retried(self) -> int:
        """How often records with results were sent again: after an error, or without others of their batch."""

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all queued records are answered; raise on a timeout, or if one without a token failed."""

    def acknowledged(self) -> bool:
        """Send queued records; return whether all are answered, without waiting. Raises like ``flush``."""

    def close(self) -> None:
        """Release the client."""


class TransactionalPort(ProducerPort, Protocol):
    """A producer that publishes records and a consumer group's offsets together, or not at all.

    Another producer with the same transactional id fences this one: each call raises ProducerFencedError. After that,
    or a timeout, it is over (``is_over``), and its owner makes another one.
    """

    is_over: bool  # Whether it must not be used again

    def begin(self) -> None:
        """Begin a transaction."""

    def has_successor(self) -> bool:
        """Return whether another producer has taken the transactional id, once this one is over.

        Brokers also fence a producer when they abort its transaction for its age.

        Raises:
            KafkaError, BrokerError: unknown for now.
        """

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], membership: GroupMembership, timeout_s: float = 30.0
    ) -> None:
        """Add a consumer group's offsets to the transaction; raise if the membership is stale."""

    def commit(self, timeout_s: float = 30.0) -> None:
        """Send queued records, wait for the answers, and commit; raise if a record was refused, or on a timeout."""

    def abort(self, timeout_s: float = 30.0) -> None:
        """Drop queued records, and abort."""


class OpenTransaction(NamedTuple):
    """An open transaction that blocks a group's commits."""

    transactional_id: str
    timeout_ms: int
    is_lost: bool  # Whether its coordinator has ended it without telling the partition: nothing will end it


class Cluster(Protocol):
    """A Kafka cluster. ``client`` holds kafka-python properties (``session_timeout_ms=10_000``)."""

    def consumer(
        self,
        *,
        group: str | None,
        instance_id: str | None = None,
        client: Mapping[str, Any] | None = None,
        auto_commit_ms: int | None = None,
        columns: bool = False,
    ) -> ConsumerPort:
        """Return a consumer; without a group it can only ``assign``.

        It commits only on request, or with ``auto_commit_ms`` also periodically: all records that polls have returned.
        With ``columns``, polls return a :class:`~downspout.kafka.columns.RecordColumns` for each partition.
        """

    def producer(
        self, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> ProducerPort:
        """Return a producer, by default with acks=all and idempotent.

        ``partitioner`` chooses for records without a partition; see :mod:`downspout.kafka.partitioners`.

        Raises:
            ConfigError: properties contradict each other, or the partitioner is unknown.
            MissingExtraError: the package of the compression is not installed.
        """

    def transactional_producer(
        self, transactional_id: str, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> TransactionalPort:
        """Return a transactional producer; fence an older one with this id and abort its transaction."""

    def ensure_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int | None = None
    ) -> bool:
        """Create the topic unless it exists; return whether it was created. Brokers have a default ``replication``."""

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition's log to ``before``: the records below are gone for good."""

    def group_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return all commits of a consumer group; empty if it does not exist."""

    def open_transactions(self, group: str) -> Sequence[OpenTransaction]:
        """Return the open transactions that may block a group's commits; empty if the brokers do not tell.

        Includes transactions for other groups with commits in the same partition.
        """

    def group_members(self, group: str) -> Sequence[str]:
        """Return the names of a group's live members: static ones by their instance, others by their id."""

    def describe_group(self, group: str) -> GroupDescription | None:
        """Return a group's state, coordinator and live members; None if it does not exist."""

    def describe_logs(self, topics: Collection[str]) -> Mapping[str, TopicState]:
        """Return the beginning and end of topics' logs, or a ``problem``."""

    def has_joined(self, group: str) -> bool:
        """Return whether a member has ever joined the group; otherwise its readers assign partitions themselves."""

    def commit_ages(self, group: str, within_s: float) -> Mapping[TopicPartition, float] | None:
        """Return the ages in seconds of commits younger than ``within_s``; None: unknown."""

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Remove static members from a group by their instance ids; a running one rejoins."""

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a group's commits for these partitions."""

    def delete_groups(self, groups: Collection[str]) -> Sequence[str]:
        """Delete consumer groups with their commits; return those kept because they still have members."""
