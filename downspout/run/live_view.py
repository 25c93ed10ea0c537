"""The display of a run: progress lines (for a terminal's table see ``table_view.py``) and the summary."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from downspout.engine.loop import Engine
from downspout.engine.result import RunResult, WorkerResult
from downspout.formatting import counted, lasting
from downspout.metrics import METRICS
from downspout.run.run_snapshots import RunMetrics, metrics_of
from downspout.spout.observe import totals_by_topic

LINE_EVERY_S = 5.0
RATE_OVER_S = 20.0  # The period of a rate; long, because sinks ack in bursts, every few seconds

REASONS = {
    "end": "the end was reached",
    "for": "its time was up",
    "records": "enough records were processed",
    "signal": "it received a signal",
    "aborted": "a second signal stopped it at once",
}


class Rates:
    """A run's rate: the mean since its start, later over the last RATE_OVER_S."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._done = 0
        self.rate = 0.0

    def look(self, metrics: RunMetrics) -> None:
        """Update the rate."""
        now, done = metrics.result.duration_s, metrics.resolved
        if (passed := now - self._passed_s) > 0:
            weight = min(1.0, passed / min(now, RATE_OVER_S))
            self.rate += weight * ((done - self._done) / passed - self.rate)
        self._passed_s, self._done = now, done

    def eta_s(self, metrics: RunMetrics) -> float | None:
        """Return the remaining seconds of a bounded run, if they can be estimated."""
        bounds = metrics.bounds
        left: list[float] = []
        if bounds.for_s is not None:
            left.append(bounds.for_s - metrics.result.duration_s)
        if bounds.records is not None and self.rate:
            share = metrics.result.completed / metrics.resolved if metrics.resolved else 1.0  # No dead letter counts
            left += [(bounds.records - metrics.result.completed) / (self.rate * share)] if share else []
        # The rate predicts nothing if only failed records are left (their back-off decides), for batches (it does not
        # count records), or if it is shown as 0/s.
        is_known = bounds.until == "end" and self.rate >= 0.5 and not metrics.in_batches
        if is_known and metrics.lag and metrics.lag > metrics.gauge("retry_waiting"):
            left.append(metrics.lag / self.rate)
        return max(0.0, min(left)) if left else None

    def line(self, metrics: RunMetrics, *, timed: bool = True) -> str:
        """Return the metrics in one line; with ``timed=False``, without values that change merely with time."""
        result = metrics.result
        parts = [f"{metrics.resolved:,} done"]
        if timed:
            parts = [f"{result.duration_s:6.0f} s", f"{metrics.resolved:,} done ({self.rate:,.0f}/s)"]
        parts.append(f"{result.in_flight:,} in flight")
        queued, slowest = max(((queued, name) for name, (queued, _) in metrics.queues.items()), default=(0, ""))
        if queued:
            parts.append(f"{queued:,} queued for {slowest}")
        if metrics.gauge("disconnected"):
            parts.append("NO BROKER")
        if metrics.lag is not None:
            parts.append(f"lag {metrics.lag:,.0f}")
        if result.failed:
            parts.append(f"{result.failed:,} failed")
        if retrying := metrics.gauge("retry_waiting"):
            parts.append(f"{retrying:,.0f} to retry")
        if metrics.dead_letters:
            parts.append(counted(metrics.dead_letters, "dead letter"))
        if timed and result.latency_p99_ms is not None:
            parts.append(f"p99 {result.latency_p99_ms:,.0f} ms")
        if timed and (eta := self.eta_s(metrics)) is not None and not metrics.gauge("disconnected"):
            parts.append(f"{lasting(eta)} left")
        for report in result.reports.values():
            if "batch_txid" in report:
                active, failed = report["batches_active"], report["batches_failed"]
                parts.append(f"transaction {report['batch_txid']:,.0f} is next, {active:,.0f} active")
                parts += [counted(int(failed), "failed attempt")] if failed else []
        if metrics.stopping:
            parts.append("draining")
        if result.workers:
            parts.append(_workers(result.workers))
        return "  ".join(parts)


def _workers(workers: Sequence[WorkerResult]) -> str:
    """Return the numbers of live workers and of restarts.

    >>> _workers([WorkerResult(1, "running", 71), WorkerResult(2, "restarting", None, 3)])
    '1 of 2 workers alive, 3 restarts'
    """
    alive, restarts = sum(worker.pid is not None for worker in workers), sum(worker.restarts for worker in workers)
    again = f", {counted(restarts, 'restart')}" if restarts else ""
    return f"{alive} of {counted(len(workers), 'worker')} alive{again}"


