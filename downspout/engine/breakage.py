"""Is the bolt broken, or are some of its records bad?

A bad record is retried and dead-lettered by its spout, and the run goes on. A broken bolt fails on every record: then
the run stops, because the user should see the bug, and because each tuple without an id would be lost. The two are
told apart for a whole component, since a retry may go to any of its tasks:

* Only *first attempts* count. A tuple is a first attempt if this component has not raised on its spout tuple before.
  Retries prove nothing: a bad record fails each time. Nor does a record that an earlier run left behind while later
  ones got through. Tuples are identified by their spout tuple, never by their value; one that belongs to no tree
  comes once.
* A first attempt that got through ends a row of failures.
* The component is broken if it raised on more than ROW_MAX first attempts in a row.
* It is also broken if it has processed nothing yet, raised on more than ``run.restarts_max`` first attempts whose
  spout does not give up by itself, and no tuple is queued that could prove the contrary. A spout that retries a record
  until it gives up (ours dead-letters it, under a circuit breaker) decides by itself: there may be nothing but bad
  records at the start of a topic, on a quiet day, or in the partitions of one worker.

A chunk of several records proves nothing: it is retried in halves until the culprit is alone. What a bolt processes in
batches or at ticks is counted in a row of its own, which an ack ends: taking a tuple into a batch proves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

from downspout.clock import Clock
from downspout.engine.acker import Forest, Root, Tree, trees_of, will_be_retried
from downspout.formatting import counted

ROW_MAX = 100
"""First attempts in a row that a bolt which has worked before may raise on: a bad batch of a producer is shorter."""
TRIED_MAX = 100_000
"""Spout tuples that are remembered; with one more, the oldest is forgotten, and its retry counts as a first attempt."""
REPORT_EVERY_S = 60.0


@dataclass(slots=True)
class _Row:
    """First attempts that failed, with nothing in between that got through."""

    length: int = 0
    unjudged: int = 0  # Those of them whose spout does not give up by itself
    good: int = 0

    def add(self, good: int, is_first: bool, is_unjudged: bool) -> None:
        if good > self.good:
            self.good, self.length, self.unjudged = good, 0, 0
        self.length += is_first
        self.unjudged += is_unjudged


class Judged(Protocol):
    """What is looked at of a task of the component."""

    acked: int
    executed: int
    raised: int

    @property
    def queue(self) -> Sized:
        """Tuples that wait for it."""


class Breakage:
    """Decides whether one component of a run is broken, over all of its tasks, and reports its restarts.

    The first restart is logged at once; then, once a minute, how many there were.
    """

    def __init__(self, name: str, restarts_max: int, clock: Clock, log: logging.Logger) -> None:
        self._name = name
        self._restarts_max = restarts_max
        self._clock = clock
        self._log = log
        self._reported_at: float | None = None
        self._unreported = 0
        self._tasks: list[Judged] = []
        self._rows = {False: _Row(), True: _Row()}
        self._tried: dict[tuple[Forest, Any], float] = {}

    def add(self, task: Judged) -> None:
        """Take in a task of the component."""
        self._tasks.append(task)

    def raised(self, roots: Sequence[Root | None], *, in_batch: bool) -> int:
        """Take note that a task raised; return on how many first attempts in a row, if the bolt is broken, else 0.

        Args:
            roots: of each tuple at hand, the trees that it belongs to.
            in_batch: whether it was at a tick, a timer or a drain, and not while processing these tuples.
        """
        now = self._clock.monotonic()
        firsts = [self._is_first(root, now) for root in roots]
        row = self._rows[in_batch]
        good = sum(task.acked if in_batch else task.executed - task.raised for task in self._tasks)
        judged = [root is not None and will_be_retried(root) for root in roots]
        unjudged = [first and not by_spout for first, by_spout in zip(firsts, judged, strict=True)]
        row.add(good, any(firsts) or not roots, any(unjudged) or not roots)
        if row.length > ROW_MAX:
            return row.length
        may_be_sound = row.good or any(task.queue for task in self._tasks)
        return row.length if row.unjudged > self._restarts_max and not may_be_sound else 0

    def restarted(self, place: str) -> None:
        """Report that a task was restarted."""
        now = self._clock.monotonic()
        if self._reported_at is None:
            self._log.warning("%s is restarted; further restarts of %s are reported once a minute", place, self._name)
            self._reported_at = now
            return
        self._unreported += 1
        if now - self._reported_at >= REPORT_EVERY_S:
            self._log.warning("%s was restarted again, %s", self._name, counted(self._unreported, "time"))
            self._reported_at, self._unreported = now, 0

    def _is_first(self, root: Root | None, now: float) -> bool:
        """Return whether a tuple of these trees is a first attempt, and remember that the bolt raised on it."""
        trees = () if root is None else trees_of(root)
        firsts = [self._is_first_of(tree, now) for tree in trees]  # each of them is remembered
        return all(firsts)

    def _is_first_of(self, tree: Tree, now: float) -> bool:
        if tree.closed:  # another tuple of it failed before
            return False
        key = (tree.forest, tree.msg_id if _is_hashable(tree.msg_id) else repr(tree.msg_id))
        before = self._tried.get(key)
        if before is None:
            if len(self._tried) >= TRIED_MAX:
                del self._tried[next(iter(self._tried))]
            self._tried[key] = now
        # Where a spout gives many tuples one id, those that were out at the first failure are none of its retries.
        is_retry = before is not None and tree.started > before
        return not is_retry and not tree.forest.was_tried(tree.msg_id)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
