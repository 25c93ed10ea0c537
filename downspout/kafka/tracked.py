"""How tuples leave under at-least-once, and how their answers come back: each record is in the ledger before it is out.

Its counterpart for the other guarantees is ``downspout.kafka.untracked.Untracked``. This is the spout's hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from downspout.clock import Clock
from downspout.component import Failure
from downspout.errors import USER_ERRORS, UserError
from downspout.kafka.member import Means
from downspout.kafka.patience import describe
from downspout.kafka.spout_state import Partition, Setback
from downspout.kafka.translate import emit_rows

__all__ = ["Tracked"]


class Tracked:
    """Emits records, takes acks and fails, and notes setbacks.

    Args:
        means: settings, figures and the like.
        component: the spout's name.
        clock: the time.
        write_down: commits that a lone record is about to be out; returns whether the broker has that.
    """

    look_up_mask = 15
    """Every 16th ack looks at the clock."""

    def __init__(self, means: Means, component: str, clock: Clock, write_down: Callable[[Partition], bool]) -> None:
        self.by_key: dict[str, Partition] = {}
        """Whom answers are for: the present membership's."""
        self._settings = means.setup.settings
        self._timeout_ms = means.setup.timeout_ms
        self._figures = means.figures
        self._giving_up = means.giving_up
        self._hooks = means.hooks
        self._now = means.now
        self._component = component
        self._wall = clock.wall
        self._write_down = write_down

    def emit_held(self, parts: Iterable[Partition], emit: Callable[..., Any], now: int) -> None:
        """Emit retries that are due and in memory; the others are read again."""
        left = self._settings["emits_per_next_max"]
        for part in parts:
            while left > 0 and (record := part.held_retry(now)) is not None:
                left -= 1
                self._try_again(part, record, now)
                part.ledger.emit(record.offset, now)
                try:
                    values = part.make(record)
                except USER_ERRORS as error:  # as in _emit_some
                    self._unreadable(part, record, error, now)
                    continue
                rows = values if part.stream is not None else [values]
                tup_id = part.prefix + str(record.offset)
                self._figures.records += emit_rows(part, record.offset, rows, emit, tup_id, self._hooks)

    def emit_turn(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit up to ``most`` tuples of one partition, whose turn it is; return how many were."""
        return self._emit_alone(part, emit, now) if part.watch.solo else self._emit_some(part, most, emit, now)

    def _emit_some(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Look at the records of one partition until ``most`` were emitted or none waits; return how many were."""
        figures, ledger, make, prefix = self._figures, part.ledger, part.make, part.prefix
        emit_null, hooks = self._settings["emit_null"], self._hooks
        records, at, end = part.waiting, part.at, len(part.waiting)
        if part.watch.until:
            end = min(end, part.at + 1 if part.watch.solo else part.end_of_window())
        seen, told, retries_max = ledger.next, ledger.told, self._settings["retries_max"]
        start, sent = at, 0
        while at < end and sent < most:
            record = records[at]
            at += 1
            part.at = at
            offset = record.offset
            if offset < seen:
                if not self._try_again(part, record, now):
                    continue
            elif told and told.get(offset, 0) > retries_max:
                self._use_up(part, record, now)
                continue
            if record.value is None and not emit_null and part.stream is None:
                if ledger.resolve(offset):
                    figures.filtered += 1
                    self._hooks.done(part, offset)
                continue
            if not ledger.emit(offset, now):
                figures.skipped += 1
                continue
            try:
                values = make(record)
            except USER_ERRORS as error:  # whatever a format raises is this record's failure
                part.note_read(start, seen)  # the breaker goes by what was read, this record included
                start = at
                self._unreadable(part, record, error, now)
                continue
            if part.stream is not None:
                sent += emit_rows(part, offset, values, emit, prefix + str(offset), hooks)
                figures.filtered += not values
                continue
            # In flight before it leaves: without ackers the ack comes inside emit.
            sent += 1
            if hooks:
                hooks.emitted(part, offset, values)
            emit(values, tup_id=prefix + str(offset))
        part.note_read(start, seen)
        figures.records += sent
        return sent

    def _emit_alone(self, part: Partition, emit: Callable[..., Any], now: int) -> int:
        """Under a watch over lone records: emit the next one, if none is out; return how many tuples that were."""
        sent = 0
        while part.has_waiting and not sent and not part.ledger.in_flight:
            record = part.waiting[part.at]
            if self._may_leave(part, record.offset, now):
                if not self._is_lonely_enough(part, record.offset):
                    break
                part.alone = record.offset
                if not self._write_down(part) or not part.has_waiting or part.waiting[part.at] is not record:
                    break
            sent = self._emit_some(part, 1, emit, now)
        return sent

    def _may_leave(self, part: Partition, offset: int, now: int) -> bool:
        """Return whether a record that waits will be made into a tuple, and not be passed over."""
        ledger = part.ledger
        if offset >= ledger.next:
            return not ledger.is_done(offset) and ledger.told.get(offset, 0) <= self._settings["retries_max"]
        trouble = ledger.trouble(offset)
        return trouble is not None and trouble.ready_at <= now and offset not in part.condemned

    def _is_lonely_enough(self, part: Partition, offset: int) -> bool:
        """Return whether a lone record may be out beside those of other partitions under such a watch.

        Partitions try their records alone at the same time: 100 of each, one after the other, would take too long. A
        death then counts for the lone record of each. So one that was out at a death, and failed by that, is out while
        no other is: from the second death on, only the culprit is blamed.
        """
        others = [other for other in self.by_key.values() if other.alone is not None and other is not part]
        out = [other for other in others if other.watch.solo and other.ledger.in_flight]
        return not out or not (self._failed_before(part, offset) or any(self._failed_before(o, o.alone) for o in out))

    @staticmethod
    def _failed_before(part: Partition, offset: int | None) -> bool:
        if offset is None:
            return False
        trouble = part.ledger.trouble(offset)
        return bool(part.ledger.told.get(offset) or (trouble is not None and trouble.failures))

    # --- what comes back ---

    def ack(self, tup_id: str) -> bool:
        """Take an ack; return whether it changed anything. Unknown, double and late ones do not."""
        try:
            key, _, offset_text = tup_id.rpartition("/")
            part = self.by_key[key]
            offset = int(offset_text)
        except (KeyError, ValueError, AttributeError):
            self._figures.stale += 1
            return False
        if part.shared:
            last, failure = part.answered(offset, None)
            if failure is not None or not last:
                return last and self.fail(tup_id, failure)
        if not part.ledger.ack(offset):
            self._figures.stale += 1
            return False
        self._figures.acked += 1
        if part.setbacks and offset in part.setbacks:
            part.forget(offset)
        if self._hooks:
            self._hooks.done(part, offset)
        return True

    def fail(self, tup_id: str, failure: Failure | None) -> bool:
        """Take a fail, with its reason where that is known; return whether it changed anything.

        Where it is not, the age tells whether it is a timeout, which counts no attempt.
        """
        key, _, offset_text = str(tup_id).rpartition("/")
        part = self.by_key.get(key)
        offset = int(offset_text) if part is not None and offset_text.isdecimal() else -1
        emitted_at = part.ledger.emitted_at(offset) if part is not None else None
        if part is None or emitted_at is None:
            self._figures.stale += 1
            return False
        now = self._now()
        timed_out = now - emitted_at >= self._timeout_ms if failure is None else failure.kind == "timeout"
        last, failure = part.answered(offset, failure or Failure("timeout" if timed_out else "fail"))
        if not last or failure is None:
            return False
        timed_out = failure.kind == "timeout"
        trouble = (part.ledger.timeout if timed_out else part.ledger.fail)(offset, now)
        if trouble is None:
            return False
        self._figures.timeouts += timed_out
        self._figures.failed += not timed_out
        self._set_back(part, offset, failure)
        part.remember(offset)
        if trouble.failures > self._settings["retries_max"] or trouble.timeouts >= self._settings["timeouts_max"]:
            self._giving_up.condemn(part, offset)
        else:
            self._hooks.retried(part, offset)
        return True

    # --- inside ---

    def _try_again(self, part: Partition, record: Any, now: int) -> bool:
        """A record comes a second time; return whether it is a retry to emit."""
        offset = record.offset
        if offset in part.condemned:
            self._giving_up.bring(part, record, now)
            return False
        trouble = part.ledger.trouble(offset)
        if trouble is None or trouble.emitted_at is not None or trouble.ready_at > now:
            self._figures.skipped += 1
            return False
        last_try = trouble.failures >= self._settings["retries_max"]
        if last_try or trouble.timeouts >= self._settings["timeouts_max"] - 1:
            part.hold(record)
        self._figures.retries += 1
        return True

    def _use_up(self, part: Partition, record: Any, now: int) -> None:
        """Its last try failed, and the process died before its dead letter was written: there is no other try."""
        failures = part.ledger.told[record.offset]
        part.ledger.recall(record.offset, now)
        if record.offset == part.killed_by:
            what = f"ProcessDied: the process died while this record was out alone; {failures} failed attempts in all"
            part.setbacks[record.offset] = Setback(None, self._wall_ms())  # who saw the first death, died of it
            self._set_back(part, record.offset, Failure("crash", error=what))
        part.hold(record)
        self._giving_up.condemn(part, record.offset)

    def _unreadable(self, part: Partition, record: Any, error: UserError, now: int) -> None:
        """The key or value is not in its format: trying again cannot help, so it is given up at once."""
        failure = Failure("exception", component=self._component, error=describe(error))
        part.ledger.fail(record.offset, now)
        self._figures.failed += 1
        self._set_back(part, record.offset, failure)
        part.hold(record)
        self._giving_up.condemn(part, record.offset)

    def _set_back(self, part: Partition, offset: int, failure: Failure) -> None:
        """Note that a record failed, when and why: its dead letter will tell."""
        now_ms = self._wall_ms()
        setback = part.setbacks.setdefault(offset, Setback(now_ms, now_ms))
        setback.last_ms = now_ms
        setback.failure = failure

    def _wall_ms(self) -> int:
        return int(self._wall() * 1000)
