"""Runs a topology in several processes: plan, workers, signals.

``downspout run --workers N`` starts N workers. Each is a process that runs the whole topology, as ``downspout run
--member K`` does, and reads its own partitions as a member of the consumer group. All write into one output directory,
whose commit log keeps each row exactly once. The supervisor runs no topology: it makes the decisions that all workers
must share, starts the workers, merges their metrics, restarts crashed ones and stops them all.

**Decided once**, before any worker starts: whether the topology can be shared, how many workers can have work, the
topology id, and the end of a bounded run. A spout takes the end of the log at its own start, but workers start at
different times, restarted ones much later. The supervisor therefore reads the ends and passes them as
``kafka.stop_offsets``.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kafka import errors

from downspout.engine.graph import Component, Graph, require_fields
from downspout.engine.result import RunResult
from downspout.engine.settings import Settings, configurations
from downspout.errors import BrokerError, ConfigError
from downspout.exit_guard import say as answer
from downspout.formatting import counted
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.kafka.retry_gate import cure_of, describe
from downspout.run import runner
from downspout.run.supervisor import Supervisor, WorkersView
from downspout.run.topology_check import refuse_spouts, split_groupings
from downspout.run.worker_process import Worker, WorkerJob, WorkerProcess
from downspout.spout.findings import setup_of
from downspout.spout.rebalancing import open_consumer
from downspout.spout.settings import offsets_of
from downspout.spout.starting import partitions_of, topics_of

_LINE = threading.Lock()


def supervise(
    graph: Graph,
    settings: Settings,
    job: WorkerJob,  # of each worker
    *,
    view: WorkersView | None,
    options: Sequence[str] = (),  # of each worker's command, about its log
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
        # ``configurations`` above has renewed the topology id, if asked to; the supervisor applies ``for_s``.
        own = {"run.member": number, "run.until": bounds.until, "run.redeploy": False}
        if (seed := values["run.seed"]) is not None:
            own["run.seed"] = seed + number - 1
        stop = asdict(replace(bounds, for_s=None, records=left))
        task = replace(job, overrides=[*job.overrides, *plan.overrides], options={**job.options, **own}, bounds=stop)
        return WorkerProcess(number, task, options=options, say=lambda line: (hand_on or say)(number, line))

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
    """Write a line of a worker's output, with its number."""
    with _LINE:
        try:
            sys.stderr.write(f"[worker {number}] {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # its reader is gone; the run continues
            logging.getLogger("downspout.run.workers").debug("standard error is closed")


# --- the plan ---


@dataclass
class WorkerPlan:
    """Settings for the workers, and warnings for the user."""

    overrides: list[str] = field(default_factory=list)  # ``--set`` options that come after the user's
    warnings: list[str] = field(default_factory=list)  # one sentence each
    # for the spouts' own warnings (a topic that does not exist yet, a log that ends too early)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("downspout.run.workers"))


def make_plan(graph: Graph, settings: Settings, confs: Mapping[str, Mapping[str, Any]], workers: int) -> WorkerPlan:
    """Check the topology and its topics, and return the plan.

    Raises:
        TopologyError: a spout is not a KafkaSpout, or a component lacks a field.
        BrokerError: no broker answers, or a bounded run lacks a topic.
    """
    if settings.run.values["run.member"] is not None:
        raise ConfigError(
            "run.member is for a process that you start yourself, and run.workers starts and numbers its own",
            cure="one of --workers and --member",
        )
    graph.check()
    require_fields(graph)
    refuse_spouts(graph, workers)
    plan = WorkerPlan()
    for bolt, what, cure in split_groupings(graph):
        plan.warnings.append(f"{bolt.name}: {what}. Try: {cure}")
    for spout in graph.spouts:
        _look_at(spout, confs[spout.name], workers, plan)
    return plan


def _look_at(spout: Component, conf: Mapping[str, Any], workers: int, plan: WorkerPlan) -> None:
    setup = setup_of(conf, {"componentid": spout.name})
    if not setup.joins:
        raise ConfigError(
            f"{spout.name}: kafka.mode = assign shares the partitions among the tasks of one process, but "
            f"run.workers = {workers}",
            cure="kafka.mode=subscribe, or one process with more tasks (par)",
        )
    settings, bootstrap = setup.settings, setup.settings["bootstrap"]
    consumer, _ = open_consumer(cluster_for(bootstrap, settings["client"]), setup, None, plan.log)
    try:
        partitions = partitions_of(consumer, topics_of(consumer, settings))
        ends = consumer.end_offsets(partitions) if setup.bounded and partitions else {}
    except errors.KafkaError as error:
        raise BrokerError(
            f"{bootstrap}: cannot read: {describe(error)}",
            cure=cure_of(error, "start the broker, or set kafka.bootstrap"),
        ) from error
    finally:
        consumer.close(leave_group=False)  # it has not joined one
    plan.warnings += _too_many(spout, workers, len(partitions))
    if setup.bounded:
        plan.overrides.append(f"{spout.name}:kafka.stop_offsets={json.dumps(_stops(settings, ends))}")


def _too_many(spout: Component, workers: int, partitions: int) -> Iterator[str]:
    members = workers * spout.par
    if 0 < partitions < members:
        tasks = f" with {spout.par} tasks each" if spout.par > 1 else ""
        yield (
            f"{spout.name}: {workers} workers{tasks} share {counted(partitions, 'partition')}, so "
            f"{members - partitions} of them will have nothing to read. "
            f"Try: {counted(max(1, partitions // spout.par), 'worker')}, or more partitions"
        )


def _stops(settings: Mapping[str, Any], ends: Mapping[TopicPartition, int]) -> list[str]:
    """Return each partition's stop offset: the user's, or the end of its log now."""
    named = offsets_of("kafka.stop_offsets", settings["stop_offsets"])
    starts = offsets_of("kafka.start_offsets", settings["start_offsets"])
    # A partition whose log ends before its start offset is left out: a stop below a start would be refused, and the
    # spout handles that case (``kafka.on_data_loss``).
    stops = named | {tp: min(end, named.get(tp, end)) for tp, end in ends.items()}
    return [f"{tp.topic}[{tp.partition}]={stop}" for tp, stop in sorted(stops.items()) if starts.get(tp, 0) <= stop]
