"""Untrusted registries, schemas and bytes: work must not depend on numbers in a record, and any server may answer."""

from __future__ import annotations

import io
import json
import socketserver
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from downspout.errors import UnavailableError
from downspout.parse import Documents
from downspout.parse import registry_client as module
from downspout.parse.avro import DEPTH_MAX
from downspout.parse.registry_client import Registry, UnknownSchemaError
from downspout.testing import SchemaRegistry
from tests.parse.registry_support import framed


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        yield made


def number(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def record(*fields: tuple[str, Any], name: str = "T") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields]}


def read(registry: SchemaRegistry, schema: Any, content: bytes, **references: Any) -> dict[str, Any]:
    """Register an Avro schema and read a record of it."""
    for subject, text in references.items():
        registry.register(subject, json.dumps(text))
    named = [{"name": subject, "subject": subject, "version": 1} for subject in references]
    made = registry.register(f"s-{uuid.uuid4()}", json.dumps(schema), references=named)
    return Documents(Registry(registry.url)).read(framed(made, content))


# --- Avro: schemas ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["proto/common/e.proto", "what?", "x#y", "50%", ":.team:env", "a b", "ü"])
def test_a_subject_may_have_any_character(registry: SchemaRegistry, subject: str) -> None:
    registry.register(subject, json.dumps(record(("who", "string"), name="Who")))
    references = [{"name": "Who", "subject": subject, "version": 1}]
    made = registry.register("t", json.dumps(record(("w", "Who"))), references=references)
    assert Documents(Registry(registry.url)).read(framed(made, b"\x02x")) == {"w": {"who": "x"}}


def test_a_schema_may_be_a_union_or_the_name_of_another(registry: SchemaRegistry) -> None:
    """The types of an event, each in a subject of its own: Confluent's way to put several into one topic."""
    types = {"User": record(("name", "string"), name="User"), "Award": record(("title", "string"), name="Award")}
    assert read(registry, ["User", "Award"], b"\x02\x06Top", **types) == {"title": "Top"}
    assert read(registry, ["null", "User"], b"\x02\x06Ann", User=types["User"]) == {"name": "Ann"}
    assert read(registry, "User", b"\x06Bob", User=types["User"]) == {"name": "Bob"}
    with pytest.raises(ValueError, match="an Avro record is needed"):
        read(registry, "string", b"\x06Bob")


def test_logical_types_in_a_reference_are_read_as_in_the_schema(registry: SchemaRegistry) -> None:
    """A uuid is its text and a time of the day a text, wherever they are declared."""
    inner = record(
        ("id", {"type": "string", "logicalType": "uuid"}),
        ("at", {"type": "int", "logicalType": "time-millis"}),
        ("exact", {"type": "long", "logicalType": "time-micros"}),
        name="Meta",
    )
    content = b"\x06abc" + number(3_723_004) + number(1)
    expected = {"id": "abc", "at": "01:02:03.004000", "exact": "00:00:00.000001"}
    assert read(registry, record(("m", "Meta")), content, Meta=inner) == {"m": expected}
    assert read(registry, record(("m", {"type": "array", "items": "Meta"})), b"\x02" + content + b"\0", Meta=inner) == {
        "m": [expected]
    }


@pytest.mark.parametrize(
    "about",
    [
        {"logicalType": "decimal", "precision": 2, "scale": 5},
        {"logicalType": "decimal", "precision": 0},
        {"logicalType": "decimal", "precision": "two"},
        {"logicalType": "decimal"},
        {"logicalType": "decimal", "precision": 4, "scale": -1},
        {"logicalType": "uuid"},
        {"logicalType": "something-of-ours"},
        {"logicalType": 7},
    ],
    ids=str,
)
def test_a_logical_type_that_makes_no_sense_is_ignored(registry: SchemaRegistry, about: dict[str, Any]) -> None:
    """Avro's specification says so: the value is that of the type below."""
    schema = record(("v", {"type": "bytes", **about}), ("w", "string"))
    assert read(registry, schema, b"\x02\x01\x02a") == {"v": b"\x01", "w": "a"}


def test_a_fixed_that_is_too_short_for_its_precision_is_no_decimal(registry: SchemaRegistry) -> None:
    """Two bytes hold four digits."""
    fixed = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "scale": 1}
    assert read(registry, record(("v", {**fixed, "precision": 5})), b"\x01\x02") == {"v": b"\x01\x02"}
    assert read(registry, record(("v", {**fixed, "precision": 4})), b"\x01\x02") == {"v": Decimal("25.8")}


def test_a_decimal_keeps_digits_beyond_its_precision(registry: SchemaRegistry) -> None:
    """A producer that does not check its own precision is told by the column, and not rounded on the way."""
    schema = record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}))
    digits = (123_456_789).to_bytes(4, "big")
    assert read(registry, schema, number(4) + digits) == {"v": Decimal("1234567.89")}


# --- Avro: bytes --------------------------------------------------------------------------------------------


