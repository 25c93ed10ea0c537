"""Whether the settings of a spout make sense together: what is impossible, and what may not be meant.

Each value by itself (type, range, choices) is checked by the table in ``downspout.settings``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer

from downspout.errors import ConfigError
from downspout.kafka.address import parse_bootstrap
from downspout.kafka.client_values import client_values
from downspout.kafka.clusters import is_registered
from downspout.kafka.handshake import check_names
from downspout.kafka.port import TOPIC_LEGAL
from downspout.kafka.schemes import is_scheme
from downspout.settings.secrets import REFERENCE
from downspout.spout.emit.choice import check_emit
from downspout.spout.emit.translator import check_translators, translator_of
from downspout.spout.group.explicit_offsets import check_offsets, check_partitions
from downspout.spout.guarantee import GUARANTEES
from downspout.spout.hooks import listener_class
from downspout.spout.offset_store import KAFKA, check_location
from downspout.spout.retries import policy_function
from downspout.wire.transacting import TRANSACTIONS

DECIDED = {
    "enable_auto_commit": "kafka.guarantee",
    "auto_commit_interval_ms": "kafka.commit_period_ms",
    "group_id": "kafka.group",
    "group_instance_id": "kafka.group",
    "bootstrap_servers": "kafka.bootstrap",
    "max_poll_records": "kafka.poll_records_max",
    "session_timeout_ms": "kafka.session_timeout_ms",
    "key_deserializer": "kafka.key_format",
    "value_deserializer": "kafka.value_format",
}
"""Properties of the client, and the setting of ours that decides each."""

POLL_INTERVAL_MS = 300_000
"""The client's ``max_poll_interval_ms``, unless it is given: who polls less often is thrown out of the group."""


def check(settings: Mapping[str, Any], bounded: bool = False, member: int | None = None) -> None:
    """Raise a ConfigError where settings of the scope ``kafka`` cannot hold together; it names them.

    This is all that can be said without asking a broker; code of the user's that is named is imported.

    Args:
        bounded: whether the run ends (``run.until=end``).
        member: which of several processes this is (``run.member``).
    """
    _check_bootstrap(settings["bootstrap"])
    _check_client(settings["client"])
    for translator in check_translators(settings):
        translator.function()
    if settings["listener"]:
        listener_class(settings["listener"])
    if settings["retry_policy"]:
        policy_function(settings["retry_policy"])
    for topic in settings["topics"] or ():
        translator_of(settings, topic)
    if settings["mode"] == "assign" and member is not None:
        raise ConfigError(
            "kafka.mode = assign counts the tasks of one process, but run.member says that there are several",
            cure="kafka.mode=subscribe, or more tasks (par) in one process",
        )
    check_emit(settings)
    _check_store(settings)
    _check_commit(settings)
    _check_topics(settings)
    _check_times(settings)
    check_partitions(settings)
    check_offsets(settings, bounded)


def _check_store(settings: Mapping[str, Any]) -> None:
    if (location := settings["offset_store"]) == KAFKA:
        return
    check_location(location)
    if settings["guarantee"] == "AUTO_COMMIT":
        raise ConfigError(
            "kafka.guarantee = AUTO_COMMIT lets the client commit, which knows nothing of kafka.offset_store",
            cure="kafka.guarantee=NO_GUARANTEE, or AT_LEAST_ONCE",
        )


def _check_commit(settings: Mapping[str, Any]) -> None:
    if (how := settings["commit"]) == "sync":
        return
    if settings["guarantee"] != "AT_LEAST_ONCE":
        raise ConfigError(
            f"kafka.commit = {how} is about commits of what is acked, and kafka.guarantee = {settings['guarantee']} "
            "itself says how it commits",
            cure="leave kafka.commit out, or kafka.guarantee=AT_LEAST_ONCE",
        )
    if settings["offset_store"] != KAFKA:
        raise ConfigError(
            f"kafka.commit = {how}: a kafka.offset_store answers at once, so there is nothing to wait for",
            cure="leave kafka.commit out",
        )


def _check_bootstrap(bootstrap: str) -> None:
    if not bootstrap:
        raise ConfigError("kafka.bootstrap is empty", cure="host:port,host:port, or `embedded`")
    if not is_scheme(bootstrap) and not is_registered(bootstrap):
        parse_bootstrap(bootstrap)


