"""The demo's progress display: bars with rate and remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.system.waiting import waiting

LINE_EVERY_S = 2.0
"""Shortest interval of plain lines."""

Report = Callable[[int, int], None]
"""Receives the amount done, and the total."""


def rate_line(name: str, done: int, total: int, since: int, seconds: float) -> str:
    """Return one plain line of progress.

    Args:
        name: what is counted, in the plural.
        done: how many by now.
        total: how many there will be.
        since: how many of them there were before the clock started.
        seconds: how long it took since.

    >>> rate_line("flights", 60_000, 100_000, 20_000, 2.0)
    '60,000 of 100,000 flights (60%), 20,000/s, 2 s left'
    """
    rate = (done - since) / seconds if seconds > 0 else 0.0
    left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
    return f"{done:,} of {total:,} {name} ({done / max(total, 1):.0%}), {rate:,.0f}/s{left}"


class _Rate(ProgressColumn):
    """Counts, rate and time left, from the records that this run did itself."""

    def render(self, task: Task) -> Text:
        if not task.started:
            return Text("")
        since = int(task.fields["since"])
        line = rate_line(task.fields["unit"], int(task.completed), int(task.total or 0), since, task.elapsed or 0.0)
        return Text(line, style="cyan")


class Screen:
    """Prints headings, results and progress; knows whether there is a terminal."""

    def __init__(self, console: Console | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._clock = clock
        self._step_began: float | None = None

    def step(self, number: int, title: str) -> None:
        """Print the duration of the previous step, and the heading of the next."""
        self.end_step()
        self._step_began = self._clock.monotonic()
        self.console.print(f"\n[bold]{number}  {title}[/bold]")

    def end_step(self) -> None:
        """Print the step's duration."""
        if self._step_began is not None:
            self.say(f"[dim]{self._clock.monotonic() - self._step_began:.1f} s[/dim]")
            self._step_began = None

    def say(self, text: str) -> None:
        """Print a result, indented below the heading."""
        self.console.print(f"   {text}")

    def table(self, table: Table) -> None:
        """Print a table."""
        self.console.print(table)

    @contextmanager
    def counting(self, unit: str) -> Iterator[Report]:
        """Show the progress of a known total; the first report sets the start."""
        if not self.console.is_terminal:
            yield self._plain_counter(unit)
            return
        columns = (TextColumn("  "), BarColumn(bar_width=30), _Rate())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(unit, total=None, start=False, unit=unit, since=0)

            def report(done: int, total: int) -> None:
                if not progress.tasks[0].started:
                    progress.update(task, since=done)
                    progress.start_task(task)
                progress.update(task, completed=done, total=total)

            yield report

    def _plain_counter(self, unit: str) -> Report:
        start: tuple[float, int] | None = None
        printed = self._clock.monotonic()

        def report(done: int, total: int) -> None:
            nonlocal start, printed
            now = self._clock.monotonic()
            start = start or (now, done)
            if now - printed >= LINE_EVERY_S:
                printed = now
                self.say(rate_line(unit, done, total, start[1], now - start[0]))

        return report

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show activity of unknown length."""
        if not self.console.is_terminal:
            self.say(f"{what} …")
            with waiting(what, self.say):
                yield
            return
        columns = (TextColumn("  "), SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(what, total=None)
            yield
