"""The page of a topology that runs on Storm: its graph from nimbus, and the figures of ``downspout storm stats``.

Storm keeps two windows itself, the last ten minutes and all since the topology was submitted: they are the page's. Only
the curves and the time line are of what the page has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from downspout.engine.graph import Component, Graph
from downspout.engine.loop import Bounds
from downspout.engine.result import Counts, RunResult
from downspout.errors import BrokerError, DownspoutError, coordinates
from downspout.offsets.lag import PartitionLag
from downspout.run.metrics import RunMetrics
from downspout.run.snapshots import Snapshot
from downspout.settings.table import SETTINGS
from downspout.storm.stats import ComponentStats, Lag, TopologyStats
from downspout.web.history import NOTHING, History, Window, sample_of
from downspout.web.processes import Processes
from downspout.web.server import Page
from downspout.web.state import State, setting

EVERY_S = 5.0  # A look costs nimbus and Kafka some work, and workers report to nimbus every five seconds at most
POINT_S = 60.0  # Storm's default is a report a minute
SHOWN_OF_PARTITION = ("committed", "end", "lag", "done", "uncommitted", "failed", "blocks", "why")
SCOPES = {each.scope for each in SETTINGS.values()}
NOTES = {
    "components": "Figures are nimbus's, as of the workers' last report. A bolt in Python runs beside Storm's process: "
    "execute and capacity are of handing tuples over to it, process is from there to its ack.",
    "curves": "Storm keeps the mean of latencies and no percentiles. The curves begin when the page was opened.",
    "sinks": "Nimbus has no figures of sinks: `downspout audit DIRECTORY` compares one with Kafka.",
    "dead-letters": "Nimbus has no errors of dead letters, of which the number is above: `downspout dlq ls` has them.",
    "workers": "Nimbus has no figures of single processes: `downspout storm logs` shows their logs.",
}

Collect = Callable[[bool], TopologyStats]  # the figures of `downspout storm stats`, with or without the lag


@dataclass(frozen=True)
class StormMetrics(RunMetrics):
    """A topology on Storm as of one moment."""

    stats: TopologyStats | None = None


def metrics_of(stats: TopologyStats) -> StormMetrics:
    """Return nimbus's figures as a run's metrics."""
    made = _result(stats.components, stats.uptime_s, stats.lag)
    return StormMetrics(stats.name, made, {}, Bounds(), stats.status == "KILLED", {}, stats)


def _result(components: Iterable[ComponentStats], seconds: float, lags: Iterable[Lag] = ()) -> RunResult:
    found = list(components)
    spouts = [each for each in found if each.kind == "spout"]
    reports: dict[str, dict[str, float]] = {each.name: {"timeouts": each.timeouts} for each in spouts}
    partitions: dict[str, dict[str, Mapping[str, Any]]] = {}
    for lag in lags:
        report = reports.setdefault(lag.spout, {})
        report["lag"] = report.get("lag", 0) + lag.lag
        report["dead_lettered"] = report.get("dead_lettered", 0) + lag.dead_letters
        places = partitions.setdefault(lag.spout, {})
        places |= {coordinates(row.topic, row.partition): _partition(row) for row in lag.partitions}
    return RunResult(
        reason="running",
        drained=False,
        duration_s=seconds,
        components={
            each.name: Counts(each.tasks, each.emitted, each.executed, each.acked, each.failed) for each in found
        },
        completed=sum(each.acked or each.emitted for each in spouts),
        failed=sum(each.failed for each in spouts),
        timeouts=sum(each.timeouts for each in spouts),
        in_flight=0,
        latency_p50_ms=None,
        latency_p99_ms=None,
        reports=reports,
        spouts=[each.name for each in spouts],
        last_errors={each.name: each.error.splitlines()[-1] for each in found if each.error},
        stacks={each.name: each.error for each in found if each.error},
        partitions=partitions,
    )


def _partition(row: PartitionLag) -> dict[str, Any]:
    known = {name: getattr(row, name) for name in SHOWN_OF_PARTITION}
    if row.committed is None:
        known |= dict.fromkeys(("done", "uncommitted", "failed"))
    owner = None if row.task is None else f"task {row.task}"
    return {**known, "position": None, "in_flight": None, "owner": owner, "cure": ""}


class StormState(State):
    """Answers from what nimbus and Kafka have said."""

    engine = "storm"
    windows = ("10m", "all")
    notes = NOTES

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, None, History(POINT_S, comes_late=True), Processes(), 0)

    def settings(self) -> dict[str, Any]:
        """Return what the topology was submitted with; defaults are where the components run."""
        given = [("", self._graph.config, "topology")]
        given += [(each.name, each.config, "component") for each in self._graph.components.values()]
        rows = [
            setting(name, key, value, source)
            for name, config, source in given
            for key, value in config.items()
            if key.partition(".")[0] in SCOPES
        ]
        return {"settings": rows}

    def run(self, now_s: float, stuck: str = "") -> dict[str, Any]:
        """Return the figures; ``state`` is Storm's word for it."""
        found, stats = super().run(now_s, stuck), self._stats
        return found if stats is None else {**found, "state": stats.status.lower()}

    def partitions(self, **how: Any) -> dict[str, Any]:
        """Return the partitions; a partition without a commit is behind by all that it holds, as in the totals."""
        found, metrics = super().partitions(**how), self.past.latest
        return {**found, "lag": None if metrics is None else metrics.lag}

    @property
    def _stats(self) -> TopologyStats | None:
        return self.past.latest.stats if isinstance(self.past.latest, StormMetrics) else None

    def _figures(self) -> dict[str, dict[str, ComponentStats]]:
        """Return the components' figures by window."""
        if (stats := self._stats) is None:
            return {}
        both = {"10m": stats.lately, "all": stats.components}
        return {name: {each.name: each for each in found} for name, found in both.items()}

    def _windows(self, metrics: RunMetrics) -> dict[str, Window]:
        if (stats := self._stats) is None:
            return {}
        seconds = {"10m": stats.lately_s, "all": stats.uptime_s}
        samples = {
            name: sample_of(RunMetrics("", _result(found.values(), seconds[name]), {}, Bounds(), False))
            for name, found in self._figures().items()
        }
        return {name: Window(NOTHING, sample, {}) for name, sample in samples.items()}

    def _run_window(self, name: str, window: Window) -> dict[str, Any]:
        spouts = [each for each in self._figures()[name].values() if each.kind == "spout" and each.acked]
        acked = sum(each.acked for each in spouts)
        mean = sum(each.complete_ms * each.acked for each in spouts) / acked if acked else None
        return {**super()._run_window(name, window), "complete_ms": mean}

    def _totals(self, metrics: RunMetrics) -> dict[str, Any]:
        unknown = ["in_flight", "retry_waiting", "disconnected"]
        if self._stats is not None and not self._stats.lag:
            unknown.append("dead_lettered")
        return {**super()._totals(metrics), **dict.fromkeys(unknown)}

    def _counts(self, metrics: RunMetrics, windows: Mapping[str, Window], component: Component) -> dict[str, Any]:
        found = super()._counts(metrics, windows, component)
        for name, known in self._figures().items():
            figures = known.get(component.name, ComponentStats(component.name, ""))
            is_spout = component.is_spout
            found["windows"][name] |= {
                "execute_ms": None if is_spout else figures.execute_ms,
                "process_ms": None if is_spout else figures.process_ms,
                "complete_ms": figures.complete_ms if is_spout else None,
                # nimbus has it of the last ten minutes alone
                "capacity": None if is_spout or name != "10m" else figures.capacity,
            }
        found["totals"] |= dict.fromkeys(("errors", "restarts", "busy_s"))
        return {**found, "queue": None, "held": None}

    def _workers(self, metrics: RunMetrics) -> list[dict[str, Any]]:
        return []


class Asking:
    """Asks nimbus and Kafka when the page wants to know; while Kafka does not answer, nimbus alone."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect
        self._lag: list[Lag] = []  # as of Kafka's last answer
        self.error = ""  # why there was no answer to the last question

    def latest(self, wait_s: float) -> Snapshot | None:
        """Ask; None where there is no answer."""
        try:
            return Snapshot(metrics_of(self._ask()), 0.0)
        except DownspoutError as error:
            self.error = str(error)
            return None

    def _ask(self) -> TopologyStats:
        try:
            found = self._collect(True)
        except BrokerError as error:
            self.error = f"No figures from Kafka: {error}"
            return replace(self._collect(False), lag=self._lag)
        self._lag, self.error = found.lag, ""
        return found

    def close(self) -> None:
        """Nothing waits for long."""


class StormPage(Page):
    """Serves the page of a topology on Storm."""

    option = "--port"

    def __init__(self, graph: Graph, collect: Collect, address: str, every_s: float = EVERY_S) -> None:
        self._asking = Asking(collect)
        super().__init__(StormState(graph), self._asking, address, every_s)

    def stuck(self) -> str:
        """Return why there is no answer, while there is none."""
        return self._asking.error
