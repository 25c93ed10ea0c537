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
    """Apply this module's patches for joining; return the object that controls joins."""
    remember_assigned_metadata(consumer)
    report_loss_while_joining(consumer)
    joins = PolledJoins(consumer)
    if (instance := consumer.config["group_instance_id"]) is not None:
        joins.after_polls += (SecondRound(consumer), LeaderWatch(consumer, instance))
    return joins


# --- Joins go wrong in and between polls ---


class AfterPoll(Protocol):
    """Something to do after a poll, once no join is due."""

    due: bool

    def run(self) -> None:
        """Do it; it may stay due."""


class PolledJoins:
    """Decides which polls of a consumer may join.

    If a rejoin becomes due during a poll, that poll ends (``_RejoinPendingError``), and the next one joins. The same
    holds if it becomes due after ``pending`` returned False and before the poll: the caller commits between the two.
    ``round`` requests a rejoin again while a join is in progress, and a join whose result was not read does not claim
    to be done (``_UnreadJoin``).

    Wrong: a member joins its group within ``poll`` only. A rejoin is due if the heartbeat's response sets a flag, or if
        metadata change (``need_rejoin`` checks both). Three things go wrong:

        * *A rejoin becomes due during a poll.* A poll without records loops until its timeout, and joins once it sees
          the flag. Everything is revoked before the caller can commit: the next owner processes it again.
        * *A join outlasts its poll.* A later ``poll`` finishes a join caused by metadata (a new topic or partition)
          only if it sees a need to join. A leader has noted the new metadata by then and sees none: the member hangs
          without partitions and heartbeats, forever.
        * *A join ends between two polls.* Its result is discarded (``_join_task.is_done``), and another join makes all
          other members rejoin. Two members that one thread polls in turn rebalance forever.
    Goes when: the client joins outside polls, and revokes on request; or all three are fixed.
    """

    def __init__(self, consumer: Any) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self._may_join, self._reported_calm = True, False
        self._join, coordinator.ensure_active_group = coordinator.ensure_active_group, self._join_if_due
        self.after_polls: list[AfterPoll] = []

    def pending(self) -> bool:
        """Return whether the next poll may revoke partitions, without a request."""
        due = self._due()
        self._reported_calm |= not due
        return due

    def _due(self) -> bool:
        return bool(self._coordinator.need_rejoin() or self._coordinator.rejoining)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Wrap a poll: it joins if that was due before it began, and otherwise ends quietly when a join becomes due."""
        coordinator = self._coordinator
        if coordinator.rejoining:
            coordinator.request_rejoin()  # "A join outlasts its poll", above
        join = coordinator._join_task
        if join is not None and not isinstance(join, _UnreadJoin):
            coordinator._join_task = _UnreadJoin(join)
        # ``pending`` returned False, so the caller has not drained: a rejoin due since then waits for one more poll.
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
    """Ends a poll that may not join ("A rejoin becomes due during a poll", above)."""


class _UnreadJoin:
    """A join whose result was not read yet ("A join ends between two polls", above)."""

    is_done = False

    def __init__(self, future: Any) -> None:
        self.add_callback = future.add_callback
        self.add_errback = future.add_errback
        self._future = future

    def __await__(self) -> Any:
        return self._future.__await__()


# --- A leader remembers the wrong metadata, and rejoins needlessly ---


def remember_assigned_metadata(consumer: Any) -> None:
    """Make a leader remember the metadata it used to assign, on the same thread, right after the assignment.

    Wrong: the leader assigns by its current metadata, but remembers a copy of an earlier response as the basis. If the
        first response came with the join, that copy is empty: the next check finds a difference and rejoins, and our
        hand-over would wait its whole budget for acks.
    Goes when: the client remembers the metadata it has used.
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
    """Make a member rejoin when partitions differ from the known ones."""
    coordinator._metadata_snapshot = coordinator._assignment_snapshot = known


# --- A member expelled during a join gets no callback ---


def report_loss_while_joining(consumer: Any) -> None:
    """Make a member that is expelled during a join report its lost partitions.

    Wrong: callbacks for lost partitions run once, before a join, and not again if the response is that it is no longer
        a member. In a cooperative group it keeps its partitions, though others may have owned them meanwhile, and reads
        and commits from an old position.
    Goes when: the client reports the partitions lost by an expulsion during a join.
    """
    coordinator = consumer._coordinator
    reset = coordinator.reset_generation

    def reset_generation(*member_id: str, **named: str) -> None:
        reset(*member_id, **named)
        if is_cooperative(coordinator):
            coordinator.rejoining = False

    coordinator.reset_generation = reset_generation


