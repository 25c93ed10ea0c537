"""The driver's side of a batch: compute it, write dead letters, commit to the sinks, in this order.

A batch is one transaction. Spark records its offsets and calls :class:`BatchCommitter`; when that returns, Spark
records the batch as finished. Each sink's commit log has one entry for it, named after query and batch. After a crash
at any point, Spark calls again with the same offsets and the previous state; a sink that has the entry skips the batch.

A tuple that fails in a later stage fails the batch and with it the query, which is restarted and computes the batch
again from the previous state. A record whose tuples fail too often is exhausted: the batch is computed without it, and
its dead letter is durable before any sink commits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import downspout.errors
from downspout.batches.core.state_values import ForeignValueError
from downspout.batches.stores import BatchStoreError, Key
from downspout.clock import SYSTEM_CLOCK
from downspout.component import Failure
from downspout.dead_letters.claims import PlainRecord
from downspout.dead_letters.dead_letter import DeadLetters
from downspout.engine.result import COUNTED, Counts
from downspout.errors import ComponentError, DownspoutError, RecordError, coordinates
from downspout.formatting import counted
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.kafka.scan import scan
from downspout.kafka.unreadable import Limits
from downspout.metrics import METRICS as KNOWN_METRICS
from downspout.settings.secrets import resolve_client
from downspout.sink.writer import BatchWriter, Flushed, OutdatedError, Staged
from downspout.spark.topology.checkpoint_claim import recall, remember
from downspout.spark.topology.operators import whole_topology
from downspout.spark.topology.record_input import SpoutSettings, breaker_opens
from downspout.spark.topology.spout_options import dead_letter_topic_of
from downspout.spark.topology.stage_rows import (
    ERROR,
    EXHAUSTED,
    FAILED,
    METRICS,
    STAGED,
    STATE,
    ChunkPlace,
    ExhaustedRecord,
    RecordPlace,
    StageMetrics,
    load,
    places_of,
)
from downspout.spark.topology.stages import StagePlan, attempt_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("downspout.spark")


@dataclass
class Totals:
    """The metrics of all batches of a run."""

    batches: int = 0
    records: int = 0  # of committed batches
    dead_lettered: Counter[str] = field(default_factory=Counter)
    again: int = 0  # recomputations because a tuple failed
    counts: dict[str, Counts] = field(default_factory=dict)
    reports: defaultdict[str, dict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict[str, float](int))
    )
    """by component"""
    errors: list[str] = field(default_factory=list)  # one line per kind of error, with its count

    def add(self, metrics: StageMetrics) -> None:
        """Add the metrics of one run of a stage."""
        for name, found in metrics.counts.items():
            counts = self.counts.setdefault(name, Counts())
            for counter in COUNTED:
                setattr(counts, counter, getattr(counts, counter) + getattr(found, counter))
        for name, report in metrics.reports.items():
            known = self.reports[name]
            for metric, amount in report.items():
                is_gauge = metric in KNOWN_METRICS and KNOWN_METRICS[metric].kind == "gauge"
                known[metric] = amount if is_gauge else known[metric] + amount
        for name, filtered in metrics.filtered.items():
            self.reports[name]["filtered"] += filtered
        self.errors += [error for error in metrics.errors if error not in self.errors][: _ERRORS - len(self.errors)]


_ERRORS = 20  # Kinds of errors that are reported at the end
_SHOWN = 5  # Records that a warning names
PARTS = 100
"""A chunk that fails in a later stage is split into so many. An attempt takes seconds, so halving would be too slow."""


@dataclass(frozen=True)
class CommittedBatch:
    """A committed batch: Spark's number, and the numbers of records read and dead-lettered."""

    number: int
    records: int
    seconds: float
    dead_lettered: int
    at_ms: int = 0  # time of the commit, since the epoch


