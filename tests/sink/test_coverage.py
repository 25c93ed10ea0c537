"""Coverage against the simplest thing that could be right: a set of (stream, offset)."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.sink import Coverage, Stream
from downspout.sink.log_entry import OFFSET_MAX

STREAMS = [Stream("t", "", 0, ""), Stream("t", "", 0, "split.0"), Stream("t", "", 1, ""), Stream("t", "id", 0, "")]
offsets = st.integers(0, 40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(STREAMS), st.lists(offsets, max_size=12)),
        st.tuples(st.just("range"), st.sampled_from(STREAMS), st.tuples(offsets, offsets)),
    ),
    max_size=12,
)

Rows = set[tuple[Stream, int]]


def build(script: list[Any]) -> tuple[Coverage, Rows]:
    coverage, rows = Coverage(), set[tuple[Stream, int]]()
    for verb, stream, what in script:
        if verb == "add":
            coverage.add(stream, what)
            rows |= {(stream, offset) for offset in what}
        else:
            coverage.add_range(stream, *what)
            rows |= {(stream, offset) for offset in range(*what)}
    return coverage, rows


def rows_of(coverage: Coverage) -> Rows:
    ranges = [(stream, span) for stream in coverage.streams() for span in coverage.ranges(stream)]
    return {(stream, offset) for stream, span in ranges for offset in range(*span)}


def check_form(coverage: Coverage) -> None:
    for stream in coverage.streams():
        spans = coverage.ranges(stream)
        assert spans
        assert all(start < end for start, end in spans)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


@given(steps)
def test_it_holds_what_a_set_holds(script: list[Any]) -> None:
    """After any additions the coverage holds the same rows as a set, in ranges that are sorted and never touch."""
    coverage, rows = build(script)
    check_form(coverage)
    assert rows_of(coverage) == rows
    assert coverage.total == len(rows)
    assert len(coverage) == sum(len(coverage.ranges(stream)) for stream in STREAMS)


@given(steps, st.lists(offsets, max_size=20))
def test_membership_is_that_of_a_set(script: list[Any], asked: list[int]) -> None:
    """``contains`` answers for each offset, in the order asked, what a set would."""
    coverage, rows = build(script)
    for stream in STREAMS:
        expected = [(stream, offset) in rows for offset in asked]
        assert coverage.contains(stream, asked).tolist() == expected
        assert coverage.contains(stream, np.array(asked, dtype=np.int64)).tolist() == expected


@given(steps, steps)
def test_update_is_the_union(one: list[Any], other: list[Any]) -> None:
    """``update`` adds the other's rows and leaves the other as it was."""
    first, first_rows = build(one)
    second, second_rows = build(other)
    first.update(second)
    check_form(first)
    assert rows_of(first) == first_rows | second_rows
    first.add(STREAMS[0], [99])
    assert rows_of(second) == second_rows


@given(steps, steps)
def test_intersects_is_that_of_sets(one: list[Any], other: list[Any]) -> None:
    """``intersects`` is true exactly where some row is in both, and does not depend on the order."""
    first, first_rows = build(one)
    second, second_rows = build(other)
    assert first.intersects(second) == bool(first_rows & second_rows)
    assert second.intersects(first) == first.intersects(second)


@given(steps, steps)
def test_equality_is_that_of_sets(one: list[Any], other: list[Any]) -> None:
    """Two coverages are equal exactly where they hold the same rows, however they were made."""
    first, first_rows = build(one)
    second, second_rows = build(other)
    assert (first == second) == (first_rows == second_rows)
    assert first != "a coverage"


@given(steps)
def test_it_survives_json(script: list[Any]) -> None:
    """What is written as JSON text is read back equal, and written the same again."""
    coverage, _ = build(script)
    text = json.dumps(coverage.to_json())
    again = Coverage.from_json(json.loads(text))
    assert again == coverage
    assert json.dumps(again.to_json()) == text


@given(st.lists(st.integers(0, OFFSET_MAX - 1), min_size=1, max_size=6))
def test_the_largest_offsets_survive_json(numbers: list[int]) -> None:
    """Offsets up to the largest that Kafka can have are held and read back."""
    coverage = Coverage()
    coverage.add(STREAMS[0], numbers)
    coverage.add_range(STREAMS[0], OFFSET_MAX - 1, OFFSET_MAX)
    assert Coverage.from_json(json.loads(json.dumps(coverage.to_json()))) == coverage
    assert coverage.contains(STREAMS[0], [*numbers, OFFSET_MAX - 1]).all()


@pytest.mark.parametrize("bad", [-1, OFFSET_MAX])
def test_what_is_no_offset_is_refused(bad: int) -> None:
    """A number that no record can have is refused when added, because nobody could read it back."""
    coverage = Coverage()
    with pytest.raises(ValueError, match="not between"):
        coverage.add(STREAMS[0], [3, bad])
    with pytest.raises(ValueError, match="not between"):
        coverage.add_range(STREAMS[0], bad, bad + 1)
    assert coverage == Coverage()


# --- untrusted JSON ----------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
near_misses = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.just("t") | json_values,
            "topic_id": st.just("") | json_values,
            "partition": st.integers(0, 2) | json_values,
            "path": st.just("") | json_values,
            "ranges": st.lists(st.integers(-1, 5) | st.integers() | json_values, max_size=6) | json_values,
        }
    ),
    max_size=3,
)


@given(json_values | near_misses)
def test_untrusted_json_is_read_or_refused(document: Any) -> None:
    """JSON from anywhere either is a set in good form, or raises ValueError and nothing else."""
    with contextlib.suppress(ValueError):
        coverage = Coverage.from_json(document)
        check_form(coverage)
        assert Coverage.from_json(coverage.to_json()) == coverage


GOOD = {"topic": "t", "topic_id": "", "partition": 0, "path": "", "ranges": [0, 5]}


@pytest.mark.parametrize(
    "document",
    [
        {},
        [GOOD, GOOD],
        [{**GOOD, "ranges": []}],
        [{**GOOD, "ranges": [1]}],
        [{**GOOD, "ranges": [0, 0]}],
        [{**GOOD, "ranges": [0, 1, 0, 1]}],
        [{**GOOD, "ranges": [-1, 1]}],
        [{**GOOD, "ranges": [0, True]}],
        [{**GOOD, "ranges": [0, 2**63]}],
        [{**GOOD, "ranges": [2**62, 2**62]}],
        [{**GOOD, "partition": -1}],
        [{**GOOD, "partition": True}],
        [{**GOOD, "topic": None}],
        [{**GOOD, "more": 1}],
        ["t"],
    ],
    ids=json.dumps,
)
def test_json_out_of_form_is_refused(document: Any) -> None:
    assert Coverage.from_json([GOOD]).total == 5
    with pytest.raises(ValueError, match=r"."):
        Coverage.from_json(document)
