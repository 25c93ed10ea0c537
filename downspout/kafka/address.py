"""Bootstrap strings: what they say, who answers at an address, and what is wrong where nobody does.

A client retries in the background until its time is over and cannot say what is wrong. Here one question is asked of
one address, without a client: nobody listens, the name does not resolve, something else listens, a broker listens and
refuses us, or a broker of this cluster answers.
"""

from __future__ import annotations

import queue
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from downspout.errors import ConfigError
from downspout.kafka import handshake
from downspout.kafka.frames import NotKafkaError, exchange

__all__ = ["START", "Answer", "NotKafkaError", "Trouble", "ask", "ask_all", "parse_bootstrap"]

METADATA = 3
VERSION = 2  # the oldest version that has the cluster's id; still spoken by Kafka 4
PORT_DEFAULT = 9092
ANSWER_S_MAX = 3.0
ADVERTISED_S_MAX = 1.0  # For a connection to an address that a broker names
SILENT_S_MAX = 0.5
NEXT_S = 0.3  # So long after one address the next one is asked too: a healthy broker takes a few milliseconds
START = "start the broker (`downspout kafka start`), or correct kafka.bootstrap"


class Trouble(NamedTuple):
    """Why an address cannot be used."""

    what: str
    cure: str = START


def parse_bootstrap(bootstrap: str, setting: str = "kafka.bootstrap") -> list[tuple[str, int]]:
    """Return the addresses in ``host:port,host:port``; an IPv6 address stands in brackets.

    >>> parse_bootstrap("one:9093, two, [::1]:9094")
    [('one', 9093), ('two', 9092), ('::1', 9094)]
    """
    addresses = []
    for part in (part.strip() for part in bootstrap.split(",")):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(PORT_DEFAULT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
            raise ConfigError(
                f"{setting} = {bootstrap!r}: {part!r} is not an address",
                cure="host:port,host:port, or `embedded`",
            )
        addresses.append((host, int(port)))
    return addresses


class Answer(NamedTuple):
    """What a broker said about its cluster."""

    cluster_id: str
    brokers: tuple[str, ...]
    """Addresses (``host:port``) of the brokers that serve clients; empty while a broker is still starting."""


def ask(host: str, port: int, timeout_s: float = 2.0, client: Mapping[str, Any] | None = None) -> Answer:
    """Return what the broker at this address says.

    ``timeout_s`` is the longest wait, for the connection and for each part of an answer.

    Raises:
        OSError: no connection, or none in time (``socket.gaierror``: unknown name; ``TimeoutError``: silence).
        NotKafkaError: no broker that speaks as ``client`` says.
        RefusedError: a broker, and it does not let us in.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        # an empty list of topics: none
        entered = handshake.enter(connection, host, client or {})
        return _parse(exchange(entered, METADATA, VERSION, struct.pack(">i", 0)))


def _parse(answer: Any) -> Answer:
    """Read brokers (node, host, port, rack) and the cluster's id; what follows is of no interest."""
    brokers = []
    for _ in range(answer.number(">i")):
        answer.number(">i")
        host = answer.text()
        brokers.append(f"{host}:{answer.number('>i')}")
        answer.text()
    return Answer(answer.text(), tuple(brokers))


Address = tuple[str, int]


def ask_all(
    addresses: Sequence[Address], client: Mapping[str, Any] | None = None
) -> tuple[Address | None, list[Trouble]]:
    """Return the first address that can be used, or None and what is wrong with each.

    A silent one does not hold the others up. All together take 3 to 5 s at most.

    Raises:
        ConfigError: the properties make no sense.
    """
    client = client or {}
    handshake.check_client(client)
    answers: queue.SimpleQueue[tuple[int, Trouble | Exception | None]] = queue.SimpleQueue()

    def ask_one(number: int) -> None:
        try:
            answers.put((number, _trouble(*addresses[number], client)))
        except Exception as error:
            answers.put((number, error))

    wrong: dict[int, Trouble] = {}
    asked = 0
    while len(wrong) < len(addresses):
        if asked < len(addresses):
            threading.Thread(target=ask_one, args=(asked,), name="ask-kafka", daemon=True).start()
            asked += 1
        try:
            number, found = answers.get(timeout=NEXT_S if asked < len(addresses) else None)
        except queue.Empty:
            continue
        if isinstance(found, Exception):
            raise found
        if found is None:
            return addresses[number], []
        wrong[number] = found
    return None, [wrong[number] for number in sorted(wrong)]


def _trouble(host: str, port: int, client: Mapping[str, Any]) -> Trouble | None:
    try:
        if client.get("proxy_url") or client.get("socks5_proxy"):
            return None  # the way through a proxy is the client's alone
        if handshake.can_enter(client):
            return _advertised(host, port, ask(host, port, ANSWER_S_MAX, client))
        else:
            with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as connection:
                handshake.enter(connection, host, client)
    except socket.gaierror:
        return Trouble(f"the host name {host} is unknown")
    except TimeoutError:
        # Who is silent once is silent again: a short look, for a spout must answer within 5 s whatever its broker does.
        return _mismatch(host, port, client, SILENT_S_MAX) or Trouble(f"{host}:{port} does not answer")
    except handshake.RefusedError as error:
        return Trouble(f"{host}:{port}: {error}", error.cure)
    except (NotKafkaError, ssl.SSLError):
        return _mismatch(host, port, client) or Trouble(f"what listens on {host}:{port} is not a Kafka broker")
    except OSError as error:
        return Trouble(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
    return None


def _advertised(host: str, port: int, answer: Answer) -> Trouble | None:
    """Return what is wrong where none of the addresses can be reached under which the brokers want to be found.

    A client learns them from whichever broker it asks first, and then speaks to these alone. It would name the address
    that works.
    """
    wrong = []
    if f"{host}:{port}" in answer.brokers:
        return None
    for broker in answer.brokers:
        name, _, number = broker.rpartition(":")
        try:
            socket.create_connection((name, int(number)), timeout=ADVERTISED_S_MAX).close()
        except socket.gaierror:
            wrong.append(f"{broker} (unknown name)")
        except (OSError, UnicodeError) as error:
            wrong.append(f"{broker} ({(getattr(error, 'strerror', None) or str(error)).lower()})")
        else:
            return None
    if not wrong:
        return None  # it is still starting
    return Trouble(
        f"{host}:{port} answers, but its brokers say that they are at {', '.join(wrong)}, where nothing answers here",
        "advertised.listeners of the broker: an address that its clients can reach; or a name for it in /etc/hosts",
    )


def _mismatch(host: str, port: int, client: Mapping[str, Any], step_s_max: float = 1.0) -> Trouble | None:
    """Return what is wrong where a broker is there and wants to be spoken to in another way."""
    ours, found = handshake.protocol_of(client), handshake.listener_at(host, port, step_s_max)
    if found is None:
        return None
    if found.protocol == ours:
        what = "closes the connection"
        cure = "kafka.client.ssl_certfile and ssl_keyfile: it may want a certificate of the client"
        return Trouble(f"{host}:{port} {what}", cure if ours == "SSL" else "look at the broker's log")
    by = f" ({', '.join(found.mechanisms)})" if found.mechanisms else ""
    return Trouble(
        f"{host}:{port} speaks {found.protocol}{by}, but kafka.client.security_protocol is {ours}",
        f"kafka.client.security_protocol={found.protocol}",
    )
