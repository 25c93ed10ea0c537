"""``downspout.run(Orders, until="end")``: a run from Python, in a script or in a notebook."""

from __future__ import annotations

import gc
import html
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from downspout import registry
from downspout.engine.graph import Graph, from_class
from downspout.engine.load import load, name_of
from downspout.engine.result import RunResult
from downspout.engine.settings import dead_letter_topics, resolve
from downspout.errors import ConfigError
from downspout.run import runner
from downspout.run.live_view import LinesView, dead_letter_lines, summary
from downspout.run.run_snapshots import MetricsView, Several
from downspout.run.watchdog import Watchdog


@dataclass(frozen=True)
class RunReport:
    """The result of a run; its text, and its display in a notebook, is the summary of ``downspout run``.

    >>> from downspout.engine.result import RunResult
    >>> nothing = RunResult("end", True, 1.0, {}, completed=3, failed=0, timeouts=0, in_flight=0,
    ...                     latency_p50_ms=None, latency_p99_ms=None)
    >>> RunReport("orders", nothing)
    orders stopped after 1.0 s: the end was reached.
      3 tuple trees complete (3/s), 0 failed
    """

    name: str  # of the topology
    result: RunResult  # counters, latencies, errors
    warnings: list[str] = field(default_factory=list)  # about dead letters

    def __repr__(self) -> str:
        return "\n".join([summary(self.name, self.result), *(f"  {line}" for line in self.warnings)])

    def _repr_html_(self) -> str:
        """Return HTML for a notebook, with the records' texts escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def run(
    topology: Any,
    *,
    until: Literal["end"] | None = None,
    for_s: float | None = None,
    records: int | None = None,
    settings: Mapping[str, Any] | None = None,
    metrics_port: int | None = None,
    quiet: bool = False,
) -> RunReport:
    """Run a topology in this process and return its result.

    After the first Ctrl-C or notebook interrupt, the run finishes the tuples in flight and returns as usual; the second
    stops it at once.

    Args:
        topology: a streamparse ``Topology`` class, even one defined in a notebook; or its file, or ``module:Class``.
        until: ``"end"``: stop once all records that the topics had at the start are processed.
        for_s: stop after this many seconds.
        records: stop once at least this many tuple trees are complete.
        settings: with the command line's precedence:
            ``{"kafka.bootstrap": "host:9092", "rows:parquet.flush_rows": 10}``.
        metrics_port: port for Prometheus metrics, ``/healthz`` and ``/readyz``; 0: any free port.
        quiet: show nothing during the run.

    Raises:
        DownspoutError: the topology or a setting is wrong, or a component ended the run.
    """
    graph = graph_of(topology)
    options = {"run.until": until, "run.for_s": for_s, "run.records": records, "run.metrics_port": metrics_port}
    found = resolve(graph, settings or {}, options=options)
    if (found.run.values["run.workers"] or 1) > 1:
        raise ConfigError(
            f"run.workers = {found.run.values['run.workers']}, but downspout.run() runs in this process",
            cure="`downspout run FILE --workers N`, or run.workers=1",
        )
    view = make_view(quiet=quiet)
    gc.collect()  # the run freezes the heap: garbage would stay until it ends
    with ExitStack() as opened:
        if view is not None:
            opened.callback(view.close)
        found_beside = [opened.enter_context(beside(graph, found)) for beside in registry.beside]
        views = [each for views, _ in found_beside for each in views]

        def watching(watchdog: Watchdog) -> None:
            for watch in (each for _, watches in found_beside for each in watches):
                watch(watchdog)

        looks = Several(view, *views)
        result = runner.run(graph, overrides=settings or {}, options=options, view=looks, watching=watching)
    warnings = dead_letter_lines(result, dead_letter_topics(graph, found))
    return RunReport(graph.name, result, warnings)


def graph_of(topology: Any) -> Graph:
    """Return the graph of a class, or of a command-line target.

    The topology of a class in a notebook or an interactive session has the class's name, for lack of a file.
    """
    if isinstance(topology, str):
        return load(topology)
    module = sys.modules.get(getattr(topology, "__module__", ""))
    has_file = getattr(module, "__file__", None) is not None
    return from_class(topology, name_of(topology) if has_file else topology.__name__)


# --- views ---


class RunView(MetricsView, Protocol):
    """Shows a run in progress."""

    def close(self) -> None:
        """End the display."""


def make_view(*, quiet: bool) -> RunView | None:
    """Return a table in a notebook or on a terminal, lines elsewhere; None if ``quiet``."""
    if quiet:
        return None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:  # a terminal's IPython has none
        from downspout.run.table_view import NotebookView

        return NotebookView()
    if sys.stderr.isatty():
        from downspout.run.table_view import TableView

        return TableView()
    return LinesView()
