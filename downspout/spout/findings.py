"""Checks whether a spout's settings fit together: contradictions raise, doubtful ones are reported.

Each value by itself (type, range, choices) is checked by the table in ``downspout.settings``. No broker is asked.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer

from downspout.component import SINKS, task_number
from downspout.errors import ConfigError, coordinates
from downspout.findings import Finding
from downspout.kafka.address import check_client, check_names, parse_bootstrap
from downspout.kafka.client_values import client_values
from downspout.kafka.clusters import is_registered, is_scheme
from downspout.kafka.port import TOPIC_LEGAL, TopicPartition
from downspout.settings.folders import of_project, of_project_url
from downspout.settings.secrets import REFERENCE, is_secret, with_secrets
from downspout.settings.table import SETTINGS, parse_scope
from downspout.spout.ports import KAFKA, check_location, listener_class
from downspout.spout.settings import (
    GUARANTEES,
    NAME_MAX,
    Identity,
    Setup,
    dead_letter_topic,
    is_named,
    offsets_of,
    partitions_named,
    policy_function,
    reading,
    retries_of,
)
from downspout.spout.tuples import check_translators, mode_of, translator_of
from downspout.wire.side_streams import TRANSACTIONS

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
"""The client's ``max_poll_interval_ms``, unless it is given: a member that polls less often is removed."""


def check(settings: Mapping[str, Any], bounded: bool = False, member: int | None = None) -> None:
    """Raise a ConfigError if settings of the scope ``kafka`` contradict each other; it names them.

    These are all checks that need no broker; named user code is imported.

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
    mode_of(settings).check(settings)
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
            "kafka.guarantee = AUTO_COMMIT lets the client commit, and the client ignores kafka.offset_store",
            cure="kafka.guarantee=NO_GUARANTEE, or AT_LEAST_ONCE",
        )


def _check_commit(settings: Mapping[str, Any]) -> None:
    if (how := settings["commit"]) == "sync":
        return
    if settings["guarantee"] != "AT_LEAST_ONCE":
        raise ConfigError(
            f"kafka.commit = {how} concerns commits of acked records, but kafka.guarantee = {settings['guarantee']} "
            "decides by itself how to commit",
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
        raise ConfigError(
            f"kafka.start is {settings['start']}, but there is no timestamp", cure="kafka.start_timestamp_ms"
        )
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
            f"{interval}: the group would expel the spout while it waits",
            cure="a shorter kafka.drain_ms_max",
        )


def check_dead_letter_topic(settings: Mapping[str, Any], group: str) -> None:
    """Raise a ConfigError if letters cannot be written, or the spout would read its own for ever."""
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


def is_transactional(settings: Mapping[str, Any], context: Mapping[str, Any], spout: str) -> bool:
    """Return whether a KafkaBolt of the topology makes the commits of a spout.

    Raises:
        ConfigError: several KafkaBolts do, or the settings rule it out.
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
            cure="one KafkaBolt for all topics, with fields={'topic': NAME} or a mapper",
        )
    sink = f"{sinks[0]} is transactional"
    if not GUARANTEES[settings["guarantee"]].tracks:
        raise ConfigError(
            f"{sink}, but kafka.guarantee = {settings['guarantee']} ignores acks",
            cure="kafka.guarantee=AT_LEAST_ONCE",
        )
    if settings["offset_store"] != KAFKA:
        raise ConfigError(
            f"{sink}: the offsets are in Kafka's transaction, and cannot be in kafka.offset_store",
            cure="leave kafka.offset_store out, or write to a database with SqlBolt",
        )
    if settings["commit"] != "sync":
        raise ConfigError(
            f"{sink}: the transaction commits the offsets, but kafka.commit = {settings['commit']} concerns commits of "
            "the spout",
            cure="leave kafka.commit out",
        )
    if settings["behind_max"] is not None:
        raise ConfigError(
            f"{sink}, so that each record counts once, but kafka.behind_max drops some",
            cure="leave kafka.behind_max out",
        )
    if client_values(settings["client"]).get("isolation_level") == "read_uncommitted":
        raise ConfigError(
            f"{sink}: offsets are read while another transaction may still commit them",
            cure="leave kafka.client.isolation_level out",
        )
    mode_of(settings).check_transactional(settings, sink)


