"""Avro decoded in columns equals fastavro's result for each record."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.parse import Documents, Schema
from downspout.parse.avro import avro_decoder
from tests.parse.binary_support import OneSchema, broken, hold_same, no_record_alone, parsed
from tests.parse.registry_support import framed
from tests.sampling import examples

MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
LONGS = st.integers(-300, 300) | st.integers(-(2**57), 2**57) | st.integers(-(2**63), 2**63 - 1)
ENUM = {"type": "enum", "name": "Light", "symbols": ["RED", "GREEN"]}
TYPES: list[tuple[Any, st.SearchStrategy[Any], list[str]]] = [
    ("null", st.none(), ["string", "int32"]),
    ("boolean", st.booleans(), ["bool", "string"]),
    ("int", st.integers(-(2**31), 2**31 - 1), ["int8", "int32", "int64", "float64", "timestamp_s", "string"]),
    ("long", LONGS, ["int16", "int64", "timestamp_us", "float64"]),
    ("float", st.floats(width=32), ["float32", "float64", "int32"]),
    ("double", st.floats(), ["float64", "float32", "decimal(18,2)"]),
    ("string", st.text(max_size=12), ["string", "int32", "date"]),
    ("bytes", st.binary(max_size=12), ["binary", "string"]),
    ({"type": "fixed", "name": "Mac", "size": 6}, st.binary(min_size=6, max_size=6), ["binary"]),
    (ENUM, st.sampled_from(ENUM["symbols"]), ["string", "binary"]),
    ({"type": "string", "avro.java.string": "String"}, st.text(max_size=3), ["string"]),
    ({"type": "int", "logicalType": "date"}, st.dates(), ["date", "timestamp", "int32"]),
    ({"type": "long", "logicalType": "timestamp-micros"}, MOMENTS, ["timestamp", "string"]),
    ({"type": "long", "logicalType": "timestamp-millis"}, MOMENTS, ["timestamp", "date"]),
    ({"type": "long", "logicalType": "no-such-type"}, st.integers(0, 9), ["int64"]),
    ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str), ["string"]),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.decimals(-9_999_999, 9_999_999, places=2), ["decimal(9,2)", "decimal(5,1)", "string"],
    ),
]  # fmt: skip
"""Types of Avro, values of them, and columns that may take them, or not."""


@st.composite
def records(draw: st.DrawFn) -> tuple[Any, list[str], list[str], list[bytes]]:
    """Return a schema, fields and columns, and values: some of them broken."""
    named: set[str] = set()
    fields, paths, columns, values = [], [], [], {}
    for place in range(draw(st.integers(1, 5))):
        kind, made, kinds = draw(st.sampled_from([t for t in TYPES if _name(t[0]) not in named]))
        named |= {_name(kind)} - {""}
        shape = draw(st.sampled_from(["plain", "null first", "null last", "alone in a union"]))
        if shape != "plain" and kind != "null":
            unions = {"null first": ["null", kind], "null last": [kind, "null"], "alone in a union": [kind]}
            kind, made = unions[shape], made if shape == "alone in a union" else st.none() | made
        name, path = f"f{place}", f"f{place}"
        if draw(st.integers(0, 3)) == 0:  # inside of a record, which may be null
            inner = {"type": "record", "name": f"R{place}", "fields": [{"name": "x", "type": kind}]}
            kind, made = ["null", inner], st.none() | st.fixed_dictionaries({"x": made})
            path = f"f{place}.x"
        fields.append({"name": name, "type": kind})
        values[name] = made
        if draw(st.integers(0, 4)):
            paths.append(path)
            columns.append(f"c{place}:{draw(st.sampled_from(kinds))}{draw(st.sampled_from(['', '', '!']))}")
    if not paths or draw(st.integers(0, 5)) == 0:
        paths.append("missing")
        columns.append(draw(st.sampled_from(["missing:string", "missing:string!"])))
    schema = {"type": "record", "name": "Top", "fields": fields}
    parsed = fastavro.parse_schema(schema)
    written = []
    for document in draw(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=9)):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, document)
        written.append(framed(draw(st.sampled_from([1, 1, 2])), out.getvalue()))
    return schema, paths, columns, written


def _name(kind: Any) -> str:
    return str(kind.get("name", "")) if isinstance(kind, dict) else ""


@settings(max_examples=examples(300))
@given(made=records(), data=st.data())
def test_columns_hold_what_each_record_holds(made: Any, data: st.DataObject) -> None:
    """Rows, columns and reasons are the same at once as one by one, of whole records and of broken ones."""
    schema, paths, columns, values = made
    documents = Documents(OneSchema(Schema("AVRO", json.dumps(schema))))
    hold_same(documents, paths, columns, broken(data.draw, values))


def test_every_type_goes_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record of these types, null or not, is left to be read by itself."""
    document = {
        "a": True, "b": -(2**31), "c": -(2**63), "d": 1.5, "e": -2.5, "f": "Ä", "g": b"\0", "h": b"123456",
        "i": "GREEN", "j": date(1, 1, 1), "k": datetime(1969, 12, 31, tzinfo=UTC), "l": UUID(int=3),
        "m": Decimal("-1.25"),
    }  # fmt: skip
    kinds = {
        "a": "boolean", "b": "int", "c": "long", "d": "float", "e": "double", "f": "string", "g": "bytes",
        "h": {"type": "fixed", "name": "Mac", "size": 6}, "i": ENUM, "j": {"type": "int", "logicalType": "date"},
        "k": {"type": "long", "logicalType": "timestamp-micros"}, "l": {"type": "string", "logicalType": "uuid"},
        "m": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    }  # fmt: skip
    columns = [
        "a:bool", "b:int32", "c:int64", "d:float32", "e:float64", "f:string", "g:binary", "h:binary", "i:string",
        "j:date", "k:timestamp", "l:string", "m:decimal(9,2)",
    ]  # fmt: skip
    schema = {"type": "record", "name": "T", "fields": [{"name": n, "type": ["null", k]} for n, k in kinds.items()]}
    compiled = fastavro.parse_schema(schema)
    values = []
    for row in (document, dict.fromkeys(kinds), {**document, "f": None}):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, compiled, row)
        values.append(framed(1, out.getvalue()))
    no_record_alone(monkeypatch)
    documents = Documents(OneSchema(Schema("AVRO", json.dumps(schema))))
    found = parsed(documents, list(kinds), columns, values, at_once=True)
    assert found.batch.to_pylist()[0] == {**document, "l": str(document["l"])}
    assert found.batch.to_pylist()[1] == dict.fromkeys(kinds)
    assert np.array_equal(found.rows, [0, 1, 2])


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"}, {"type": "map", "values": "int"}, ["int", "string"], ["null", "int", "long"],
        ["null", "T"],
    ],
)  # fmt: skip
def test_what_has_no_fixed_place_is_read_one_by_one(kind: Any) -> None:
    """A schema with lists, maps, unions of several types or itself inside is left to fastavro."""
    schema = {"type": "record", "name": "T", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": kind}]}
    assert avro_decoder(Schema("AVRO", json.dumps(schema)), None).columns is None
