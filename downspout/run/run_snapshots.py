"""Snapshots of a run's metrics for other threads: a scrape, a page.

Only the thread that runs a topology may read its tasks. Another thread therefore requests a snapshot, and the run takes
it in its next round (within a quarter of a second if busy, ten milliseconds if idle). While a component's call blocks
the loop, the requester gets the previous snapshot, with its age. Without requests, no metrics are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.result import RunResult

if TYPE_CHECKING:
    from downspout.engine.loop import Bounds, Engine

ANSWER_S = 2.0  # Longest wait for a snapshot


@dataclass(frozen=True)
class Snapshot:
    """The metrics of a run, and their age."""

    metrics: RunMetrics
    age_s: float


class MetricsView(Protocol):
    """A view of a run, in one process or several."""

    def update(self, engine: Engine) -> None:
        """Show the engine's metrics if it is time."""

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Show metrics if it is time; only then take them."""


class Several:
    """Several views as one."""

    def __init__(self, *views: MetricsView | None) -> None:
        self._views = [view for view in views if view is not None]

    def update(self, engine: Engine) -> None:
        """Update all views."""
        for view in self._views:
            view.update(engine)

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Pass ``take`` to all views."""
        for view in self._views:
            view.look(now, take)


class Snapshots:
    """A view of a run from which other threads request snapshots."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._answered = threading.Condition()
        self._is_asked = True  # The first one is taken unasked, so that one always exists
        self._answers = 0
        self._last: tuple[RunMetrics, float] | None = None
        self._is_closed = False
        self._take: Callable[[], RunMetrics] | None = None

    # --- for the thread that runs ---

    def update(self, engine: Engine) -> None:
        """Take a snapshot if another thread has requested one."""
        self.look(engine.clock.monotonic(), lambda: metrics_of(engine))

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Take a snapshot if another thread has requested one; only then call ``take``."""
        self._take = take
        if not self._is_asked:
            return
        self._answer(take())

    def _answer(self, metrics: RunMetrics) -> None:
        with self._answered:
            self._last = metrics, self._clock.monotonic()
            self._answers += 1
            self._is_asked = False
            self._answered.notify_all()

    def finish(self) -> None:
        """Take the final snapshot after the run, in its thread, and close."""
        if self._take is not None:
            self._answer(self._take())
        self.close()

    def close(self) -> None:
        """Take no more snapshots: waiting threads get the last one."""
        with self._answered:
            self._is_closed = True
            self._answered.notify_all()

    # --- for others ---

    def latest(self, wait_s: float = ANSWER_S) -> Snapshot | None:
        """Request a snapshot; after ``wait_s``, return the previous one. None: the run has not begun."""
        with self._answered:
            before = self._answers
            self._is_asked = True
            self._answered.wait_for(lambda: self._answers > before or self._is_closed, wait_s)
            if self._last is None:
                return None
            metrics, taken = self._last
        return Snapshot(metrics, max(0.0, self._clock.monotonic() - taken))


# --- metrics ---


@dataclass(frozen=True)
class RunMetrics:
    """A run's metrics as of now."""

    name: str  # of the topology
    result: RunResult  # as if the run ended now
    # by component: queued tuples, and held tuples (a spout's open trees)
    queues: Mapping[str, tuple[int, int]]
    bounds: Bounds  # when the run stops
    stopping: bool
    # trees per bucket since the start (``downspout.engine.acker``)
    latencies: Mapping[int, float] = field(default_factory=dict)

    def gauge(self, name: str) -> float:
        """Return the sum of a gauge over the spouts."""
        return sum(self.result.reports.get(spout, {}).get(name, 0) for spout in self.result.spouts)

    @property
    def dead_letters(self) -> int:
        """Dead letters written so far, by spouts and bolts."""
        return int(sum(report.get("dead_lettered", 0) for report in self.result.reports.values()))

    @property
    def resolved(self) -> int:
        """Records that need no more work: processed, or dead-lettered by a spout."""
        return self.result.completed + int(self.gauge("dead_lettered"))

    @property
    def lag(self) -> float | None:
        """Records not yet committed, by the spouts' groups or in batches; None if unknown."""
        return lag_of(self.result)

    @property
    def in_batches(self) -> bool:
        """Whether a tuple tree is a batch of many records."""
        return any("batch_txid" in report for report in self.result.reports.values())


def lag_of(result: RunResult) -> float | None:
    """Return the number of records not yet committed; None if unknown."""
    lags = [report["lag"] for report in result.reports.values() if "lag" in report]
    return sum(lags) if lags else None


def metrics_of(engine: Engine) -> RunMetrics:
    """Return an engine's metrics as of now. O(tasks)."""
    queues = dict.fromkeys(engine.graph.components, (0, 0))
    for bolt in engine.bolts:
        queued, held = queues[bolt.name]
        queues[bolt.name] = queued + len(bolt.queue), held + len(bolt.held)
    for spout in engine.spouts:
        queued, held = queues[spout.name]
        queues[spout.name] = queued, held + spout.in_flight
    latencies = dict(engine.world.latencies.histogram)
    return RunMetrics(engine.graph.name, engine.result(), queues, engine.bounds, engine.stopping, latencies)
