"""The cluster behind a bootstrap string: real brokers, a broker that runs on this machine, or a fake.

A name such as ``embedded`` stands for an address and is registered in ``downspout.registry``, so Kafka clients need not
know how to find a local broker. A string passed to :func:`register`, such as the fake's ``fake://name``, leads to that
cluster; any other to real brokers.
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
"""An address, and the kafka-python properties needed to connect."""


def is_scheme(bootstrap: str) -> bool:
    """Return whether a bootstrap string is a registered name, not an address."""
    return bootstrap in registry.schemes


def access_of(bootstrap: str) -> Access:
    """Return the address behind a registered name; any other string is an address already.

    Raises:
        BrokerError: the named cluster does not run.

    >>> access_of("127.0.0.1:9092")
    ('127.0.0.1:9092', {})
    """
    find: Callable[[], Access] | None = registry.schemes.get(bootstrap)
    return find() if find is not None else (bootstrap, {})


def access_with(bootstrap: str, client: Mapping[str, Any], *, resolved: bool) -> tuple[str, dict[str, Any]]:
    """Return the address behind a bootstrap string, and a client's properties with those needed to connect.

    Args:
        bootstrap: an address, or a registered name.
        client: the user's properties, which take precedence.
        resolved: whether ``client`` holds secrets instead of references; then the added references are resolved too.

    Raises:
        BrokerError: as :func:`access_of`.
    """
    address, own = access_of(bootstrap)
    return address, {**(resolve_client(own) if resolved else own), **client}


_registered: dict[str, Cluster] = {}


def register(bootstrap: str, cluster: Cluster) -> None:
    """Make ``bootstrap`` lead to ``cluster`` in this process."""
    _registered[bootstrap] = cluster


def unregister(bootstrap: str) -> None:
    """Undo :func:`register`."""
    _registered.pop(bootstrap, None)


def is_registered(bootstrap: str) -> bool:
    """Return whether a cluster is registered for ``bootstrap``."""
    return bootstrap in _registered


def cluster_for(bootstrap: str, client: Mapping[str, Any] | None = None) -> Cluster:
    """Return the cluster behind a bootstrap string: a registered one, else real brokers.

    Args:
        bootstrap: ``host:port,host:port``, a scheme such as ``embedded`` (the broker of `downspout kafka start`, which
            supplies its own connection properties), or the name of a registered cluster.
        client: kafka-python properties. Connection properties (TLS, SASL, proxies) apply to all clients of the
            cluster; the others are ignored here.

    Raises:
        BrokerError: no broker answers, or it refuses us.
        ConfigError: the properties are invalid.
    """
    if (known := _registered.get(bootstrap)) is not None:
        return known
    address, properties = access_with(bootstrap, client or {}, resolved=True)
    from downspout.kafka.client import KafkaCluster, connection_properties  # not needed by a fake

    return KafkaCluster(address, connection_properties(properties))
