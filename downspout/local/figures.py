"""A run as of one moment, as the live view shows it: of one process, or of several added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from downspout.local.result import RunResult

if TYPE_CHECKING:
    from downspout.local.engine import Bounds, Engine

__all__ = ["Figures", "figures_of"]


@dataclass(frozen=True)
class Figures:
    """What a run has done so far.

    Attributes:
        name: of the topology.
        result: what would be its outcome if it ended now.
        queues: by component, tuples that wait for it, and tuples (of a spout: trees) that it holds.
        bounds: when the run stops.
        stopping: whether it is on its way out.
    """

    name: str
    result: RunResult
    queues: Mapping[str, tuple[int, int]]
    bounds: Bounds
    stopping: bool

    @property
    def lag(self) -> float | None:
        """Records that the spouts' groups have not committed; None where no spout knows."""
        reports = (self.result.reports.get(spout, {}) for spout in self.result.spouts)
        lags = [report["lag"] for report in reports if "lag" in report]
        return sum(lags) if lags else None


def figures_of(engine: Engine) -> Figures:
    """Return an engine's figures as of now. O(tasks), and O(samples · log) for the latencies."""
    queues = dict.fromkeys(engine.graph.components, (0, 0))
    for bolt in engine.bolts:
        queued, held = queues[bolt.name]
        queues[bolt.name] = queued + len(bolt.queue), held + len(bolt.held)
    for spout in engine.spouts:
        queued, held = queues[spout.name]
        queues[spout.name] = queued, held + spout.in_flight
    return Figures(engine.graph.name, engine.result(), queues, engine.bounds, engine.stopping)
