from __future__ import annotations

import importlib
import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolts.parse import RegistryParseBolt
from downspout.errors import ConfigError, MissingExtraError, UnavailableError
from downspout.ledger import Origin
from downspout.parse import Documents
from downspout.parse.registry_client import Registry
from downspout.testing import SchemaRegistry, run_bolt
from tests.parse.registry_support import FLIGHT, FLIGHT_TEXT, avro, flights, framed
from tests.parse.support import chunk, rows_of, run_chunks
from tests.waiting import eventually

TYPES = {"carrier": "string", "delay": "int32"}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        made.register("flights-value", FLIGHT_TEXT)
        yield made


def documents(registry: SchemaRegistry, **options: Any) -> Documents:
    return Documents(Registry(registry.url), **options)


# --- Avro ---------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(delays=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=80), data=st.data())
def test_a_chunk_gives_what_its_records_give(delays: list[int | None], data: st.DataObject) -> None:
    """Rows, rejects and reasons of a chunk are those of its records, of whole values and of broken ones."""
    with SchemaRegistry() as registry:
        registry.register("flights-value", FLIGHT_TEXT)
        values: list[bytes | str | None] = list(flights(1, delays))
        for place in data.draw(st.sets(st.integers(0, len(values) - 1), max_size=3)):
            values[place] = data.draw(st.sampled_from([None, b"", b"\0", b"{}", framed(9, b""), values[place][:-1]]))
        bolt = RegistryParseBolt.spec(fields=list(TYPES), types=TYPES, registry=registry.url)
        tuples = [{"origin": Origin("orders", "id", 2, place), "value": value} for place, value in enumerate(values)]
        records = run_bolt(bolt, tuples)
        in_chunks = run_chunks(bolt, [chunk(values)], rejects=True)
        alone = [(row.origin.offset, row.carrier, row.delay) for row in records.emitted("bolt")]
        together = [(row["offset"], row["carrier"], row["delay"]) for row in rows_of(in_chunks.emitted("bolt"))]
        assert together == alone
        rejected = sum(batch.num_rows for batch in in_chunks.emitted("bolt", "rejects"))
        assert rejected == len(values) - len(alone)


def test_a_schema_is_asked_for_once(registry: SchemaRegistry) -> None:
    """Values of one schema cost one request, and a new version of it one more."""
    later = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "gate", "type": "string"}]}
    assert registry.register("flights-value", json.dumps(later)) == 2
    read = documents(registry).read
    for value in [*flights(1, range(20)), avro(2, {"carrier": "AA", "delay": 1, "gate": "B2"}, later)] * 2:
        assert read(value)["carrier"] in ("UA", "AA")
    assert registry.requests == ["/schemas/ids/1", "/schemas/ids/2"]


