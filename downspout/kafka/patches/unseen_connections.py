"""A consumer that does not say whether it is connected.

Wrong: ``bootstrap_connected`` speaks of the start. Whether there is a connection to any broker now, a consumer does
    not tell, and its polls return nothing, as at the end of a log, while every broker is gone. A broker that hangs
    keeps its connections besides.
Patch: the connections are looked at, without asking anybody: is there one, and has a question waited for too long while
    nothing came through any of them? A join may wait for other members, so what the coordinator is asked meanwhile
    does not count.
Self-test: the connections can be listed, and have what is looked at.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: a consumer says whether it is connected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

CONSUMER = {
    "_manager.least_used_connections": "method",
    "_coordinator.rejoining": "bool",
}
SILENT_S = 5.0
"""A broker that leaves a question without an answer for so long, besides what a fetch may wait, does not answer."""


def connected(consumer: Any) -> Callable[[], bool]:
    """Return a function that says whether there is a connection to a broker that answers."""
    connections, coordinator = consumer._manager.least_used_connections, consumer._coordinator
    silent_s = SILENT_S + consumer.config["fetch_max_wait_ms"] / 1000

    def is_connected() -> bool:
        waits = coordinator.coordinator_id if coordinator.rejoining else None
        since = time.monotonic() - silent_s
        try:
            open_now = connections()
            asked = [list(one.in_flight_requests)[:1] for one in open_now if one.node_id != waits]
        except RuntimeError:  # the client's own thread adds or removes something at this moment
            return True
        is_waiting = any(sent_at < since for requests in asked for _, _, sent_at, *_ in requests)
        heard = [transport.last_read for one in open_now if (transport := one.transport) is not None]
        return bool(heard) and not (is_waiting and max(heard) < since)

    return is_connected
