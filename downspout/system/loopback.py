"""Servers on the loopback address: free ports, and the check of Host headers."""

from __future__ import annotations

import ipaddress
import random
import socket

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Range of free ports, below the ephemeral ports of outgoing connections. Otherwise a client that retries a stopped
broker's port could get that port as its own and connect to itself."""


def is_free(port: int) -> bool:
    """Return whether a server could now listen on this port of the loopback address."""
    with socket.socket() as probe:
        # Like the JVM: connections of a stopped broker in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(avoid: int | None = None) -> int:
    """Return a port that was just free; another process may take it before the caller."""
    for _ in range(1000):
        port = random.choice(PORTS)
        if port != avoid and is_free(port):
            return port
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop}")


def may_ask_for(header: str, host: str) -> bool:
    """Return whether a request's Host header names this server.

    With DNS rebinding, a foreign page in a local browser can point its own name here and read our answers. Its requests
    carry that name, so only our own names are accepted; addresses cannot be rebound.

    >>> [may_ask_for(each, "127.0.0.1") for each in ("127.0.0.1:80", "localhost:80", "[::1]:80", "evil.example:80")]
    [True, True, True, False]
    >>> may_ask_for("build-7:8650", "build-7"), may_ask_for("", "127.0.0.1")
    (True, False)
    """
    name = header.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name in ("localhost", host.lower()):
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> [is_loopback(each) for each in ("127.0.0.1", "::1", "0.0.0.0", "192.0.2.1")]
    [True, True, False, False]
    """
    return ipaddress.ip_address(address).is_loopback
