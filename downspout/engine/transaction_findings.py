"""What keeps a topology from being exactly once from Kafka to Kafka, found beforehand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from pystorm.bolt import BatchingBolt

from downspout.engine.graph import Component, Graph
from downspout.engine.values import Settings, reads
from downspout.findings import Finding
from downspout.origins import FIELD
from downspout.settings.table import SETTINGS
from downspout.spout.settings import is_named
from downspout.wire.transacting import KEY, TRANSACTIONS

PARTS = ("topic", "partition", "offset")
"""Of these fields a bolt can make an origin."""


def findings(graph: Graph, settings: Settings) -> Iterator[Finding]:
    """Find transactional sinks that no KafkaSpout can commit for, or two of one spout; and paths that mix origins."""
    sinks_of: dict[str, list[str]] = {}
    for sink in graph.bolts:
        if not (reads(sink, "produce") and _is_transactional(sink, settings)):
            continue
        spouts = [each for each in _before(graph, sink) if each.is_spout]
        for spout in spouts:
            sinks_of.setdefault(spout.name, []).append(sink.name)
            if not reads(spout, "kafka") or reads(spout, "batch"):
                yield Finding(
                    True, sink.name, f"it is transactional, and {spout.name} is not a KafkaSpout: it has no offsets",
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
            yield Finding(True, name, what, "one KafkaBolt for all topics, with topic_field or topic_function")


def _lost_origins(graph: Graph, sink: Component, settings: Settings) -> Iterator[Finding]:
    """Find where results may lose the origin, or have more than one; an error where nobody can know it."""
    cure = "one result for each record, with its origin"
    for component in _before(graph, sink):
        fields = [stream.fields for name, stream in component.streams.items() if name != TRANSACTIONS]
        has_origin = any(FIELD in each for each in fields)
        if component.is_spout:
            is_told = has_origin or any(set(PARTS) <= set(each) for each in fields)
            if reads(component, "kafka") and not (is_told or _value(settings, component, "kafka.translator")):
                what = f"{sink.name} is transactional, and these tuples do not say from which record they are"
                yield Finding(True, component.name, what, f"kafka.fields = [{FIELD!r}, …]")
            continue
        before = f"it is transactional, and {component.name} before it"
        if not has_origin:
            what = f"it is transactional, and {component.name} does not hand on the field {FIELD}"
            yield Finding(False, sink.name, what, "hand it on as it came")
        if issubclass(component.cls, BatchingBolt):
            what = f"{before} takes tuples in batches: a result of several records has no single origin, and is refused"
            yield Finding(False, sink.name, what, cure)
        if any(given.grouping == "fields" for given in component.inputs):
            what = (
                f"{before} groups by fields: if it adds up records, its results have no single origin, and are refused"
            )
            yield Finding(False, sink.name, what, cure)


def _read_twice(sink: Component, spouts: Sequence[Component], settings: Settings) -> Iterator[Finding]:
    """Find spouts of two groups that read one topic: each result would be there twice, under one origin."""
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
    """Return whether a KafkaSpout reads a topic; not by a pattern that is no regular expression, which is found too."""
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
    """Return all components from which a sink's tuples may come."""
    names = graph.upstream([sink.name]) - {sink.name}
    return [component for name, component in graph.components.items() if name in names]
