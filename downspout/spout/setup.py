"""What a spout knows before it reads: its settings, checked, and who it is in the consumer group."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.component import SINKS, WHY_RECORDS, task_number
from downspout.errors import ConfigError
from downspout.kafka.port import Gathering
from downspout.kafka.schemes import is_scheme
from downspout.settings.folders import of_project, of_project_url
from downspout.settings.secrets import with_secrets
from downspout.settings.table import SETTINGS, parse_scope
from downspout.spout.emit.choice import records_by_settings
from downspout.spout.group.start_offsets import Identity
from downspout.spout.guarantee import GUARANTEES, Guarantee
from downspout.spout.offset_store import KAFKA
from downspout.spout.retries import retries_of
from downspout.spout.validation import check, check_dead_letter_topic, dead_letter_topic, doubts, reading
from downspout.wire.flushing import FLUSH
from downspout.wire.transacting import TRANSACTIONS

GATHER_BYTES, GATHER_MS = 512 * 1024, 125
"""So much the broker gathers for a fetch of a spout that emits chunks, and so long it waits for it at most. A chunk
costs a millisecond or two whatever it holds: with 128 KiB, a stream of 20,000 records/s came in 27 fetches a second of
four chunks each, and cost more than twice as much as in eight. One that is behind, or faster, does not wait."""
FETCH_BYTES_MAX = {"max_partition_fetch_bytes": 1024 * 1024, "fetch_max_bytes": 50 * 1024 * 1024}
"""What a fetch brings at most, and the client's defaults."""
NAME_MAX = 100  # characters of a topology or component in the name of a static member: Kafka takes 249 in all
INSTANCE = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z_][A-Za-z0-9_-]*\.\d+\.\d+")
UI_KEYS = ("config.topics", "config.groupid", "config.bootstrap.servers")
"""What Storm's UI looks for in a spout's configuration; nothing else reads it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The checked settings of one task."""

    # those of the scope ``kafka``; secrets among them, so no text of this holds them
    settings: Mapping[str, Any] = field(repr=False)
    topology: str  # its name
    group: str  # the consumer group
    # the static member's name, ``topology.component.index.member``: the same after a restart, another for each task
    instance: str
    index: int  # which of the component's tasks this is, from 0
    tasks: int
    identity: Identity  # who commits
    bounded: bool  # whether the run ends at the end of the log as of the start
    timeout_ms: float  # a tuple that is out for so long has timed out
    pending_max: int  # Storm's limit of open tuples per task, here of records; 0: none, or no ackers, which it needs
    # where the sinks of the topology write: commits are noted there; none where they are kept in a store
    sinks: tuple[Path, ...]
    dead_letter_topic: str  # empty: the run stops at a record that fails for good

    @classmethod
    def of(cls, conf: Mapping[str, Any], context: Mapping[str, Any]) -> Setup:
        """Read Storm's configuration and context.

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
        settings = reading(settings, group)
        settings["retries_max"] = retries_of(settings["retries_max"])
        settings["offset_store"] = of_project_url(settings["offset_store"], "kafka.offset_store", conf)
        pending_max = _pending_max(conf)
        if settings["emit"] == "chunk":
            if pending_max:  # which counts records; a chunk is not to be more than a part of it
                settings["chunk_records_max"] = max(1, min(settings["chunk_records_max"], pending_max // 2))
            settings["poll_records_max"] = max(settings["poll_records_max"], settings["chunk_records_max"])
        return cls(
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
        )

    @property
    def joins(self) -> bool:
        """Return whether the consumer group gives out the partitions."""
        return bool(self.settings["mode"] == "subscribe")

    @property
    def guarantee(self) -> Guarantee:
        """Return what the processing guarantee decides."""
        return GUARANTEES[self.settings["guarantee"]]

    @property
    def commits_wait(self) -> bool:
        """Return whether the commits of a spout that runs wait for the broker's answer."""
        return self.guarantee.waits and self.settings["commit"] == "sync"

    @property
    def hand_overs_wait(self) -> bool:
        """Return whether the commit before others get our partitions does."""
        return bool(self.settings["commit"] != "async")

    @property
    def client(self) -> dict[str, Any]:
        """Return the properties for the client: the user's, and what the spout needs."""
        # "none": where reading starts, and what happens when records are gone, is decided here and not by the client.
        ours = {"auto_offset_reset": "none", "session_timeout_ms": self.settings["session_timeout_ms"]}
        users = self.settings["client"]
        return {**users, **ours}

    @property
    def gathering(self) -> Gathering | None:
        """Return what a broker gathers for a chunk."""
        return gathering(self.settings["client"]) if self.settings["emit"] == "chunk" else None

    def warn(self, log: logging.Logger) -> None:
        """Log what is allowed and may not be meant."""
        for what, cure in doubts(self.settings):
            log.warning("%s. Try: %s", what, cure)


