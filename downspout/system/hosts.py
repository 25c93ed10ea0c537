"""By which names a server on this machine may be asked."""

from __future__ import annotations

import ipaddress


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


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> [is_loopback(each) for each in ("127.0.0.1", "::1", "0.0.0.0", "192.0.2.1")]
    [True, True, False, False]
    """
    return ipaddress.ip_address(address).is_loopback
