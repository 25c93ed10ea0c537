"""What a spout knows before it reads: its settings, checked, and who it is in the consumer group."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from downspout import config
from downspout.kafka.guarantee import GUARANTEES, Guarantee
from downspout.kafka.sense import check, check_dead_letter_topic, dead_letter_topic, doubts, pattern_without
from downspout.kafka.starts import Identity

__all__ = ["UI_KEYS", "Setup", "lag_config"]

UI_KEYS = ("config.topics", "config.groupid", "config.bootstrap.servers")
"""What Storm's UI looks for in a spout's configuration; nobody else reads it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The checked settings of one task.

    Attributes:
        settings: those of the scope ``kafka``; secrets among them, so no text of this holds them.
        group: the consumer group.
        instance: the static member's name: the same after a restart, another for each task and process.
        index: which of the component's tasks this is, from 0.
        tasks: how many it has.
        identity: who commits.
        bounded: whether the run ends at the end of the log as of the start.
        timeout_ms: a tuple that is out for so long has timed out.
        dead_letter_topic: empty: the run stops at a record that fails for good.
    """

    settings: Mapping[str, Any] = field(repr=False)
    group: str
    instance: str
    index: int
    tasks: int
    identity: Identity
    bounded: bool
    timeout_ms: float
    dead_letter_topic: str

    @classmethod
    def of(cls, conf: Mapping[str, Any], context: Mapping[str, Any]) -> Setup:
        """Read Storm's configuration and context.

        Raises:
            ConfigError: a setting is unknown, out of range, missing or contradicts another.
        """
        settings = config.parse_scope(config.with_secrets(conf), "kafka")
        bounded = conf.get("run.until") == "end"
        check(settings, bounded, conf.get("run.member"))
        topology = str(conf.get("topology.name") or "topology")
        group = settings["group"] or topology
        check_dead_letter_topic(settings, group)
        index, tasks = _number(context)
        letters = dead_letter_topic(settings, group)
        return cls(
            settings={**settings, "pattern": settings["pattern"] and pattern_without(letters, settings["pattern"])},
            group=group,
            instance=_instance(topology, conf, context, index),
            index=index,
            tasks=tasks,
            identity=Identity(str(conf.get("storm.id") or topology), int(context.get("taskid") or 0)),
            bounded=bounded,
            timeout_ms=_message_timeout_ms(conf),
            dead_letter_topic=letters,
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
    def client(self) -> dict[str, Any]:
        """Return the properties for the client: the user's, and what the spout needs."""
        # "none": where reading starts, and what happens when records are gone, is decided here and not by the client.
        ours = {"auto_offset_reset": "none", "session_timeout_ms": self.settings["session_timeout_ms"]}
        return {**self.settings["client"], **ours}

    def warn(self, log: logging.Logger) -> None:
        """Log what is allowed and may not be meant."""
        for what, cure in doubts(self.settings):
            log.warning("%s. Try: %s", what, cure)


def lag_config(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what Storm's UI looks for in a spout's configuration to show its lag; no secret is among it.

    What is not known before the topology runs (an embedded broker, a group named like the topology) is left out.

    >>> lag_config({"topics": ["a", "b"], "group": "g", "bootstrap": "one:9092"})
    {'config.topics': 'a,b', 'config.groupid': 'g', 'config.bootstrap.servers': 'one:9092'}
    """
    bootstrap = settings["bootstrap"] if settings["bootstrap"] != "embedded" else None
    topics = ",".join(settings["topics"] or ())
    found = zip(UI_KEYS, (topics, settings["group"], bootstrap), strict=True)
    return {key: value for key, value in found if value}


def _message_timeout_ms(conf: Mapping[str, Any]) -> float:
    if conf.get("topology.enable.message.timeouts") is False:
        return float("inf")
    return float(conf.get("topology.message.timeout.secs") or 30) * 1000


def _number(context: Mapping[str, Any]) -> tuple[int, int]:
    """Return which of its component's tasks this is, from 0, and how many there are.

    >>> _number({"taskid": 5, "componentid": "a", "task->component": {"3": "a", "4": "b", "5": "a"}})
    (1, 2)
    """
    component = _component(context)
    names = context.get("task->component") or {}
    tasks = sorted(int(task) for task, name in names.items() if name == component)
    task = int(context.get("taskid") or 0)
    return (tasks.index(task), len(tasks)) if task in tasks else (0, 1)


def _component(context: Mapping[str, Any]) -> str:
    return str(context.get("componentid") or "spout")


def _instance(topology: str, conf: Mapping[str, Any], context: Mapping[str, Any], index: int) -> str:
    name = "-".join([topology, _component(context), str(index), str(conf.get("run.member") or 1)])
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-249:]
