from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from downspout.ledger import Origin
from downspout.wire import Encoder, parse, slow
from downspout.wire import values as wire_values
from downspout.wire.values import MARK
from tests.sampling import examples
from tests.wire.storm_pipe import received, through_java

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text(st.characters(exclude_categories=())).map(
    MARK.__add__
)
ZONES = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-5, minutes=-30))])
PLAIN_SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
SCALARS = (
    PLAIN_SCALARS
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | ANY_TEXT
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=ZONES).map(lambda moment: moment.replace(fold=0))
    | st.dates()
    | st.times().map(lambda moment: moment.replace(fold=0))
)
KEYS = ANY_TEXT | st.integers() | st.none() | st.binary()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))


def exactly(value: Any) -> Any:
    """Return something that is equal for equal values of equal types, NaN included, whatever the order of a dict."""
    if isinstance(value, dict):
        return {repr(exactly(key)): exactly(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exactly(item) for item in value]
    return type(value).__name__, value.hex() if isinstance(value, float) and math.isfinite(value) else repr(value)


def over_storm(values: list[Any]) -> Any:
    """Return what a bolt gets of what another one emitted, with Storm's Java in between."""
    data = Encoder().encode({"command": "emit", "tuple": values})
    return received(through_java(data))["tuple"]


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(st.lists(VALUES, max_size=5))
@example(
    [2**53 + 1, 2**64, -(2**65), float("nan"), float("-inf"), -0.0, 5e-324, 0.1 + 0.2, 1e22, 1.7976931348623157e308]
)
@example([b"\xff\x00", "\ud800", "\0", "\0bytes:AA==", {"\0dict": [1]}, {MARK: None}, ["\0text:"], "\0float:nan"])
@example([None, float("nan")])
@example([-(2**63) - 1])
@example([[{"a": float("inf")}], None])
def test_values_arrive_as_they_left(values: list[Any]) -> None:
    """Bytes, nulls, odd texts, large integers, NaN, times: a bolt gets what another one emitted, type and all."""
    assert exactly(over_storm(values)) == exactly(values)


@settings(deadline=None)
@given(st.lists(VALUES, max_size=5))
def test_without_orjson_the_pipe_is_the_same(values: list[Any]) -> None:
    """The slow way and the fast way make JSON of equal value, so tasks with and without orjson can talk."""
    assert exactly(received(slow(values))) == exactly(received(Encoder().encode(values))) == exactly(values)


def test_a_project_without_orjson_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_values, "orjson", None)
    given_values = [1, "a", None, b"\xff", 2**70, float("nan"), [dt.date(2013, 1, 1)]]
    assert exactly(over_storm(given_values)) == exactly(given_values)


