"""Run a topology on Spark: settings, checkpoint, session. The query itself is in ``query.py``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.engine.graph import Graph, require_fields
from downspout.engine.load import load
from downspout.engine.settings import Settings, configurations, resolve
from downspout.errors import ConfigError
from downspout.settings import folders
from downspout.settings.folders import local_path, of_project_url
from downspout.sink.notes import hand_over_run
from downspout.sink.sink_bolt import directory_of
from downspout.spark.failures import explained
from downspout.spark.session import Signals, spark_session
from downspout.spark.topology.batch_commit import CommittedBatch
from downspout.spark.topology.checkpoint_claim import claim
from downspout.spark.topology.query import REPORTED_EVERY_S, Query, SparkRun
from downspout.spark.topology.stages import StagePlan, is_sink, plan
from downspout.system.files import FileLock
from downspout.system.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from downspout.spark.topology.query import QuerySnapshots

RECORDS_PER_BATCH = 500_000


COMPACT_EVERY = "parquet.compact_every_s"


def default_checkpoint(name: str) -> Path:
    """Return the default checkpoint of a topology."""
    return folders.home() / "spark" / re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def run(
    target: str | Graph,  # a file, ``module:Class``, or a graph
    *,
    topology: str | None = None,  # the class, if the file has several
    spark: SparkSession | None = None,  # default: the active session, or a new one on this machine
    master: str | None = None,  # of a new session, such as ``local[2]``
    overrides: Sequence[str] = (),  # ``--set`` options, ``[COMPONENT:]KEY=VALUE``
    options: Mapping[str, Any] | None = None,  # with the precedence of ``overrides``, such as ``{"run.until": "end"}``
    # the query's directory; all executors must reach it. Default: :func:`default_checkpoint`.
    checkpoint: Path | None = None,
    trigger_s: float = 0.0,  # seconds from one batch's start to the next; 0: at once
    records_per_batch: int = RECORDS_PER_BATCH,  # maximum number of offsets
    on_batch: Callable[[CommittedBatch], None] | None = None,  # called with each committed batch
    report: Callable[[str], None] | None = None,  # called with sentences for the user
    watching: Callable[[QuerySnapshots], None] | None = None,  # called before the query starts
) -> SparkRun:
    """Run a topology on Spark until it ends, is stopped, or fails.

    Raises:
        DownspoutError: the topology or a setting is wrong, Spark cannot run it, or the query failed. Nothing of the
            failed batch is published.
    """
    graph = target if isinstance(target, Graph) else load(target, topology)
    where = Path(local_path(checkpoint or default_checkpoint(graph.name), f"checkpoint = {checkpoint}")).absolute()
    settings = resolve(graph, overrides, options=options)
    if settings.run.values["run.records"]:
        raise ConfigError(
            "run.records counts tuple trees, but Spark's batches end at offsets",
            cure="kafka.stop_offsets, or --until end",
        )
    require_fields(graph)
    confs = configurations(graph, settings)
    hand_over_run(graph, settings, confs)
    _fix_directories(graph, confs)
    made = plan(graph, confs)
    report = report or (lambda text: None)
    for key in without_effect(settings):
        report(f"{key} has no effect on Spark")
    for name in made.kafka_bolts:
        report(f"{name} writes at least once on Spark: a batch that is computed again is written to Kafka again")
    with Signals() as signals, _claimed(where, made) as name:
        query = Query(made, settings.run.values, where, name, records_per_batch, signals, on_batch, report)
        if watching is not None:
            watching(query.watched())
        try:
            with explained(), _session(graph.name, spark, master, report) as session:
                signals.arm()  # PySpark has set its own handler
                return query.run(session, trigger_s)
        except (Exception, KeyboardInterrupt) as error:
            # A signal to the whole process group also ends the JVM, so any call may fail. A second one interrupts code
            # that does not poll for signals. The exit code is the signal's in both cases.
            if not signals.received or error is query.error:
                raise
            return query.sum_up("aborted")


def without_effect(settings: Settings) -> list[str]:
    """Return the given settings that have no effect on Spark."""
    local = ("run.drain_s", "run.member", "run.otel", "run.workers")
    given = [key for key in local if settings.run.sources.get(key) == "command line"]
    batches = {
        key
        for made in settings.components.values()
        for key, source in made.sources.items()
        if key.startswith("batch.") and source == "command line"
    }
    given += sorted(batches)
    always = (COMPACT_EVERY, "kafka.trace_every")
    return given + [key for key in always if any(made.values.get(key) for made in settings.components.values())]


def _fix_directories(graph: Graph, confs: Mapping[str, dict[str, Any]]) -> None:
    """Make the sinks' directories absolute: executors of a cluster run in folders of their own."""
    for component in graph.components.values():
        conf = confs[component.name]
        if is_sink(component) and isinstance(given := conf.get("parquet.directory"), str):
            conf["parquet.directory"] = str(directory_of(given, conf).absolute())  # an object store's URL already is
        if isinstance(url := conf.get("sql.database"), str):
            conf["sql.database"] = of_project_url(url, "sql.database", conf)


@contextlib.contextmanager
def _claimed(directory: Path, made: StagePlan) -> Iterator[str]:
    """Claim and lock the checkpoint; two concurrent queries would destroy it."""
    query = claim(directory, made)
    lock = FileLock(directory / "_downspout.lock")
    if not lock.acquire():
        raise ConfigError(f"{directory} is the checkpoint of a run that is still going", cure="wait for it, or stop it")
    try:
        yield query
    finally:
        lock.release()


@contextlib.contextmanager
def _session(
    name: str, given: SparkSession | None, master: str | None, report: Callable[[str], None]
) -> Iterator[SparkSession]:
    """Yield the session: the given one, the active one, or a new one on this machine."""
    if given is not None:
        yield given
        return
    report("starting Spark")
    wanted = {"spark.master": master} if master else {}
    with contextlib.ExitStack() as stack:
        with waiting("starting Spark", report, REPORTED_EVERY_S):
            session = stack.enter_context(spark_session(name, config=wanted))
        yield session
