"""Sums of whole numbers that int64 cannot hold: Arrow would wrap round, and say nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from downspout.sink import Aggregate, Aggregation


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
    """Rows become one where their sum surely fits, and else each stays a partial aggregate; no sum is wrong."""
    table = pa.table({"route": ["a"] * len(numbers), "delay": pa.array(numbers, pa.int64())})
    made = Aggregation(("route",), (Aggregate("sum", "delay"), Aggregate("count", None))).fold(table).to_pylist()
    assert len(made) == (1 if together else len(numbers))
    known = [number for number in numbers if number is not None]
    assert sum(part["sum_delay"] for part in made if part["sum_delay"] is not None) == sum(known)
    assert sum(part["count"] for part in made) == len(numbers)
