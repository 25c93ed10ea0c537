"""Processing guarantees: the one table of what differs between them, and how a spout works that tracks nothing.

==============  ==================================  =======================================================
guarantee       what is committed                   what a crash, or a failed tuple, does
==============  ==================================  =======================================================
AT_LEAST_ONCE   what is acked, on the timer         comes again
AT_MOST_ONCE    what is read, before it is emitted  is lost, and never comes twice
NO_GUARANTEE    what is read, on the timer, without  is lost or comes again
                waiting for the broker's word
AUTO_COMMIT     what is read, by the client itself  is lost or comes again; nobody says what was committed
==============  ==================================  =======================================================

Only the first looks at acks and fails. Under the others an offset is done as soon as it is emitted, so the limit on
uncommitted offsets is never met. A planned stop or hand-over commits what was emitted under all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from downspout.component import Failure
from downspout.kafka.giving_up import GivingUp
from downspout.kafka.hooks import Hooks
from downspout.kafka.patience import describe
from downspout.kafka.spout_state import Figures, Partition, Setback
from downspout.kafka.translate import emit_rows

__all__ = ["GUARANTEES", "Guarantee", "Untracked"]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a processing guarantee decides.

    Attributes:
        tracks: acks and fails decide what is committed, and what is read again.
        before_emit: what was read is committed before any of it is emitted.
        on_timer: the spout commits every ``kafka.commit_period_ms``.
        waits: on the timer, it waits for the broker's word.
        by_client: the client commits by itself, every ``kafka.commit_period_ms``.
    """

    tracks: bool = False
    before_emit: bool = False
    on_timer: bool = False
    waits: bool = True
    by_client: bool = False

    def period_ms(self, settings: Mapping[str, Any]) -> float:
        """Return how often the spout commits by its timer; without end where it does not."""
        return float(settings["commit_period_ms"]) if self.on_timer else float("inf")

    def auto_commit_ms(self, settings: Mapping[str, Any]) -> int | None:
        """Return how often the client commits; None where it does not."""
        return int(settings["commit_period_ms"]) if self.by_client else None


GUARANTEES = {
    "AT_LEAST_ONCE": Guarantee(tracks=True, on_timer=True),
    "AT_MOST_ONCE": Guarantee(before_emit=True),
    "NO_GUARANTEE": Guarantee(on_timer=True, waits=False),
    "AUTO_COMMIT": Guarantee(by_client=True),
}


class Untracked:
    """Emits without waiting for acks: an offset is done when it is emitted.

    Args:
        settings: those of the scope ``kafka``.
        figures: where tuples are counted.
        hooks: hears of each tuple.
        giving_up: takes records that cannot be read.
        component: the spout's name.
        wall: seconds since the epoch.
        log: where warnings go.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        figures: Figures,
        giving_up: GivingUp,
        hooks: Hooks,
        component: str,
        wall: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._with_ids = settings["tuple_tracking"]
        self._emit_null = settings["emit_null"]
        self._figures = figures
        self._giving_up = giving_up
        self._hooks = hooks
        self._component = component
        self._wall = wall
        self._log = log

    def emit_some(self, part: Partition, most: int, emit: Callable[..., Any]) -> int:
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
            except Exception as error:  # whatever a format raises is this record's failure
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

    def _unreadable(self, part: Partition, record: Any, error: Exception) -> None:
        """It goes to the dead-letter topic, as it does under each guarantee; a crash before that loses it."""
        now_ms = int(self._wall() * 1000)
        self._figures.failed += 1
        failure = Failure("exception", component=self._component, error=describe(error))
        if not part.hold(record):
            self._log.warning("%s: dropped, it cannot be read: %s", part.place(record.offset), failure.error)
            return
        part.setbacks[record.offset] = Setback(now_ms, now_ms, failure)
        self._giving_up.condemn(part, record.offset)

    def ack(self) -> None:
        """Count an ack, which decides nothing."""
        self._figures.acked += 1

    def fail(self, timed_out: bool) -> None:
        """Count a fail, which decides nothing."""
        self._figures.timeouts += timed_out
        self._figures.failed += not timed_out
