"""Names that stand for a cluster in ``kafka.bootstrap``, beside addresses: they are in ``downspout.registry``.

``embedded`` is such a name. So nothing that talks to Kafka knows how a broker is found that runs on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from downspout import registry
from downspout.settings.secrets import resolve_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Access = tuple[str, dict[str, str]]
"""An address, and the client properties that it takes to be let in, in kafka-python's spelling."""


def is_scheme(bootstrap: str) -> bool:
    """Return whether a bootstrap string is a registered name and no address."""
    return bootstrap in registry.schemes


def access_of(bootstrap: str) -> Access:
    """Return the address behind a bootstrap string, which is the string itself where it is no registered name.

    Raises:
        BrokerError: the cluster that the name stands for does not run.

    >>> access_of("127.0.0.1:9092")
    ('127.0.0.1:9092', {})
    """
    find: Callable[[], Access] | None = registry.schemes.get(bootstrap)
    return find() if find is not None else (bootstrap, {})


def access_with(bootstrap: str, client: Mapping[str, Any], *, resolved: bool) -> tuple[str, dict[str, Any]]:
    """Return the address behind a bootstrap string, and a client's properties with those that it takes to be let in.

    Args:
        bootstrap: an address, or a registered name.
        client: the user's properties, which are stronger.
        resolved: whether these hold secrets and no references any more; then the others are looked up too.

    Raises:
        BrokerError: as :func:`access_of`.
    """
    address, own = access_of(bootstrap)
    return address, {**(resolve_client(own) if resolved else own), **client}
