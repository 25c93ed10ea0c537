"""What failed: how long it waits for its next try, which is next, and how large that may be.

The reference is Storm's ``KafkaSpoutRetryExponentialBackoff``: an initial delay after the first failure, then
``delay * 2 ** (failures - 1)``, up to a limit. Its shift overflows at the 44th failure, after which it retries in a
hot loop; here the exponent is capped, so the delay never falls, for any number of failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from sortedcontainers import SortedDict

__all__ = ["NEVER", "Backoff", "Retries", "Trouble"]

NEVER = 1 << 62
"""A time that does not come."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A schedule of delays in integer milliseconds. It asks no clock: callers add the delay to their own "now".

    Attributes:
        initial_ms: after the first failure.
        delay_ms: base of the later ones.
        delay_ms_max: the longest.

    >>> [Backoff(0, 2, 10_000).delay(n) for n in (1, 2, 3, 4, 13, 14, 1_000_000)]
    [0, 4, 8, 16, 8192, 10000, 10000]
    """

    initial_ms: int = 0
    delay_ms: int = 2
    delay_ms_max: int = 10_000

    def delay(self, failures: int) -> int:
        """Return the wait in ms after ``failures`` failures in all (1 is the first); it never falls as they grow."""
        if failures <= 1:
            return min(self.initial_ms, self.delay_ms_max)
        # 2 ** bit_length(limit) is above the limit, so a larger exponent can change nothing.
        exponent = min(failures - 1, self.delay_ms_max.bit_length())
        return min(self.delay_ms_max, max(self.initial_ms, self.delay_ms << exponent))


@dataclass(slots=True)
class Trouble:
    """The state of a record that failed, or of a range of records that did.

    Attributes:
        failures: attempts that failed; a timeout is none, and of a range none is counted.
        timeouts: attempts that timed out while other records of the partition were acked.
        setbacks: failures and all timeouts: the back-off grows with them.
        ready_at: when it may be tried again, in ms.
        emitted_at: when it was emitted again, in ms; None while it waits.
        acks_seen: acks of the partition as of its last emit.
        end: behind the last offset.
        records: how many are in the range.
        most: how many of them may go out together in the next try.
    """

    failures: int = 0
    timeouts: int = 0
    setbacks: int = 0
    ready_at: int = 0
    emitted_at: int | None = None
    acks_seen: int = 0
    end: int = 0
    records: int = 1
    most: int = 1

    def part(self, start: int, end: int, records: int) -> Trouble:
        """Return the state of a part of this range; a record that stands alone has no past."""
        if end == start + 1:
            return Trouble(ready_at=self.ready_at, end=end)
        most = min(self.most, records)
        return Trouble(0, self.timeouts, self.setbacks, self.ready_at, end=end, records=records, most=most)


class Retries:
    """What failed, of one partition: sorted, as the lowest that is ready decides where the reader goes back to.

    ``f`` is the number of entries. Each is under its lowest offset; they do not overlap.
    """

    __slots__ = ("_ready", "_schedule", "entries", "out", "records", "records_out")

    def __init__(self) -> None:
        self.entries: SortedDict = SortedDict()
        """lowest offset → Trouble"""
        self.out = 0
        """How many entries are out again."""
        self.records = 0
        """How many records are in the entries."""
        self.records_out = 0
        """How many of these are out again."""
        self._schedule: list[tuple[int, int]] = []
        """Heap of (ready_at, offset); entries of the past are skipped when they come up."""
        self._ready: list[int] = []
        """Heap of offsets whose time has come; those that are out or done are skipped when they come up."""

    def add(self, offset: int, trouble: Trouble) -> None:
        """Take in an entry that waits. O(log f)."""
        self.entries[offset] = trouble
        self.records += trouble.records

    def remove(self, offset: int) -> Trouble | None:
        """Take an entry away; None where there is none. O(log f)."""
        trouble: Trouble | None = self.entries.pop(offset, None)
        if trouble is not None:
            if trouble.emitted_at is not None:
                self.land(trouble)
            self.records -= trouble.records
        return trouble

    def send(self, trouble: Trouble, now: int, acks: int) -> None:
        """An entry goes out again."""
        trouble.emitted_at = now
        trouble.acks_seen = acks
        self.out += 1
        self.records_out += trouble.records

    def land(self, trouble: Trouble) -> None:
        """It comes back."""
        trouble.emitted_at = None
        self.out -= 1
        self.records_out -= trouble.records

    def wait(self, offset: int, trouble: Trouble, until: int) -> None:
        """Let an entry wait until then (:data:`NEVER`: it is settled in another way). O(log f)."""
        trouble.ready_at = until
        if until != NEVER:
            heappush(self._schedule, (until, offset))

    def earliest_ready(self, now: int) -> int | None:
        """Return the lowest offset that waits for a retry and may have it. O(log f) amortised."""
        while self._schedule and self._schedule[0][0] <= now:
            ready_at, offset = heappop(self._schedule)
            trouble = self.entries.get(offset)
            if trouble is not None and trouble.emitted_at is None and trouble.ready_at == ready_at:
                heappush(self._ready, offset)
        while self._ready:
            trouble = self.entries.get(self._ready[0])
            waits = trouble is not None and trouble.emitted_at is None and trouble.ready_at != NEVER
            if waits and trouble.ready_at <= now:
                return self._ready[0]
            offset = heappop(self._ready)
            if waits:  # postponed, or failed again
                heappush(self._schedule, (trouble.ready_at, offset))
        return None

    def next_at(self) -> int | None:
        """Return when the next back-off ends, in ms; None where none is under way. It may be too early. O(1)."""
        return self._schedule[0][0] if self._schedule else None

    def waiting(self, start: int, end: int) -> list[int]:
        """Return the entries that begin in ``[start, end)`` and wait for a retry, and need the log for it."""
        return [
            offset
            for offset in self.entries.irange(start, end - 1)
            if self.entries[offset].emitted_at is None and self.entries[offset].ready_at != NEVER
        ]

    def first_waiting(self, start: int) -> int | None:
        """Return the lowest entry from ``start`` on that is not out. O(log f), and those that are out."""
        return next((offset for offset in self.entries.irange(start) if self.entries[offset].emitted_at is None), None)

    def _check(self) -> None:
        """Raise AssertionError where the counts are wrong, or something waits for no time."""
        troubles = self.entries.values()
        out = [trouble for trouble in troubles if trouble.emitted_at is not None]
        assert len(out) == self.out, f"{len(out)} retries are out, but the count says {self.out}"
        assert sum(trouble.records for trouble in out) == self.records_out, "records out are miscounted"
        assert sum(trouble.records for trouble in troubles) == self.records, "records that failed are miscounted"
        known = {offset for _, offset in self._schedule} | set(self._ready)
        waiting = {o for o, t in self.entries.items() if t.emitted_at is None and t.ready_at != NEVER}
        assert waiting <= known, "a retry waits, but for no time"
        for offset, trouble in self.entries.items():
            assert 1 <= trouble.most <= trouble.records <= trouble.end - offset, f"{trouble} at {offset}"
            assert not trouble.failures or trouble.end == offset + 1, "an attempt of a range was counted"
