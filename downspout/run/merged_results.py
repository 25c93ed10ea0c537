"""Merges the metrics of several workers into those of one run.

A worker may have had several lives, each a process. Counters are summed over all lives. Gauges (in flight, held, lag)
are those of the latest life that has sent a report, which has taken over the partitions of the one before. A life that
was killed is known only from its reports, so its counters may lag by half a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from downspout.engine.acker import quantile_ms
from downspout.engine.loop import Bounds
from downspout.engine.result import (
    Counts,
    RunResult,
    TaskResult,
    WorkerResult,
    in_order,
    merged_dead_letters,
    reports_of,
)
from downspout.metrics import METRICS
from downspout.run.run_snapshots import RunMetrics, lag_of
from downspout.run.worker_process import WorkerReport

ERRORS_MAX = 20  # Lines about errors kept of a worker's earlier lives
GAUGES = frozenset(metric.name for metric in METRICS.values() if metric.kind == "gauge")


@dataclass(frozen=True)
class WorkerReports:
    """The reports of one worker."""

    worker: WorkerResult  # as the supervisor knows it
    reports: Sequence[WorkerReport]  # the sum of the earlier lives, then the last report of the latest life


def worker_result(worker: WorkerResult, reports: Sequence[WorkerReport]) -> WorkerResult:
    """Return a worker's result, completed from its reports."""
    worker = replace(worker, completed=sum(report.result.completed for report in reports), deaths=[*worker.deaths])
    if not reports:
        return worker
    latest = reports[-1].result
    return replace(worker, in_flight=latest.in_flight, lag=lag_of(latest))


def add_up(earlier: WorkerReport, later: WorkerReport) -> WorkerReport:
    """Return the summed counters of two lives that are over; so a worker with very many needs little memory."""
    both = [earlier.result, later.result]
    result = replace(
        later.result,
        drained=True,
        components={name: _counts(name, both, ()) for name in later.result.components},
        completed=sum(each.completed for each in both),
        failed=sum(each.failed for each in both),
        timeouts=sum(each.timeouts for each in both),
        not_retried=sum(each.not_retried for each in both),
        in_flight=0,
        errors=list(dict.fromkeys(line for each in both for line in each.errors))[:ERRORS_MAX],
        last_errors={**earlier.result.last_errors, **later.result.last_errors},
        reports=_reports(both, ()),
        metrics={},
        uncommitted={},
        partitions={},
        tasks=_tasks(both, ()),
        stacks={**earlier.result.stacks, **later.result.stacks},
        dead_letters=_dead_letters(both),
    )
    return WorkerReport(result, {}, _latencies([earlier, later]))


def merge(
    name: str,  # of the topology
    components: Iterable[str],  # their names, in order; needed until the first worker has reported
    workers: Sequence[WorkerReports],
    bounds: Bounds,  # of the whole run; ``for_s`` counts from the same moment as ``duration_s``
    *,
    reason: str,  # why it stops; ``running`` before that
    duration_s: float,  # since the start of the run, before any worker ran
) -> RunMetrics:
    """Return the metrics of the whole run."""
    every = [report for each in workers for report in each.reports]
    latest = [each.reports[-1] for each in workers if each.reports]
    results, now = [report.result for report in every], [report.result for report in latest]
    latencies = _latencies(every)
    names = list(components)
    in_flight = sum(result.in_flight for result in now)
    reports = _reports(results, now)
    if len(now) < len(workers):  # the lag of a worker without a report is unknown
        for each in reports.values():
            each.pop("lag", None)
    result = RunResult(
        reason=reason,
        drained=in_flight == 0,
        duration_s=duration_s,
        components={name: _counts(name, results, now) for name in names},
        completed=sum(result.completed for result in results),
        failed=sum(result.failed for result in results),
        timeouts=sum(result.timeouts for result in results),
        not_retried=sum(result.not_retried for result in results),
        in_flight=in_flight,
        latency_p50_ms=quantile_ms(latencies, 0.5),
        latency_p99_ms=quantile_ms(latencies, 0.99),
        errors=[
            f"worker {each.worker.number}: {line}" for each in workers for r in each.reports for line in r.result.errors
        ],
        last_errors={name: error for result in results for name, error in result.last_errors.items()},
        reports=reports,
        metrics=_by_worker(workers),
        spouts=now[0].spouts if now else (),
        uncommitted=_sums(result.uncommitted for result in now),
        tasks=[task for each in workers for task in _tasks_of(each)],
        partitions=_partitions(workers),
        stacks={name: stack for result in results for name, stack in result.stacks.items()},
        dead_letters=_dead_letters(results),
        workers=[each.worker for each in workers],
    )
    queues = {name: _pair(report.queues.get(name, (0, 0)) for report in latest) for name in names}
    return RunMetrics(name, result, queues, bounds, reason != "running", latencies)


