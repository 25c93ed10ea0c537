"""The streaming query of a topology: its plan, its start and its end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.result import Counts, RunResult
from downspout.errors import BrokerError, DownspoutError, UnreadableError, coordinates
from downspout.settings.table import parse_scope
from downspout.spark import register
from downspout.spark.checkpoint import batch_numbers
from downspout.spark.executors import check_executors
from downspout.spark.failures import RESTARTS_MAX, PassingError, explain, passing, pause_s
from downspout.spark.query_progress import LatestProgress, ProgressCommits, commit_progress, ends_of, lag_of
from downspout.spark.session import Signals
from downspout.spark.source_offsets import from_json, to_json
from downspout.spark.topology.batch_commit import BatchCommitter, CommittedBatch, RecomputeError
from downspout.spark.topology.operators import FirstStage, PickledPlan, StatefulStage
from downspout.spark.topology.spout_options import ends_now, source_options
from downspout.spark.topology.stage_rows import SCHEMA
from downspout.spark.topology.stages import StagePlan
from downspout.spout.tuples import check_translators
from downspout.system.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ROCKSDB_SETTINGS = "spark.sql.streaming.stateStore.rocksdb"
PARTITIONS_MAX = 64  # Limit on Spark's tasks per stage of stateful bolts; below it, one per Storm task
LOOK_S = 0.2
STOPPING = "Spark to stop"
FINISH_S = 10.0  # How long a batch may take to finish after a signal has ended Spark
TICK_S = 1.0  # Shortest interval between batches if bolts tick; it is also the shortest tick period
END_MARKER = "endMarker"  # The source's option that makes all bolts tick at the end of a bounded run
OPERATORS = "downspout.spark.topology.operators"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers", "unreadable", "topicId")
NO_NULL_HEADERS = "coalesce(headers, array())"
"""Empty instead of null. After each row Spark 4.1 and later compute the size of the Arrow batch for Python; for a list
column that iterates over all trailing nulls. Without headers, 10,000 rows cost 50 million steps, nine tenths of a
query's JVM time."""


@dataclass(frozen=True)
class SparkRun:
    """The results of a run."""

    result: RunResult  # metrics, as for the other engines
    checkpoint: Path  # with the query's progress
    batches: int  # committed ones
    computed_again: int  # recomputations because a tuple failed


def _modules(plan: StagePlan) -> list[str]:
    """Return the modules that executors must import: those of the components and of the spouts' translators."""
    found = {component.cls.__module__ for component in plan.graph.components.values()}
    for spout in plan.spouts:
        settings = parse_scope(plan.confs[spout], "kafka")
        found |= {made.path.rpartition(".")[0] for made in check_translators(settings)}
    return sorted(found - {""})


