"""The group coordinator of the fake Kafka: members, generation, assignment and commits.

The broker's side of the classic protocol, without a network. A group is *stable* or *preparing* a rebalance. A
rebalance begins when a member joins, leaves or expires, or when the partitions of its topics change; it completes once
every member has rejoined, or was removed after its rebalance timeout. Each completion is a new *generation*; commits of
another generation are refused. A member may commit for a partition that it does not own: real coordinators do not
check.

Time is an argument. Sessions expire when :meth:`FakeGroup.tick` is next called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

METADATA_MAX = 4096  # Brokers' default for commit metadata (``offset.metadata.max.bytes``)
PartitionsOf = Callable[[Collection[str]], dict[str, list[TopicPartition]]]


@dataclass
class Member:
    """The coordinator's state of one member."""

    id: str  # chosen by the coordinator at the first join
    instance: str | None  # the instance id of a static member; None for a dynamic one
    topics: frozenset[str]  # its subscription
    session_s: float  # its session timeout
    rebalance_s: float  # how long a rebalance waits for it
    owned: frozenset[TopicPartition] = frozenset()  # its partitions when it joined (cooperative protocol)
    joined: bool = False  # whether it has joined the current rebalance
    silent_since: float | None = None  # when its heartbeats stopped; None: they go on
    polled_at: float = 0.0  # its last poll; a client that does not poll for ``rebalance_s`` leaves by itself

    def rank(self) -> tuple[bool, str, str]:
        """Return the sort key: static members first, each kind by name, as in Kafka's assignors."""
        return (self.instance is None, self.instance or "", self.id)


@dataclass(frozen=True)
class AcceptedCommit:
    """An accepted commit of one partition (``FakeKafka.commits``)."""

    group: str
    member: str
    generation: int
    partition: TopicPartition
    offset: int
    metadata: str
    at: float = field(default=0.0, compare=False)  # seconds since the epoch


