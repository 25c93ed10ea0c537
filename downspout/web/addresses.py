"""Where the page is, and who may ask for it by which name."""

from __future__ import annotations

import ipaddress
import socket

from downspout.errors import ConfigError

HOST, PORT = "127.0.0.1", 8650
"""Where the page is if ``--ui`` does not say."""


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``--ui [HOST:]PORT``.

    Raises:
        ConfigError: it is neither a port nor a host with one.

    >>> parse_address(""), parse_address("9000"), parse_address("0.0.0.0:9000"), parse_address("[::1]:9000")
    (('127.0.0.1', 8650), ('127.0.0.1', 9000), ('0.0.0.0', 9000), ('::1', 9000))
    """
    if not text:
        return HOST, PORT
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535 or text.startswith(":"):
        raise ConfigError(
            f"--ui {text} is neither a port nor HOST:PORT",
            cure="--ui 9000, after the topology's file (0: a free port)",
        )
    return host.strip("[]") or HOST, int(port)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--ui {host}:{port}: {error.strerror}", cure="--ui 127.0.0.1:0") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(32)
    except OSError as error:
        found.close()
        raise ConfigError(
            f"--ui {host}:{port}: cannot listen there: {error.strerror}",
            cure=f"end what has the port, or another one: --ui {port + 1 if port else 9000} (0: a free one)",
        ) from None
    return found


def url_of(listener: socket.socket) -> str:
    """Return the page's address."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def may_ask_for(header: str, host: str) -> bool:
    """Return whether a request's Host header names us.

    A foreign page in a browser of this machine may let its own name point here (DNS rebinding) and would then read what
    we answer. Its requests carry that name. So a name must be one that we were given; an address cannot be rebound.

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
