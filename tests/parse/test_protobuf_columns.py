"""Protobuf decoded in columns equals the result of Google's library for each message."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.parse import Documents, Schema
from downspout.parse.protobuf import compiled
from tests.parse.binary_support import OneSchema, broken, hold_same, no_record_alone, parsed
from tests.parse.registry_support import framed
from tests.sampling import examples

TEXT = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Light { OFF = 0; RED = 3; DARK = -2; }
message Top {
  int32 i32 = 1; int64 i64 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6;
  fixed32 f32 = 7; fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10; float fl = 11; double db = 12;
  bool b = 13; string s = 14; bytes by = 15; Light light = 16; optional int32 maybe = 17; optional string text = 18;
  Plane plane = 19; google.protobuf.Timestamp at = 20; google.protobuf.Int64Value boxed = 21;
  google.protobuf.StringValue note = 22;
  oneof how { int32 cash = 23; string card = 24; Plane barter = 25; }
  repeated int32 many = 26; optional Light other = 2000;
}
message Plane { int32 year = 1; optional string model = 2; Plane twin = 3; }
"""
OLD = """
syntax = "proto2";
message Top {
  enum Light { OFF = 1; RED = 3; }
  required int32 id = 1; optional string s = 2 [default = "none"]; optional Light light = 3 [default = RED];
  optional group Old = 4 { optional int32 x = 5; } optional bytes by = 6;
}
"""
COLUMNS = {
    "i32": ["int8", "int32", "float64"], "i64": ["int64", "timestamp_us", "int16"], "u32": ["int64", "int32"],
    "u64": ["int64"], "s32": ["int32"], "s64": ["int64"], "f32": ["int64"], "f64": ["int64", "string"],
    "sf32": ["int32"], "sf64": ["int64"], "fl": ["float32", "float64"], "db": ["float64", "float32", "int32"],
    "b": ["bool", "int8"], "s": ["string", "int32"], "by": ["binary", "string"], "light": ["string", "int8"],
    "maybe": ["int32"], "text": ["string"], "plane.year": ["int32"], "plane.model": ["string"],
    "at": ["timestamp", "date", "string"], "boxed": ["int64", "int8"], "note": ["string"], "cash": ["int32"],
    "card": ["string"], "barter.year": ["int32"], "other": ["string"], "plane.twin.year": ["int32"],
    "many": ["list<int32>"], "plane": ["struct<year:int32>"], "nowhere": ["string"],
}  # fmt: skip
_INT32, _INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
_UINT32, _UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1) | st.integers(0, 200)
PLANE = st.fixed_dictionaries({}, optional={"year": _INT32, "model": st.text(max_size=4)})
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "i32": _INT32, "i64": _INT64, "u32": _UINT32, "u64": _UINT64, "s32": _INT32, "s64": _INT64, "f32": _UINT32,
    "f64": _UINT64, "sf32": _INT32, "sf64": _INT64, "fl": st.floats(width=32), "db": st.floats(), "b": st.booleans(),
    "s": st.text(max_size=9), "by": st.binary(max_size=9), "light": st.sampled_from([0, 3, -2, 7]), "maybe": _INT32,
    "text": st.text(max_size=3), "plane": PLANE, "boxed": st.fixed_dictionaries({"value": _INT64}),
    "at": st.fixed_dictionaries({"seconds": st.integers(-(2**36), 2**36), "nanos": st.integers(0, 10**9 - 1)}),
    "note": st.fixed_dictionaries({"value": st.text(max_size=3)}), "cash": _INT32, "card": st.text(max_size=3),
    "barter": PLANE, "other": st.sampled_from([0, 3]),
}  # fmt: skip


@lru_cache
def message_class(text: str = TEXT) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled(Schema("PROTOBUF", text))).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Top"))


@lru_cache
def documents(text: str = TEXT) -> Documents:
    """Return what decodes the message, the first of its schema."""
    return Documents(OneSchema(Schema("PROTOBUF", text)))


