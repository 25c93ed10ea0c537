"""The table of a run in a notebook: one output of the cell, which renews itself."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from downspout.engine.loop import Engine
from downspout.run.live import Rates
from downspout.run.metrics import RunMetrics, metrics_of
from downspout.run.table_view import TABLE_EVERY_S, screen

WIDTH = 140
FORMAT = '<pre style="line-height:normal;overflow-x:auto">{code}</pre>'


def _display() -> Callable[[str], Any]:
    """Return what shows HTML: first as a new output of the cell, then in its place."""
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
        """Renew the table where it is time."""
        self._engine = engine
        self.look(engine.clock.monotonic(), lambda: metrics_of(engine))

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Renew the table where it is time; only then metrics are taken."""
        if self._due is None or now >= self._due:
            self._due = now + TABLE_EVERY_S
            self._renew(take())

    def _renew(self, metrics: RunMetrics) -> None:
        """Renew the table. What it says of records is text: rich escapes it."""
        self._rates.look(metrics)
        console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False)
        console.print(screen(metrics, self._rates, console))
        self._show(console.export_html(inline_styles=True, code_format=FORMAT))

    def close(self) -> None:
        """Show how it ended: the cell keeps this table above its result."""
        if self._engine is not None:
            self._renew(metrics_of(self._engine))
