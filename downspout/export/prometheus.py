"""The metrics of a run for Prometheus: each row of our table is a metric, with the labels of ``series``.

``kafka_consumergroup_lag`` serves dashboards made for kafka_exporter, with its label ``consumergroup`` (and ``group``).
Like kafka_exporter, it counts from the commit; ``downspout_partition_lag`` counts from the next commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from downspout.export.series import (
    LABELS,
    Series,
    group_lags,
    partitions_of,
    series_of,
)
from downspout.metrics import Metric
from downspout.run.run_snapshots import Snapshot, Snapshots

Family = CounterMetricFamily | GaugeMetricFamily
GROUP_LAG = "kafka_consumergroup_lag"


class RunCollector(Collector):
    """Collects a run's metrics at each scrape."""

    def __init__(self, snapshots: Snapshots, groups: Mapping[str, str]) -> None:
        self._snapshots = snapshots
        self._groups = groups  # the consumer group of each spout, by name

    def collect(self) -> Iterable[Family]:
        """Return all metrics that have a series; none before the run has started."""
        snapshot = self._snapshots.latest()
        return [] if snapshot is None else families(snapshot, self._groups)

    def describe(self) -> Iterable[Family]:
        """Return nothing: otherwise the registry would collect to learn the names."""
        return []


def families(snapshot: Snapshot, groups: Mapping[str, str]) -> list[Family]:
    """Return the metrics of a snapshot.

    Args:
        snapshot: the metrics and their age.
        groups: the consumer group of each spout, by name.
    """
    return [*_families(series_of(snapshot, groups)), *_lag_of(partitions_of(snapshot, groups))]


def _families(series: Iterable[Series]) -> Iterator[Family]:
    for metric, found in series:
        if found:
            family = _family(metric)
            for labels, value in found:
                family.add_metric([*labels.values()], value)
            yield family


def _family(metric: Metric) -> Family:
    labels = [*LABELS[metric.of], metric.name] if metric.unit == "text" else [*LABELS[metric.of]]
    # The library adds the suffix _total.
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    text = f"{metric.help} {metric.note}".strip().replace("`", "")
    return kind(metric.series, text, labels=labels)


def _lag_of(rows: Sequence[tuple[dict[str, str], Mapping[str, Any]]]) -> list[Family]:
    """Return the lag of groups under kafka_exporter's name, for partitions with a commit and an end."""
    labels = ["consumergroup", "group", "topic", "partition"]
    family = GaugeMetricFamily(GROUP_LAG, "Offsets from a group's commit to the end of the partition.", labels=labels)
    for (group, topic, partition), lag in group_lags(rows).items():
        family.add_metric([group, group, topic, partition], float(lag))
    return [family] if family.samples else []
