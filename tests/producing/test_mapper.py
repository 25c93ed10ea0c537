"""What a tuple becomes, and where it goes: formats, headers, times, topics, and what is wrong with settings."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import pytest

from downspout.errors import ConfigError
from downspout.producing import Outgoing
from downspout.producing.mapper import encoder, field_mapper, function_mapper, headers_of, timestamp_of
from downspout.producing.topics import selector

FIELDS = ["origin", "key", "message", "heads", "at", "where"]
NAMES: dict[str, Any] = {
    "key_field": "key", "message_field": "message", "headers_field": None, "timestamp_field": None,
    "partition_field": None, "key_format": "utf8", "message_format": "utf8",
}  # fmt: skip
TOPICS: dict[str, Any] = {"topic": None, "topic_field": None, "topic_function": None}


def test_key_and_message_are_the_fields_of_that_name() -> None:
    assert field_mapper(FIELDS, NAMES)((None, "k", "m", 1, 2, 3)) == Outgoing(b"k", b"m")


def test_no_field_key_means_null_keys() -> None:
    assert field_mapper(["message"], NAMES)((None,)) == Outgoing(None, None)
    assert field_mapper(["message"], NAMES | {"message_format": "json"})((None,)) == Outgoing(None, None)


def test_all_parts_may_be_fields() -> None:
    """Headers, time and partition too; a null among them is as if it were not there."""
    given = {"headers_field": "heads", "timestamp_field": "at", "partition_field": "where", "key_format": "json"}
    make = field_mapper(FIELDS, NAMES | given)
    assert make((None, [1], b"m", {"a": "1"}, 17, 2)) == Outgoing(b"[1]", b"m", [("a", b"1")], 17, 2)
    assert make((None, None, None, None, None, None)) == Outgoing(None, None)


@pytest.mark.parametrize(("given", "match"), [
    ({"message_field": "value"}, "produce.message_field = 'value', and the input has the fields origin, key"),
    ({"key_field": "id"}, "produce.key_field = 'id'"),
    ({"headers_field": "none"}, "produce.headers_field = 'none'"),
])  # fmt: skip
def test_a_field_that_there_is_not_is_an_error_at_start(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        field_mapper(FIELDS, NAMES | given)


@pytest.mark.parametrize(("kind", "value", "match"), [
    ("utf8", 7, "the message cannot be written: its type is int, and the format utf8 takes texts"),
    ("utf8", "\ud800", "the message cannot be written: .*surrogates"),
    ("bytes", "text", "its type is str, and the format bytes takes bytes alone"),
    ("json", {1, 2}, "it does not go into JSON"),
    ("json", b"x", "it does not go into JSON"),
    ("json", float("nan"), "it has nan, which is no number there"),
    ("json", {"a": [None, (1, {"b": float("-inf")})]}, "it has -inf, which is no number there"),
])  # fmt: skip
def test_what_does_not_serialise_says_why(kind: str, value: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        encoder(kind, "the message")(value)


@pytest.mark.parametrize("value", [7, "ab", [("a",)], {1: "x"}, {"a": 7}], ids=str)
def test_wrong_headers_say_so(value: Any) -> None:
    """Neither a mapping nor pairs, or names and values of other types."""
    with pytest.raises(ValueError, match="header"):
        headers_of(value)


@pytest.mark.parametrize("value", [-1, 1.5, True, "now", 1 << 60], ids=str)
def test_wrong_times_say_so(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a time in milliseconds"):
        timestamp_of(value)


def test_a_datetime_is_a_time() -> None:
    moment = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=1500)
    assert timestamp_of(moment) == 1_356_998_400_002


def pair(values: Any) -> Any:
    return (b"k", values[0])


def test_a_function_makes_records() -> None:
    """It returns an Outgoing, or a key and a message; all else is an error that names it."""
    make = function_mapper("produce.mapper", f"{__name__}.pair")
    assert make((b"m",)) == Outgoing(b"k", b"m")
    with pytest.raises(ValueError, match=r"builtins.repr returned .*: neither an Outgoing nor"):
        function_mapper("produce.mapper", "builtins.repr")((1,))


def by_length(values: Any) -> str | None:
    return None if len(values) == 1 else f"of-{len(values)}"


@pytest.mark.parametrize(("given", "values", "topic"), [
    ({"topic": "all"}, ("a", "b"), "all"),
    ({"topic_field": "kind"}, ("a", "b"), "b"),
    ({"topic_field": "kind", "topic": "all"}, ("a", None), "all"),
    ({"topic_field": "kind"}, ("a", None), None),
    ({"topic_function": f"{__name__}.by_length"}, ("a", "b"), "of-2"),
    ({"topic_function": f"{__name__}.by_length"}, ("a",), None),
])  # fmt: skip
def test_the_topic_is_fixed_or_told_by_the_tuple(given: dict[str, Any], values: Any, topic: str | None) -> None:
    """By a field, by a place, by a function; the fixed one is for tuples that name none."""
    assert selector(["value", "kind"], TOPICS | given, logging.getLogger())(values) == topic


def test_a_topic_field_that_no_input_has_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    select = selector(["value"], TOPICS | {"topic_field": "kind", "topic": "all"}, logging.getLogger())
    assert [select(("a",)), select(("b",))] == ["all", "all"]
    assert [record.getMessage() for record in caplog.records] == [
        "produce.topic_field = 'kind', and the input has the fields value: all goes to all"
    ]


@pytest.mark.parametrize(("given", "match"), [
    ({}, "no topic is named to write to"),
    ({"topic_field": "a", "topic_function": "x.y"}, "produce.topic_field and produce.topic_function are set"),
    ({"topic_function": "nowhere.f"}, "produce.topic_function = 'nowhere.f' cannot be imported"),
])  # fmt: skip
def test_wrong_topics_are_errors_at_start(given: dict[str, Any], match: str) -> None:
    """None at all, two ways at once, a place that there is not."""
    with pytest.raises(ConfigError, match=match):
        selector(["value", "kind"], TOPICS | given, logging.getLogger())