def doubts(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (what, cure) for settings that are allowed but may be unintended."""
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
            "kafka.emit_null concerns the results of a translator, and there is none; null values are emitted anyway",
            "remove it",
        )
    if settings["guarantee"] == "AUTO_COMMIT" and not start.startswith("UNCOMMITTED"):
        yield (
            f"kafka.start = {start} with kafka.guarantee = AUTO_COMMIT applies to each start, not only to the first: "
            "the client's commits do not say which topology made them",
            f"kafka.start=UNCOMMITTED_{start}",
        )


def check_partitions(settings: Mapping[str, Any]) -> None:
    """Raise a ConfigError if ``kafka.partitions`` contradicts other settings."""
    named = partitions_named(settings["partitions"])
    if named and settings["mode"] != "assign":
        raise ConfigError(
            f"kafka.partitions is set, but with kafka.mode = {settings['mode']} the consumer group gives out the "
            "partitions",
            cure="kafka.mode=assign, or no kafka.partitions",
        )
    for topic, numbers in named.items():
        _check_topic("kafka.partitions", TopicPartition(topic, min(numbers)), settings)


def check_offsets(settings: Mapping[str, Any], bounded: bool) -> None:
    """Raise a ConfigError if the named offsets contradict each other or other settings.

    Args:
        bounded: whether the run ends.
    """
    starts = offsets_of("kafka.start_offsets", settings["start_offsets"])
    stops = offsets_of("kafka.stop_offsets", settings["stop_offsets"])
    if settings["start"].endswith("OFFSETS") and not starts:
        raise ConfigError(f"kafka.start is {settings['start']}, but there are no offsets", cure="kafka.start_offsets")
    if stops and not bounded:
        raise ConfigError("kafka.stop_offsets is set, but the run has no end", cure="run.until=end (`--until end`)")
    for setting, named in (("kafka.start_offsets", starts), ("kafka.stop_offsets", stops)):
        for tp in named:
            _check_topic(setting, tp, settings)
    for tp in starts.keys() & stops.keys():
        if stops[tp] < starts[tp]:
            raise ConfigError(
                f"kafka.stop_offsets ends {coordinates(*tp)} at {stops[tp]}, below its start at {starts[tp]} "
                "(kafka.start_offsets)",
                cure="a stop at or above the start; the stop itself is not read",
            )


def _check_topic(setting: str, tp: TopicPartition, settings: Mapping[str, Any]) -> None:
    if is_named(settings, tp.topic):
        return
    pattern = settings["pattern"]
    where = f"does not match kafka.pattern = {pattern!r}" if pattern else "is not in kafka.topics"
    raise ConfigError(f"{setting} names {coordinates(*tp)}, whose topic {where}", cure="check the spelling")


def setup_of(conf: Mapping[str, Any], context: Mapping[str, Any]) -> Setup:
    """Return the checked settings of one task, from Storm's configuration and context.

    Raises:
        ConfigError: a setting is unknown, out of range, missing or contradicts another.
    """
    settings = parse_scope(with_secrets(conf), "kafka")
    bounded = SETTINGS["run.until"].parse(conf.get("run.until"), "topology") == "end"
    check(settings, bounded, conf.get("run.member"))
    topology = str(conf.get("topology.name") or "topology")
    group = settings["group"] or topology
    check_dead_letter_topic(settings, group)
    index, tasks = task_number(context)
    mode, pending_max = mode_of(settings), _pending_max(conf)
    settings = mode.fit({**reading(settings, group), "retries_max": retries_of(settings["retries_max"])}, pending_max)
    settings["offset_store"] = of_project_url(settings["offset_store"], "kafka.offset_store", conf)
    return Setup(
        settings=settings,
        topology=topology,
        group=group,
        instance=_instance(topology, conf, context, index),
        index=index,
        tasks=tasks,
        identity=_identity(conf, context, topology),
        bounded=bounded,
        timeout_ms=_message_timeout_ms(conf),
        pending_max=pending_max,
        sinks=_sinks(conf) if settings["offset_store"] == KAFKA else (),
        dead_letter_topic=dead_letter_topic(settings, group),
        mode=mode,
    )


def _sinks(conf: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories of the topology's sinks; for sinks without one, ``sparse -o`` may set it for all."""
    key = "parquet.directory"
    found: dict[Path, None] = {}
    for given in {one or conf.get(key): None for one in conf.get(SINKS) or ()}:
        with suppress(ConfigError):  # the sink says what is wrong
            if given:
                found[of_project(str(given), key, conf)] = None
    return tuple(found)


def _pending_max(conf: Mapping[str, Any]) -> int:
    has_ackers = conf.get("topology.acker.executors") != 0  # not set: as many as workers
    return int(conf.get("topology.max.spout.pending") or 0) if has_ackers else 0


def _message_timeout_ms(conf: Mapping[str, Any]) -> float:
    if conf.get("topology.enable.message.timeouts") is False:
        return float("inf")
    return float(conf.get("topology.message.timeout.secs") or 30) * 1000


def _identity(conf: Mapping[str, Any], context: Mapping[str, Any], topology: str) -> Identity:
    named = (context.get("task->component") or {}).items()
    tasks = frozenset(int(task) for task, component in named if not str(component).startswith("__"))
    return Identity(str(conf.get("storm.id") or topology), int(context.get("taskid") or 0), tasks)


def _instance(topology: str, conf: Mapping[str, Any], context: Mapping[str, Any], index: int) -> str:
    topology, component = (
        re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_MAX]
        for name in (topology, str(context.get("componentid") or "spout"))
    )
    return f"{topology}.{component}.{index}.{conf.get('run.member') or 1}"


def findings(name: str, conf: Mapping[str, Any]) -> Iterator[Finding]:
    """Find what is wrong with the settings of the KafkaSpout that has this name."""
    try:
        settings = parse_scope(conf, "kafka")
    except ConfigError:
        return  # said above
    try:
        check(settings, conf.get("run.until") == "end", conf.get("run.member"))
        check_dead_letter_topic(settings, settings["group"] or str(conf.get("topology.name") or ""))
    except ConfigError as error:
        yield Finding(True, name, error.message, error.cure or "`downspout settings kafka`")
        return
    for what, cure in doubts(settings):
        yield Finding(False, name, what, cure)
    try:
        check_client(parse_scope(with_secrets(conf), "kafka")["client"])
    except ConfigError as error:  # it may be there where the topology will run
        yield Finding(False, name, error.message, error.cure or "set it where the topology runs")
    for key, value in conf.items():
        if is_secret(key, value):
            yield Finding(
                False,
                name,
                f"{key} stands in plain text: Storm keeps and shows the settings of a topology",
                f"{key}=env:NAME, or file:PATH: looked up where the component runs",
            )
