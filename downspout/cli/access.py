"""How commands reach Kafka: ``--bootstrap`` and ``--client``, and below them the settings that a run would have."""

from __future__ import annotations

import argparse
import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout import config
from downspout.errors import ConfigError

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster

__all__ = ["add_access", "open_cluster", "way_in"]

BOOTSTRAP = "kafka.bootstrap"


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add ``--bootstrap`` and ``--client``."""
    parser.add_argument("--bootstrap", help="brokers as host:port (default: kafka.bootstrap, else the embedded one)")
    parser.add_argument(
        "--client", action="append", default=[], metavar="NAME=VALUE",
        help="a property of kafka-python's client (security_protocol=SASL_SSL, sasl_plain_password=env:NAME); may be "
        "given several times; besides those of downspout.toml and the environment (kafka.client.…)",
    )  # fmt: skip


def way_in(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the brokers and the properties of the client, as the options, the environment and the file give them.

    Raises:
        ConfigError: an option makes no sense, or a secret that it refers to is not there.
    """
    layers = [
        config.Layer("--client", {BOOTSTRAP: arguments.bootstrap, **_given(arguments.client)}),
        config.from_environment(os.environ),
        config.from_file(Path(config.FILE_NAME)),
    ]
    found: dict[str, Any] = {}
    for layer in reversed(layers):
        found |= {
            key: config.client_value(key, value)
            for key, value in layer.values.items()
            if value is not None and (key == BOOTSTRAP or key.startswith(config.CLIENT_PREFIX))
        }
    bootstrap = str(found.pop(BOOTSTRAP, config.SETTINGS[BOOTSTRAP].default))
    return bootstrap, config.resolve_client({key.removeprefix(config.CLIENT_PREFIX): v for key, v in found.items()})


def _given(pairs: list[str]) -> dict[str, str]:
    """Return the properties of ``--client`` by their keys. No message holds a value.

    Raises:
        ConfigError: one has no value, or is no property.
    """
    from kafka import KafkaConsumer

    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().removeprefix(config.CLIENT_PREFIX).replace(".", "_")
        if not equals:
            raise ConfigError("--client needs NAME=VALUE", cure="--client security_protocol=SASL_SSL")
        if name not in KafkaConsumer.DEFAULT_CONFIG:
            near = difflib.get_close_matches(name, KafkaConsumer.DEFAULT_CONFIG, n=1)
            raise ConfigError(
                f"--client {name}: kafka-python's client has no such property", cure=near[0] if near else "its names"
            )
        found[config.CLIENT_PREFIX + name] = value
    return found


def open_cluster(arguments: argparse.Namespace) -> Cluster:
    """Return the brokers that the options name.

    Raises:
        ConfigError: an option makes no sense.
        BrokerError: nobody answers there, or lets us in.
    """
    from downspout.kafka.port import cluster_for

    return cluster_for(*way_in(arguments))
