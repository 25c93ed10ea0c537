"""The column of origins keeps its values through all operations."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import Origin
from downspout.origins import ITSELF, ORIGIN, column_of, each, offsets_of, origin_at, origins, part_of, under

ORIGINS = st.builds(
    Origin,
    st.sampled_from(["orders", "lines"]),
    st.sampled_from(["", "6jPMvg1sQ2uJmzGz1yRHQw"]),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.sampled_from(["", "split.0", "split.1/letters:vowels.7"]),
)


@given(st.lists(ORIGINS, max_size=20))
def test_origins_go_in_and_come_out(given: list[Origin]) -> None:
    """Origins that become a column are the same origins again, one by one and all at once."""
    column = column_of(given)
    assert column.type == ORIGIN
    assert list(each(column)) == given
    assert [origin_at(column, row) for row in range(len(given))] == given


@pytest.mark.parametrize(
    "change",
    [
        lambda column: column.slice(1, 2),
        lambda column: pc.filter(column, pa.array([False, True, True, False])),
        lambda column: pc.take(column, pa.array([1, 2])),
        lambda column: pa.chunked_array([column.slice(1, 1), column.slice(2, 1)]),
        lambda column: pa.array(column.slice(1, 2).to_pylist(), _plain()),
    ],
    ids=["slice", "filter", "take", "pieces", "plain texts"],
)
def test_whatever_was_done_to_the_column(change: Any) -> None:
    """Slices, filters, pieces, and columns with plain texts, as Spark makes them, tell the origins of their rows."""
    column = change(origins("lines", "id", 3, [10, 11, 13, 17], "split.0"))
    assert offsets_of(column).tolist() == [11, 13]
    assert part_of(column, "topic").to_pylist() == ["lines", "lines"]
    assert list(each(column)) == [Origin("lines", "id", 3, offset, "split.0") for offset in (11, 13)]


def _plain() -> pa.StructType:
    kinds = [pa.string(), pa.string(), pa.int32(), pa.int64(), pa.string()]
    return pa.struct([pa.field(field.name, kind) for field, kind in zip(ORIGIN, kinds, strict=True)])


def test_constants_are_stored_once() -> None:
    """A row of a chunk costs its offset and a few numbers, not its topic's name."""
    column = origins("a topic with a long name " * 10, "6jPMvg1sQ2uJmzGz1yRHQw", 0, range(10_000))
    assert column.nbytes < 10_000 * 30


def test_steps_are_those_of_origin_child() -> None:
    """A bolt that makes several rows of one gives each the path that it would have in record mode."""
    line = Origin("lines", "id", 0, 17, "parse.0")
    column = under(column_of([line, line]), "split", [0, 1], "words")
    assert list(each(column)) == [line.child("split", index, "words") for index in (0, 1)]


@given(rows=st.lists(st.tuples(ORIGINS, st.integers(ITSELF, 70)), max_size=20), is_plain=st.booleans())
def test_steps_of_many_rows_are_those_of_each(rows: list[tuple[Origin, int]], is_plain: bool) -> None:
    """Whatever the paths before, and whether the rows were all that came of their records: each has its own origin."""
    column: Any = column_of([origin for origin, _ in rows])
    if is_plain:
        column = pa.array(column.to_pylist(), _plain())
    made = under(column, "split", [index for _, index in rows])
    assert made.type == ORIGIN
    assert list(each(made)) == [origin if index == ITSELF else origin.child("split", index) for origin, index in rows]


def test_what_has_no_origin_cannot_have_children() -> None:
    """A row whose origin is null is refused rather than given one that others have too."""
    with pytest.raises(ValueError, match="a row has no origin"):
        under(pa.nulls(2, ORIGIN), "split", [0, 1])


def test_what_is_no_origin_is_refused() -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        column_of([("lines", 3)])
