"""The driver's side of a batch: compute it, write dead letters, commit to the sinks, in this order.

A batch is one transaction. Spark writes down its offsets, then calls :class:`Batches`; when that returns, Spark writes
down that the batch is done. Each sink's commit log has one entry for it, named after query and batch. Stopped
anywhere, Spark calls again with the same offsets and the state from before; a sink whose entry is there is left alone.

A tuple that failed in a later stage fails the batch and with it the query, which is started again and computes the
batch from the state before it. A record whose tuples failed too often is given up: the batch is computed without it,
and its dead letter is durable before any sink commits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import downspout.errors
from downspout.clock import SYSTEM_CLOCK
from downspout.component import Failure
from downspout.errors import ComponentError, DownspoutError
from downspout.local.result import Counts
from downspout.parquet.staged import BatchWriter, OutdatedError, Staged
from downspout.spark.topology.checkpoint import recall, remember
from downspout.spark.topology.letters import where_is, write_letters
from downspout.spark.topology.rows import (
    ERROR,
    FAILED,
    FIGURES,
    LETTER,
    STAGED,
    Figures,
    Letter,
    Place,
    Span,
    load,
    places_of,
)
from downspout.spark.topology.sources import letters_topic
from downspout.spark.topology.spout import Spout, breaker_opens
from downspout.spark.topology.stage import Shipment, whole_topology
from downspout.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["AgainError", "Batches", "Done", "Totals"]

log = logging.getLogger("downspout.spark")


@dataclass
class Totals:
    """Figures of all batches of a run.

    Attributes:
        batches: how many.
        records: that were read and are done.
        dead_lettered: of them.
        again: batches that were computed again because a tuple failed.
        counts: by component.
        reports: by component.
        errors: one line per kind of error, with how often.
    """

    batches: int = 0
    records: int = 0
    dead_lettered: Counter[str] = field(default_factory=Counter)
    again: int = 0
    counts: dict[str, Counts] = field(default_factory=dict)
    reports: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, figures: Figures) -> None:
        """Add what a pass did."""
        for name, values in figures.counts.items():
            counts = self.counts.setdefault(name, Counts())
            for figure, value in zip(_COUNTED, values, strict=True):
                setattr(counts, figure, getattr(counts, figure) + value)
        for name, report in figures.reports.items():
            known = self.reports.setdefault(name, {})
            for figure, amount in report.items():
                known[figure] = known.get(figure, 0) + amount
        for name, filtered in figures.filtered.items():
            known = self.reports.setdefault(name, {})
            known["filtered"] = known.get("filtered", 0) + filtered
        self.errors += [error for error in figures.errors if error not in self.errors][: _ERRORS - len(self.errors)]


_COUNTED = ("emitted", "executed", "acked", "failed", "errors", "restarts")
_ERRORS = 20
"""Kinds of errors that are told at the end."""
_SHOWN = 5
"""Records that a warning names."""
PARTS = 100
"""A chunk that failed in a later stage is tried again in so many. Each try costs some seconds: halves are too few."""


@dataclass(frozen=True)
class Done:
    """A batch that is committed.

    Attributes:
        number: Spark's.
        records: that were read.
        seconds: it took.
        letters: records that were dead-lettered.
    """

    number: int
    records: int
    seconds: float
    letters: int


class _Outcome:
    """What one computation of a batch brought."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self.staged: dict[str, list[Staged]] = {}
        self.letters: list[Letter] = []
        self.failed: list[tuple[str, tuple[Place | Span, ...], Failure]] = []
        self.figures: list[Figures] = []
        self.error: DownspoutError | None = None
        for kind, component, _, payload in rows:
            what = load(payload)
            if kind == STAGED:
                self.staged.setdefault(component, []).extend(what)
            elif kind == LETTER:
                self.letters.append(what)
            elif kind == FAILED:
                self.failed.append((component, *what))
            elif kind == FIGURES:
                self.figures.append(what)
            elif kind == ERROR:
                name, message, cure = what
                self.error = self.error or getattr(downspout.errors, name, DownspoutError)(message, cure=cure)

    @property
    def reads(self) -> list[tuple[str, str, int, int, int]]:
        """The records that came in."""
        return sorted(read for figures in self.figures for read in figures.reads)


class AgainError(Exception):
    """The batch must be computed again, from the state before it: start the query again.

    Within one query it cannot be: what has been shuffled would be used again, with the files that it names.
    """


