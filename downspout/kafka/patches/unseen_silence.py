"""Brokers that do not answer: nobody says which, and what another one leads by now waits for them.

Wrong: a broker that is away, or hangs, is a time-out of 10 s to 30 s, then a line about a connection for each client,
    in the client's words. Meanwhile the client does not ask who leads its partitions now, and what it has sent to the
    silent one goes to the new leader only after that time.
Patch: once a second each client looks at its connections, in its own thread. A broker is silent where a question has no
    answer, or there is no connection; a join may wait for other members, so its question does not count. Where it leads
    partitions of ours, or coordinates our group or transactions, that is said (``downspout.outages``), and the client
    asks who leads them. Once others do, the connection is given up, so that what waits there goes to them.
Self-test: connections, their failures, the brokers' partitions, and the loop's timers.
Since: 3.0.12 was read.
Goes when: a client reports which brokers it waits for, and turns to new leaders by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kafka import errors

from downspout.kafka.noise import GIVEN_UP
from downspout.kafka.patches.bootstrap_draws import SILENT_S, unanswered_since
from downspout.outages import OUTAGES

CONSUMER = {
    "_manager._backoff": "dict",
    "_manager._conns": "dict",
    "_manager._net.call_later": "method",
    "_manager.cluster.brokers": "method",
    "_manager.cluster.partitions_for_broker": "method",
    "_manager.cluster.request_update": "method",
    "_manager.cluster._coordinators": "dict",
    "_manager.cluster._coordinator_brokers": "dict",
    "_coordinator.rejoining": "bool",
}
LOOK_S = 1.0
NAMES_MAX = 3
ELSEWHERE = "is not waited for any more: other brokers have taken over"


class Watch:
    """Watches the connections of one client (a ``KafkaNetClient``).

    Args:
        who: for whom it reads or writes.
    """

    def __init__(self, client: Any, who: str) -> None:
        self._manager, self._cluster, self._who = client._manager, client._manager.cluster, who
        self._joins: Callable[[], Any] = lambda: None
        self._away: dict[Any, float] = {}  # brokers without a connection, since when
        self._names: dict[Any, str] = {}  # Also of brokers that the others have taken off the list
        self._told: set[str] = set()
        self._manager._net.call_later(LOOK_S, self._look_and_go_on)

    def heed_joins(self, consumer: Any) -> None:
        """Let a coordinator be silent while its consumer joins."""
        coordinator = consumer._coordinator
        self._joins = lambda: coordinator.coordinator_id if coordinator.rejoining else None

    def _look_and_go_on(self) -> None:
        if not self._manager.closed:
            self._manager._net.call_later(LOOK_S, self._look_and_go_on)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Say which brokers are waited for, and which no more."""
        told = set()
        for node_id, name in self._known():
            if (found := self._silence(node_id, now)) is None:
                if self._has_heard(node_id, now):
                    OUTAGES.end(name)
                    self._told.discard(name)
                continue
            why, since = found
            self._cluster.request_update()
            if duty := self._duty(node_id):
                told.add(name)
                OUTAGES.waiting(name, self._who, f"{duty}{why}", since)
            elif (connection := self._manager._conns.get(node_id)) is not None and connection.connected:
                connection.close(errors.KafkaConnectionError(f"{name} {GIVEN_UP} {now - since:.0f} s"))
        for name in self._told - told:
            OUTAGES.end(name, ELSEWHERE)
        self._told = told

    def _known(self) -> list[tuple[Any, str]]:
        """Return all brokers; the one that coordinates has a connection of its own for that."""
        for node in [*self._cluster.brokers(), *self._cluster._coordinator_brokers.values()]:
            number = str(node.node_id).removeprefix("coordinator-")
            self._names[node.node_id] = f"broker {number} ({node.host}:{node.port})"
        return list(self._names.items())

    def _silence(self, node_id: Any, now: float) -> tuple[str, float] | None:
        """Return why and since when a broker does not answer; None where it does, or is not asked."""
        connection = self._manager._conns.get(node_id)
        if connection is not None and connection.connected:
            self._away.pop(node_id, None)
            since = unanswered_since(connection)
            if since is None or node_id == self._joins() or now - since <= SILENT_S:
                return None
            return "", since
        is_listed = any(node.node_id == node_id for node in self._cluster.brokers())
        if connection is None and not (is_listed and node_id in self._manager._backoff):
            self._away.pop(node_id, None)
            return None
        return ", no connection", self._away.setdefault(node_id, now)

    def _has_heard(self, node_id: Any, now: float) -> bool:
        connection = self._manager._conns.get(node_id)
        transport = None if connection is None or not connection.connected else connection.transport
        return transport is not None and now - transport.last_read < SILENT_S

    def _duty(self, node_id: Any) -> str:
        """Return what a broker has of ours; nothing, where another one has it."""
        tps = self._cluster.partitions_for_broker(node_id) or ()
        places = sorted(f"{tp.topic}[{tp.partition}]" for tp in tps)
        if places:
            more = f" and {len(places) - NAMES_MAX:,} more" if len(places) > NAMES_MAX else ""
            return f"it leads {', '.join(places[:NAMES_MAX])}{more}"
        return "it coordinates" if node_id in self._cluster._coordinators.values() else ""
