"""Findings about a graph: wiring, settings of any component, chunks on Storm, Kafka to Kafka exactly once.

A topology with ``kafka.emit=chunk`` always runs on Storm, with the same result. But if one reader needs records, all
readers of that stream lose the speed of chunks (decision 0008). :mod:`downspout.wire.side_streams` applies this rule to
Storm's handshake, this module to the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pystorm.bolt
from pystorm.bolt import BatchingBolt

from downspout.engine.graph import Component, Graph, Input, lacking_fields
from downspout.engine.settings import WHOLE_RUN, Settings, reads
from downspout.errors import ConfigError, DownspoutError
from downspout.findings import Finding
from downspout.origins import FIELD
from downspout.protocols import scopes_of, takes_chunks, wrong_stateful_keys
from downspout.settings.layers import meant
from downspout.settings.table import SETTINGS, parse_scope
from downspout.spout.settings import dead_letter_topic, is_named
from downspout.spout.tuples import CHUNKS
from downspout.wire import MultilangComponent
from downspout.wire.side_streams import KEY, TRANSACTIONS, is_blind
from downspout.wire.specs import has_types


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find wrong wiring, wrong values, and bolts whose batches are never processed."""
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
    spouts = {spout.name for spout in graph.spouts}
    for bolt in graph.bolts:
        if not graph.upstream([bolt.name]) & spouts:
            yield Finding(True, bolt.name, "no spout's tuples reach it", "an input that leads back to a spout")
    for spout in graph.spouts:
        for stream in spout.streams:
            if not any(graph.subscribers(spout.name, stream)):
                yield Finding(False, spout.name, f"no bolt reads its stream {stream!r}", "a bolt that does")


def _near_misses(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find keys that look like misspelt Storm settings, each once; any other unknown key may be the user's own."""
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
    if (columns_of := getattr(component.cls, "columns_of", None)) is not None:  # a sink's own check
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
    """Find BatchingBolts without ticks: pystorm processes their batches only on ticks."""
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
    """Find bolts whose dead-letter topic no spout uses, because settings were given to one spout only."""

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
                f"it writes dead letters to {topic_of(bolt) or 'no topic'}, but the spouts write to "
                f"{', '.join(sorted(topic or 'no topic' for topic in topics))}",
                "kafka.group and kafka.dead_letter_topic of the topology, not of one component",
            )