class StoppingError(Exception):
    """A batch was not begun, because the run is to end."""


@dataclass
class _Trouble:
    failures: int = 0
    timeouts: int = 0
    first_ms: int = 0


class Batches:
    """What ``foreachBatch`` calls.

    Args:
        shipment: the topology.
        query: names the query in the sinks' logs; the same for each run on one checkpoint.
        groups: the consumer group of each spout, after which its dead-letter topic is named.
        told: hears of each batch that is done.
        checkpoint: the query's, to remember what a batch is committed without.

    Attributes:
        error: what ended the query, if it was here.
        busy: whether a batch is under way.
        number: Spark's, of that batch.
        stopping: set from outside: no other batch is begun.
        given_up: records of the batch under way that failed too often; whoever starts the query leaves them out.
        apart: records of it that failed together, and how many of them go together in the next try.
    """

    def __init__(
        self,
        shipment: Shipment,
        query: str,
        groups: Mapping[str, str],
        told: Callable[[Done], None] | None = None,
        *,
        checkpoint: Path,
    ) -> None:
        self._checkpoint = checkpoint
        self._shipment, self._query = shipment, query
        self._letter_topics = {name: letters_topic(shipment.confs[name], group) for name, group in groups.items()}
        self._told = told or (lambda done: None)
        self._spouts = {name: Spout(name, shipment.confs[name]) for name in shipment.plan.stages[0].heads}
        self._topics: dict[str, str] = {}
        self._writers: dict[str, BatchWriter] = {}
        self.totals = Totals()
        self.error: BaseException | None = None
        self.busy = self.stopping = False
        self.number = -1
        self._recalled, self.given_up = recall(checkpoint)
        self.apart: dict[Span, int] = {}
        self._troubles: dict[Place | Span | None, _Trouble] = {}
        self._written: set[Place] = set()
        """records of the batch under way whose dead letters are durable"""
        self._number = -1

    def open(self) -> None:
        """Open the sinks' directories; what is wrong with them is said before anything runs.

        Raises:
            DownspoutError: a directory cannot be written, is another sink's, or has other columns.
        """
        tasks = whole_topology(self._shipment.plan.graph, self._shipment.confs)
        for sink in self._shipment.plan.sinks:
            task = tasks[sink.name, 0]
            task.world.created = _commits_batches
            task.build()
            self._writers[sink.name] = task.instance.writer

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Compute a batch and commit it."""
        # Whoever stops the run sets ``stopping`` and then looks at ``busy``; here it is the other way round. So one of
        # the two sees the other, and no batch is interrupted that could have finished.
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
        if number != self._number:  # else it is computed again
            self._number = number
            self._written.clear()
            if number != self._recalled:  # that batch was finished; this one knows of nothing yet
                self.given_up.clear()
            self._note_reads(outcome)
        if outcome.failed:
            self._discard(outcome)
            self._set_back(outcome)
            raise AgainError
        letters = [*outcome.letters, *self.given_up.values()]
        unwritten = [letter for letter in letters if letter.place not in self._written]
        self._look_at_breakers([letter for letter in unwritten if letter.record is None])
        if unwritten:
            remember(self._checkpoint, number, {letter.place: letter for letter in letters})
        write_letters(unwritten, self._spouts, self._letter_topics)
        self._written.update(letter.place for letter in unwritten)
        self._commit(number, outcome)
        self._troubles.clear()
        self.given_up.clear()
        self.apart.clear()
        self._add_up(number, outcome, letters, time.monotonic() - started)

    def _add_up(self, number: int, outcome: _Outcome, letters: list[Letter], seconds: float) -> None:
        for figures in outcome.figures:
            self.totals.add(figures)
        records = sum(count for *_, count in outcome.reads)
        self.totals.batches += 1
        self.totals.records += records
        self.totals.dead_lettered.update(letter.spout for letter in letters)
        self._told(Done(number, records, seconds, len(letters)))

    def _note_reads(self, outcome: _Outcome) -> None:
        for spout, topic, partition, first, count in outcome.reads:
            self._topics[topic] = spout
            self._spouts[spout].note_read(topic, partition, first, count)

    def _set_back(self, outcome: _Outcome) -> None:
        """Count the failures of a batch that failed, give up what failed too often, and wait for the back-off."""
        now_ms, wait_ms = int(SYSTEM_CLOCK.wall() * 1000), 0
        self.totals.again += 1
        # Where a bolt was restarted, what it held has timed out; but that comes of the tuple that it raised on.
        culprits = [failed for failed in outcome.failed if failed[2].kind != "timeout"]
        last: dict[Place | Span | None, tuple[str, Failure]] = {}
        for component, places, failure in culprits or outcome.failed:
            for place in self._blamed(places):
                last[place] = component, failure
        for place, (component, failure) in last.items():
            trouble = self._troubles.setdefault(place, _Trouble(first_ms=now_ms))
            trouble.failures += failure.kind != "timeout"
            trouble.timeouts += failure.kind == "timeout"
            wait_ms = max(wait_ms, self._wait_or_give_up(place, trouble, component, failure, now_ms))
        log.warning("%s: the batch is computed again", _say_failed(last, self._troubles))
        time.sleep(wait_ms / 1000)

    def _blamed(self, places: tuple[Place | Span, ...]) -> Iterator[Place | Span | None]:
        """Yield whom a failure counts for.

        A chunk that comes again though it is apart is none of this batch: a bolt has held it. Then it is all of its
        records.
        """
        if not places:
            yield None
        for place in places:
            if isinstance(place, Span) and place in self.apart:
                yield from places_of([place])
            else:
                yield place

    def _wait_or_give_up(
        self, place: Place | Span | None, trouble: _Trouble, component: str, failure: Failure, now_ms: int
    ) -> int:
        """Return how long to wait before the next try, in ms; or give the record up. A chunk is taken apart.

        Raises:
            ComponentError: there is no record.
        """
        spout = self._spouts[self._topics.get(place.topic if place else "", next(iter(self._spouts)))]
        attempts = trouble.failures + trouble.timeouts
        if isinstance(place, Span):  # an attempt of many says nothing about any of them
            if trouble.failures or trouble.timeouts >= spout.settings["timeouts_max"]:
                self.apart[place] = max(1, place.size // PARTS)
            return spout.backoff.delay(attempts)
        if trouble.failures <= spout.settings["retries_max"] and trouble.timeouts < spout.settings["timeouts_max"]:
            return spout.backoff.delay(trouble.failures)
        if place is None or place in self.given_up:
            raise ComponentError(
                f"{component} failed {attempts} times, and not on a tuple that came of a record of this batch: "
                f"{failure.error or failure.kind}",
                cure="correct the bolt: there is no record to write to the dead-letter topic in its place",
            )
        self.given_up[place] = Letter(spout.name, place, None, attempts, trouble.first_ms, now_ms, failure)
        log.warning("%s is given up after %s", where_is(place), counted(attempts, "try", "tries"))
        return 0

    def _look_at_breakers(self, letters: Iterable[Letter]) -> None:
        """Raise a RecordError if too many records were given up; stage 0 looks at its own."""
        for letter in letters:
            place = letter.place
            breaker = self._spouts[letter.spout].breaker(place.topic, place.partition)
            if trip := breaker.give_up(place.offset, letter.failure.error.partition(":")[0]):
                raise breaker_opens(place, trip, letter.failure)

    # --- sinks --------------------------------------------------------------------------------------------

    def _commit(self, number: int, outcome: _Outcome) -> None:
        """Commit to each sink.

        Raises:
            AgainError: a sink's directory is not as it was when the rows were staged.
        """
        for name, writer in self._writers.items():
            try:
                writer.commit(f"{name}-spark-{self._query}-{number}", outcome.staged.pop(name, ()))
            except OutdatedError:
                log.warning("another writer was in %s meanwhile: batch %d is computed again", writer.directory, number)
                self._discard(outcome)
                raise AgainError from None

    def _discard(self, outcome: _Outcome) -> None:
        for name, staged in outcome.staged.items():
            self._writers[name].discard(staged)


def _say_failed(
    failed: Mapping[Place | Span | None, tuple[str, Failure]], troubles: Mapping[Place | Span | None, _Trouble]
) -> str:
    """Return which records failed, and the error of the first."""
    named = [where_is(place) if place is not None else "a tuple of no record" for place in failed]
    shown = ", ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN:,} more" if len(named) > _SHOWN else "")
    place, (component, failure) = next(iter(failed.items()))
    tries = troubles[place].failures + troubles[place].timeouts
    return f"{shown} failed in {component}, try {tries}, the first by {failure.error or failure.kind}"


def _commits_batches(task: Any) -> None:
    task.instance.writer_class = BatchWriter
