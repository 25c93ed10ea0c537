"""Figures of a run for the last minute, the last ten minutes, and in total, as differences of counters.

Every second, a *sample* stores the counters of all components. A window's figures are the differences between the
latest sample and the one at the window's start. Latencies are counters too, one for each bucket of a histogram. Samples
are kept for each second of the last minute, and for every tenth second of the last ten minutes; the points of the
page's graphs (:class:`Point`) for an hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from downspout.engine.acker import quantile_ms
from downspout.engine.result import Counts
from downspout.metrics import METRICS
from downspout.run.run_snapshots import RunMetrics
from downspout.web.events import Events

WINDOWS: Mapping[str, float | None] = {"1m": 60.0, "10m": 600.0, "all": None}
"""The windows of the API, in seconds."""
FINE_S = 62.0
COARSE_STEP_S = 10.0
COARSE_S = 620.0
POINTS_MAX = 3_600
POINT_S = 20.0  # A point of a graph is a mean over this time: sinks flush every few seconds, and ack in bursts
COUNTED = tuple(field.name for field in fields(Counts) if field.name != "tasks")
COUNTERS = frozenset(metric.name for metric in METRICS.values() if metric.kind == "counter") - {*COUNTED}
RUN = ""  # The component name for counters of the whole run

Key = tuple[str, str]  # a component and the name of a counter


@dataclass(frozen=True)
class Sample:
    """All counters at one moment."""

    at_s: float  # seconds since the start of the run
    counters: Mapping[Key, float]
    latencies: Mapping[int, float]  # trees by bucket
    inside: Mapping[str, int]  # by component, tuples received and not acked
    ends: Mapping[str, int]  # log ends by partition


NOTHING = Sample(0.0, {}, {}, {}, {})


@dataclass(frozen=True)
class Point:
    """One point of the page's graphs."""

    wall_s: float
    done_per_s: float
    failed_per_s: float
    lag: float | None
    in_flight: int
    p50_ms: float | None
    p99_ms: float | None


class RateWindow:
    """The figures between two samples."""

    def __init__(self, begin: Sample, end: Sample, inside: Mapping[str, float]) -> None:
        self._begin, self._end = begin, end
        self.span_s = end.at_s - begin.at_s
        self.inside = inside  # by component, the mean number of tuples received and not acked

    def grown(self, component: str, name: str) -> float:
        """Return the increase of a counter."""
        key = (component, name)
        return max(0.0, self._end.counters.get(key, 0.0) - self._begin.counters.get(key, 0.0))

    def per_s(self, component: str, name: str) -> float:
        """Return the increase per second."""
        return self.grown(component, name) / self.span_s if self.span_s > 0 else 0.0

    def latency_ms(self, *quantiles: float) -> list[float | None]:
        """Return quantiles of the complete latency, exact to 1 %; None if no tree was completed."""
        before = self._begin.latencies
        grown = {
            bucket: more
            for bucket, count in self._end.latencies.items()
            if (more := count - before.get(bucket, 0.0)) > 0
        }
        return [quantile_ms(grown, q) for q in quantiles]


class History:
    """The samples of a run, its points (means over ``point_s``), and its events."""

    def __init__(self, point_s: float = POINT_S) -> None:
        self._point_s = point_s
        self._begin = NOTHING
        self._fine: deque[Sample] = deque()
        self._coarse: deque[Sample] = deque()
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)
        self.events = Events()
        self.latest: RunMetrics | None = None
        self.wall_s = 0.0

    def add(self, wall_s: float, metrics: RunMetrics) -> None:
        """Add a run's metrics. O(counters + partitions)."""
        sample = sample_of(metrics)
        self._fine.append(sample)
        if not self._coarse or sample.at_s - self._coarse[-1].at_s >= COARSE_STEP_S:
            self._coarse.append(sample)
        _drop(self._fine, sample.at_s - FINE_S)
        _drop(self._coarse, sample.at_s - COARSE_S)
        self.events.look(wall_s, metrics)
        self.latest, self.wall_s = metrics, wall_s
        self.points.append(self._point(wall_s, metrics))

    def window(self, seconds: float | None) -> RateWindow:
        """Return the figures for the last ``seconds``; in a younger run, or for None, since its start."""
        if not self._fine:
            return RateWindow(NOTHING, NOTHING, {})
        end = self._fine[-1]
        begin = NOTHING if seconds is None else self._begin
        if seconds is not None and end.at_s > seconds:
            at_most = end.at_s - seconds
            begin = next((one for one in reversed(self._fine) if one.at_s <= at_most), None) or next(
                (one for one in reversed(self._coarse) if one.at_s <= at_most), self._begin
            )
        inside = [one.inside for one in self.samples() if one.at_s >= begin.at_s]
        means = {name: sum(one.get(name, 0) for one in inside) / len(inside) for name in end.inside}
        return RateWindow(begin, end, means)

    @property
    def known_s(self) -> float:
        """The time that the samples cover."""
        samples = list(self.samples())
        return samples[-1].at_s - samples[0].at_s if samples else 0.0

    def behind_s(self, place: str, committed: int | None) -> float | None:
        """Return how long the partition's log has extended beyond the commit; None: longer than the samples."""
        if not self._fine or committed is None:
            return None
        now = self._fine[-1]
        if now.ends.get(place, 0) <= committed:
            return 0.0
        reached = [one.at_s for one in self.samples() if place in one.ends and one.ends[place] <= committed]
        return now.at_s - max(reached) if reached else None

    def samples(self) -> Iterator[Sample]:
        """Yield the samples, oldest first: coarse ones, then fine ones."""
        first = self._fine[0].at_s if self._fine else 0.0
        yield from (one for one in self._coarse if one.at_s < first)
        yield from self._fine

    def _point(self, wall_s: float, metrics: RunMetrics) -> Point:
        window = self.window(self._point_s)
        done, failed = window.per_s(RUN, "completed"), window.per_s(RUN, "failed")
        return Point(wall_s, done, failed, metrics.lag, metrics.result.in_flight, *window.latency_ms(0.5, 0.99))


def _drop(samples: deque[Sample], before_s: float) -> None:
    """Drop the samples before a moment, except the last of them, at which a window may begin."""
    while len(samples) > 1 and samples[1].at_s <= before_s:
        samples.popleft()


def sample_of(metrics: RunMetrics) -> Sample:
    """Return the counters of a run's metrics."""
    result = metrics.result
    counters: dict[Key, float] = {
        (RUN, "completed"): result.completed,
        (RUN, "failed"): result.failed,
        (RUN, "timeouts"): result.timeouts,
    }
    for name, counts in result.components.items():
        counters |= {(name, each): getattr(counts, each) for each in COUNTED}
    for name, report in result.reports.items():
        counters |= {(name, each): value for each, value in report.items() if each in COUNTERS}
    inside = {name: max(0, held - queued) for name, (queued, held) in metrics.queues.items()}
    ends = {
        place: end
        for partitions in result.partitions.values()
        for place, figures in partitions.items()
        if (end := figures.get("end")) is not None  # a user's spout may report other figures
    }
    return Sample(result.duration_s, counters, metrics.latencies, inside, ends)
