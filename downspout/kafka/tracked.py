"""How tuples leave under at-least-once, and how their answers come back: each record is in the ledger before it is out.

Its counterpart for the other guarantees is ``downspout.kafka.untracked.Untracked``; for chunks,
``downspout.kafka.chunked.Chunked``. This is the spout's hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from downspout.clock import Clock
from downspout.component import Failure
from downspout.errors import USER_ERRORS, UserError
from downspout.kafka.kept import offset_at
from downspout.kafka.member import Means
from downspout.kafka.patience import describe
from downspout.kafka.spout_state import Partition, Setback
from downspout.kafka.streaks import Streak
from downspout.kafka.translate import emit_rows

__all__ = ["Tracked"]

EmitMany = Callable[[Iterable[Any], Iterable[str]], None]
PLAIN_MAX = 128
"""Records that are looked at together."""
SUSPECTS_TURN_MS = 10_000
"""So long after its last turn others keep back for a partition whose suspect waits to be out alone."""
_OFFSET, _VALUE = attrgetter("offset"), attrgetter("value")


class Tracked:
    """Emits records, takes acks and fails, and notes setbacks.

    Args:
        means: settings, figures and the like.
        component: the spout's name.
        clock: the time.
        write_down: commits that a lone record is about to be out; returns whether the broker has that.
        lone_elsewhere: returns partitions of other spouts of this process that have a record out alone, or about to be,
            or waiting to be: a death counts for it too.
        emit_many: emits many tuples by one call; None: they leave one by one.
    """

    look_up_mask = 15
    """Every 16th ack looks at the clock."""

    def __init__(
        self,
        means: Means,
        component: str,
        clock: Clock,
        write_down: Callable[[Partition], bool],
        lone_elsewhere: Callable[[], Iterable[Partition]] = lambda: (),
        emit_many: EmitMany | None = None,
    ) -> None:
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
        self._lone_elsewhere = lone_elsewhere
        self._emit_many = emit_many
        self._streak = Streak(means.figures, self._settings["retries_max"], means.log)

    def emit_held(self, parts: Iterable[Partition], emit: Callable[..., Any], now: int) -> None:
        """Emit retries that are due and in memory; the others are read again."""
        left = self._settings["emits_per_next_max"]
        for part in parts:
            while left > 0 and (offset := part.held_retry(now)) is not None:
                record = part.held[offset]
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
        plain = self._emit_many is not None and part.make_many is not None and not hooks
        while at < end and sent < most:
            record = records[at]
            at += 1
            part.at = at
            offset = record.offset
            if plain and offset >= seen and record.value is not None:
                count = self._emit_plain(
                    part, records[at - 1 : min(end, at - 1 + most - sent, at - 1 + PLAIN_MAX)], now
                )
                at += max(count - 1, 0)
                sent += count
                if plain := count > 0:
                    continue
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

    def _emit_plain(self, part: Partition, records: Sequence[Any], now: int) -> int:
        """Emit the first of these records, that were not seen before, together; return how many."""
        values = list(map(_VALUE, records))
        if not self._settings["emit_null"] and None in values:
            records = records[: values.index(None)]
        rows = part.make_many(records) if records and part.make_many is not None else None
        if rows is None or self._emit_many is None:
            return 0
        offsets = list(map(_OFFSET, records))
        if count := part.ledger.emit_many(offsets, now):
            part.at += count - 1
            self._emit_many(rows[:count], map(part.prefix.__add__, map(str, offsets[:count])))
        return count

    def _emit_alone(self, part: Partition, emit: Callable[..., Any], now: int) -> int:
        """Under a watch over lone records: emit the next one, if none is out; return how many tuples that were."""
        sent = 0
        while part.has_waiting and not sent and not part.ledger.in_flight:
            waiting, at = part.waiting, part.at
            offset = offset_at(waiting, at)
            if self._may_leave(part, offset, now):
                if not self._is_lonely_enough(part, offset, now):
                    break
                part.alone = offset
                if not self._write_down(part):
                    # It does not leave. Were it to stay, the commit for another partition's lone record would tell of
                    # both, and a death be blamed on this one too, which nobody has seen.
                    part.alone = None
                    break
                if part.waiting is not waiting or part.at != at:
                    break
            else:
                part.waits_since = None
            sent = self._emit_some(part, 1, emit, now)
        return sent

    def _may_leave(self, part: Partition, offset: int, now: int) -> bool:
        """Return whether a record that waits will be made into a tuple, and not be passed over."""
        ledger = part.ledger
        if offset >= ledger.next:
            return not ledger.is_done(offset) and ledger.told.get(offset, 0) <= self._settings["retries_max"]
        trouble = ledger.trouble(offset)
        return trouble is not None and trouble.ready_at <= now and offset not in part.condemned

    def _is_lonely_enough(self, part: Partition, offset: int, now: int) -> bool:
        """Return whether a lone record may be out beside those of other partitions under such a watch.

        Partitions try their records alone at the same time, those of other spouts of the process too: 100 of each, one
        after the other, would take too long. A death then counts for the lone record of each. So a suspect, one that
        failed before, perhaps by being out at a death, is out while no other is: from the second death on, only the
        culprit is blamed. Until it is out no other leaves, or a partition that is never at rest would keep it waiting;
        of several suspects the one goes first that has waited longest.
        """
        others = [other for other in [*self.lone(), *self._lone_elsewhere()] if other is not part]
        out = [other for other in others if other.watch.solo and other.ledger.in_flight]
        waiting = [other.waits_since for other in others if self._waits_to_be_alone(other, now)]
        if not self._failed_before(part, offset):
            part.waits_since = None
            return not waiting and not any(self._failed_before(other, other.alone) for other in out)
        part.waits_since, part.waited_at = now if part.waits_since is None else part.waits_since, now
        if out or any(since is not None and since < part.waits_since for since in waiting):
            return False
        part.waits_since = None
        return True

    @staticmethod
    def _waits_to_be_alone(part: Partition, now: int) -> bool:
        """Return whether a suspect waits there that will go as soon as it may.

        The word of a partition that is not looked at any more (its spout is deactivated, or hears nothing of its
        broker) is soon no reason to wait.
        """
        waits = part.waits_since is not None and part.has_waiting and not part.ledger.in_flight and part.watch.solo
        return waits and now - part.waited_at < SUSPECTS_TURN_MS

    def lone(self) -> list[Partition]:
        """Return the partitions that have a record out alone, or about to be, or waiting to be."""
        return [part for part in self.by_key.values() if part.alone is not None or part.waits_since is not None]

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

    def ack_many(self, tup_ids: Iterable[str]) -> None:
        """Take many acks; those that follow one another together."""
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
        """Take the acks of the records in ``[start, end)``."""
        if key is None:
            return
        part = self.by_key.get(key)
        if part is None or part.shared or part.setbacks or self._hooks or start < 0:
            for offset in range(start, end):
                self.ack(f"{key}/{offset}")
            return
        acked = part.ledger.ack_many(start, end)
        self._figures.acked += acked
        self._figures.stale += end - start - acked

    def fail(self, tup_id: str, failure: Failure | None) -> bool:
        """Take a fail, with its reason where that is known; return whether it changed anything.

        Where it is not, the age tells whether it is a timeout, which counts no attempt.
        """
        part, offset = self._find(tup_id)
        emitted_at = part.ledger.emitted_at(offset) if part is not None else None
        if part is None or emitted_at is None:
            self._figures.stale += 1
            return False
        now = self._now()
        timed_out = now - emitted_at >= self._timeout_ms if failure is None else failure.kind == "timeout"
        last, failure = part.answered(offset, failure or Failure("timeout" if timed_out else "fail"))
        if not last or failure is None:
            return False
        return self._land(part, offset, failure, now)

    def _find(self, tup_id: str) -> tuple[Partition | None, int]:
        """Return whose message id this is, and the offset in it."""
        key, _, offset_text = str(tup_id).rpartition("/")
        part = self.by_key.get(key)
        return part, int(offset_text) if part is not None and offset_text.isdecimal() else -1

    def _land(self, part: Partition, offset: int, failure: Failure, now: int) -> bool:
        """Take a fail of what is out."""
        timed_out = failure.kind == "timeout"
        trouble = (part.ledger.timeout if timed_out else part.ledger.fail)(offset, now)
        if trouble is None:
            return False
        self._figures.timeouts += timed_out
        self._figures.failed += not timed_out
        self._set_back(part, offset, failure)
        part.remember(offset)
        if not timed_out:
            self._streak.note(part, offset, failure, self.by_key.values(), now)
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
