"""Ranges that are out for the first time, each as one tuple: where they end, and how many records they have.

The ledger keeps when they were emitted, as it does for single records; all that is more than that is here, so that
single records cost nothing more. ``h`` is the number of sparse ranges beyond the commit.
"""

from __future__ import annotations

from downspout.ledger.ranges import Ranges


class RangesInFlight:
    """The ranges of one partition, by their lowest offset.

    >>> out = RangesInFlight()
    >>> out.add(10, 20, records=7)
    >>> out.more, out.gaps.total, out.end(10), out.end(11)
    (6, 3, 20, None)
    >>> out.take(10), out.more, out.gaps.total
    ((20, 7), 0, 3)
    """

    __slots__ = ("_by_start", "gaps", "more")

    def __init__(self) -> None:
        self._by_start: dict[int, tuple[int, int]] = {}  # lowest offset → (end, records)
        self.more = 0  # How many records there are beyond one for each range
        self.gaps = Ranges()
        """For counting alone: of each range beyond the commit as many offsets as it had gaps, moved to its end."""

    def add(self, start: int, end: int, records: int) -> None:
        """Take in ``[start, end)``. O(1), and O(log h) where it has gaps."""
        self._by_start[start] = end, records
        self.more += records - 1
        self.gaps.add_range(start + records, end)

    def take(self, start: int) -> tuple[int, int]:
        """Take a range out; return its end and how many records it has. What begins there and is no range has one."""
        end, records = self._by_start.pop(start, (start + 1, 1))
        self.more -= records - 1
        return end, records

    def end(self, start: int) -> int | None:
        """Return where a range ends; None where none begins."""
        found = self._by_start.get(start)
        return None if found is None else found[0]

    def __contains__(self, start: int) -> bool:
        return start in self._by_start

    def __len__(self) -> int:
        return len(self._by_start)

    def check(self) -> None:
        """Raise AssertionError where the count is wrong."""
        self.gaps.check()
        assert sum(records - 1 for _, records in self._by_start.values()) == self.more, "records out are miscounted"
