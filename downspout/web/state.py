"""The API's answers: a run's history as plain data. ``docs/reference/ui-api.md`` explains each name.

Texts from a run, such as those of errors, are plain values: the page never treats them as markup.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from downspout.engine.graph import Component, Graph, Input
from downspout.engine.result import Counts
from downspout.engine.settings import Settings
from downspout.protocols import scopes_of
from downspout.run.live_view import REASONS
from downspout.run.run_snapshots import RunMetrics
from downspout.run.topology_check import values_of
from downspout.settings.secrets import HIDDEN, is_secret
from downspout.spout.observe import total_of, totals_by_topic
from downspout.web.history import COUNTED, RUN, WINDOWS, History, Point, RateWindow
from downspout.web.processes import Processes

WORST_MAX = 50  # Default number of partitions in an answer
LIMIT_MAX = 5_000
TEXT_MAX = 4_000  # Characters of an error's text
SORTS = (
    "partition", "committed", "position", "emitted", "begin", "end", "lag", "lag_s", "log_records", "done", "in_flight",
    "failed", "fetches", "fetched", "fetch_mean_s", "fetch_max_s", "owner",
    "retention_records",  # the smallest first
)  # fmt: skip
SINK = ("rows", "files", "bytes", "flushes", "covered", "rejected", "held", "held_s", "away_s", "log_entries")
BATCHES = ("batch_txid", "batches_active", "batches_succeeded", "batches_failed", "batch_attempts", "batch_s")
TRANSACTIONS = ("transactions_committed", "transactions_aborted", "transactions_fenced", "repeated", "discarded")


class State:
    """Answers from a run's history.

    Subclasses serve other engines, with other windows, and ``notes`` that explain panels.
    """

    engine = "local"
    windows: Sequence[str] = tuple(WINDOWS)
    notes: Mapping[str, str] = {}

    def __init__(
        self,
        graph: Graph,
        settings: Settings | None,  # None: a subclass has them
        history: History,
        processes: Processes,
        pid: int,  # of the process of a run without workers
    ) -> None:
        self._graph, self._settings = graph, settings
        self.past, self._processes, self._pid = history, processes, pid
        spouts = [spout.name for spout in graph.spouts if "kafka" in scopes_of(spout.cls)]
        kafka = [settings.components[name].values for name in spouts] if settings else []
        # A chunk is one tuple with many records, so tuples in flight do not give the latency of a record.
        self._has_chunks = any(values.get("kafka.emit") == "chunk" for values in kafka)
        self._bootstraps = [str(values.get("kafka.bootstrap") or "") for values in kafka]

    # --- constant parts ---

    def topology(self) -> dict[str, Any]:
        """Return the graph."""
        components = [_component(each) for each in self._graph.components.values()]
        edges = [_edge(each, given) for each in self._graph.components.values() for given in each.inputs]
        about = {"topology": self._graph.name, "engine": self.engine, "windows": self.windows, "notes": self.notes}
        return {**about, "components": components, "edges": edges}

    def settings(self) -> dict[str, Any]:
        """Return all settings of the components with their sources; secrets are hidden."""
        if self._settings is None:
            return {"settings": []}
        rows = [setting("", *row) for row in values_of(self._settings.run, ("run",), everything=True)]
        for component in self._graph.components.values():
            resolved = self._settings.components[component.name]
            rows += [setting(component.name, *row) for row in values_of(resolved, scopes_of(component.cls), True)]
        return {"settings": rows}

    # --- current figures ---

    def run(self, now_s: float, stuck: str = "") -> dict[str, Any]:
        """Return the run as of its last snapshot; ``stuck`` says why no newer one exists."""
        metrics = self.past.latest
        if metrics is None:
            return {"topology": self._graph.name, "state": "starting", "stuck": stuck}
        windows = self._windows(metrics)
        result = metrics.result
        return {
            "topology": metrics.name,
            "state": "draining" if metrics.stopping else "running",
            "at_ms": round(self.past.wall_s * 1000),
            "age_s": round(max(0.0, now_s - self.past.wall_s), 1),
            "stuck": stuck,
            "duration_s": result.duration_s,
            "totals": self._totals(metrics),
            "windows": {name: self._run_window(name, window) for name, window in windows.items()},
            "components": [self._counts(metrics, windows, each) for each in self._graph.components.values()],
            "edges": self._edges(windows),
            "partitions": self.partitions(limit=WORST_MAX),
            "blocked": self._blocked(metrics),
            "sinks": _reports(metrics, SINK, "flushes"),
            "transactions": _reports(metrics, TRANSACTIONS, "transactions_committed"),
            "dead_letters": [self._dead_letters(name, each) for name, each in result.dead_letters.items()],
            "events": self.past.events.newest_first(),
            "workers": self._workers(metrics),
            "batches": [],
            "coordinators": _reports(metrics, BATCHES, "batch_txid"),
            "errors": [_clipped(error) for error in result.errors[:WORST_MAX]],
        }

    def partitions(
        self,
        *,
        sort: str = "lag",  # one of SORTS; the largest first, names in their order
        offset: int = 0,
        limit: int = WORST_MAX,
    ) -> dict[str, Any]:
        """Return the partitions of all spouts and batch emitters, and the sums for each topic."""
        metrics = self.past.latest
        found = metrics.result.partitions if metrics is not None else {}
        rows = [(spout, place, figures) for spout, places in found.items() for place, figures in places.items()]
        if sort == "lag_s":
            rows.sort(key=lambda row: -_or_most(self._lag_s(*row[1:])))
        elif sort == "retention_records":
            rows.sort(key=lambda row: _or_most(row[2].get(sort)))
        elif sort == "owner":
            rows.sort(key=lambda row: str(row[2].get("owner") or ""))
        elif sort != "partition":
            rows.sort(key=lambda row: -_or_none(row[2].get(sort)))
        chosen = rows[offset : offset + min(limit, LIMIT_MAX)]
        return {
            "count": len(rows),
            "lag": total_of(figures for _, _, figures in rows)["lag"],
            "topics": [
                {"spout": spout, "topic": topic, **total}
                for spout, places in found.items()
                for topic, total in totals_by_topic(places).items()
            ][:WORST_MAX],
            "sort": sort,
            "offset": offset,
            "known_s": self.past.known_s,
            "rows": [self._partition(*row) for row in chosen],
        }

    def history(self, since_ms: float) -> dict[str, list[Any]]:
        """Return the points after a time, by column."""
        points = [point for point in list(self.past.points) if point.wall_s * 1000 > since_ms]
        return {field.name: [getattr(point, field.name) for point in points] for field in fields(Point)}

    # --- parts ---

    def _windows(self, metrics: RunMetrics) -> dict[str, RateWindow]:
        return {name: self.past.window(WINDOWS[name]) for name in self.windows}

    def _run_window(self, name: str, window: RateWindow) -> dict[str, Any]:
        p50, p99 = window.latency_ms(0.5, 0.99)
        return {
            "span_s": window.span_s,
            "completed_per_s": window.per_s(RUN, "completed"),
            "failed_per_s": window.per_s(RUN, "failed"),
            "p50_ms": p50,
            "p99_ms": p99,
        }

    def _totals(self, metrics: RunMetrics) -> dict[str, Any]:
        result = metrics.result
        return {
            "completed": result.completed,
            "failed": result.failed,
            "timeouts": result.timeouts,
            "in_flight": result.in_flight,
            "lag": metrics.lag,
            "retry_waiting": metrics.gauge("retry_waiting"),
            "dead_lettered": metrics.dead_letters,
            "disconnected": metrics.gauge("disconnected"),
            "latency_p50_ms": result.latency_p50_ms,
            "latency_p99_ms": result.latency_p99_ms,
        }

    def _loops(self, metrics: RunMetrics) -> int:
        """Return how many bolts can run at the same time."""
        return max(1, len(metrics.result.workers))

    def _counts(self, metrics: RunMetrics, windows: Mapping[str, RateWindow], component: Component) -> dict[str, Any]:
        name, result = component.name, metrics.result
        counts = result.components.get(name) or Counts(component.par)
        queued, held = metrics.queues.get(name, (0, 0))
        loops = self._loops(metrics)
        report = result.reports.get(name, {})
        is_plain = not self._has_chunks and not component.is_spout
        return {
            "name": name,
            "tasks": counts.tasks,
            "totals": {each: getattr(counts, each) for each in COUNTED},
            "windows": {each: _window(window, name, loops, is_plain) for each, window in windows.items()},
            "queue": queued,
            "held": held,
            "last_error": _clipped(result.last_errors.get(name, "")),
            "stack": result.stacks.get(name, ""),
            "report": dict(report),
        }

    def _edges(self, windows: Mapping[str, RateWindow]) -> list[dict[str, Any]]:
        found = []
        for component in self._graph.components.values():
            for given in component.inputs:
                edge = _edge(component, given)
                edge["per_s"] = {name: self._edge_per_s(window, component, given) for name, window in windows.items()}
                found.append(edge)
        return found

    def _edge_per_s(self, window: RateWindow, target: Component, given: Input) -> float | None:
        """Return the tuples per second on an edge; None if they are not counted separately."""
        if len(target.inputs) == 1:
            return window.per_s(target.name, "executed")
        if len(self._graph.components[given.source].streams) == 1:
            times = target.par if given.grouping == "all" else 1
            return window.per_s(given.source, "emitted") * times
        return None

    def _partition(self, spout: str, place: str, figures: Mapping[str, Any]) -> dict[str, Any]:
        topic, _, number = place.removesuffix("]").rpartition("[")
        lag_s = self._lag_s(place, figures)
        named = {"spout": spout, "partition": place, "topic": topic, "number": int(number) if number.isdecimal() else 0}
        return {**named, **figures, "error": _clipped(str(figures.get("error", ""))), "lag_s": lag_s}

    def _lag_s(self, place: str, figures: Mapping[str, Any]) -> float | None:
        """Return the reader's figure; otherwise how long the log has extended beyond the commit, if known."""
        told: float | None = figures.get("lag_s")
        return self.past.behind_s(place, figures.get("committed")) if told is None else told

    def _blocked(self, metrics: RunMetrics) -> list[dict[str, Any]]:
        rows = [
            self._partition(spout, place, figures)
            for spout, places in metrics.result.partitions.items()
            for place, figures in places.items()
            if figures.get("blocks") is not None
        ]
        return sorted(rows, key=lambda row: (-_or_none(row.get("failed")), -_or_none(row.get("done"))))[:WORST_MAX]

    def _dead_letters(self, name: str, report: Mapping[str, Any]) -> dict[str, Any]:
        topic, last = str(report["topic"]), []
        for letter in reversed(report["last"]):
            place = ["--topic", letter["topic"], "--partition", str(letter["partition"])]
            place += ["--offsets", str(letter["offset"])]
            command = ["downspout", "dlq", "replay", topic, *self._bootstrap(), *place, "--yes"]
            last.append({**letter, "error": _clipped(letter["error"]), "replay": shlex.join(command)})
        return {"component": name, "topic": topic, "by_error": dict(report["by_error"]), "last": last}

    def _bootstrap(self) -> list[str]:
        """Return the option for the brokers if all spouts share it and it contains no secret."""
        given = set(self._bootstraps)
        if len(given) != 1 or not (bootstrap := next(iter(given))) or is_secret("kafka.bootstrap", bootstrap):
            return []
        return ["--bootstrap", bootstrap]

    def _workers(self, metrics: RunMetrics) -> list[dict[str, Any]]:
        result = metrics.result
        if not result.workers:
            state = "draining" if metrics.stopping else "running"
            own = {"number": 1, "pid": self._pid, "state": state, "restarts": 0, "deaths": [], "silent_s": None}
            own |= {"completed": result.completed, "in_flight": result.in_flight, "lag": metrics.lag}
            return [own | self._processes.use_of(self._pid)]
        return [
            {
                "number": worker.number,
                "pid": worker.pid,
                "state": REASONS.get(worker.state, worker.state),
                "restarts": worker.restarts,
                "deaths": [*worker.deaths],
                "completed": worker.completed,
                "in_flight": worker.in_flight,
                "lag": worker.lag,
                "silent_s": worker.silent_s,
                **self._processes.use_of(worker.pid),
            }
            for worker in result.workers
        ]


