"""A run's result: why it stopped, what each component did, and how long trees took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from downspout.dead_letters.dead_letter import LAST_MAX
from downspout.engine.acker import quantile_ms
from downspout.engine.bolt_task import BoltTask
from downspout.engine.graph import Graph
from downspout.engine.runtime import Runtime
from downspout.engine.spout_task import SpoutTask
from downspout.engine.task import Task
from downspout.metrics import METRICS

LARGEST = frozenset(
    metric.name for metric in METRICS.values() if metric.kind == "gauge" and metric.unit in ("seconds", "entries")
)
"""Metrics that are merged over tasks by their maximum, not their sum."""


@dataclass
class Counts:
    """Counters of one component, over all its tasks."""

    tasks: int = 0
    emitted: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    errors: int = 0
    restarts: int = 0
    busy_s: float = 0.0


COUNTED = tuple(field.name for field in fields(Counts) if field.name != "tasks")


@dataclass
class TaskResult:
    """One task's metrics: the engine's counters and the component's own."""

    component: str  # its name
    task: int  # its id, as in the log; not unique across workers (``run.workers``)
    values: Mapping[str, float]  # by the names of ``downspout.metrics``
    worker: int | None = None  # the worker's number


@dataclass
class WorkerResult:
    """The result of one of several workers (``run.workers``)."""

    number: int  # of the worker, from 1
    state: str  # why it stopped, as the ``reason`` of a run; before that ``starting``, ``running`` or ``restarting``
    pid: int | None = None  # of its process; None without a process
    restarts: int = 0
    completed: int = 0  # complete trees, over all its processes
    in_flight: int = 0  # open trees
    lag: float | None = None  # uncommitted records of its partitions; None: not reported yet
    deaths: list[str] = field(default_factory=list)  # how each process died that was not told to stop
    silent_s: float | None = None  # seconds since its process last reported or was started; None without a process


@dataclass
class RunResult:
    """The outcome of a run."""

    reason: str  # ``end``, ``for``, ``records``, ``signal`` (stopped and drained) or ``aborted`` (stopped at once)
    drained: bool  # whether nothing was left in flight
    duration_s: float  # seconds from activation to the last close; with workers, from the start of the first process
    components: Mapping[str, Counts]  # by name
    completed: int  # complete trees, and spout tuples without an id
    failed: int  # failed trees (a chunk is one), including timeouts, and failed tuples without a tree
    timeouts: int
    in_flight: int  # trees open at the end
    latency_p50_ms: float | None  # median time from a spout's emit to its ack
    latency_p99_ms: float | None  # the same, 99th percentile
    errors: list[str] = field(default_factory=list)  # one line per kind of error
    # the components' own metrics, by component, merged over tasks (see LARGEST)
    reports: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # arguments of ``report_metric``, by task
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    signal: int | None = None  # the number of the signal that stopped the run
    spouts: Sequence[str] = ()
    # by spout: records that will be processed again because the last commit failed
    uncommitted: Mapping[str, int] = field(default_factory=dict)
    last_errors: Mapping[str, str] = field(default_factory=dict)  # the last error of each component that had one
    # failed tuples without a tree, which are not retried: all those of spouts that emit without an id
    not_retried: int = 0
    # by reader (a spout, or the emitter of batches) and partition: its position and owner
    # (see ``downspout.metrics.PARTITION_METRICS``)
    partitions: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    # the same as ``components`` and ``reports``, task by task
    tasks: Sequence[TaskResult] = ()
    stacks: Mapping[str, str] = field(default_factory=dict)  # the traceback of each component's last kind of error
    # by component: see ``downspout.dead_letters.dead_letter``
    dead_letters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # one by one, if several processes ran (``run.workers``); the other values cover all of them
    workers: Sequence[WorkerResult] = ()

    @property
    def retry_later(self) -> int:
        """How many failed records were waiting for a retry."""
        return int(sum(report.get("retry_later", 0) for report in self.reports.values()))

    def as_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can represent."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunResult:
        """Return the result of :meth:`as_dict`, which may have passed through JSON, as a RunResult."""
        components = {name: Counts(**counts) for name, counts in stored["components"].items()}
        workers = [WorkerResult(**worker) for worker in stored["workers"]]
        tasks = [TaskResult(**task) for task in stored["tasks"]]
        return cls(**{**stored, "components": components, "workers": workers, "tasks": tasks})


def counts_of(graph: Graph, tasks: Sequence[Task]) -> dict[str, Counts]:
    """Return each component's counters as of now."""
    components = {name: Counts() for name in graph.components}
    for task in tasks:
        counts = components[task.name]
        counts.tasks += 1
        for name in COUNTED:
            setattr(counts, name, getattr(counts, name) + getattr(task, name))
    return components


