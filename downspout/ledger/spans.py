"""Ranges that are out for the first time, each as one tuple: where they end, and how many records they have.

The ledger keeps when they were emitted, as it does for single records; all that is more than that is here, so that
single records cost nothing more. ``h`` is the number of sparse ranges beyond the commit.
"""

from __future__ import annotations

from downspout.ledger.ranges import Ranges

__all__ = ["Spans"]


class Spans:
    """The ranges of one partition, by their lowest offset.

    >>> spans = Spans()
    >>> spans.add(10, 20, records=7)
    >>> spans.more, spans.gaps.total, spans.end(10), spans.end(11)
    (6, 3, 20, None)
    >>> spans.take(10), spans.more, spans.gaps.total
    ((20, 7), 0, 3)
    """

    __slots__ = ("_spans", "gaps", "more")

    def __init__(self) -> None:
        self._spans: dict[int, tuple[int, int]] = {}
        """lowest offset → (end, records)"""
        self.more = 0
        """How many records there are beyond one for each range."""
        self.gaps = Ranges()
        """For counting alone: of each range beyond the commit as many offsets as it had gaps, moved to its end."""

    def add(self, start: int, end: int, records: int) -> None:
        """Take in ``[start, end)``. O(1), and O(log h) where it has gaps."""
        self._spans[start] = end, records
        self.more += records - 1
        self.gaps.add_range(start + records, end)

    def take(self, start: int) -> tuple[int, int]:
        """Take a range out; return its end and how many records it has. What begins there and is no range has one."""
        end, records = self._spans.pop(start, (start + 1, 1))
        self.more -= records - 1
        return end, records

    def end(self, start: int) -> int | None:
        """Return where a range ends; None where none begins."""
        span = self._spans.get(start)
        return None if span is None else span[0]

    def __contains__(self, start: int) -> bool:
        return start in self._spans

    def __len__(self) -> int:
        return len(self._spans)

    def _check(self) -> None:
        """Raise AssertionError where the count is wrong."""
        self.gaps._check()
        assert sum(records - 1 for _, records in self._spans.values()) == self.more, "records out are miscounted"
