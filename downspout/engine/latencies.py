"""How long tuple trees take, in bounded memory."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from downspout.engine.acker import Tree

SAMPLES_MAX = 20_000
SKETCH = 200  # The number of equal shares into which a sketch divides what was measured


@dataclass(frozen=True)
class Sketch:
    """Latencies in few numbers, which can be sent and added up."""

    count: int  # how many trees were measured, or stand for others
    values: Sequence[float]  # seconds in ascending order, each for an equal share of the trees


def quantile_ms(sketches: Sequence[Sketch], q: float) -> float | None:
    """Return a quantile over several sketches, in milliseconds, right to 1/SKETCH of the trees; None without any.

    >>> quantile_ms([Sketch(30, [0.001, 0.002, 0.003]), Sketch(10, [0.5])], 0.5)
    3.0
    """
    found = _quantiles(sketches, [q])
    return found[0] * 1000 if found else None


def joined(sketches: Sequence[Sketch]) -> Sketch:
    """Return one sketch for several, of the same size."""
    return Sketch(sum(each.count for each in sketches), _quantiles(sketches, _MIDDLES))


_MIDDLES = [(2 * share + 1) / (2 * SKETCH) for share in range(SKETCH)]


def _quantiles(sketches: Sequence[Sketch], wanted: Sequence[float]) -> list[float]:
    weighted = sorted((value, each.count / len(each.values)) for each in sketches for value in each.values)
    if not weighted:
        return []
    reached = list(itertools.accumulate(weight for _, weight in weighted))
    places = (bisect.bisect_right(reached, q * reached[-1]) for q in wanted)
    return [weighted[min(len(weighted) - 1, place)][0] for place in places]


GROWTH = 1.02  # Each bucket of a histogram is this much wider than the one below
_PER_E_FOLD = 1 / math.log(GROWTH)
SHORTEST_S = 1e-6


def bucket_of(seconds: float) -> int:
    """Return the number of a latency's bucket in a histogram."""
    return int(math.log(max(seconds, SHORTEST_S)) * _PER_E_FOLD // 1)


def bucket_quantile_ms(histogram: Mapping[int, float], q: float) -> float | None:
    """Return a quantile of a histogram in milliseconds, right to 1 %; None if it is empty. O(buckets · log).

    >>> [round(bucket_quantile_ms({bucket_of(0.010): 98.0, bucket_of(2.0): 2.0}, q)) for q in (0.5, 0.99)]
    [10, 2020]
    """
    reached, total = 0.0, sum(histogram.values())
    for bucket in sorted(histogram):
        reached += histogram[bucket]
        if reached > q * total:
            return float(GROWTH ** (bucket + 0.5) * 1000)
    return None


class Latencies:
    """How long complete trees took: all of the first SAMPLES_MAX, then every second one, every fourth, …"""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._ordered: list[float] | None = None
        self._stride = 1
        self.histogram: dict[int, float] = {}
        """By bucket, how many trees took so long, since the start: what is between two moments is a difference."""

    def add(self, completed: Sequence[Tree], now: Callable[[], float]) -> None:
        """Take note of trees that are complete now."""
        if not completed:
            return
        end = now()
        self._ordered = None
        samples = [end - tree.started for tree in completed[:: self._stride]]
        self._samples.extend(samples)
        self._count(samples, len(completed) / len(samples))
        while len(self._samples) > SAMPLES_MAX:
            self._samples = self._samples[::2]
            self._stride *= 2

    def _count(self, samples: Sequence[float], weight: float) -> None:
        """Enter samples, each of which stands for ``weight`` trees."""
        histogram = self.histogram
        for sample in samples:
            bucket = bucket_of(sample)
            histogram[bucket] = histogram.get(bucket, 0.0) + weight

    def quantile_ms(self, q: float) -> float | None:
        """Return a quantile in milliseconds; None without any complete tree. O(samples · log)."""
        ordered = self._in_order()
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000 if ordered else None

    def sketch(self) -> Sketch:
        """Return the middle of each of SKETCH equal shares; all that was measured where that is less."""
        ordered = self._in_order()
        count = len(ordered)
        values = ordered if count <= SKETCH else [ordered[int(q * count)] for q in _MIDDLES]
        return Sketch(count * self._stride, values)

    def _in_order(self) -> list[float]:
        if self._ordered is None:
            self._ordered = sorted(self._samples)
        return self._ordered