class LinesView:
    """A plain line every few seconds if anything has changed, for logs and pipes."""

    def __init__(self, out: TextIO | None = None, every_s: float = LINE_EVERY_S) -> None:
        self._out = out or sys.stderr
        self._every_s = every_s
        self._due: float | None = None
        self._rates = Rates()
        self._shown = ""

    def update(self, engine: Engine) -> None:
        """Print a line if one is due."""
        self.look(engine.clock.monotonic(), lambda: metrics_of(engine))

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Print a line if one is due and has changed; ``take`` is called only if one is due."""
        if self._due is None:
            self._due = now + self._every_s
            self._rates.look(take())
        if now >= self._due:
            self._due = now + self._every_s
            self._rates.look(metrics := take())
            shown = self._rates.line(metrics, timed=False)
            if shown != self._shown:
                self._shown = shown
                print(self._rates.line(metrics), file=self._out, flush=True)

    def close(self) -> None:
        """Nothing is open."""


PARTITIONS_SHOWN = 12  # If there are more, only their topics are shown


def partition_rows(result: RunResult) -> list[tuple[str, ...]]:
    """Return a row per partition, and a sum per topic with several; beyond PARTITIONS_SHOWN, only the sums."""
    rows: list[tuple[str, ...]] = []
    for partitions in result.partitions.values():
        for topic, total in totals_by_topic(partitions).items():
            if len(partitions) <= PARTITIONS_SHOWN:
                own = (place for place in partitions if place.rpartition("[")[0] == topic)
                rows += [_partition_cells(place, partitions[place]) for place in own]
            if total["partitions"] > 1:
                rows.append(_partition_cells(topic, total))
    return rows


def _partition_cells(name: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("committed", "position", "end", "lag", "done", "in_flight", "failed")
    is_sum = "committed" not in figures
    return name, *(
        "" if is_sum and each in names[:3] else "–" if figures.get(each) is None else f"{figures[each]:,}"
        for each in names
    )


def behind_lines(result: RunResult) -> list[str]:
    """Return a line for each partition with a lag, naming the record that blocks it; at most PARTITIONS_SHOWN."""
    behind = [
        (place, figures)
        for partitions in result.partitions.values()
        for place, figures in partitions.items()
        if figures.get("lag")
    ]
    lines = [_behind_line(place, figures) for place, figures in behind[:PARTITIONS_SHOWN]]
    more = len(behind) - len(lines)
    return [*lines, f"  and {counted(more, 'more partition')} behind"] if more else lines


def _behind_line(place: str, figures: Mapping[str, Any]) -> str:
    committed = "–" if figures.get("committed") is None else f"{figures['committed']:,}"
    line = f"  {place}: lag {figures['lag']:,}, committed {committed} of {figures['end']:,}"
    if figures.get("done"):
        line += f", {figures['done']:,} done beyond"
    return line if figures.get("blocks") is None else f"{line}; {figures['blocks']} blocks: {figures['why']}"


def _notable(report: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return a report's nonzero metrics, without the engine's counters and without gauges other than the lag."""
    shown = {"emitted", "executed", "acked", "failed", "errors", "fetches", "fetched"}
    shown |= {metric.name for metric in METRICS.values() if metric.kind == "gauge" and metric.name != "lag"}
    return [(key, value) for key, value in report.items() if value and key not in shown]


def dead_letter_lines(result: RunResult, topics: Mapping[str, str]) -> list[str]:
    """Return a line for each topic that got dead letters; reprocessed records may have several."""
    written: Counter[str] = Counter()
    for name, report in result.reports.items():
        written[topics.get(name, "")] += int(report.get("dead_lettered", 0))
    return [
        f"{counted(count, 'dead letter')} {'was' if count == 1 else 'were'} written to topic {topic}: "
        f"look at {'it' if count == 1 else 'them'} with `downspout dlq ls {topic}`"
        for topic, count in written.items()
        if count
    ]


def summary(name: str, result: RunResult) -> str:
    """Return the summary at the end of a run."""
    lines = [f"{name} stopped after {result.duration_s:,.1f} s: {REASONS.get(result.reason, result.reason)}."]
    if result.reason == "end" and not result.completed and not result.failed:
        lines.append("  there was nothing new to process")
    rate = result.completed / result.duration_s if result.duration_s > 0 else 0.0
    trees = f"  {counted(result.completed, 'tuple tree')} complete ({rate:,.0f}/s), {result.failed:,} failed"
    if result.timeouts:
        trees += f" ({result.timeouts:,} by timeout)"
    if result.in_flight:
        trees += f", {result.in_flight:,} left in flight"
    if result.latency_p50_ms is not None and result.latency_p99_ms is not None:
        trees += f"; latency p50 {result.latency_p50_ms:,.1f} ms, p99 {result.latency_p99_ms:,.1f} ms"
    lines.append(trees)
    for component, counts in result.components.items():
        line = f"  {component}: emitted {counts.emitted:,}"
        if component not in result.spouts:
            line += f", executed {counts.executed:,}"
        line += f", acked {counts.acked:,}, failed {counts.failed:,}"
        if counts.errors:
            line += f", {counted(counts.errors, 'error')}, {counted(counts.restarts, 'restart')}"
        metrics = ", ".join(f"{key} {value:,.0f}" for key, value in _notable(result.reports.get(component, {})))
        lines.append(f"{line}; {metrics}" if metrics else line)
    lines += behind_lines(result)
    lines += [_worker_line(worker) for worker in result.workers]
    lines += [f"  error: {error}" for error in result.errors]
    return "\n".join(lines)


def _worker_line(worker: WorkerResult) -> str:
    """Return a worker's line in the summary.

    >>> _worker_line(WorkerResult(2, "end", None, 1, 5_000, deaths=["was killed by signal 9"]))
    '  worker 2: 5,000 tuple trees complete; the end was reached; 1 restart (was killed by signal 9)'
    """
    line = f"  worker {worker.number}: {counted(worker.completed, 'tuple tree')} complete"
    line += f"; {REASONS.get(worker.state, worker.state)}"
    if worker.restarts:
        line += f"; {counted(worker.restarts, 'restart')}"
    return f"{line} ({'; '.join(dict.fromkeys(worker.deaths))})" if worker.deaths else line
