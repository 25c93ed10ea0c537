"""Running a topology on Spark: settings, checkpoint, session; the query itself is in ``query.py``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout import config
from downspout.errors import ConfigError
from downspout.local.check import require_fields
from downspout.local.graph import Graph
from downspout.local.load import load
from downspout.local.runner import configurations
from downspout.local.settings import resolve
from downspout.locks import FileLock
from downspout.parquet.sink_bolt import directory_of
from downspout.spark.session import spark_session
from downspout.spark.topology.batches import Done
from downspout.spark.topology.checkpoint import claim
from downspout.spark.topology.plan import Plan, is_sink, plan
from downspout.spark.topology.query import Query, SparkRun
from downspout.spark.topology.signals import Signals
from downspout.spark.topology.stage import Shipment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RECORDS_PER_BATCH", "SparkRun", "default_checkpoint", "run"]

RECORDS_PER_BATCH = 500_000


def default_checkpoint(name: str) -> Path:
    """Return where a topology's checkpoint is, if nothing else is said."""
    return config.home() / "spark" / re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def run(
    target: str | Graph,
    *,
    topology: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
    trigger_s: float = 0.0,
    records_per_batch: int = RECORDS_PER_BATCH,
    told: Callable[[Done], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> SparkRun:
    """Run a topology on Spark until it ends, is stopped, or fails.

    Args:
        target: a file, ``module:Class``, or a graph.
        topology: which class, where the file holds several.
        spark: the session to use; not given: the one that runs, else one of this machine.
        master: of a session that is made here, ``local[2]``.
        overrides: ``--set`` options, ``[COMPONENT:]KEY=VALUE``.
        options: settings as strong as ``overrides``, such as ``{"run.until": "end"}``.
        checkpoint: the query's directory; all executors must reach it. Not given: :func:`default_checkpoint`.
        trigger_s: seconds from one batch's start to the next; 0: at once.
        records_per_batch: the most offsets of a batch.
        told: hears of each batch that is committed.
        say: is given what a user should know meanwhile, a sentence at a time.

    Raises:
        DownspoutError: the topology or a setting is wrong, something cannot run on Spark, or the query failed. Nothing
            of the batch that failed is in sight.
    """
    graph = target if isinstance(target, Graph) else load(target, topology)
    settings = resolve(graph, overrides, options=options)
    require_fields(graph)
    confs = configurations(graph, settings)
    _fix_directories(graph, confs)
    made = plan(graph, confs)
    where = (checkpoint or default_checkpoint(graph.name)).absolute()
    say = say or (lambda text: None)
    with (
        Signals() as signals,
        _claimed(where, made, ticks=made.ticks(confs)) as name,
        _session(graph.name, spark, master, say) as session,
    ):
        signals.arm()  # PySpark has set its own
        query = Query(Shipment(made, confs), settings.run.values, where, name, records_per_batch, signals, told, say)
        return query.run(session, trigger_s)


def _fix_directories(graph: Graph, confs: Mapping[str, dict[str, Any]]) -> None:
    """Make the sinks' directories absolute: executors of a cluster run in folders of their own."""
    for component in graph.components.values():
        conf = confs[component.name]
        if is_sink(component) and isinstance(given := conf.get("parquet.directory"), str):
            conf["parquet.directory"] = str(directory_of(given, conf).absolute())


@contextlib.contextmanager
def _claimed(directory: Path, made: Plan, *, ticks: bool) -> Iterator[str]:
    """Hold the checkpoint; two queries on one would destroy it."""
    query = claim(directory, made, ticks=ticks)
    lock = FileLock(directory / "_downspout.lock")
    if not lock.acquire():
        raise ConfigError(f"{directory} is the checkpoint of a run that goes on", cure="wait for it, or stop it")
    try:
        yield query
    finally:
        lock.release()


@contextlib.contextmanager
def _session(
    name: str, given: SparkSession | None, master: str | None, say: Callable[[str], None]
) -> Iterator[SparkSession]:
    """Give the session: the user's, the one that runs, or one of this machine."""
    if given is not None:
        yield given
        return
    say("starting Spark")
    wanted = {"spark.master": master} if master else {}
    with spark_session(name, config=wanted) as session:
        yield session
