"""What a run looks like: a table that renews itself on a terminal, a line every few seconds elsewhere, a summary."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from downspout.local.engine import Engine
from downspout.local.figures import Figures, figures_of
from downspout.local.result import RunResult, WorkerResult
from downspout.metrics import METRICS
from downspout.wording import counted, lasting

TABLE_EVERY_S = 0.5
LINE_EVERY_S = 5.0
RATE_OVER_S = 20.0
"""A rate tells of about so long: sinks flush every few seconds, and what they hold is acked in one go."""

REASONS = {
    "end": "the end was reached",
    "for": "its time was over",
    "records": "enough records were done",
    "signal": "a signal asked for it",
    "aborted": "a second signal stopped it at once",
}


class Rates:
    """Figures of a run and how fast they change: the mean since its start, and later that of the last while."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._done = 0
        self.rate = 0.0

    def look(self, figures: Figures) -> None:
        """Take the figures as of now."""
        now, done = figures.result.duration_s, figures.result.completed
        if (passed := now - self._passed_s) > 0:
            weight = min(1.0, passed / min(now, RATE_OVER_S))
            self.rate += weight * ((done - self._done) / passed - self.rate)
        self._passed_s, self._done = now, done

    def eta_s(self, figures: Figures) -> float | None:
        """Return the seconds that are left in a bounded run, where they can be told."""
        bounds = figures.bounds
        left: list[float] = []
        if bounds.for_s is not None:
            left.append(bounds.for_s - figures.result.duration_s)
        if bounds.records is not None and self.rate:
            left.append((bounds.records - figures.result.completed) / self.rate)
        if bounds.until == "end" and figures.lag is not None and self.rate:
            left.append(figures.lag / self.rate)
        return max(0.0, min(left)) if left else None

    def line(self, figures: Figures) -> str:
        """Return all of it in one line."""
        result = figures.result
        parts = [f"{result.duration_s:6.0f} s", f"{result.completed:,} done ({self.rate:,.0f}/s)"]
        parts.append(f"{result.in_flight:,} in flight")
        queued, slowest = max(((queued, name) for name, (queued, _) in figures.queues.items()), default=(0, ""))
        if queued:
            parts.append(f"{queued:,} wait for {slowest}")
        if figures.lag is not None:
            parts.append(f"lag {figures.lag:,.0f}")
        if result.failed:
            parts.append(f"{result.failed:,} failed")
        if result.latency_p99_ms is not None:
            parts.append(f"p99 {result.latency_p99_ms:,.0f} ms")
        if (eta := self.eta_s(figures)) is not None:
            parts.append(f"{lasting(eta)} left")
        if figures.stopping:
            parts.append("draining")
        if result.workers:
            parts.append(_workers(result.workers))
        return "  ".join(parts)


def _workers(workers: Sequence[WorkerResult]) -> str:
    """Return how many workers are alive, and how many have been started again.

    >>> _workers([WorkerResult(1, "running", 71), WorkerResult(2, "restarting", None, 3)])
    '1 of 2 workers alive, 3 restarts'
    """
    alive, restarts = sum(worker.pid is not None for worker in workers), sum(worker.restarts for worker in workers)
    again = f", {counted(restarts, 'restart')}" if restarts else ""
    return f"{alive} of {counted(len(workers), 'worker')} alive{again}"


class LinesView:
    """One plain line every few seconds, for logs and pipes."""

    def __init__(self, out: TextIO | None = None, every_s: float = LINE_EVERY_S) -> None:
        self._out = out or sys.stderr
        self._every_s = every_s
        self._due: float | None = None
        self._rates = Rates()

    def update(self, engine: Engine) -> None:
        """Print a line where it is time."""
        self.look(engine.clock.monotonic(), lambda: figures_of(engine))

    def look(self, now: float, take: Callable[[], Figures]) -> None:
        """Print a line where it is time; only then figures are taken."""
        if self._due is None:
            self._due = now + self._every_s
            self._rates.look(take())
        if now >= self._due:
            self._due = now + self._every_s
            self._rates.look(figures := take())
            print(self._rates.line(figures), file=self._out, flush=True)

    def close(self) -> None:
        """Nothing is open."""