@dataclass
class FakeGroup:
    """One consumer group. ``cooperative`` moves partitions in two rounds (KIP-429) instead of revoking all of them."""

    name: str
    partitions_of: PartitionsOf
    cooperative: bool = False
    wall: Callable[[], float] = lambda: 0.0
    generation: int = 0
    preparing_since: float | None = None
    members: dict[str, Member] = field(default_factory=dict)
    assignment: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    history: list[AcceptedCommit] = field(default_factory=list)
    _snapshot: dict[str, list[TopicPartition]] = field(default_factory=dict)
    _numbers: int = 0

    @property
    def preparing(self) -> bool:
        """Whether a rebalance waits for members to join."""
        return self.preparing_since is not None

    def join(self, member_id: str, now: float, **facts: Any) -> str:
        """Process a join request; return the member's id, a new one for an unknown member.

        A static member that returns with a new id to a stable group gets its old assignment without a rebalance.
        ``facts`` are the fields of :class:`Member`.
        """
        member = self.members.get(member_id)
        if member is None:
            self._numbers += 1
            name = facts.get("instance") or f"{self.name}-member"
            member = Member(id=f"{name}-{self._numbers:04d}", **facts)
            predecessor = self._with_instance(member.instance)
            self.members[member.id] = member
            if predecessor is not None:
                self._replace(predecessor, member)
                if not self.preparing and predecessor.topics == member.topics:
                    member.silent_since = member.polled_at = now
                    return member.id
        else:
            member.topics, member.owned = facts["topics"], facts["owned"]
        self.prepare(now)
        member.joined, member.silent_since, member.polled_at = True, None, now
        self._complete_if_all_joined(now)
        return member.id

    def prepare(self, now: float) -> None:
        """Begin a rebalance, unless one is in progress."""
        if not self.preparing:
            self.preparing_since = now
            for member in self.members.values():
                member.joined = False

    def leave(self, member_id: str, now: float) -> None:
        """Remove a member that leaves or has expired."""
        if self.members.pop(member_id, None) is None:
            return
        self.assignment.pop(member_id, None)
        self.prepare(now)
        self._complete_if_all_joined(now)

    def tick(self, now: float) -> None:
        """Remove silent members and late joiners; rebalance if the partitions have changed."""
        for member in list(self.members.values()):
            if member.silent_since is None and not member.joined and now - member.polled_at > member.rebalance_s:
                if member.instance is None:
                    self.leave(member.id, now)
                    continue
                member.silent_since = member.polled_at + member.rebalance_s
            if member.silent_since is not None and now - member.silent_since >= member.session_s:
                self.leave(member.id, now)
        if self.members and not self.preparing and self._topics() != self._snapshot:
            self.prepare(now)
        if self.preparing_since is not None:
            waited = now - self.preparing_since
            for member in list(self.members.values()):
                if not member.joined and waited >= member.rebalance_s:
                    self.leave(member.id, now)

    def check(self, member_id: str, generation: int, instance: str | None) -> None:
        """Raise the broker's error for a request with this identity, unless it is a current member's.

        Raises:
            FencedInstanceIdError: another member uses the instance id.
            IllegalGenerationError: the generation is over.
            UnknownMemberIdError: it is not a member.
        """
        member = self.members.get(member_id)
        if member is None:
            holder = self._with_instance(instance)
            raise UnknownMemberIdError() if holder is None else FencedInstanceIdError()
        if generation != self.generation:
            raise IllegalGenerationError()

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member_id: str, generation: int, instance: str | None
    ) -> None:
        """Store offsets, even if the metadata of other partitions are too large.

        Raises:
            KafkaError: as :meth:`check`; a consumer outside the group may commit while it has no members.
            OffsetMetadataTooLargeError: some metadata exceed the limit.
        """
        if member_id or self.members:
            self.check(member_id, generation, instance)
        fits = {
            tp: given
            for tp, given in offsets.items()
            if len((given.metadata or "").encode("utf-16-le")) // 2 <= METADATA_MAX
        }
        for tp, given in fits.items():
            kept = OffsetAndMetadata(given.offset, given.metadata or "", given.leader_epoch)
            self.offsets[tp] = kept
            self.history.append(
                AcceptedCommit(self.name, member_id, generation, tp, kept.offset, kept.metadata, self.wall())
            )
        if len(fits) < len(offsets):
            raise OffsetMetadataTooLargeError()

    def commit_in_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store offsets of a committed transaction; the sender was checked before."""
        for tp, given in offsets.items():
            kept = OffsetAndMetadata(given.offset, given.metadata or "", given.leader_epoch)
            self.offsets[tp] = kept
            self.history.append(AcceptedCommit(self.name, "", -1, tp, kept.offset, kept.metadata, self.wall()))

    def ready(self, member_id: str) -> bool:
        """Return whether the member's rebalance is complete."""
        return not self.preparing and member_id in self.assignment

    def _with_instance(self, instance: str | None) -> Member | None:
        if instance is None:
            return None
        return next((member for member in self.members.values() if member.instance == instance), None)

    def _replace(self, old: Member, new: Member) -> None:
        del self.members[old.id]
        if old.id in self.assignment:
            self.assignment[new.id] = self.assignment.pop(old.id)

    def _topics(self) -> dict[str, list[TopicPartition]]:
        return self.partitions_of({topic for member in self.members.values() for topic in member.topics})

    def _complete_if_all_joined(self, now: float) -> None:
        if not self.preparing or not all(member.joined for member in self.members.values()):
            return
        self.preparing_since = None
        self.generation += 1
        self._snapshot = self._topics()
        ranked = sorted(self.members.values(), key=Member.rank)
        self.assignment = assign_ranges(self._snapshot, ranked)
        if self.cooperative:
            self._withhold_owned(ranked)
        for member in ranked:
            member.joined, member.silent_since = False, now

    def _withhold_owned(self, members: list[Member]) -> None:
        """First round of a cooperative rebalance: do not assign partitions that another member still owns."""
        owner = {tp: member.id for member in members for tp in member.owned}
        for member_id, given in self.assignment.items():
            self.assignment[member_id] = frozenset(tp for tp in given if owner.get(tp, member_id) == member_id)


def assign_ranges(
    topics: Mapping[str, list[TopicPartition]], members: list[Member]
) -> dict[str, frozenset[TopicPartition]]:
    """Give each member a contiguous range of each topic's partitions; the first members get one more.

    >>> def member(name): return Member(name, None, frozenset({"t"}), 10, 10)
    >>> topics = {"t": [TopicPartition("t", number) for number in range(3)]}
    >>> given = assign_ranges(topics, [member("a"), member("b")])
    >>> {name: sorted(tp.partition for tp in partitions) for name, partitions in given.items()}
    {'a': [0, 1], 'b': [2]}
    """
    given: dict[str, set[TopicPartition]] = {member.id: set() for member in members}
    for topic, partitions in topics.items():
        takers = [member for member in members if topic in member.topics]
        share, extra = divmod(len(partitions), len(takers)) if takers else (0, 0)
        start = 0
        for index, member in enumerate(takers):
            end = start + share + (index < extra)
            given[member.id].update(partitions[start:end])
            start = end
    return {name: frozenset(partitions) for name, partitions in given.items()}
