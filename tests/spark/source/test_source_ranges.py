"""Which offsets a batch reads: arithmetic, checked against the rules and against all small cases."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from downspout.errors import ConfigError
from downspout.spark import OffsetRange, Offsets, from_json, to_json
from downspout.spark.source_offsets import prorate, split

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d_e-f"]), st.integers(0, 12))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**50), max_size=8)
SIZES = st.lists(st.integers(0, 10_000), max_size=8)


def ranges_of(sizes: list[int]) -> list[OffsetRange]:
    """Return a range of each size, in partitions of their own."""
    return [OffsetRange("t", number, 100, 100 + size) for number, size in enumerate(sizes)]


@settings(deadline=None)
@given(SIZES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 3000))
def test_splitting_covers_every_offset_once(sizes: list[int], minimum: int | None, records_max: int | None) -> None:
    """However ranges are cut, the pieces of a partition join up to the range it had, none of them empty."""
    ranges = ranges_of(sizes)
    pieces = split(ranges, minimum, records_max)
    assert all(piece.size > 0 for piece in pieces)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.partition == whole.partition]
        assert bool(mine) == (whole.size > 0)
        if mine:
            assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)
            assert all(before.end == after.start for before, after in pairwise(mine))
            if minimum is None or records_max is None:  # what is cut twice is not cut into like parts
                assert max(piece.size for piece in mine) - min(piece.size for piece in mine) <= 1
    if records_max is not None and minimum is None:
        assert all(piece.size <= records_max for piece in pieces)


@settings(deadline=None)
@given(SIZES)
def test_without_wishes_there_is_one_task_per_partition(sizes: list[int]) -> None:
    """Neither option given, each partition that has something is read by one task."""
    assert split(ranges_of(sizes)) == [piece for piece in ranges_of(sizes) if piece.size]


@pytest.mark.parametrize(
    ("sizes", "minimum", "found"),
    [
        ([10], 4, [2, 2, 3, 3]),
        ([5], 3, [1, 2, 2]),
        ([2, 10], 3, [2, 5, 5]),
        ([1, 100], 4, [1, 33, 33, 34]),
        ([1, 1, 1, 97], 6, [1, 1, 1, 32, 32, 33]),
        ([5, 5, 5], 3, [5, 5, 5]),
        ([5, 5, 5], 2, [5, 5, 5]),
        ([0, 9], 2, [4, 5]),
        ([3], 9, [1, 1, 1]),
    ],
)
def test_min_partitions_follows_the_connector(sizes: list[int], minimum: int, found: list[int]) -> None:
    """Long ranges are cut in proportion, short ones stay whole and out of the sharing (KafkaOffsetRangeCalculator)."""
    assert [piece.size for piece in split(ranges_of(sizes), minimum)] == found


def test_a_limit_per_task_comes_first() -> None:
    """maxRecordsPerPartition cuts into equal pieces; minPartitions adds to them only where they are too few."""
    for enough in (None, 1, 4):
        assert [piece.size for piece in split(ranges_of([10, 4]), enough, 4)] == [3, 3, 4, 4]
    assert [piece.size for piece in split(ranges_of([10, 4]), 8, 4)] == [1, 2, 1, 2, 2, 2, 2, 2]


@st.composite
def logs(draw: st.DrawFn) -> tuple[Offsets, Offsets]:
    begins = draw(OFFSETS)
    return begins, {tp: begin + draw(st.integers(0, 10_000)) for tp, begin in begins.items()}


@settings(deadline=None)
@given(logs(), st.integers(1, 20_000))
def test_a_limit_is_shared_in_proportion(log: tuple[Offsets, Offsets], limit: int) -> None:
    """Each partition gives its share, at least one, never more than it has; together the limit, but for rounding."""
    begins, ends = log
    limited = prorate(begins, ends, limit)
    total = sum(ends.values()) - sum(begins.values())
    taken = {tp: limited[tp] - begins[tp] for tp in begins}
    assert limited.keys() == ends.keys()
    for tp in begins:
        size = ends[tp] - begins[tp]
        assert 0 <= taken[tp] <= size
        assert (taken[tp] > 0) == (size > 0)
        assert taken[tp] <= max(limit * size / total, 1) if size else taken[tp] == 0
    assert sum(taken.values()) >= min(limit, total) - len(begins)


@settings(deadline=None)
@given(logs())
def test_a_limit_above_what_there_is_changes_nothing(log: tuple[Offsets, Offsets]) -> None:
    """With at least as much limit as offsets all of them are taken."""
    begins, ends = log
    assert prorate(begins, ends, max(sum(ends.values()) - sum(begins.values()), 1)) == ends


@settings(deadline=None)
@given(OFFSETS)
def test_offsets_survive_the_checkpoint(offsets: Offsets) -> None:
    """Offsets read back from their JSON are the same, and equal offsets have equal JSON, in any order of insertion."""
    assert from_json(to_json(offsets)) == offsets
    backwards = dict(reversed(offsets.items()))
    assert str(to_json(backwards)) == str(to_json(offsets))


WRONG = [7, [], {"t": 5}, {"t": {"x": 5}}, {"t": {"0": "5"}}, {"t": {"0": -1}}, {"t": {"0": True}}]


@pytest.mark.parametrize("value", WRONG)
def test_other_json_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="is not of the form"):
        from_json(value)
