"""Sets of offsets as plain lists of sorted, disjoint half-open ranges, and operations on them.

Most functions take O(ranges), regardless of the number of offsets. For a set that grows offset by offset, see
:class:`downspout.ledger.ranges.Ranges`, which iterates over such ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OffsetRange = tuple[int, int]
OffsetRanges = list[OffsetRange]


def of_offsets(offsets: Iterable[int] | NDArray[np.int64]) -> OffsetRanges:
    """Return the set of these offsets, given in any order.

    >>> of_offsets([5, 3, 4, 9, 9])
    [(3, 6), (9, 10)]
    """
    import numpy as np  # here, since some commands never need it

    given: NDArray[Any] = offsets if isinstance(offsets, np.ndarray) else np.array(list(offsets), dtype=np.int64)
    ordered = np.unique(given)
    if not len(ordered):
        return []
    starts, ends = runs_of(ordered)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def runs_of(rising: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and the ends of the ranges of ascending offsets, at least one. O(n).

    >>> import numpy as np
    >>> [bound.tolist() for bound in runs_of(np.array([3, 4, 5, 9]))]
    [[3, 9], [6, 10]]
    """
    import numpy as np

    breaks = np.flatnonzero(np.diff(rising) != 1)
    return rising[np.concatenate(([0], breaks + 1))], rising[np.concatenate((breaks, [-1]))] + 1


def union(*sets: Iterable[OffsetRange]) -> OffsetRanges:
    """Return the union of sets, which need not be sorted.

    >>> union([(0, 3), (8, 9)], [(2, 5)], [(5, 6)])
    [(0, 6), (8, 9)]
    """
    merged: OffsetRanges = []
    for start, end in sorted(each for ranges in sets for each in ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif start < end:
            merged.append((start, end))
    return merged


def subtract(whole: Sequence[OffsetRange], away: Sequence[OffsetRange]) -> OffsetRanges:
    """Return ``whole`` without ``away``.

    >>> subtract([(0, 10), (20, 22)], [(3, 5), (9, 21)])
    [(0, 3), (5, 9), (21, 22)]
    """
    left: OffsetRanges = []
    at = 0
    for start, end in whole:
        while at < len(away) and away[at][1] <= start:
            at += 1
        look = at
        while look < len(away) and away[look][0] < end:
            if away[look][0] > start:
                left.append((start, away[look][0]))
            start = max(start, away[look][1])
            look += 1
        if start < end:
            left.append((start, end))
    return left


def intersect(one: Sequence[OffsetRange], other: Sequence[OffsetRange]) -> OffsetRanges:
    """Return the intersection of two sets.

    >>> intersect([(0, 10)], [(3, 5), (9, 21)])
    [(3, 5), (9, 10)]
    """
    return subtract(one, subtract(one, other))


def holds(ranges: Sequence[OffsetRange], offset: int) -> bool:
    """Return whether an offset is in the set. O(log ranges).

    >>> holds([(3, 5), (9, 10)], 4), holds([(3, 5), (9, 10)], 5)
    (True, False)
    """
    at = bisect_right(ranges, offset, key=itemgetter(0)) - 1
    return at >= 0 and offset < ranges[at][1]


def clip(ranges: Iterable[OffsetRange], within: Sequence[OffsetRange]) -> OffsetRanges:
    """Return the parts of ranges that lie in a set; overlapping ranges give overlapping parts.

    >>> clip([(0, 4), (2, 9), (2, 3)], [(3, 8)])
    [(3, 4), (3, 8)]
    """
    return [part for each in ranges for part in intersect([each], within)]


def count(ranges: Iterable[OffsetRange]) -> int:
    """Return the number of offsets in a set."""
    return sum(end - start for start, end in ranges)


def show(ranges: Sequence[OffsetRange], limit: int = 3) -> str:
    """Format the beginning of a set.

    >>> show([(3, 4), (7, 10), (12, 13), (20, 30)])
    '@3, @7–9, @12, …'
    """
    texts = [f"@{start}" if end == start + 1 else f"@{start}–{end - 1}" for start, end in ranges[:limit]]
    return ", ".join(texts + ["…"] * (len(ranges) > limit))
