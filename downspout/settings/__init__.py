"""The table of settings, the layers that give them values, secrets, and folders.

A setting has a dotted key (``kafka.poll_timeout_ms``). Its value is the first that is given by: the command line
(``--set KEY=VALUE``, or ``--set COMPONENT:KEY=VALUE`` for one component), the environment
(``DOWNSPOUT_KAFKA_POLL_TIMEOUT_MS``), the topology (the component's ``config``, then the topology's), the file
(``downspout.toml``), the default. An unknown key below one of our prefixes is an error that names the nearest known
one. Keys of Storm (``topology.max.spout.pending``) pass through untouched, as do the properties of the Kafka client, in
its own spelling, below ``kafka.client.`` (``kafka.client.fetch_max_bytes``).

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
