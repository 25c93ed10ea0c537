"""The client's properties, its sockets, its choice of brokers, and brokers that do not answer."""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.net.transport import KafkaSSLTransport

from downspout.kafka.log_filters import GIVEN_UP
from downspout.kafka.patches.private_api import ROOTS, TLS, absent, unknown_client
from downspout.outages import OUTAGES

log = logging.getLogger("downspout.kafka")


# --- Properties are accepted and dropped ---


def pass_properties_on(cluster: Any, properties: Mapping[str, Any], *names: str) -> None:
    """Pass properties of a client on to its metadata.

    Wrong: ``ClusterMetadata`` never receives ``allow_auto_create_topics`` and ``retry_backoff_ms``, though they are
        documented: consumers create the topics they ask for (kafka-python's issue 2083), and a producer always waits
        100 ms for a new topic.
    Goes when: ``KafkaConnectionManager`` passes both on.
    """
    cluster.config.update({name: properties[name] for name in names})


def pass_on_to_consumer(consumer: Any) -> None:
    """Make a consumer respect ``allow_auto_create_topics``."""
    pass_properties_on(consumer._cluster, consumer.config, "allow_auto_create_topics")


def pass_on_to_producer(producer: Any) -> None:
    """Make a producer respect ``allow_auto_create_topics`` and ``retry_backoff_ms``."""
    pass_properties_on(producer._metadata, producer.config, "allow_auto_create_topics", "retry_backoff_ms")


# --- The TLS context is private ---


