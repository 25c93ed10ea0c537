"""How a consumer of kafka-python joins its group: what its coordinator does by itself, and what is changed about that.

Read in its source, version 3.0.12:

* *A pending rejoin.* The heartbeat's answer sets a flag on the coordinator, and changed metadata another;
  ``need_rejoin`` looks at both. Nothing is revoked before the next ``poll``.
* *A rejoin that comes up in the middle of a poll.* A poll that finds no records goes round until its time is over, and
  joins again as soon as a round sees the flag. Then everything is revoked before anybody could commit what is done:
  the next owner processes it again. So a poll that began with no rejoin pending ends when it meets one
  (:class:`_RejoinPending`), and the next one joins. The same holds for one that came up after the caller was told that
  none is pending, and before the poll: a commit may lie between the two.
* *A join that outlasts a poll.* A join that was begun because metadata changed (a new topic, a new partition) is
  finished by a later ``poll`` only if that sees a need to join. As leader we have noted the new metadata by then and
  see none: the member hangs without partitions and without heartbeats, for ever. So ``poll`` keeps the need alive
  while a join is under way.
* *A join that ends between two polls.* Its outcome is thrown away (``_join_task.is_done``) and another join begun,
  which makes every other member join again. Where two members are polled in turns, by one thread, each one's join ends
  while the other is polled: they rebalance for ever. So a join that nobody has asked for its outcome does not say that
  it is done (:class:`_Unread`).
* *A rejoin for nothing.* The leader assigns by the metadata it has, and notes as "assigned by" an older copy: the one
  of the last metadata answer that it looked at. Where the first answer came with the join, that copy is empty, so the
  next look finds a difference and wants to join again; our hand-over would wait its whole budget for acks. So the
  copy is taken again right after the assignment, on the same thread.
* *A static member that comes back to a cooperative group.* In the first round of such a rebalance (KIP-429) what must
  move is given to nobody yet; its old owner lets go of it and asks for a second round. If that one dies first and comes
  back under its static name, the coordinator hands it its old assignment without any rebalance (KIP-345), and what was
  to move belongs to nobody, for as long as nobody else joins or leaves. So such a member joins once more.
* *A leader that comes back.* The leader of a group watches for new partitions and topics, and joins again when it
  sees some. A static one that dies and comes back gets its old assignment without a rebalance, and as leader is named
  the id of its former life, so that it does not assign anew. It takes itself for a follower then, and nobody in the
  group watches any more. With KIP-814 (a newer JoinGroup than the client's) it would be told. So a member that finds
  its former self in the leader's place watches, from the metadata of its first polls on. What came before those, while
  nobody watched, belongs to nobody: so it asks the coordinator once what is whose (DescribeGroups), and joins again
  where something is nobody's.
* *A member that falls out of the group while it joins.* It is told what it has lost before a join, once, and not again
  when the answer is that it is no member any more: of a cooperative group it then keeps what it had, though others may
  have owned it meanwhile, and reads and commits from an old place. So such an answer makes it prepare again.

Those parts are private. :data:`PARTS` names them, so that a consumer can look for each as it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import errors
from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

__all__ = ["PARTS", "Joining"]

PARTS = {
    "need_rejoin": "method",
    "rejoining": "bool",
    "ensure_active_group": "method",
    "request_rejoin": "method",
    "reset_generation": "method",
    "_rebalance_protocol": "RebalanceProtocol",
    "_join_task": "NoneType",
    "_perform_assignment": "method",
    "_process_join_group_response": "method",
    "_build_metadata_snapshot": "method",
    "_manager": "KafkaConnectionManager",
}
"""The coordinator's private parts that are used here, and the names of their types."""
ANSWER_MS_MAX = 1000
"""How long a poll may wait for what the coordinator says of the group; the next poll asks again."""
UUID_LENGTH = 36
"""Of what a broker appends to a static member's name, and a hyphen, to make its id."""


