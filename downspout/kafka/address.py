"""Bootstrap strings: what they say, and what is wrong where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from downspout.errors import ConfigError
from downspout.kafka import probe

PORT_DEFAULT = 9092
ANSWER_S_MAX = 3.0


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


def diagnose(addresses: Sequence[tuple[str, int]], *, plaintext: bool = True) -> str | None:
    """Return None if one of the addresses answers, else what is wrong with each, in words.

    Args:
        addresses: from :func:`parse_bootstrap`; asked one after the other, each for at most 3 s.
        plaintext: whether brokers there speak plaintext; otherwise an accepted connection counts as an answer.
    """
    wrong = []
    for host, port in addresses:
        try:
            if plaintext:
                probe.ask(host, port, ANSWER_S_MAX)
            else:
                socket.create_connection((host, port), timeout=ANSWER_S_MAX).close()
        except socket.gaierror:
            wrong.append(f"the host name {host} is unknown")
        except TimeoutError:
            wrong.append(f"{host}:{port} is silent")
        except OSError as error:
            wrong.append(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
        except probe.NotKafkaError:
            wrong.append(f"what listens on {host}:{port} is no Kafka broker (or wants TLS)")
        else:
            return None
    return "; ".join(wrong)
