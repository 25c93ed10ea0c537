"""How tuples leave where acks decide nothing; which guarantees that are is in ``downspout.kafka.guarantee``.

Its counterpart under at-least-once is ``downspout.kafka.tracked.Tracked``; both have the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from downspout.clock import Clock
from downspout.component import Failure
from downspout.errors import USER_ERRORS, UserError
from downspout.kafka.member import Means
from downspout.kafka.patience import describe
from downspout.kafka.spout_state import Partition, Setback
from downspout.kafka.translate import emit_rows

__all__ = ["Untracked"]


class Untracked:
    """Emits without waiting for acks: an offset is done when it is emitted.

    Args:
        means: settings, figures and the like.
        component: the spout's name.
        clock: the time.
    """

    look_up_mask = 0
    """Every ack looks at the clock."""

    def __init__(self, means: Means, component: str, clock: Clock) -> None:
        self.by_key: dict[str, Partition] = {}
        """As in ``Tracked``; nobody asks."""
        self._with_ids = means.setup.settings["tuple_tracking"]
        self._emit_null = means.setup.settings["emit_null"]
        self._figures = means.figures
        self._giving_up = means.giving_up
        self._hooks = means.hooks
        self._log = means.log
        self._component = component
        self._wall = clock.wall

    def emit_held(self, parts: Iterable[Partition], emit: Callable[..., Any], now: int) -> None:
        """There are no retries."""

    def emit_turn(self, part: Partition, most: int, emit: Callable[..., Any], now: int) -> int:
        """Emit records of one partition until ``most`` were emitted or none waits; return how many were."""
        ledger, figures = part.ledger, self._figures
        sent = 0
        while part.has_waiting and sent < most:
            record = part.waiting[part.at]
            part.at += 1
            if ledger.is_done(record.offset):
                figures.skipped += 1
                continue
            ledger.passed(record.offset + 1)  # before it leaves: what raises in between is not emitted again
            if record.value is None and not self._emit_null and part.stream is None:
                figures.filtered += 1
                continue
            try:
                values = part.make(record)
            except USER_ERRORS as error:  # whatever a format raises is this record's failure
                self._unreadable(part, record, error)
                continue
            tup_id = part.prefix + str(record.offset) if self._with_ids else None
            if part.stream is not None:
                sent += (count := emit_rows(part, record.offset, values, emit, tup_id, self._hooks))
                figures.filtered += not count
                part.shared.clear()  # nobody waits for answers
                continue
            sent += 1
            self._hooks.emitted(part, record.offset, values)
            emit(values, tup_id=tup_id)
        figures.records += sent
        return sent

    def _unreadable(self, part: Partition, record: Any, error: UserError) -> None:
        """It goes to the dead-letter topic, as it does under each guarantee; a crash before that loses it."""
        now_ms = int(self._wall() * 1000)
        self._figures.failed += 1
        failure = Failure("exception", component=self._component, error=describe(error))
        if not part.hold(record):
            self._log.warning("%s: dropped, it cannot be read: %s", part.place(record.offset), failure.error)
            return
        part.setbacks[record.offset] = Setback(now_ms, now_ms, failure)
        self._giving_up.condemn(part, record.offset)

    def ack(self, tup_id: str) -> bool:
        """Count an ack, which decides nothing."""
        self._figures.acked += 1
        return True

    def ack_many(self, tup_ids: Sequence[str]) -> None:
        """Count acks."""
        self._figures.acked += len(tup_ids)

    def fail(self, tup_id: str, failure: Failure | None) -> bool:
        """Count a fail, which decides nothing."""
        timed_out = failure is not None and failure.kind == "timeout"
        self._figures.timeouts += timed_out
        self._figures.failed += not timed_out
        return True
