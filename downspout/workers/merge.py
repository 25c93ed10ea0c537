"""The figures of several workers as those of one run.

A worker may have had several lives. What is counted is added up over all of them; what is a state (what is in flight,
held, behind) is that of each worker's latest life that has spoken, since the one before left its partitions to it.
Of a life that was killed only what it had said is known, so counters may be half a second behind the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from downspout.local.engine import Bounds
from downspout.local.figures import Figures
from downspout.local.latencies import joined, quantile_ms
from downspout.local.result import AGES, Counts, RunResult, WorkerResult
from downspout.metrics import METRICS
from downspout.workers.channel import Report

__all__ = ["Told", "fold", "merge", "worker_result"]

ERRORS_MAX = 20
"""So many lines about errors are kept of a worker's lives that are over."""
GAUGES = frozenset(metric.name for metric in METRICS.values() if metric.kind == "gauge")


@dataclass(frozen=True)
class Told:
    """What one worker has said.

    Attributes:
        worker: who it is, and what is known of it without its saying so.
        reports: the last one of its latest life, and before it what came of the earlier ones.
    """

    worker: WorkerResult
    reports: Sequence[Report]


def worker_result(worker: WorkerResult, reports: Sequence[Report]) -> WorkerResult:
    """Return what is known of a worker, with what its reports say."""
    worker = replace(worker, completed=sum(report.result.completed for report in reports), deaths=[*worker.deaths])
    if not reports:
        return worker
    latest = reports[-1].result
    lags = [latest.reports[spout]["lag"] for spout in latest.spouts if "lag" in latest.reports.get(spout, {})]
    return replace(worker, in_flight=latest.in_flight, lag=sum(lags) if lags else None)


def fold(earlier: Report, later: Report) -> Report:
    """Return two lives that are over as one: what they counted. A worker may have very many."""
    both = [earlier.result, later.result]
    result = replace(
        later.result,
        drained=True,
        components={name: _counts(name, both, ()) for name in later.result.components},
        completed=sum(each.completed for each in both),
        failed=sum(each.failed for each in both),
        timeouts=sum(each.timeouts for each in both),
        in_flight=0,
        errors=list(dict.fromkeys(line for each in both for line in each.errors))[:ERRORS_MAX],
        reports=_reports(both, ()),
        metrics={},
        uncommitted={},
    )
    return Report(result, {}, joined([earlier.latencies, later.latencies]))


def merge(
    name: str, components: Iterable[str], told: Sequence[Told], bounds: Bounds, *, reason: str, duration_s: float
) -> Figures:
    """Return the figures of the whole run.

    Args:
        name: of the topology.
        components: their names, in order; workers that have not spoken yet do not know them.
        told: by worker.
        bounds: of the whole run, ``for_s`` as ``duration_s``.
        reason: why it stops; ``running`` before that.
        duration_s: since its start, before any worker ran.
    """
    every = [report for each in told for report in each.reports]
    latest = [each.reports[-1] for each in told if each.reports]
    results, now = [report.result for report in every], [report.result for report in latest]
    names = list(components)
    in_flight = sum(result.in_flight for result in now)
    result = RunResult(
        reason=reason,
        drained=in_flight == 0,
        duration_s=duration_s,
        components={name: _counts(name, results, now) for name in names},
        completed=sum(result.completed for result in results),
        failed=sum(result.failed for result in results),
        timeouts=sum(result.timeouts for result in results),
        in_flight=in_flight,
        latency_p50_ms=quantile_ms([report.latencies for report in every], 0.5),
        latency_p99_ms=quantile_ms([report.latencies for report in every], 0.99),
        errors=[
            f"worker {each.worker.number}: {line}" for each in told for r in each.reports for line in r.result.errors
        ],
        reports=_reports(results, now),
        metrics=_by_worker(told),
        spouts=now[0].spouts if now else (),
        uncommitted=_sums(result.uncommitted for result in now),
        workers=[each.worker for each in told],
    )
    queues = {name: _pair(report.queues.get(name, (0, 0)) for report in latest) for name in names}
    return Figures(name, result, queues, bounds, reason != "running")


def _counts(component: str, results: Sequence[RunResult], now: Sequence[RunResult]) -> Counts:
    counts = Counts()
    for each in fields(Counts):
        source = now if each.name == "tasks" else results
        found = (result.components[component] for result in source if component in result.components)
        setattr(counts, each.name, sum(getattr(one, each.name) for one in found))
    return counts


def _reports(results: Sequence[RunResult], now: Sequence[RunResult]) -> dict[str, dict[str, float]]:
    """Add up what components say of themselves."""
    found: dict[str, dict[str, float]] = {}
    for source, wanted in ((results, lambda figure: figure not in GAUGES), (now, GAUGES.__contains__)):
        _add(found, source, wanted)
    return found


def _add(found: dict[str, dict[str, float]], results: Sequence[RunResult], wanted: Callable[[str], bool]) -> None:
    for result in results:
        for component, report in result.reports.items():
            figures = found.setdefault(component, {})
            for figure, value in report.items():
                if wanted(figure):
                    before = figures.get(figure, 0)
                    figures[figure] = max(before, value) if figure in AGES else before + value


def _by_worker(told: Sequence[Told]) -> dict[str, Mapping[str, object]]:
    return {
        f"{place} of worker {each.worker.number}": metrics
        for each in told
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