@pytest.mark.slow
@settings(deadline=None)
@given(st.recursive(PLAIN_SCALARS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_plain_values_are_plain_json(value: Any) -> None:
    """An unmodified component reads what ours emits, and ours what it emits, as long as no text begins with NUL."""
    if MARK in json.dumps(value).encode().decode("unicode_escape"):
        return
    assert exactly(json.loads(Encoder().encode([value]))) == exactly([value])
    assert exactly(received(json.dumps([value]).encode())) == exactly([value])


@pytest.mark.parametrize(
    "text", ["\0", "\0hello", "\0bytes:not base64!", "\0float:x", "\0decimal:x", "\0:", "\0date:1"]
)
def test_texts_of_others_that_look_like_ours(text: str) -> None:
    """A text with NUL in front that an unmodified component emitted, and that stands for nothing, is left alone."""
    assert received(json.dumps([text]).encode()) == [text]


def test_kafka_headers_travel() -> None:
    """Headers, (name, bytes) each, arrive as lists of the same two."""
    headers = [("trace", b"\xff\x00"), ("trace", b""), ("é", b"\n")]
    assert over_storm([headers]) == [[list(header) for header in headers]]


def test_an_origin_travels_as_a_list() -> None:
    """An Origin is plain JSON on the pipe, so unmodified components can hand it on."""
    origin = Origin("lines", "6jPMvg1sQ2uJmzGz1yRHQw", 0, 2**53 + 1, "split.0")
    assert json.loads(Encoder().encode([origin])) == [list(origin)]
    assert Origin.of(over_storm([origin])[0]) == origin


@pytest.mark.parametrize(
    ("number", "same"),
    [(np.int64(2**62), 2**62), (np.float64(0.1), 0.1), (np.float32(0.5), 0.5), (np.bool_(True), True)],
    ids=["int64", "float64", "float32", "bool"],
)
def test_numbers_of_numpy_arrive_as_pythons(number: Any, same: Any) -> None:
    assert exactly(over_storm([number])) == exactly([same])


@pytest.mark.parametrize("encode", [Encoder().encode, slow])
def test_no_time_arrives_as_none(encode: Any) -> None:
    """NaT is a datetime to Python, and nothing at the other end could read it as one."""
    pandas = pytest.importorskip("pandas")
    data = encode({"tuple": [pandas.NaT, [pandas.NaT], np.datetime64("NaT"), pandas.Timestamp(2024, 5, 1)]})
    assert received(data)["tuple"] == [None, [None], None, dt.datetime(2024, 5, 1)]


class Day(dt.date):
    """A subclass, such as pendulum's."""


class Hour(dt.time):
    """A subclass."""


class Text(str):
    """A subclass."""


class Choice(Enum):
    """Values that need a mark."""

    TEXT = "\0bytes:AA=="
    NAN = math.nan


@pytest.mark.parametrize("encode", [Encoder().encode, slow])
@pytest.mark.parametrize(
    ("value", "same"),
    [
        (Day(2020, 1, 1), dt.date(2020, 1, 1)),
        (Hour(12), dt.time(12)),
        (Text("\0bytes:AA=="), "\0bytes:AA=="),
        (np.str_("\0float:1"), "\0float:1"),
        (Choice.TEXT, "\0bytes:AA=="),
        (Choice.NAN, math.nan),
        (np.datetime64("2020-01-01"), dt.date(2020, 1, 1)),
        (np.datetime64("2020-01-01T12:00:00.000001", "ns"), dt.datetime(2020, 1, 1, 12, microsecond=1)),
    ],
    ids=str,
)
def test_values_of_other_classes_arrive_as_those_of_the_base_class(encode: Any, value: Any, same: Any) -> None:
    """Neither a class name nor a mark of ours replaces the value."""
    assert exactly(received(encode([value]))) == exactly([same])


@pytest.mark.parametrize("encode", [Encoder().encode, slow])
@pytest.mark.parametrize(
    "value",
    [
        np.datetime64("2020-01-01T00:00:00.000000001"),
        np.datetime64("12020-01-01"),
        np.timedelta64(1, "ns"),
        np.timedelta64(1, "s"),
    ],
    ids=str,
)
def test_a_time_without_an_exact_counterpart_is_an_error(encode: Any, value: Any) -> None:
    """It does not arrive as a number."""
    with pytest.raises(TypeError, match="cannot be sent"):
        encode([value])


@pytest.mark.parametrize("encode", [Encoder().encode, slow])
def test_a_timestamp_with_nanoseconds_is_an_error(encode: Any) -> None:
    """Python's datetime would drop them."""
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="cannot be sent"):
        encode([pandas.Timestamp("2020-01-01T00:00:00.000000001")])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nan_of_numpy_is_no_null(kind: Any) -> None:
    assert exactly(over_storm([kind("nan"), None])) == exactly([float("nan"), None])


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, np.array([1, 2]), print], ids=lambda v: type(v).__name__)
def test_what_cannot_travel_is_an_error(value: Any) -> None:
    """No value is left out or replaced without a word."""
    for encode in (Encoder().encode, slow):
        with pytest.raises(TypeError, match="cannot be sent"):
            encode([value])


@settings(deadline=None)
@given(st.integers(), st.text(st.sampled_from('-0123456789"\\ ,:[a'), max_size=60))
@example(2**64, "-7955786537413359385")
@example(-(2**63) - 1, '"12345678901234567890')
def test_digits_in_texts_and_large_numbers_side_by_side(number: int, text: str) -> None:
    """An id of many digits, which is a text, hides no number beyond 64 bits, and is changed by none."""
    message = {"id": text, "tuple": [number, text, {text: number}, number], "task": 2}
    assert received(json.dumps(message).encode()) == message
    assert received(Encoder().encode(message)) == message
    assert parse(str(number).encode()) == number


def test_ids_of_storm_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storm's random ids, of up to 19 digits and a sign, do not make the standard library read the message."""
    monkeypatch.setattr(json, "loads", None)
    message = {"id": "-7955786537413359385", "tuple": ["UA", 2**63 - 1]}
    assert received(Encoder().encode(message)) == message


def test_decimals_keep_their_digits() -> None:
    """1.50 stays 1.50: stock pystorm makes a float of it."""
    assert [str(value) for value in over_storm([Decimal("1.50"), Decimal("1E+3"), Decimal("-0")])] == [
        "1.50",
        "1E+3",
        "-0",
    ]
