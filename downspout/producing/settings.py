"""The settings ``produce.*``: contradictions among them, and the client's properties that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downspout.dead_letters.dead_letter import RECORD_BYTES_MAX
from downspout.errors import ConfigError
from downspout.kafka.client_values import producer_properties
from downspout.kafka.partitioners import PARTITIONERS
from downspout.kafka.port import TOPIC_LEGAL
from downspout.producing.mapper import fields_of
from downspout.settings.table import parse_scope

__all__ = ["AGE_SHARE", "FLUSH_S_MAX", "check", "message_timeout_s", "produce_settings", "producer_client"]

AGE_SHARE = 0.25
"""Share of the message timeout after which the oldest record in the buffer makes it full."""
DELIVERY_SHARE = 2 / 3
"""Share of the message timeout after which the client gives a record up."""
FLUSH_S_MAX = 5.0
REQUEST_MS_MAX = 30_000
RETRY_BACKOFF_MS = 50
TOPIC_WAIT_MS = 5_000
"""How long a record waits for a topic that does not exist."""
TRANSACTION_MS_MORE = 60_000
"""How much longer than the message timeout a transaction's time-out is."""
TRANSACTION_MS_MAX = 900_000
"""The broker's default of ``transaction.max.timeout.ms``."""
CONNECTING = ("security_", "ssl_", "sasl_")


def produce_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the scope.

    Raises:
        ConfigError: a setting is unknown, malformed or out of range.
    """
    return parse_scope(conf, "produce")


def message_timeout_s(conf: Mapping[str, Any]) -> float:
    """Return after how many seconds a tuple times out."""
    return float(conf.get("topology.message.timeout.secs") or 30)


def check(conf: Mapping[str, Any], *, is_whole: bool = True) -> None:
    """Raise a ConfigError or a MissingExtraError if the settings are invalid.

    Args:
        conf: the configuration.
        is_whole: whether it has all settings, so that none comes from a file or from the topology.
    """
    settings = produce_settings(conf)
    is_told = settings["mapper"] is not None or "topic" in fields_of(settings)
    if is_whole and not is_told and not settings["topic"]:
        raise ConfigError("no topic to write to is set", cure="topic='orders', or fields={'topic': FIELD}")
    if (topic := settings["topic"]) and not TOPIC_LEGAL.fullmatch(topic):
        raise ConfigError(
            f"produce.topic = {topic!r} cannot be a topic's name", cure="letters, digits, dots, underscores and dashes"
        )
    if settings["replication"] and not settings["partitions"]:
        raise ConfigError(
            "produce.replication applies to a topic that the bolt creates, but produce.partitions is not set",
            cure="both, or neither",
        )
    if settings["partitions"] and is_whole and not settings["topic"]:
        raise ConfigError(
            "produce.partitions applies to produce.topic, which is not set: other topics are not created",
            cure="produce.topic, or leave produce.partitions out",
        )
    if settings["partitioner"] not in PARTITIONERS and "." not in settings["partitioner"]:
        raise ConfigError(
            f"produce.partitioner = {settings['partitioner']!r} is not a partitioner",
            cure=f"one of {', '.join(PARTITIONERS)}, or module.function",
        )
    client = producer_client(settings, {}, message_timeout_s(conf))
    if settings["transactional"]:
        _check_transactional(settings, conf)
    producer_properties(client)


def _check_transactional(settings: Mapping[str, Any], conf: Mapping[str, Any]) -> None:
    against = {
        "mode": settings["mode"] == "fire_and_forget",
        "acks": settings["acks"] != "all",
        "idempotence": settings["idempotence"] is False,
    }
    for name in [name for name, is_so in against.items() if is_so]:
        raise ConfigError(
            f"produce.transactional cannot be combined with produce.{name} = {settings[name]}", cure=f"leave {name} out"
        )
    if conf.get("topology.acker.executors") == 0:
        raise ConfigError(
            "produce.transactional cannot be combined with topology.acker.executors = 0: no spout would know what is "
            "done",
            cure="leave topology.acker.executors out",
        )
    if conf.get("topology.enable.message.timeouts") is False:
        raise ConfigError(
            "produce.transactional cannot be combined with topology.enable.message.timeouts = false: a spout would "
            "wait for ever for lost tuples",
            cure="leave topology.enable.message.timeouts out",
        )
    brokers = conf.get("kafka.bootstrap")
    if settings["bootstrap"] is not None and brokers is not None and settings["bootstrap"] != brokers:
        raise ConfigError(
            f"produce.transactional cannot be combined with produce.bootstrap = {settings['bootstrap']}: results and "
            f"offsets are in one transaction of one cluster, and the spout reads {brokers}",
            cure="leave produce.bootstrap out",
        )
    most = transaction_ms_max(conf)
    if most > TRANSACTION_MS_MAX:
        raise ConfigError(
            f"a transaction may take {most} ms (kafka.transaction_ms and the message timeout), but brokers allow "
            f"{TRANSACTION_MS_MAX} (transaction.max.timeout.ms)",
            cure="lower kafka.transaction_ms, or topology.message.timeout.secs",
        )
    if (given := settings["transaction_timeout_ms"]) is not None and given < most:
        raise ConfigError(
            f"produce.transaction_timeout_ms = {given}, but a transaction may take {most} ms: kafka.transaction_ms and "
            "the message timeout",
            cure="leave it out, or lower topology.message.timeout.secs",
        )


def transaction_ms_max(conf: Mapping[str, Any]) -> int:
    """Return how long a transaction may be open: until it should end, plus the timeout of the tuples then in flight."""
    return int(parse_scope(conf, "kafka")["transaction_ms"] + message_timeout_s(conf) * 1000)


def producer_client(
    settings: Mapping[str, Any], client: Mapping[str, Any], timeout_s: float, transaction_ms: int = 1_000
) -> dict[str, Any]:
    """Return the properties of the producer, in kafka-python's spelling.

    Args:
        settings: the scope ``produce``.
        client: ``kafka.client.…``; the cluster itself uses the connection properties.
        timeout_s: the message timeout.
        transaction_ms: the length of a transaction.
    """
    delivery_ms = int(timeout_s * 1000 * DELIVERY_SHARE)
    found = {
        "acks": settings["acks"],
        "compression_type": settings["compression"],
        "linger_ms": settings["linger_ms"],
        "batch_size": settings["batch_bytes"],
        "max_request_size": settings["request_bytes_max"],
        "max_block_ms": TOPIC_WAIT_MS,
        "delivery_timeout_ms": max(delivery_ms, 2),
        "request_timeout_ms": max(min(REQUEST_MS_MAX, delivery_ms // 2), 1),
        "retry_backoff_ms": RETRY_BACKOFF_MS,
    }
    if settings["idempotence"] is not None:
        found["enable_idempotence"] = settings["idempotence"]
    if settings["auto_create"] is not None:
        found["allow_auto_create_topics"] = settings["auto_create"]
    if settings["transactional"]:
        longest = min(int(timeout_s * 1000) + transaction_ms + TRANSACTION_MS_MORE, TRANSACTION_MS_MAX)
        # Dead letters hold whole records, whatever a result may be.
        found["max_request_size"] = max(found["max_request_size"], RECORD_BYTES_MAX)
        found["transaction_timeout_ms"] = settings["transaction_timeout_ms"] or longest
    return found
