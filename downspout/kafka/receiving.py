"""Receiving much at once: kafka-python reads its sockets by 4 KiB.

A fetch has megabytes, so the calls alone cost more than all that is done with a record in columns. The client asks its
socket again until nothing is left, and takes whatever it gets; so the socket may give it more at a time.
"""

from __future__ import annotations

import logging
from typing import Any

RECEIVE_BYTES = 1024 * 1024

log = logging.getLogger("downspout.kafka")


class WideSocket:
    """A socket that gives more than it is asked for; in all else the one that it was made of.

    Args:
        socket: a connected one.
    """

    __slots__ = ("_socket",)

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def recv(self, size: int) -> bytes:
        """Return what is there."""
        found: bytes = self._socket.recv(max(size, RECEIVE_BYTES))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def receive_widely(manager: Any) -> None:
    """Let a client's connections, from now on, read much at once. An unknown client is left as it is."""
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