class _Outcome:
    """The results of one computation of a batch."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self.staged: dict[str, list[Staged]] = {}
        self.exhausted: list[ExhaustedRecord] = []
        self.failed: list[tuple[str, tuple[RecordPlace | ChunkPlace, ...], Failure]] = []
        self.metrics: list[StageMetrics] = []
        self.held: dict[str, list[dict[Any, Any]]] = {}  # by state, one dict per task
        self.error: DownspoutError | None = None
        for kind, component, _, payload in rows:
            what = load(payload)
            if kind == STAGED:
                self.staged.setdefault(component, []).extend(what)
            elif kind == STATE:
                self.held.setdefault(component, []).append(what)
            elif kind == EXHAUSTED:
                self.exhausted.append(what)
            elif kind == FAILED:
                self.failed.append((component, *what))
            elif kind == METRICS:
                self.metrics.append(what)
            elif kind == ERROR:
                name, message, cure = what
                self.error = self.error or getattr(downspout.errors, name, DownspoutError)(message, cure=cure)

    @property
    def reads(self) -> list[tuple[str, str, int, int, int]]:
        """The records that were read."""
        return sorted(read for metrics in self.metrics for read in metrics.reads)


class RecomputeError(Exception):
    """The batch must be computed again from the previous state, by a restart of the query.

    Within the same query, Spark would reuse shuffled rows, with the files that they name.
    """


_Blamed = RecordPlace | ChunkPlace | None  # What a failure counts against; None: no record


class StoppingError(Exception):
    """A batch was not begun because the run is stopping."""


@dataclass
class _RetryState:
    """The failures of a record or chunk in later stages."""

    failures: int = 0
    timeouts: int = 0
    tries: int = 0  # for the back-off; includes those that an outage ended, which do not count as attempts
    first_ms: int = 0


class BatchCommitter:
    """The function for ``foreachBatch``.

    Attributes:
        exhausted: records of the current batch that failed too often; the next attempt skips them.
    """

    def __init__(
        self,
        plan: StagePlan,
        query: str,
        groups: Mapping[str, str],
        on_batch: Callable[[CommittedBatch], None] | None = None,
        *,
        checkpoint: Path,
    ) -> None:
        self._checkpoint = checkpoint
        self._plan, self._query = plan, query
        self._dead_letter_topics = {name: dead_letter_topic_of(plan.confs[name], each) for name, each in groups.items()}
        self._on_batch = on_batch or (lambda batch: None)
        self._spouts = {name: SpoutSettings(name, plan.confs[name]) for name in plan.spouts}
        self._topics: dict[str, str] = {}
        self._writers: dict[str, BatchWriter] = {}
        self._patiently: dict[str, Callable[[Callable[[], Flushed]], Flushed]] = {}
        self._states = States(plan, query)
        self.totals = Totals()
        self.error: BaseException | None = None  # the error that ended the query, if raised here
        self.busy = False  # whether a batch is in progress
        self.stopping = False  # set by other threads: begin no further batch
        self.number = -1  # Spark's number of the current batch
        self._recalled, self.exhausted = recall(checkpoint)
        # its failed chunks, and how many of their records may go together in the next attempt
        self.chunk_limits: dict[ChunkPlace, int] = {}
        self._retry_states: dict[_Blamed, _RetryState] = {}
        self._written: set[RecordPlace] = set()  # its records whose dead letters are durable
        self._number = -1

    def open(self) -> None:
        """Open the sinks' directories before anything runs; raise if one is another sink's or not writable."""
        self._states.check()
        tasks = whole_topology(self._plan)
        for sink in self._plan.sinks:
            task = tasks[sink.name, 0]
            task.world.created = _commits_batches
            task.build()
            self._writers[sink.name], self._patiently[sink.name] = task.instance.writer, task.instance.patiently

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Compute a batch and commit it."""
        # A thread that stops the run sets ``stopping`` and then checks ``busy``; this one sets ``busy`` and then checks
        # ``stopping``. So at least one of them sees the other, and no batch that could finish is interrupted.
        self.busy, self.number = True, number
        try:
            if self.stopping:
                raise StoppingError
            self._run(frame, number)
        except StoppingError:
            raise
        except BaseException as error:
            self.error = self.error or error
            raise
        finally:
            self.busy = False

    def _run(self, frame: DataFrame, number: int) -> None:
        started = time.monotonic()
        outcome = _Outcome(frame.collect())
        if outcome.error is not None:
            self._discard(outcome)
            raise outcome.error
        if number != self._number:  # otherwise it is computed again
            self._number = number
            self._written.clear()
            if number != self._recalled:  # the recalled records are of an earlier, finished batch
                self.exhausted.clear()
            self._note_reads(outcome)
        if outcome.failed:
            self._discard(outcome)
            self._count_failures(outcome)
            raise RecomputeError
        exhausted = [*outcome.exhausted, *self.exhausted.values()]
        unwritten = [each for each in exhausted if each.place not in self._written]
        self._look_at_breakers([each for each in unwritten if each.record is None])
        # In this order, a restart after a crash knows which records the batch is committed without, and no sink has the
        # batch before all its dead letters are durable.
        if unwritten:
            remember(self._checkpoint, number, {each.place: each for each in exhausted})
        write_dead_letters(unwritten, self._spouts, self._dead_letter_topics, feeds_states=bool(self._plan.states))
        self._written.update(each.place for each in unwritten)
        self._commit(number, outcome)
        self._retry_states.clear()
        self.exhausted.clear()
        self.chunk_limits.clear()
        self._add_up(number, outcome, exhausted, time.monotonic() - started)

    def _add_up(self, number: int, outcome: _Outcome, exhausted: list[ExhaustedRecord], seconds: float) -> None:
        for metrics in outcome.metrics:
            self.totals.add(metrics)
        records = sum(count for *_, count in outcome.reads)
        self.totals.batches += 1
        self.totals.records += records
        self.totals.dead_lettered.update(each.spout for each in exhausted)
        for each in exhausted:
            if each.unreadable is not None:
                self.totals.reports[each.spout]["unreadable"] += each.unreadable.count
        at_ms = int(SYSTEM_CLOCK.wall() * 1000)
        self._on_batch(CommittedBatch(number, records, seconds, len(exhausted), at_ms))

    def spout_of(self, topic: str) -> str:
        """Return the spout that reads a topic; the first one for a topic that no batch has had."""
        return self._topics.get(topic, next(iter(self._spouts)))

    def _note_reads(self, outcome: _Outcome) -> None:
        for spout, topic, partition, first, count in outcome.reads:
            self._topics[topic] = spout
            self._spouts[spout].note_read(topic, partition, first, count)

    def _count_failures(self, outcome: _Outcome) -> None:
        """Count the failures of a batch, exhaust records that failed too often, and wait for the back-off."""
        now_ms, wait_ms = int(SYSTEM_CLOCK.wall() * 1000), 0
        self.totals.again += 1
        # If a bolt was restarted, the tuples it held have timed out, but only because of the tuple that it raised on.
        culprits = [failed for failed in outcome.failed if failed[2].kind != "timeout"]
        last: dict[_Blamed, tuple[str, Failure]] = {}
        for component, places, failure in culprits or outcome.failed:
            for place in self._blamed(places):
                last[place] = component, failure
        for place, (component, failure) in last.items():
            state = self._retry_states.setdefault(place, _RetryState(first_ms=now_ms))
            state.failures += failure.kind != "timeout"
            state.timeouts += failure.kind == "timeout" and not failure.outage
            state.tries += 1
            wait_ms = max(wait_ms, self._wait_or_exhaust(place, state, component, failure, now_ms))
        log.warning("%s: the batch is computed again", _failed_text(last, self._retry_states))
        time.sleep(wait_ms / 1000)

    def _blamed(self, places: tuple[RecordPlace | ChunkPlace, ...]) -> Iterator[_Blamed]:
        """Yield the records or chunks that a failure counts against."""
        if not places:
            yield None
        for place in places:
            # A chunk that fails again although it was split is of an earlier batch: a bolt has held it, so it is not
            # read again in parts. Then each of its records has failed.
            if isinstance(place, ChunkPlace) and place in self.chunk_limits:
                yield from places_of([place])
            else:
                yield place

    def _wait_or_exhaust(
        self, place: _Blamed, state: _RetryState, component: str, failure: Failure, now_ms: int
    ) -> int:
        """Exhaust the record or split the chunk, if it is time; return the pause before the next attempt in ms."""
        spout = self._spouts[self.spout_of(place.topic if place else "")]
        attempts = state.failures + state.timeouts
        if isinstance(place, ChunkPlace):  # a failure of many records counts against none of them
            if state.failures or state.timeouts >= spout.settings["timeouts_max"]:
                self.chunk_limits[place] = max(1, place.size // PARTS)
            return spout.backoff.delay(state.tries)
        if state.failures <= spout.settings["retries_max"] and state.timeouts < spout.settings["timeouts_max"]:
            return spout.backoff.delay(state.tries)
        if place is None or place in self.exhausted:
            raise ComponentError(
                f"{component} failed {attempts} times, but never on a tuple from a record of this batch: "
                f"{failure.error or failure.kind}",
                cure="correct the bolt: there is no record that could be dead-lettered in its place",
            )
        self.exhausted[place] = ExhaustedRecord(spout.name, place, None, attempts, state.first_ms, now_ms, failure)
        log.warning("%s is dead-lettered after %s", where_is(place), counted(attempts, "try", "tries"))
        return 0

    def _look_at_breakers(self, exhausted: Iterable[ExhaustedRecord]) -> None:
        """Raise a RecordError if later stages have exhausted too many records; stage 0 checks its own."""
        for each in exhausted:
            place = each.place
            breaker = self._spouts[each.spout].breaker(place.topic, place.partition)
            if trip := breaker.give_up(place.offset, each.failure.error.partition(":")[0]):
                raise breaker_opens(place, trip, each.failure)

    def _commit(self, number: int, outcome: _Outcome) -> None:
        """Commit to each sink; raise a RecomputeError if a directory has changed since the rows were staged."""
        for name, writer in self._writers.items():
            batch, parts = f"{name}-spark-{self._query}-{number}", outcome.staged.pop(name, ())
            try:
                self._patiently[name](partial(writer.commit, batch, parts))
            except OutdatedError:
                log.warning("another writer has changed %s: batch %d is computed again", writer.directory, number)
                self._discard(outcome)
                raise RecomputeError from None
        for name, report in self._states.apply(number, outcome.held).items():
            for metric, amount in report.items():
                self.totals.reports[name][metric] += amount

    def _discard(self, outcome: _Outcome) -> None:
        for name, staged in outcome.staged.items():
            self._writers[name].discard(staged)


def _failed_text(failed: Mapping[_Blamed, tuple[str, Failure]], states: Mapping[_Blamed, _RetryState]) -> str:
    """Describe which records failed, with the error of the first."""
    named = [where_is(place) if place is not None else "a tuple that came from no record" for place in failed]
    shown = ", ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN:,} more" if len(named) > _SHOWN else "")
    place, (component, failure) = next(iter(failed.items()))
    return f"{shown} failed in {component}, try {states[place].tries}, the first by {failure.error or failure.kind}"