@contextlib.contextmanager
def _settings(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings that a starting query reads from its session, then restore them: it may be the user's session."""
    # A separate session would be cleaner. But if one session of a process has a Python source, another one from
    # ``newSession`` neither has it nor can register it (PySpark 4.2).
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
    """One run of a topology's query."""

    def __init__(
        self,
        plan: StagePlan,
        values: Mapping[str, Any],
        checkpoint: Path,
        name: str,
        records_per_batch: int,
        signals: Signals,
        on_batch: Callable[[CommittedBatch], None] | None,
        report: Callable[[str], None],
    ) -> None:
        self._plan, self._values, self._checkpoint = plan, values, checkpoint
        self._records_max = records_per_batch
        self._graph, self._confs = plan.graph, plan.confs
        self._modules = _modules(plan)
        self._path = [place for place in sys.path if place]
        self._groups = {name: str(self._confs[name].get("kafka.group") or self._graph.name) for name in plan.spouts}
        self._batches = BatchCommitter(plan, name, self._groups, self._committed, checkpoint=checkpoint)
        self._looks: QuerySnapshots | None = None
        self._on_batch = on_batch or (lambda batch: None)
        self._signals, self._received = signals, signals.received
        self._report = report
        self._listeners: dict[tuple[str, str], ProgressCommits] = {}
        self._outages = 0  # Consecutive restarts of the query because of Kafka or a Python worker
        self._done_before = 0  # Batches done before the last outage
        self._started = SYSTEM_CLOCK.monotonic()

    @property
    def _bounded(self) -> bool:
        return bool(self._values["run.until"] == "end")

    def watched(self) -> QuerySnapshots:
        """Start keeping snapshots of the query for other threads; called before it runs."""
        self._looks = QuerySnapshots(self._graph.name, self._batches, lambda: self.sum_up("running").result)
        return self._looks

    def _committed(self, batch: CommittedBatch) -> None:
        if self._looks is not None:
            self._looks.note(batch)
        self._on_batch(batch)

    @property
    def error(self) -> BaseException | None:
        """The error that a batch raised, if any."""
        return self._batches.error

    def run(self, session: SparkSession, trigger_s: float) -> SparkRun:
        """Run the query to its end and return the results."""
        self._started = SYSTEM_CLOCK.monotonic()
        self._batches.open()
        register(session)
        self._look_at_executors(session)
        with self._awaiting("Kafka"):
            options = {
                name: source_options(self._confs[name], group, bounded=self._bounded, records_max=self._records_max)
                for name, group in self._groups.items()
            }
            if self._bounded:
                self._stop_at_offsets(options)
        looks = contextlib.nullcontext() if self._looks is None else self._looks.listening(session)
        with self._commits(session, options), looks:
            self._report(self._beginning())
            reason = self._until_it_ends(session, options, trigger_s)
        return self.sum_up(reason)

    @contextlib.contextmanager
    def _awaiting(self, what: str) -> Iterator[None]:
        """Report what the run waits for, periodically and on a signal."""
        self._signals.doing = lambda: what
        with waiting(f"waiting for {what}", self._report, REPORTED_EVERY_S):
            yield

    def _look_at_executors(self, session: SparkSession) -> None:
        """Check that executors have the topology's modules; retry if a Python worker is late or dies."""
        while not self._received:
            try:
                with self._awaiting("a Python worker to import the topology"):
                    check_executors(session, [OPERATORS, *self._modules], self._path)
                break
            except PassingError as error:
                self._outages += 1
                if self._outages > RESTARTS_MAX:
                    raise
                self._pause(f"{error.message}; trying again")
        self._outages = 0

    def _pause(self, why: str) -> None:
        """Report and wait before another attempt; a signal ends the wait."""
        wait_s = pause_s(self._outages)
        self._report(f"{why} in {wait_s:.0f} s")
        until = SYSTEM_CLOCK.monotonic() + wait_s
        while SYSTEM_CLOCK.monotonic() < until and not self._received:
            SYSTEM_CLOCK.sleep(LOOK_S)

    def _until_it_ends(self, session: SparkSession, options: dict[str, dict[str, str]], trigger_s: float) -> str:
        """Run the query to its end and return the reason; a bounded run ends with a tick."""
        # With one spout, the batch of the last records contains the tick. Several spouts reach their ends in different
        # batches; so the query is started again, without records left, to have all end markers in one batch.
        passes, reason = [True] if len(options) == 1 else [False, True], "end"
        for is_last in passes if self._bounded and self._plan.ticks else [False]:
            for given in options.values():
                given[END_MARKER] = str(is_last).lower()
            ended: str | None = None
            while ended is None:
                ended = "signal" if self._received else self._attempt(session, options, trigger_s)
            if (reason := ended) != "end":
                break
        return reason

    def _attempt(self, session: SparkSession, options: Mapping[str, Mapping[str, str]], trigger_s: float) -> str | None:
        """Start the query and wait for its end; return the reason, or None if it must be restarted."""
        try:
            query = self._start(session, options, trigger_s)
        except Exception as error:  # planning starts Python processes too
            if self._received or not self._begins_again(None, error):
                raise self._explain(error) from error
            return None
        return self._wait(query)

    def _stop_at_offsets(self, options: dict[str, dict[str, str]]) -> None:
        """Stop at the current ends of the logs, also after a restart of the query."""
        for name, given in options.items():
            ends = ends_now(self._confs[name], self._groups[name])
            named = from_json(json.loads(given.get("stoppingOffsets", "{}")))
            given["stoppingOffsets"] = json.dumps(
                to_json({tp: min(end, named.get(tp, end)) for tp, end in ends.items()})
            )

    def _stages(self, session: SparkSession, options: Mapping[str, Mapping[str, str]]) -> DataFrame:
        """Return the whole plan: sources, stage 0 and the later stages."""
        from pyspark.sql import functions as F

        pickled = PickledPlan(self._plan, self._path, self._modules)
        frames = [
            session.readStream.format("downspout")
            .options(**given)
            .load()
            .select(F.lit(name).alias("spout"), *COLUMNS)
            .withColumn("headers", F.expr(NO_NULL_HEADERS))
            for name, given in options.items()
        ]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionByName(other)
        skip, timers = self._batches.exhausted, "ProcessingTime" if self._plan.ticks else "None"
        rows = frame.mapInArrow(FirstStage(pickled, skip, self._batches.chunk_limits), SCHEMA)
        for stage in self._plan.stages[1:]:
            rows = rows.groupBy("component", "task").transformWithStateInPandas(
                StatefulStage(pickled, stage.level, skip), SCHEMA, "Append", timers
            )
        return rows

    def _start(
        self, session: SparkSession, options: Mapping[str, Mapping[str, str]], trigger_s: float
    ) -> StreamingQuery:
        frame = self._stages(session, options)
        writer = frame.writeStream.foreachBatch(self._batches).outputMode("append").queryName(self._graph.name)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if self._bounded:
            writer = writer.trigger(availableNow=True)
        else:
            # With timers, Spark also runs batches without input; this limits their rate.
            least = TICK_S if self._plan.ticks else 0.0
            writer = writer.trigger(processingTime=f"{max(trigger_s, least)} seconds")
        tasks = max(1, min(sum(self._plan.stateful.values()), PARTITIONS_MAX))
        wanted = {
            "spark.sql.shuffle.partitions": str(tasks),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            **self._checkpointing(),
            # With timers, batches without input would prevent a bounded run from ending.
            "spark.sql.streaming.noDataMicroBatches.enabled": str(not self._bounded).lower(),
        }
        with _settings(session, wanted), self._awaiting("the query to start"):
            return writer.start()

    def _checkpointing(self) -> dict[str, str]:
        """Return how Spark stores state: whole after each batch or, for states by key, as changes.

        With change logs, a snapshot of a batch's first computation may survive the second one, unless files are named
        after the computation (format 2). Format 1 remains for all other states, as existing checkpoints have it.
        """
        by_key = bool(self._plan.stateful_keys)
        return {
            f"{ROCKSDB_SETTINGS}.changelogCheckpointing.enabled": str(by_key).lower(),
            "spark.sql.streaming.stateStore.checkpointFormatVersion": "2" if by_key else "1",
        }

    @contextlib.contextmanager
    def _commits(self, session: SparkSession, options: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
        """Commit finished batches for lag tools, to a separate group: the other engines use the spout's group."""
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

    def _wait(self, query: StreamingQuery) -> str | None:
        """Wait for the end of the query; return the reason, or None if it must be restarted."""
        for_s, batches, silence = self._values["run.for_s"], self._batches, Silence(self._batches, self._report)

        def doing() -> str:
            try:
                return str(query.status["message"])
            except Exception:  # the JVM may be gone; awaitTermination reports it
                return "no answer"

        reason = "end"
        signals = self._signals
        signals.doing = lambda: f"batch {batches.number}" if batches.busy else STOPPING
        signals.watched = True
        try:
            while not query.awaitTermination(LOOK_S):
                if self._received:
                    reason = "signal"
                elif for_s is not None and SYSTEM_CLOCK.monotonic() - self._started >= for_s:
                    reason = "for"
                batches.stopping = reason != "end"
                if batches.stopping and (not batches.busy or len(self._received) > 1):
                    break
                silence.look(doing)
        except Exception as error:  # StreamingQueryException, PySpark's wrapper for every failure
            if self._received:  # the JVM may have died of the same signal
                batches.stopping = True
                self._let_finish()
                reason = "signal" if batches.error is None else "aborted"
            if not batches.stopping and self._begins_again(query, error):
                return None
            if not batches.stopping or isinstance(batches.error, DownspoutError):
                raise self._explain(error) from error
        finally:
            signals.watched, signals.doing = False, lambda: STOPPING
            with contextlib.suppress(Exception):  # the same signal may have ended the JVM
                query.stop()
                self._notify_listeners(query)
        return "aborted" if len(self._received) > 1 else reason

    def _let_finish(self) -> None:
        """Let the current batch finish without Spark: its rows may be here already and being committed."""
        until = SYSTEM_CLOCK.monotonic() + FINISH_S
        while self._batches.busy and len(self._received) < 2 and SYSTEM_CLOCK.monotonic() < until:
            SYSTEM_CLOCK.sleep(LOOK_S)

    def _begins_again(self, query: StreamingQuery | None, error: Exception) -> bool:
        """Return whether to restart the query after this error, after the pause before a restart.

        Raises:
            PassingError: it was restarted too often in a row.
        """
        if isinstance(self._batches.error, RecomputeError):
            self._batches.error = None
            return True
        cause, done = self._explain(error), self._batches.totals.batches
        self._outages, self._done_before = (1 if done > self._done_before else self._outages + 1), done
        # Without Kafka a query ends, while the other engines wait. To wait as well, the query is restarted, if it has
        # reached Kafka before; otherwise the address may be wrong.
        has_run = done or (query is not None and query.lastProgress)
        if isinstance(cause, BrokerError) and not isinstance(cause, UnreadableError) and has_run:
            what = cause.message
        elif isinstance(cause, PassingError):
            what = cause.message
            if self._outages > RESTARTS_MAX:
                raise passing(what, f", {self._outages} times in a row; batch {self._batches.number} is not committed")
        else:
            return False
        self._pause(f"{what}; restarting the query")
        self._batches.error = None
        return True

    def _beginning(self) -> str:
        """Describe where the query begins."""
        if done := batch_numbers(self._checkpoint / "commits"):
            return f"Spark is running; the query continues after batch {max(done)} of {self._checkpoint}"
        return f"Spark is running; the query starts where kafka.start says, with checkpoint {self._checkpoint}"

    def _notify_listeners(self, query: StreamingQuery) -> None:
        """Pass on the last batch, as nothing waits for Spark's own report, which may be delayed."""
        if (progress := query.lastProgress) is not None:
            for listener in self._listeners.values():
                listener.finished(str(query.id), json.loads(progress.json))

    def _explain(self, error: Exception) -> Exception:
        """Return the cause of Spark's error: our own error, raised on the driver or an executor, if any."""
        cause = error if self._batches.error is None else self._batches.error
        return explain(cause) or error

    def sum_up(self, reason: str) -> SparkRun:
        """Return the results of the run so far."""
        totals = self._batches.totals
        reports = {name: dict(report) for name, report in totals.reports.items()}
        for spout, count in totals.dead_lettered.items():
            reports.setdefault(spout, {})["dead_lettered"] = count
        counts = {name: replace(totals.counts.get(name, Counts())) for name in self._graph.components}
        result = RunResult(
            reason=reason,
            drained=True,
            duration_s=SYSTEM_CLOCK.monotonic() - self._started,
            components=counts,
            completed=totals.records - sum(totals.dead_lettered.values()),
            failed=sum(counts[name].failed for name in self._plan.spouts),
            timeouts=0,
            in_flight=0,
            latency_p50_ms=None,
            latency_p99_ms=None,
            errors=[*totals.errors],
            reports=reports,
            spouts=list(self._plan.spouts),
            signal=self._received[0] if self._received else None,
        )
        return SparkRun(result, self._checkpoint, totals.batches, totals.again)


# --- signs of life ---

REPORTED_EVERY_S = 10.0  # How often a wait is reported
IDLE_S_MAX = 300.0
"""Idleness is reported after 10 s, then at doubling intervals, which grow by at most this."""
IDLE = "Waiting for "
"""The beginning of Spark's status of an idle query, which waits for data or its next trigger."""


class Silence:
    """Reports progress, or the lack of it, if no batch was committed for some time."""

    def __init__(self, batches: BatchCommitter, report: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._batches, self._report, self._clock = batches, report, clock
        self._since = self._reported = clock.monotonic()
        self._idle_s = REPORTED_EVERY_S
        self._done = batches.totals.batches

    def look(self, doing: Callable[[], str]) -> None:
        """Report if due; ``doing`` returns Spark's status of the query and is only called then."""
        now, done = self._clock.monotonic(), self._batches.totals.batches
        if done != self._done:
            self._done, self._since, self._reported, self._idle_s = done, now, now, REPORTED_EVERY_S
        if now - self._reported < REPORTED_EVERY_S:
            return
        silent_s = now - self._since
        if self._batches.busy:
            self._report(f"batch {self._batches.number} is still running; nothing was committed for {silent_s:,.0f} s")
        elif not (what := doing()).startswith(IDLE):
            self._report(f"waiting for Spark ({what}); nothing was committed for {silent_s:,.0f} s")
        elif silent_s >= self._idle_s:
            self._idle_s = min(2 * self._idle_s, self._idle_s + IDLE_S_MAX)
            self._report(f"nothing new for {silent_s:,.0f} s")
        self._reported = now


# --- snapshots for the page ---

RECENT = 100  # Batches kept for the page

Partitions = dict[str, dict[str, dict[str, int | None]]]  # figures by spout and partition


@dataclass(frozen=True)
class QuerySnapshot:
    """A query at one moment."""

    result: RunResult  # of the committed batches
    batches: Sequence[CommittedBatch]  # recent ones, the latest first
    computed_again: int
    cores: int  # number of concurrent tasks
    stopping: bool
    partitions: Partitions  # offsets of the last batch that Spark has reported


class QuerySnapshots:
    """Snapshots of a query for other threads; ``sum_up`` is only called in the thread that adds batches up."""

    def __init__(self, name: str, batches: BatchCommitter, sum_up: Callable[[], RunResult]) -> None:
        self._name, self._batches, self._sum_up = name, batches, sum_up
        self._begun_s = 0.0
        self._cores = 1
        self._recent: deque[CommittedBatch] = deque(maxlen=RECENT)
        self._so_far: RunResult | None = None
        self._progress: LatestProgress | None = None

    @contextlib.contextmanager
    def listening(self, session: SparkSession) -> Iterator[None]:
        """Follow the query's progress; :meth:`latest` returns snapshots from now on."""
        self._so_far, self._cores = self._sum_up(), session.sparkContext.defaultParallelism
        self._begun_s = SYSTEM_CLOCK.monotonic() - self._so_far.duration_s
        self._progress = LatestProgress(session, self._name)
        try:
            yield
        finally:
            self._progress.close()

    def note(self, batch: CommittedBatch) -> None:
        """Record a batch, in the thread that adds batches up."""
        self._so_far = self._sum_up()
        self._recent.appendleft(batch)

    def latest(self) -> QuerySnapshot | None:
        """Return a snapshot; None before the query has begun. Thread-safe."""
        if self._progress is None or self._so_far is None:
            return None
        result = replace(self._so_far, duration_s=SYSTEM_CLOCK.monotonic() - self._begun_s)
        batches, progress = self._batches, self._progress.latest
        partitions = partitions_of(progress, batches.spout_of) if progress is not None else {}
        recent = tuple(self._recent.copy())
        return QuerySnapshot(result, recent, batches.totals.again, self._cores, batches.stopping, partitions)


def partitions_of(progress: Mapping[str, Any], spout_of: Callable[[str], str]) -> Partitions:
    """Return the offsets in a query's progress (parsed JSON); None for those that a source does not report."""
    found: Partitions = {}
    lags = lag_of(progress)
    for tp, end in sorted(ends_of(progress).items()):
        lag = lags.get(tp)
        figures = {"committed": end, "end": None if lag is None else end + lag, "lag": lag}
        found.setdefault(spout_of(tp.topic), {})[coordinates(tp.topic, tp.partition)] = figures
    return found
