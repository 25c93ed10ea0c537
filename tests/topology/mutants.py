"""Wrong versions of the product, each of which the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from downspout.engine import bulk_calls
from downspout.ledger import ENDED, PartitionLedger
from downspout.parse.chunk_bolt import Rejects
from downspout.sink import Identities, Recovery, SinkWriter
from downspout.sink.sink_bolt import SinkBolt
from downspout.spout import (
    CommitState,
    CrashIsolation,
    DeadLettering,
    Partition,
    PartitionAssignment,
    PartitionCursor,
    RecordEmitter,
    rebalancing,
)

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


CHUNK_MUTANTS: dict[str, Callable[[Patch], None]] = {}


def chunk_mutant(make: Callable[[Patch], None]) -> Callable[[Patch], None]:
    CHUNK_MUTANTS[make.__name__] = make
    return make


def mutant(make: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[make.__name__] = make
    return make


@mutant
def commit_what_is_in_flight(patch: Patch) -> None:
    patch.setattr(PartitionLedger, "commit_point", lambda self: self.next)


@mutant
def commit_past_what_failed(patch: Patch) -> None:
    def commit_point(self: PartitionLedger) -> int:
        return min(self._flying, default=self.next)

    patch.setattr(PartitionLedger, "commit_point", commit_point)


@mutant
def tell_one_more_as_done(patch: Patch) -> None:
    """The metadata says of the record behind each acked range that it is done too."""
    real = PartitionLedger.done_beyond
    patch.setattr(
        PartitionLedger, "done_beyond", lambda self, offset: ((start, end + 1) for start, end in real(self, offset))
    )


@mutant
def ack_before_it_is_durable(patch: Patch) -> None:
    real = SinkBolt.process

    def process(self: Any, tup: Any) -> None:
        real(self, tup)
        self.ack(tup)

    patch.setattr(SinkBolt, "process", process)


@mutant
def write_what_is_there(patch: Patch) -> None:
    """The sink does not ask whether rows are in the directory already."""
    patch.setattr(Identities, "not_in", lambda self, coverage: np.ones(len(self), dtype=bool))


@mutant
def leave_files_hidden(patch: Patch) -> None:
    """Whoever opens the directory does not bring into sight what is committed."""
    patch.setattr(Recovery, "_move", lambda self, paths, source, target: None)


@mutant
def do_not_look_again_after_a_conflict(patch: Patch) -> None:
    """A writer that was overtaken appends what it had staged, whatever the others wrote."""
    real = SinkWriter._append

    def append(self: SinkWriter, staged: Any, coverage: Any) -> bool:
        while not real(self, staged, coverage):
            self.log.refresh()
        return True

    patch.setattr(SinkWriter, "_append", append)


@mutant
def forget_what_was_polled(patch: Patch) -> None:
    """Records that were polled and not emitted are not read again after a rebalance."""

    def put_back(self: PartitionCursor, consumer: Any) -> None:
        self.waiting, self.at, self.noted = (), 0, 0

    patch.setattr(PartitionCursor, "put_back", put_back)


@mutant
def commit_for_others(patch: Patch) -> None:
    """A member goes on committing for partitions that were taken away from it: a broker accepts that."""
    forget, position, commit = PartitionAssignment._forget, PartitionCursor.position, rebalancing.commit_acked
    gone: dict[tuple[int, Any], Partition] = {}

    def keep(self: PartitionAssignment, tp: Any) -> None:
        part = self.parts.get(tp) or self._aside.get(tp)
        forget(self, tp)
        if part is not None:
            gone[id(self._consumer), tp] = part

    def commit_all(consumer: Any, parts: Any, *given: Any, **named: Any) -> bool:
        mine = {part.tp: part for part in parts}
        others = {tp: part for (owner, tp), part in gone.items() if owner == id(consumer) and tp not in mine}
        return commit(consumer, [*mine.values(), *others.values()], *given, **named)

    def reached(cursor: PartitionCursor, consumer: Any) -> int:
        return position(cursor, consumer) if cursor.tp in consumer.assignment() else cursor.reading

    patch.setattr(PartitionAssignment, "_forget", keep)
    patch.setattr(PartitionCursor, "position", reached)
    patch.setattr(rebalancing, "commit_acked", commit_all)


@mutant
def ack_what_failed(patch: Patch) -> None:
    patch.setattr(RecordEmitter, "fail", lambda self, tup_id, failure: self.ack(tup_id))


@mutant
def never_retry_a_timeout(patch: Patch) -> None:
    real = PartitionLedger.timeout

    def timeout(self: PartitionLedger, offset: int, now: int) -> Any:
        trouble = real(self, offset, now)
        self.postpone(offset, 1 << 62)
        return trouble

    patch.setattr(PartitionLedger, "timeout", timeout)


@mutant
def resolve_before_the_letter_is_written(patch: Patch) -> None:
    """A record is done with when its dead letter was sent, and what becomes of the letter is nobody's concern."""

    def failed(self: DeadLettering, batch: Any, error: Exception, refusal: Any) -> None:
        self._durable += batch

    patch.setattr(DeadLettering, "_failed", failed)


@mutant
def commit_once(patch: Patch) -> None:
    """What was committed by an earlier owner, or by us, is never committed again."""
    real = CommitState.is_due

    def is_due(self: CommitState, point: int, metadata: str, now: int) -> bool:
        return self.last is None and real(self, point, metadata, now)

    patch.setattr(CommitState, "is_due", is_due)


@mutant
def tell_nothing_of_deaths(patch: Patch) -> None:
    """Commits do not tell that a process may have died of a record."""
    patch.setattr(CrashIsolation, "to_commit", lambda self, point: ENDED)


# --- of chunks ---


@chunk_mutant
def forget_the_rest_of_what_is_split(patch: Patch) -> None:
    """Of a range that failed the first part goes out again, and the rest counts as done."""
    real = PartitionLedger.emit_part

    def emit_part(self: PartitionLedger, offset: int, start: int, end: int, records: int, now: int) -> int:
        gone = real(self, offset, start, end, records, now)
        self.resolve(end)
        return gone

    patch.setattr(PartitionLedger, "emit_part", emit_part)


@chunk_mutant
def ack_chunks_before_they_are_durable(patch: Patch) -> None:
    real = SinkBolt.process_chunk

    def process_chunk(self: Any, tup: Any) -> None:
        real(self, tup)
        self.ack(tup)

    patch.setattr(SinkBolt, "process_chunk", process_chunk)


@chunk_mutant
def put_aside_and_forget(patch: Patch) -> None:
    """Rows of a chunk that are rejected leave on no stream."""
    patch.setattr(Rejects, "of_chunk", lambda self, batch, rejected: None)


@chunk_mutant
def deliver_one_part(patch: Patch) -> None:
    """A chunk that a fields grouping takes apart reaches one task."""
    real = bulk_calls._parts
    patch.setattr(bulk_calls, "_parts", lambda *given: list(real(*given))[:1])
