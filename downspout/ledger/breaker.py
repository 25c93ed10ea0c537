"""The circuit breaker: when so many records fail for good that it is not the records' fault.

A bad deploy fails everything. Dead-lettering all of it would be worse than to stop. So of the records that were
read last, a ratio may be given up, and not more.

"Last" goes by offset, and not by when a record was finished: records that fail are finished late (they are retried), so
by time they stand in crowds, above all at the end of a bounded run. And what is still on its way counts as read: a
sink that holds its acks back must not make the few that failed look like the only ones. Memory is bounded: offsets are
counted in cells, and the lowest are forgotten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from sortedcontainers import SortedDict

MINIMUM = 100  # Fewer records say nothing (with a window below that: a whole window)
CELLS_IN_WINDOW = 10
CELLS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Trip:
    """Why the breaker opens."""

    given_up: int  # of the records that were read last
    read: int
    error: str  # the commonest among their errors
    times: int  # how often that was


@dataclass(slots=True)
class _Cell:
    read: int = 0
    given_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Breaker:
    """The breaker of one partition. ``c`` is the number of cells that a window spans, about ten.

    >>> breaker = Breaker(ratio=0.5, window=4)
    >>> for offset in range(4):
    ...     breaker.read(offset)
    >>> breaker.give_up(1, "KeyError")
    >>> breaker.give_up(3, "KeyError")
    Trip(given_up=2, read=4, error='KeyError', times=2)
    """

    __slots__ = ("_last", "_minimum", "_ratio", "_window", "cells", "width")
    WINDOW: ClassVar[int] = 1_000  # "Last" are so many records, where nothing else is said

    def __init__(self, ratio: float, window: int | None = None) -> None:
        self._ratio = ratio  # of the records in the window; as many given up as that open the breaker. 0: never.
        self._window = window = window or self.WINDOW
        self._minimum = min(MINIMUM, window)
        self.width = -(-window // CELLS_IN_WINDOW)  # Records of one cell: :meth:`read` should get no more at once
        self.cells: SortedDict = SortedDict()  # lowest offset → cell
        self._last: _Cell | None = None

    def read(self, offset: int, count: int = 1) -> None:
        """Take note of ``count`` records, read for the first time, the first of them at ``offset``. O(1) amortised.

        Offsets ascend from call to call.
        """
        if self._last is None or self._last.read >= self.width:
            self._last = self.cells.setdefault(offset, _Cell())
            if len(self.cells) > CELLS_MAX:
                self.cells.popitem(0)
        self._last.read += count

    def give_up(self, offset: int, error: str) -> Trip | None:
        """Take note of a record that failed for good; return a trip if that is one too many. O(c).

        Args:
            offset: where it is.
            error: what it failed with: a class, since messages differ from record to record.
        """
        if not self._ratio:
            return None
        below = next(self.cells.irange(maximum=offset, reverse=True), None)
        if below is None:  # not read in this life, or so long ago that it is forgotten
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
