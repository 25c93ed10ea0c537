"""How tuples leave under at-least-once: each record is in the ledger before it is out.

How their answers come back is in ``downspout.spout.emit.settling``.

Its counterpart for the other guarantees is ``downspout.spout.emit.untracked_emitter.UntrackedEmitter``; for chunks,
``downspout.spout.emit.chunk_emitter.ChunkEmitter``. This is the spout's hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from downspout.clock import Clock
from downspout.component import Failure
from downspout.errors import USER_ERRORS, UserError
from downspout.kafka.retry_gate import describe
from downspout.spout.crash_isolation import CrashIsolation
from downspout.spout.cursor import offset_at
from downspout.spout.emit.settling import Settling
from downspout.spout.emit.translator import emit_rows
from downspout.spout.partition import LastFailure, Partition
from downspout.spout.services import SpoutServices

if TYPE_CHECKING:
    from downspout.spout.tracing import Tracing

__all__ = ["RecordEmitter"]

EmitMany = Callable[[Iterable[Any], Iterable[str]], None]
RUN_MAX = 512  # Records that are looked at together
_OFFSET, _VALUE = attrgetter("offset"), attrgetter("value")


class RecordEmitter(Settling):
    """Emits records.

    Args:
        write_down: commits that a record is about to be out alone; returns whether the broker has that.
        other_isolations: returns what :meth:`isolations` does, of other spouts of this process: a death counts for
            their records too.
        emit_many: emits many tuples by one call; None: they leave one by one.
    """

    def __init__(
        self,
        services: SpoutServices,
        component: str,
        clock: Clock,
        write_down: Callable[[Partition], bool],
        other_isolations: Callable[[], Iterable[CrashIsolation]] = lambda: (),
        emit_many: EmitMany | None = None,
    ) -> None:
        super().__init__(services, clock)
        self._component = component
        self._write_down = write_down
        self._other_isolations = other_isolations
        self._emit_many = emit_many
        self.tracing: Tracing | None = None  # with ``kafka.trace_every``

    def emit_cached(self, parts: Iterable[Partition], most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit retries that are due and in memory, the others are read again; return how many tuples that were.

        The tuples of one record leave together, even where fewer are left of ``most``.
        """
        sent = 0
        for part in parts:
            while sent < most and (offset := part.cached_retry(now)) is not None:
                sent += self._emit_one(part, part.retry_cache[offset], emit, now)
        self._metrics.records += sent
        return sent

    def emit_turn(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit up to ``most`` tuples of one partition, whose turn it is; return how many were."""
        return self._emit_alone(part, emit, now) if part.isolation.single else self._emit_some(part, most, emit, now)

    def _emit_some(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Look at the records of one partition until ``most`` were emitted or none waits; return how many were."""
        cursor, seen, end, sent = part.cursor, part.ledger.next, part.isolation.emit_end(), 0
        records = cursor.waiting
        together = self._emit_many is not None and part.make_many is not None and not self._hooks and not part.broken
        # Without ackers an ack comes inside emit, and may look at the timers: a commit can put these records back.
        while cursor.at < end and sent < most and cursor.waiting is records:
            at = cursor.at
            record = records[at]
            if together and record.offset >= seen and record.value is not None:
                count = self._emit_run(part, records[at : min(end, at + most - sent, at + RUN_MAX)], now)
                sent += count
                if together := count > 0:
                    continue
            cursor.at = at + 1
            sent += self._emit_one(part, record, emit, now)
        part.note_read()
        self._metrics.records += sent
        return sent

    def _emit_run(self, part: Partition, records: Sequence[Any], now: int) -> int:
        """Emit the first of these records, that were not seen before, together; return how many; 0: look at each."""
        values = list(map(_VALUE, records))
        if None in values:  # there is nothing to decode
            records = records[: values.index(None)]
        rows = part.make_many(records) if records and part.make_many is not None else None
        if rows is None or self._emit_many is None:
            return 0
        offsets = list(map(_OFFSET, records))
        if count := part.ledger.emit_many(offsets, now):
            part.cursor.at += count
            if self.tracing is not None:
                self.tracing.records(part.tp, records[:count], part.prefix)
            self._emit_many(rows[:count], map(part.prefix.__add__, map(str, offsets[:count])))
        return count

    def _emit_one(self, part: Partition, record: Any, emit: Callable[..., Any], now: int) -> int:
        """Emit a record that is new, or a retry that is due; return how many tuples that were."""
        ledger, offset = part.ledger, record.offset
        if offset < ledger.next:
            if not self._try_again(part, record, now):
                return 0
        elif ledger.earlier_failures and ledger.earlier_failures.get(offset, 0) > self._settings["retries_max"]:
            self._exhaust_after_crash(part, record, now)
            return 0
        if not ledger.emit(offset, now):
            self._metrics.skipped += 1
            return 0
        try:
            values = part.make_whole(record) if part.broken else part.make(record)
        except USER_ERRORS as error:  # whatever a format raises is this record's failure
            part.note_read()  # the breaker goes by what was read, this record included
            self._unreadable(part, record, error, now)
            return 0
        tup_id = part.prefix + str(offset)
        if self.tracing is not None:
            self.tracing.records(part.tp, (record,), part.prefix)
        if part.stream is not None:
            self._metrics.filtered += not values
            return emit_rows(part, offset, values, emit, tup_id, self._hooks)
        if self._hooks:
            self._hooks.emitted(part, offset, values)
        # In flight before it leaves: without ackers the ack comes inside emit.
        emit(values, tup_id=tup_id)
        return 1

    def _emit_alone(self, part: Partition, emit: Callable[..., Any], now: int) -> int:
        """While single records are out: emit the next one, if none is out; return how many tuples that were."""
        sent = 0
        cursor, isolation = part.cursor, part.isolation
        while cursor.has_waiting and not sent and not part.ledger.in_flight:
            waiting, at = cursor.waiting, cursor.at
            offset = offset_at(waiting, at)
            if self._may_leave(part, offset, now):
                if not isolation.may_leave_alone(offset, [*self.isolations(), *self._other_isolations()], now):
                    break
                isolation.alone = offset
                if not self._write_down(part):
                    # It does not leave. Were it still called alone, the next commit for another partition's record
                    # would hold both, and a death would be blamed on this one too, which has not been out.
                    isolation.alone = None
                    break
                if cursor.waiting is not waiting or cursor.at != at:
                    break  # the commit has learned of a rebalance, or that the topic is another one
            else:
                isolation.waits_no_more()
            sent = self._emit_some(part, 1, emit, now)
        return sent

    def _may_leave(self, part: Partition, offset: int, now: int) -> bool:
        """Return whether a record that waits will be made into a tuple, and not be passed over."""
        ledger = part.ledger
        if offset >= ledger.next:
            failures = ledger.earlier_failures.get(offset, 0)
            return failures <= self._settings["retries_max"] and not ledger.is_done(offset)
        retry = ledger.retry_state(offset)
        return retry is not None and retry.ready_at <= now and offset not in part.exhausted

    def isolations(self) -> list[CrashIsolation]:
        """Return those of partitions that have a record out alone, or about to be, or waiting to be."""
        return [part.isolation for part in self.by_key.values() if part.isolation.concerns_others]

    # --- inside ---

    def _try_again(self, part: Partition, record: Any, now: int) -> bool:
        """A record comes a second time; return whether it is a retry to emit."""
        offset = record.offset
        if offset in part.exhausted:
            self._dead_lettering.bring(part, record, now)
            return False
        retry = part.ledger.retry_state(offset)
        if retry is None or retry.emitted_at is not None or retry.ready_at > now:
            self._metrics.skipped += 1
            return False
        last_try = retry.failures >= self._settings["retries_max"]
        if last_try or retry.timeouts >= self._settings["timeouts_max"] - 1:
            part.retry_cache.hold(record)
        self._metrics.retries += 1
        return True

    def _exhaust_after_crash(self, part: Partition, record: Any, now: int) -> None:
        """Exhaust a record whose last try failed in a process that died before it wrote the dead letter."""
        failures, was_alone = part.ledger.earlier_failures[record.offset], record.offset == part.isolation.killed_by
        part.ledger.recall(record.offset, now)
        if was_alone or record.offset not in part.last_failures:  # who knew why died before its dead letter was written
            died = "the process died while this record was out alone" if was_alone else "the process that tried it died"
            what = f"ProcessDied: {died}; {failures} failed attempts in all"
            part.last_failures[record.offset] = LastFailure(None, self._wall_ms())
            self._set_back(part, record.offset, Failure("crash", self._component, error=what))
        part.retry_cache.hold(record)
        self._dead_lettering.exhaust(part, record.offset)

    def _unreadable(self, part: Partition, record: Any, error: UserError, now: int) -> None:
        """The key or value is not in its format: trying again cannot help, so it is given up at once."""
        failure = Failure("exception", component=self._component, error=describe(error))
        part.ledger.fail(record.offset, now)
        if (note := part.broken.get(record.offset)) is not None and note.count > 1:
            # One dead letter stands for all of them: what waits for a retry there will not come.
            part.ledger.gone(note.offset + 1, note.end)
            part.forget_done()
        self._metrics.failed += 1
        self._set_back(part, record.offset, failure)
        part.retry_cache.hold(record)
        self._dead_lettering.exhaust(part, record.offset)
