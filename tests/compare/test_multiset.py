"""Tables as multisets: the comparison against Python's Counter, and equality of values."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.compare import DIFFERENCES_MAX, compare

TYPES: dict[str, pa.DataType] = {
    "text": pa.string(), "small": pa.int8(), "whole": pa.int64(), "double": pa.float64(), "single": pa.float32(),
    "flag": pa.bool_(), "raw": pa.binary(), "moment": pa.timestamp("us", "UTC"), "day": pa.date32(),
    "money": pa.decimal128(12, 2), "many": pa.list_(pa.float64()),
}  # fmt: skip
SCHEMA = pa.schema(TYPES)

MOMENTS = st.integers(-(10**14), 10**14).map(lambda us: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(0, 0, us))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(["", "a", "ä", "a\u0308", "NaN", "None"]),
    "small": st.integers(-2, 2),
    "whole": st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1]),
    "double": st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.0, 0.1, 0.1 + 2**-56, 5e-324]),
    "single": st.sampled_from([0.0, -0.0, math.nan, 1.5]),
    "flag": st.booleans(),
    "raw": st.sampled_from([b"", b"\x00", b"\xff"]),
    "moment": st.one_of(st.just(dt.datetime(2013, 1, 1, tzinfo=dt.UTC)), MOMENTS),
    "day": st.dates(dt.date(2013, 1, 1), dt.date(2013, 1, 3)),
    "money": st.sampled_from([Decimal("0.00"), Decimal("-1.50"), Decimal("9999999999.99")]),
    "many": st.lists(st.sampled_from([0.0, -0.0, math.nan, 2.5, None]), max_size=2),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=6)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def plain(value: Any) -> Any:
    """Return a value that Python's equality treats as the comparison should: NaN is NaN, -0.0 is 0.0."""
    if isinstance(value, list):
        return tuple(plain(each) for each in value)
    return ("nan",) if isinstance(value, float) and math.isnan(value) else value


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(plain(row[name]) for name in SCHEMA.names) for row in rows)


@pytest.mark.slow
@given(ROWS, ROWS, ROWS, st.randoms(use_true_random=False))
def test_it_agrees_with_counter(one: list[Any], two: list[Any], shared: list[Any], chance: Any) -> None:
    """Rows, duplicates and differences of two tables of all types are those that Counter finds."""
    ours, theirs = [*one, *shared], [*shared, *two]
    chance.shuffle(theirs)
    found = compare({"ours": table(ours), "theirs": table(theirs)})
    a, b = counted(ours), counted(theirs)
    wrong = {row for row in a | b if a[row] != b[row]}
    assert found.rows == {"ours": len(ours), "theirs": len(theirs)}
    assert found.duplicates == {"ours": len(ours) - len(a), "theirs": len(theirs) - len(b)}
    assert found.differing == {"ours": 0, "theirs": len(wrong)}
    assert found.equal == (a == b)
    assert {tuple(plain(each.row[name]) for name in SCHEMA.names if name != "many") for each in found.differences} == {
        row[:-1] for row in wrong
    }
    for each in found.differences:
        assert each.counts["ours"] != each.counts["theirs"]


@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_and_chunks_say_nothing(rows: list[Any], chance: Any, size: int) -> None:
    """The same rows in another order, in several chunks and with a slice's offset, are equal."""
    moved = rows.copy()
    chance.shuffle(moved)
    pieces = pa.concat_tables([table(moved[at : at + size]) for at in range(0, len(moved), size)] or [table([])])
    padded = table([*rows[:1], *rows]).slice(min(1, len(rows)))
    assert compare({"a": table(rows), "b": pieces, "c": padded}).equal


@pytest.mark.slow
@given(ROWS.filter(bool), st.data())
def test_one_changed_value_is_found(rows: list[Any], data: st.DataObject) -> None:
    """A row of which a single value is another one, a null among them, makes the tables different."""
    place = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(sorted(VALUES)))
    other = data.draw((st.none() | VALUES[name]).filter(lambda value: plain(value) != plain(rows[place][name])))
    changed = [*rows[:place], {**rows[place], name: other}, *rows[place + 1 :]]
    assert not compare({"a": table(rows), "b": table(changed)}).equal


def test_nans_of_all_bits_are_one_value() -> None:
    """NaN equals NaN whatever its payload and sign, which engines do not agree on."""
    odd = np.array((*struct.unpack("<d", struct.pack("<Q", 18444492273895866369)), math.nan))
    one, other = (pa.table({"x": pa.array(values)}) for values in (odd, odd[::-1].copy()))
    assert compare({"a": one, "b": other}).duplicates == {"a": 1, "b": 1}


def test_how_often_counts() -> None:
    """A row that is there twice is not equal to the same row once, and the difference says how often."""
    found = compare({"a": pa.table({"x": [1, 1, 2]}), "b": pa.table({"x": [1, 2, 2]}), "c": pa.table({"x": [2, 1, 1]})})
    assert found.differing == {"a": 0, "b": 2, "c": 0}
    assert [(each.row, dict(each.counts)) for each in found.differences] == [
        ({"x": 1}, {"a": 2, "b": 1, "c": 2}),
        ({"x": 2}, {"a": 1, "b": 2, "c": 1}),
    ]


def test_empty_tables_are_equal() -> None:
    """Two tables without rows are equal, and one without rows differs from one with some."""
    empty = SCHEMA.empty_table()
    assert compare({"a": empty, "b": empty}).equal
    assert compare({"a": empty, "b": table([dict.fromkeys(SCHEMA.names)])}).differing == {"a": 0, "b": 1}


def test_all_differences_are_counted_and_some_are_kept() -> None:
    many = pa.table({"x": pa.array(np.arange(5_000))})
    found = compare({"a": many, "b": pa.table({"x": pa.array(np.arange(5_000) + 10_000)})})
    assert found.differing["b"] == 10_000
    assert [each.row["x"] for each in found.differences] == list(range(DIFFERENCES_MAX))
