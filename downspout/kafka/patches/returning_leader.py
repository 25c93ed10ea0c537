"""A returning leader that no longer watches for new partitions.

Wrong: the leader of a group watches for new partitions and topics, and joins again when it sees some. A static one
    that dies and comes back gets its old assignment without a rebalance, and as leader is named the id of its
    former life, so that it does not assign anew. It takes itself for a follower then, and no member of the
    group watches any more. With KIP-814 (a newer JoinGroup than the client's) it would learn that.
Patch: a member that finds its former self in the leader's place watches, from the metadata of its first polls on.
    Partitions that appeared before those have no owner: so it asks the coordinator once for the assignment
    (DescribeGroups), and joins again where a partition has no owner.
Self-test: the answer to a join comes by where we expect it, and the coordinator's node and connection are known.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client sends JoinGroup 9, and assigns, or watches, where ``skip_assignment`` says that it leads.
"""

from __future__ import annotations

from typing import Any

from kafka import errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from downspout.kafka.patches.stale_assignment import snapshot, watch_for_changes

CONSUMER = {
    "_coordinator._process_join_group_response": "method",
    "_coordinator._manager": "KafkaConnectionManager",
    "_coordinator.coordinator_id": "NoneType",
    "_coordinator.request_rejoin": "method",
    "_manager.run": "method",
    "_manager.send": "method",
    "_manager.wait_for": "method",
}

ANSWER_MS_MAX = 1000  # How long a poll may wait for what the coordinator says of the group; the next poll asks again
UUID_LENGTH = 36  # Of what a broker appends to a static member's name, and a hyphen, to make its id


class LeadersWatch:
    """Has a static member that led the group in its former life watch for new partitions; a step after polls."""

    def __init__(self, consumer: Any, instance: str) -> None:
        self._coordinator = coordinator = consumer._coordinator
        self._instance = instance
        self._note_join = coordinator._process_join_group_response
        coordinator._process_join_group_response = self._joined
        self.due = False

    def _joined(self, response: Any, *given: Any) -> Any:
        """Take a join's answer; it names the leader."""
        answer = self._note_join(response, *given)
        self.due = _is_former_self(response.leader, response.member_id, self._instance)
        return answer

    def take(self) -> None:
        """Watch, once the present partitions are known, as the leader does that has assigned them."""
        known = snapshot(self._coordinator)
        if not any(known.values()) or (group := self._group()) is None:
            return
        watch_for_changes(self._coordinator, known)
        self.due = False
        if group.error_code:  # it has no right to see the group; so it only watches
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


def _is_former_self(leader: str, member: str, instance: str) -> bool:
    """Return whether the leader that a join names is this static member in an earlier life.

    >>> import uuid
    >>> earlier, now = f"a-1-{uuid.uuid4()}", f"a-1-{uuid.uuid4()}"
    >>> [_is_former_self(leader, now, "a-1") for leader in (earlier, now, f"a-1-2-{uuid.uuid4()}")]
    [True, False, False]
    """
    return leader != member and leader[:-UUID_LENGTH] == f"{instance}-"
