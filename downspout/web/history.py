"""What a run did in the last minute, in the last ten, and in all: differences of counters.

Every second there is a *sample*: the counters of all components as of then. What happened in a window is the difference
between now and the sample at its begin, so nothing is counted twice and nothing has to be measured anew. The latencies
are counters too, one for each bucket of a histogram. Samples are kept by the second for a minute, and every ten seconds
for ten; the curves of the page (:class:`Point`) for an hour.
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
POINT_S = 20.0  # A point of the curves is the mean of so long: sinks flush every few seconds, and ack in bursts
COUNTED = tuple(field.name for field in fields(Counts) if field.name != "tasks")
COUNTERS = frozenset(metric.name for metric in METRICS.values() if metric.kind == "counter") - {*COUNTED}
RUN = ""  # The component under which the counters of the run as a whole are kept

Key = tuple[str, str]  # a component and the name of a counter


@dataclass(frozen=True)
class Sample:
    """All counters as of one moment."""

    at_s: float  # seconds since the start of the run
    counters: Mapping[Key, float]
    latencies: Mapping[int, float]  # trees by bucket
    inside: Mapping[str, int]  # by component, tuples that it has taken and not acked
    ends: Mapping[str, int]  # by partition, the end of its log


NOTHING = Sample(0.0, {}, {}, {}, {})


@dataclass(frozen=True)
class Point:
    """One point of the page's curves."""

    wall_s: float
    done_per_s: float
    failed_per_s: float
    lag: float | None
    in_flight: int
    p50_ms: float | None
    p99_ms: float | None


class RateWindow:
    """What happened between two samples."""

    def __init__(self, begin: Sample, end: Sample, inside: Mapping[str, float]) -> None:
        self._begin, self._end = begin, end
        self.span_s = end.at_s - begin.at_s
        self.inside = inside  # by component, the mean number of tuples that it had taken and not acked

    def grown(self, component: str, name: str) -> float:
        """Return how much a counter grew."""
        key = (component, name)
        return max(0.0, self._end.counters.get(key, 0.0) - self._begin.counters.get(key, 0.0))

    def per_s(self, component: str, name: str) -> float:
        """Return how much it grew per second."""
        return self.grown(component, name) / self.span_s if self.span_s > 0 else 0.0

    def latency_ms(self, *quantiles: float) -> list[float | None]:
        """Return quantiles of the complete latency, right to 1 %; None where no tree was completed."""
        before = self._begin.latencies
        grown = {
            bucket: more
            for bucket, count in self._end.latencies.items()
            if (more := count - before.get(bucket, 0.0)) > 0
        }
        return [quantile_ms(grown, q) for q in quantiles]


class History:
    """The samples of a run, its points, and its events.

    ``point_s`` is what a point is the mean of.
    """

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
        """Take a run's metrics. O(counters + partitions)."""
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
        """Return what happened in the last seconds; in a younger run, or for None, since its start."""
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
        """How far the samples reach back."""
        samples = list(self.samples())
        return samples[-1].at_s - samples[0].at_s if samples else 0.0

    def behind_s(self, place: str, committed: int | None) -> float | None:
        """Return for how long the log of a partition has gone beyond what is committed; None: longer than we know."""
        if not self._fine or committed is None:
            return None
        now = self._fine[-1]
        if now.ends.get(place, 0) <= committed:
            return 0.0
        reached = [one.at_s for one in self.samples() if place in one.ends and one.ends[place] <= committed]
        return now.at_s - max(reached) if reached else None

    def samples(self) -> Iterator[Sample]:
        """Yield what is kept, the oldest first: the fine samples, and before them the coarse ones."""
        first = self._fine[0].at_s if self._fine else 0.0
        yield from (one for one in self._coarse if one.at_s < first)
        yield from self._fine

    def _point(self, wall_s: float, metrics: RunMetrics) -> Point:
        window = self.window(self._point_s)
        done, failed = window.per_s(RUN, "completed"), window.per_s(RUN, "failed")
        return Point(wall_s, done, failed, metrics.lag, metrics.result.in_flight, *window.latency_ms(0.5, 0.99))


def _drop(samples: deque[Sample], before_s: float) -> None:
    """Drop the samples before a moment, except the last of them: a window may begin there."""
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
        if (end := figures.get("end")) is not None  # a spout of the user's may report what it likes
    }
    return Sample(result.duration_s, counters, metrics.latencies, inside, ends)