def test_types_of_avro_become_those_of_columns(registry: SchemaRegistry) -> None:
    """Logical types, enums, unions, maps, arrays and nested records arrive as values that columns take."""
    kinds = {
        "d": {"type": "int", "logicalType": "date"},
        "t": {"type": "long", "logicalType": "timestamp-micros"},
        "p": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "u": {"type": "string", "logicalType": "uuid"},
        "c": {"type": "int", "logicalType": "time-millis"},
        "e": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "m": {"type": "map", "values": "long"},
        "l": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}},
    }
    schema = {"type": "record", "name": "All", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    number = registry.register("all-value", json.dumps(schema))
    given_uuid = uuid.UUID(int=7)
    row = {
        "d": date(2013, 1, 31), "t": datetime(2013, 1, 1, 5, tzinfo=UTC), "p": Decimal("1.25"), "u": given_uuid,
        "c": time(5, 17), "e": "B", "m": {"k": 1}, "l": [{"n": 1}, {"n": 2}],
    }  # fmt: skip
    types = {
        "d": "date", "t": "timestamp", "p": "decimal(9,2)", "u": "string", "c": "string", "e": "string",
        "m": "map<string,int64>", "n": "int32",
    }  # fmt: skip
    fields = [*list(types)[:-1], "n=l[-1].n"]
    bolt = RegistryParseBolt.spec(fields=fields, types=types, registry=registry.url)
    result = run_chunks(bolt, [chunk([avro(number, row, schema)])])
    (found,) = rows_of(result.emitted("bolt"))
    assert (found["d"], found["t"], found["p"], found["u"]) == (row["d"], row["t"], row["p"], str(given_uuid))
    assert (found["c"], found["e"], found["n"], dict(found["m"])) == ("05:17:00", "B", 2, {"k": 1})


def test_a_reader_schema_brings_defaults_and_wider_types(registry: SchemaRegistry, tmp_path: Path) -> None:
    reader = {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "airline", "type": "string", "aliases": ["carrier"]},
            {"name": "delay", "type": ["null", "long"]},
            {"name": "gate", "type": "string", "default": "?"},
        ],
    }
    (tmp_path / "flight.avsc").write_text(json.dumps(reader), encoding="utf-8")
    for given_schema in (json.dumps(reader), str(tmp_path / "flight.avsc")):
        read = documents(registry, reader_schema=given_schema).read
        assert read(flights(1, [5])[0]) == {"airline": "UA", "delay": 5, "gate": "?"}


def test_a_schema_that_the_reader_cannot_take_is_said(registry: SchemaRegistry) -> None:
    """A value whose schema the reader's cannot resolve is an error that names both."""
    reader = {"type": "record", "name": "Flight", "fields": [{"name": "delay", "type": "string"}]}
    read = documents(registry, reader_schema=json.dumps(reader)).read
    with pytest.raises(ValueError, match=r"not of schema 1: it cannot be read as parse\.reader_schema: "):
        read(flights(1, [5])[0])


def test_imported_schemas_are_found(registry: SchemaRegistry) -> None:
    """A schema that refers to another one is read, once the registry has given both."""
    plane = {"type": "record", "name": "Plane", "fields": [{"name": "year", "type": "int"}]}
    registry.register("plane", json.dumps(plane))
    flight = {"type": "record", "name": "F", "fields": [{"name": "plane", "type": "Plane"}]}
    reference = {"name": "Plane", "subject": "plane", "version": 1}
    number = registry.register("f-value", json.dumps(flight), references=[reference])
    whole = {"type": "record", "name": "F", "fields": [{"name": "plane", "type": plane}]}
    assert documents(registry).read(avro(number, {"plane": {"year": 1998}}, whole)) == {"plane": {"year": 1998}}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (flights(1, [5])[0][:-1], "not of schema 1: it is truncated"),
        (flights(1, [5])[0] + b"xx", "not of schema 1: 2 bytes follow its end"),
        (b"\0\0\0", "does not begin with a zero byte"),
        (b'{"carrier": "UA"}', "does not begin with a zero byte"),
        (framed(9, b"x"), "schema id 9 is unknown to the registry http://127.0.0.1:"),
        ("text", "it is text, but a registry's values are bytes"),
    ],
)
def test_bad_values_say_why(registry: SchemaRegistry, value: Any, said: str) -> None:
    """A value that cannot be read is rejected with the reason, and values around it are not."""
    bolt = RegistryParseBolt.spec(fields=list(TYPES), types=TYPES, registry=registry.url)
    values = [flights(1, [1])[0], value, flights(1, [2])[0]]
    tuples = [{"origin": Origin("orders", "id", 2, place), "value": each} for place, each in enumerate(values)]
    result = run_bolt(bolt, tuples)
    assert [row.delay for row in result.emitted("bolt")] == [1, 2]
    (error,) = result.errors
    assert "orders[2]@1" in error
    assert said in error


