"""What lies too far behind is left out: ``kafka.behind_max``, the ``maxOffsetBehind`` of the spout for Kafka 0.8.

It is for records that are worth nothing once they are old, and it is off unless it is set. A start that lies too far
behind is in ``downspout.spout.group.start_offsets``. Here it is about what was emitted: a record that fails too far
behind the newest one emitted is not tried again; what is out, or waits for its retry, too far behind the newest one
that is done is waited for no longer; and more failed attempts than that before the first ack end the run. All that is
left out is counted, as ``left_behind``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from downspout.errors import RecordError
from downspout.kafka.retry_gate import LogThrottle
from downspout.spout.dead_lettering import DeadLettering
from downspout.spout.hooks import Hooks
from downspout.spout.partition import Partition
from downspout.spout.spout_metrics import SpoutMetrics


class BehindLimit:
    """Leaves out what lies more than ``most`` offsets behind."""

    def __init__(
        self, most: int, metrics: SpoutMetrics, hooks: Hooks, dead_lettering: DeadLettering, log: logging.Logger
    ) -> None:
        self._most = most
        self._metrics = metrics
        self._hooks = hooks
        self._dead_lettering = dead_lettering
        self._log = log
        self._throttle = LogThrottle()

    def leaves_failed(self, part: Partition, offset: int, timed_out: bool, now: int) -> bool:
        """Take a fail of what is out; return whether it is left out, since it lies too far behind."""
        ledger = part.ledger
        end = ledger.out_until(offset) or offset + 1
        if end - 1 < ledger.next - self._most:
            self._leave(part, offset, end, ledger.leave(offset), now)
            return True
        part.fails += not timed_out
        if not ledger.acks and part.fails > self._most:
            self._dead_lettering.trip(
                RecordError(
                    f"{part.place(offset)}: {part.fails:,} attempts failed, and none was acked; "
                    f"kafka.behind_max = {self._most:,} allows no more",
                    cure="repair what was deployed last; nothing is committed past these records, and they come again",
                )
            )
        return False

    def prune(self, parts: Iterable[Partition], now: int) -> None:
        """Wait no longer for what is out, or waits, too far behind the newest that is done."""
        for part in parts:
            for start, end, records in part.ledger.leave_below(part.ledger.newest_done - self._most):
                self._leave(part, start, end, records, now)

    def _leave(self, part: Partition, start: int, end: int, records: int, now: int) -> None:
        self._metrics.left_behind += records
        if self._throttle.due("left out", now):
            self._log.warning(
                "%s: lies more than kafka.behind_max = %d behind, and is left out, as %d others were by now",
                part.place(start), self._most, self._metrics.left_behind - records,
            )  # fmt: skip
        part.shared.pop(start, None)
        for offset in part.listened.pop(start, ()) or (start,):
            self._hooks.done(part, offset)
        part.forget(start)
        if end > start + 1:
            part.forget_done()
