"""The streaming query of a topology: what it is made of, how it is started, and how it ends."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import downspout.errors
from downspout import config
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import BrokerError, DownspoutError
from downspout.kafka.port import TopicPartition
from downspout.kafka.translate import check_translators
from downspout.local.graph import Graph
from downspout.local.result import Counts, RunResult
from downspout.spark import register
from downspout.spark.commits import ProgressCommits, commit_progress, ends_of
from downspout.spark.preflight import check_executors
from downspout.spark.source.ranges import from_json, to_json
from downspout.spark.topology.batches import AgainError, Batches, Done
from downspout.spark.topology.operators import Front, Packed, Stateful
from downspout.spark.topology.rows import SCHEMA
from downspout.spark.topology.signals import Signals
from downspout.spark.topology.silence import Silence
from downspout.spark.topology.sources import ends_now, source_options
from downspout.spark.topology.stage import Shipment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["Query", "SparkRun", "explain"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ROCKSDB_SETTINGS = "spark.sql.streaming.stateStore.rocksdb"
PARTITIONS_MAX = 64
"""Spark's tasks for a stage of stateful bolts: one for each of Storm's, but not more than this."""
LOOK_S = 0.2
OUTAGE_S_MAX = 16.0
"""The longest wait for Kafka before the query is started again."""
WORKER_LATE = "Python worker failed to connect back"
LATE_MAX = 5
"""How often in a row a Python worker may be late."""
TICK_S = 1.0
"""The shortest time from batch to batch where there are ticks, whose shortest period that is."""
OPERATORS = "downspout.spark.topology.operators"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers", "topicId")


@dataclass(frozen=True)
class SparkRun:
    """What came of a run.

    Attributes:
        result: figures, as of the other engines.
        checkpoint: where the query's progress is.
        batches: how many were committed.
        computed_again: batches that were computed again because a tuple failed.
    """

    result: RunResult
    checkpoint: Path
    batches: int
    computed_again: int


def _modules(graph: Graph, confs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the modules that executors must find: those of the components and of the spouts' translators."""
    found = {component.cls.__module__ for component in graph.components.values()}
    for spout in graph.spouts:
        settings = config.parse_scope(confs[spout.name], "kafka")
        found |= {made.path.rpartition(".")[0] for made in check_translators(settings)}
    return sorted(found - {""})


