from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.errors import ConfigError
from downspout.origins import values_of
from downspout.sink import Columns

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
EAST = timezone(timedelta(hours=2))

TAKEN: list[tuple[str, list[Any], list[Any]]] = [
    ("string", ["a", None, b"b", "ü"], ["a", None, "b", "ü"]),
    ("binary", [b"\xff", None], [b"\xff", None]),
    ("bool", [True, None, False], [True, None, False]),
    ("int8", [127, -128, None, 2.0], [127, -128, None, 2]),
    ("int64", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
    ("int64", [2**60 + 1, 1.0], [2**60 + 1, 1]),
    ("float32", [1.5, 2, None], [1.5, 2.0, None]),
    ("float64", [1, 0.1], [1.0, 0.1]),
    ("decimal(5,2)", [Decimal("1.5"), 3, None], [Decimal("1.50"), Decimal("3.00"), None]),
    ("decimal(5,2)", ["12.34", 49.54, "-7", "1e2"], [Decimal("12.34"), Decimal("49.54"), Decimal("-7"), Decimal(100)]),
    ("decimal(20,2)", ["12345678901234567.89"], [Decimal("12345678901234567.89")]),
    ("date", [date(2013, 1, 31), "2013-01-31", None], [date(2013, 1, 31), date(2013, 1, 31), None]),
    ("timestamp", ["2013-01-01T12:00:00Z", None], [NOON, None]),
    ("timestamp", ["2013-01-01 12:00", "2013-01-01T14:00:00+02:00"], [NOON, NOON]),
    ("timestamp", [datetime(2013, 1, 1, 12), NOON.astimezone(EAST)], [NOON, NOON]),
    ("timestamp", [NOON, "2013-01-01T12:00:00Z"], [NOON, NOON]),
    ("timestamp_s", [1357041600, None], [NOON, None]),
    ("timestamp_ms", [1357041600000], [NOON]),
    ("timestamp_us", [1357041600000000], [NOON]),
    ("list<string>", [["a", None], [], None], [["a", None], [], None]),
    ("list<int32>", [(1, 2)], [[1, 2]]),
    ("list<date>", [["2013-01-31", None], None], [[date(2013, 1, 31), None], None]),
    ("list<decimal(5,2)>", [["1.50"], [2.5]], [[Decimal("1.50")], [Decimal("2.50")]]),
    ("list<list<int8>>", [[[1], None, []], None], [[[1], None, []], None]),
    ("map<string,int16>", [{"a": 1, "b": None}, {}, None, [["c", 2]]], [{"a": 1, "b": None}, {}, None, {"c": 2}]),
    (
        "struct<sku:string,paid:decimal(5,2)>",
        [{"sku": "a", "paid": "1.5", "colour": 3}, {}, None],
        [{"sku": "a", "paid": Decimal("1.50")}, {"sku": None, "paid": None}, None],
    ),
    (
        "struct<at:timestamp_ms,tags:list<string>>",
        [{"at": 1357041600000, "tags": ["x"]}],
        [{"at": NOON, "tags": ["x"]}],
    ),
    ("int32", [5, None], [5, None]),
    ("int16", [None, None], [None, None]),
]

REFUSED: list[tuple[str, Any]] = [
    ("string", 5), ("string", b"\xff"), ("string", "\ud800"), ("string", ["a"]),
    ("binary", 5), ("bool", 1), ("bool", "true"),
    ("int8", 128), ("int32", "1"), ("int32", 1.5), ("int32", math.nan), ("int32", math.inf), ("int32", True),
    ("int64", 2**63), ("int64", 2**200), ("int64", [1]), ("int64", Decimal(1)), ("int64", 1e300),
    ("float64", "1"), ("float64", True), ("float64", 2**60 + 1),
    ("decimal(5,2)", 1.555), ("decimal(5,2)", Decimal("1.555")), ("decimal(5,2)", Decimal("NaN")),
    ("decimal(5,2)", 1000), ("decimal(5,2)", "1,5"), ("decimal(5,2)", " 1"), ("decimal(5,2)", "1_0"),
    ("decimal(5,2)", True), ("decimal(5,2)", math.nan), ("decimal(5,2)", math.inf), ("decimal(5,2)", "NaN"),
    ("decimal(20,2)", 12345678901234567.89), ("decimal(20,2)", 0.1 + 0.2), ("decimal(5,2)", [1]),
    ("date", 5), ("date", "soon"), ("date", "2013-02-30"), ("date", NOON), ("date", "20130131"),
    ("timestamp", 5), ("timestamp", "soon"), ("timestamp", date(2013, 1, 1)), ("timestamp", 1.5),
    ("timestamp_ms", "2013-01-01"), ("timestamp_ms", 2**62), ("timestamp_ms", 1.5), ("timestamp_ms", True),
    ("list<string>", "ab"), ("list<int32>", [1.5]), ("list<int8>", [300]), ("list<int32>", {"a": 1}),
    ("list<int8>", "12"), ("list<list<int8>>", [1]), ("list<date>", [5]),
    ("map<string,int16>", {"a": 40_000}), ("map<string,int16>", [("a", 1), ("a", 2)]), ("map<string,int16>", ["ab"]),
    ("map<string,int16>", []), ("map<string,int16>", ()),
    ("map<string,int16>", {1: 1}), ("map<string,int16>", 5), ("map<string,int16>", {None: 1}),
    ("struct<sku:string,paid:decimal(5,2)>", {"sku": 5}), ("struct<sku:string,paid:decimal(5,2)>", ["sku"]),
    ("struct<sku:string,paid:decimal(5,2)>", "sku"), ("struct<at:timestamp_ms,tags:list<string>>", {"tags": [1]}),
    ("string", {}), ("int32", object()),
]  # fmt: skip


NEIGHBOURS: list[tuple[str, Any, Any]] = [
    ("float64", 1.5, True), ("float32", 1.5, True), ("float32", 1.5, 2**24 + 1), ("float64", 1.5, 2**60 + 1),
    ("list<float64>", [1.5], [True]), ("list<float32>", [1.5], [2**24 + 1]), ("list<float64>", [1.5], [2, True]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "good", "bad"), NEIGHBOURS)
def test_a_value_fits_or_not_whatever_stands_beside_it(kind: str, good: Any, bad: Any) -> None:
    """What is refused alone is refused among values that would lend it their type."""
    for values in ([bad], [good, bad], [bad, good], [good, bad, good]):
        table, rejected = Columns.parse([f"a:{kind}"]).table([values])
        assert [values[reject.row] for reject in rejected] == [bad]
        assert table["a"].to_pylist() == [value for value in values if value is good]


@pytest.mark.parametrize(("kind", "values", "expected"), TAKEN)
def test_what_fits_is_taken(kind: str, values: list[Any], expected: list[Any]) -> None:
    """Values that mean the declared type arrive as they are, alone and side by side."""
    table, rejected = Columns.parse([f"x:{kind}"]).table([values])
    assert rejected == []
    assert values_of(table.column("x").combine_chunks()) == expected


@pytest.mark.parametrize(
    ("kind", "bad"), REFUSED, ids=lambda value: str(value)[:20].replace("\\", "").encode("ascii", "replace").decode()
)
def test_what_does_not_fit_is_refused(kind: str, bad: Any) -> None:
    """A value that would be changed, cut or guessed is refused with its field, and its neighbours stay."""
    good = next((values[0] for name, values, _ in TAKEN if name == kind), [])
    table, rejected = Columns.parse([f"x:{kind}"]).table([[good, bad, good]])
    assert [(reject.row, reject.reason.startswith("x = ")) for reject in rejected] == [(1, True)]
    assert table.num_rows == 2
    assert table.column("x")[0].as_py() is not None


@pytest.mark.parametrize(
    ("kind", "bad", "said"),
    [
        ("int64", 2**63, f"x = {2**63} does not fit int64: a whole number not in range: {-(2**63)} to {2**63 - 1}"),
        ("int8", -(2**70), f"x = {-(2**70)} does not fit int8: a whole number not in range: -128 to 127"),
        ("int64", 10**5_000, f"x = <int whose __repr__ raised ValueError> does not fit int64: a whole number not in "
                             f"range: {-(2**63)} to {2**63 - 1}"),
    ],
    ids=["int64", "int8", "digits"],
)  # fmt: skip
def test_a_whole_number_out_of_range_is_told_with_the_range(kind: str, bad: int, said: str) -> None:
    """Also beyond 64 bits, where Arrow speaks of a C long, and beyond the digits that Python writes."""
    _, (rejected,) = Columns.parse([f"x:{kind}"]).table([[1, bad]])
    assert rejected.reason == said


COLUMNS = ["a:int8!", "b:string", "c:list<int16>"]
CELLS = {
    "a": st.one_of(st.none(), st.integers(-200, 200), st.booleans(), st.floats(), st.text(max_size=2)),
    "b": st.one_of(st.none(), st.text(max_size=3), st.binary(max_size=2), st.integers()),
    "c": st.one_of(st.none(), st.lists(st.integers(-40000, 40000), max_size=3), st.text(max_size=2)),
}


@given(st.lists(st.tuples(*CELLS.values()), max_size=30))
def test_rows_together_are_judged_as_rows_alone(rows: list[tuple[Any, ...]]) -> None:
    """Whatever mixture comes, a row is taken or refused as it would be alone, and those taken keep their order."""
    columns = Columns.parse(COLUMNS)
    alone = [columns.table([[cell] for cell in row]) for row in rows]
    table, rejected = columns.table(list(zip(*rows, strict=True)) or [(), (), ()])
    assert [reject.row for reject in rejected] == [number for number, (_, bad) in enumerate(alone) if bad]
    expected = pa.concat_tables([columns.schema.empty_table(), *(one for one, bad in alone if not bad)])
    assert table.equals(expected)


def test_required_columns_refuse_null() -> None:
    columns = Columns.parse(["x:int8!", "y:int8?"])
    table, rejected = columns.table([[1, None], [None, 2]])
    assert [reject.row for reject in rejected] == [1]
    assert [field.nullable for field in table.schema] == [False, True]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], "empty"),
        (["x"], "not name:type"),
        ([":int8"], "not name:type"),
        (["x:int"], "no type int.*int32 or int64"),
        (["x:int64!!"], "no type int64!"),
        (["x:int64!?"], r"no type int64!"),
        (["x:timestamp_ns"], r"no type timestamp_ns\. Try: timestamp"),
        (["x:float16"], "float32"),
        (["x:list<time>"], "no type time.*string"),
        (["x:list<int8,int8>"], "one type of items"),
        (["x:list<int8!>"], r"whole columns.*int8"),
        (["x:map<string>"], "a type of keys and one of values"),
        (["x:map<float64,int8>"], "cannot be the key"),
        (["x:struct<a>"], "not name:type"),
        (["x:struct<a:int8,A:int8>"], "appears twice"),
        (["x:struct<>"], "not name:type"),
        (["x:" + "list<" * 20 + "int8" + ">" * 20], "inside one another"),
        (["x:decimal(39,2)"], "precision"),
        (["x:decimal(5,6)"], "precision"),
        (["x:int8", "x:int8"], "twice"),
        (["x:int8", "X:int8"], "the same name to Spark"),
        (["_offset:int64"], "written by the sink"),
        (["origin:string"], "written by the sink"),
    ],
)
def test_bad_schemas_are_refused(declared: list[str], message: str) -> None:
    """A schema that cannot be written, or that Spark could not read, is an error that says what to declare."""
    with pytest.raises(ConfigError, match=message):
        Columns.parse(declared)


