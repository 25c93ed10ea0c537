"""Ports of this machine's loopback address."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Where free ports are looked for: below the range from which systems take the local ends of outgoing connections. A
client that retries a stopped broker's port could otherwise be given that very port and connect to itself."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        # As the JVM does: connections of a stopped broker that linger in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(avoid: int | None = None, chance: random.Random | None = None) -> int:
    """Return a port that was free a moment ago; another process may take it before the broker does."""
    chance = chance or random.Random()
    for _ in range(1000):
        port = chance.choice(PORTS)
        if port != avoid and is_free(port):
            return port
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop}")
