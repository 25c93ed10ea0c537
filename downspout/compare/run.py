"""Making a comparison: one engine after the other, then the tables, then what was left is deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.compare.engines import (
    Compared,
    Engine,
    Local,
    LocalChunks,
    LocalRecords,
    Native,
    Spark,
    SparkChunks,
    SparkRecords,
)
from downspout.compare.job import Job
from downspout.compare.multiset import compare
from downspout.compare.report import EngineRun, Report, Table
from downspout.compare.storm import Storm
from downspout.compare.tables import columns_wrong, rounded_alike
from downspout.errors import DownspoutError
from downspout.kafka.client import KafkaCluster, connection_properties
from downspout.settings.secrets import resolve_client
from downspout.system.waiting import waiting

ENGINES: dict[str, type[Engine]] = {
    each.name: each for each in (Local, LocalRecords, LocalChunks, Storm, Spark, SparkRecords, SparkChunks, Native)
}
"""In the order in which they run, the cheapest first."""

SAID_EVERY_S = 10.0  # How often a run reports what an engine does
LEAVE_S_MAX = 20.0  # A member of a group that was killed is forgotten by Kafka after its session, which is 10 s

log = logging.getLogger("downspout.compare")

Progress = Callable[[str, str], None]  # Called with an engine's name and what it does


def run(job: Job, engines: Sequence[str], *, explicit: bool, progress: Progress, clock: Clock = SYSTEM_CLOCK) -> Report:
    """Run a job on engines and compare their tables."""
    made = [ENGINES[name](job) for name in engines]
    begun: list[Engine] = []
    runs = []
    try:
        for engine in made:
            if missing := engine.missing():
                progress(engine.name, f"is not available: {missing}")
                runs.append(EngineRun(engine.name, missing=missing))
                continue
            begun.append(engine)
            for written in job.topics:
                if engine.makes(written):
                    written.cluster().ensure_topic(job.topic(engine.name, written.name), written.partitions)
            runs.append(_run(engine, progress, clock))
        there = [engine for engine, each in zip(made, runs, strict=True) if each.ran]
        compared: list[Compared] = [*job.sinks, *job.topics, *job.states]
        makers = [(sink, [engine for engine in there if engine.makes(sink)]) for sink in compared]
        tables = [_compare(sink, engines) for sink, engines in makers if engines]
    finally:
        left = clean_up(job, begun, clock)
    ranges = {tp: given for spout in job.spouts for tp, given in spout.ranges.items()}
    return Report(job.graph.name, ranges, runs, tables, explicit, left)


def _run(engine: Engine, progress: Progress, clock: Clock) -> EngineRun:
    progress(engine.name, "runs")
    started = clock.monotonic()
    try:
        with waiting(engine.doing, lambda line: progress(engine.name, line), SAID_EVERY_S):
            engine.run()
    except DownspoutError as error:
        progress(engine.name, "failed")
        return EngineRun(engine.name, clock.monotonic() - started, error=str(error))
    seconds = clock.monotonic() - started
    progress(engine.name, f"is done after {seconds:.1f} s")
    return EngineRun(engine.name, seconds)


def _compare(sink: Compared, engines: Sequence[Engine]) -> Table:
    wrong, tables = {}, {}
    for engine in engines:
        found = engine.table(sink)
        if differences := columns_wrong(found.schema, sink.schema):
            wrong[engine.name] = differences
        else:
            tables[engine.name] = found.select(sink.schema.names).cast(sink.schema)
    if not tables:  # nothing has the right columns: there is no measure
        tables = {engines[0].name: sink.schema.empty_table()}
    return Table(sink.name, sink.keys, wrong, compare(rounded_alike(tables, sink.keys, sink.float_sums)))


def clean_up(job: Job, engines: Sequence[Engine], clock: Clock) -> list[str]:
    """Delete the temporary groups and topics of engines that began; return those that could not be deleted."""
    left = []
    for written in job.topics:
        for topic in (job.topic(engine.name, written.name) for engine in engines if engine.makes(written)):
            try:
                written.cluster().delete_topic(topic)
            except DownspoutError as error:
                log.warning("cleaning up: %s", error)
                left.append(topic)
    for spout in job.spouts:
        groups = sorted({group for engine in engines for group in engine.groups(spout)})
        topics = {job.dead_letter_topic(engine.name, spout) for engine in engines}
        try:
            cluster = KafkaCluster(spout.bootstrap, connection_properties(resolve_client(spout.client)))
            deadline = clock.monotonic() + LEAVE_S_MAX
            while True:
                # A broker may know a topic for a moment after the controller has deleted it: so we look again.
                topics &= cluster.topics().keys()
                for topic in topics:
                    cluster.delete_topic(topic)
                groups = cluster.delete_groups(groups)
                if not (topics or groups) or clock.monotonic() > deadline:
                    break
                clock.sleep(0.5)
        except DownspoutError as error:  # what was found out is not lost by this, and neither is an error before it
            log.warning("cleaning up: %s", error)
        left += [*groups, *sorted(topics)]
    return left
