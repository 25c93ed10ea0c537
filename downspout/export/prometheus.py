"""The metrics of a run in Prometheus's words: each row of the one table is a metric, each task or partition a series.

A component's series have the labels ``topology``, ``component`` and ``task``, with workers also ``worker``; a spout's
have its ``group`` too. A partition's have ``topology``, ``component``, ``topic``, ``partition`` and ``group``, and no
task: its line goes on when it changes hands. What is not known has no series, and nor has the lag of a partition
without a commit.

``kafka_consumergroup_lag`` is what boards made for kafka_exporter read, with its label ``consumergroup`` (and
``group``). It counts from what is committed, as that program does; ``downspout_partition_lag`` counts from what the
next commit will be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS, Metric
from downspout.offsets.lag import GroupLag
from downspout.run.snapshots import Snapshot, Snapshots

Family = CounterMetricFamily | GaugeMetricFamily
GROUP_LAG = "kafka_consumergroup_lag"
NEEDS_COMMIT = ("lag",)  # Of a partition: without a commit they would count from where the spout happened to start


class RunCollector(Collector):
    """Asks a run for its metrics, at each scrape."""

    def __init__(self, snapshots: Snapshots, groups: Mapping[str, str]) -> None:
        self._snapshots = snapshots
        self._groups = groups  # the consumer group of each spout, by name

    def collect(self) -> Iterable[Family]:
        """Return all metrics that have a series; none before the run has begun."""
        snapshot = self._snapshots.latest()
        return [] if snapshot is None else families(snapshot, self._groups)

    def describe(self) -> Iterable[Family]:
        """Return nothing: a registry would else collect, to know the names."""
        return []


class LagCollector(Collector):
    """Has how far groups are behind, as Kafka says it: for topologies on Storm or Spark, and for other clients."""

    def __init__(self) -> None:
        self.groups: Sequence[GroupLag] = ()  # as of the last look

    def collect(self) -> Iterable[Family]:
        """Return what is known of the groups' partitions."""
        rows = [
            (["", "", row.topic, str(row.partition), group.group], asdict(row))
            for group in self.groups
            for row in group.partitions
        ]
        return [family for family in _of_rows(rows) if family.samples]

    def describe(self) -> Iterable[Family]:
        """Return nothing, as above."""
        return []


def families(snapshot: Snapshot, groups: Mapping[str, str]) -> list[Family]:
    """Return the metrics of a run as of one moment.

    Args:
        snapshot: the metrics, and how old they are.
        groups: the consumer group of each spout, by name.
    """
    found = [*_of_run(snapshot), *_of_tasks(snapshot, groups), *_of_partitions(snapshot, groups)]
    return [family for family in found if family.samples]


def _family(metric: Metric, labels: Iterable[str]) -> Family:
    names = [*labels, metric.name] if metric.unit == "text" else list(labels)
    # The suffix _total is added by the library.
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    text = f"{metric.help} {metric.note}".strip().replace("`", "")
    return kind(metric.series, text, labels=names)


def _add(family: Family, metric: Metric, labels: list[str], value: Any) -> None:
    """Add a series, where its value is known."""
    if metric.unit == "text":
        if value:
            family.add_metric([*labels, kind_of(str(value))], 1)
    elif value is not None:
        family.add_metric(labels, float(value))


def kind_of(text: str) -> str:
    """Return what a text has in common with others of its kind, so that a label takes few values.

    >>> kind_of("failed 3 times, out for 12 s"), kind_of("KeyError: 'jane@example.org'")
    ('failed N times, out for N s', 'KeyError')
    """
    return re.sub(r"\d[\d,.]*", "N", text.partition(":")[0]).replace("1 time,", "N times,")


def _of_run(snapshot: Snapshot) -> Iterator[Family]:
    run, result = snapshot.metrics, snapshot.metrics.result
    seconds = {name: None if ms is None else ms / 1000 for name, ms in (
        ("latency_p50_s", result.latency_p50_ms), ("latency_p99_s", result.latency_p99_ms),
    )}  # fmt: skip
    values = {
        "completed": result.completed,
        "workers": sum(worker.pid is not None for worker in result.workers) if result.workers else None,
        "worker_restarts": sum(worker.restarts for worker in result.workers) if result.workers else None,
        "age_s": snapshot.age_s,
        **seconds,
    }
    for name, metric in RUN_METRICS.items():
        family = _family(metric, ["topology"])
        _add(family, metric, [run.name], values.get(name))
        yield family


def _of_tasks(snapshot: Snapshot, groups: Mapping[str, str]) -> Iterator[Family]:
    run = snapshot.metrics
    for name, metric in METRICS.items():
        family = _family(metric, ["topology", "component", "task", "worker", "group"])
        for task in run.result.tasks:
            # An empty label is the same as none.
            worker = "" if task.worker is None else str(task.worker)
            labels = [run.name, task.component, str(task.task), worker, groups.get(task.component, "")]
            _add(family, metric, labels, task.values.get(name))
        yield family


def _of_partitions(snapshot: Snapshot, groups: Mapping[str, str]) -> Iterator[Family]:
    run = snapshot.metrics
    rows = [
        ([run.name, spout, *topic_and_number(place), groups.get(spout, "")], figures)
        for spout, partitions in run.result.partitions.items()
        for place, figures in partitions.items()
    ]
    yield from _of_rows(rows)


def _of_rows(rows: Sequence[tuple[list[str], Mapping[str, Any]]]) -> Iterator[Family]:
    """Return the metrics of partitions, each given by its labels and by what is known of it."""
    for name, metric in PARTITION_METRICS.items():
        family = _family(metric, ["topology", "component", "topic", "partition", "group"])
        for labels, figures in rows:
            if name not in NEEDS_COMMIT or figures.get("committed") is not None:
                _add(family, metric, labels, figures.get(name))
        yield family
    lags = [
        (labels[-1], labels[2], labels[3], max(0, figures["end"] - figures["committed"]))
        for labels, figures in rows
        if figures.get("committed") is not None and figures.get("end") is not None
    ]
    yield group_lag(lags)


def group_lag(lags: Iterable[tuple[str, str, str, float]]) -> Family:
    """Return the lag of groups as kafka_exporter names it.

    Args:
        lags: group, topic, partition, and how many offsets it is behind; each with a commit.
    """
    labels = ["consumergroup", "group", "topic", "partition"]
    family = GaugeMetricFamily(GROUP_LAG, "Offsets from a group's commit to the end of the partition.", labels=labels)
    # Two spouts of one group and topic have partitions of their own; what both report would be one series twice.
    for group, topic, partition, lag in {row[:3]: row for row in lags}.values():
        family.add_metric([group, group, topic, partition], float(lag))
    return family


def topic_and_number(place: str) -> tuple[str, str]:
    """Return topic and number of a partition's name.

    >>> topic_and_number("a[b][12]")
    ('a[b]', '12')
    """
    topic, _, number = place.removesuffix("]").rpartition("[")
    return topic, number
