"""Sums that their type cannot hold: Arrow would wrap round, and say nothing."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from downspout.errors import ConfigError
from downspout.sink import Aggregate, Aggregation, Columns


@pytest.mark.parametrize(
    ("numbers", "together"),
    [
        ([2**61] * 3, True),
        ([2**61] * 4, False),
        ([0, 2**62, 2**62], False),
        ([-(2**61)] * 3, True),
        ([0, -(2**62), -(2**62), -(2**62)], False),
        ([None, 1, None], True),
        ([None, None], True),
        ([-(2**63)], True),
        ([-(2**63), 1], False),
    ],
)
def test_a_sum_that_could_overflow_stays_in_parts(numbers: list[int | None], together: bool) -> None:
    """Rows become one where their sum surely fits, and else several partial aggregates; no sum is wrong."""
    table = pa.table({"route": ["a"] * len(numbers), "delay": pa.array(numbers, pa.int64())})
    made = Aggregation(("route",), (Aggregate("sum", "delay"), Aggregate("count", None))).fold(table).to_pylist()
    assert (len(made) == 1) == together
    known = [number for number in numbers if number is not None]
    assert sum(part["sum_delay"] for part in made if part["sum_delay"] is not None) == sum(known)
    assert sum(part["count"] for part in made) == len(numbers)


def test_decimals_that_could_overflow_stay_in_parts() -> None:
    """As whole numbers do, whose sums wrap at 2**63: those of decimals wrap at 2**127."""
    largest = Decimal(10**38 - 1)
    table = pa.table({"route": ["a"] * 4, "fare": pa.array([largest] * 4, pa.decimal128(38, 0))})
    made = Aggregation(("route",), (Aggregate("sum", "fare"),))
    assert made.fold(table).column("sum_fare").to_pylist() == [largest] * 4
    with pytest.raises(OverflowError, match="sum_fare: the sum of a key does not fit decimal128"):
        made.finish(made.fold(table))


def test_sums_of_parts_do_not_wrap() -> None:
    """One that fits is right, though the values beside it are large; one that does not is an error."""
    made = Aggregation(("route",), (Aggregate("sum", "delay"),))
    parts = pa.table({"route": ["a", "a", "b"], "sum_delay": pa.array([2**62, -(2**62), 5], pa.int64())})
    assert made.finish(parts).sort_by("route").column("sum_delay").to_pylist() == [0, 5]
    parts = pa.table({"route": ["a", "a"], "sum_delay": pa.array([2**62, 2**62], pa.int64())})
    with pytest.raises(OverflowError, match="sum_delay"):
        made.finish(parts)


def test_one_large_number_leaves_few_parts() -> None:
    """Of 10,000 rows, those that are far from the large one are folded together."""
    numbers = [1] * 10_000
    numbers[7_000] = 2**62
    table = pa.table({"route": ["a"] * len(numbers), "delay": pa.array(numbers, pa.int64())})
    made = Aggregation(("route",), (Aggregate("sum", "delay"),)).fold(table)
    assert made.num_rows < 20
    assert sum(made.column("sum_delay").to_pylist()) == sum(numbers)


def test_beside_a_window_no_key_is_named_as_its_count() -> None:
    columns = Columns.parse(["count:int64", "at:timestamp", "delay:int64"])
    with pytest.raises(ConfigError, match="no key can be named count"):
        Aggregation.parse(["count", "window(at, 1 hour)"], ["sum:delay"], columns)
