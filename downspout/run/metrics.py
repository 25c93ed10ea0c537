"""A run as of one moment, as the live view shows it: of one process, or of several added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from downspout.engine.result import RunResult

if TYPE_CHECKING:
    from downspout.engine.loop import Bounds, Engine


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
    """Return an engine's metrics as of now. O(tasks), and O(samples · log) for the latencies."""
    queues = dict.fromkeys(engine.graph.components, (0, 0))
    for bolt in engine.bolts:
        queued, held = queues[bolt.name]
        queues[bolt.name] = queued + len(bolt.queue), held + len(bolt.held)
    for spout in engine.spouts:
        queued, held = queues[spout.name]
        queues[spout.name] = queued, held + spout.in_flight
    latencies = dict(engine.world.latencies.histogram)
    return RunMetrics(engine.graph.name, engine.result(), queues, engine.bounds, engine.stopping, latencies)
