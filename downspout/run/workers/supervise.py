"""A run in several processes as the command line does it: plan, workers, signals."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from downspout.engine.graph import Graph
from downspout.engine.result import RunResult
from downspout.engine.settings import Settings, configurations
from downspout.exit_guard import say as answer
from downspout.formatting import counted
from downspout.run import runner
from downspout.run.workers.channel import Job
from downspout.run.workers.plan import make_plan
from downspout.run.workers.process import Process, Worker
from downspout.run.workers.supervisor import Supervisor, View

_LINE = threading.Lock()


def supervise(
    graph: Graph,
    settings: Settings,
    job: Job,  # what each worker does
    *,
    view: View | None,
    options: Sequence[str] = (),  # of each worker's command: how it writes its log
    hand_on: Callable[[int, str], None] | None = None,  # writes a worker's line, with its number; default: ``say``
) -> RunResult:
    """Run a topology in ``run.workers`` processes until it ends, is stopped, or fails.

    Raises:
        DownspoutError: the topology or a setting is wrong, no broker answers, or restarts do not help.
    """
    values, bounds = settings.run.values, runner.bounds_of(settings.run.values)
    workers = int(values["run.workers"])
    plan = make_plan(graph, settings, configurations(graph, settings), workers)
    for warning in plan.warnings:
        plan.log.warning("%s", warning)

    def start(number: int, left: int | None) -> Worker:
        # The topology id was renewed above, once, if it was to be; and time is the supervisor's.
        own = {"run.member": number, "run.until": bounds.until, "run.redeploy": False}
        if (seed := values["run.seed"]) is not None:
            own["run.seed"] = seed + number - 1
        stop = asdict(replace(bounds, for_s=None, records=left))
        task = replace(job, overrides=[*job.overrides, *plan.overrides], options={**job.options, **own}, bounds=stop)
        return Process(number, task, options=options, say=lambda line: (hand_on or say)(number, line))

    supervisor = Supervisor(
        graph.name,
        graph.components,
        workers,
        bounds=bounds,
        start=start,
        view=view,
    )

    def answer_signal(number: int) -> None:
        again = "Ctrl-C again" if number == signal.SIGINT else f"a second {signal.Signals(number).name}"
        waits = f"waiting for {counted(workers, 'worker')}, at most {bounds.drain_s:g} s (run.drain_s)"
        answer(f"{signal.Signals(number).name}: {waits}; {again} stops at once")

    with runner.signals(supervisor, interrupt=False, on_first=answer_signal) as received:
        result = supervisor.run()
    result.signal = received[0] if received else None
    return result


def say(number: int, line: str) -> None:
    """Hand on a line of a worker's, with its number."""
    with _LINE:
        try:
            sys.stderr.write(f"[worker {number}] {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # nothing reads it any more; the run goes on
            logging.getLogger("downspout.run.workers").debug("standard error is closed")