def _latencies(reports: Sequence[WorkerReport]) -> dict[int, float]:
    found: dict[int, float] = {}
    for report in reports:
        for bucket, count in report.latencies.items():
            found[bucket] = found.get(bucket, 0.0) + count
    return found


def _dead_letters(results: Sequence[RunResult]) -> dict[str, dict[str, Any]]:
    return merged_dead_letters(each for result in results for each in result.dead_letters.items())


def _counts(component: str, results: Sequence[RunResult], now: Sequence[RunResult]) -> Counts:
    counts = Counts()
    for each in fields(Counts):
        source = now if each.name == "tasks" else results
        found = (result.components[component] for result in source if component in result.components)
        setattr(counts, each.name, sum(getattr(one, each.name) for one in found))
    return counts


def _reports(results: Sequence[RunResult], now: Sequence[RunResult]) -> dict[str, dict[str, float]]:
    """Merge the components' metrics: counters over all ``results``, gauges over ``now``."""
    gauges = reports_of(each for result in now for each in result.reports.items())
    counters = reports_of(each for result in results for each in result.reports.items())
    return {
        component: {
            name: source[component][name]
            for source, are_gauges in ((counters, False), (gauges, True))
            for name in source.get(component, ())
            if (name in GAUGES) == are_gauges
        }
        for component in counters
    }


def _tasks_of(worker: WorkerReports) -> list[TaskResult]:
    """Return the metrics of a worker's tasks over all its lives."""
    results = [report.result for report in worker.reports]
    return _tasks(results, results[-1:], worker.worker.number)


def _tasks(results: Sequence[RunResult], now: Sequence[RunResult], worker: int | None = None) -> list[TaskResult]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for source, wanted in ((results, lambda name: name not in GAUGES), (now, GAUGES.__contains__)):
        for task in (task for result in source for task in result.tasks):
            values = found.setdefault((task.component, task.task), {})
            for name in filter(wanted, task.values):
                values[name] = values.get(name, 0) + task.values[name]
    return [TaskResult(component, task, values, worker) for (component, task), values in found.items()]


def _partitions(workers: Sequence[WorkerReports]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Merge the partitions of the latest lives. If two workers report one, the higher commit is the newer one.

    A worker that has ended keeps its last report, although another may have taken over the partition.
    """
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for each in workers:
        for spout, partitions in each.reports[-1].result.partitions.items() if each.reports else ():
            known = found.setdefault(spout, {})
            for place, figures in partitions.items():
                before = known.get(place)
                if before is None or (before["committed"] or 0) <= (figures["committed"] or 0):
                    known[place] = {**figures, "owner": f"worker {each.worker.number}"}
    return in_order(found)


def _by_worker(workers: Sequence[WorkerReports]) -> dict[str, Mapping[str, object]]:
    return {
        f"{place} of worker {each.worker.number}": metrics
        for each in workers
        if each.reports
        for place, metrics in each.reports[-1].result.metrics.items()
    }


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


def _pair(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    first, second = 0, 0
    for queued, held in pairs:
        first, second = first + queued, second + held
    return first, second
