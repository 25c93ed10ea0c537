"""Sockets that are read by 4 KiB.

Wrong: a connection asks its socket for 4 KiB at a time. A fetch has megabytes, so the calls alone cost more than
    all that is done with a record in columns.
Patch: the client asks its socket again until nothing is left, and takes whatever it gets; so the socket gives more
    at a time than it is asked for.
Self-test: at each connection that is made. A client that makes them elsewhere is left as it is, and reads little at
    a time.
Since: 3.0.9 or before; that and 3.0.12 were read.
Goes when: the client reads as much as is there, or lets a property say how much.
"""

from __future__ import annotations

import logging
from typing import Any

OPTIONAL = {"_manager._build_transport": "method", "transport._sock": "socket"}

RECEIVE_BYTES = 1024 * 1024

log = logging.getLogger("downspout.kafka")


class WideSocket:
    """A socket that gives more than it is asked for; in all else the one that it was made of."""

    __slots__ = ("_socket",)

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def recv(self, size: int) -> bytes:
        """Return what is there."""
        found: bytes = self._socket.recv(max(size, RECEIVE_BYTES))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def read_more_at_once(consumer: Any) -> None:
    """Let a consumer's connections, from now on, read much at once. An unknown client is left as it is."""
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
