from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.errors import ConfigError
from downspout.scaffold.infer import Inferred, RecordSample, as_paths, infer, said
from tests.sampling import examples


def of(*objects: dict[str, Any]) -> Inferred:
    lines = [json.dumps(each, ensure_ascii=False).encode() for each in objects]
    return infer(RecordSample(lines, list(range(1, len(lines) + 1)), list(objects), is_whole=True))


def values(*found: Any) -> Inferred:
    return of(*({"x": value} for value in found))


@pytest.mark.parametrize(
    ("given_values", "kind"),
    [
        ([True, False], "bool"),
        ([1, -5], "int64"),
        ([1, 2.5], "float64"),
        ([2**63], "decimal(38,0)"),
        (["a", "2026-01-31"], "string"),
        (["2026-01-31", "2025-02-28"], "date"),
        (["2026-01-31", "2025-02-30"], "string"),
        (["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123+01:00"], "timestamp"),
        (["2026-01-31 12:00:00", "2026-01-31"], "timestamp"),
        (["12.50", "-3.125"], "decimal(18,3)"),
        (["1234567890123456789.5"], "decimal(38,1)"),
        (["00123", "123"], "string"),
        (["1", "1.5"], "string"),
        ([[1, 2], []], "list<int64>"),
        ([[{"a": 1}, {"b": "2026-01-31"}]], "list<struct<a:int64,b:date>>"),
        ([None, 3], "int64"),
        ([None], "string"),
        ([{f"key{number}": number} for number in range(20)], "map<string,int64>"),
        ([1_769_846_716, 1_769_846_717], "int64"),
    ],
)
def test_a_type_takes_all_values(given_values: list[Any], kind: str) -> None:
    """Each kind of value has its type, and the parser takes every one of them."""
    found = values(*given_values)
    assert [field.type for field in found.fields] == [kind]
    assert found.unfit == {}


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("ts", 1_769_846_716, "timestamp_s"),
        ("created_at", 1_769_846_716_000, "timestamp_ms"),
        ("eventTime", 1_769_846_716_000_000, "timestamp_us"),
        ("height", 1_769_846_716_000, "int64"),
        ("stats", 1_769_846_716, "int64"),
        ("ts", 12, "int64"),
    ],
)
def test_numbers_are_times_by_name_and_range(name: str, value: int, kind: str) -> None:
    found = of({name: value})
    assert found.fields[0].type == kind
    assert bool(said(found)) == (value != 12)


@pytest.mark.parametrize(
    ("given_values", "reason"),
    [
        ([1, "1"], "no type takes all of them"),
        ([{"a": 1}, "x"], "objects in 1, text in 1"),
        ([0.5, 2**60], "beyond 2^53"),
        ([10**40], "41 digits"),
        ([{}], "objects that are empty"),
    ],
)
def test_what_cannot_be_decided_is_left_out_and_said(given_values: list[Any], reason: str) -> None:
    """A place without a type for all of its values becomes no column, and the reason is given."""
    found = of(*({"id": 1, "x": value} for value in given_values))
    assert [field.name for field in found.fields] == ["id"]
    assert [line for line in said(found) if line.startswith("x: left out") and reason in line]
    assert found.unfit == {}


def test_guesses_are_said() -> None:
    """What is always null or empty, local times, and texts that nearly all look alike are named."""
    found = of(*({"n": None, "e": [], "t": "2026-01-31 12:00:00", "d": "2026-01-31" if i else "?"} for i in range(20)))
    assert {line.partition(":")[0] for line in said(found)} == {"n", "e", "t", "d"}


def test_nested_objects_become_paths() -> None:
    found = of({"user": {"id": 1, "at": {"city": "Lima"}}}, {"user": None}, {"user": {"id": 2, "at": None}})
    assert as_paths(found.fields) == ["user_id=user.id", "user_at_city=user.at.city"]
    assert found.fields[0].remark == "null or missing in 1 of 3"
    assert found.unfit == {}


def test_names_are_ones_that_all_engines_take() -> None:
    """Keys with signs, of Python or of ours become other names; names that Spark takes for one get a number."""
    found = of({"user-id": 1, "class": 1, "origin": 1, "_x": 1, "1st": 1, "a.b": 1, "Id": 1, "id": 1, " ": 1, "½": 1})
    assert [field.name for field in found.fields] == [
        "user_id", "class_", "origin_", "x", "n1st", "a_b", "Id", "id_2", "field", "field_2",
    ]  # fmt: skip
    assert found.fields[5].path == '"a.b"'
    assert found.unfit == {}


def test_records_without_a_column_are_an_error() -> None:
    """A sample of empty objects cannot make a topology."""
    with pytest.raises(ConfigError, match="no field whose type is clear"):
        of({}, {})


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12),
    st.dates().map(str), st.datetimes().map(str), st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.sampled_from([1_769_846_716_000, "2026-01-31T12:00Z", "12.50", "007"]),
)  # fmt: skip
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


@settings(max_examples=examples(400))
@given(st.lists(st.dictionaries(st.text(max_size=6), documents, min_size=1, max_size=4), min_size=1, max_size=6))
def test_every_record_fits_the_columns_that_are_inferred_of_it(objects: list[dict[str, Any]]) -> None:
    try:
        found = of(*objects)
    except ConfigError:
        return  # nothing whose type is clear
    assert found.unfit == {}
    assert len({field.name.lower() for field in found.fields}) == len(found.fields)
