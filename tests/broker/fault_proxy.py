"""A proxy between a client and its brokers that loses answers: what was written is written, and nobody hears of it.

The client reaches all brokers through it (``proxy_url``), so what they say of their addresses may stay as it is.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PRODUCE = 0
"""The number of that kind of request."""


class FaultProxy:
    """Hands on what it gets, but for answers to produce requests that a test has it lose.

    Attributes:
        url: for ``proxy_url``.
        lost: how many answers were lost.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.url = "http://{}:{}".format(*listener.getsockname())
        self._to_lose = self.lost = 0
        self._keeps = False
        self._sockets: list[socket.socket] = [listener]

    def lose(self, count: int) -> None:
        """Lose so many of the next answers to produce requests, each with its connection."""
        self._to_lose, self._keeps, self.lost = count, False, 0

    def keep(self) -> None:
        """Lose all answers to produce requests, and close no connection: who has asked goes on waiting."""
        self._keeps = True

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                _in_thread(self._connect, client)

    def end(self) -> None:
        for each in self._sockets:
            _close(each)

    def _connect(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        host, _, port = head.split()[1].decode().rpartition(":")
        broker = socket.create_connection((host, int(port)))
        self._sockets.append(broker)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        asked: set[bytes] = set()
        """The numbers of produce requests without an answer."""
        _in_thread(self._requests, client, broker, asked)
        with suppress(OSError):
            while frame := _frame(broker):
                is_lost = frame[4:8] in asked and (self._keeps or self.lost < self._to_lose)
                self.lost += is_lost
                if not is_lost:
                    client.sendall(frame)
                elif not self._keeps:
                    break
        _close(client)
        _close(broker)

    @staticmethod
    def _requests(client: socket.socket, broker: socket.socket, asked: set[bytes]) -> None:
        with suppress(OSError):
            while frame := _frame(client):
                if int.from_bytes(frame[4:6]) == PRODUCE:
                    asked.add(frame[8:12])
                broker.sendall(frame)
        _close(broker)


def _frame(sender: socket.socket) -> bytes:
    """Return the next request or answer, with its length before it; nothing at the end."""
    data = b""
    wanted = 4
    while len(data) < wanted:
        got = sender.recv(wanted - len(data))
        if not got:
            return b""
        data += got
        if len(data) == 4:
            wanted = 4 + int.from_bytes(data)
    return data


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _in_thread(*call: object) -> None:
    target, *args = call
    threading.Thread(target=target, args=args, daemon=True).start()  # type: ignore[arg-type]


@contextmanager
def fault_proxy() -> Iterator[FaultProxy]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = FaultProxy(listener)
        _in_thread(proxy.serve)
        try:
            yield proxy
        finally:
            proxy.end()
