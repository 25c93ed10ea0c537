"""Where the page is."""

from __future__ import annotations

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


def listen(host: str, port: int, option: str = "--ui") -> socket.socket:
    """Return a socket that listens there; ``option`` is what named the port.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{option} {host}:{port}: {error.strerror}", cure="--ui 127.0.0.1:0") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(32)
    except OSError as error:
        found.close()
        raise ConfigError(
            f"{option} {host}:{port}: cannot listen there: {error.strerror}",
            cure=f"end what has the port, or another one: {option} {port + 1 if port else 9000} (0: a free one)",
        ) from None
    return found


def url_of(listener: socket.socket) -> str:
    """Return the page's address."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
