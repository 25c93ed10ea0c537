"""The record for a tuple, and its topic: formats, headers, timestamps, topics, and wrong settings."""

from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from downspout.errors import ConfigError
from downspout.producing import Outgoing, rows_of_chunk
from downspout.producing.mapper import encoder, field_mapper, function_mapper, headers_of, timestamp_of

FIELDS = ["origin", "key", "message", "heads", "at", "where"]
NAMES: dict[str, Any] = {"topic": None, "fields": [], "key_format": "utf8", "message_format": "utf8"}
LOG = logging.getLogger("tests.producing")
NAN = float("nan")


def test_key_and_message_are_the_fields_of_that_name() -> None:
    """Without more, the other parts are the producer's."""
    assert field_mapper(FIELDS, NAMES, LOG)((None, "k", "m", 1, 2, 3)) == Outgoing(b"k", b"m")


def test_no_field_key_means_null_keys() -> None:
    """And null is null in every format."""
    assert field_mapper(["message"], NAMES, LOG)((None,)) == Outgoing(None, None)
    assert field_mapper(["message"], NAMES | {"message_format": "json"}, LOG)((None,)) == Outgoing(None, None)


def test_all_parts_may_be_fields() -> None:
    """Headers, time and partition too; a null among them is as if it were not there."""
    fields = ["headers=heads", "timestamp = at", "partition=where", "topic=kind"]
    make = field_mapper([*FIELDS, "kind"], NAMES | {"fields": fields, "key_format": "json"}, LOG)
    assert make((None, [1], b"m", {"a": "1"}, 17, 2, "t")) == Outgoing(b"[1]", b"m", [("a", b"1")], 17, 2, "t")
    assert make((None, None, None, None, None, None, "")) == Outgoing(None, None)
    with pytest.raises(ValueError, match="the topic 7 is not text"):
        make((None, None, None, None, None, None, 7))


@pytest.mark.parametrize(("given", "match"), [
    ("message=value", "produce.fields: message=value, but the input has the fields origin, key"),
    ("key=id", "produce.fields: key=id, but the input has"),
    ("headers=none", "produce.fields: headers=none, but the input has"),
    ("header=heads", "produce.fields: 'header=heads' is not part=field.*Try: one of message, key, headers"),
    ("heads", "produce.fields: 'heads' is not part=field"),
])  # fmt: skip
def test_a_field_or_part_that_does_not_exist_is_an_error_at_start(given: str, match: str) -> None:
    """The error names the setting, and the fields of the input or the parts of a record."""
    with pytest.raises(ConfigError, match=match):
        field_mapper(FIELDS, NAMES | {"fields": [given]}, LOG)


@pytest.mark.parametrize(("kind", "value", "match"), [
    ("utf8", 7, "the message cannot be written: its type is int, but the format utf8 takes texts"),
    ("utf8", "\ud800", "the message cannot be written: .*surrogates"),
    ("bytes", "text", "its type is str, but the format bytes takes only bytes"),
    ("json", {1, 2}, "it cannot be written as JSON"),
    ("json", b"x", "it cannot be written as JSON"),
    ("json", float("nan"), "it has nan, which JSON does not allow"),
    ("json", {"a": [None, (1, {"b": float("-inf")})]}, "it has -inf, which JSON does not allow"),
])  # fmt: skip
def test_what_does_not_serialise_says_why(kind: str, value: Any, match: str) -> None:
    """The part and the reason."""
    with pytest.raises(ValueError, match=match):
        encoder(kind, "the message")(value)


@dataclass
class Plain:
    speed: float | None


@dataclass(slots=True)
class Slotted:
    height: float | None


@dataclass(slots=True)
class Mixed(Plain):
    height: float | None = None


def test_a_dataclass_with_slots_goes_into_json() -> None:
    """A null in it is a null; a number that JSON does not have is found wherever it is."""
    encode = encoder("json", "the message")
    assert encode([Slotted(None), Mixed(None, 2.5)]) == b'[{"height":null},{"speed":null,"height":2.5}]'
    for odd in [Plain(NAN), Slotted(NAN), Mixed(NAN), Mixed(None, NAN)]:
        with pytest.raises(ValueError, match="it has nan, which JSON does not allow"):
            encode(odd)


@pytest.mark.parametrize("value", [7, "ab", [("a",)], {1: "x"}, {"a": 7}], ids=str)
def test_wrong_headers_say_so(value: Any) -> None:
    """Neither a mapping nor pairs, or names and values of other types."""
    with pytest.raises(ValueError, match="header"):
        headers_of(value)


@pytest.mark.parametrize("value", [-1, 1.5, True, "now", 1 << 60], ids=str)
def test_wrong_times_say_so(value: Any) -> None:
    """Milliseconds are whole numbers, not before 1970."""
    with pytest.raises(ValueError, match="is not a time in milliseconds"):
        timestamp_of(value)


def test_a_datetime_is_a_time() -> None:
    """Rounded to milliseconds."""
    moment = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=1500)
    assert timestamp_of(moment) == 1_356_998_400_002


def pair(values: Any) -> Any:
    """A user's function."""
    return (b"k", values[0])


def test_a_function_makes_records() -> None:
    """It returns an Outgoing, or a key and a message; all else is an error that names it."""
    make = function_mapper("produce.mapper", f"{__name__}.pair")
    assert make((b"m",)) == Outgoing(b"k", b"m")
    with pytest.raises(ValueError, match=r"builtins.repr returned .*: neither an Outgoing nor"):
        function_mapper("produce.mapper", "builtins.repr")((1,))


def test_a_row_of_a_chunk_has_the_record_of_its_tuple() -> None:
    """A map is an object in JSON, also within a struct, and not a list of pairs."""
    kind = pa.map_(pa.string(), pa.int64())
    values = [{"tags": [("a", 1)], "more": [{"b": 2}]}, None]
    column = pa.array(values, pa.struct([("tags", kind), ("more", pa.list_(kind))]))
    make = field_mapper(["message"], NAMES | {"message_format": "json"}, LOG)
    made = [make(row).value for row in rows_of_chunk(pa.RecordBatch.from_arrays([column], names=["message"]))]
    assert made == [b'{"tags":{"a":1},"more":[{"b":2}]}', None]


def test_a_topic_field_that_the_input_lacks_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """All goes to the fixed topic."""
    make = field_mapper(["message"], NAMES | {"fields": ["topic=kind"], "topic": "all"}, LOG)
    assert make(("a",)) == Outgoing(None, b"a")
    assert caplog.messages == [
        "produce.fields: topic=kind, but the input has the fields message: all records go to all"
    ]
