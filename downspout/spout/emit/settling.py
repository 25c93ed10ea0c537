"""How the answers of tuples come back under at-least-once: acks and fails settle what is in the ledger.

A fail decides whether the record is tried again or dead-lettered. This is the spout's hot path.
"""

from __future__ import annotations

from collections.abc import Iterable

from downspout.clock import Clock
from downspout.component import Failure
from downspout.ledger.retry_schedule import RetryState
from downspout.spout.behind import BehindLimit
from downspout.spout.partition import LastFailure, Partition
from downspout.spout.services import SpoutServices
from downspout.spout.streaks import Streak


class Settling:
    """Takes acks and fails, and notes the last failures: the base of what emits."""

    look_up_mask = 15  # Every 16th ack looks at the clock

    def __init__(self, services: SpoutServices, clock: Clock) -> None:
        self.by_key: dict[str, Partition] = {}  # Whom answers are for: the present membership's
        self._settings = services.setup.settings
        self._timeout_ms = services.setup.timeout_ms
        self._metrics = services.metrics
        self._dead_lettering = services.dead_lettering
        self._hooks = services.hooks
        self._now = services.now
        self._wall = clock.wall
        most = self._settings["behind_max"]
        limits = services.metrics, services.hooks, services.dead_lettering, services.log
        self._behind = None if most is None else BehindLimit(most, *limits)
        self._streak = Streak(services.metrics, self._settings["retries_max"], services.log)

    def ack(self, tup_id: str) -> bool:
        """Take an ack; return whether it changed anything. Unknown, double and late ones do not."""
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
        if part is None or part.shared or part.last_failures or self._hooks or start < 0:
            for offset in range(start, end):
                self.ack(f"{key}/{offset}")
            return
        acked = part.ledger.ack_many(start, end)
        self._metrics.acked += acked
        self._metrics.stale += end - start - acked

    def fail(self, tup_id: str, failure: Failure | None) -> bool:
        """Take a fail, with its reason where that is known; return whether it changed anything.

        Where it is not known, its age decides whether it is a timeout, which counts no attempt.
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
        """Wait no longer for what lies too far behind (``kafka.behind_max``)."""
        if self._behind is not None:
            self._behind.prune(parts, now)

    def tried_before(self, tup_id: str) -> bool:
        """Return whether the commit that was found says that records beyond this one were done."""
        part, offset = self._find(tup_id)
        return part is not None and offset < part.ledger.known_end

    def _find(self, tup_id: str) -> tuple[Partition | None, int]:
        """Return whose message id this is, and the offset in it."""
        key, _, offset_text = str(tup_id).rpartition("/")
        part = self.by_key.get(key)
        return part, int(offset_text) if part is not None and offset_text.isdecimal() else -1

    def _retry_or_exhaust(self, part: Partition, offset: int, failure: Failure, now: int) -> bool:
        """Take a fail of what is out."""
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
        # A retry that fails says nothing of other records: at the end of a topic only those of bad ones are left.
        if not timed_out and retry.failures == 1 and offset >= part.ledger.known_end:
            self._streak.note(part, offset, failure, self.by_key.values(), now)
        too_late = timeouts >= self._settings["timeouts_max"]
        if retry.failures > self._settings["retries_max"] or too_late:
            self._dead_lettering.exhaust(part, offset)
        else:
            self._hooks.retried(part, offset)
        return True

    def _take_back(self, part: Partition, offset: int, failure: Failure, now: int) -> RetryState | None:
        if failure.kind == "timeout":
            return part.ledger.timeout(offset, now, outage=failure.outage)
        return part.ledger.fail(offset, now)

    def _set_back(self, part: Partition, offset: int, failure: Failure) -> None:
        """Note when and why a record failed, for its dead letter."""
        now_ms = self._wall_ms()
        last = part.last_failures.setdefault(offset, LastFailure(now_ms, now_ms))
        last.last_ms = now_ms
        last.failure = failure

    def _wall_ms(self) -> int:
        return int(self._wall() * 1000)
