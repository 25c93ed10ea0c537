"""What a run looks like: a table that renews itself on a terminal, a line every few seconds elsewhere, a summary."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from downspout.local.engine import Engine
from downspout.local.result import RunResult, counts_of
from downspout.metrics import METRICS
from downspout.wording import counted

TABLE_EVERY_S = 0.5
LINE_EVERY_S = 5.0

REASONS = {
    "end": "the end was reached",
    "for": "its time was over",
    "records": "enough records were done",
    "signal": "a signal asked for it",
    "aborted": "a second signal stopped it at once; what was in flight will be read again",
}


class Rates:
    """Figures of a run and how fast they change, smoothed over a few looks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._at = engine.clock.monotonic()
        self._done = engine.done
        self.rate = 0.0
        self.lag: float | None = None

    def look(self) -> None:
        """Take the figures as of now."""
        now, done = self._engine.clock.monotonic(), self._engine.done
        if (passed := now - self._at) > 0:
            fresh = (done - self._done) / passed
            self.rate = fresh if not self.rate else 0.7 * self.rate + 0.3 * fresh
        self._at, self._done = now, done
        lags = [report["lag"] for spout in self._engine.spouts if "lag" in (report := spout.report())]
        self.lag = sum(lags) if lags else None

    @property
    def passed_s(self) -> float:
        """Seconds since the start."""
        return self._at - self._engine.started

    def eta_s(self) -> float | None:
        """Return the seconds that are left in a bounded run, where they can be told."""
        bounds = self._engine.bounds
        left: list[float] = []
        if bounds.for_s is not None:
            left.append(bounds.for_s - self.passed_s)
        if bounds.records is not None and self.rate:
            left.append((bounds.records - self._done) / self.rate)
        if bounds.until == "end" and self.lag is not None and self.rate:
            left.append(self.lag / self.rate)
        return max(0.0, min(left)) if left else None

    def line(self) -> str:
        """Return all of it in one line."""
        engine = self._engine
        parts = [f"{self.passed_s:6.0f} s", f"{engine.done:,} done ({self.rate:,.0f}/s)"]
        parts.append(f"{engine.in_flight:,} in flight")
        if self.lag is not None:
            parts.append(f"lag {self.lag:,.0f}")
        if failed := sum(spout.failed for spout in engine.spouts):
            parts.append(f"{failed:,} failed")
        if (p99 := engine.world.latencies.quantile_ms(0.99)) is not None:
            parts.append(f"p99 {p99:,.0f} ms")
        if (eta := self.eta_s()) is not None:
            parts.append(f"{eta:,.0f} s left")
        if engine.stopping:
            parts.append("draining")
        return "  ".join(parts)


class LinesView:
    """One plain line every few seconds, for logs and pipes."""

    def __init__(self, out: TextIO | None = None, every_s: float = LINE_EVERY_S) -> None:
        self._out = out or sys.stderr
        self._every_s = every_s
        self._due: float | None = None
        self._rates: Rates | None = None

    def update(self, engine: Engine) -> None:
        """Print a line where it is time."""
        now = engine.clock.monotonic()
        if self._rates is None or self._due is None:
            self._rates, self._due = Rates(engine), now + self._every_s
        if now >= self._due:
            self._due = now + self._every_s
            self._rates.look()
            print(self._rates.line(), file=self._out, flush=True)

    def close(self) -> None:
        """Nothing is open."""


class TableView:
    """A table of the components that renews itself."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console or Console(stderr=True), auto_refresh=False, transient=True)
        self._due: float | None = None
        self._rates: Rates | None = None

    def update(self, engine: Engine) -> None:
        """Renew the table where it is time."""
        now = engine.clock.monotonic()
        if self._rates is None or self._due is None:
            self._rates, self._due = Rates(engine), now
            self._live.start()
        if now >= self._due:
            self._due = now + TABLE_EVERY_S
            self._rates.look()
            self._live.update(self._table(engine, self._rates), refresh=True)

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()

    @staticmethod
    def _table(engine: Engine, rates: Rates) -> Table:
        table = Table(title=engine.graph.name, caption=rates.line(), title_justify="left", caption_justify="left")
        for heading in ("component", "tasks", "emitted", "executed", "acked", "failed", "queue", "holds", "errors"):
            table.add_column(heading, justify="left" if heading == "component" else "right")
        queues: dict[str, list[int]] = {}
        for bolt in engine.bolts:
            sums = queues.setdefault(bolt.name, [0, 0])
            sums[0] += len(bolt.queue)
            sums[1] += len(bolt.held)
        for spout in engine.spouts:
            queues.setdefault(spout.name, [0, 0])[1] += len(spout.forest.open)
        for name, counts in counts_of(engine.graph, engine.tasks).items():
            figures = (counts.tasks, counts.emitted, counts.executed, counts.acked, counts.failed, *queues[name])
            table.add_row(name, *(f"{figure:,}" for figure in figures), f"{counts.errors:,}")
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
    """Return a line per spout that wrote dead letters.

    Args:
        result: the run.
        topics: the dead-letter topic by spout.
    """
    lines = []
    for spout, report in result.reports.items():
        if count := int(report.get("dead_lettered", 0)):
            topic = topics.get(spout, "")
            lines.append(
                f"{counted(count, 'record')} went to the dead-letter topic {topic}: "
                f"look at {'it' if count == 1 else 'them'} with `downspout dlq ls {topic}`"
            )
    return lines


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
    lines += [f"  error: {error}" for error in result.errors]
    return "\n".join(lines)
