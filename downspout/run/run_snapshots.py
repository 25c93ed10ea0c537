"""The metrics of a run that is under way, for other threads: a scrape, a page.

Only the thread that runs a topology may look at its tasks. So another thread asks, and the run answers at its next look
(a busy one within a quarter of a second, an idle one within ten milliseconds). While one call of a component keeps the
loop there is no answer: then the last one is given, with its age. A run that is not asked takes no metrics at all.
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

ANSWER_S = 2.0  # How long an answer is waited for


@dataclass(frozen=True)
class Snapshot:
    """The metrics of a run, and how old they are."""

    metrics: RunMetrics
    age_s: float


class MetricsView(Protocol):
    """A view of a run in this process, and of one in several."""

    def update(self, engine: Engine) -> None:
        """Look at an engine."""

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Look at metrics where it is time; only then take them."""


class Several:
    """Several views as one."""

    def __init__(self, *views: MetricsView | None) -> None:
        self._views = [view for view in views if view is not None]

    def update(self, engine: Engine) -> None:
        """Look at an engine."""
        for view in self._views:
            view.update(engine)

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Look at metrics where it is time."""
        for view in self._views:
            view.look(now, take)


class Snapshots:
    """A view of a run, which other threads may ask."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._answered = threading.Condition()
        self._is_asked = True  # One is taken in any case, so that there is something to give
        self._answers = 0
        self._last: tuple[RunMetrics, float] | None = None
        self._is_closed = False
        self._take: Callable[[], RunMetrics] | None = None

    # --- for the thread that runs ---

    def update(self, engine: Engine) -> None:
        """Answer, where another thread has asked."""
        self.look(engine.clock.monotonic(), lambda: metrics_of(engine))

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Answer, where another thread has asked; only then take metrics."""
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
        """The run has ended, in this thread: let the last answer be how it ended."""
        if self._take is not None:
            self._answer(self._take())
        self.close()

    def close(self) -> None:
        """Nothing answers any more: threads that wait get the last answer."""
        with self._answered:
            self._is_closed = True
            self._answered.notify_all()

    # --- for others ---

    def latest(self, wait_s: float = ANSWER_S) -> Snapshot | None:
        """Ask, and return the answer; the one before where none comes in time. None: the run has not begun.

        Args:
            wait_s: how long to wait.
        """
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
    """What a run has done so far."""

    name: str  # of the topology
    result: RunResult  # what would be its outcome if it ended now
    # by component, tuples that wait for it, and tuples (of a spout: trees) that it holds
    queues: Mapping[str, tuple[int, int]]
    bounds: Bounds  # when the run stops
    stopping: bool  # whether it is on its way out
    # by bucket (``downspout.engine.acker``), how many trees took so long since the start
    latencies: Mapping[int, float] = field(default_factory=dict)

    def gauge(self, name: str) -> float:
        """Return the sum of a gauge over the spouts."""
        return sum(self.result.reports.get(spout, {}).get(name, 0) for spout in self.result.spouts)

    @property
    def dead_letters(self) -> int:
        """Dead letters that were written so far, by spouts and bolts."""
        return int(sum(report.get("dead_lettered", 0) for report in self.result.reports.values()))

    @property
    def resolved(self) -> int:
        """Records that need no more work: processed, or dead-lettered by a spout."""
        return self.result.completed + int(self.gauge("dead_lettered"))

    @property
    def lag(self) -> float | None:
        """Records that are not committed, by the spouts' groups or in batches; None where nothing knows."""
        return lag_of(self.result)

    @property
    def in_batches(self) -> bool:
        """Whether a tree of tuples is a batch of many records."""
        return any("batch_txid" in report for report in self.result.reports.values())


def lag_of(result: RunResult) -> float | None:
    """Return the records that are not committed; None where no component knows."""
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
