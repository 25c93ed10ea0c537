"""Questions that wait for a silent broker while others would answer.

Wrong: a client that begins draws one address of its bootstrap list by chance, from the whole list again after each
    failure, and waits for what it draws until all its time is up: one silent broker of three fails half of all starts.
    Later, what any broker could answer (where leaders are, a coordinator, a producer's id) goes to a broker that it
    has no connection to rather than to one that is busy: to the silent one, again and again, for up to 30 s each.
Patch: it begins with the address that has just answered us, and gives each draw no more time than any connection has.
    What any broker can answer goes to one that has failed, or is silent, only where there is no other.
Self-test: connections, their failures and delays, and both choices.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client goes through the whole list before it comes back to an address that has failed, and remembers
    which brokers do not answer.
"""

from __future__ import annotations

import random
import time
from typing import Any

# Both choices are ours by the time of the test.
CONSUMER = {
    "_manager.connection_delay": "method",
    "_manager.get_connection": "function",
    "_manager.least_loaded_node": "function",
    "_manager.socket_connection_setup_timeout_ms": "method",
    "_manager._backoff": "dict",
    "_manager._conns": "dict",
    "_manager.cluster.is_bootstrap": "method",
}
SILENT_S = 3.0
"""A broker that has left a question without an answer for so long is silent; a fetch may wait for 0.5 s."""


def prefer_brokers_that_answer(client: Any, first: tuple[str, int] | None) -> None:
    """Let a client (a ``KafkaNetClient``) ask those brokers that answer; ``first`` is the address of one."""
    manager = client._manager
    cluster = manager.cluster
    known, connect = cluster.bootstrap_brokers, manager.get_connection

    def failed(node: Any) -> bool:
        return bool(manager._backoff.get(node.node_id, (0,))[0])

    def bootstrap_brokers() -> list[Any]:
        ready = [node for node in known() if not manager.connection_delay(node.node_id)] or known()
        return [node for node in ready if (node.host, node.port) == first and not failed(node)] or ready

    def get_connection(node_id: Any, timeout_ms: float | None = None, **more: Any) -> Any:
        if timeout_ms is not None and cluster.is_bootstrap(node_id):
            timeout_ms = min(timeout_ms, manager.socket_connection_setup_timeout_ms(node_id))
        return connect(node_id, timeout_ms, **more)

    def rank(node: Any) -> tuple[bool, bool, int, bool, float]:
        connection = manager._conns.get(node.node_id)
        waits = 0 if connection is None else len(connection.in_flight_requests) + connection.initializing
        is_idle = connection is not None and connection.connected and not waits
        since = None if connection is None else unanswered_since(connection)
        shuns = failed(node) or (since is not None and time.monotonic() - since > SILENT_S)
        return shuns, not is_idle, waits, (node.host, node.port) != first, random.random()

    def least_loaded_node() -> Any:
        ready = [node for node in cluster.brokers() if not _is_barred(manager, node.node_id)]
        return min(ready, key=rank).node_id if ready else None

    cluster.bootstrap_brokers, manager.get_connection = bootstrap_brokers, get_connection
    manager.least_loaded_node = least_loaded_node


def _is_barred(manager: Any, node_id: Any) -> bool:
    connection = manager._conns.get(node_id)
    return bool((connection is not None and connection.paused) or manager.connection_delay(node_id) > 0)


def unanswered_since(connection: Any) -> float | None:
    """Return since when a question has waited with nothing heard, on the monotonic clock; None where none waits."""
    asked, transport = list(connection.in_flight_requests)[:1], connection.transport
    if not asked or transport is None:
        return None
    _, _, sent_at, *_ = asked[0]
    return float(max(sent_at, transport.last_read))
