"""Alarms about a partition: too many of its records fail for good, or its commit point does not move.

**The circuit breaker.** A bad deploy fails everything, and stopping is better than dead-lettering all of it. So only a
ratio of the last records read may be given up. "Last" means by offset: failing records are retried and finish late, so
by time they would cluster, above all at the end of a bounded run. Records in flight count as read; otherwise, while a
sink delays its acks, the few failures would be the only finished records. Memory is bounded: offsets are counted in
cells, and the lowest cells are dropped.

**Progress.** A partition is *stuck* if records have waited for a time limit without a move of its commit point. The
start and the end of that are reported once each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from sortedcontainers import SortedDict

MINIMUM = 100  # Fewer records prove nothing (with a smaller window: a whole window)
CELLS_IN_WINDOW = 10
CELLS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Trip:
    """The failures that open the breaker."""

    given_up: int  # of the records read last
    read: int
    error: str  # the most frequent error class
    times: int  # its count


@dataclass(slots=True)
class _Cell:
    read: int = 0
    given_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Breaker:
    """The breaker of one partition. ``c`` is the number of cells in a window, about ten.

    >>> breaker = Breaker(ratio=0.5, window=4)
    >>> for offset in range(4):
    ...     breaker.read(offset)
    >>> breaker.give_up(1, "KeyError")
    >>> breaker.give_up(3, "KeyError")
    Trip(given_up=2, read=4, error='KeyError', times=2)
    """

    __slots__ = ("_last", "_minimum", "_ratio", "_window", "cells", "width")
    WINDOW: ClassVar[int] = 1_000  # Default window, in records

    def __init__(self, ratio: float, window: int | None = None) -> None:
        self._ratio = ratio  # share of given-up records in the window that opens the breaker; 0: never
        self._window = window = window or self.WINDOW
        self._minimum = min(MINIMUM, window)
        self.width = -(-window // CELLS_IN_WINDOW)  # Records of one cell: :meth:`read` should get no more at once
        self.cells: SortedDict = SortedDict()  # lowest offset → cell
        self._last: _Cell | None = None

    def read(self, offset: int, count: int = 1) -> None:
        """Add ``count`` new records, the first at ``offset``. O(1) amortised.

        Offsets ascend from call to call.
        """
        if self._last is None or self._last.read >= self.width:
            self._last = self.cells.setdefault(offset, _Cell())
            if len(self.cells) > CELLS_MAX:
                self.cells.popitem(0)
        self._last.read += count

    def give_up(self, offset: int, error: str) -> Trip | None:
        """Count a record that failed for good; return a trip if the breaker opens. O(c).

        Args:
            offset: the record's.
            error: its error class; messages would differ from record to record.
        """
        if not self._ratio:
            return None
        below = next(self.cells.irange(maximum=offset, reverse=True), None)
        if below is None:  # not read by this process, or forgotten
            return None
        cell = self.cells[below]
        cell.given_up += 1
        cell.errors[error] += 1
        read = given_up = 0
        window: list[_Cell] = []
        for start in self.cells.irange(maximum=offset, reverse=True):
            cell = self.cells[start]
            window.append(cell)
            read += cell.read
            given_up += cell.given_up
            if read >= self._window:
                break
        if read < self._minimum or given_up < self._ratio * read:
            return None
        errors = sum((cell.errors for cell in window), Counter[str]())
        return Trip(given_up, read, *errors.most_common(1)[0])


# --- Partitions that stand still ---

LATE_MS = 5_000  # A check is late this long after the previous one


@dataclass(frozen=True, slots=True)
class StallReport:
    """A partition has become stuck, or moves again."""

    stuck: bool  # False: it moves again
    offset: int | None  # its commit point; None: not known yet
    lasted_ms: int  # since the commit point last moved


class PartitionProgress:
    """Tracks one partition's commit point; times are integer milliseconds on the caller's clock.

    Check it often. The first check after a long pause (the process was stopped, or Storm did not call) reports nothing,
    because acks may still be unread.

    >>> progress = PartitionProgress(20_000, now=0)
    >>> checks = [progress.check(7, waits=True, now=second * 1000) for second in range(1, 24)]
    >>> [word for word in checks if word]
    [StallReport(stuck=True, offset=7, lasted_ms=20000)]
    >>> progress.check(8, waits=True, now=24_000)
    StallReport(stuck=False, offset=7, lasted_ms=23000)
    """

    __slots__ = ("_checked_at", "_limit_ms", "_point", "_since", "stuck")

    def __init__(self, limit_ms: float, now: int) -> None:
        self.stuck = False  # Reported as stuck, and not yet as moving
        self._limit_ms = limit_ms
        self._point: int | None = -1
        self._since = self._checked_at = now

    def check(self, point: int | None, waits: bool, now: int, emitted_at: int | None = None) -> StallReport | None:
        """Record the current state; return a report if one is due.

        Args:
            point: the offset to commit: the lowest that is not done; None: not known yet.
            waits: whether records wait at or beyond it.
            emitted_at: when the record there was first emitted, which counts as progress; its retries do not.
        """
        was_late = now - self._checked_at >= LATE_MS
        self._checked_at = now
        if point != self._point or not waits:
            ended = StallReport(False, self._point, now - self._since) if self.stuck else None
            self._point, self._since, self.stuck = point, now, False
            return ended
        if not self.stuck and emitted_at is not None:
            self._since = max(self._since, emitted_at)
        if self.stuck or was_late or now - self._since < self._limit_ms:
            return None
        self.stuck = True
        return StallReport(True, point, now - self._since)

    def still_ms(self, now: int) -> int:
        """Return the time since the commit point last moved, as of the last check."""
        return now - self._since if self._checked_at > self._since else 0
