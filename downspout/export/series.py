"""The series of a run for all exporters: each metric of our table, with its labels and values.

A component's series have the labels ``topology``, ``component`` and ``task``, with workers also ``worker``; a spout's
have its ``group`` too. A partition's have ``topology``, ``component``, ``topic``, ``partition`` and ``group``, but no
``task``, so graphs survive rebalances. Unknown values have no series, nor has the lag of a partition without a commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from downspout.metrics import METRICS, PARTITION_METRICS, RUN_METRICS, Metric
from downspout.run.run_snapshots import Snapshot

Series = tuple[Metric, list[tuple[dict[str, str], Any]]]  # a metric; labels and value of each of its series
LABELS: Mapping[str, Sequence[str]] = {
    "run": ("topology",),
    "component": ("topology", "component", "task", "worker", "group"),
    "partition": ("topology", "component", "topic", "partition", "group"),
}
NEEDS_COMMIT = (
    "lag",
    "lag_s",
)  # Without a commit, these would count from where the spout happened to start


def series_of(snapshot: Snapshot, groups: Mapping[str, str]) -> Iterator[Series]:
    """Yield the metrics of a snapshot; ``groups``: the consumer group of each spout, by name."""
    yield from _of_run(snapshot)
    yield from _of_tasks(snapshot, groups)
    yield from of_partitions(partitions_of(snapshot, groups))


def kind_of(text: str) -> str:
    """Reduce a text to its kind, so that a label takes few values.

    >>> kind_of("failed 3 times, out for 12 s"), kind_of("KeyError: 'jane@example.org'")
    ('failed N times, out for N s', 'KeyError')
    """
    return re.sub(r"\d[\d,.]*", "N", text.partition(":")[0]).replace("1 time,", "N times,")


def _known(metric: Metric, labels: dict[str, str], value: Any) -> list[tuple[dict[str, str], Any]]:
    """Return a series if its value is known; a text becomes a label of a series with the value 1."""
    if metric.unit == "text":
        return [({**labels, metric.name: kind_of(str(value))}, 1.0)] if value else []
    return [] if value is None else [(labels, float(value))]


def _of_run(snapshot: Snapshot) -> Iterator[Series]:
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
        yield metric, _known(metric, {"topology": run.name}, values.get(name))


def _of_tasks(snapshot: Snapshot, groups: Mapping[str, str]) -> Iterator[Series]:
    run = snapshot.metrics
    for name, metric in METRICS.items():
        found = []
        for task in run.result.tasks:
            # Prometheus treats an empty label as none.
            worker = "" if task.worker is None else str(task.worker)
            values = (run.name, task.component, str(task.task), worker, groups.get(task.component, ""))
            found += _known(metric, dict(zip(LABELS["component"], values, strict=True)), task.values.get(name))
        yield metric, found


def partitions_of(snapshot: Snapshot, groups: Mapping[str, str]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the labels and the figures of each partition of a run."""
    run = snapshot.metrics
    return [
        (partition_labels(run.name, spout, *topic_and_number(place), groups.get(spout, "")), figures)
        for spout, partitions in run.result.partitions.items()
        for place, figures in partitions.items()
    ]


def partition_labels(*values: str) -> dict[str, str]:
    """Return a partition's labels: topology, component, topic, partition, group."""
    return dict(zip(LABELS["partition"], values, strict=True))


def of_partitions(rows: Sequence[tuple[dict[str, str], Mapping[str, Any]]]) -> Iterator[Series]:
    """Yield the metrics of partitions, given by labels and figures."""
    for name, metric in PARTITION_METRICS.items():
        found = []
        for labels, figures in rows:
            if name not in NEEDS_COMMIT or figures.get("committed") is not None:
                found += _known(metric, labels, figures.get(name))
        yield metric, found


def group_lags(rows: Sequence[tuple[dict[str, str], Mapping[str, Any]]]) -> dict[tuple[str, str, str], float]:
    """Return the distance from the commit to the end by group, topic and partition, if both are known.

    A dict, because a partition that two spouts report must be one series.
    """
    return {
        (labels["group"], labels["topic"], labels["partition"]): max(0, figures["end"] - figures["committed"])
        for labels, figures in rows
        if figures.get("committed") is not None and figures.get("end") is not None
    }


def topic_and_number(place: str) -> tuple[str, str]:
    """Split a partition's name into topic and number.

    >>> topic_and_number("a[b][12]")
    ('a[b]', '12')
    """
    topic, _, number = place.removesuffix("]").rpartition("[")
    return topic, number
