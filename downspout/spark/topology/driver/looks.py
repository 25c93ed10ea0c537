"""A query that is under way, for other threads to look at: its page."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from downspout.clock import SYSTEM_CLOCK
from downspout.engine.result import RunResult
from downspout.errors import coordinates
from downspout.spark.commits import ends_of, lag_of
from downspout.spark.listening import LatestProgress
from downspout.spark.topology.driver.batches import Batches, CommittedBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECENT = 100  # Batches that are kept to be shown

Partitions = dict[str, dict[str, dict[str, int | None]]]  # figures by spout and partition


@dataclass(frozen=True)
class Look:
    """A query as of one moment."""

    result: RunResult  # of the batches that are committed
    batches: Sequence[CommittedBatch]  # the last of them, the latest first
    computed_again: int
    cores: int  # tasks that run at a time
    stopping: bool
    partitions: Partitions  # offsets, as of the last batch that Spark has reported


class Looks:
    """Keeps what there is to see of a query; ``sum_up`` is called where batches are added up, and nowhere else."""

    def __init__(self, name: str, batches: Batches, sum_up: Callable[[], RunResult]) -> None:
        self._name, self._batches, self._sum_up = name, batches, sum_up
        self._begun_s = 0.0
        self._cores = 1
        self._recent: deque[CommittedBatch] = deque(maxlen=RECENT)
        self._so_far: RunResult | None = None
        self._progress: LatestProgress | None = None

    @contextlib.contextmanager
    def listening(self, session: SparkSession) -> Iterator[None]:
        """Hear of the query's progress; from now on there is something to see."""
        self._so_far, self._cores = self._sum_up(), session.sparkContext.defaultParallelism
        self._begun_s = SYSTEM_CLOCK.monotonic() - self._so_far.duration_s
        self._progress = LatestProgress(session, self._name)
        try:
            yield
        finally:
            self._progress.close()

    def note(self, batch: CommittedBatch) -> None:
        """Take a batch, in the thread that adds batches up."""
        self._so_far = self._sum_up()
        self._recent.appendleft(batch)

    def latest(self) -> Look | None:
        """Return where the query is; None before it has begun. For other threads."""
        if self._progress is None or self._so_far is None:
            return None
        result = replace(self._so_far, duration_s=SYSTEM_CLOCK.monotonic() - self._begun_s)
        batches, progress = self._batches, self._progress.latest
        partitions = partitions_of(progress, batches.spout_of) if progress is not None else {}
        recent = tuple(self._recent.copy())
        return Look(result, recent, batches.totals.again, self._cores, batches.stopping, partitions)


def partitions_of(progress: Mapping[str, Any], spout_of: Callable[[str], str]) -> Partitions:
    """Return the offsets in a query's progress, as JSON has it; what a source does not report is None."""
    found: Partitions = {}
    lags = lag_of(progress)
    for tp, end in sorted(ends_of(progress).items()):
        lag = lags.get(tp)
        figures = {"committed": end, "end": None if lag is None else end + lag, "lag": lag}
        found.setdefault(spout_of(tp.topic), {})[coordinates(tp.topic, tp.partition)] = figures
    return found
