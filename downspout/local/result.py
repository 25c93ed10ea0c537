"""What came of a run: why it stopped, what each component did, and how long trees took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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


@dataclass
class Counts:
    """What one component did, over all of its tasks."""

    tasks: int = 0
    emitted: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    errors: int = 0
    restarts: int = 0


@dataclass
class RunResult:
    """The outcome of a run.

    Attributes:
        reason: ``end``, ``for``, ``records``, ``signal`` (stopped and drained) or ``aborted`` (stopped at once).
        drained: whether nothing was left in flight.
        duration_s: seconds from activation to the last close.
        components: by name.
        completed: trees that were acked whole (and spout tuples without an id).
        failed: trees that failed, timeouts among them.
        timeouts: trees that timed out.
        in_flight: trees that were open at the end.
        latency_p50_ms: median time from a spout's emit to its ack.
        latency_p99_ms: the same, 99th percentile.
        errors: one line per kind of error.
        reports: the components' own figures, by component; those of several tasks are added.
        metrics: what components gave to ``report_metric``, by task.
        signal: the number of the signal that stopped the run.
    """

    reason: str
    drained: bool
    duration_s: float
    components: Mapping[str, Counts]
    completed: int
    failed: int
    timeouts: int
    in_flight: int
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    errors: list[str] = field(default_factory=list)
    reports: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    signal: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)
