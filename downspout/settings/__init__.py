"""The table of settings, the layers of their values, secrets, and folders.

A setting has a dotted key (``kafka.poll_timeout_ms``). The layers of values, strongest first: the command line (``--set
KEY=VALUE``, or ``--set COMPONENT:KEY=VALUE`` for one component), the environment
(``DOWNSPOUT_KAFKA_POLL_TIMEOUT_MS``), the topology (the component's ``config``, then the topology's), the file
(``downspout.toml``), the default. An unknown key with one of our prefixes is an error that names the nearest known key.
Storm's keys (``topology.max.spout.pending``) pass through unchanged, as do properties of the Kafka client in its own
spelling, such as ``kafka.client.fetch_max_bytes``.

To change which settings exist: table.py
To change which layer wins: layers.py
To change how secrets are hidden: secrets.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "object_path": "ObjectPath place",
        "secrets": "STORAGE_OPTIONS shown with_secrets",
        "table": "CLIENT_PREFIX SETTINGS component_config parse_scope",
    },
)