def _commits_batches(task: Any) -> None:
    task.instance.writer_class = BatchWriter


# --- dead letters ---

WRITE_S_MAX = 30.0


def write_dead_letters(
    exhausted: Iterable[ExhaustedRecord],
    spouts: Mapping[str, SpoutSettings],
    topics: Mapping[str, str],
    *,
    feeds_states: bool = False,
) -> None:
    """Write dead letters to the topic of each spout; they are durable when this returns.

    Args:
        exhausted: records that have failed for good.
        spouts: the settings of their spouts.
        topics: by spout; empty: the first such record ends the run.
        feeds_states: whether the topology is one of batches, which write no dead letters.

    Raises:
        BrokerError: they cannot be written.
        RecordError: a spout has no topic for them, or Kafka no longer has a record.
    """
    by_spout: dict[str, list[ExhaustedRecord]] = {}
    for each in exhausted:
        by_spout.setdefault(each.spout, []).append(each)
    for name, own in by_spout.items():
        if not topics[name]:
            first = own[0]
            raise RecordError(
                f"{where_is(first.place)} failed for good, last by {first.failure.kind}: {first.failure.error}",
                cure="correct the bolt; or emit such records earlier, as rejects for a DeadLetterBolt"
                if feeds_states
                else "correct the bolt or the record; or set kafka.dead_letter_topic, to go on without it",
            )
        _write(own, spouts[name].settings, topics[name])


