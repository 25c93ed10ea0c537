"""The checked settings of coordinator and emitter, and the store they share."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import errors

from downspout.batches.stores import BatchStore, BatchStoreContext, open_batch_store
from downspout.errors import BrokerError, ConfigError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import Cluster, ConsumerPort
from downspout.kafka.retry_gate import cure_of, describe
from downspout.settings.folders import of_project_url
from downspout.settings.secrets import with_secrets
from downspout.settings.table import parse_scope
from downspout.spout.findings import setup_of
from downspout.spout.settings import Setup

REFUSED = {
    "translator": ((None, []), "a bolt that makes the tuples"),
    "emit": (("record", "auto"), "kafka.emit=record: a batch is emitted record by record"),
    "offset_store": (("kafka",), "batch.store: progress is kept with the batches"),
    "behind_max": ((None,), "leave it out: no record is left out of a batch"),
    "listener": ((None,), "leave it out: a bolt sees the batches"),
    "on_corrupt_batch": (("fail",), "kafka.on_corrupt_batch=fail: a batch writes no dead letters"),
    "guarantee": (("AT_LEAST_ONCE",), "leave it out: batches have a guarantee of their own, by batch.kind"),
}
"""Settings of KafkaSpout that batches do not support, with their allowed values."""


def check(kafka: Mapping[str, Any]) -> None:
    """Raise a ConfigError for a setting of KafkaSpout that batches do not support.

    >>> from downspout.settings.table import parse_scope
    >>> check(parse_scope({"kafka.topics": "lines", "kafka.emit": "chunk"}, "kafka"))
    Traceback (most recent call last):
        ...
    downspout.errors.ConfigError: kafka.emit = 'chunk' cannot be combined with KafkaBatches. Try: \
kafka.emit=record: a batch is emitted record by record
    """
    for name, (allowed, cure) in REFUSED.items():
        if kafka[name] not in allowed:
            raise ConfigError(f"kafka.{name} = {kafka[name]!r} cannot be combined with KafkaBatches", cure=cure)


def check_ackers(conf: Mapping[str, Any], name: str) -> None:
    """Raise a ConfigError if there are no ackers, so that the end of a batch cannot be detected."""
    if conf.get("topology.acker.executors") == 0:
        raise ConfigError(
            f"{name}: topology.acker.executors = 0: without ackers, the end of a batch cannot be detected",
            cure="topology.acker.executors = 1, or leave it out",
        )


def message_timeout_s(conf: Mapping[str, Any]) -> float:
    """Return the timeout of a tuple tree in seconds."""
    if conf.get("topology.enable.message.timeouts") is False:
        return float("inf")
    return float(conf.get("topology.message.timeout.secs") or 30)


@dataclass(frozen=True)
class BatchSetup:
    """The checked settings of one task."""

    kafka: Setup
    batch: Mapping[str, Any] = field(repr=False)  # of the scope ``batch``, including a password
    id: str  # of the series of batches
    timeout_s: float

    @classmethod
    def of(cls, conf: Mapping[str, Any], context: Mapping[str, Any]) -> BatchSetup:
        """Read Storm's configuration and context.

        Raises:
            ConfigError: a setting is unknown, out of range, missing or contradicts another.
        """
        check(parse_scope(conf, "kafka"))
        kafka = setup_of(conf, context)
        batch = parse_scope(with_secrets(conf), "batch")
        batch["store"] = of_project_url(batch["store"], "batch.store", conf)
        return cls(kafka, batch, batch["id"] or kafka.topology, message_timeout_s(conf))

    @property
    def is_transactional(self) -> bool:
        """Whether a retried batch has exactly the same records."""
        return bool(self.batch["kind"] == "transactional")

    @property
    def topology_id(self) -> str:
        """Of this submit."""
        return self.kafka.identity.topology_id

    def open_store(self) -> BatchStore:
        """Open the store of the batches' metadata."""
        context = BatchStoreContext(self.id, self.kafka.topology, self.topology_id, self.batch["store_password"])
        return open_batch_store(self.batch["store"], context)

    @property
    def cluster(self) -> Cluster:
        """The Kafka cluster to read."""
        return cluster_for(self.kafka.settings["bootstrap"], self.kafka.settings["client"])

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are skipped."""
        return bool(self.kafka.client.get("isolation_level") != "read_uncommitted")

    def open_consumer(self, log: logging.Logger) -> ConsumerPort:
        """Make a consumer without a group.

        Raises:
            BrokerError: no broker answers.
        """
        settings = self.kafka.settings
        try:
            return self.cluster.consumer(group=None, client=self.kafka.client)
        except errors.KafkaError as error:
            raise BrokerError(
                f"{settings['bootstrap']}: cannot read: {describe(error)}",
                cure=cure_of(error, "start the broker, or set kafka.bootstrap"),
            ) from error