def test_a_schema_that_makes_no_sense_is_said_once_asked(registry: SchemaRegistry) -> None:
    """What the registry has may be no schema, or of an unknown kind: values are rejected, after one request."""
    bad, strange = registry.register("bad", '{"type": "rec"}'), registry.register("xml", "<x/>", "XML")
    read = documents(registry).read
    for _ in range(2):
        with pytest.raises(ValueError, match=f"schema {bad} cannot be used: it is not an Avro schema"):
            read(framed(bad, b""))
        with pytest.raises(ValueError, match="its kind is XML; AVRO, PROTOBUF and JSON are read"):
            read(framed(strange, b""))
    assert len(registry.requests) == 2


# --- JSON ---------------------------------------------------------------------------------------------------


def test_json_with_a_schema_id_is_read(registry: SchemaRegistry) -> None:
    """JSON behind a schema's id is parsed as an object, and what is none is rejected."""
    number = registry.register("j-value", '{"type": "object"}', "JSON")
    read = documents(registry).read
    assert read(framed(number, b'{"carrier": "UA"}')) == {"carrier": "UA"}
    for content in (b"[]", b"{"):
        with pytest.raises(ValueError, match=f"not of schema {number}: "):
            read(framed(number, content))


# --- Protobuf -----------------------------------------------------------------------------------------------

