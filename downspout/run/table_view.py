"""The display of a run on a terminal or in a notebook: a table of its components."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from downspout.engine.loop import Engine
from downspout.engine.result import WorkerResult
from downspout.run.live_view import REASONS, Rates, partition_rows
from downspout.run.run_snapshots import RunMetrics, metrics_of

TABLE_EVERY_S = 0.5
PARTITION_HEADINGS = ("partition", "committed", "position", "end", "lag", "done beyond", "in flight", "failed")


class TableView:
    """A live table of the components on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        # Log lines and prints go above the table. Redirected standard output is left alone.
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty()
        )
        self._due: float | None = None
        self._rates = Rates()

    def update(self, engine: Engine) -> None:
        """Update the table if it is time."""
        self.look(engine.clock.monotonic(), lambda: metrics_of(engine))

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Update the table if it is time; only then take metrics."""
        if self._due is None:
            self._due = now
            self._live.start()
        if now >= self._due:
            self._due = now + TABLE_EVERY_S
            self._rates.look(metrics := take())
            self._live.update(screen(metrics, self._rates, self._console), refresh=True)

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()


def screen(metrics: RunMetrics, rates: Rates, console: Console) -> RenderableType:
    """Return the whole display."""
    result = metrics.result
    table = _table(metrics, wide=True)
    if console.measure(table, options=console.options.update(max_width=10_000)).maximum > console.width:
        table = _table(metrics, wide=False)
    last = [
        Text(f"last error in {name}: {' '.join(error.split())}", overflow="ellipsis", no_wrap=True, style="red")
        for name, error in result.last_errors.items()
    ]
    workers = [_workers_table(result.workers)] if result.workers else []
    partitions = [_partitions_table(rows)] if (rows := partition_rows(result)) else []
    return Group(table, *partitions, *workers, *last, Text(rates.line(metrics)))


def _table(metrics: RunMetrics, *, wide: bool) -> Table:
    """Return the table of the components; a narrow one has short numbers and fewer columns."""
    result = metrics.result
    table = Table(title=metrics.name, title_justify="left", pad_edge=wide)
    headings = ("component", "emitted", "executed", "acked", "failed", "dead", "queue", "holds", "errors")
    narrow = {"component", "emitted", "acked", "failed", "dead", "queue", "errors"}
    for heading in headings:
        if wide or heading in narrow:
            shown = "dead letters" if wide and heading == "dead" else heading
            table.add_column(shown, justify="left" if heading == "component" else "right", no_wrap=True)
    for name, counts in result.components.items():
        dead = int(result.reports.get(name, {}).get("dead_lettered", 0))
        queue, holds = metrics.queues[name]
        values = (counts.emitted, counts.executed, counts.acked, counts.failed, dead, queue, holds, counts.errors)
        cells = [
            f"{value:,}" if wide else short(value)
            for heading, value in zip(headings[1:], values, strict=True)
            if wide or heading in narrow
        ]
        table.add_row(f"{name} ×{counts.tasks}" if counts.tasks > 1 else name, *cells)
    return table


def short(number: int) -> str:
    """Return a number in at most six characters.

    >>> short(9_999), short(123_456), short(12_345_678), short(2_000_000_000)
    ('9,999', '123k', '12.3M', '2.0G')
    """
    if number < 10_000:
        return f"{number:,}"
    power = next(power for power in (1, 2, 3, 4) if number < 999.5 * 1_000**power or power == 4)
    scaled = number / 1_000**power
    return f"{scaled:.{0 if scaled >= 99.95 else 1}f}{'kMGT'[power - 1]}"


def _partitions_table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table()
    for heading in PARTITION_HEADINGS:
        table.add_column(heading, justify="left" if heading == "partition" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _workers_table(workers: Sequence[WorkerResult]) -> Table:
    table = Table()
    for heading in ("worker", "pid", "state", "restarts", "done", "in flight", "lag"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for each in workers:
        lag = "–" if each.lag is None else f"{each.lag:,.0f}"
        done, pid = (f"{each.completed:,}", f"{each.in_flight:,}"), "" if each.pid is None else str(each.pid)
        table.add_row(str(each.number), pid, REASONS.get(each.state, each.state), str(each.restarts), *done, lag)
    return table


# --- in a notebook ---

WIDTH = 140
FORMAT = '<pre style="line-height:normal;overflow-x:auto">{code}</pre>'


def _display() -> Callable[[str], Any]:
    """Return a function that shows HTML as an output of the cell, replacing its previous HTML."""
    from IPython.display import HTML, DisplayHandle

    handle = DisplayHandle()
    shown: list[bool] = []

    def show(text: str) -> None:
        (handle.update if shown else handle.display)(HTML(text))
        shown.append(True)

    return show


class NotebookView:
    """A table of the components, as HTML."""

    def __init__(self, show: Callable[[str], Any] | None = None) -> None:
        self._show = show or _display()
        self._due: float | None = None
        self._engine: Engine | None = None
        self._rates = Rates()

    def update(self, engine: Engine) -> None:
        """Update the table if it is time."""
        self._engine = engine
        self.look(engine.clock.monotonic(), lambda: metrics_of(engine))

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Update the table if it is time; only then take metrics."""
        if self._due is None or now >= self._due:
            self._due = now + TABLE_EVERY_S
            self._renew(take())

    def _renew(self, metrics: RunMetrics) -> None:
        """Update the table; rich escapes the records' texts."""
        self._rates.look(metrics)
        console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False)
        console.print(screen(metrics, self._rates, console))
        self._show(console.export_html(inline_styles=True, code_format=FORMAT))

    def close(self) -> None:
        """Show the final table: the cell keeps it above its result."""
        if self._engine is not None:
            self._renew(metrics_of(self._engine))