class TableView:
    """A table of the components that renews itself."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console or Console(stderr=True), auto_refresh=False, transient=True)
        self._due: float | None = None
        self._rates = Rates()

    def update(self, engine: Engine) -> None:
        """Renew the table where it is time."""
        self.look(engine.clock.monotonic(), lambda: figures_of(engine))

    def look(self, now: float, take: Callable[[], Figures]) -> None:
        """Renew the table where it is time; only then figures are taken."""
        if self._due is None:
            self._due = now
            self._live.start()
        if now >= self._due:
            self._due = now + TABLE_EVERY_S
            self._rates.look(figures := take())
            self._live.update(_table(figures, self._rates), refresh=True)

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()


def _table(figures: Figures, rates: Rates) -> RenderableType:
    caption = rates.line(figures)
    table = Table(title=figures.name, caption=caption, title_justify="left", caption_justify="left")
    for heading in ("component", "tasks", "emitted", "executed", "acked", "failed", "queue", "holds", "errors"):
        table.add_column(heading, justify="left" if heading == "component" else "right")
    for name, counts in figures.result.components.items():
        queues = figures.queues[name]
        shown = (counts.tasks, counts.emitted, counts.executed, counts.acked, counts.failed, *queues, counts.errors)
        table.add_row(name, *(f"{figure:,}" for figure in shown))
    return Group(table, _workers_table(figures.result.workers)) if figures.result.workers else table


def _workers_table(workers: Sequence[WorkerResult]) -> Table:
    table = Table()
    for heading in ("worker", "pid", "state", "restarts", "done", "in flight", "lag"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for each in workers:
        lag = "–" if each.lag is None else f"{each.lag:,.0f}"
        done, pid = (f"{each.completed:,}", f"{each.in_flight:,}"), "" if each.pid is None else str(each.pid)
        table.add_row(str(each.number), pid, REASONS.get(each.state, each.state), str(each.restarts), *done, lag)
    return table


def make_view(*, quiet: bool, out: TextIO | None = None) -> LinesView | TableView | None:
    """Return the view that fits where the output goes."""
    if quiet:
        return None
    stream = out or sys.stderr
    return TableView(Console(file=stream)) if stream.isatty() else LinesView(stream)


def _telling(report: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return what a report says beyond the engine's own counters: no zeros, of the gauges only the lag that is left."""
    shown = {"emitted", "executed", "acked", "failed", "errors"}
    shown |= {metric.name for metric in METRICS.values() if metric.kind == "gauge" and metric.name != "lag"}
    return [(key, value) for key, value in report.items() if value and key not in shown]


def dead_letter_lines(result: RunResult, topics: Mapping[str, str]) -> list[str]:
    """Return a line per topic to which dead letters were written; a record that was processed again may have several.

    Args:
        result: the run.
        topics: the dead-letter topic by spout, or bolt that writes letters.
    """
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
    """Return what is said at the end of a run."""
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
        figures = ", ".join(f"{key} {value:,.0f}" for key, value in _telling(result.reports.get(component, {})))
        lines.append(f"{line}; {figures}" if figures else line)
    lines += [_worker_line(worker) for worker in result.workers]
    lines += [f"  error: {error}" for error in result.errors]
    return "\n".join(lines)


def _worker_line(worker: WorkerResult) -> str:
    """Return what is said of one worker at the end of a run.

    >>> _worker_line(WorkerResult(2, "end", None, 1, 5_000, deaths=["was killed by signal 9"]))
    '  worker 2: 5,000 tuple trees complete; the end was reached; 1 restart (was killed by signal 9)'
    """
    line = f"  worker {worker.number}: {counted(worker.completed, 'tuple tree')} complete"
    line += f"; {REASONS.get(worker.state, worker.state)}"
    if worker.restarts:
        line += f"; {counted(worker.restarts, 'restart')}"
    return f"{line} ({'; '.join(dict.fromkeys(worker.deaths))})" if worker.deaths else line
