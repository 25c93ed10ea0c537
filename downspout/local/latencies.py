"""How long tuple trees take, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from downspout.local.acker import Tree

SAMPLES_MAX = 20_000


class Latencies:
    """How long complete trees took: all of the first SAMPLES_MAX, then every second one, every fourth, …"""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._stride = 1

    def add(self, completed: Sequence[Tree], now: Callable[[], float]) -> None:
        """Take note of trees that are complete now."""
        if not completed:
            return
        end = now()
        self._samples.extend([end - tree.started for tree in completed[:: self._stride]])
        while len(self._samples) > SAMPLES_MAX:
            self._samples = self._samples[::2]
            self._stride *= 2

    def quantile_ms(self, q: float) -> float | None:
        """Return a quantile in milliseconds; None without any complete tree. O(samples · log)."""
        if not self._samples:
            return None
        ordered = sorted(self._samples)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000
