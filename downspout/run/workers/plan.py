"""What is decided once, before any worker starts: what cannot be shared, how many can have work, where the run ends.

Each spout of a bounded run takes "the end as of now" for itself. Workers start at different times, and one that is
started again does so much later. So the supervisor looks, and hands the ends on as ``kafka.stop_offsets``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import errors

from downspout.engine.graph import Component, Graph, require_fields
from downspout.engine.settings import Settings
from downspout.errors import BrokerError, ConfigError
from downspout.formatting import counted
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.kafka.retry_gate import cure_of, describe
from downspout.run.sharing import refuse_spouts, split_groupings
from downspout.spout.findings import setup_of
from downspout.spout.session import open_consumer
from downspout.spout.settings import offsets_of
from downspout.spout.starts import partitions_of, topics_of


@dataclass
class Plan:
    """What the workers are given, and warnings for the user."""

    overrides: list[str] = field(default_factory=list)  # ``--set`` options that come after the user's
    warnings: list[str] = field(default_factory=list)  # one sentence each
    # where the spouts' own warnings go (a topic that does not exist yet, a log that ends too early)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("downspout.run.workers"))


def make_plan(graph: Graph, settings: Settings, confs: Mapping[str, Mapping[str, Any]], workers: int) -> Plan:
    """Look at the topology and its topics.

    Raises:
        TopologyError: a spout is not a KafkaSpout, or a component lacks a field.
        BrokerError: no broker answers, or a bounded run lacks a topic.
    """
    if settings.run.values["run.member"] is not None:
        raise ConfigError(
            "run.member is for a process that you start yourself, and run.workers starts and numbers its own",
            cure="one of --workers and --member",
        )
    graph.check()
    require_fields(graph)
    refuse_spouts(graph, workers)
    plan = Plan()
    for bolt, what, cure in split_groupings(graph):
        plan.warnings.append(f"{bolt.name}: {what}. Try: {cure}")
    for spout in graph.spouts:
        _look_at(spout, confs[spout.name], workers, plan)
    return plan


def _look_at(spout: Component, conf: Mapping[str, Any], workers: int, plan: Plan) -> None:
    setup = setup_of(conf, {"componentid": spout.name})
    if not setup.joins:
        raise ConfigError(
            f"{spout.name}: kafka.mode = assign shares the partitions among the tasks of one process, but "
            f"run.workers = {workers}",
            cure="kafka.mode=subscribe, or one process with more tasks (par)",
        )
    settings, bootstrap = setup.settings, setup.settings["bootstrap"]
    consumer, _ = open_consumer(cluster_for(bootstrap, settings["client"]), setup, None, plan.log)
    try:
        partitions = partitions_of(consumer, topics_of(consumer, settings))
        ends = consumer.end_offsets(partitions) if setup.bounded and partitions else {}
    except errors.KafkaError as error:
        raise BrokerError(
            f"{bootstrap}: cannot read: {describe(error)}",
            cure=cure_of(error, "start the broker, or set kafka.bootstrap"),
        ) from error
    finally:
        consumer.close(leave_group=False)  # it has joined none
    plan.warnings += _too_many(spout, workers, len(partitions))
    if setup.bounded:
        plan.overrides.append(f"{spout.name}:kafka.stop_offsets={json.dumps(_stops(settings, ends))}")


def _too_many(spout: Component, workers: int, partitions: int) -> Iterator[str]:
    members = workers * spout.par
    if 0 < partitions < members:
        tasks = f" with {spout.par} tasks each" if spout.par > 1 else ""
        yield (
            f"{spout.name}: {workers} workers{tasks} share {counted(partitions, 'partition')}, so "
            f"{members - partitions} of them will have nothing to read. "
            f"Try: {counted(max(1, partitions // spout.par), 'worker')}, or more partitions"
        )


def _stops(settings: Mapping[str, Any], ends: Mapping[TopicPartition, int]) -> list[str]:
    """Return where each partition ends: as the user says, or where its log does now."""
    named = offsets_of("kafka.stop_offsets", settings["stop_offsets"])
    starts = offsets_of("kafka.start_offsets", settings["start_offsets"])
    # A partition whose log ends before the offset at which it is to start is left out: what becomes of that the spout
    # decides (``kafka.on_data_loss``), and a stop below a start would be refused.
    stops = named | {tp: min(end, named.get(tp, end)) for tp, end in ends.items()}
    return [f"{tp.topic}[{tp.partition}]={stop}" for tp, stop in sorted(stops.items()) if starts.get(tp, 0) <= stop]