def collect(graph: Graph, tasks: Sequence[Task], world: Runtime, *, reason: str, duration_s: float) -> RunResult:
    """Return the metrics of a run as of now."""
    spouts = [task for task in tasks if isinstance(task, SpoutTask)]
    in_flight = sum(spout.in_flight for spout in spouts)
    reported = [(task, task.report()) for task in tasks]
    reports = reports_of((task.name, report) for task, report in reported if report)
    not_retried = sum(task.lost for task in tasks if isinstance(task, BoltTask))
    # Each of these may belong to a different spout tuple that counted as complete when emitted.
    untracked = max(0, sum(spout.untracked for spout in spouts) - not_retried)
    return RunResult(
        reason=reason,
        drained=in_flight == 0,
        duration_s=duration_s,
        components=counts_of(graph, tasks),
        completed=sum(spout.acked for spout in spouts) + untracked,
        failed=sum(spout.failed for spout in spouts) + not_retried,
        timeouts=sum(spout.timeouts for spout in spouts),
        in_flight=in_flight,
        latency_p50_ms=quantile_ms(world.latencies.histogram, 0.5),
        latency_p99_ms=quantile_ms(world.latencies.histogram, 0.99),
        errors=world.errors.summary(),
        last_errors=dict(world.errors.last),
        reports=reports,
        metrics={task.place: task.metrics for task in tasks if task.metrics},
        spouts=[component.name for component in graph.spouts],
        uncommitted={name: int(count) for name, report in reports.items() if (count := report.get("uncommitted"))},
        not_retried=not_retried,
        partitions=_partitions(tasks),
        tasks=[TaskResult(task.name, task.task_id, {**_values(task), **report}) for task, report in reported],
        stacks=world.errors.last_stacks(),
        dead_letters=merged_dead_letters((task.name, task.report_dead_letters()) for task in tasks),
    )


def _values(task: Task) -> dict[str, float]:
    """Return the engine's counters of a task; metrics that its component reports under the same name replace them."""
    queued = {"queued": len(task.queue)} if isinstance(task, BoltTask) else {}
    return {name: getattr(task, name) for name in COUNTED} | queued


def merged_dead_letters(reports: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return one report per component, merged over its tasks.

    >>> one = {"topic": "dead", "by_error": {"KeyError": 2}, "last": [{"at_ms": 5}]}
    >>> merged_dead_letters([("s", one), ("s", {**one, "last": [{"at_ms": 3}]}), ("b", {})])
    {'s': {'topic': 'dead', 'by_error': {'KeyError': 4}, 'last': [{'at_ms': 3}, {'at_ms': 5}]}}
    """
    found: dict[str, dict[str, Any]] = {}
    for name, report in reports:
        if not report:
            continue
        known = found.setdefault(name, {"topic": report["topic"], "by_error": {}, "last": []})
        for error, count in report["by_error"].items():
            known["by_error"][error] = known["by_error"].get(error, 0) + count
        last = [*known["last"], *report["last"]]
        known["last"] = sorted(last, key=lambda each: each["at_ms"] or 0)[-LAST_MAX:]
    return found


def _partitions(tasks: Sequence[Task]) -> dict[str, dict[str, Mapping[str, Any]]]:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for task in tasks:
        if partitions := task.report_partitions():
            owned = {place: {**figures, "owner": task.place} for place, figures in partitions.items()}
            found.setdefault(task.name, {}).update(owned)
    return in_order(found)


def in_order(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return each reader's partitions in the order of topics and numbers.

    >>> list(in_order({"reader": {"a[10]": {}, "a[9]": {}}})["reader"])
    ['a[9]', 'a[10]']
    """

    def rank(entry: tuple[str, object]) -> tuple[str, int]:
        topic, _, number = entry[0].rstrip("]").rpartition("[")
        return topic, int(number) if number.isdecimal() else 0

    return {spout: dict(sorted(partitions.items(), key=rank)) for spout, partitions in found.items()}


def reports_of(reported: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the components' metrics, merged over their tasks; without a lag while a task does not know its own.

    >>> reports_of([("s", {"assigned": 1, "lag": 3}), ("s", {"assigned": 0})])
    {'s': {'assigned': 1}}
    """
    found: dict[str, dict[str, float]] = {}
    unknown = set()
    for component, report in reported:
        metrics = found.setdefault(component, {})
        for name, value in report.items():
            before = metrics.get(name, 0)
            metrics[name] = max(before, value) if name in LARGEST else before + value
        if "assigned" in report and "lag" not in report:
            unknown.add(component)
    for component in unknown:
        found[component].pop("lag", None)
    return found