def tls_context(client: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context that kafka-python makes from a client's properties.

    Wrong: invalid TLS properties, or an untrusted certificate, are retried in the background until a "timed out".
        Nothing public returns the client's TLS context.
    Goes when: the client returns its TLS context, or reports at once why it cannot connect.

    Raises:
        BrokerError: the installed kafka-python is not supported.
        OSError, ValueError: a file cannot be read, or is invalid (an SSLError).
    """
    if path := absent(ROOTS, TLS):
        raise unknown_client(path)
    given = {name: client[name] for name in KafkaSSLTransport.DEFAULT_CONFIG if name in client}
    context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context({**KafkaSSLTransport.DEFAULT_CONFIG, **given})
    return context


# --- Sockets are read 4 KiB at a time ---

RECEIVE_BYTES = 1024 * 1024


class WideSocket:
    """Wraps a socket, and returns more bytes than requested."""

    __slots__ = ("_socket",)

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def recv(self, size: int) -> bytes:
        """Return available bytes, up to a mebibyte."""
        found: bytes = self._socket.recv(max(size, RECEIVE_BYTES))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def read_more_at_once(consumer: Any) -> None:
    """Make a consumer's new connections read up to a mebibyte per call; leave an unknown client as it is.

    Wrong: a connection reads 4 KiB at a time, until the socket is empty. For a fetch of megabytes, these calls cost
        more than processing its records as columns.
    Goes when: the client reads all available bytes, or a property sets the size.
    """
    manager = consumer._manager
    build = getattr(manager, "_build_transport", None)
    if build is None:
        log.debug("this kafka-python makes its connections elsewhere: they read little at a time")
        return

    async def build_widely(*args: Any, **more: Any) -> Any:
        transport = await build(*args, **more)
        if getattr(transport, "_sock", None) is not None:
            transport._sock = WideSocket(transport._sock)
        return transport

    manager._build_transport = build_widely


# --- Requests go to a silent broker though others would answer ---

SILENT_S = 3.0
"""A broker is silent if it leaves a request unanswered for longer; a fetch may wait for 0.5 s."""


def prefer_brokers_that_answer(client: Any, first: tuple[str, int] | None) -> None:
    """Make a client (``KafkaNetClient``) prefer brokers that answer, beginning with ``first``, which just answered.

    A bootstrap address gets no more time than any connection. Requests that any broker can answer go to a failed or
    silent one only if there is no other.

    Wrong: a new client tries a random address until its whole timeout is up, and after a failure may draw the same one:
        one silent broker of three fails half of all starts. Later, requests that any broker can answer go to one
        without a connection rather than to a busy one: to the silent broker, again and again, for up to 30 s each.
    Goes when: the client tries the whole list before it repeats an address, and remembers silent brokers.
    """
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

    def is_barred(node: Any) -> bool:
        connection = manager._conns.get(node.node_id)
        return bool((connection is not None and connection.paused) or manager.connection_delay(node.node_id) > 0)

    def rank(node: Any) -> tuple[bool, bool, int, bool, float]:
        connection = manager._conns.get(node.node_id)
        waits = 0 if connection is None else len(connection.in_flight_requests) + connection.initializing
        is_idle = connection is not None and connection.connected and not waits
        since = None if connection is None else unanswered_since(connection)
        shuns = failed(node) or (since is not None and time.monotonic() - since > SILENT_S)
        return shuns, not is_idle, waits, (node.host, node.port) != first, random.random()

    def least_loaded_node() -> Any:
        ready = [node for node in cluster.brokers() if not is_barred(node)]
        return min(ready, key=rank).node_id if ready else None

    cluster.bootstrap_brokers, manager.get_connection = bootstrap_brokers, get_connection
    manager.least_loaded_node = least_loaded_node


def unanswered_since(connection: Any) -> float | None:
    """Return since when, on the monotonic clock, the oldest request waits in silence; None: no request waits."""
    asked, transport = list(connection.in_flight_requests)[:1], connection.transport
    if not asked or transport is None:
        return None
    _, _, sent_at, *_ = asked[0]
    return float(max(sent_at, transport.last_read))


# --- A consumer does not tell whether it is connected ---

UNCONNECTED_S = 5.0
"""How long a request may be unanswered, in addition to a fetch's wait, before the broker counts as unconnected."""


def connected(consumer: Any) -> Callable[[], bool]:
    """Return a function that tells, without a request, whether a connected broker answers the consumer.

    A join may wait for other members, so requests to the coordinator do not count meanwhile.

    Wrong: ``bootstrap_connected`` covers the start only. While all brokers are down, polls return nothing, as at the
        end of a log. A hung broker even keeps its connections.
    Goes when: a consumer tells whether it is connected.
    """
    connections, coordinator = consumer._manager.least_used_connections, consumer._coordinator
    silent_s = UNCONNECTED_S + consumer.config["fetch_max_wait_ms"] / 1000

    def is_connected() -> bool:
        joins_at = coordinator.coordinator_id if coordinator.rejoining else None
        since = time.monotonic() - silent_s
        try:
            open_now = connections()
            asked = [list(one.in_flight_requests)[:1] for one in open_now if one.node_id != joins_at]
        except RuntimeError:  # the client's own thread changes the collection right now
            return True
        is_waiting = any(sent_at < since for requests in asked for _, _, sent_at, *_ in requests)
        heard = [transport.last_read for one in open_now if (transport := one.transport) is not None]
        return bool(heard) and not (is_waiting and max(heard) < since)

    return is_connected


# --- Silent brokers are not named, nor replaced by new leaders ---

CHECK_S = 1.0
NAMES_MAX = 3
ELSEWHERE = "is not waited for any more: other brokers have taken over"


class ConnectionWatch:
    """Checks the connections of one client (``KafkaNetClient``) once a second, on the client's own thread.

    A broker is silent if it leaves a request unanswered or has no connection. If it leads our partitions, or
    coordinates our group or transactions, ``downspout.outages`` reports it, and the client refreshes its metadata. Once
    others lead, the connection is closed, and the client resends its requests to them.

    Wrong: a dead or hung broker causes a timeout of 10 s to 30 s, then one line per client about a connection.
        Meanwhile the client does not look for new leaders, and requests to the silent broker are resent only then.
    Goes when: a client reports silent brokers, and turns to new leaders by itself.

    Args:
        who: the reader or writer, for the report.
    """

    def __init__(self, client: Any, who: str) -> None:
        self._manager, self._cluster, self._who = client._manager, client._manager.cluster, who
        self._joins_at: Callable[[], Any] = lambda: None
        self._away: dict[Any, float] = {}  # since when brokers have had no connection
        self._names: dict[Any, str] = {}  # also of removed brokers
        self._reported: set[str] = set()
        self._manager._net.call_later(CHECK_S, self._check_and_repeat)

    def allow_joins(self, consumer: Any) -> None:
        """Ignore a silent coordinator while its consumer joins, because it waits for other members."""
        coordinator = consumer._coordinator
        self._joins_at = lambda: coordinator.coordinator_id if coordinator.rejoining else None

    def _check_and_repeat(self) -> None:
        if not self._manager.closed:
            self._manager._net.call_later(CHECK_S, self._check_and_repeat)
            self.check(time.monotonic())

    def check(self, now: float) -> None:
        """Report silent brokers, and those that answer again."""
        reported = set()
        for node_id, name in self._known():
            if (found := self._silence(node_id, now)) is None:
                if self._has_heard(node_id, now):
                    OUTAGES.end(name)
                    self._reported.discard(name)
                continue
            why, since = found
            self._cluster.request_update()
            if duty := self._duty(node_id):
                reported.add(name)
                OUTAGES.waiting(name, self._who, f"{duty}{why}", since)
            elif (connection := self._manager._conns.get(node_id)) is not None and connection.connected:
                connection.close(errors.KafkaConnectionError(f"{name} {GIVEN_UP} {now - since:.0f} s"))
        for name in self._reported - reported:
            OUTAGES.end(name, ELSEWHERE)
        self._reported = reported

    def _known(self) -> list[tuple[Any, str]]:
        """Return the ids and names of all brokers; a coordinator has a connection, and an id, of its own."""
        for node in [*self._cluster.brokers(), *self._cluster._coordinator_brokers.values()]:
            number = str(node.node_id).removeprefix("coordinator-")
            self._names[node.node_id] = f"broker {number} ({node.host}:{node.port})"
        return list(self._names.items())

    def _silence(self, node_id: Any, now: float) -> tuple[str, float] | None:
        """Return why and since when a broker is silent; None: it answers, or no request waits."""
        connection = self._manager._conns.get(node_id)
        if connection is not None and connection.connected:
            self._away.pop(node_id, None)
            since = unanswered_since(connection)
            if since is None or node_id == self._joins_at() or now - since <= SILENT_S:
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
        """Return the broker's role for us; empty: none."""
        tps = self._cluster.partitions_for_broker(node_id) or ()
        places = sorted(f"{tp.topic}[{tp.partition}]" for tp in tps)
        if places:
            more = f" and {len(places) - NAMES_MAX:,} more" if len(places) > NAMES_MAX else ""
            return f"it leads {', '.join(places[:NAMES_MAX])}{more}"
        return "it coordinates" if node_id in self._cluster._coordinators.values() else ""
