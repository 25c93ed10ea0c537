"""The port to Kafka: a cluster, its consumers and producers, as the rest of the library knows them.

Two implementations pass one contract suite (``tests/kafka/contract.py``): the real client (``downspout.kafka.client``)
and ``downspout.testing.FakeKafka``. Structures are kafka-python's own, so the real client passes its records on without
a copy.
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

PERIOD_S = 30.0  # Mean and maximum are of the last one to two of these


class Fetches:
    """Requests for records that were answered; times are seconds on the caller's clock.

    Those of a consumer hold its partitions' too. One answer may hold records of many partitions, so it counts once for
    the consumer and once for each of these.

    >>> fetches = Fetches()
    >>> fetches.answered(0.2, now=1.0)
    >>> fetches.answered(0.4, now=2.0)
    >>> fetches.calls, round(fetches.mean_s(3.0), 1), fetches.max_s(3.0), fetches.max_s(70.0)
    (2, 0.3, 0.4, 0.0)
    """

    __slots__ = ("_before", "_latest", "_since", "begin", "by_partition", "calls", "records")

    def __init__(self) -> None:
        self.calls = 0
        self.records = 0  # which polls have returned
        self.begin: int | None = None  # of a partition: the lowest offset in its log, as of the last answer
        self.by_partition: dict[TopicPartition, Fetches] = {}  # of a consumer
        # By the client's thread; others read. How many, their sum and the longest, of a period and of the one before.
        self._latest: tuple[int, float, float] = (0, 0.0, 0.0)
        self._before: tuple[int, float, float] = (0, 0.0, 0.0)
        self._since = 0.0

    def of(self, partition: TopicPartition) -> Fetches:
        """Return those of one partition of a consumer; only the client's thread may ask for a new one."""
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
        """Return how long answers took lately on average; 0 where there was none."""
        periods = self._lately(now)
        calls = sum(calls for calls, _, _ in periods)
        return sum(total_s for _, total_s, _ in periods) / calls if calls else 0.0

    def max_s(self, now: float) -> float:
        """Return how long the slowest answer of late took; 0 where there was none."""
        return max((longest_s for _, _, longest_s in self._lately(now)), default=0.0)

    def _lately(self, now: float) -> list[tuple[int, float, float]]:
        """Return the periods that count. It changes nothing: who reads is another thread than who notes."""
        age_s = now - self._since
        if age_s < PERIOD_S:
            return [self._latest, self._before]
        return [self._latest] if age_s < 2 * PERIOD_S else []

    def _turn(self, now: float) -> None:
        if now - self._since >= PERIOD_S:
            self._before = self._latest if now - self._since < 2 * PERIOD_S else (0, 0.0, 0.0)
            self._latest, self._since = (0, 0.0, 0.0), now


