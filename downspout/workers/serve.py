"""The worker's side: a run like any other, whose figures go to the supervisor.

A worker whose supervisor has died (kill -9) has nobody who would stop it. It sees the channel close, and ends in order
by itself, as if it were sent SIGTERM; if that takes too long, at all costs. (PR_SET_PDEATHSIG would be Linux alone, and
comes when the *thread* that started the worker ends.)
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from downspout.errors import DownspoutError
from downspout.local import runner
from downspout.local.engine import Bounds, Engine
from downspout.local.figures import figures_of
from downspout.local.load import load
from downspout.local.result import RunResult
from downspout.workers.channel import Report, Uplink, read_job

__all__ = ["EVERY_S", "serve"]

EVERY_S = 0.5
"""Time between reports."""
ORPHAN_S = 10.0
"""How long beyond ``run.drain_s`` an orphan may take to end."""
ORPHANED = 143


class Reporter:
    """The view of a worker's run: it tells the supervisor."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._due = float("-inf")
        self._engine: Engine | None = None

    def update(self, engine: Engine) -> None:
        """Send the figures where it is time."""
        self._engine = engine
        now = engine.clock.monotonic()
        if now >= self._due:
            self._due = now + EVERY_S
            self._uplink.report(self._report(engine))

    def finish(self, result: RunResult | None, error: DownspoutError | None = None) -> None:
        """Send the last figures; of a run without a result, those as of now."""
        if self._engine is None and result is None:
            self._uplink.finish(None, error)
        elif self._engine is None:
            assert result is not None
            self._uplink.finish(Report(result, is_last=True), error)
        else:
            self._uplink.finish(self._report(self._engine, result, is_last=error is None), error)

    @staticmethod
    def _report(engine: Engine, result: RunResult | None = None, is_last: bool = False) -> Report:
        figures = figures_of(engine)
        return Report(
            result or figures.result, figures.queues, engine.world.latencies.sketch(), engine.stopping, is_last
        )


def serve(descriptor: int, exit_code: Callable[[RunResult], int]) -> int:
    """Run as a worker; return the exit code.

    Args:
        descriptor: the worker's end of the channel.
        exit_code: how a run that has ended in order counts.
    """
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
        result = runner.run(graph, overrides=job.overrides, options=job.options, view=reporter, bounds=bounds)
    except DownspoutError as error:
        reporter.finish(None, error)
        return error.exit_code
    reporter.finish(result)
    return exit_code(result)


def _watch(end: socket.socket, seconds: float) -> None:
    """Wait until the supervisor is gone, then end this process in order; after some time, however it can be ended."""
    try:
        while end.recv(1):
            continue
    except OSError:  # reset
        pass
    # Nobody reads what we say now: a write into the pipe would be an error in whoever writes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
