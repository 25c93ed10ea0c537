"""Retries: how long a failed record waits, which is next, and how many records are retried together.

The reference is Storm's ``KafkaSpoutRetryExponentialBackoff``: ``delay * 2 ** (failures - 1)``, up to a limit. Its
shift overflows at the 44th failure, after which it retries in a hot loop; here the delay never falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from sortedcontainers import SortedDict

__all__ = ["FOR_EVER", "NEVER", "Backoff", "RetryPolicy", "RetrySchedule", "RetryState"]

NEVER = 1 << 62  # A time that is never reached
FOR_EVER = 1 << 31  # A retry limit that is never reached: three weeks at one a millisecond


class RetryPolicy(Protocol):
    """Computes the wait before a retry."""

    def delay(self, failures: int) -> int:
        """Return the wait in ms after ``failures`` failures in all (1 is the first)."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays in integer milliseconds, which callers add to their own "now".

    >>> [Backoff(2, 10_000).delay(n) for n in (1, 2, 3, 4, 13, 14, 1_000_000)]
    [2, 4, 8, 16, 8192, 10000, 10000]
    """

    delay_ms: int = 2  # after the first failure; doubled by each further one
    delay_ms_max: int = 10_000

    def delay(self, failures: int) -> int:
        """Return the wait in ms after ``failures`` failures; it never falls as they grow."""
        doublings = min(max(failures, 1) - 1, self.delay_ms_max.bit_length())
        return min(self.delay_ms << doublings, self.delay_ms_max)


@dataclass(slots=True)
class RetryState:
    """The state of a failed record, or of a failed range of records."""

    failures: int = 0  # failed attempts; timeouts and attempts of a range are not counted
    timeouts: int = 0  # attempts that timed out while other records of the partition were acked
    backoffs: int = 0  # failures and timeouts, which determine the back-off
    ready_at: int = 0  # when the retry is due, in ms
    emitted_at: int | None = None  # when it was emitted again, in ms; None while it waits
    acks_seen: int = 0  # the partition's acks at its last emit
    end: int = 0  # one past the last offset
    records: int = 1  # how many are in the range
    most: int = 1  # how many of them the next attempt may emit together

    def part(self, start: int, end: int, records: int) -> RetryState:
        """Return the state of a part of this range; that of a single record has no history."""
        if end == start + 1:
            return RetryState(ready_at=self.ready_at, end=end)
        most = min(self.most, records)
        return RetryState(0, self.timeouts, self.backoffs, self.ready_at, end=end, records=records, most=most)


class RetrySchedule:
    """The failed entries of one partition, sorted: the reader seeks to the lowest one that is due.

    ``f`` is the number of entries. The key of each is its lowest offset; they do not overlap.
    """

    __slots__ = ("_ready", "_schedule", "entries", "out", "records", "records_out")

    def __init__(self) -> None:
        self.entries: SortedDict = SortedDict()  # lowest offset → RetryState
        self.out = 0  # Entries in flight again
        self.records = 0  # Records in the entries
        self.records_out = 0  # Records in flight again
        self._schedule: list[tuple[int, int]] = []
        """Heap of (ready_at, offset); outdated items are skipped when popped."""
        self._ready: list[int] = []
        """Heap of offsets whose retry is due; those in flight or done are skipped when popped."""

    def add(self, offset: int, retry: RetryState) -> None:
        """Add an entry that waits. O(log f)."""
        self.entries[offset] = retry
        self.records += retry.records

    def remove(self, offset: int) -> RetryState | None:
        """Remove and return an entry; None if there is none. O(log f)."""
        retry: RetryState | None = self.entries.pop(offset, None)
        if retry is not None:
            if retry.emitted_at is not None:
                self.mark_waiting(retry)
            self.records -= retry.records
        return retry

    def mark_out(self, retry: RetryState, now: int, acks: int) -> None:
        """Mark an entry as in flight again."""
        retry.emitted_at = now
        retry.acks_seen = acks
        self.out += 1
        self.records_out += retry.records

    def mark_waiting(self, retry: RetryState) -> None:
        """Mark an entry as waiting for its retry, no longer in flight."""
        retry.emitted_at = None
        self.out -= 1
        self.records_out -= retry.records

    def wait(self, offset: int, retry: RetryState, until: int) -> None:
        """Schedule the retry of an entry (:data:`NEVER`: it needs none). O(log f)."""
        retry.ready_at = until
        if until != NEVER:
            heappush(self._schedule, (until, offset))

    def earliest_ready(self, now: int) -> int | None:
        """Return the lowest offset whose retry is due. O(log f) amortised."""
        while self._schedule and self._schedule[0][0] <= now:
            ready_at, offset = heappop(self._schedule)
            retry = self.entries.get(offset)
            if retry is not None and retry.emitted_at is None and retry.ready_at == ready_at:
                heappush(self._ready, offset)
        while self._ready:
            retry = self.entries.get(self._ready[0])
            waits = retry is not None and retry.emitted_at is None and retry.ready_at != NEVER
            if waits and retry.ready_at <= now:
                return self._ready[0]
            offset = heappop(self._ready)
            if waits:  # postponed, or failed again
                heappush(self._schedule, (retry.ready_at, offset))
        return None

    def next_at(self) -> int | None:
        """Return when the next back-off ends, in ms, or an earlier time; None if none is running. O(1)."""
        return self._schedule[0][0] if self._schedule else None

    def waiting(self, start: int, end: int) -> list[int]:
        """Return the entries that begin in ``[start, end)`` and wait for a retry from the log."""
        return [
            offset
            for offset in self.entries.irange(start, end - 1)
            if self.entries[offset].emitted_at is None and self.entries[offset].ready_at != NEVER
        ]

    def first_waiting(self, start: int) -> int | None:
        """Return the lowest entry from ``start`` on that is not in flight. O(log f + entries in flight)."""
        return next((offset for offset in self.entries.irange(start) if self.entries[offset].emitted_at is None), None)

    def check(self) -> None:
        """Raise AssertionError if the counts are wrong, or a waiting entry is not scheduled."""
        retries = self.entries.values()
        out = [retry for retry in retries if retry.emitted_at is not None]
        assert len(out) == self.out, f"{len(out)} retries are out, but the count says {self.out}"
        assert sum(retry.records for retry in out) == self.records_out, "records out are miscounted"
        assert sum(retry.records for retry in retries) == self.records, "records that failed are miscounted"
        known = {offset for _, offset in self._schedule} | set(self._ready)
        waiting = {o for o, t in self.entries.items() if t.emitted_at is None and t.ready_at != NEVER}
        assert waiting <= known, "a retry waits, but for no time"
        for offset, retry in self.entries.items():
            assert 1 <= retry.most <= retry.records <= retry.end - offset, f"{retry} at {offset}"
            assert not retry.failures or retry.end == offset + 1, "an attempt of a range was counted"
