"""A start that draws dead addresses until its time is up.

Wrong: a client that begins draws one address of its bootstrap list by chance, and again after a failure, from the
    whole list, and waits for what it draws, longer after each failure. With half of the list dead, one start in
    thirty used up its time by five such draws, without a look at the rest.
Patch: it draws among the addresses that have not refused it a moment ago, as long as there are any.
Self-test: the delays of connections can be asked.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client goes through the whole list before it comes back to an address that has failed.
"""

from __future__ import annotations

from typing import Any

CONSUMER = {"_manager.connection_delay": "method"}


def skip_dead_addresses(client: Any) -> None:
    """Let a client (a ``KafkaNetClient``) that begins ask those addresses that have not refused it a moment ago."""
    manager = client._manager
    known = manager.cluster.bootstrap_brokers

    def bootstrap_brokers() -> list[Any]:
        return [broker for broker in known() if not manager.connection_delay(broker.node_id)] or known()

    manager.cluster.bootstrap_brokers = bootstrap_brokers
