from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import Ranges

SMALL = st.integers(0, 60)


def built(offsets: set[int]) -> Ranges:
    """Return a set built one by one, in the order of Python's hash."""
    ranges = Ranges()
    for offset in offsets:
        ranges.add(offset)
    return ranges


def test_neighbours_become_one_range() -> None:
    """Ranges never touch: a set has one form."""
    assert list(built({3, 4, 5, 9})) == [(3, 6), (9, 10)]


def test_an_offset_between_two_ranges_joins_them() -> None:
    """Filling a hole leaves one range."""
    ranges = Ranges([(1, 3), (4, 6)])
    ranges.add(3)
    assert list(ranges) == [(1, 6)]
    ranges.check()


def test_a_range_swallows_those_inside_it() -> None:
    """Adding a range over others leaves one."""
    ranges = Ranges([(1, 3), (5, 7), (9, 11)])
    ranges.add_range(2, 10)
    assert list(ranges) == [(1, 11)]
    ranges.check()


def test_an_empty_range_adds_nothing() -> None:
    """Start and end alike: nothing happens."""
    ranges = Ranges()
    ranges.add_range(4, 4)
    assert len(ranges) == 0
    assert ranges.total == 0
    assert ranges.end is None


def test_memory_is_by_holes() -> None:
    """A hundred thousand offsets in order are one range."""
    ranges = Ranges()
    for offset in range(100_000):
        ranges.add(offset)
    assert len(ranges) == 1
    assert ranges.total == 100_000
    assert ranges.end == 100_000


def test_equality_is_by_content() -> None:
    """Two sets with the same integers are equal, however they were built."""
    assert built({1, 2, 3}) == Ranges([(1, 4)])
    assert Ranges([(1, 4)]) != Ranges([(1, 5)])


@given(st.sets(SMALL), SMALL)
def test_one_by_one_equals_a_set(offsets: set[int], probe: int) -> None:
    """Membership, size and first gap are those of a plain set."""
    ranges = built(offsets)
    ranges.check()
    assert ranges.total == len(offsets)
    assert (probe in ranges) == (probe in offsets)
    gap = probe
    while gap in offsets:
        gap += 1
    assert ranges.first_gap(probe) == gap


@given(st.lists(st.tuples(SMALL, SMALL)), SMALL, SMALL)
def test_ranges_equal_a_set(parts: list[tuple[int, int]], start: int, end: int) -> None:
    """The union of ranges is that of plain sets, and so are what covers and what misses."""
    ranges = Ranges(parts)
    ranges.check()
    plain = {o for a, b in parts for o in range(a, b)}
    assert {o for a, b in ranges for o in range(a, b)} == plain
    assert ranges.covers(start, end) == (set(range(start, end)) <= plain)
    missing = list(ranges.missing(start, end))
    assert {o for a, b in missing for o in range(a, b)} == set(range(start, end)) - plain
    assert missing == list(Ranges(missing))


@given(st.sets(SMALL), SMALL)
def test_discarding_keeps_what_is_above(offsets: set[int], below: int) -> None:
    """After discard_below only the rest is there, also where a range is cut in two."""
    ranges = built(offsets)
    ranges.discard_below(below)
    ranges.check()
    assert {o for a, b in ranges for o in range(a, b)} == {o for o in offsets if o >= below}