def test_a_number_of_items_without_bytes_makes_no_list(registry: SchemaRegistry) -> None:
    """Sixteen bytes that announce 2^40 nulls, also as empty records, and in many arrays: refused before one is made."""
    few = record(("v", {"type": "array", "items": "null"}))
    assert read(registry, few, number(3) + b"\0") == {"v": [None] * 3}
    for items in ("null", record(name="E"), {"type": "fixed", "name": "F", "size": 0}, record(("a", record(name="E")))):
        with pytest.raises(ValueError, match="more than 1,000,000 items that take no bytes"):
            read(registry, record(("v", {"type": "array", "items": items}), name="R"), number(2**40) + b"\0")
    many = record(("v", {"type": "array", "items": {"type": "array", "items": "null"}}))
    with pytest.raises(ValueError, match="items that take no bytes"):
        read(registry, many, number(50) + (number(100_000) + b"\0") * 50 + b"\0")


def test_a_decimal_of_very_many_bytes_is_refused_before_it_is_a_number(registry: SchemaRegistry) -> None:
    """To make a number of it would take minutes, also where nobody wants that field."""
    schema = record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 10}), ("w", "string"))
    with pytest.raises(ValueError, match="a decimal of 900,000 bytes"):
        read(registry, schema, number(900_000) + b"\x7f" * 900_000 + b"\x02a")


LIST = record(("next", ["null", "T"]))


def test_a_record_inside_of_itself_has_a_depth(registry: SchemaRegistry) -> None:
    """Deeper ones are refused: fastavro would fill its stack and end the process."""
    found = read(registry, LIST, b"\x02" * 100 + b"\0")
    for _ in range(100):
        found = found["next"]
    assert found == {"next": None}
    for links in (DEPTH_MAX, 300_000):
        with pytest.raises(ValueError, match=f"nests more than {DEPTH_MAX} values"):
            read(registry, LIST, b"\x02" * links + b"\0")


@pytest.mark.parametrize("leaf", [[("a", "int")], []], ids=["values", "empty"])
def test_a_schema_whose_types_name_types_twice_is_no_work(
    registry: SchemaRegistry, leaf: list[tuple[str, Any]]
) -> None:
    """A few hundred bytes of schema have a million values, if each type has the next one twice."""
    schema: dict[str, Any] = record(*leaf, name="R0")
    for level in range(1, 40):
        schema = record(("a", schema), ("b", schema["name"]), name=f"R{level}")
    with pytest.raises(ValueError, match=r"truncated|values that take no bytes"):
        read(registry, record(("x", schema), ("y", {"type": "array", "items": "int"})), b"\x01")


def test_the_walk_reads_what_fastavro_writes(registry: SchemaRegistry) -> None:
    """Each type, in a record that contains itself: nothing good is refused."""
    schema = record(
        ("all", {"type": "map", "values": ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("f", {"type": "fixed", "name": "F", "size": 3}),
        ("more", {"type": "array", "items": "T"}),
    )
    some = {"a": None, "b": True, "c": -5, "d": 2**60, "e": 1.5, "g": "ü", "h": b"\0\1"}
    leaf = {"all": some, "e": "B", "f": b"abc", "more": []}
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), {**leaf, "more": [leaf, leaf]})
    assert len(read(registry, schema, content.getvalue())["more"]) == 2
    for cut in range(len(content.getvalue())):
        with pytest.raises(ValueError, match=r"truncated|union|Error"):
            read(registry, schema, content.getvalue()[:cut])


# --- Protobuf -----------------------------------------------------------------------------------------------


def test_an_enum_may_have_a_number_of_a_later_schema(registry: SchemaRegistry) -> None:
    """In proto3 it is a right value: its digits stand for it, and the record is read."""
    text = (
        'syntax = "proto3";\nenum Colour { RED = 0; BLUE = 1; }\nmessage T { Colour c = 1; repeated Colour all = 2; }'
    )
    made = registry.register("t", text, "PROTOBUF")
    found = Documents(Registry(registry.url)).read(framed(made, bytes([0, 8, 7, 0x12, 2, 1, 9])))
    assert found == {"c": "7", "all": ["BLUE", "9"]}


@pytest.mark.parametrize("name", ["google/type/date.proto", "confluent/meta.proto", "confluent/type/decimal.proto"])
def test_what_registries_know_by_themselves_is_known(registry: SchemaRegistry, name: str) -> None:
    """A schema may import these without a reference; one that it brings itself counts more."""
    made = registry.register("t", f'syntax = "proto3";\nimport "{name}";\nmessage T {{ int64 a = 1; }}', "PROTOBUF")
    assert Documents(Registry(registry.url)).read(framed(made, bytes([0, 8, 5]))) == {"a": 5}


@pytest.mark.parametrize(
    "index",
    [b"\xff" * 100_000, b"\xfe" * 4 + b"\x0f", b"\x02\x01", b"\x02\x04", b"\x04\0\0", b"\x01", b"\x80" * 6 + b"\x01"],
    ids=["without end", "very deep", "below zero", "outside", "inside of none", "count below zero", "too long"],
)  # fmt: skip
def test_an_index_of_messages_lies_in_the_schema(registry: SchemaRegistry, index: bytes) -> None:
    """It is read only as far as it can be one, and never counted from the end."""
    made = registry.register(
        "t", 'syntax = "proto3";\nmessage A { int64 a = 1; }\nmessage B { int64 b = 1; }', "PROTOBUF"
    )
    with pytest.raises(ValueError, match=r"no message at|messages deep|truncated"):
        Documents(Registry(registry.url)).read(framed(made, index + bytes([8, 5])))