@contextlib.contextmanager
def _settings(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set what a query takes from its session when it starts, and put it back: the session may be the user's.

    A session of our own would be cleaner. But where one session of a process knows a source in Python, another that was
    made by ``newSession`` neither knows it nor may be told (PySpark 4.2).
    """
    before = {name: session.conf.get(name, None) for name in values}
    for name, value in values.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


class Query:
    """One run of a topology's query.

    Args:
        shipment: the topology.
        values: the settings of the scope ``run``.
        checkpoint: Spark's checkpoint location.
        name: of the query in the sinks' logs.
        records_per_batch: the most offsets of a batch.
        signals: that ask it to end.
        told: hears of each batch that is committed.
        say: is given what a user should know meanwhile, a sentence at a time.
    """

    def __init__(
        self,
        shipment: Shipment,
        values: Mapping[str, Any],
        checkpoint: Path,
        name: str,
        records_per_batch: int,
        signals: Signals,
        told: Callable[[Done], None] | None,
        say: Callable[[str], None],
    ) -> None:
        self._shipment, self._values, self._checkpoint = shipment, values, checkpoint
        self._records_max = records_per_batch
        self._plan, self._graph = shipment.plan, shipment.plan.graph
        self._confs = shipment.confs
        self._modules = _modules(self._graph, self._confs)
        self._path = [place for place in sys.path if place]
        self._groups = {
            name: str(self._confs[name].get("kafka.group") or self._graph.name) for name in self._plan.stages[0].heads
        }
        self._batches = Batches(shipment, name, self._groups, told, checkpoint=checkpoint)
        self._received = signals.received
        self._say = say
        self._listeners: dict[tuple[str, str], ProgressCommits] = {}
        self._ticks = self._plan.ticks(self._confs)
        self._stops: dict[TopicPartition, int] = {}
        """Where a bounded run ends."""
        self._outages = 0
        """How often in a row the query had to be started again, for Kafka or for a Python worker."""
        self._done_before = 0
        """Batches that were done at the last outage."""

    @property
    def _bounded(self) -> bool:
        return bool(self._values["run.until"] == "end")

    def run(self, session: SparkSession, trigger_s: float) -> SparkRun:
        """Start the query, wait for its end, and sum up."""
        started = SYSTEM_CLOCK.monotonic()
        self._batches.open()
        register(session)
        check_executors(session, [OPERATORS, *self._modules], self._path)
        options = {
            name: source_options(self._confs[name], group, bounded=self._bounded, records_max=self._records_max)
            for name, group in self._groups.items()
        }
        if self._bounded:
            self._stop_at_offsets(options)
        with self._commits(session, options):
            self._say(self._beginning())
            reason = None
            while reason is None:
                reason = self._wait(self._start(session, options, trigger_s), started)
        return self._sum_up(reason, SYSTEM_CLOCK.monotonic() - started)

    def _stop_at_offsets(self, options: dict[str, dict[str, str]]) -> None:
        """End at what is there now, also if the query is started again; and with timers, for which Spark has no end."""
        for name, given in options.items():
            ends = ends_now(self._confs[name])
            named = from_json(json.loads(given.get("stoppingOffsets", "{}")))
            stops = {tp: min(end, named.get(tp, end)) for tp, end in ends.items()}
            given["stoppingOffsets"] = json.dumps(to_json(stops))
            self._stops |= stops

    def _is_at_the_end(self, query: StreamingQuery) -> bool:
        if not (self._bounded and self._ticks) or (progress := query.lastProgress) is None:
            return False
        ends = ends_of(json.loads(progress.json))
        return all(ends.get(tp, 0) >= stop for tp, stop in self._stops.items())

    def _stages(self, session: SparkSession, options: Mapping[str, Mapping[str, str]]) -> DataFrame:
        """Return the whole plan: sources, stage 0, and the stages behind it."""
        from pyspark.sql import functions as F

        packed = Packed(self._shipment, self._path, self._modules)
        frames = [
            session.readStream.format("downspout").options(**given).load().select(F.lit(name).alias("spout"), *COLUMNS)
            for name, given in options.items()
        ]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionByName(other)
        skip, timers = self._batches.given_up, "ProcessingTime" if self._ticks else "None"
        rows = frame.mapInArrow(Front(packed, skip, self._batches.apart), SCHEMA)
        for stage in self._plan.stages[1:]:
            rows = rows.groupBy("component", "task").transformWithStateInPandas(
                Stateful(packed, stage.level, skip), SCHEMA, "Append", timers
            )
        return rows

    def _start(
        self, session: SparkSession, options: Mapping[str, Mapping[str, str]], trigger_s: float
    ) -> StreamingQuery:
        frame = self._stages(session, options)
        writer = frame.writeStream.foreachBatch(self._batches).outputMode("append").queryName(self._graph.name)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if self._bounded and not self._ticks:
            writer = writer.trigger(availableNow=True)
        else:
            # With timers there is always another batch, without input too: not one after the other without a pause.
            least = TICK_S if self._ticks and not self._bounded else 0.0
            writer = writer.trigger(processingTime=f"{max(trigger_s, least)} seconds")
        tasks = max(1, min(sum(self._plan.stateful.values()), PARTITIONS_MAX))
        wanted = {
            "spark.sql.shuffle.partitions": str(tasks),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            # With change logs, a snapshot of a batch's first computation may outlive the second one.
            f"{ROCKSDB_SETTINGS}.changelogCheckpointing.enabled": "false",
        }
        with _settings(session, wanted):
            return writer.start()

    @contextlib.contextmanager
    def _commits(self, session: SparkSession, options: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
        """Commit finished batches for lag tools, to a group of their own: the spout's group is the other engines'."""
        listeners = self._listeners
        for name, group in self._groups.items():
            given = {key: value for key, value in options[name].items() if key.startswith("kafka.")}
            key = given["kafka.bootstrap.servers"], group
            if key not in listeners:
                listeners[key] = commit_progress(session, f"{group}-spark", given, query=self._graph.name)
        try:
            yield
        finally:
            for listener in listeners.values():
                listener.flush(5.0)
                listener.close()

    # --- the end ------------------------------------------------------------------------------------------

    def _wait(self, query: StreamingQuery, started: float) -> str | None:
        """Wait for the end of the query, and say why it came; None if it must be started again."""
        for_s, batches, silence = self._values["run.for_s"], self._batches, Silence(self._batches, self._say)
        reason = "end"
        try:
            while not query.awaitTermination(LOOK_S):
                if self._received:
                    reason = "signal"
                elif for_s is not None and SYSTEM_CLOCK.monotonic() - started >= for_s:
                    reason = "for"
                batches.stopping = reason != "end" or self._is_at_the_end(query)
                if batches.stopping and (not batches.busy or len(self._received) > 1):
                    break
                silence.look()
        except Exception as error:  # StreamingQueryException, which PySpark makes of whatever went wrong
            if not batches.stopping and self._begins_again(query, error):
                return None
            if not batches.stopping or isinstance(batches.error, DownspoutError):
                raise self._explain(error) from error
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone, by the same signal
                query.stop()
                self._tell_listeners(query)
        return "aborted" if len(self._received) > 1 else reason

    def _begins_again(self, query: StreamingQuery, error: Exception) -> bool:
        """Return whether the query that ended by this error is to be started again, once it is time for that.

        A failed batch is computed again at once. Without Kafka a query ends, and the other engines wait: so does this
        one, after it has seen Kafka once. Before that, an address may be wrong. A Python worker has 10 s to start, a
        constant of Spark's (PythonWorkerFactory), and on a busy machine needs more now and then.
        """
        if isinstance(self._batches.error, AgainError):
            self._batches.error = None
            return True
        cause, done = self._explain(error), self._batches.totals.batches
        self._outages, self._done_before = (1 if done > self._done_before else self._outages + 1), done
        if isinstance(cause, BrokerError) and (done or query.lastProgress):
            what = cause.message
        elif WORKER_LATE in str(error) and self._outages <= LATE_MAX:
            what = "a Python worker of Spark's did not start within 10 s"
        else:
            return False
        wait_s = min(2.0**self._outages, OUTAGE_S_MAX)
        self._say(f"{what}; the query starts again in {wait_s:.0f} s")
        until = SYSTEM_CLOCK.monotonic() + wait_s
        while SYSTEM_CLOCK.monotonic() < until and not self._received:
            SYSTEM_CLOCK.sleep(LOOK_S)
        self._batches.error = None
        return True

    def _beginning(self) -> str:
        """Say where the query begins."""
        done = [int(path.name) for path in (self._checkpoint / "commits").glob("[0-9]*") if path.name.isdecimal()]
        if done:
            return f"Spark runs; the query goes on after batch {max(done)} of {self._checkpoint}"
        return f"Spark runs; the query begins where kafka.start says, its checkpoint is {self._checkpoint}"

    def _tell_listeners(self, query: StreamingQuery) -> None:
        """Tell of the last batch: Spark's own message may still be on its way, and nobody will wait for it."""
        if (progress := query.lastProgress) is not None:
            for listener in self._listeners.values():
                listener.finished(str(query.id), json.loads(progress.json))

    def _explain(self, error: Exception) -> Exception:
        """Return the error behind Spark's: ours as it was, on the driver or on an executor."""
        if isinstance(self._batches.error, DownspoutError):
            return self._batches.error
        return explain(str(error)) or error

    def _sum_up(self, reason: str, seconds: float) -> SparkRun:
        totals = self._batches.totals
        reports = {name: dict(report) for name, report in totals.reports.items()}
        for spout, count in totals.dead_lettered.items():
            reports.setdefault(spout, {})["dead_lettered"] = count
        counts = {name: totals.counts.get(name, Counts()) for name in self._graph.components}
        heads = self._plan.stages[0].heads
        result = RunResult(
            reason=reason,
            drained=True,
            duration_s=seconds,
            components=counts,
            completed=totals.records - sum(totals.dead_lettered.values()),
            failed=sum(counts[name].failed for name in heads),
            timeouts=0,
            in_flight=0,
            latency_p50_ms=None,
            latency_p99_ms=None,
            errors=totals.errors,
            reports=reports,
            spouts=list(heads),
            signal=self._received[0] if self._received else None,
        )
        return SparkRun(result, self._checkpoint, totals.batches, totals.again)


def explain(text: str) -> DownspoutError | None:
    """Return the error of ours that a page of Spark's ends in, if there is one.

    >>> print(explain("pyspark … downspout.errors.BrokerError: no topic x. Try: create it\\n  at org.apache…"))
    no topic x. Try: create it
    """
    found = re.findall(r"downspout\.errors\.(\w+Error): (.*)", text)
    for name, said in reversed(found):
        kind = getattr(downspout.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, DownspoutError):
            message, _, cure = said.partition(". Try: ")
            return kind(message.strip(), cure=cure.strip() or None)
    return None
