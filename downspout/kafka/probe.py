"""One question to one address, without a client: which Kafka cluster are you?

A client retries in the background until its time is over and cannot tell what is wrong; this asks once and says it:
nobody listens, the name does not resolve, something else listens, a broker listens and does not let us in, or a broker
of this cluster answers.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from downspout.kafka import handshake
from downspout.kafka.frames import NotKafkaError, exchange

__all__ = ["Answer", "NotKafkaError", "ask"]

METADATA = 3
VERSION = 2  # the oldest version that tells the cluster's id; still spoken by Kafka 4


class Answer(NamedTuple):
    """What a broker said about its cluster."""

    cluster_id: str
    brokers: tuple[str, ...]
    """Addresses (``host:port``) of the brokers that serve clients; empty while a broker is still starting."""


def ask(host: str, port: int, timeout_s: float = 2.0, client: Mapping[str, Any] | None = None) -> Answer:
    """Return what the broker at this address says.

    Args:
        host: name or address.
        port: TCP port.
        timeout_s: longest wait, for the connection and for each part of an answer.
        client: kafka-python properties, of which those about TLS and SASL are used; not given: plaintext.

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