def _check_client(client: Mapping[str, Any]) -> None:
    for name, setting in DECIDED.items():
        if name in client:
            raise ConfigError(f"kafka.client.{name} cannot be set: {setting} decides it", cure=f"{setting}, or nothing")
    for name in client:
        if name not in KafkaConsumer.DEFAULT_CONFIG:
            near = difflib.get_close_matches(name, KafkaConsumer.DEFAULT_CONFIG, n=1)
            raise ConfigError(
                f"kafka.client.{name} is not a property of kafka-python's consumer",
                cure=f"kafka.client.{near[0]}" if near else "kafka-python's names, with underscores",
            )
    values = client_values(client)
    if not any(_is_reference(value) for value in values.values()):
        check_names(values)


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and REFERENCE.match(value) is not None


def _check_topics(settings: Mapping[str, Any]) -> None:
    topics, pattern = settings["topics"], settings["pattern"]
    if bool(topics) == bool(pattern):
        raise ConfigError(
            "exactly one of kafka.topics and kafka.pattern must be set" + (", and both are" if topics else ""),
            cure="remove one of them" if topics else 'topics=["orders"]',
        )
    for topic in topics or ():
        if not TOPIC_LEGAL.fullmatch(topic):
            raise ConfigError(
                f"kafka.topics: {topic!r} cannot be a topic's name",
                cure="letters, digits, dots, underscores and dashes; names by regular expression: kafka.pattern",
            )
    if topics and len(set(topics)) < len(topics):
        raise ConfigError("kafka.topics names a topic twice", cure="each topic once")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"kafka.pattern = {pattern!r} is not a regular expression: {error}", cure="orders-.*"
            ) from None


def _check_times(settings: Mapping[str, Any]) -> None:
    if settings["start"].endswith("TIMESTAMP") and settings["start_timestamp_ms"] is None:
        raise ConfigError(f"kafka.start is {settings['start']}, but there is no time", cure="kafka.start_timestamp_ms")
    if settings["retry_delay_ms"] > (longest := settings["retry_delay_ms_max"]):
        raise ConfigError(
            f"kafka.retry_delay_ms = {settings['retry_delay_ms']} is above kafka.retry_delay_ms_max = {longest}",
            cure="a longer kafka.retry_delay_ms_max",
        )
    given = settings["client"].get("max_poll_interval_ms")
    interval = POLL_INTERVAL_MS if given is None or _is_reference(given) else int(given)
    if settings["drain_ms_max"] >= interval:
        raise ConfigError(
            f"kafka.drain_ms_max = {settings['drain_ms_max']} is not below the client's max_poll_interval_ms of "
            f"{interval}: the group would throw us out while we wait",
            cure="a shorter kafka.drain_ms_max",
        )


def check_dead_letter_topic(settings: Mapping[str, Any], group: str) -> None:
    """Raise a ConfigError where letters cannot be written, or the spout would read its own for ever."""
    dead_letters = dead_letter_topic(settings, group)
    if not dead_letters:
        return
    if not TOPIC_LEGAL.fullmatch(dead_letters):
        raise ConfigError(
            f"kafka.dead_letter_topic = {dead_letters!r} cannot be a topic's name",
            cure="another kafka.dead_letter_topic or kafka.group",
        )
    if dead_letters in (settings["topics"] or ()):
        raise ConfigError(
            f"kafka.topics names {dead_letters}, where this spout's own dead letters go (kafka.dead_letter_topic)",
            cure="another kafka.dead_letter_topic, or another kafka.group",
        )


def pattern_without(dead_letters: str, pattern: str) -> str:
    """Return a pattern that leaves the spout's own dead letters out: it would feed on them for ever.

    >>> made = pattern_without("g.letters", ".*")
    >>> re.fullmatch(made, "orders") is not None, re.fullmatch(made, "g.letters") is not None
    (True, False)
    """
    return rf"(?!{re.escape(dead_letters)}\Z)(?:{pattern})" if dead_letters else pattern


