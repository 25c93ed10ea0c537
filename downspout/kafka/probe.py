"""One question to one address, without a client: which Kafka cluster are you?

A client retries in the background until its time is over and cannot tell what is wrong; this asks once and says it:
nobody listens, the name does not resolve, something else listens, or a broker of this cluster answers. It speaks
plaintext only.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

METADATA = 3
VERSION = 2  # the oldest version that tells the cluster's id; still spoken by Kafka 4
ANSWER_BYTES_MAX = 4 * 1024 * 1024


class NotKafkaError(Exception):
    """Something answered, or hung up, but not as a Kafka broker does."""


class Answer(NamedTuple):
    """What a broker said about its cluster."""

    cluster_id: str
    brokers: tuple[str, ...]
    """Addresses (``host:port``) of the brokers that serve clients; empty while a broker is still starting."""


def ask(host: str, port: int, timeout_s: float = 2.0) -> Answer:
    """Return what the broker at this address says.

    Args:
        host: name or address.
        port: TCP port.
        timeout_s: longest wait, for the connection and for each part of the answer.

    Raises:
        OSError: no connection, or none in time (``socket.gaierror``: unknown name; ``TimeoutError``: silence).
        NotKafkaError: no broker that speaks plaintext.
    """
    # header: api key, version, correlation id, client id; body: an empty list of topics, which means none
    body = struct.pack(">hhih9si", METADATA, VERSION, 1, 9, b"downspout", 0)
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _read(connection, 4))
        if not 10 <= size <= ANSWER_BYTES_MAX:
            raise NotKafkaError(f"{host}:{port} answers, but not as a Kafka broker")
        return _parse(_read(connection, size))


def _read(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise NotKafkaError("the connection was closed without an answer")
        parts += part
    return parts


def _parse(answer: bytes) -> Answer:
    """Read correlation id, brokers (node, host, port, rack) and the cluster's id; what follows is of no interest."""
    place = 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(form, answer, place)
        place += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal place
        size = max(number(">h"), 0)  # -1 stands for null
        place += size
        return answer[place - size : place].decode()

    try:
        if number(">i") != 1:
            raise NotKafkaError("the answer is to another question")
        brokers = []
        for _ in range(number(">i")):
            number(">i")
            host = text()
            brokers.append(f"{host}:{number('>i')}")
            text()
        return Answer(text(), tuple(brokers))
    except (struct.error, UnicodeDecodeError) as error:
        raise NotKafkaError(f"the answer cannot be read: {error}") from None
