"""The group coordinator of the fake Kafka: who is a member, which generation it is, who owns what, what is committed.

The broker's side of the classic protocol, without a network. A group is *stable* or it is *preparing* a rebalance;
a rebalance begins when a member joins, leaves, expires or when the partitions of its topics change, and is complete
once every member has asked to join again (or its rebalance time-out is over and it is thrown out). Each completion is a
new *generation*; a commit that names another is refused. A commit by a stable member for a partition that it does not
own is accepted: real coordinators do not look.

Time is an argument. Sessions end on the clock's word, when somebody next asks: see :meth:`FakeGroup.tick`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka import errors
from kafka.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.kafka.port import Answered, Fetches, RebalanceHandler
from downspout.kafka.unreadable import Unreadable

if TYPE_CHECKING:
    from downspout.testing.fake_broker import FakeBroker

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


# --- a member, on the client's side: joining, leaving, and what the rebalance listener is told ---
#
# It follows kafka-python 3 (``kafka.coordinator``) where that can be seen from outside:
#
# * Joining and revoking happen inside ``poll`` alone. Eager: ``revoked`` with the full set when the rebalance is
#   noticed, then ``assigned`` with the full new set once all members have joined, maybe some polls later.
# * A partition that stays keeps its position and its pause.
# * A member that was thrown out learns it by its heartbeat: the next poll says ``lost`` and joins afresh.
# * Its heartbeats are perfect as long as the process lives; ``freeze`` and ``crash`` stop them.


@dataclass
class FakePosition:
    """Where the consumer stands in one assigned partition."""

    position: int | None = None
    paused: bool = False
    highwater: int | None = None


class FakeMember:
    """The half of :class:`~downspout.testing.fake_kafka.FakeConsumer` that has to do with its group."""

    def __init__(
        self,
        cluster: FakeBroker,
        group: str | None,
        instance_id: str | None,
        client: Mapping[str, Any],
        auto_commit_ms: int | None = None,
        columns: bool = False,
    ) -> None:
        self._cluster = cluster
        self._columns = columns
        self._group: FakeGroup | None = cluster.group(group) if group is not None else None
        self._is_fenced = False
        self._instance = instance_id
        self._session_s = client.get("session_timeout_ms", 45_000) / 1000
        self._poll_interval_s = client.get("max_poll_interval_ms", 300_000) / 1000
        self._committed_only = client.get("isolation_level", "read_committed") == "read_committed"
        self._reset = client.get("auto_offset_reset")
        self._auto_commit_s = None if auto_commit_ms is None else auto_commit_ms / 1000
        self._auto_commit_at = cluster.clock.monotonic() + (self._auto_commit_s or 0)
        self._places: dict[TopicPartition, FakePosition] = {}
        self._wanted: Callable[[], frozenset[str]] | None = None
        self._listener: RebalanceHandler | None = None
        self._in_listener = False
        self._aborted: list[tuple[TopicPartition, int, int]] = []
        self._fetches = Fetches()
        self._unreadable: list[Unreadable] = []
        self._notes_large = self._notes_corrupt = False
        self._answers: deque[tuple[Answered | None, errors.KafkaError | None]] = deque()
        """How asynchronous commits have ended, until a call hands it on."""
        self._closed = False
        self._member = ""
        self._generation = -1
        self._state = "unjoined"
        self._rejoin_needed = True
        self._prepared = False
        self._asked = False
        self._joined_topics: frozenset[str] | None = None
        self._joins_again = instance_id is not None
        """Whether it has yet to ask for a second round, in a cooperative group; see ``kafka/patches/joining.py``."""

    # --- what to read ---

    def subscribe(self, topics: Sequence[str], listener: RebalanceHandler) -> None:
        """Join the group for these topics at the next poll."""
        names = frozenset(topics)
        self._subscribe(lambda: names, listener)

    def subscribe_pattern(self, pattern: str, listener: RebalanceHandler) -> None:
        """Join the group for topics whose whole name matches."""
        whole = re.compile(pattern)
        self._subscribe(
            lambda: frozenset(name for name in self._cluster.topic_names() if whole.fullmatch(name)), listener
        )

    def _subscribe(self, wanted: Callable[[], frozenset[str]], listener: RebalanceHandler) -> None:
        if self._group is None:
            raise errors.IllegalStateError("a consumer without a group cannot subscribe")
        if self._places and self._wanted is None:
            raise errors.IllegalStateError("assign and subscribe exclude each other")
        self._wanted, self._listener = wanted, listener

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these without any group membership."""
        if self._wanted is not None:
            raise errors.IllegalStateError("assign and subscribe exclude each other")
        self._take(partitions)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return what is assigned now."""
        return frozenset(self._places)

    def rejoin_pending(self) -> bool:
        """Return whether the next poll may revoke partitions."""
        if self._wanted is None or self._closed:
            return False
        self._heartbeat()
        return self._rejoin_needed

    # --- bad ends ---

    def freeze(self) -> None:
        """Stop the heartbeats, as a long garbage collection or a stopped process does; the next call goes on."""
        if self._group is not None and self._member in self._group.members:
            self._group.members[self._member].silent_since = self._cluster.clock.monotonic()

    def crash(self) -> None:
        """Die without a word, as ``kill -9`` does: nothing is told, the session runs out by itself."""
        self._closed = True
        self.freeze()

    def _stop(self, leave_group: bool) -> None:
        if self._group is None or self._member not in self._group.members:
            return
        now = self._cluster.clock.monotonic()
        if leave_group and self._cluster.coordinates:
            self._group.leave(self._member, now)
        else:
            self._group.members[self._member].silent_since = now

    # --- joining, inside a poll ---

    def _join(self) -> bool:
        """Bring the membership up to date inside a poll; return whether reading may go on."""
        group, now = self._need_group(), self._cluster.clock.monotonic()
        self._heartbeat()
        if self._member in group.members:
            group.members[self._member].polled_at = now
        if not self._rejoin_needed:
            return True
        if not self._prepared:
            self._prepare_join()
        if self._member and self._member not in group.members:
            self._fall_out(group)
        superseded = group.preparing and self._member in group.members and not group.members[self._member].joined
        if not self._asked or superseded or self._member not in group.members:
            self._joined_topics = self._need_wanted()()
            self._member = group.join(
                self._member,
                now,
                instance=self._instance,
                topics=self._joined_topics,
                session_s=self._session_s,
                rebalance_s=self._poll_interval_s,
                owned=frozenset(self._places) if group.cooperative else frozenset(),
            )
            self._asked, self._state = True, "rebalancing"
        if not group.ready(self._member):
            return False
        self._complete_join(group)
        return True

    def _fall_out(self, group: FakeGroup) -> None:
        """Take the answer that the join of a member gets that was thrown out: it comes as a new one.

        Raises:
            FencedInstanceIdError: another one has come under its static name.
        """
        try:
            group.check(self._member, self._generation, self._instance)
        except errors.UnknownMemberIdError:
            self._forget_membership()
            if group.cooperative:  # an eager one has given all up by now
                self._prepare_join()
            self._prepared = True

    def _prepare_join(self) -> None:
        """Give up what must be given up before asking to join (``_on_join_prepare_async``)."""
        listener, group = self._listener_of(), self._need_group()
        topics = self._need_wanted()()
        if self._auto_commit_s is not None:
            self._commit_consumed()
        if self._is_lost() and self._places:
            try:
                self._notify(listener.on_partitions_lost)
            finally:
                self._places.clear()
        elif not group.cooperative:
            self._notify(listener.on_partitions_revoked)
        elif gone := {tp for tp in self._places if tp.topic not in topics}:
            self._notify(listener.on_partitions_revoked, gone)
            self._take(set(self._places) - gone)
        self._prepared = True

    def _complete_join(self, group: FakeGroup) -> None:
        """Take the new assignment over (``_on_join_complete_async``)."""
        self._generation, self._state = group.generation, "stable"
        self._rejoin_needed = self._prepared = self._asked = False
        self._thaw()
        before, after = set(self._places), set(group.assignment[self._member])
        self._take(after)
        listener = self._listener_of()
        if not group.cooperative:
            self._notify(listener.on_partitions_assigned)
            return
        if self._joins_again or before - after:
            self._joins_again, self._rejoin_needed = False, True
        if before - after:
            self._notify(listener.on_partitions_revoked, before - after)
        if after - before:
            self._notify(listener.on_partitions_assigned, after - before)

    # --- what heartbeats tell ---

    def _heartbeat(self) -> None:
        """Learn from the coordinator, as the background heartbeats do, whether we must join again."""
        self._cluster.tick()
        if self._state != "stable" or self._group is None or not self._cluster.coordinates:
            return
        if self._instance is not None and self._polled_too_late(self._group):
            self._forget_membership()
            return
        self._thaw()
        try:
            self._group.check(self._member, self._generation, self._instance)
        except errors.FencedInstanceIdError:
            self._is_fenced = True  # the next poll says so, and so does a commit
            return
        except errors.IllegalGenerationError:
            self._forget_membership(keep_id=True)
        except errors.UnknownMemberIdError:
            self._forget_membership()
        changed = self._joined_topics is not None and self._joined_topics != self._need_wanted()()
        if changed or self._group.preparing:
            self._rejoin_needed = True

    def _polled_too_late(self, group: FakeGroup) -> bool:
        member = group.members.get(self._member)
        return member is not None and self._cluster.clock.monotonic() - member.polled_at > self._poll_interval_s

    def _thaw(self) -> None:
        if self._group is not None and self._state == "stable" and self._member in self._group.members:
            self._group.members[self._member].silent_since = None

    def _forget_membership(self, *, keep_id: bool = False) -> None:
        self._member = self._member if keep_id else ""
        self._generation, self._state, self._rejoin_needed = -1, "unjoined", True
        self._prepared = self._asked = False

    def _is_lost(self) -> bool:
        return self._generation == -1 or not self._member

    # --- committing by itself ---

    def _auto_commit(self) -> None:
        """Inside a poll: commit by the timer, where that was asked for, what earlier polls have returned."""
        now = self._cluster.clock.monotonic()
        if self._auto_commit_s is not None and now > self._auto_commit_at:
            self._auto_commit_at = now + self._auto_commit_s
            self._commit_consumed()

    def _commit_consumed(self) -> None:
        consumed = {tp: place.position for tp, place in self._places.items() if place.position is not None}
        self.commit_async({tp: OffsetAndMetadata(at, "", -1) for tp, at in consumed.items()})

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Send a commit."""
        raise NotImplementedError

    # --- small helpers ---

    def _take(self, partitions: Collection[TopicPartition]) -> None:
        """Make these the assignment; those that stay keep their place."""
        kept = {tp: place for tp, place in self._places.items() if tp in partitions}
        self._places = kept | {tp: FakePosition() for tp in sorted(partitions) if tp not in kept}

    def _place(self, partition: TopicPartition) -> FakePosition:
        if partition not in self._places:
            raise errors.IllegalStateError(f"Partition is not assigned: {partition}")
        return self._places[partition]

    def _notify(
        self,
        callback: Callable[[Collection[TopicPartition]], None],
        partitions: Collection[TopicPartition] | None = None,
    ) -> None:
        with self._listening():
            callback(set(self._places) if partitions is None else set(partitions))

    @contextmanager
    def _listening(self) -> Iterator[None]:
        self._in_listener = True
        try:
            yield
        except Exception as error:
            raise errors.KafkaError("User rebalance callback throws an error") from error
        finally:
            self._in_listener = False

    def _need_group(self) -> FakeGroup:
        if self._group is None:
            raise errors.IllegalStateError("Requires group_id")
        return self._group

    def _need_wanted(self) -> Callable[[], frozenset[str]]:
        assert self._wanted is not None
        return self._wanted

    def _listener_of(self) -> RebalanceHandler:
        assert self._listener is not None
        return self._listener