def test_messages_that_name_messages_twice_are_no_work(registry: SchemaRegistry) -> None:
    """Such a schema is read one record at a time."""
    levels = "\n".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(40))
    made = registry.register("t", f'syntax = "proto3";\n{levels}\nmessage M40 {{ int64 a = 1; }}', "PROTOBUF")
    documents = Documents(Registry(registry.url))
    assert documents.in_columns(made) is None
    assert documents.read(framed(made, b"\0")) == {"a": None, "b": None}


def test_a_compiler_that_hangs_is_ended(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema counts as one that cannot be used."""
    monkeypatch.setattr("downspout.parse.protobuf.COMPILE_S_MAX", 0.001)
    made = registry.register("t", 'syntax = "proto3";\nmessage T { int64 a = 1; }', "PROTOBUF")
    with pytest.raises(ValueError, match=r"protoc takes more than 0\.001 s"):
        Documents(Registry(registry.url)).read(framed(made, b"\0"))


# --- what answers is no registry ----------------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[Any], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Serve an answer to each request; give the URL, and the requests."""
    asked: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            lines = iter(self.rfile.readline, b"\r\n")
            asked.append(next(lines))
            list(lines)
            answer(self.wfile)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def with_body(body: bytes, status: str = "200 OK", more: str = "") -> Callable[[Any], None]:
    return lambda out: out.write(
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n".encode() + body
    )


def endless(out: Any) -> None:
    out.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    try:
        while True:
            out.write(b" " * 65_536)
    except OSError:  # the reader has had enough
        pass


ANSWERS = {
    "a page": with_body(b"<html>sign in</html>"),
    "nothing": with_body(b""),
    "cut off": lambda out: out.write(b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"schema": "'),
    "another shape": with_body(b'{"schema": 7}'),
    "a list": with_body(b"[]"),
    "references of another shape": with_body(b'{"schema": "{}", "references": [{"name": "a"}]}'),
    "a proxy's 404": with_body(b"<html>not found</html>", "404 Not Found"),
    "another service's 404": with_body(b'{"error_code": 404, "message": "HTTP 404 Not Found"}', "404 Not Found"),
    "no right": with_body(b"{}", "403 Forbidden"),
    "busy": with_body(b"{}", "503 Service Unavailable"),
    "round and round": with_body(b"", "302 Found", "Location: /again\r\n"),
    "without end": endless,
    "no HTTP": lambda out: out.write(b"SSH-2.0-OpenSSH_9.2\r\n"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_what_is_no_registry_says_nothing_of_a_record(answer: Callable[[Any], None]) -> None:
    """It is waited for, with its address, as for a registry that is away; and is not asked once for each record."""
    with answering(answer) as (url, asked):
        documents = Documents(Registry(url))
        for schema in (1, 2, 1):
            with pytest.raises(UnavailableError, match=url):
                documents.read(framed(schema, b"\0"))
        assert len({line for line in asked if b"again" not in line}) == 1


def test_an_answer_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def trickle(out: Any) -> None:
        out.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not go_on.wait(0.01):
            out.write(b" ")

    with answering(trickle) as (url, _):
        registry = Registry(url)  # each read may take as long as ever
        monkeypatch.setattr(module, "REQUEST_S", 0.2)
        try:
            with pytest.raises(UnavailableError, match="did not end within"):
                registry.schema(1)
        finally:
            go_on.set()


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_registry_says_itself_that_it_has_no_such_schema(code: int) -> None:
    """By Confluent's error codes, which others use as well: that is the record's fault, and not waited for."""
    answer = with_body(json.dumps({"error_code": code}).encode(), "404 Not Found")
    with answering(answer) as (url, _), pytest.raises(UnknownSchemaError):
        Registry(url).schema(1)


def test_a_chain_of_references_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry in which each schema refers to a new one is not followed for ever."""
    numbers = iter(range(10**6))

    def answer(out: Any) -> None:
        name = f"n{next(numbers)}"
        found = {"schema": "{}", "references": [{"name": name, "subject": name, "version": 1}]}
        with_body(json.dumps(found).encode())(out)

    monkeypatch.setattr(module, "REFERENCES_MAX", 20)
    with answering(answer) as (url, asked):
        with pytest.raises(UnknownSchemaError, match="refers to more than 20 others"):
            Registry(url).schema(1)
        assert len(asked) == 21


def test_schemas_that_refer_to_one_another_end(registry: SchemaRegistry) -> None:
    """A circle, which a registry should not take: each is fetched once."""
    for name, other in (("A", "B"), ("B", "A")):
        registry.register(
            name, json.dumps(record(name=name)), references=[{"name": other, "subject": other, "version": 1}]
        )
    assert len(Registry(registry.url).schema(1).references) == 2