def test_folders_need_columns_that_can_name_them() -> None:
    columns = Columns.parse(["x:string", "f:float64", "_y:int8"])
    columns.check_folders(["x"])
    for names, message in ((["z"], "no column z"), (["f"], "cannot name folders"), (["_y"], "begin with _")):
        with pytest.raises(ConfigError, match=message):
            columns.check_folders(names)
    with pytest.raises(ConfigError, match="takes all columns"):
        Columns.parse(["x:string"]).check_folders(["x"])


def test_decimals_survive_a_list_from_the_environment() -> None:
    """A decimal's comma does not end a column where the schema comes as one text."""
    assert Columns.parse(["a:decimal(10", "2)", "b:string"]).names == ("a", "b")


def test_a_number_beyond_float32_is_refused() -> None:
    """A finite number that float32 cannot hold does not fit, alone and in a list; an infinite one is itself."""
    table, rejected = Columns.parse(["x:float32"]).table([[1e300, 1.0, float("inf"), None, -1e300]])
    assert [reject.row for reject in rejected] == [0, 4]
    assert table["x"].to_pylist() == [1.0, float("inf"), None]
    table, rejected = Columns.parse(["x:list<float32>"]).table([[[1.0, 1e300], None, [2.0]]])
    assert [reject.row for reject in rejected] == [0]
