"""Which rows are in the files: sets of (topic, topic id, partition, path, offset).

A set of rows is kept as sorted disjoint offset ranges, one pair of numpy arrays for each *stream*: topic, topic id,
partition and path. Holes are normal: behind a fields grouping a task sees about every other record, and a bolt that
splits makes a stream for each position. Hundreds of thousands of ranges are cheap, because membership, union and
coding work on whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from downspout.offset_ranges import runs_of

Offsets = NDArray[np.int64]
_EMPTY: Offsets = np.empty(0, dtype=np.int64)
OFFSET_MAX = 2**63 - 1


class Stream(NamedTuple):
    """All rows that differ in nothing but their offset."""

    topic: str
    topic_id: str
    partition: int
    path: str


class Coverage:
    """A set of rows. ``r`` below is the number of ranges of a stream, ``n`` the number of offsets given.

    >>> covered, stream = Coverage(), Stream("orders", "", 0, "")
    >>> covered.add(stream, [3, 1, 2, 7])
    >>> covered.ranges(stream)
    [(1, 4), (7, 8)]
    >>> covered.contains(stream, [2, 4]).tolist()
    [True, False]
    >>> Coverage.from_json(covered.to_json()) == covered
    True
    """

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: dict[Stream, tuple[Offsets, Offsets]] = {}
        """stream → (starts, ends), half-open, sorted, never touching"""

    def add(self, stream: Stream, offsets: Iterable[int] | Offsets) -> None:
        """Add offsets, in any order, repeated or not. O((n + r) · log n); O(n) for offsets that rise, as mostly.

        Raises:
            ValueError: one is not an offset of Kafka's. With it, the set could not be read back.
        """
        sorted_offsets = _as_array(offsets)
        if (sorted_offsets[1:] <= sorted_offsets[:-1]).any():
            sorted_offsets = np.unique(sorted_offsets)
        if not len(sorted_offsets):
            return
        _check_bounds(int(sorted_offsets[0]), int(sorted_offsets[-1]) + 1)
        self._merge(stream, *runs_of(sorted_offsets))

    def add_range(self, stream: Stream, start: int, end: int) -> None:
        """Add ``[start, end)``."""
        if start < end:
            _check_bounds(start, end)
            self._merge(stream, np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))

    def update(self, other: Coverage) -> None:
        """Add all rows of ``other``."""
        for stream, (starts, ends) in other._ranges.items():
            self._merge(stream, starts, ends)

    def contains(self, stream: Stream, offsets: Iterable[int] | Offsets) -> NDArray[np.bool_]:
        """Return for each offset whether it is in the set. O(n · log r)."""
        wanted = _as_array(offsets)
        if (known := self._ranges.get(stream)) is None:
            return np.zeros(len(wanted), dtype=bool)
        starts, ends = known
        at = np.searchsorted(starts, wanted, side="right") - 1
        return (at >= 0) & (wanted < ends[np.maximum(at, 0)])

    def intersects(self, other: Coverage) -> bool:
        """Return whether some row is in both."""
        return any(self._overlaps(stream, *ranges) for stream, ranges in other._ranges.items())

    def _overlaps(self, stream: Stream, starts: Offsets, ends: Offsets) -> bool:
        if (known := self._ranges.get(stream)) is None:
            return False
        # A range of the other overlaps one of ours iff the last of ours that starts before its end ends after its
        # start.
        at = np.searchsorted(known[0], ends, side="left") - 1
        return bool(np.any((at >= 0) & (known[1][np.maximum(at, 0)] > starts)))

    def _merge(self, stream: Stream, starts: Offsets, ends: Offsets) -> None:
        if (known := self._ranges.get(stream)) is None:
            self._ranges[stream] = (starts, ends)
            return
        if starts[0] > known[1][-1]:  # the usual case: further on than all we know
            self._ranges[stream] = (np.concatenate((known[0], starts)), np.concatenate((known[1], ends)))
            return
        starts, ends = np.concatenate((known[0], starts)), np.concatenate((known[1], ends))
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        first = np.concatenate(([True], starts[1:] > reach[:-1]))
        last = np.concatenate((first[1:], [True]))
        self._ranges[stream] = (starts[first], reach[last])

    def streams(self) -> Iterator[Stream]:
        """Yield the streams, sorted."""
        return iter(sorted(self._ranges))

    def ranges(self, stream: Stream) -> list[tuple[int, int]]:
        """Return the ranges of a stream."""
        starts, ends = self._ranges.get(stream, (_EMPTY, _EMPTY))
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    @property
    def total(self) -> int:
        """How many rows are in the set."""
        return sum(int((ends - starts).sum()) for starts, ends in self._ranges.values())

    def __len__(self) -> int:
        """Return the number of ranges; :attr:`total` is the number of rows."""
        return sum(len(starts) for starts, _ in self._ranges.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Coverage):
            return NotImplemented
        return self._ranges.keys() == other._ranges.keys() and all(
            np.array_equal(starts, other._ranges[stream][0]) and np.array_equal(ends, other._ranges[stream][1])
            for stream, (starts, ends) in self._ranges.items()
        )

    __hash__ = None  # type: ignore[assignment]   # it changes

    def __repr__(self) -> str:
        return f"Coverage({ {stream: self.ranges(stream) for stream in self.streams()} })"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the set as JSON values; ranges as gap, length, gap, length…, each gap counted from the end before."""
        return [{**stream._asdict(), "ranges": _deltas(*self._ranges[stream])} for stream in self.streams()]

    @classmethod
    def from_json(cls, document: Any) -> Coverage:
        """Return the set that ``document`` describes. It is untrusted: malformed data raises."""
        coverage = cls()
        if not isinstance(document, list):
            raise ValueError("coverage is not a list")
        for part in document:
            stream = _stream(part)
            if stream in coverage._ranges:
                raise ValueError(f"{stream} stands twice")
            coverage._ranges[stream] = _from_deltas(part["ranges"])
        return coverage


