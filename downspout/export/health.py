"""Whether a run is alive, and whether it is ready: what Kubernetes asks.

=============  ============================================  =======================================================
it asks        yes                                           no
=============  ============================================  =======================================================
is it alive    the loop turns                                one call of a component has lasted ``run.stuck_s``; a
                                                             worker has not reported for so long; the supervisor does
                                                             not answer
is it ready    every spout knows its partitions, and every   before that, while it ends, and while it is not alive
               worker runs
=============  ============================================  =======================================================

A member of a group that has no partition, because others have them all, is ready. What a component waits for at its
start counts as a call too. ``run.stuck_s`` = 0: it is always alive.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from downspout.formatting import lasting
from downspout.run.run_snapshots import Snapshot, Snapshots
from downspout.run.watchdog import Watchdog

WAIT_S = 0.5  # How long an answer is waited for; Kubernetes gives a probe one second


class Verdict(NamedTuple):
    """An answer."""

    good: bool
    text: str  # why; for people


class Health:
    """Answers for one run."""

    def __init__(self, snapshots: Snapshots, *, stuck_s: float) -> None:
        self._snapshots = snapshots
        self._stuck_s = stuck_s  # as ``run.stuck_s``; 0: never
        self._watchdog: Watchdog | None = None

    def watch(self, watchdog: Watchdog) -> None:
        """Learn from what watches the loop, where this process runs the topology itself."""
        self._watchdog = watchdog

    def alive(self) -> Verdict:
        """Return whether the run gets on."""
        if self._watchdog is not None:
            hang = self._watchdog.hang(time.monotonic())
            return Verdict(not hang, hang or "ok")
        snapshot = self._snapshots.latest(WAIT_S)
        if snapshot is None:
            return Verdict(True, "starting")
        silent = self._silent(snapshot)
        return Verdict(not silent, silent or "ok")

    def ready(self) -> Verdict:
        """Return whether the run does its work."""
        snapshot = self._snapshots.latest(WAIT_S)
        if snapshot is None:
            return Verdict(False, "starting")
        why = _not_ready(snapshot)
        if why:
            return Verdict(False, why)
        alive = self.alive()
        return alive if not alive.good else Verdict(True, "ready")

    def _silent(self, snapshot: Snapshot) -> str:
        """Return which worker does not report, or that the supervisor does not answer."""
        if not self._stuck_s:
            return ""
        if snapshot.age_s >= self._stuck_s:
            return f"the supervisor has not answered for {lasting(snapshot.age_s)}"
        for worker in snapshot.metrics.result.workers:
            if worker.silent_s is not None and worker.silent_s >= self._stuck_s:
                return f"worker {worker.number} (pid {worker.pid}) has not reported for {lasting(worker.silent_s)}"
        return ""


def _not_ready(snapshot: Snapshot) -> str:
    metrics = snapshot.metrics
    if metrics.stopping:
        return "the run ends"
    for worker in metrics.result.workers:
        if worker.state != "running":
            return f"worker {worker.number} is {worker.state}"
    for task in metrics.result.tasks:
        if task.values.get("assigned") == 0:
            where = "" if task.worker is None else f" of worker {task.worker}"
            return f"{task.component}[task {task.task}]{where} does not know its partitions yet"
    return ""