TOPIC_LEGAL = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""Matches a name that Kafka lets a topic have."""

Answered = Callable[[KafkaError | None], None]
"""Hears how a commit ended that was not waited for: with an error, or with none."""


class Gathering(NamedTuple):
    """What a broker has before it answers a fetch, or how long it waits for that."""

    min_bytes: int
    wait_ms: int


class Record(Protocol):
    """One record as it was read; kafka-python's ConsumerRecord has this shape."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # Milliseconds since the epoch; -1 where there is none
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class RebalanceHandler(Protocol):
    """Receives rebalance facts, possibly on the client's own thread in the middle of ``poll``: record, do not act."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """These are ours from now on. Eager: the full set. Cooperative: the increment."""

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These are taken away, in order. Eager: all of them, before the new assignment."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """These belong to another member already."""


class ConsumerPort(Protocol):
    """A consumer in a group. Errors are kafka-python's (``kafka.errors``); their ``retriable`` says which may pass."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceHandler) -> None:
        """Join the group for these topics at the next poll."""

    def subscribe_pattern(self, pattern: str, listener: RebalanceHandler) -> None:
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
        """Commit and wait for the broker's answer. Not callable from a rebalance listener.

        Commits that were sent with an ``answered`` have their answer first, so none of them arrives after this one;
        without offsets that is all.
        """

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Send a commit and do not wait. Of two that have no answer yet, either may arrive last.

        Args:
            offsets: what to commit.
            answered: called once with the error, or None, on this thread: in this call, or in a later ``poll``,
                ``commit`` or ``commit_async``.
        """

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's commits with their metadata. Not callable from a rebalance listener.

        Raises:
            UnstableOffsetCommitError: transactions that are open hold some back; its first argument are the partitions.
        """

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the lowest offset that is still in each log."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log (read_committed: the last stable offset)."""

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Return the first offset with a timestamp at or after the one given; None where there is none."""

    def first_records(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return offset and timestamp in ms of the first record in each log; logs without a record are left out."""

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of the log as of the last fetch, without asking; None before the first."""

    def connected(self) -> bool:
        """Return whether there is a connection to any broker that answers, without asking."""

    @property
    def fetches(self) -> Fetches:
        """What was fetched so far, and how long it took; times are on the monotonic clock."""

    def note_aborted(self) -> None:
        """Note the records of aborted transactions that read_committed polls skip. Before the first poll."""

    def take_aborted(self) -> Sequence[tuple[TopicPartition, int, int]]:
        """Return ranges of aborted records skipped since the last call, as partition, first offset and count.

        Records that are read again are reported again. Without :meth:`note_aborted`, empty.
        """

    def gather(self, gathering: Gathering) -> None:
        """Let brokers gather records before they answer a fetch, while there are some."""

    def tolerate(self, limits: Limits, *, large: bool = True, corrupt: bool) -> None:
        """Note what cannot be given whole; otherwise it is an error (UnreadableBatchError). Before the first poll.

        In the place of what is noted comes one record with the first of its offsets, which holds what is known.

        Args:
            limits: what may be unpacked.
            large: note a record that is larger.
            corrupt: note damaged batches, and those that unpack to too much.
        """

    def take_unreadable(self) -> Sequence[Unreadable]:
        """Return what was noted since the last call; what is read again is reported again."""

    def partitions_for(self, topic: str) -> frozenset[int]:
        """Return the topic's partitions; empty where it does not exist."""

    def topic_names(self) -> frozenset[str]:
        """Return the names of all topics that are not Kafka's own."""

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of the topic (base64 of its UUID); empty where unknown."""

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return Kafka's ids of several topics, in one request; empty where unknown."""

    def membership(self) -> GroupMembership:
        """Return what the group knows this member by."""

    def close(self, leave_group: bool = True) -> None:
        """Stop without committing anything.

        With ``leave_group`` the group is told, so that others take over at once. Otherwise the place is kept until the
        session ends: a static member that comes back before gets its partitions again without a rebalance.
        """


class Sent(NamedTuple):
    """What became of records of one partition that were sent with tokens."""

    tokens: Sequence[Any]  # Of the records, in order; None for one that was sent without
    topic: str
    partition: int  # -1: the record did not come as far as that
    offset: int
    """Of the first record, the others follow; -1: not known, because the broker did not say (acks=0), or refused."""
    error: BaseException | None  # The same for all of these
    since: float  # When the first of its batch was sent, by a monotonic clock


class GroupMembership(NamedTuple):
    """What a consumer group knows a member by; a stale one is refused."""

    group: str
    generation: int = -1
    member: str = ""
    instance: str | None = None


class GroupMember(NamedTuple):
    """A live member of a consumer group, seen from outside."""

    name: str  # of a static member its instance, else its id
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]  # which it owns; none while the group rebalances


class GroupDescription(NamedTuple):
    """A consumer group, seen from outside."""

    state: str  # Kafka's word: Stable, Empty, PreparingRebalance, CompletingRebalance, Dead
    coordinator: str  # the broker that coordinates it, as ``host:port (node 1)``; empty where unknown
    members: Sequence[GroupMember]


class LogState(NamedTuple):
    """The log of a partition, as its leader tells it."""

    begin: int | None  # the lowest offset that is still there
    high_watermark: int | None  # the end of what all in-sync replicas have: read_uncommitted readers get so far
    stable: int | None  # where the first open transaction begins, or the high watermark: read_committed get so far
    problem: str = ""  # why the others are None


class TopicState(NamedTuple):
    """A topic with its logs."""

    id: str  # Kafka's
    partitions: Mapping[int, LogState]
    problem: str = ""  # why there are none


