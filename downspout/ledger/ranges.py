"""Sets of offsets, kept as ranges: memory grows with the number of holes, not of offsets.

A range is half-open: ``[start, end)``. Ranges are disjoint and never touch, so each set has exactly one form. A
:class:`SortedDict` maps start → end, and a plain dict end → start: usually a range grows at its end or two ranges meet,
which takes hash lookups only; a new hole costs a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict


class Ranges:
    """A set of integers as sorted, disjoint ranges; ``h`` is their number.

    >>> done = Ranges([(3, 5)])
    >>> done.add(6); done.add(5); done.add(9)
    >>> list(done)
    [(3, 7), (9, 10)]
    >>> done.first_gap(3), 9 in done, done.total
    (7, True, 5)
    """

    __slots__ = ("_ends", "_starts", "total")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: SortedDict = SortedDict()  # start → end
        self._ends: dict[int, int] = {}  # end → start
        self.total = 0  # Number of integers in the set
        for start, end in ranges:
            self.add_range(start, end)

    def add(self, offset: int) -> None:
        """Add one integer that must not be in the set. O(1) if it touches a range, else O(log h).

        Adding it twice corrupts the set: the ledger acks an offset only once. Other callers use :meth:`add_range`.
        """
        end = offset + 1
        start = self._ends.pop(offset, None)
        following = self._starts.pop(end, None) if end in self._starts else None
        if start is None:
            start = offset
            self._starts[offset] = end if following is None else following
        else:
            # The key exists, so the order does not change: no need for SortedDict's own assignment.
            dict.__setitem__(self._starts, start, end if following is None else following)
        self._ends[end if following is None else following] = start
        self.total += 1

    def add_range(self, start: int, end: int) -> None:
        """Add ``[start, end)``, parts of which may be in the set. O((1 + ranges merged) · log h)."""
        if start >= end:
            return
        at = self._starts.bisect_right(start) - 1
        if at >= 0:
            left_start, left_end = self._starts.peekitem(at)
            if left_end >= end:
                return
            if left_end >= start:
                start = left_start
                self._remove(left_start, left_end)
        while (at := self._starts.bisect_left(start)) < len(self._starts):
            right_start, right_end = self._starts.peekitem(at)
            if right_start > end:
                break
            end = max(end, right_end)
            self._remove(right_start, right_end)
        self._insert(start, end)

    def __contains__(self, offset: int) -> bool:
        """Return whether ``offset`` is in the set. O(log h)."""
        return self.covers(offset, offset + 1)

    def covers(self, start: int, end: int) -> bool:
        """Return whether all of ``[start, end)`` is in the set (an empty range always is). O(log h)."""
        if start >= end:
            return True
        at = self._starts.bisect_right(start) - 1
        return at >= 0 and bool(self._starts.peekitem(at)[1] >= end)

    def first_gap(self, at: int) -> int:
        """Return the lowest integer that is at least ``at`` and not in the set. O(1) if a range starts at ``at``.

        >>> Ranges([(3, 5)]).first_gap(4)
        5
        """
        if (end := self._starts.get(at)) is not None:
            return int(end)
        index = self._starts.bisect_right(at) - 1
        return max(at, self._starts.peekitem(index)[1]) if index >= 0 else at

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that are not in the set, in order.

        >>> list(Ranges([(3, 5), (7, 8)]).missing(0, 8))
        [(0, 3), (5, 7)]
        """
        while (start := self.first_gap(start)) < end:
            at = self._starts.bisect_left(start)
            stop = min(end, self._starts.peekitem(at)[0]) if at < len(self._starts) else end
            yield start, stop
            start = stop

    def discard_below(self, offset: int) -> None:
        """Remove all integers below ``offset``. O(1) per range removed, amortised."""
        while self._starts:
            start, end = self._starts.peekitem(0)
            if start >= offset:
                return
            self._remove(start, end)
            if end > offset:
                self._insert(offset, end)

    def last_below(self, offset: int, default: int) -> int:
        """Return the highest integer in the set that is below ``offset``. O(log h).

        >>> done = Ranges([(3, 5), (7, 9)])
        >>> done.last_below(9, -1), done.last_below(8, -1), done.last_below(6, -1), done.last_below(3, -1)
        (8, 7, 4, -1)
        """
        at = self._starts.bisect_left(offset) - 1
        return min(int(self._starts.peekitem(at)[1]), offset) - 1 if at >= 0 else default

    @property
    def end(self) -> int | None:
        """One more than the highest integer; None if the set is empty."""
        return int(self._starts.peekitem(-1)[1]) if self._starts else None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._starts.items())

    def __len__(self) -> int:
        """Return the number of ranges; :attr:`total` is the number of integers."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Ranges) else NotImplemented

    __hash__ = None  # type: ignore[assignment]   # it changes

    def __repr__(self) -> str:
        return f"Ranges({list(self)!r})"

    def _insert(self, start: int, end: int) -> None:
        self._starts[start] = end
        self._ends[end] = start
        self.total += end - start

    def _remove(self, start: int, end: int) -> None:
        del self._starts[start]
        del self._ends[end]
        self.total -= end - start

    def check(self) -> None:
        """Raise AssertionError if the ranges or the index are inconsistent."""
        previous = None
        total = 0
        for start, end in self._starts.items():
            assert start < end, f"[{start}, {end}) is empty"
            assert previous is None or previous < start, f"[{start}, {end}) touches or overlaps the one before"
            assert self._ends.get(end) == start, f"[{start}, {end}) is not in the index by end"
            previous = end
            total += end - start
        assert len(self._ends) == len(self._starts), "the two indexes differ in size"
        assert total == self.total, f"{total} integers, but total says {self.total}"


class RangesInFlight:
    """Ranges of one partition in flight for the first time, each one tuple, by their lowest offset.

    Holds ends and record counts; the ledger keeps the emit times, so single records need no entry here. ``h`` is the
    number of sparse ranges beyond the commit.

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
        self.more = 0  # Number of records minus number of ranges
        self.gaps = Ranges()
        """For counting only: each range beyond the commit adds as many offsets, at its end, as it had gaps."""

    def add(self, start: int, end: int, records: int) -> None:
        """Add ``[start, end)``. O(1), or O(log h) if it has gaps."""
        self._by_start[start] = end, records
        self.more += records - 1
        self.gaps.add_range(start + records, end)

    def take(self, start: int) -> tuple[int, int]:
        """Remove a range; return its end and record count. A single record at ``start`` has one."""
        end, records = self._by_start.pop(start, (start + 1, 1))
        self.more -= records - 1
        return end, records

    def end(self, start: int) -> int | None:
        """Return the end of the range at ``start``; None: no range begins there."""
        found = self._by_start.get(start)
        return None if found is None else found[0]

    def __contains__(self, start: int) -> bool:
        return start in self._by_start

    def __len__(self) -> int:
        return len(self._by_start)

    def check(self) -> None:
        """Raise AssertionError if the count is wrong."""
        self.gaps.check()
        assert sum(records - 1 for _, records in self._by_start.values()) == self.more, "records out are miscounted"
