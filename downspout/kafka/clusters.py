"""The cluster behind a bootstrap string: real brokers, a broker that runs on this machine, or a fake.

A name such as ``embedded`` stands for an address and is registered in ``downspout.registry``: nothing that talks to
Kafka knows how a local broker is found. A string that was given to :func:`register` (the fake does that with
``fake://name``) is answered by that cluster; any other goes to real brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from downspout import registry
from downspout.kafka.port import Cluster
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


_registered: dict[str, Cluster] = {}


def register(bootstrap: str, cluster: Cluster) -> None:
    """Let ``cluster`` answer for ``bootstrap`` in this process."""
    _registered[bootstrap] = cluster


def unregister(bootstrap: str) -> None:
    """Undo :func:`register`."""
    _registered.pop(bootstrap, None)


def is_registered(bootstrap: str) -> bool:
    """Return whether a cluster of this process answers for ``bootstrap``."""
    return bootstrap in _registered


def cluster_for(bootstrap: str, client: Mapping[str, Any] | None = None) -> Cluster:
    """Return the cluster behind a bootstrap string: a registered one, else real brokers.

    Args:
        bootstrap: ``host:port,host:port``, a scheme such as ``embedded`` (the broker that `downspout kafka start`
            runs; what it needs to let us in is known then), or the name of a registered cluster.
        client: kafka-python properties. Those that say how to connect (TLS, SASL, proxies) hold for all that the
            cluster makes, its producers included; others are for whoever makes a consumer.

    Raises:
        BrokerError: nothing answers there, or does not let us in.
        ConfigError: the properties make no sense.
    """
    if (known := _registered.get(bootstrap)) is not None:
        return known
    address, properties = access_with(bootstrap, client or {}, resolved=True)
    from downspout.kafka.client import KafkaCluster, connection_properties  # tests on a fake need none of it

    return KafkaCluster(address, connection_properties(properties))