def topology_of(instance: str) -> str:
    """Return the topology in the name of a static member; empty where it is not a spout's.

    >>> topology_of("shop.reader.0.1"), topology_of("consumer-1-c0ffee"), topology_of("10.0.0.1")
    ('shop', '', '')
    """
    found = INSTANCE.fullmatch(instance)
    return found[1] if found else ""


def gathering(client: Mapping[str, Any]) -> Gathering | None:
    """Return how a fetch brings enough for a chunk, where the user has not said how it shall be.

    Never more than half of what a fetch may bring: a broker that cannot reach the number waits in vain each time.

    >>> gathering({}), gathering({"max_partition_fetch_bytes": 65536}), gathering({"fetch_max_wait_ms": 500})
    (Gathering(min_bytes=524288, wait_ms=125), Gathering(min_bytes=32768, wait_ms=125), None)
    """
    if "fetch_min_bytes" in client or "fetch_max_wait_ms" in client:
        return None
    most = min(int(client.get(name, default)) for name, default in FETCH_BYTES_MAX.items())
    return Gathering(max(1, min(GATHER_BYTES, most // 2)), GATHER_MS)


def emitted(conf: Mapping[str, Any], component: str, foreign_serializer: str) -> tuple[str, str]:
    """Return what a spout emits by its configuration, ``chunk`` or ``record``; and why records where it chose them.

    Where it is ``auto`` on Storm, the topology was looked at when it was submitted (``downspout.wire.specs``). Where
    nothing knows a topology, records leave.

    Raises:
        ConfigError: chunks are asked for, on a pipe of Storm's whose serializer is not ours.
    """
    wanted: str = SETTINGS["kafka.emit"].parse(conf.get("kafka.emit"), "topology")
    if wanted == "chunk" and foreign_serializer:
        raise ConfigError(
            f"kafka.emit = chunk: {foreign_serializer} cannot send columns",
            cure="streamparse's JSON serializer, or kafka.emit=record",
        )
    if wanted != "auto":
        return wanted, ""
    if foreign_serializer:
        return "record", f"{foreign_serializer} cannot send columns"
    why = (conf.get(WHY_RECORDS) or {}).get(component)
    if why is None:
        return "record", ""
    why = why or records_by_settings(parse_scope(conf, "kafka"), conf.get("run.records"))
    return ("record", why) if why else ("chunk", "")


def data_streams(context: Mapping[str, Any]) -> set[str]:
    """Return the streams on which records go: all of the spout's but those by which our components speak."""
    return set(context.get("stream->outputfields") or ()) - {FLUSH, TRANSACTIONS}


def lag_config(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what Storm's UI looks for in a spout's configuration to show its lag; no secret is among it.

    What is not known before the topology runs (an embedded broker, a group named like the topology) is left out.

    >>> lag_config({"topics": ["a", "b"], "group": "g", "bootstrap": "one:9092"})
    {'config.topics': 'a,b', 'config.groupid': 'g', 'config.bootstrap.servers': 'one:9092'}
    """
    bootstrap = settings["bootstrap"] if not is_scheme(settings["bootstrap"]) else None
    topics = ",".join(settings["topics"] or ())
    found = zip(UI_KEYS, (topics, settings["group"], bootstrap), strict=True)
    return {key: value for key, value in found if value}


def _sinks(conf: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories of the topology's sinks; where a sink has none, ``sparse -o`` may give it to all."""
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
