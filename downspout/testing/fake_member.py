"""The client's side of a group member: joining, leaving, and calls of the rebalance listener.

Its visible behaviour follows kafka-python 3 (``kafka.coordinator``):

* Joining and revoking happen inside ``poll`` only. Eager: ``revoked`` with the full set when the rebalance is noticed,
  then ``assigned`` with the full new set once all members have joined, perhaps some polls later.
* A partition that stays keeps its position and its pause.
* An expelled member learns it by its heartbeat: the next poll reports ``lost`` and joins again.
* Heartbeats never fail while the process lives; ``freeze`` and ``crash`` stop them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.kafka.port import Answered, Fetches, RebalanceHandler
from downspout.kafka.unreadable import Unreadable
from downspout.testing.fake_group import FakeGroup

if TYPE_CHECKING:
    from downspout.testing.fake_broker import FakeBroker


@dataclass
class FakePosition:
    """The consumer's state of one assigned partition."""

    position: int | None = None
    paused: bool = False
    highwater: int | None = None


class FakeMember:
    """The base of :class:`~downspout.testing.fake_kafka.FakeConsumer` that handles its group."""

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
        self._notes_aborted = False
        self._fetches = Fetches()
        self._unreadable: list[Unreadable] = []
        self._notes_large = self._notes_corrupt = False
        self._answers: deque[tuple[Answered | None, errors.KafkaError | None]] = deque()
        """Answers to asynchronous commits, until a call passes them on."""
        self._closed = False
        self._member = ""
        self._generation = -1
        self._state = "unjoined"
        self._rejoin_needed = True
        self._prepared = False
        self._asked = False
        self._joined_topics: frozenset[str] | None = None
        self._joins_again = instance_id is not None
        """Whether it must still request a second round in a cooperative group; see ``kafka/patches/joining.py``."""

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
        """Read these without joining the group."""
        if self._wanted is not None:
            raise errors.IllegalStateError("assign and subscribe exclude each other")
        self._take(partitions)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return frozenset(self._places)

    def rejoin_pending(self) -> bool:
        """Return whether the next poll may revoke partitions."""
        if self._wanted is None or self._closed:
            return False
        self._heartbeat()
        return self._rejoin_needed

    # --- bad ends ---

    def freeze(self) -> None:
        """Stop the heartbeats until the next call, like a long garbage collection or a stopped process."""
        if self._group is not None and self._member in self._group.members:
            self._group.members[self._member].silent_since = self._cluster.clock.monotonic()

    def crash(self) -> None:
        """Die like after ``kill -9``: without any message, until the session expires."""
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
        """Update the membership inside a poll; return whether it may read."""
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
        """Handle the response to an expelled member's join: it joins as a new one.

        Raises:
            FencedInstanceIdError: another process uses its instance id.
        """
        try:
            group.check(self._member, self._generation, self._instance)
        except errors.UnknownMemberIdError:
            self._forget_membership()
            if group.cooperative:  # an eager one has given up all partitions before
                self._prepare_join()
            self._prepared = True

    def _prepare_join(self) -> None:
        """Give up partitions before the join request (``_on_join_prepare_async``)."""
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
        """Apply the new assignment (``_on_join_complete_async``)."""
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
        """Learn from the coordinator, like a background heartbeat, whether to rejoin."""
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
            self._is_fenced = True  # the next poll or commit raises
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
        """Inside a poll: if auto-commit is on and due, commit the records of earlier polls."""
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
        """Set the assignment; partitions that stay keep their state."""
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
