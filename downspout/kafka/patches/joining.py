"""How a consumer joins its group and leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kafka import errors
from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment


def patched_joins(consumer: Any) -> PolledJoins:
    """Apply all patches of this module that concern joining; return what polls and rejoins go through."""
    remember_assigned_metadata(consumer)
    report_loss_while_joining(consumer)
    joins = PolledJoins(consumer)
    if (instance := consumer.config["group_instance_id"]) is not None:
        joins.after_polls += (SecondRound(consumer), LeaderWatch(consumer, instance))
    return joins


# --- Joins that go wrong between two polls ---


class AfterPoll(Protocol):
    """Something to do after a poll, once no join is due."""

    due: bool

    def run(self) -> None:
        """Do it; it may stay due."""


class PolledJoins:
    """Decides which polls of a consumer may join.

    A poll that began with no rejoin pending ends when it meets one (``_RejoinPendingError``), and the next one joins.
    The same holds for a rejoin that came up after ``pending`` answered no and before the poll: the caller commits
    between the two. ``round`` keeps the need alive while a join is under way, and a join whose outcome was not read
    does not claim to be done (``_UnreadJoin``).

    Wrong: a member joins its group within ``poll`` only. A pending rejoin is a flag set by the heartbeat's answer, or a
        difference in the metadata (``need_rejoin`` checks both). Three things go wrong:

        * *A rejoin comes up in the middle of a poll.* A poll without records repeats until its time is over, and joins
          as soon as it sees the flag. Everything is revoked before anybody could commit what is done: the next owner
          processes it again.
        * *A join outlasts its poll.* A join that metadata caused (a new topic or partition) is finished by a later
          ``poll`` only if that sees a need to join. A leader has noted the new metadata by then and sees none: the
          member hangs without partitions and heartbeats, for ever.
        * *A join ends between two polls.* Its outcome is thrown away (``_join_task.is_done``), and another join makes
          every other member join again. Two members that one thread polls in turns rebalance for ever.
    Goes when: the client joins apart from polls, and revokes on request; or all three are fixed.
    """

    def __init__(self, consumer: Any) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self._may_join, self._reported_calm = True, False
        self._join, coordinator.ensure_active_group = coordinator.ensure_active_group, self._join_if_due
        self.after_polls: list[AfterPoll] = []

    def pending(self) -> bool:
        """Return whether the next poll may revoke partitions, without asking a broker."""
        due = self._due()
        self._reported_calm |= not due
        return due

    def _due(self) -> bool:
        return bool(self._coordinator.need_rejoin() or self._coordinator.rejoining)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Poll within: it joins if that was due before it began; otherwise it ends quietly when a join comes up."""
        coordinator = self._coordinator
        if coordinator.rejoining:
            coordinator.request_rejoin()  # "A join outlasts its poll", above
        join = coordinator._join_task
        if join is not None and not isinstance(join, _UnreadJoin):
            coordinator._join_task = _UnreadJoin(join)
        # After ``pending`` answered no, the caller has not drained: a rejoin that came up since waits one more poll.
        self._may_join = self._due() and not self._reported_calm
        self._reported_calm = False
        try:
            yield
        except _RejoinPendingError:
            pass
        finally:
            for step in self.after_polls:
                if step.due and not self._due():
                    step.run()

    def _join_if_due(self, timeout_ms: float | None = None) -> bool:
        if not self._may_join:
            raise _RejoinPendingError
        return bool(self._join(timeout_ms=timeout_ms))


class _RejoinPendingError(Exception):
    """Ends a poll that may not join ("A rejoin comes up in the middle of a poll", above)."""


class _UnreadJoin:
    """A join whose outcome was not read yet ("A join ends between two polls", above)."""

    is_done = False

    def __init__(self, future: Any) -> None:
        self.add_callback = future.add_callback
        self.add_errback = future.add_errback
        self._future = future

    def __await__(self) -> Any:
        return self._future.__await__()


# --- A rejoin for nothing: a leader notes the wrong metadata ---


def remember_assigned_metadata(consumer: Any) -> None:
    """Make a leader note the metadata that it assigned by, on the same thread, right after the assignment.

    Wrong: the leader assigns by its metadata, and notes as "assigned by" the copy of an earlier metadata answer. If the
        first answer came with the join, that copy is empty: the next check finds a difference and joins again, and our
        hand-over would wait its whole budget for acks.
    Goes when: the client notes the metadata that it has assigned by.
    """
    coordinator = consumer._coordinator
    assign = coordinator._perform_assignment

    def perform_assignment(leader_id: str, protocol_name: str, members: Any) -> Any:
        assignment = assign(leader_id, protocol_name, members)
        watch_for_changes(coordinator, snapshot(coordinator))
        return assignment

    coordinator._perform_assignment = perform_assignment


def snapshot(coordinator: Any) -> Any:
    """Return the partitions of each subscribed topic, as the client knows them."""
    return coordinator._build_metadata_snapshot(coordinator._subscription, coordinator._cluster)


def watch_for_changes(coordinator: Any, known: Any) -> None:
    """Make a member join again when partitions differ from the known ones."""
    coordinator._metadata_snapshot = coordinator._assignment_snapshot = known


# --- A member that is expelled while it joins, without a callback ---