def _write(exhausted: Iterable[ExhaustedRecord], settings: Mapping[str, Any], topic: str) -> None:
    client = resolve_client(settings["client"])
    cluster = cluster_for(settings["bootstrap"], client)
    with closing(DeadLetters(cluster, topic, timeout_s=WRITE_S_MAX)) as writer:
        for each in exhausted:
            writer.queue(
                each.record or _read(cluster, each.place, client, settings),
                attempts=each.attempts,
                first_failure_ms=each.first_ms,
                last_failure_ms=each.last_ms,
                failure=each.failure,
                topic_id=each.place.topic_id,
                unreadable=each.unreadable,
            )
        writer.flush()


def _read(cluster: Any, place: RecordPlace, client: Mapping[str, Any], settings: Mapping[str, Any]) -> PlainRecord:
    """Read a record of which a later stage only knew the place."""
    tp = TopicPartition(place.topic, place.partition)
    consumer = cluster.consumer(group=None, client=client)
    consumer.tolerate(Limits.of(settings["record_bytes_max"]), large=False, corrupt=False)
    try:
        consumer.assign([tp])
        for (found,) in scan(consumer, tp, place.offset, place.offset + 1):
            return PlainRecord(*(getattr(found, name) for name in PlainRecord.__slots__))
    finally:
        consumer.close()
    raise RecordError(
        f"{where_is(place)} failed for good, but Kafka no longer has it for its dead letter",
        cure="extend the retention; or correct the bolt, so that the batch succeeds",
    )


