"""Requests that wait behind a fetch.

Wrong: a broker answers the requests of a connection in order, and a fetch that finds nothing is answered after
    ``fetch_max_wait_ms``. The client has one connection to a broker for fetches and all other questions: at the end
    of a log any question to the one broker waits half a second.
Patch: a group's coordinator has a connection to itself, without fetches. Requests of ours go there,
    unless a join waits on it.
Self-test: the coordinator's node and whether a join is under way are known, and its connection can be asked for.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client fetches by a connection of its own.
"""

from __future__ import annotations

from typing import Any

CONSUMER = {
    "_coordinator.coordinator_id": "NoneType",
    "_coordinator.rejoining": "bool",
    "_coordinator._client.is_ready": "method",
}


def coordinator_node(consumer: Any) -> Any:
    """Return the node that is the coordinator's connection, if that is free; None: any other."""
    coordinator = consumer._coordinator
    node = coordinator.coordinator_id
    free = node is not None and not coordinator.rejoining and coordinator._client.is_ready(node)
    return node if free else None
