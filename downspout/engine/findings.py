"""Findings about the graph, and about values whatever component reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pystorm.bolt

from downspout.engine import transaction_findings
from downspout.engine.graph import Component, Graph
from downspout.engine.required_fields import lacking_fields
from downspout.engine.values import WHOLE_RUN, Settings, reads
from downspout.errors import ConfigError, DownspoutError
from downspout.findings import Finding
from downspout.protocols import scopes_of, wrong_stateful_keys
from downspout.settings.storm_keys import meant
from downspout.settings.table import SETTINGS, parse_scope
from downspout.spout.settings import dead_letter_topic


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find wrong wiring, wrong values, and bolts that never get what they wait for."""
    yield from (Finding(True, graph.name, problem, "correct the wiring") for problem in graph.problems())
    yield from (Finding(True, *problem) for problem in lacking_fields(graph))
    yield from _unreachable(graph)
    for component in graph.components.values():
        conf = dict(settings.components[component.name].values)
        yield from _scopes(component, conf)
        yield from _never_flushes(component, conf)
        if wrong := wrong_stateful_keys(component.cls):
            cure = 'the name of the dict that the bolt keeps by key: stateful_keys = "counts"'
            yield Finding(True, component.name, wrong, cure)
    yield from _near_misses(graph, settings)
    yield from _dead_letter_topics(graph, settings)
    yield from _loops(graph, settings)


def _unreachable(graph: Graph) -> Iterator[Finding]:
    reached = {spout.name for spout in graph.spouts}
    while True:
        more = {
            bolt.name
            for bolt in graph.bolts
            if bolt.name not in reached and any(given.source in reached for given in bolt.inputs)
        }
        if not more:
            break
        reached |= more
    for bolt in graph.bolts:
        if bolt.name not in reached:
            yield Finding(True, bolt.name, "no spout's tuples reach it", "an input that leads back to a spout")
    for spout in graph.spouts:
        for stream in spout.streams:
            if not any(graph.subscribers(spout.name, stream)):
                yield Finding(False, spout.name, f"no bolt reads its stream {stream!r}", "a bolt that does")


def _near_misses(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find keys that are nearly Storm's, each once: an unknown one may be the user's own."""
    having: dict[str, list[str]] = {}
    for name, resolved in settings.components.items():
        for key in resolved.values:
            having.setdefault(key, []).append(name)
    for key, names in having.items():
        if (near := meant(key)) is not None:
            where = names[0] if len(names) == 1 else graph.name
            yield Finding(False, where, f"{key} is not a setting of Storm's, and has no effect there", near)


def _scopes(component: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    for scope in scopes_of(component.cls):
        try:
            parse_scope(conf, scope)
        except ConfigError as error:
            yield Finding(True, component.name, error.message, error.cure or "`downspout settings`")
    if (columns_of := getattr(component.cls, "columns_of", None)) is not None:  # a sink checks its columns itself
        try:
            columns_of(conf)
        except DownspoutError as error:
            yield Finding(True, component.name, error.message, error.cure or "`downspout settings parquet`")
    for key in component.config:
        if key in WHOLE_RUN:
            what = f"{key} is a setting of the whole run: here it has no effect"
            yield Finding(False, component.name, what, f"{key} in the config of the topology, or `--set {key}`")
        elif key in SETTINGS and not reads(component, SETTINGS[key].scope) and not key.startswith("run."):
            cls = component.cls.__name__
            yield Finding(False, component.name, f"{key} is set, but {cls} does not read it", "remove it")


def _never_flushes(component: Component, conf: dict[str, Any]) -> Iterator[Finding]:
    """pystorm's BatchingBolt processes its batches on ticks alone."""
    if not issubclass(component.cls, pystorm.bolt.BatchingBolt):
        return
    if issubclass(component.cls, pystorm.bolt.TicklessBatchingBolt) or conf.get("topology.tick.tuple.freq.secs"):
        return
    yield Finding(
        False,
        component.name,
        f"{component.cls.__name__} is a BatchingBolt and gets no ticks, so it never processes a batch",
        'config={"topology.tick.tuple.freq.secs": 1}',
    )


def _dead_letter_topics(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find bolts that write dead letters where no spout of the topology does: some settings are a spout's own."""

    def topic_of(component: Component) -> str:
        conf = settings.components[component.name].values
        values = {"dead_letter_topic": conf["kafka.dead_letter_topic"]}
        return dead_letter_topic(values, conf["kafka.group"] or str(conf.get("topology.name") or graph.name))

    topics = {topic_of(spout) for spout in graph.spouts if reads(spout, "kafka")}
    for bolt in graph.bolts:
        writes_dead_letters = reads(bolt, "kafka") and not reads(bolt, "produce")
        if topics and writes_dead_letters and topic_of(bolt) not in topics:
            yield Finding(
                False,
                bolt.name,
                f"it writes dead letters to {topic_of(bolt) or 'no topic'}, and the spouts to "
                f"{', '.join(sorted(topic or 'no topic' for topic in topics))}",
                "kafka.group and kafka.dead_letter_topic of the topology, not of one component",
            )


def _loops(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find KafkaBolts that write to a topic from which their own tuples come, so that records go round for ever."""
    for bolt in graph.bolts:
        conf = settings.components[bolt.name].values
        if not reads(bolt, "produce") or not (topic := conf["produce.topic"]):
            continue
        before = graph.upstream([bolt.name])
        for spout in graph.spouts:
            if spout.name not in before or not reads(spout, "kafka"):
                continue
            brokers = conf["produce.bootstrap"] or conf["kafka.bootstrap"]
            its_brokers = settings.components[spout.name].values["kafka.bootstrap"]
            if brokers == its_brokers and transaction_findings.reads_topic(settings, spout, topic):
                yield Finding(
                    False, bolt.name, f"it writes to {topic}, which {spout.name} reads: its records come back to it",
                    "another topic; or see that a record which has come back is not written again",
                )  # fmt: skip