def _loops(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find KafkaBolts that write to a topic that feeds them: records would circulate for ever."""
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
            if brokers == its_brokers and reads_topic(settings, spout, topic):
                yield Finding(
                    False, bolt.name, f"it writes to {topic}, which {spout.name} reads: its records come back to it",
                    "another topic; or make sure that a record that comes back is not written again",
                )  # fmt: skip


def chunk_findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find streams that carry chunks in the local engine but records on Storm."""
    whole: set[tuple[str, str]] = set()
    for component in [*graph.spouts, *graph.bolts]:
        if not _emits_chunks(component, settings, whole):
            continue
        for stream in component.streams:
            readers = list(graph.subscribers(component.name, stream))
            guilty = {reader.name: why for reader, given in readers if (why := _why_records(reader, given))}
            if not guilty:
                whole.add((component.name, stream))
            elif (others := [reader.name for reader, _ in readers if reader.name not in guilty]) or component.is_spout:
                yield _finding(component, stream, guilty, others)


def _finding(source: Component, stream: str, guilty: dict[str, str], others: list[str]) -> Finding:
    """Return the finding for a stream, with its readers that need records and those that then get records too."""
    too = f", to {' and '.join(others)} too" if others else ""
    names = " and ".join(guilty)
    return Finding(
        False,
        source.name,
        f"on Storm its stream {stream!r} goes as records, not in chunks{too}, because "
        + " and ".join(f"{name} {why}" for name, why in guilty.items()),
        ("kafka.emit=record, or a bolt before " if source.is_spout else "a separate stream for ")
        + f"{names}; nothing if it does not run on Storm, or if records are fast enough",
    )


def _emits_chunks(component: Component, settings: Settings, whole: set[tuple[str, str]]) -> bool:
    """Return whether a component emits chunks over our wire to Storm."""
    conf = settings.components[component.name].values
    if not issubclass(component.cls, MultilangComponent):
        return False
    if component.is_spout:
        # A user who left the choice to ``auto`` has not asked for chunks on Storm.
        chosen = settings.components[component.name].sources["kafka.emit"].startswith("auto")
        return reads(component, "kafka") and conf.get("kafka.emit") == CHUNKS.name and not chosen
    if not takes_chunks(component.cls) or not has_types(component.cls, conf):
        return False
    return any((given.source, given.stream) in whole for given in component.inputs)


def _why_records(reader: Component, given: Input) -> str:
    """Return why this reader needs records; empty if it takes chunks."""
    if not issubclass(reader.cls, MultilangComponent):
        return f"({reader.cls.__name__}) is not a Downspout bolt and would take a chunk for text"
    grouping = "fields" if given.grouping == "global" else given.grouping  # Storm's handshake has no global grouping
    if is_blind({"type": grouping, "fields": given.fields}, reader.par):
        return ""
    return f"reads it by {grouping} ({', '.join(given.fields)}) with {reader.par} tasks"


PARTS = ("topic", "partition", "offset")
"""The fields from which a bolt can build an origin."""


def transaction_findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find transactional sinks without a KafkaSpout, several sinks of one spout, and paths that lose or mix origins."""
    sinks_of: dict[str, list[str]] = {}
    for sink in graph.bolts:
        if not (reads(sink, "produce") and _is_transactional(sink, settings)):
            continue
        spouts = [each for each in _before(graph, sink) if each.is_spout]
        for spout in spouts:
            sinks_of.setdefault(spout.name, []).append(sink.name)
            if not reads(spout, "kafka") or reads(spout, "batch"):
                yield Finding(
                    True, sink.name, f"it is transactional, but {spout.name} is not a KafkaSpout and has no offsets",
                    "transactional=False, or a KafkaSpout",
                )  # fmt: skip
        if not any(given.stream == TRANSACTIONS for given in sink.inputs) and spouts:
            yield Finding(
                True,
                sink.name,
                f"{KEY} is set where the topology cannot see it",
                "transactional=True in KafkaBolt.spec(…)",
            )
        yield from _lost_origins(graph, sink, settings)
        yield from _read_twice(sink, spouts, settings)
    for name, sinks in sinks_of.items():
        if len(sinks) > 1:
            what = f"{' and '.join(sinks)} are transactional: the offsets can be in one transaction only"
            yield Finding(True, name, what, "one KafkaBolt for all topics, with fields={'topic': NAME} or a mapper")


def _lost_origins(graph: Graph, sink: Component, settings: Settings) -> Iterator[Finding]:
    """Find components whose results may lose their origin or have several; an error if a spout emits none."""
    cure = "one result for each record, with its origin"
    for component in _before(graph, sink):
        fields = [stream.fields for name, stream in component.streams.items() if name != TRANSACTIONS]
        has_origin = any(FIELD in each for each in fields)
        if component.is_spout:
            is_told = has_origin or any(set(PARTS) <= set(each) for each in fields)
            if reads(component, "kafka") and not (is_told or _value(settings, component, "kafka.translator")):
                what = f"{sink.name} is transactional, but these tuples do not identify their record"
                yield Finding(True, component.name, what, f"kafka.fields = [{FIELD!r}, …]")
            continue
        before = f"it is transactional, and {component.name} before it"
        if not has_origin:
            what = f"it is transactional, but {component.name} does not pass on the field {FIELD}"
            yield Finding(False, sink.name, what, "pass it on unchanged")
        if issubclass(component.cls, BatchingBolt):
            what = f"{before} takes tuples in batches: a result of several records has no single origin, and is refused"
            yield Finding(False, sink.name, what, cure)
        if any(given.grouping == "fields" for given in component.inputs):
            what = (
                f"{before} groups by fields: if it adds up records, its results have no single origin, and are refused"
            )
            yield Finding(False, sink.name, what, cure)


def _read_twice(sink: Component, spouts: Sequence[Component], settings: Settings) -> Iterator[Finding]:
    """Find spouts of two groups that read one topic: each result would be written twice, with the same origin."""
    kafka_spouts = sorted((each for each in spouts if reads(each, "kafka")), key=lambda each: each.name)
    for first, second in combinations(kafka_spouts, 2):
        groups = [_value(settings, each, "kafka.group") or "that of the topology" for each in (first, second)]
        if groups[0] == groups[1]:
            continue
        for topic in sorted({*_topics(settings, first), *_topics(settings, second)}):
            if all(reads_topic(settings, each, topic) for each in (first, second)):
                yield Finding(
                    True, sink.name, f"it is transactional, and {first.name} and {second.name} both read {topic}, for "
                    f"the groups {' and '.join(groups)}", "the same kafka.group for both, or a KafkaBolt for each",
                )  # fmt: skip


def _topics(settings: Settings, spout: Component) -> list[str]:
    return _value(settings, spout, "kafka.topics") or []


def reads_topic(settings: Settings, spout: Component, topic: str) -> bool:
    """Return whether a KafkaSpout reads a topic; an invalid pattern, which has a finding of its own, matches none."""
    given = {"topics": _topics(settings, spout), "pattern": _value(settings, spout, "kafka.pattern")}
    try:
        return is_named(given, topic)
    except re.error:
        return False


def _value(settings: Settings, component: Component, key: str) -> Any:
    return SETTINGS[key].parse(settings.components[component.name].values.get(key), "topology")


def _is_transactional(sink: Component, settings: Settings) -> bool:
    return bool(_value(settings, sink, KEY))


def _before(graph: Graph, sink: Component) -> list[Component]:
    """Return all components upstream of a sink."""
    names = graph.upstream([sink.name]) - {sink.name}
    return [component for name, component in graph.components.items() if name in names]