def where_is(place: RecordPlace | ChunkPlace) -> str:
    """Name a record as all messages do; for a chunk, its first and last record."""
    first = coordinates(place.topic, place.partition, place.offset)
    return first if isinstance(place, RecordPlace) else f"{first} to {place.end - 1} ({counted(place.size, 'record')})"


# --- states ---


class States:
    """The StateBolts of a query.

    Micro-batches are numbered per checkpoint. So a state belongs to a query: one with another checkpoint is rejected;
    otherwise its batch 0 would be skipped as already applied.
    """

    def __init__(self, plan: StagePlan, query: str) -> None:
        owned = {name: {**plan.confs[name], "batch.id": f"query {query}"} for name in plan.states}
        self._names, self._plan = plan.states, replace(plan, confs={**plan.confs, **owned})

    def check(self) -> None:
        """Open each state once, and raise its errors."""
        for name in self._names:
            with self._opened(name):
                pass

    def apply(self, number: int, held: Mapping[str, Sequence[Mapping[Key, Any]]]) -> dict[str, Mapping[str, float]]:
        """Apply a micro-batch, given the values held by each state's tasks; return each state's own metrics.

        Raises:
            BatchStoreError: a database does not answer, or is locked.
            ComponentError: the batch cannot be applied to a state, and retries would not help.
        """
        reports: dict[str, Mapping[str, float]] = {}
        for name in self._names:
            # The grouping puts each key in one task only.
            batch = {key: value for part in held.get(name, ()) for key, value in part.items()}
            try:
                with self._opened(name) as bolt:  # in this thread: SQLite binds a connection to one
                    bolt.apply_attempt(attempt_of(number), batch)
                    reports[name] = dict(bolt.report())
            except (BatchStoreError, ForeignValueError) as error:
                if isinstance(error, BatchStoreError) and error.passes:
                    raise
                raise ComponentError(
                    f"{name}: batch {number}: {error}",
                    cure="the checkpoint that the state was written with; or another state.name, which begins anew",
                ) from error
        return reports

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        task = whole_topology(self._plan)[name, 0]
        task.build()
        try:
            yield task.instance
        finally:
            task.instance.close()