def _component(component: Component) -> dict[str, Any]:
    return {
        "name": component.name,
        "kind": "spout" if component.is_spout else "bolt",
        "class": f"{component.cls.__module__}.{component.cls.__name__}",
        "tasks": component.par,
        "streams": {stream.name: [*stream.fields] for stream in component.streams.values()},
    }


def _edge(target: Component, given: Input) -> dict[str, Any]:
    named = {"source": given.source, "stream": given.stream, "target": target.name}
    return {**named, "grouping": given.grouping, "fields": [*given.fields]}


def _window(window: RateWindow, name: str, loops: int, is_plain: bool) -> dict[str, Any]:
    """Return a component's figures in a window: rates, and Storm's execute latency, process latency and capacity."""
    executed, acked = window.grown(name, "executed"), window.grown(name, "acked")
    execute_ms = 1000 * window.grown(name, "busy_s") / executed if executed else None
    process_ms = None
    if is_plain and execute_ms is not None and acked:
        # Little's law: the mean number inside, divided by the rate of acks.
        process_ms = max(execute_ms, 1000 * window.inside.get(name, 0.0) * window.span_s / acked)
    rates = {f"{each}_per_s": window.per_s(name, each) for each in ("emitted", "executed", "acked", "failed")}
    capacity = window.per_s(name, "busy_s") / loops
    return {**rates, "execute_ms": execute_ms, "process_ms": process_ms, "capacity": capacity}


def _reports(metrics: RunMetrics, names: Sequence[str], mark: str) -> list[dict[str, Any]]:
    """Return the metrics ``names`` of each component that reports ``mark``."""
    return [
        {"component": component, **{name: report.get(name) for name in names}}
        for component, report in metrics.result.reports.items()
        if mark in report
    ]


def setting(component: str, key: str, value: Any, source: str) -> dict[str, Any]:
    """Return a row of the settings, with secrets hidden; ``component`` is empty for settings of the run."""
    return {"component": component, "key": key, "value": safe(key, value), "source": source}


def safe(key: str, value: Any) -> Any:
    """Return a setting's value with secrets hidden, also inside mappings and lists.

    >>> safe("x.options", {"user": "me", "password": "hush", "api_key": "hush", "urls": ["http://me:hush@host"]})
    {'user': 'me', 'password': '…', 'api_key': '…', 'urls': ['…']}
    """
    if is_secret(key, value):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(name): safe(f"{key}.{name}", each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [safe(key, each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _clipped(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


def _or_none(value: float | None) -> float:
    return -1 if value is None else value


def _or_most(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