def is_cooperative(coordinator: Any) -> bool:
    """Return whether members keep partitions that need not move in a rebalance (KIP-429)."""
    return bool(coordinator._rebalance_protocol == RebalanceProtocol.COOPERATIVE)


# --- A static member returns to a cooperative group between the rounds of a rebalance ---


class SecondRound:
    """Makes a static member of a cooperative group rejoin once after its first join.

    Wrong: in the first round of a cooperative rebalance (KIP-429), a moving partition has no new owner yet; its old
        owner gives it up and requests a second round. If the owner dies first and returns with its instance id, the
        coordinator returns its old assignment without a rebalance (KIP-345), and the partition has no owner until
        another member joins or leaves.
    Goes when: the client requests the second round after its return.
    """

    def __init__(self, consumer: Any) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self.due = is_cooperative(coordinator)

    def run(self) -> None:
        """Request the rejoin."""
        self.due = False
        self._coordinator.request_rejoin()


# --- A returning leader no longer watches for new partitions ---

ANSWER_MS_MAX = 1000  # How long a poll may wait for the coordinator's description of the group; the next one retries
UUID_LENGTH = 36  # A static member's id is its instance id, a hyphen, and a UUID


class LeaderWatch:
    """Makes a static member that led the group before its restart watch for new partitions.

    It compares with the metadata of its first polls. Partitions that appeared before that have no owner: it requests
    the assignment once (DescribeGroups), and rejoins if a partition is missing.

    Wrong: a group's leader watches for new partitions and topics. A static leader that dies and returns gets its old
        assignment without a rebalance, and the response names its former member id as leader, so it does not assign
        again. It considers itself a follower, and no member watches. KIP-814 (a newer JoinGroup) would tell it.
    Goes when: the client sends JoinGroup 9, and assigns or watches if ``skip_assignment`` marks it as leader.
    """

    def __init__(self, consumer: Any, instance: str) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self._instance = instance
        self._note_join = coordinator._process_join_group_response
        coordinator._process_join_group_response = self._joined
        self.due = False

    def _joined(self, response: Any, *given: Any) -> Any:
        """Check whether the response to a join names our former id as leader."""
        answer = self._note_join(response, *given)
        self.due = _is_former_self(response.leader, response.member_id, self._instance)
        return answer

    def run(self) -> None:
        """Once the current partitions are known, watch them like a leader that has assigned them."""
        known = snapshot(self._coordinator)
        if not any(known.values()) or (group := self._group()) is None:
            return
        watch_for_changes(self._coordinator, known)
        self.due = False
        if group.error_code:  # no permission to see the group: only watch
            return
        shares = [ConsumerProtocolAssignment.decode(each.member_assignment) for each in group.members]
        owned = {(tp.topic, tp.partition) for share in shares for tp in share.partitions()}
        if any((topic, number) not in owned for topic, numbers in known.items() for number in numbers or ()):
            self._coordinator.request_rejoin()

    def _group(self) -> Any:
        """Return the coordinator's description of the group; None: no answer, or the group is rebalancing."""
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
    """Return whether a leader's id belonged to this static member before its restart.

    >>> import uuid
    >>> earlier, now = f"a-1-{uuid.uuid4()}", f"a-1-{uuid.uuid4()}"
    >>> [_is_former_self(leader, now, "a-1") for leader in (earlier, now, f"a-1-2-{uuid.uuid4()}")]
    [True, False, False]
    """
    return leader != member and leader[:-UUID_LENGTH] == f"{instance}-"


# --- A fenced static member reads on ---


def fencing_check(consumer: Any) -> Any:
    """Return a function that raises FencedInstanceIdError once a heartbeat has failed with it.

    Wrong: if another process uses a static member's instance id, its heartbeat logs that and stops. The member reads
        on, and only a commit raises. Without anything to commit, its polls return nothing at once, forever, at full
        CPU.
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


# --- The kind of member decides whether it leaves ---


def leave_at_close(consumer: Any, leaves: bool) -> None:
    """Set whether closing a consumer leaves the group.

    Wrong: ``close`` sends LeaveGroup for a dynamic member and never for a static one (``is_dynamic_member``). A static
        member that is gone for good keeps its partitions until its session ends, and a dynamic one cannot stay.
    Goes when: ``close`` has an option for leaving, as Java's consumer does since KIP-1092.
    """
    consumer._coordinator.is_dynamic_member = lambda: leaves
