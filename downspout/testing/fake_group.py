"""The group coordinator of the fake Kafka: who is a member, which generation it is, who owns what, what is committed.

The broker's side of the classic protocol, without a network. A group is *stable* or it is *preparing* a rebalance;
a rebalance begins when a member joins, leaves, expires or when the partitions of its topics change, and is complete
once every member has asked to join again (or its rebalance time-out is over and it is thrown out). Each completion is a
new *generation*; a commit that names another is refused. A commit by a stable member for a partition that it does not
own is accepted: real coordinators do not look.

Time is an argument. Sessions end on the clock's word, when somebody next asks: see :meth:`FakeGroup.tick`.
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

METADATA_MAX = 4096  # Longest commit metadata, as brokers have it by default (``offset.metadata.max.bytes``)
PartitionsOf = Callable[[Collection[str]], dict[str, list[TopicPartition]]]


@dataclass
class Member:
    """What the coordinator knows of one member."""

    id: str  # given by the coordinator at the first join
    instance: str | None  # the static member's name; None for a dynamic one
    topics: frozenset[str]  # what it subscribes to
    session_s: float  # how long it may be silent
    rebalance_s: float  # how long a rebalance waits for it to join again
    owned: frozenset[TopicPartition] = frozenset()  # what it said it owns when it joined (cooperative protocol)
    joined: bool = False  # whether it has joined the rebalance that is being prepared
    silent_since: float | None = None  # when its heartbeats stopped; None while they come
    # when it polled last; a client that does not poll for ``rebalance_s`` stops being a member by itself
    polled_at: float = 0.0

    def rank(self) -> tuple[bool, str, str]:
        """Static members come first, each kind in the order of its names, as in Kafka's assignors."""
        return (self.instance is None, self.instance or "", self.id)


@dataclass(frozen=True)
class AcceptedCommit:
    """One accepted commit of one partition, in the order in which they came (``FakeKafka.commits``)."""

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
        """Take a join request; return the member's id, which is a new one for a member that is not known.

        A static member that comes back under a new id while the group is stable gets its old assignment, and no
        rebalance happens.
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
        """Begin a rebalance, unless one is being prepared."""
        if not self.preparing:
            self.preparing_since = now
            for member in self.members.values():
                member.joined = False

    def leave(self, member_id: str, now: float) -> None:
        """Take a member out, at its own wish or because it is silent."""
        if self.members.pop(member_id, None) is None:
            return
        self.assignment.pop(member_id, None)
        self.prepare(now)
        self._complete_if_all_joined(now)

    def tick(self, now: float) -> None:
        """Notice what time and topics have changed: silent members, late joiners, other partitions."""
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
        """Raise what the broker answers to a request under this identity; nothing if it is a member's.

        Raises:
            FencedInstanceIdError: another member has come under the same static name.
            UnknownMemberIdError: it is no member (any more).
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
        """Store offsets; the partitions whose metadata fits are stored even where another's does not.

        Raises:
            KafkaError: what :meth:`check` raises; a consumer outside the group may commit while it has no members.
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
        """Store offsets whose transaction is committed; who sent them was looked at before."""
        for tp, given in offsets.items():
            kept = OffsetAndMetadata(given.offset, given.metadata or "", given.leader_epoch)
            self.offsets[tp] = kept
            self.history.append(AcceptedCommit(self.name, "", -1, tp, kept.offset, kept.metadata, self.wall()))

    def ready(self, member_id: str) -> bool:
        """Return whether the rebalance that the member joined is complete."""
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
        """First round of a cooperative move: what another member still owns is given to nobody yet."""
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
