"""What came of a run: why it stopped, what each component did, and how long trees took."""

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
"""Of several tasks the largest value counts, and not the sum."""


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
    busy_s: float = 0.0


COUNTED = tuple(field.name for field in fields(Counts) if field.name != "tasks")


@dataclass
class TaskResult:
    """What one task did: what the engine counts of it, and what its component reports."""

    component: str  # its name
    task: int  # its id, as in the log; several workers (``run.workers``) have the same
    values: Mapping[str, float]  # by the names of ``downspout.metrics``
    worker: int | None = None  # which worker's it is


@dataclass
class WorkerResult:
    """What one of several workers did (``run.workers``)."""

    number: int  # of the worker, from 1
    state: str  # why it stopped, as the ``reason`` of a run; before that ``starting``, ``running`` or ``restarting``
    pid: int | None = None  # of its process; None while there is none
    restarts: int = 0  # how often it was restarted
    completed: int = 0  # trees that are complete, over all of its processes
    in_flight: int = 0  # trees that are open
    lag: float | None = None  # records of its partitions that are not committed; None: not reported yet
    deaths: list[str] = field(default_factory=list)  # how each of its processes died that was not asked to end
    silent_s: float | None = None  # seconds since its process has reported, or was started; None while there is none


@dataclass
class RunResult:
    """The outcome of a run."""

    reason: str  # ``end``, ``for``, ``records``, ``signal`` (stopped and drained) or ``aborted`` (stopped at once)
    drained: bool  # whether nothing was left in flight
    duration_s: float  # seconds from activation to the last close; with workers from the start of the first process
    components: Mapping[str, Counts]  # by name
    completed: int  # trees that were acked whole (and spout tuples without an id)
    failed: int  # trees that failed, timeouts among them, and tuples without a tree that failed
    timeouts: int
    in_flight: int  # trees that were open at the end
    latency_p50_ms: float | None  # median time from a spout's emit to its ack
    latency_p99_ms: float | None  # the same, 99th percentile
    errors: list[str] = field(default_factory=list)  # one line per kind of error
    # the components' own metrics, by component; those of several tasks are added, and of times the longest is taken
    reports: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # what components gave to ``report_metric``, by task
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    signal: int | None = None  # the number of the signal that stopped the run
    spouts: Sequence[str] = ()
    # by spout, records that will be processed again because the last commit failed
    uncommitted: Mapping[str, int] = field(default_factory=dict)
    last_errors: Mapping[str, str] = field(default_factory=dict)  # the last error of each component that had one
    # how many of the failed were tuples without a tree: they do not come again. A spout that emits without an id has no
    # other.
    not_retried: int = 0
    # by reader (a spout, or the emitter of batches) and partition, where it stands, and which task has it
    # (see ``downspout.metrics.PARTITION_METRICS``)
    partitions: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    # the same as ``components`` and ``reports``, task by task
    tasks: Sequence[TaskResult] = ()
    stacks: Mapping[str, str] = field(default_factory=dict)  # the traceback of each component's last kind of error
    # by component, what it has dead-lettered: see ``downspout.dead_letters.dead_letter``
    dead_letters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # one by one, where several processes ran (``run.workers``); the other values are those of all
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
        tasks = [TaskResult(**task) for task in stored["tasks"]]
        return cls(**{**stored, "components": components, "workers": workers, "tasks": tasks})


def counts_of(graph: Graph, tasks: Sequence[Task]) -> dict[str, Counts]:
    """Return what each component did so far."""
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
    # Each may have come of another spout tuple that counted as complete when it was emitted.
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
    """Return what the engine counts of a task; what its component reports under the same name is more exact."""
    queued = {"queued": len(task.queue)} if isinstance(task, BoltTask) else {}
    return {name: getattr(task, name) for name in COUNTED} | queued


def merged_dead_letters(reports: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return one report for each component, of those of its tasks.

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
    """Return what components report, summed over their tasks: no lag where a task does not know its own yet.

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