PLANE = 'syntax = "proto3"; package fleet; message Plane { int32 year = 1; }'
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "fleet/plane.proto";
message Other { string x = 1; }
message Flight {
  enum Kind { UNKNOWN = 0; CARGO = 1; }
  message Seat { int32 row = 1; }
  string carrier = 1;
  optional int64 delay = 2;
  Kind kind = 3;
  repeated Seat seats = 4;
  map<string, int32> counts = 5;
  google.protobuf.Timestamp departed = 6;
  google.protobuf.Int32Value gate = 7;
  fleet.Plane plane = 8;
  bytes raw = 9;
}
"""


def proto(registry: SchemaRegistry) -> int:
    registry.register("plane", PLANE, "PROTOBUF")
    reference = {"name": "fleet/plane.proto", "subject": "plane", "version": 1}
    return registry.register("p-value", PROTO, "PROTOBUF", [reference])


def test_protobuf_messages_are_read(registry: SchemaRegistry) -> None:
    """Nested messages, enums, maps, timestamps, wrappers and imports arrive as values; what is not set is None."""
    number = proto(registry)
    read = documents(registry).read
    body = (
        b"\x0a\x02UA" + b"\x10\x05" + b"\x18\x01" + b"\x22\x02\x08\x0c" + b"\x22\x02\x08\x18"
        + b"\x2a\x05\x0a\x01k\x10\x07" + b"\x32\x02\x08\x07" + b"\x3a\x02\x08\x09" + b"\x42\x03\x08\xce\x0f"
        + b"\x4a\x01\x00"
    )  # fmt: skip
    assert read(framed(number, b"\x02\x02" + body)) == {
        "carrier": "UA", "delay": 5, "kind": "CARGO", "seats": [{"row": 12}, {"row": 24}], "counts": {"k": 7},
        "departed": datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), "gate": 9, "plane": {"year": 1998}, "raw": b"\0",
    }  # fmt: skip
    nothing = read(framed(number, b"\x02\x02"))
    assert nothing["delay"] is None
    assert nothing["plane"] is None
    assert (nothing["carrier"], nothing["seats"], nothing["counts"]) == ("", [], {})
    assert read(framed(number, b"\0\x0a\x01y")) == {"x": "y"}
    assert read(framed(number, b"\x04\x02\0\x08\x03")) == {"row": 3}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x02\x02\x0a\x05UA", "it is truncated, or belongs to another message"),
        (b"", "it is truncated"),
        (b"\x02\x0e", r"the schema has no message at \[7\]"),
    ],
)
def test_bad_protobuf_says_why(registry: SchemaRegistry, content: bytes, said: str) -> None:
    """A message that is cut short, or is none of its schema, is an error that says so."""
    with pytest.raises(ValueError, match=said):
        documents(registry).read(framed(proto(registry), content))


def test_a_protobuf_schema_that_does_not_compile_is_said(registry: SchemaRegistry) -> None:
    number = registry.register("bad", 'syntax = "proto3"; message A { Nothing x = 1; }', "PROTOBUF")
    with pytest.raises(
        ValueError, match=f'schema {number} cannot be used: protoc refuses it: .*"Nothing" is not defined'
    ):
        documents(registry).read(framed(number, b"\0"))


# --- the registry is away -----------------------------------------------------------------------------------


def test_what_is_known_goes_on_while_the_registry_is_away(registry: SchemaRegistry) -> None:
    """Values of known schemas are read, others are tried again later, and no attempt of theirs is counted."""
    later = {**FLIGHT, "name": "Later"}
    number = registry.register("later-value", json.dumps(later))
    read = documents(registry).read
    read(flights(1, [1])[0])
    registry.away = True
    with pytest.raises(UnavailableError, match=f"cannot provide schema id {number}: .* answers 503"):
        read(avro(number, {"carrier": "UA", "delay": 1}, later))
    assert read(flights(1, [2])[0])["delay"] == 2
    registry.away = False

    def delay() -> Any:  # it is asked again after a pause that grows from 0.1 s
        with suppress(UnavailableError):
            return read(avro(number, {"carrier": "UA", "delay": 3}, later))["delay"]

    assert eventually(delay) == 3


def test_one_of_several_urls_is_enough(registry: SchemaRegistry) -> None:
    """A registry with two addresses answers while one of them does."""
    both = Documents(Registry(f"http://127.0.0.1:9,{registry.url}"))
    assert both.read(flights(1, [1])[0])["delay"] == 1


def test_the_password_comes_by_reference(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user in the URL and a password by reference open the registry; without them its refusal is said."""
    registry.password = "me:hush"
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush")
    url = registry.url.replace("//", "//me@")
    bolt = RegistryParseBolt.spec(fields=list(TYPES), registry=url, registry_password="env:REGISTRY_PASSWORD")
    tuples = [{"origin": Origin("orders", "id", 2, 0), "value": flights(1, [1])[0]}]
    assert [row.delay for row in run_bolt(bolt, tuples).emitted("bolt")] == [1]
    with pytest.raises(UnavailableError, match=r"answers 401 Unauthorized.*parse\.registry_password") as caught:
        documents(registry).read(flights(1, [1])[0])
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"parse\.registry is not set"),
        ({"registry": "registry:8081"}, "is not a URL"),
        ({"registry": "http://me:hush@registry:8081"}, "holds a password"),
        ({"registry": "http://r:1", "registry_password": "hush"}, "is not a reference to a secret"),
        ({"registry": "http://r:1", "reader_schema": "nowhere.avsc"}, r"nowhere\.avsc cannot be read"),
        ({"registry": "http://r:1", "reader_schema": '{"type": "rec"}'}, "is not an Avro schema"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    """What cannot be is refused before the first record, and no password is shown."""
    with pytest.raises(ConfigError, match=said) as caught:
        run_bolt(RegistryParseBolt.spec(fields=["a"], **settings), [])
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "kind", "said"),
    [("fastavro", "AVRO", "downspout[avro]"), ("grpc_tools", "PROTOBUF", "downspout[protobuf]")],
)
def test_a_missing_library_names_its_extra(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, module: str, kind: str, said: str
) -> None:
    """Without the library of a format the error names the extra, when the first such value comes."""
    number = registry.register("x", PLANE if kind == "PROTOBUF" else FLIGHT_TEXT, kind)
    monkeypatch.setitem(sys.modules, module, None)
    importlib.invalidate_caches()
    with pytest.raises(MissingExtraError) as caught:
        documents(registry).read(framed(number, b"\0"))
    assert said in str(caught.value)
