"""The page of a run on Spark: the driver's sums over its batches, and the offsets from Spark's progress reports.

Counters change when a batch is committed, and rates are those of whole batches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from downspout.engine.graph import Component, Graph
from downspout.engine.loop import Bounds
from downspout.engine.settings import Settings
from downspout.run.run_snapshots import RunMetrics, Snapshot
from downspout.web.history import History, RateWindow
from downspout.web.page import Page
from downspout.web.processes import Processes
from downspout.web.state import State

if TYPE_CHECKING:
    from downspout.spark.topology.query import QuerySnapshot, QuerySnapshots

POINT_S = 60.0  # A batch may take that long
UNKNOWN = ("position", "done", "in_flight", "failed", "blocks", "owner")
NOTES = {
    "batches": "A batch is one transaction: its time is from its first tuple to its entry in the sinks' logs.",
    "components": "Counts are of committed batches. Capacity is a share of the cores on which Spark runs tasks.",
    "curves": "Spark runs whole batches, so no single tuple has a latency.",
    "dead-letters": "counted by Spark's driver, see above: `downspout dlq ls` has each with its error.",
    "workers": "This is the driver's process. Executors are on the page of Spark's cluster.",
}


@dataclass(frozen=True)
class SparkMetrics(RunMetrics):
    """The metrics of a run on Spark."""

    look: QuerySnapshot | None = None


def metrics_of(name: str, look: QuerySnapshot) -> SparkMetrics:
    """Convert a query's snapshot to a run's metrics."""
    nothing = dict.fromkeys(UNKNOWN)
    partitions = {
        spout: {place: {**nothing, **figures, "why": "", "cure": ""} for place, figures in places.items()}
        for spout, places in look.partitions.items()
    }
    reports = {name: dict(report) for name, report in look.result.reports.items()}
    for spout, places in look.partitions.items():
        lags = [lag for figures in places.values() if (lag := figures["lag"]) is not None]
        if lags:
            reports.setdefault(spout, {})["lag"] = sum(lags)
    result = replace(look.result, partitions=partitions, reports=reports)
    return SparkMetrics(name, result, {}, Bounds(), look.stopping, {}, look)


class SparkState(State):
    """Answers from the snapshots of a query."""

    engine = "spark"
    notes = NOTES

    def __init__(self, graph: Graph, settings: Settings) -> None:
        super().__init__(graph, settings, History(POINT_S), Processes(), os.getpid())

    def run(self, now_s: float, stuck: str = "") -> dict[str, Any]:
        """Return the figures, including those of the last batches."""
        found, metrics = super().run(now_s, stuck), self.past.latest
        if not isinstance(metrics, SparkMetrics) or metrics.look is None:
            return found
        batches = [
            {**vars(each), "records_per_s": each.records / each.seconds if each.seconds else None}
            for each in metrics.look.batches
        ]
        return {**found, "batches": batches}

    def _totals(self, metrics: RunMetrics) -> dict[str, Any]:
        look = metrics.look if isinstance(metrics, SparkMetrics) else None
        unknown = dict.fromkeys(("timeouts", "in_flight", "retry_waiting", "disconnected"))
        return {**super()._totals(metrics), **unknown, "computed_again": look and look.computed_again}

    def _loops(self, metrics: RunMetrics) -> int:
        return metrics.look.cores if isinstance(metrics, SparkMetrics) and metrics.look else 1

    def _counts(self, metrics: RunMetrics, windows: Mapping[str, RateWindow], component: Component) -> dict[str, Any]:
        found = super()._counts(metrics, windows, component)
        for window in found["windows"].values():
            window["process_ms"] = None
        return {**found, "tasks": component.par, "queue": None, "held": None}

    def _workers(self, metrics: RunMetrics) -> list[dict[str, Any]]:
        return [{**each, "in_flight": None} for each in super()._workers(metrics)]


class Looking:
    """Takes snapshots of a query, once it exists."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.looks: QuerySnapshots | None = None

    def latest(self, wait_s: float) -> Snapshot | None:
        """Take a snapshot; None before the query has started."""
        look = self.looks.latest() if self.looks is not None else None
        return None if look is None else Snapshot(metrics_of(self._name, look), 0.0)

    def close(self) -> None:
        """Nothing waits."""


class SparkPage(Page):
    """Serves the page of a run on Spark."""

    def __init__(self, graph: Graph, settings: Settings, address: str) -> None:
        self._looking = Looking(graph.name)
        super().__init__(SparkState(graph, settings), self._looking, address)

    def watch(self, looks: QuerySnapshots) -> None:
        """Use the snapshots of this query."""
        self._looking.looks = looks
