"""The worker's side: a run like any other, whose metrics go to the supervisor.

If its supervisor has died (kill -9), nothing else would stop a worker. It sees the channel close, and ends in order as
if it had got SIGTERM; if that takes too long, it kills itself. (PR_SET_PDEATHSIG would be Linux alone, and
comes when the *thread* that started the worker ends.)
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from downspout.engine.load import load
from downspout.engine.loop import Bounds, Engine
from downspout.engine.result import RunResult
from downspout.errors import DownspoutError
from downspout.run import runner
from downspout.run.metrics import metrics_of
from downspout.run.workers.channel import Report, Uplink, read_job

EVERY_S = 0.5  # Time between reports
ORPHAN_S = 10.0  # How long beyond ``run.drain_s`` an orphan may take to end
ORPHANED = 143


class Reporter:
    """The view of a worker's run: it reports to the supervisor."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._due = float("-inf")
        self._engine: Engine | None = None

    def update(self, engine: Engine) -> None:
        """Send the metrics where it is time."""
        self._engine = engine
        now = engine.clock.monotonic()
        if now >= self._due:
            self._due = now + EVERY_S
            self._uplink.report(self._report(engine))

    def finish(self, result: RunResult | None, error: DownspoutError | None = None) -> None:
        """Send the last metrics; of a run without a result, those as of now."""
        if self._engine is None and result is None:
            self._uplink.finish(None, error)
        elif self._engine is None:
            assert result is not None
            self._uplink.finish(Report(result, is_last=True), error)
        else:
            self._uplink.finish(self._report(self._engine, result, is_last=error is None), error)

    @staticmethod
    def _report(engine: Engine, result: RunResult | None = None, is_last: bool = False) -> Report:
        metrics = metrics_of(engine)
        sketch = engine.world.latencies.sketch()
        return Report(result or metrics.result, metrics.queues, sketch, metrics.latencies, engine.stopping, is_last)


def serve(descriptor: int, exit_code: Callable[[RunResult], int]) -> int:
    """Run as a worker; return the exit code."""
    os.set_inheritable(descriptor, False)  # what a bolt starts must not keep the channel open
    end = socket.socket(fileno=descriptor)
    job = read_job(end)
    if job is None:
        return ORPHANED
    bounds = Bounds(**job.bounds)
    threading.Thread(target=_watch, args=(end, bounds.drain_s + ORPHAN_S), daemon=True).start()
    reporter = Reporter(Uplink(end))
    try:
        graph = load(job.target, job.topology)
        result = runner.run(
            graph, overrides=job.overrides, options=job.options, view=reporter, bounds=bounds, supervised=True
        )
    except DownspoutError as error:
        reporter.finish(None, error)
        return error.exit_code
    reporter.finish(result)
    return exit_code(result)


def _watch(end: socket.socket, seconds: float) -> None:
    """Wait until the supervisor is gone, then end this process in order; after some time, kill it."""
    try:
        while end.recv(1):
            continue
    except OSError:  # reset
        pass
    # Nothing reads our standard error now: a write into the pipe would raise in the component that writes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