def _check_bounds(start: int, end: int) -> None:
    if start < 0 or end > OFFSET_MAX:
        raise ValueError(f"offsets {start} to {end - 1} are not between 0 and {OFFSET_MAX - 1}")


def _as_array(offsets: Iterable[int] | Offsets) -> Offsets:
    if isinstance(offsets, np.ndarray):
        return offsets.astype(np.int64, copy=False)
    return np.fromiter(offsets, dtype=np.int64)


def _deltas(starts: Offsets, ends: Offsets) -> list[int]:
    flat = np.empty(2 * len(starts), dtype=np.int64)
    flat[0::2] = starts - np.concatenate(([0], ends[:-1]))
    flat[1::2] = ends - starts
    found: list[int] = flat.tolist()
    return found


def _stream(part: Any) -> Stream:
    if not isinstance(part, Mapping) or set(part) != {*Stream._fields, "ranges"}:
        raise ValueError(f"{str(part)[:200]} is not a stream")
    topic, topic_id, partition, path = (part[name] for name in Stream._fields)
    texts = isinstance(topic, str) and isinstance(topic_id, str) and isinstance(path, str)
    if not texts or type(partition) is not int or not 0 <= partition < 2**31:
        raise ValueError(f"{str(part)[:200]} is not a stream")
    return Stream(topic, topic_id, partition, path)


def _from_deltas(values: Any) -> tuple[Offsets, Offsets]:
    if not isinstance(values, list) or len(values) % 2 or set(map(type, values)) != {int}:
        raise ValueError("ranges are not a list of whole numbers in pairs")
    if sum(values) > OFFSET_MAX or min(values) < 0:
        raise ValueError("ranges go beyond what an offset can be")
    steps = np.array(values, dtype=np.int64)  # gap, length, gap, length…
    edges = np.cumsum(steps)
    if (steps[1:] < 1).any():
        raise ValueError("ranges are empty or touch")
    return edges[0::2], edges[1::2]