def report_loss_while_joining(consumer: Any) -> None:
    """Make a member whose join finds it out of the group call back for what it lost.

    Wrong: callbacks for lost partitions run once, before a join, and not again if the answer is that it is no longer a
        member. In a cooperative group it keeps what it had, though others may have owned it meanwhile, and reads and
        commits from an old position.
    Goes when: the client reports what a member has lost that is expelled in the middle of a join.
    """
    coordinator = consumer._coordinator
    reset = coordinator.reset_generation

    def reset_generation(*member_id: str, **named: str) -> None:
        reset(*member_id, **named)
        if is_cooperative(coordinator):
            coordinator.rejoining = False

    coordinator.reset_generation = reset_generation


def is_cooperative(coordinator: Any) -> bool:
    """Return whether members keep in a rebalance what need not move (KIP-429)."""
    return bool(coordinator._rebalance_protocol == RebalanceProtocol.COOPERATIVE)


# --- A static member that returns to a cooperative group in the middle of a move ---


class SecondRound:
    """Makes a static member of a cooperative group join once more after its first join.

    Wrong: in the first round of a cooperative rebalance (KIP-429) a partition that moves has no new owner yet; its old
        owner gives it up and asks for a second round. If that one dies first and returns under its static name, the
        coordinator hands it its old assignment without a rebalance (KIP-345), and the partition has no owner until
        another member joins or leaves.
    Goes when: the client asks for the second round after it has returned.
    """

    def __init__(self, consumer: Any) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self.due = is_cooperative(coordinator)

    def run(self) -> None:
        """Ask for it."""
        self.due = False
        self._coordinator.request_rejoin()


# --- A returning leader that no longer watches for new partitions ---

ANSWER_MS_MAX = 1000  # How long a poll may wait for the coordinator's description of the group; the next one asks again
UUID_LENGTH = 36  # A broker appends it, and a hyphen, to a static member's name to make its id


class LeaderWatch:
    """Makes a static member that led the group in its former life watch for new partitions.

    It watches from the metadata of its first polls on. Partitions that appeared before have no owner: it asks the
    coordinator once for the assignment (DescribeGroups), and joins again if a partition has none.

    Wrong: the leader of a group watches for new partitions and topics. A static one that dies and returns gets its old
        assignment without a rebalance; the id of its former life is named as leader, which keeps it from assigning
        anew. It takes itself for a follower, and no member watches any more. KIP-814 (a newer JoinGroup) would tell it.
    Goes when: the client sends JoinGroup 9, and assigns or watches if ``skip_assignment`` says that it leads.
    """

    def __init__(self, consumer: Any, instance: str) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self._instance = instance
        self._note_join = coordinator._process_join_group_response
        coordinator._process_join_group_response = self._joined
        self.due = False

    def _joined(self, response: Any, *given: Any) -> Any:
        """Take the answer to a join; it names the leader."""
        answer = self._note_join(response, *given)
        self.due = _is_former_self(response.leader, response.member_id, self._instance)
        return answer

    def run(self) -> None:
        """Watch, once the present partitions are known, as a leader does that has assigned them."""
        known = snapshot(self._coordinator)
        if not any(known.values()) or (group := self._group()) is None:
            return
        watch_for_changes(self._coordinator, known)
        self.due = False
        if group.error_code:  # it has no right to see the group: it can only watch
            return
        shares = [ConsumerProtocolAssignment.decode(each.member_assignment) for each in group.members]
        owned = {(tp.topic, tp.partition) for share in shares for tp in share.partitions()}
        if any((topic, number) not in owned for topic, numbers in known.items() for number in numbers or ()):
            self._coordinator.request_rejoin()

    def _group(self) -> Any:
        """Return the coordinator's description of the group; None: not now, or the group is about to change."""
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


def _is_former_self(leader: str, member: str, instance: str) -> bool:
    """Return whether the leader that a join names is this static member in an earlier life.

    >>> import uuid
    >>> earlier, now = f"a-1-{uuid.uuid4()}", f"a-1-{uuid.uuid4()}"
    >>> [_is_former_self(leader, now, "a-1") for leader in (earlier, now, f"a-1-2-{uuid.uuid4()}")]
    [True, False, False]
    """
    return leader != member and leader[:-UUID_LENGTH] == f"{instance}-"


# --- A fenced static member that is not told ---


def fencing_check(consumer: Any) -> Any:
    """Return a function that raises FencedInstanceIdError once a heartbeat has learned of another such member.

    Wrong: the heartbeat of a static member learns that another process uses its instance id, logs that, and stops. The
        member reads on, and only a commit raises. One that has nothing to commit is never told: its polls return at
        once and find nothing, for ever, at full CPU.
    Goes when: ``poll`` raises FencedInstanceIdError.
    """
    coordinator = consumer._coordinator
    handle = coordinator._handle_heartbeat_response
    found: list[errors.FencedInstanceIdError] = []

    def handle_heartbeat(*answer: Any) -> Any:
        try:
            return handle(*answer)
        except errors.FencedInstanceIdError as error:
            found.append(error)
            raise

    def check() -> None:
        if found:
            raise errors.FencedInstanceIdError() from found[0]

    coordinator._handle_heartbeat_response = handle_heartbeat
    return check


# --- Leaving a group, which the kind of member decides ---


def leave_at_close(consumer: Any, leaves: bool) -> None:
    """Make the close of a consumer leave the group, or not.

    Wrong: ``close`` sends LeaveGroup for a dynamic member and never for a static one (``is_dynamic_member``). A static
        member that is gone for good keeps its partitions until its session ends, and a dynamic one cannot stay.
    Goes when: ``close`` takes whether to leave, as Java's consumer does since KIP-1092.
    """
    consumer._coordinator.is_dynamic_member = lambda: leaves
