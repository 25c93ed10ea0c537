"""Which view of a run fits where its output goes. rich, a tenth of a start, is imported where it draws a table."""

from __future__ import annotations

import sys
from typing import Protocol

from downspout.run.live import LinesView
from downspout.run.snapshots import Looks


class View(Looks, Protocol):
    """Shows a run while it goes on."""

    def close(self) -> None:
        """Leave what is to stay."""


def make_view(*, quiet: bool) -> View | None:
    """Return a table in a notebook or on a terminal, lines elsewhere; None where nothing is to be shown."""
    if quiet:
        return None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:  # a terminal's IPython has none
        from downspout.run.notebook import NotebookView

        return NotebookView()
    if sys.stderr.isatty():
        from downspout.run.table_view import TableView

        return TableView()
    return LinesView()
