"""Which cluster answers for a bootstrap string.

A string that was given to :func:`register` (the fake does that with ``fake://name``) is answered by that cluster; any
other goes to real brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downspout.kafka.port import Cluster
from downspout.kafka.schemes import access_with

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