class Joining:
    """Stands between a coordinator and the polls of its consumer.

    Args:
        coordinator: the client's; its methods are replaced.
        instance: the static member's name; None: the member is a dynamic one.
    """

    def __init__(self, coordinator: Any, instance: str | None) -> None:
        self._coordinator = coordinator
        self._instance = instance
        _note_what_was_assigned_by(coordinator)
        _lose_what_was_kept(coordinator)
        self._may_join, self._told_calm = True, False
        self._join, coordinator.ensure_active_group = coordinator.ensure_active_group, self._join_if_told
        self._note_join = coordinator._process_join_group_response
        coordinator._process_join_group_response = self._joined
        self._joins_again = instance is not None and _is_cooperative(coordinator)
        """Whether it has yet to ask for a second round ("A static member that comes back", above)."""
        self._watch_due = False
        """Whether it has yet to watch for new partitions ("A leader that comes back", above)."""

    def pending(self) -> bool:
        """Return whether the next poll may revoke partitions; asks nobody."""
        due = self._due()
        self._told_calm |= not due
        return due

    def _due(self) -> bool:
        return bool(self._coordinator.need_rejoin() or self._coordinator.rejoining)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Poll within: it joins if that was due before it began; else it ends, without a word, when a join comes up."""
        coordinator = self._coordinator
        if coordinator.rejoining:
            coordinator.request_rejoin()  # "A join that outlasts a poll", above
        join = coordinator._join_task
        if join is not None and not isinstance(join, _Unread):
            coordinator._join_task = _Unread(join)
        # Who was told that none is pending has not drained, and one that came up since waits for the poll after this.
        self._may_join = self._due() and not self._told_calm
        self._told_calm = False
        try:
            yield
        except _RejoinPending:
            pass
        finally:
            if self._joins_again and not self._due():
                self._joins_again = False
                coordinator.request_rejoin()
            if self._watch_due and not self._due():
                self._watch()

    def _join_if_told(self, timeout_ms: float | None = None) -> bool:
        if not self._may_join:
            raise _RejoinPending
        return bool(self._join(timeout_ms=timeout_ms))

    def _joined(self, response: Any, *given: Any) -> Any:
        """Take a join's answer; it names the leader."""
        answer = self._note_join(response, *given)
        self._watch_due = _is_former_self(response.leader, response.member_id, self._instance)
        return answer

    def _watch(self) -> None:
        """Watch for new partitions, once the present ones are known, as the leader does that has assigned them."""
        known = _snapshot(self._coordinator)
        if not any(known.values()) or (group := self._group()) is None:
            return
        self._coordinator._metadata_snapshot = self._coordinator._assignment_snapshot = known
        self._watch_due = False
        if group.error_code:  # it may not be told; so it watches, and no more
            return
        shares = [ConsumerProtocolAssignment.decode(each.member_assignment) for each in group.members]
        owned = {(tp.topic, tp.partition) for share in shares for tp in share.partitions()}
        if any((topic, number) not in owned for topic, numbers in known.items() for number in numbers or ()):
            self._coordinator.request_rejoin()

    def _group(self) -> Any:
        """Return what the coordinator says of the group; None: nothing now, or it is about to change."""
        coordinator = self._coordinator
        manager, node = coordinator._manager, coordinator.coordinator_id

        async def ask() -> Any:
            sent = manager.send(DescribeGroupsRequest(groups=[coordinator.group_id]), node)
            return await manager.wait_for(sent, ANSWER_MS_MAX)

        if node is None:
            return None
        try:
            (group,) = manager.run(ask).groups
        except errors.KafkaError:
            return None
        if group.error_code:
            return None if errors.for_code(group.error_code).retriable else group
        return group if group.group_state == "Stable" else None


class _RejoinPending(Exception):
    """Ends a poll that was not told to join ("A rejoin that comes up in the middle of a poll", above)."""


class _Unread:
    """A join whose outcome was not read yet ("A join that ends between two polls", above)."""

    is_done = False

    def __init__(self, future: Any) -> None:
        self.add_callback = future.add_callback
        self.add_errback = future.add_errback
        self._future = future

    def __await__(self) -> Any:
        return self._future.__await__()


def _note_what_was_assigned_by(coordinator: Any) -> None:
    """Let the leader remember the metadata that it assigned by ("A rejoin for nothing", above)."""
    assign = coordinator._perform_assignment

    def perform_assignment(leader_id: str, protocol_name: str, members: Any) -> Any:
        assignment = assign(leader_id, protocol_name, members)
        coordinator._metadata_snapshot = coordinator._assignment_snapshot = _snapshot(coordinator)
        return assignment

    coordinator._perform_assignment = perform_assignment


def _lose_what_was_kept(coordinator: Any) -> None:
    """Let a member whose join finds it out of the group learn what it lost ("A member that falls out", above)."""
    reset = coordinator.reset_generation

    def reset_generation(*member_id: str, **named: str) -> None:
        reset(*member_id, **named)
        if _is_cooperative(coordinator):
            coordinator.rejoining = False

    coordinator.reset_generation = reset_generation


def _snapshot(coordinator: Any) -> Any:
    """Return the partitions of each topic that is read, as the client knows them."""
    return coordinator._build_metadata_snapshot(coordinator._subscription, coordinator._cluster)


def _is_cooperative(coordinator: Any) -> bool:
    return bool(coordinator._rebalance_protocol == RebalanceProtocol.COOPERATIVE)


def _is_former_self(leader: str, member: str, instance: str | None) -> bool:
    """Return whether the leader that a join names is this static member in an earlier life.

    >>> import uuid
    >>> earlier, now = f"a-1-{uuid.uuid4()}", f"a-1-{uuid.uuid4()}"
    >>> [_is_former_self(leader, now, "a-1") for leader in (earlier, now, f"a-1-2-{uuid.uuid4()}")]
    [True, False, False]
    """
    return instance is not None and leader != member and leader[:-UUID_LENGTH] == f"{instance}-"