class ProducerPort(Protocol):
    """What writes records: dead letters, publishing, and KafkaBolt.

    There are two ways to hear of a record. With a token, its fate is in ``results``, and nothing else speaks of it;
    such a ``send`` does not wait. Without one, an error is raised by ``send``, ``flush`` or ``acknowledged``.
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
        """Return what became of records since the last call, one entry per batch; send what has lingered long enough.

        Records that were refused only because of others in their batch are sent again, and heard of later.
        """

    @property
    def buffered_bytes(self) -> int:
        """How many bytes wait for an answer, or to be sent."""

    def refuse_when_stuck(self, seconds: float) -> None:
        """Refuse records for a partition that has had no answer for so long while others have: they would wait in the
        place of records that can be written."""

    def oldest_s(self) -> float:
        """Return for how long the oldest record has waited for its answer, in seconds; 0: none waits."""

    @property
    def retried(self) -> int:
        """How often records were sent again, of those whose results are taken: after an error, or without others."""

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all queued records have their answer; raise if time is over or one without a token failed."""

    def acknowledged(self) -> bool:
        """Send what is queued; return whether all has its answer, without waiting; raise as ``flush`` does."""

    def close(self) -> None:
        """Release the client."""


class TransactionalPort(ProducerPort, Protocol):
    """A producer whose records, and offsets of a consumer group, become visible together, or not at all.

    Another producer with the same transactional id fences this one: then each call raises ProducerFencedError. After
    that, and after a time-out, it is over (``is_over``), and its owner makes another one.
    """

    is_over: bool  # Whether it is not to be used again

    def begin(self) -> None:
        """Begin a transaction."""

    def has_successor(self) -> bool:
        """Return whether another producer has taken the transactional id; asked of one that is over.

        Brokers fence a producer likewise when they abort a transaction that took too long.

        Raises:
            KafkaError, BrokerError: that is not known now.
        """

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], membership: GroupMembership, timeout_s: float = 30.0
    ) -> None:
        """Make offsets of a consumer group part of the transaction; raise if the membership is stale."""

    def commit(self, timeout_s: float = 30.0) -> None:
        """Send what is queued, wait for the answers, and commit; raise if a record was refused, or time is over."""

    def abort(self, timeout_s: float = 30.0) -> None:
        """Drop what is queued, and abort."""


class OpenTransaction(NamedTuple):
    """A transaction that holds back what a group commits."""

    transactional_id: str
    timeout_ms: int
    is_lost: bool  # Whether its coordinator has ended it, and no partition was told: nothing will end it


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

        It commits only on request; with ``auto_commit_ms`` also by itself: all that its polls have returned.
        With ``columns`` the records of a partition come as a :class:`~downspout.kafka.columns.RecordColumns`.
        """

    def producer(
        self, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> ProducerPort:
        """Return a producer: with acks=all and idempotent, unless its properties say otherwise.

        Args:
            client: its properties.
            partitioner: where records without a partition go, see :mod:`downspout.kafka.partitioners`.

        Raises:
            ConfigError: properties contradict each other, or there is no such partitioner.
            MissingExtraError: the package of the compression is not installed.
        """

    def transactional_producer(
        self, transactional_id: str, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> TransactionalPort:
        """Return a transactional producer; an older one with this id is fenced, and its transaction aborted."""

    def ensure_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int | None = None
    ) -> bool:
        """Create the topic where it does not exist; return whether it was created.

        Without ``replication`` the brokers decide how many replicas there are.
        """

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition's log to ``before``: the records below are gone for good."""

    def group_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return all that a consumer group has committed; empty where there is no such group."""

    def open_transactions(self, group: str) -> Sequence[OpenTransaction]:
        """Return the transactions that may hold back what a group commits; empty where the brokers do not say.

        Those of other groups, whose commits are in the same partition, are among them.
        """

    def group_members(self, group: str) -> Sequence[str]:
        """Return the names of a group's live members: static ones by their instance, others by their id."""

    def describe_group(self, group: str) -> GroupDescription | None:
        """Return a group's state, coordinator and live members; None where the coordinator has no such group."""

    def describe_logs(self, topics: Collection[str]) -> Mapping[str, TopicState]:
        """Return where the logs of topics begin and end; what cannot be told of has its ``problem``."""

    def has_joined(self, group: str) -> bool:
        """Return whether a member has ever joined the group; otherwise what commits for it reads by assignment."""

    def commit_ages(self, group: str, within_s: float) -> Mapping[TopicPartition, float] | None:
        """Return the ages in seconds of the commits that are younger than that; None where it cannot be known."""

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Take static members, by their instances, out of a group; one that runs joins again."""

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete what a group has committed for these; its other commits stay."""

    def delete_groups(self, groups: Collection[str]) -> Sequence[str]:
        """Delete consumer groups with their commits; return those that have members still, and so stay."""
