"""A run in several processes as the command line does it: plan, workers, signals."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import asdict, replace

from downspout.local import runner
from downspout.local.graph import Graph
from downspout.local.result import RunResult
from downspout.local.settings import Settings
from downspout.workers.channel import Job
from downspout.workers.plan import make_plan
from downspout.workers.process import Process, Worker
from downspout.workers.supervisor import Supervisor, View

__all__ = ["supervise"]

_LINE = threading.Lock()


def supervise(graph: Graph, settings: Settings, job: Job, *, view: View | None, quiet: bool) -> RunResult:
    """Run a topology in ``run.workers`` processes until it ends, is stopped, or fails.

    Args:
        graph: the topology.
        settings: its values.
        job: how workers find both again; what is each worker's own is added here.
        view: shows the run.
        quiet: workers log warnings and errors only.

    Raises:
        DownspoutError: the topology or a setting is wrong, no broker answers, or workers died and no restart helps.
    """
    values, bounds = settings.run.values, runner.bounds_of(settings.run.values)
    workers = int(values["run.workers"])
    plan = make_plan(graph, settings, runner.configurations(graph, settings), workers)
    for warning in plan.warnings:
        plan.log.warning("%s", warning)

    def start(number: int, left: int | None) -> Worker:
        # The topology id was renewed above, once, if it was to be; and time is the supervisor's.
        own = {"run.member": number, "run.until": bounds.until, "run.redeploy": False}
        if (seed := values["run.seed"]) is not None:
            own["run.seed"] = seed + number - 1
        stop = asdict(replace(bounds, for_s=None, records=left))
        task = replace(job, overrides=[*job.overrides, *plan.overrides], options={**job.options, **own}, bounds=stop)
        return Process(number, task, quiet=quiet, say=lambda line: say(number, line))

    supervisor = Supervisor(
        graph.name,
        graph.components,
        workers,
        bounds=bounds,
        start=start,
        restarts_max=int(values["run.worker_restarts_max"]),
        view=view,
    )
    with runner.signals(supervisor, interrupt=False) as received:
        result = supervisor.run()
    result.signal = received[0] if received else None
    return result


def say(number: int, line: str) -> None:
    """Hand on a line of a worker's, with its number."""
    with _LINE:
        try:
            sys.stderr.write(f"[worker {number}] {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it any more; the run goes on
            logging.getLogger("downspout.workers").debug("standard error is closed")
