"""Liveness and readiness of a run, for Kubernetes.

=============  ============================================  =======================================================
probe          passes                                        fails
=============  ============================================  =======================================================
liveness       the event loop advances                       one call of a component has lasted ``run.stuck_s``; a
                                                             worker has not reported for that long; the supervisor
                                                             does not answer
readiness      every spout knows its partitions, and every   before that, during shutdown, and while it is not alive
               worker runs
=============  ============================================  =======================================================

A spout without partitions, because other members have them all, is ready. A component's start counts as a call. With
``run.stuck_s`` = 0, a run is always alive.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from downspout.formatting import lasting
from downspout.run.run_snapshots import Snapshot, Snapshots
from downspout.run.watchdog import Watchdog

WAIT_S = 0.5  # Longest wait for a snapshot; Kubernetes gives a probe one second


class Verdict(NamedTuple):
    """The answer to a probe."""

    good: bool
    text: str  # the reason


class Health:
    """Answers probes of one run."""

    def __init__(self, snapshots: Snapshots, *, stuck_s: float) -> None:
        self._snapshots = snapshots
        self._stuck_s = stuck_s  # as ``run.stuck_s``; 0: never
        self._watchdog: Watchdog | None = None

    def watch(self, watchdog: Watchdog) -> None:
        """Use this watchdog, if this process runs the topology itself."""
        self._watchdog = watchdog

    def alive(self) -> Verdict:
        """Return whether the run makes progress."""
        if self._watchdog is not None:
            hang = self._watchdog.hang(time.monotonic())
            return Verdict(not hang, hang or "ok")
        snapshot = self._snapshots.latest(WAIT_S)
        if snapshot is None:
            return Verdict(True, "starting")
        silent = self._silent(snapshot)
        return Verdict(not silent, silent or "ok")

    def ready(self) -> Verdict:
        """Return whether the run processes records."""
        snapshot = self._snapshots.latest(WAIT_S)
        if snapshot is None:
            return Verdict(False, "starting")
        why = _not_ready(snapshot)
        if why:
            return Verdict(False, why)
        alive = self.alive()
        return alive if not alive.good else Verdict(True, "ready")

    def _silent(self, snapshot: Snapshot) -> str:
        """Name the worker that does not report, or the supervisor if it does not answer."""
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
