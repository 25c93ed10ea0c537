"""What came of a run: why it stopped, what each component did, and how long trees took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from downspout.local.graph import Graph
from downspout.local.spout_task import SpoutTask
from downspout.local.task import Task
from downspout.local.world import World
from downspout.metrics import METRICS

AGES = frozenset(metric.name for metric in METRICS.values() if metric.unit == "seconds")
"""Of several tasks the longest counts, and not the sum."""


@dataclass
class Counts:
    """What one component did, over all of its tasks."""

    tasks: int = 0
    emitted: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    errors: int = 0
    restarts: int = 0


@dataclass
class WorkerResult:
    """What one of several workers did (``run.workers``).

    Attributes:
        number: of the worker, from 1.
        state: why it stopped, as the ``reason`` of a run; before that ``starting``, ``running`` or ``restarting``.
        pid: of its process; None while there is none.
        restarts: how often it was started again.
        completed: trees that were acked whole, in all of its lives.
        in_flight: trees that are open.
        lag: records of its partitions that are not committed; None: it has not said.
        deaths: how each of its lives ended that nobody had asked to end.
    """

    number: int
    state: str
    pid: int | None = None
    restarts: int = 0
    completed: int = 0
    in_flight: int = 0
    lag: float | None = None
    deaths: list[str] = field(default_factory=list)


@dataclass
class RunResult:
    """The outcome of a run.

    Attributes:
        reason: ``end``, ``for``, ``records``, ``signal`` (stopped and drained) or ``aborted`` (stopped at once).
        drained: whether nothing was left in flight.
        duration_s: seconds from activation to the last close; with workers from the start of the first process.
        components: by name.
        completed: trees that were acked whole (and spout tuples without an id).
        failed: trees that failed, timeouts among them.
        timeouts: trees that timed out.
        in_flight: trees that were open at the end.
        latency_p50_ms: median time from a spout's emit to its ack.
        latency_p99_ms: the same, 99th percentile.
        errors: one line per kind of error.
        reports: the components' own figures, by component; those of several tasks are added, and of
            times the longest is taken.
        metrics: what components gave to ``report_metric``, by task.
        signal: the number of the signal that stopped the run.
        spouts: the names of the spouts.
        uncommitted: by spout, records that will be processed again because the last commit failed.
        workers: one by one, where several processes ran (``run.workers``); the other figures are those of all.
    """

    reason: str
    drained: bool
    duration_s: float
    components: Mapping[str, Counts]
    completed: int
    failed: int
    timeouts: int
    in_flight: int
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    errors: list[str] = field(default_factory=list)
    reports: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    signal: int | None = None
    spouts: Sequence[str] = ()
    uncommitted: Mapping[str, int] = field(default_factory=dict)
    workers: Sequence[WorkerResult] = ()

    @property
    def retry_later(self) -> int:
        """How many failed records still waited for their retry."""
        return int(sum(report.get("retry_later", 0) for report in self.reports.values()))

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunResult:
        """Return what :meth:`as_dict` gave, after its way through JSON."""
        components = {name: Counts(**counts) for name, counts in stored["components"].items()}
        workers = [WorkerResult(**worker) for worker in stored["workers"]]
        return cls(**{**stored, "components": components, "workers": workers})


def counts_of(graph: Graph, tasks: Sequence[Task]) -> dict[str, Counts]:
    """Return what each component did so far."""
    components = {name: Counts() for name in graph.components}
    for task in tasks:
        counts = components[task.name]
        counts.tasks += 1
        for figure in ("emitted", "executed", "acked", "failed", "errors", "restarts"):
            setattr(counts, figure, getattr(counts, figure) + getattr(task, figure))
    return components


def collect(graph: Graph, tasks: Sequence[Task], world: World, *, reason: str, duration_s: float) -> RunResult:
    """Return the figures of a run as of now."""
    spouts = [task for task in tasks if isinstance(task, SpoutTask)]
    in_flight = sum(spout.in_flight for spout in spouts)
    reports = _reports(tasks)
    return RunResult(
        reason=reason,
        drained=in_flight == 0,
        duration_s=duration_s,
        components=counts_of(graph, tasks),
        completed=sum(spout.acked + spout.untracked for spout in spouts),
        failed=sum(spout.failed for spout in spouts),
        timeouts=sum(spout.timeouts for spout in spouts),
        in_flight=in_flight,
        latency_p50_ms=world.latencies.quantile_ms(0.5),
        latency_p99_ms=world.latencies.quantile_ms(0.99),
        errors=world.errors.summary(),
        reports=reports,
        metrics={task.place: task.metrics for task in tasks if task.metrics},
        spouts=[component.name for component in graph.spouts],
        uncommitted={name: int(count) for name, report in reports.items() if (count := report.get("uncommitted"))},
    )


def _reports(tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for task in tasks:
        for figure, value in task.report().items():
            figures = found.setdefault(task.name, {})
            before = figures.get(figure, 0)
            figures[figure] = max(before, value) if figure in AGES else before + value
    return found
