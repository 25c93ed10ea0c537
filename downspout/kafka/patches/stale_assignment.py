"""A rejoin for nothing, because a leader notes the wrong metadata.

Wrong: the leader assigns by the metadata it has, and notes as "assigned by" an older copy: the one of the last
    metadata answer that it looked at. Where the first answer came with the join, that copy is empty, so the next
    look finds a difference and wants to join again; our hand-over would wait its whole budget for acks.
Patch: the copy is taken again right after the assignment, on the same thread.
Self-test: the assignment, the two copies, and what makes one.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client notes the metadata that it has assigned by.
"""

from __future__ import annotations

from typing import Any

CONSUMER = {
    "_coordinator._perform_assignment": "method",
    "_coordinator._build_metadata_snapshot": "method",
    "_coordinator._metadata_snapshot": "dict",
    "_coordinator._assignment_snapshot": "NoneType",
    "_coordinator._subscription": "SubscriptionState",
    "_coordinator._cluster": "ClusterMetadata",
}


def remember_assigned_metadata(consumer: Any) -> None:
    """Let a leader remember the metadata that it assigned by."""
    coordinator = consumer._coordinator
    assign = coordinator._perform_assignment

    def perform_assignment(leader_id: str, protocol_name: str, members: Any) -> Any:
        assignment = assign(leader_id, protocol_name, members)
        watch_for_changes(coordinator, snapshot(coordinator))
        return assignment

    coordinator._perform_assignment = perform_assignment


def snapshot(coordinator: Any) -> Any:
    """Return the partitions of each topic that is read, as the client knows them."""
    return coordinator._build_metadata_snapshot(coordinator._subscription, coordinator._cluster)


def watch_for_changes(coordinator: Any, known: Any) -> None:
    """Let a member join again when partitions are other than those that are known."""
    coordinator._metadata_snapshot = coordinator._assignment_snapshot = known
