"""Leaving a group, which the kind of member decides.

Wrong: ``close`` sends LeaveGroup for a dynamic member and never for a static one; its rule is
    ``is_dynamic_member``. A static member that is gone for good keeps its partitions until its session ends, and a
    dynamic one cannot stay. Broker and request know both.
Patch: that question is answered by what the caller wants.
Self-test: the coordinator asks it, as it leaves.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: ``close`` takes whether to leave, as Java's consumer does since KIP-1092.
"""

from __future__ import annotations

from typing import Any

CONSUMER = {"_coordinator.is_dynamic_member": "method", "_coordinator.maybe_leave_group_async": "method"}


def leave_at_close(consumer: Any, leaves: bool) -> None:
    """Let the close of a consumer leave the group, or not."""
    consumer._coordinator.is_dynamic_member = lambda: leaves
