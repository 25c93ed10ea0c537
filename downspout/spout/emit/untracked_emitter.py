"""How tuples leave where acks decide nothing; which guarantees that are is in ``downspout.spout.guarantee``.

Its counterpart under at-least-once is ``downspout.spout.emit.record_emitter.RecordEmitter``, with the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from downspout.clock import Clock
from downspout.component import Failure
from downspout.errors import USER_ERRORS, UserError
from downspout.kafka.retry_gate import describe
from downspout.spout.emit.translator import emit_rows
from downspout.spout.partition import LastFailure, Partition
from downspout.spout.services import SpoutServices


class UntrackedEmitter:
    """Emits without waiting for acks: an offset is done when it is emitted."""

    look_up_mask = 0  # Every ack looks at the clock

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
        """There are no retries."""
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
            ledger.passed(record.offset + 1)  # before it leaves: what raises in between is not emitted again
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
            self._hooks.emitted(part, record.offset, values)
            emit(values, tup_id=tup_id)
        metrics.records += sent
        return sent

    def _unreadable(self, part: Partition, record: Any, error: UserError) -> None:
        """It goes to the dead-letter topic, as it does under each guarantee; a crash before that loses it."""
        now_ms = int(self._wall() * 1000)
        self._metrics.failed += 1
        failure = Failure("exception", component=self._component, error=describe(error))
        if not part.retry_cache.hold(record):
            self._log.warning("%s: dropped, it cannot be read: %s", part.place(record.offset), failure.error)
            return
        part.last_failures[record.offset] = LastFailure(now_ms, now_ms, failure)
        self._dead_lettering.exhaust(part, record.offset)

    def leave_behind(self, parts: Iterable[Partition], now: int) -> None:
        """Nothing is waited for."""

    def tried_before(self, tup_id: str) -> bool:
        """Nothing is tried twice."""
        return False

    def ack(self, tup_id: str) -> bool:
        """Count an ack, which decides nothing."""
        self._metrics.acked += 1
        return True

    def ack_many(self, tup_ids: Sequence[str]) -> None:
        """Count acks."""
        self._metrics.acked += len(tup_ids)

    def fail(self, tup_id: str, failure: Failure | None) -> bool:
        """Count a fail, which decides nothing."""
        timed_out = failure is not None and failure.kind == "timeout"
        self._metrics.timeouts += timed_out
        self._metrics.failed += not timed_out
        return True
