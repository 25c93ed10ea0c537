"""One value converts exactly as in a column of many."""

from __future__ import annotations

import traceback
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from downspout.parse.columns import RowConverter
from downspout.sink import Columns
from tests.parse.test_json import TYPES, anything, decimals, edges

odd = st.sampled_from([
    "2013-01-31T24:00:00Z", "2013-01-31T05:17:00.1234567Z", "2013-01-31T05:17:00,5+0100", "2013-01-31 05:17", "NaN",
    "1e5", "1e00005", "0e9999", "1e9999", "-0", ".5", "1.", "+1", " 1", "1_0", "٣", "", b"", b"\xff", (1, 2),
    [("a", 1)], float("nan"), float("inf"), 1e-50, 3.4e38, 3.5e38, 16_777_217.0, Decimal("1.50"), Decimal("NaN"),
    Decimal("-0.00"),
    date(2013, 1, 31), datetime(2013, 1, 31), datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC),
    {"a": 1, "b": "2.5", "c": 1}, {"a": None}, {"a": ["x", None]}, ["2013-01-31T05:17:00Z", None], {1: 2}, {None: 1},
])  # fmt: skip
KINDS = (*TYPES, "map<date,int8>", "map<int16,string>", "struct<a:timestamp,b:date,c:float32>", "list<list<bool>>")


def alone(kind: str, value: Any) -> str:
    """Return what one value becomes."""
    try:
        return repr(RowConverter(Columns.parse([f"a:{kind}"]).columns).row([value])[0])
    except ValueError as error:
        return str(error)


def in_a_column(kind: str, value: Any) -> str:
    """Return what the sink's column of this one value holds."""
    table, rejected = Columns.parse([f"a:{kind}"]).table([[value]])
    if rejected:
        return rejected[0].reason
    try:
        return repr(table.to_pylist(maps_as_pydicts="strict")[0]["a"])
    except (ValueError, OverflowError):  # Arrow has moments that Python has not
        return f"a = {value!r} does not fit {kind}: not in the years 1 to 9999"


@given(kind=st.sampled_from(KINDS), value=anything | decimals | odd | st.sampled_from(edges))
@example(kind="decimal(9,2)", value="-0.00")
@example(kind="timestamp", value="0000-01-01T00:00:00Z")
@example(kind="timestamp_s", value=253_402_300_800)
def test_a_value_is_what_a_column_makes_of_it(kind: str, value: Any) -> None:
    """Value, type and reason are those of a column, for each type and whatever the value is."""
    assert alone(kind, value) == in_a_column(kind, value)


def test_a_rejected_value_keeps_no_stack_of_those_before() -> None:
    """An error that is raised again and again would hold each stack that it saw, and be slower to print each time."""
    values = RowConverter(Columns.parse(["a:int32"]).columns)
    lengths = []
    for _ in range(20):
        with pytest.raises(ValueError, match="does not fit int32") as raised:
            values.row(["pieces"])
        lengths.append(len("".join(traceback.format_exception(raised.value))))
    assert lengths == lengths[:1] * 20


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_decimal_is_infinite_or_no_number(value: float) -> None:
    """Doubles of Avro and Protobuf may be."""
    assert alone("decimal(9,2)", value) == in_a_column("decimal(9,2)", value)
    assert "does not fit decimal(9,2)" in alone("decimal(9,2)", value)
