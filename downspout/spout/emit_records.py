"""Emits records as tuples and processes their acks and fails. This is the spout's hot path.

:class:`RecordEmitter` serves AT_LEAST_ONCE: each record is in the ledger before it is out; an ack or a fail settles
it there, and a fail decides whether the record is tried again or dead-lettered. :class:`UntrackedEmitter` serves the
other guarantees, with the same methods. For chunks, see ``downspout.spout.emit_chunks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from downspout.clock import Clock
from downspout.component import Failure
from downspout.errors import USER_ERRORS, UserError
from downspout.formatting import counted
from downspout.kafka.retry_gate import describe
from downspout.ledger.retry_schedule import RetryState
from downspout.spout.cursor import offset_at
from downspout.spout.dead_lettering import FailStreak, MaxLag
from downspout.spout.partition import CrashIsolation, LastFailure, Partition
from downspout.spout.ports import Hooks
from downspout.spout.rebalancing import SpoutServices
from downspout.wire.side_streams import FLUSH, FLUSH_S

if TYPE_CHECKING:
    from downspout.spout.tracing import Tracing


EmitMany = Callable[[Iterable[Any], Iterable[str]], None]
RUN_MAX = 512  # Records that are looked at together
_OFFSET, _VALUE = attrgetter("offset"), attrgetter("value")


class RecordEmitter:
    """Emits records.

    Args:
        write_down: commits before a record goes out alone; returns whether the broker has that commit.
        other_isolations: returns the :meth:`isolations` of other spouts in this process: a death counts for their
            records too.
        emit_many: emits many tuples in one call; None: they are emitted one by one.
    """

    look_up_mask = 15  # Every 16th ack checks the clock

    def __init__(
        self,
        services: SpoutServices,
        component: str,
        clock: Clock,
        write_down: Callable[[Partition], bool],
        other_isolations: Callable[[], Iterable[CrashIsolation]] = lambda: (),
        emit_many: EmitMany | None = None,
    ) -> None:
        self.by_key: dict[str, Partition] = {}  # The targets of acks and fails, of the present membership
        self._settings = services.setup.settings
        self._timeout_ms = services.setup.timeout_ms
        self._metrics = services.metrics
        self._dead_lettering = services.dead_lettering
        self._hooks = services.hooks
        self._now = services.now
        self._wall = clock.wall
        most = self._settings["behind_max"]
        limits = services.metrics, services.hooks, services.dead_lettering, services.log
        self._behind = None if most is None else MaxLag(most, *limits)
        self._streak = FailStreak(services.metrics, self._settings, services.log)
        self._component = component
        self._write_down = write_down
        self._other_isolations = other_isolations
        self._emit_many = emit_many
        self.tracing: Tracing | None = None  # with ``kafka.trace_every``

    def emit_cached(self, parts: Iterable[Partition], most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit due retries that are in memory (others are read again); return the number of tuples.

        The tuples of one record leave together, even if that exceeds ``most``.
        """
        sent = 0
        for part in parts:
            while sent < most and (offset := part.cached_retry(now)) is not None:
                sent += self._emit_one(part, part.retry_cache[offset], emit, now)
        self._metrics.records += sent
        return sent

    def emit_turn(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit up to ``most`` tuples of the partition whose turn it is; return how many were emitted."""
        return self._emit_alone(part, emit, now) if part.isolation.single else self._emit_some(part, most, emit, now)

    def _emit_some(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit up to ``most`` of the waiting records of one partition; return the number of tuples."""
        cursor, seen, end, sent = part.cursor, part.ledger.next, part.isolation.emit_end(), 0
        records = cursor.waiting
        together = self._emit_many is not None and part.make_many is not None and not self._hooks and not part.broken
        # Without ackers an ack comes inside emit, and may run the timers: a commit can put these records back.
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
        """Emit the leading records that were not seen before together; return how many; 0: process each by itself."""
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
        """Emit a new record, or a retry that is due; return the number of tuples."""
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
            part.note_read()  # the breaker counts the records read, this one included
            self._unreadable(part, record, error, now)
            return 0
        tup_id = part.prefix + str(offset)
        if self.tracing is not None:
            self.tracing.records(part.tp, (record,), part.prefix)
        if part.stream is not None:
            self._metrics.filtered += not values
            return emit_rows(part, offset, values, emit, tup_id, self._hooks)
        if self._hooks:
            self._hooks.emitted(part.tp, offset, values)
        # In flight before it leaves: without ackers the ack comes inside emit.
        emit(values, tup_id=tup_id)
        return 1

    def _emit_alone(self, part: Partition, emit: Callable[..., Any], now: int) -> int:
        """While records go out one at a time: emit the next one if none is out; return the number of tuples."""
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
                    # It is not emitted. If it still counted as alone, the next commit for another partition's record
                    # would list both, and a death would be blamed on this record too, which was never out.
                    isolation.alone = None
                    break
                if cursor.waiting is not waiting or cursor.at != at:
                    break  # the commit has revealed a rebalance, or a new topic of the same name
            else:
                isolation.stop_waiting()
            sent = self._emit_some(part, 1, emit, now)
        return sent

    def _may_leave(self, part: Partition, offset: int, now: int) -> bool:
        """Return whether a waiting record will be emitted, not skipped."""
        ledger = part.ledger
        if offset >= ledger.next:
            failures = ledger.earlier_failures.get(offset, 0)
            return failures <= self._settings["retries_max"] and not ledger.is_done(offset)
        retry = ledger.retry_state(offset)
        return retry is not None and retry.ready_at <= now and offset not in part.exhausted

    def isolations(self) -> list[CrashIsolation]:
        """Return the isolations of partitions with a record that is out alone, about to be, or waiting to be."""
        return [part.isolation for part in self.by_key.values() if part.isolation.concerns_others]

    # --- what comes back ---

    def ack(self, tup_id: str) -> bool:
        """Process an ack; return whether it changed anything. Unknown, duplicate and late acks do not."""
        try:
            key, _, offset_text = tup_id.rpartition("/")
            part = self.by_key[key]
            offset = int(offset_text)
        except (KeyError, ValueError, AttributeError):
            self._metrics.stale += 1
            return False
        if part.shared:
            last, failure = part.answered(offset, None)
            if failure is not None or not last:
                return last and self.fail(tup_id, failure)
        if not part.ledger.ack(offset):
            self._metrics.stale += 1
            return False
        self._metrics.acked += 1
        if part.last_failures and offset in part.last_failures:
            part.forget(offset)
        if self._hooks:
            self._hooks.done(part.tp, offset)
        return True

    def ack_many(self, tup_ids: Iterable[str]) -> None:
        """Process many acks, those of consecutive offsets together."""
        last, start, end = None, 0, 0
        for tup_id in tup_ids:
            key, _, text = tup_id.rpartition("/")
            offset = int(text) if text.isdecimal() else -1
            if offset == end and key == last:
                end += 1
                continue
            self._ack_run(last, start, end)
            last, start, end = key, offset, offset + 1
        self._ack_run(last, start, end)

    def _ack_run(self, key: str | None, start: int, end: int) -> None:
        """Process the acks of the records in ``[start, end)``."""
        if key is None:
            return
        part = self.by_key.get(key)
        if part is None or part.shared or part.last_failures or self._hooks or start < 0:
            for offset in range(start, end):
                self.ack(f"{key}/{offset}")
            return
        acked = part.ledger.ack_many(start, end)
        self._metrics.acked += acked
        self._metrics.stale += end - start - acked

    def fail(self, tup_id: str, failure: Failure | None) -> bool:
        """Process a fail, with its reason if known; return whether it changed anything.

        Without a reason, the tuple's age decides whether it is a timeout, which does not count as an attempt.
        """
        part, offset = self._find(tup_id)
        emitted_at = part.ledger.emitted_at(offset) if part is not None else None
        if part is None or emitted_at is None:
            self._metrics.stale += 1
            return False
        now = self._now()
        timed_out = now - emitted_at >= self._timeout_ms if failure is None else failure.kind == "timeout"
        last, failure = part.answered(offset, failure or Failure("timeout" if timed_out else "fail"))
        if not last or failure is None:
            return False
        if self._behind is not None and self._behind.leaves_failed(part, offset, failure.kind == "timeout", now):
            return True
        return self._retry_or_exhaust(part, offset, failure, now)

    def leave_behind(self, parts: Iterable[Partition], now: int) -> None:
        """Stop waiting for records that lie too far behind (``kafka.behind_max``)."""
        if self._behind is not None:
            self._behind.prune(parts, now)

    def tried_before(self, tup_id: str) -> bool:
        """Return whether the previous owner had finished later records but not this one."""
        part, offset = self._find(tup_id)
        return part is not None and offset < part.ledger.known_end

    def _find(self, tup_id: str) -> tuple[Partition | None, int]:
        """Return the partition and offset of a message id."""
        key, _, offset_text = str(tup_id).rpartition("/")
        part = self.by_key.get(key)
        return part, int(offset_text) if part is not None and offset_text.isdecimal() else -1

    def _retry_or_exhaust(self, part: Partition, offset: int, failure: Failure, now: int) -> bool:
        """Process a fail of a record that is out."""
        timed_out = failure.kind == "timeout"
        retry = self._take_back(part, offset, failure, now)
        if retry is None:
            return False
        self._metrics.timeouts += timed_out
        self._metrics.failed += not timed_out
        self._set_back(part, offset, failure)
        timeouts = retry.timeouts + part.timed_out.get(offset, 0)
        part.remember(offset, retry.failures, timeouts=timeouts)
        part.retry_cache.keep_failed(offset, offset + 1, part.cursor.waiting)
        # A failed retry proves nothing about other records: at the end of a topic only retries of bad ones are left.
        if not timed_out and retry.failures == 1 and offset >= part.ledger.known_end:
            self._streak.note(part, offset, failure, self.by_key.values(), now)
        too_late = timeouts >= self._settings["timeouts_max"]
        if retry.failures > self._settings["retries_max"] or too_late:
            self._dead_lettering.exhaust(part, offset)
        else:
            self._hooks.retried(part.tp, offset)
        return True

    def _take_back(self, part: Partition, offset: int, failure: Failure, now: int) -> RetryState | None:
        if failure.kind == "timeout":
            return part.ledger.timeout(offset, now, outage=failure.outage)
        return part.ledger.fail(offset, now)

    def _set_back(self, part: Partition, offset: int, failure: Failure) -> None:
        """Record when and why a record failed, for its dead letter."""
        now_ms = self._wall_ms()
        last = part.last_failures.setdefault(offset, LastFailure(now_ms, now_ms))
        last.last_ms = now_ms
        last.failure = failure

    def _wall_ms(self) -> int:
        return int(self._wall() * 1000)

    # --- inside ---

    def _try_again(self, part: Partition, record: Any, now: int) -> bool:
        """Return whether a record that was read again is a retry to emit now."""
        offset = record.offset
        if offset in part.exhausted:
            self._dead_lettering.enqueue_reread(part, record, now)
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
            what = f"the process died while this record was out alone; {failures} failed attempts in all"
            if not was_alone:  # commits hold how often a record failed, not why
                what = (
                    f"{counted(failures, 'attempt')} had failed, and kafka.retries_max allows no more, when the "
                    "process died before it wrote this dead letter; the log of that process has the error"
                )
            part.last_failures[record.offset] = LastFailure(None, self._wall_ms())
            self._set_back(part, record.offset, Failure("crash", self._component, error=f"ProcessDied: {what}"))
        part.retry_cache.hold(record)
        self._dead_lettering.exhaust(part, record.offset)

    def _unreadable(self, part: Partition, record: Any, error: UserError, now: int) -> None:
        """Give a record up at once whose key or value is not in its format: another try cannot help."""
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


def emit_rows(
    part: Partition, offset: int, rows: list[list[Any]], emit: Callable[..., Any], tup_id: str | None, hooks: Hooks
) -> int:
    """Emit the tuples of one record, all under one id; return how many. The record is done when all are answered."""
    if len(rows) > 1 and tup_id is not None:
        part.shared[offset] = (len(rows), None)
    for row in rows:
        hooks.emitted(part.tp, offset, row)
        emit(row, tup_id=tup_id, stream=part.stream)
    if not rows and part.ledger.resolve(offset):
        hooks.done(part.tp, offset)
    return len(rows)


class UntrackedEmitter:
    """Emits without waiting for acks: an offset is done when it is emitted."""

    look_up_mask = 0  # Every ack checks the clock

    def __init__(self, services: SpoutServices, component: str, clock: Clock) -> None:
        self.by_key: dict[str, Partition] = {}
        """As in ``RecordEmitter``, where answers are looked up; here they decide nothing."""
        self._with_ids = services.setup.pending_max > 0
        self._metrics = services.metrics
        self._dead_lettering = services.dead_lettering
        self._hooks = services.hooks
        self._log = services.log
        self._component = component
        self._wall = clock.wall

    def emit_cached(self, parts: Iterable[Partition], most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit nothing: there are no retries."""
        return 0

    def emit_turn(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit records of one partition until ``most`` were emitted or none waits; return how many were."""
        ledger, metrics = part.ledger, self._metrics
        sent = 0
        while part.cursor.has_waiting and sent < most:
            record = part.cursor.waiting[part.cursor.at]
            part.cursor.at += 1
            if ledger.is_done(record.offset):
                metrics.skipped += 1
                continue
            ledger.passed(record.offset + 1)  # before the emit: a record that raises in between is not emitted again
            try:
                values = part.make_whole(record)
            except USER_ERRORS as error:  # whatever a format raises is this record's failure
                self._unreadable(part, record, error)
                continue
            tup_id = part.prefix + str(record.offset) if self._with_ids else None
            if part.stream is not None:
                sent += (count := emit_rows(part, record.offset, values, emit, tup_id, self._hooks))
                metrics.filtered += not count
                part.shared.clear()  # no answers are waited for
                continue
            sent += 1
            self._hooks.emitted(part.tp, record.offset, values)
            emit(values, tup_id=tup_id)
        metrics.records += sent
        return sent

    def _unreadable(self, part: Partition, record: Any, error: UserError) -> None:
        """Dead-letter an unreadable record, as under every guarantee; a crash before that loses it."""
        now_ms = int(self._wall() * 1000)
        self._metrics.failed += 1
        failure = Failure("exception", component=self._component, error=describe(error))
        if not part.retry_cache.hold(record):
            self._log.warning("%s: dropped, it cannot be read: %s", part.place(record.offset), failure.error)
            return
        part.last_failures[record.offset] = LastFailure(now_ms, now_ms, failure)
        self._dead_lettering.exhaust(part, record.offset)

    def leave_behind(self, parts: Iterable[Partition], now: int) -> None:
        """Do nothing: the spout waits for no record."""

    def tried_before(self, tup_id: str) -> bool:
        """Return False: no record is tried twice."""
        return False

    def ack(self, tup_id: str) -> bool:
        """Count an ack; it has no other effect."""
        self._metrics.acked += 1
        return True

    def ack_many(self, tup_ids: Sequence[str]) -> None:
        """Count acks."""
        self._metrics.acked += len(tup_ids)

    def fail(self, tup_id: str, failure: Failure | None) -> bool:
        """Count a fail; it has no other effect."""
        timed_out = failure is not None and failure.kind == "timeout"
        self._metrics.timeouts += timed_out
        self._metrics.failed += not timed_out
        return True


LOOK_MS = 100  # How often to check whether the sinks should flush
REPEAT_MS = 1_000  # How often they are asked, while they should; a request holds for FLUSH_S


class FlushRequests:
    """Asks sinks to flush, before the tuples to wait for are emitted."""

    def __init__(self, emit: Callable[..., Any]) -> None:
        self._emit, self._next_at = emit, 0

    @classmethod
    def of(cls, spout: Any, context: Mapping[str, Any]) -> FlushRequests | None:
        """Return the requests of a spout; None: it is not on Storm, or no bolt reads them."""
        is_heard = FLUSH in (context.get("stream->outputfields") or ())
        return cls(spout.emit) if spout.on_storm and is_heard else None

    def look(self, now: int, waits: Callable[[], bool]) -> None:
        """Send a request if one is due and the spout waits for acks."""
        if now < self._next_at:
            return
        self._next_at = now + LOOK_MS
        if waits():
            self._next_at = now + REPEAT_MS
            self._emit([FLUSH_S], stream=FLUSH)
