"""Bootstrap strings: what they say, and what is wrong where nobody answers."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from downspout.errors import ConfigError
from downspout.kafka import handshake, probe

PORT_DEFAULT = 9092
ANSWER_S_MAX = 3.0
SILENT_S_MAX = 0.5
START = "start the broker (`downspout kafka start`), or correct kafka.bootstrap"


class Trouble(NamedTuple):
    """Why an address cannot be used."""

    what: str
    cure: str = START


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Return the addresses in ``host:port,host:port``; an IPv6 address stands in brackets.

    Raises:
        ConfigError: it is malformed.

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
                f"kafka.bootstrap = {bootstrap!r}: {part!r} is no address", cure="host:port,host:port, or `embedded`"
            )
        addresses.append((host, int(port)))
    return addresses


def diagnose(addresses: Sequence[tuple[str, int]], client: Mapping[str, Any] | None = None) -> str | None:
    """Return None if one of the addresses can be used, else what is wrong with each, in words."""
    return "; ".join(trouble.what for trouble in troubles(addresses, client)) or None


def troubles(addresses: Sequence[tuple[str, int]], client: Mapping[str, Any] | None = None) -> list[Trouble]:
    """Return what is wrong with each address; nothing if one of them can be used.

    Args:
        addresses: from :func:`parse_bootstrap`; asked one after the other, each for 3 or 4 s at most.
        client: kafka-python properties; those about TLS and SASL are used.

    Raises:
        ConfigError: the properties make no sense.
    """
    client = client or {}
    handshake.check_client(client)
    wrong = []
    for host, port in addresses:
        if (trouble := _trouble(host, port, client)) is None:
            return []
        wrong.append(trouble)
    return wrong


def _trouble(host: str, port: int, client: Mapping[str, Any]) -> Trouble | None:
    try:
        if client.get("proxy_url") or client.get("socks5_proxy"):
            return None  # the way through a proxy is the client's alone
        if handshake.can_enter(client):
            probe.ask(host, port, ANSWER_S_MAX, client)
        else:
            with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as connection:
                handshake.enter(connection, host, client)
    except socket.gaierror:
        return Trouble(f"the host name {host} is unknown")
    except TimeoutError:
        # Who is silent once is silent again: a short look, for a spout must answer within 5 s whatever its broker does.
        return _mismatch(host, port, client, SILENT_S_MAX) or Trouble(f"{host}:{port} is silent")
    except handshake.RefusedError as error:
        return Trouble(f"{host}:{port}: {error}", error.cure)
    except (probe.NotKafkaError, ssl.SSLError):
        return _mismatch(host, port, client) or Trouble(f"what listens on {host}:{port} is no Kafka broker")
    except OSError as error:
        return Trouble(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
    return None


def _mismatch(host: str, port: int, client: Mapping[str, Any], step_s_max: float = 1.0) -> Trouble | None:
    """Return what is wrong where a broker is there and wants to be spoken to in another way."""
    ours, found = handshake.protocol_of(client), handshake.listener_at(host, port, step_s_max)
    if found is None:
        return None
    if found.protocol == ours:
        what = "hangs up"
        cure = "kafka.client.ssl_certfile and ssl_keyfile: it may want a certificate of the client"
        return Trouble(f"{host}:{port} {what}", cure if ours == "SSL" else "look at the broker's log")
    by = f" ({', '.join(found.mechanisms)})" if found.mechanisms else ""
    return Trouble(
        f"{host}:{port} speaks {found.protocol}{by}, and kafka.client.security_protocol is {ours}",
        f"kafka.client.security_protocol={found.protocol}",
    )
