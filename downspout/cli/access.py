"""Access to Kafka: ``--bootstrap`` and ``--client``, or else the settings of the environment and ``downspout.toml``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from downspout.errors import ConfigError
from downspout.formatting import nearest
from downspout.settings import layers
from downspout.settings.layers import FILE_NAME, Layer, client_value
from downspout.settings.secrets import resolve_client
from downspout.settings.table import CLIENT_PREFIX, SETTINGS

if TYPE_CHECKING:
    from downspout.kafka.port import Cluster

BOOTSTRAP = "kafka.bootstrap"


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add ``--bootstrap`` and ``--client``."""
    parser.add_argument(
        "--bootstrap", help="brokers as host:port (default: kafka.bootstrap, or else the embedded broker)"
    )
    parser.add_argument(
        "--client", action="append", default=[], metavar="NAME=VALUE",
        help="a property of kafka-python's client, such as security_protocol=SASL_SSL or sasl_plain_password=env:NAME; "
        "overrides kafka.client.… of downspout.toml and the environment; may be repeated",
    )  # fmt: skip


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add ``--store`` and ``--store-password``."""
    parser.add_argument(
        "--store", metavar="URL",
        help="where the spout keeps its offsets (default: kafka.offset_store of downspout.toml or the environment, or "
        "else the group in Kafka)",
    )  # fmt: skip
    parser.add_argument("--store-password", metavar="REF", help="its password, as env:NAME or file:PATH")


def way_in(arguments: argparse.Namespace, noted: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """Return brokers and client properties from the options, the environment, the file, or else ``noted``.

    Raises:
        ConfigError: an option is invalid, or a secret that it refers to does not exist.
    """
    options = {BOOTSTRAP: arguments.bootstrap, **_given(arguments.client)}
    found = {
        key: client_value(key, value)
        for key, value in _layered(options, noted or {}).items()
        if key == BOOTSTRAP or key.startswith(CLIENT_PREFIX)
    }
    bootstrap = str(found.pop(BOOTSTRAP, SETTINGS[BOOTSTRAP].default))
    return bootstrap, resolve_client({key.removeprefix(CLIENT_PREFIX): v for key, v in found.items()})


def _layered(options: Mapping[str, Any], noted: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings from the options, the environment, the file and ``noted``, in this order of precedence."""
    given = [
        Layer("options", options),
        layers.from_environment(os.environ),
        layers.from_file(Path(FILE_NAME)),
        Layer("noted", noted),
    ]
    found: dict[str, Any] = {}
    for layer in reversed(given):
        found |= {key: value for key, value in layer.values.items() if value is not None}
    return found


def _given(pairs: list[str]) -> dict[str, str]:
    """Return the properties of ``--client`` by their keys; error messages contain no values."""
    from kafka import KafkaConsumer

    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().removeprefix(CLIENT_PREFIX).replace(".", "_")
        if not equals:
            raise ConfigError("--client needs NAME=VALUE", cure="--client security_protocol=SASL_SSL")
        if name not in KafkaConsumer.DEFAULT_CONFIG:
            cure = nearest(name, KafkaConsumer.DEFAULT_CONFIG, "its names")
            raise ConfigError(f"--client {name}: kafka-python's client has no such property", cure=cure)
        found[CLIENT_PREFIX + name] = value
    return found


def open_cluster(arguments: argparse.Namespace, noted: Mapping[str, Any] | None = None) -> Cluster:
    """Return the cluster of :func:`way_in`.

    Raises:
        ConfigError: an option is invalid.
        BrokerError: no broker answers, or it refuses us.
    """
    from downspout.kafka.clusters import cluster_for

    return cluster_for(*way_in(arguments, noted))


def batch_store(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """Return the URL of the batches' store, from ``--store`` or the settings, and its password.

    Raises:
        ConfigError: the store's scheme is unknown, or its file does not exist.
    """
    from downspout.batches.stores import check_batch_store
    from downspout.offsets.stores.sqlite import path_of
    from downspout.settings.folders import of_project_url
    from downspout.settings.secrets import with_secrets

    key, password_key = "batch.store", "batch.store_password"
    found = _layered({key: arguments.store, password_key: arguments.store_password}, {})
    setting = "--store" if arguments.store else key
    location = of_project_url(str(found.get(key, SETTINGS[key].default)), setting, {})
    check_batch_store(location, setting)
    if location.startswith("sqlite:") and not (path := path_of(location, setting)).exists():  # opening would create it
        raise ConfigError(f"{setting}: there is no {path}", cure="where the topology runs, or --store URL")
    return location, with_secrets({password_key: found.get(password_key)})[password_key]


def nothing_committed(arguments: argparse.Namespace, group: str) -> ConfigError:
    """Return the error for a group without a commit in the topics or store of the options."""
    where = f" for {', '.join(arguments.topic)}" if arguments.topic else ""
    where += f" in {arguments.store}" if arguments.store else ""
    option = "--store" if arguments.store else "--topic" if arguments.topic else "--bootstrap"
    return ConfigError(f"group {group} has committed nothing{where}", cure=f"kafka.group of the spout, and {option}")


def open_groups(arguments: argparse.Namespace) -> Cluster:
    """Return the cluster, with groups' offsets from the store that their spouts use.

    Raises:
        ConfigError: an option is invalid.
        BrokerError: no broker answers, or it refuses us.
    """
    from downspout.offsets.group_offsets import StoredGroups
    from downspout.settings.folders import of_project_url
    from downspout.settings.secrets import with_secrets
    from downspout.spout.ports import KAFKA, PASSWORD_SETTING, SETTING, check_location

    cluster = open_cluster(arguments)
    found = _layered({SETTING: arguments.store, PASSWORD_SETTING: arguments.store_password}, {})
    if (location := str(found.get(SETTING, KAFKA))) == KAFKA:
        return cluster
    setting = "--store" if arguments.store else SETTING
    check_location(location, setting)
    password = with_secrets({PASSWORD_SETTING: found.get(PASSWORD_SETTING)})[PASSWORD_SETTING]
    return cast("Cluster", StoredGroups(cluster, of_project_url(location, setting, {}), setting, password))