def written(document: dict[str, Any], text: str = TEXT) -> bytes:
    return bytes(message_class(text)(**document).SerializePartialToString())


@st.composite
def values(draw: st.DrawFn) -> list[bytes]:
    """Return messages: whole ones, such with fields twice or in another order, and broken ones."""
    found = []
    for document in draw(st.lists(st.fixed_dictionaries({}, optional=FIELDS), min_size=1, max_size=6)):
        content = written(document)
        match draw(st.sampled_from(["", "", "", "twice", "unknown", "many"])):
            case "twice":
                content += written(draw(st.fixed_dictionaries({}, optional=FIELDS)))
            case "unknown":
                content += b"\xf8\x7f\x01"
            case "many":
                content += written({"many": draw(st.lists(_INT32, max_size=3))})
        found.append(framed(1, b"\0" + content))
    return broken(draw, found)


@settings(max_examples=examples(300))
@given(values=values(), data=st.data())
def test_columns_hold_what_each_message_holds(values: list[bytes], data: st.DataObject) -> None:
    """Rows, columns and reasons are the same at once as one by one, of whole messages and of broken ones."""
    paths = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=6, unique=True))
    ends = st.sampled_from(["", "", "!"])
    columns = [f"c{n}:{data.draw(st.sampled_from(COLUMNS[path]))}{data.draw(ends)}" for n, path in enumerate(paths)]
    hold_same(documents(), paths, columns, values)


@settings(max_examples=examples(100))
@given(data=st.data())
def test_columns_hold_what_messages_of_the_older_syntax_hold(data: st.DataObject) -> None:
    """Fields that are required, have a default, or are groups mean at once what they mean one by one."""
    fields = {
        "id": _INT32, "s": st.text(max_size=3), "light": st.sampled_from([1, 3]), "by": st.binary(max_size=3),
        "old": st.fixed_dictionaries({"x": _INT32}),
    }  # fmt: skip
    made = data.draw(st.lists(st.fixed_dictionaries({}, optional=fields), min_size=1, max_size=5))
    values = broken(data.draw, [framed(1, b"\0" + written(document, OLD)) for document in made])
    wanted = data.draw(st.sets(st.sampled_from(["id", "s", "light", "by", "old.x"]), min_size=1))
    kinds = {"id": "int32", "old.x": "int32", "by": "binary"}
    columns = [f"c{n}:{kinds.get(path, 'string')}" for n, path in enumerate(wanted)]
    hold_same(documents(OLD), list(wanted), columns, values)


def test_messages_go_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message with these fields, set or not, is left to be read by itself."""
    full = {
        "i32": -1, "i64": 2**62, "u32": 2**32 - 1, "u64": 5, "s32": -5, "s64": -(2**63), "f32": 7, "f64": 8, "sf32": -9,
        "sf64": -10, "fl": 1.5, "db": -2.5, "b": True, "s": "Ä", "by": b"\0", "light": 3, "maybe": 0, "text": "",
        "plane": {"year": 1998}, "at": {"seconds": -1, "nanos": 1_000}, "boxed": {"value": 0}, "card": "4000",
    }  # fmt: skip
    paths = [path for path in COLUMNS if path not in ("many", "plane", "plane.twin.year", "light", "other")]
    columns = [f"c{n}:{COLUMNS[path][-1 if path in ('i32', 'db') else 0]}" for n, path in enumerate(paths)]
    columns[0] = "c0:int32"
    columns[paths.index("db")] = "db:float64"
    no_record_alone(monkeypatch)
    found = parsed(documents(), paths, columns, [framed(1, b"\0" + written(document)) for document in (full, {})], True)
    first, second = (list(row.values()) for row in found.batch.to_pylist())
    assert dict(zip(paths, first, strict=True))["i64"] == 2**62
    assert dict(zip(paths, second, strict=True))["i64"] == 0
    assert dict(zip(paths, second, strict=True))["maybe"] is None
