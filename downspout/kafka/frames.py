"""Questions and answers on a Kafka connection, one at a time, without a client."""

from __future__ import annotations

import socket
import struct

ANSWER_BYTES_MAX = 4 * 1024 * 1024
TLS_ALERT = b"\x15\x03"
CLIENT_ID = b"downspout"


class NotKafkaError(Exception):
    """Something answered, or hung up, but not as a Kafka broker does."""


class HungUpError(NotKafkaError):
    """The connection was closed without an answer, or a TLS alert came: a broker does so that wants to be spoken to
    in another way."""


class Reader:
    """Reads numbers and texts of an answer, one after the other.

    >>> reader = Reader(bytes([0, 0, 0, 7, 0, 2]) + b"ab" + bytes([255, 255]))
    >>> reader.number(">i"), reader.text(), reader.text()
    (7, 'ab', '')
    """

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._place = 0

    def number(self, form: str) -> int:
        """Return the next number, of this form of ``struct``."""
        try:
            (value,) = struct.unpack_from(form, self._answer, self._place)
        except struct.error:
            raise NotKafkaError("the answer is cut short") from None
        self._place += struct.calcsize(form)
        return int(value)

    def data(self, form: str) -> bytes:
        """Return the next bytes, whose length precedes them; a null is empty."""
        size = max(self.number(form), 0)  # -1 stands for null
        if self._place + size > len(self._answer):
            raise NotKafkaError("the answer is cut short")
        self._place += size
        return self._answer[self._place - size : self._place]

    def text(self) -> str:
        """Return the next text."""
        try:
            return self.data(">h").decode()
        except UnicodeDecodeError as error:
            raise NotKafkaError(f"the answer cannot be read: {error}") from None


def text(value: str) -> bytes:
    """Return a text as requests have it."""
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def exchange(connection: socket.socket, key: int, version: int, body: bytes) -> Reader:
    """Ask, and return what follows the header of the answer.

    ``key`` and ``version`` say which request; a version whose headers are not of the flexible kind.

    Raises:
        OSError: the connection broke, or nothing came in time.
    """
    header = struct.pack(">hhih", key, version, 1, len(CLIENT_ID)) + CLIENT_ID
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    start = _read(connection, 4)
    if start[:2] == TLS_ALERT:
        raise HungUpError("a TLS alert came for an answer")
    (size,) = struct.unpack(">i", start)
    if not 6 <= size <= ANSWER_BYTES_MAX:
        raise NotKafkaError("it answers, but not as a Kafka broker")
    reader = Reader(_read(connection, size))
    if reader.number(">i") != 1:
        raise NotKafkaError("the answer is to another question")
    return reader


def _read(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise HungUpError("the connection was closed without an answer")
        parts += part
    return parts