def reading(settings: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the settings by which a spout of this group reads: its pattern leaves its own dead letters out."""
    pattern = settings["pattern"] and pattern_without(dead_letter_topic(settings, group), settings["pattern"])
    return {**settings, "pattern": pattern}


def dead_letter_topic(settings: Mapping[str, Any], group: str) -> str:
    """Return where letters go; empty: the run stops at a record that fails for good.

    >>> dead_letter_topic({"dead_letter_topic": "{group}.dead-letters"}, "shop")
    'shop.dead-letters'
    """
    return str(settings["dead_letter_topic"] or "").replace("{group}", group)


def is_transactional(settings: Mapping[str, Any], context: Mapping[str, Any], spout: str) -> bool:
    """Return whether a KafkaBolt of the topology makes the commits of a spout.

    Raises:
        ConfigError: several do, or the settings rule it out.
    """
    if TRANSACTIONS not in (context.get("stream->outputfields") or ()):
        return False
    _check_transactional(
        settings, sorted((context.get("stream->target->grouping") or {}).get(TRANSACTIONS) or ()), spout
    )
    return True


def _check_transactional(settings: Mapping[str, Any], sinks: Sequence[str], spout: str) -> None:
    if len(sinks) > 1:
        raise ConfigError(
            f"{' and '.join(sinks)} are transactional, and both get records of {spout}: its offsets can be in one "
            "transaction only",
            cure="one KafkaBolt for all topics, with topic_field or topic_function",
        )
    sink = f"{sinks[0]} is transactional"
    if not GUARANTEES[settings["guarantee"]].tracks:
        raise ConfigError(
            f"{sink}, and kafka.guarantee = {settings['guarantee']} does not look at acks",
            cure="kafka.guarantee=AT_LEAST_ONCE",
        )
    if settings["offset_store"] != KAFKA:
        raise ConfigError(
            f"{sink}: the offsets are in Kafka's transaction, and cannot be in kafka.offset_store",
            cure="leave kafka.offset_store out, or write to a database with SqlBolt",
        )
    if settings["commit"] != "sync":
        raise ConfigError(
            f"{sink}: the transaction commits the offsets, and kafka.commit = {settings['commit']} is about commits of "
            "the spout",
            cure="leave kafka.commit out",
        )
    if settings["behind_max"] is not None:
        raise ConfigError(
            f"{sink}, so that each record counts once, and kafka.behind_max leaves some out",
            cure="leave kafka.behind_max out",
        )
    if client_values(settings["client"]).get("isolation_level") == "read_uncommitted":
        raise ConfigError(
            f"{sink}: offsets are read while another transaction may still commit them",
            cure="leave kafka.client.isolation_level out",
        )
    if settings["emit"] == "chunk" and not settings["retries_max"]:
        raise ConfigError(
            f"{sink}: with chunks, a record that fails is found by a retry",
            cure="kafka.retries_max of at least 1, or kafka.emit=record",
        )


def doubts(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (what, cure) of what is allowed, and may not be meant."""
    start = settings["start"]
    reset = str(settings["client"].get("auto_offset_reset") or "none").lower()
    if reset != "none" and not start.endswith(reset.upper()):
        yield (
            f"kafka.client.auto_offset_reset = {reset} contradicts kafka.start = {start} and "
            f"kafka.on_data_loss = {settings['on_data_loss']}, which decide instead",
            "remove it",
        )
    if settings["start_timestamp_ms"] is not None and not start.endswith("TIMESTAMP"):
        yield f"kafka.start_timestamp_ms is set, but kafka.start = {start} does not use it", "kafka.start=TIMESTAMP"
    if settings["start_offsets"] and not start.endswith("OFFSETS"):
        yield f"kafka.start_offsets is set, but kafka.start = {start} does not use it", "kafka.start=OFFSETS"
    if settings["emit_null"] and not settings["translator"]:
        yield (
            "kafka.emit_null is about what a translator returns, and there is none; null values are emitted anyway",
            "remove it",
        )
    if settings["guarantee"] == "AUTO_COMMIT" and not start.startswith("UNCOMMITTED"):
        yield (
            f"kafka.start = {start} with kafka.guarantee = AUTO_COMMIT holds for each start, not only for the first: "
            "the client's commits do not say which topology made them",
            f"kafka.start=UNCOMMITTED_{start}",
        )
