"""JsonParseBolt on chunks, in the engine."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamparse import Bolt, Spout, Topology

from bolts.parse import JsonParseBolt
from downspout.errors import ConfigError
from downspout.ledger import Breaker, Origin
from downspout.origins import origin_at
from downspout.parse import REJECT_FIELDS
from downspout.parse.chunk_bolt import is_read
from downspout.testing import run_bolt, run_topology
from tests.parse.support import chunk, rows_of, run_chunks
from tests.sampling import examples

TYPES = {"carrier": "string", "delay": "int16", "at": "timestamp"}
FIELDS = ["carrier", "delay=dep_delay", "at"]
PARSE = JsonParseBolt.spec(fields=FIELDS, types=TYPES)


def flight(number: int, **given: Any) -> bytes:
    at = f"2013-01-01T{number // 60 % 24:02d}:{number % 60:02d}:00Z"
    return json.dumps({"carrier": "UA", "dep_delay": number % 90 - 5, "at": at} | given).encode()


def offsets(result: Any, stream: str = "default") -> list[int]:
    """Return the offsets of the rows that the bolt emitted."""
    return [row["offset"] for row in rows_of(result.emitted("bolt", stream))]


class Source(Spout):
    """Stands in a topology where rows take its place."""

    outputs: ClassVar[list[str]] = ["origin", "key", "value"]


class Records(Bolt):
    def process(self, tup: Any) -> None:
        pass


BAD = [
    b"not JSON",
    b"[1]",
    b"\xff",
    flight(1, dep_delay=99_999),
    flight(1, dep_delay="late"),
    flight(1, at="soon"),
    b"",
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad[:20]).replace("\\", ""))
def test_a_chunk_gives_what_its_records_give(bad: bytes) -> None:
    values = [flight(number) for number in range(200)] + [None]
    values[77] = bad
    in_chunks = run_chunks(PARSE, [chunk(values)], rejects=True)
    rows = rows_of(in_chunks.emitted("bolt"))
    assert [row["offset"] for row in rows] == [number for number in range(201) if number != 77]
    assert rows[-1] == {"offset": 200, **dict.fromkeys(TYPES)}
    tuples = [{"origin": Origin("orders", "id", 2, place), "value": value} for place, value in enumerate(values)]
    records = run_bolt(PARSE, tuples)
    assert [
        {"offset": found.origin.offset, **{name: getattr(found, name) for name in TYPES}}
        for found in records.emitted("bolt")
    ] == rows
    (rejected,) = in_chunks.emitted("bolt", "rejects")
    assert tuple(rejected.schema.names) == REJECT_FIELDS
    assert origin_at(rejected.column("origin"), 0) == Origin("orders", "id", 2, 77)
    assert rejected.to_pylist()[0] | {"origin": None} == {
        "origin": None, "key": "k77", "value": bad, "error": rejected.column("error")[0].as_py(),
        "timestamp": None, "headers": None,
    }  # fmt: skip
    assert rejected.column("error")[0].as_py().removeprefix("RecordError: ").partition(" Try: ")[0] in records.errors[0]
    assert in_chunks.run.reports["bolt"] == {"filtered": 0, "rejected": 1}
    assert in_chunks.counts("bolt").failed == 0


def test_without_a_reader_of_rejects_the_culprits_alone_fail() -> None:
    """Where nobody reads rejects nothing is emitted of a chunk with one; halved, its good records all pass."""
    values = [flight(number) for number in range(100)]
    values[3] = values[70] = b"{"
    result = run_chunks(PARSE, [chunk(values)])
    (source,) = result.components["source"]
    assert sorted(offsets(result)) == sorted(source.acked) == [place for place in range(100) if place not in (3, 70)]
    assert sorted(source.given_up) == [3, 70]
    assert result.emitted("bolt", "rejects") == []
    assert "orders[2]@3: bolt: value is not as expected: " in result.errors[0]
    assert "(and 1 other of this chunk)" in result.errors[0]


def test_without_types_a_chunk_is_taken_apart() -> None:
    """A bolt without types gets a chunk's records one by one, and gives what it gives for records."""
    values = [flight(number) for number in range(5)]
    result = run_chunks(JsonParseBolt.spec(fields=FIELDS), [chunk(values)])
    assert [(found.origin.offset, found.delay) for found in result.emitted("bolt")] == [
        (number, number - 5) for number in range(5)
    ]


@pytest.mark.parametrize("values", [[], [None, None]])
@pytest.mark.parametrize("required", [True, False], ids=["required", "filter"])
def test_an_empty_chunk_passes(values: list[None], required: bool) -> None:
    """A chunk without records, or of tombstones alone of which there is no row, is acked, and nothing is emitted."""
    types = TYPES | ({"carrier": "string!"} if required else {})
    bolt = JsonParseBolt.spec(fields=FIELDS, types=types, on_null="row" if required else "filter")
    result = run_chunks(bolt, [chunk(values), chunk([flight(1)], first=9)], rejects=True)
    assert offsets(result) == [9]
    assert result.run.reports["bolt"]["filtered"] == len(values)


@pytest.mark.parametrize("count", [3, 200])
def test_null_values_are_rows_in_their_places(count: int) -> None:
    """A chunk's tombstones are rows of nulls between the others, each with its own origin and what is carried."""
    values = [None if number % 3 == 0 else flight(number) for number in range(count)]
    result = run_chunks(JsonParseBolt.spec(fields=FIELDS, types=TYPES, carry=["key"]), [chunk(values)])
    rows = rows_of(result.emitted("bolt"))
    assert [(row["offset"], row["key"], row["delay"]) for row in rows] == [
        (number, f"k{number}", None if number % 3 == 0 else number % 90 - 5) for number in range(count)
    ]
    assert result.emitted("bolt")[0].schema.names == ["origin", "key", "carrier", "delay", "at"]


def test_texts_are_parsed_as_bytes_are() -> None:
    """Values that the spout has decoded give the same rows as bytes."""
    values = [flight(number, carrier="Ü") for number in range(60)]
    texts = [value.decode() for value in values]
    found = [run_chunks(PARSE, [chunk(values)]), run_chunks(PARSE, [chunk(texts, kind=pa.string())])]
    assert rows_of(found[0].emitted("bolt")) == rows_of(found[1].emitted("bolt"))


def test_a_type_that_changes_midway_stops_at_the_breaker() -> None:
    """When half of the last 1,000 rows were rejected the bolt fails what follows: the spout's breaker sees that."""
    good = [chunk([flight(number) for number in range(500)], first=500 * part) for part in range(2)]
    bad = [chunk([flight(1, dep_delay=True)] * 250, first=1_000 + 250 * part) for part in range(3)]
    result = run_chunks(PARSE, [*good, *bad], rejects=True)
    (source,) = result.components["source"]
    assert offsets(result) == list(range(1_000))
    assert len(offsets(result, "rejects")) == 250
    assert sorted(source.given_up) == list(range(1_250, 1_750))


def test_no_breaker_rejects_all() -> None:
    """With kafka.breaker_ratio = 0 any number of rows is rejected."""
    result = run_chunks(PARSE, [chunk([b"x"] * 300)], rejects=True, config={"kafka.breaker_ratio": 0})
    assert offsets(result, "rejects") == list(range(300))


def test_a_large_record_among_small_ones() -> None:
    """A record of 10 MiB, good or bad, has the outcome that it has alone, and so have its neighbours."""
    values = [flight(number) for number in range(100)]
    values[10] = flight(10, padding="x" * (10 * 1024 * 1024))
    values[20] = b'{"carrier": "' + b"x" * (10 * 1024 * 1024)
    result = run_chunks(PARSE, [chunk(values)], rejects=True)
    assert offsets(result) == [place for place in range(100) if place != 20]
    assert offsets(result, "rejects") == [20]


class Words(Topology):
    """Records: a spout, the bolt, and a reader of its rejects."""

    source = Source.spec()
    parse = JsonParseBolt.spec(inputs=[source], fields=FIELDS)
    reader = Records.spec(inputs=[parse["rejects"]])


def test_records_are_rejected_on_the_stream_too() -> None:
    """In record mode a bad record leaves on rejects where that is read, and its tuple is acked."""
    here = Origin("orders", "id", 2, 0)
    result = run_topology(
        Words, spouts={"source": [[here, "k", "{"], [here._replace(offset=1), "k", '{"carrier": "UA"}']]}
    )
    (rejected,) = result.emitted("parse", "rejects")
    assert (rejected.origin, rejected.key, rejected.value) == (here, "k", "{")
    assert rejected.error.startswith("RecordError: orders[2]@0: parse: value is not as expected: ")
    assert result.counts("parse").failed == 0
    assert [found.carrier for found in result.emitted("parse")] == ["UA"]


class OneByOne(JsonParseBolt):
    """Is given its records one by one, because it has a ``process`` of its own."""

    def process(self, tup: Any) -> None:
        super().process(tup)


@given(st.randoms(use_true_random=False), st.integers(1, 9), st.integers(0, 3))
@settings(max_examples=examples(40), deadline=None)
def test_records_that_come_together_have_the_outcome_that_each_has_alone(random: Any, good: int, required: int) -> None:
    """Rows, rejects and failures are those of one record after the other, also where the breaker opens midway."""
    values = random.choices([b'{"carrier": "UA"}', b"{", b"[]", None], [good, 1, 1, 1], k=400)
    types = {"types": {"carrier": "string!" if required == 1 else "string"}} if required else {}

    def outcome(bolt: Any) -> list[Any]:
        class Mixed(Topology):
            source = Source.spec()
            parse = bolt.spec(
                inputs=[source], fields=["carrier"], on_null="filter" if required == 2 else "row", **types
            )
            reader = Records.spec(inputs=[parse["rejects"]])

        rows = [[Origin("orders", "id", 0, place), None, value] for place, value in enumerate(values)]
        with mock.patch.object(Breaker, "WINDOW", 100):
            found = run_topology(Mixed, spouts={"source": rows})
        counts = found.counts("parse")
        kept = [tuple(row) for stream in ("default", "rejects") for row in found.emitted("parse", stream)]
        return [kept, counts.acked, counts.failed, found.counts("reader").acked]

    assert outcome(JsonParseBolt) == outcome(OneByOne)


def test_is_read_needs_a_reader() -> None:
    """A stream is read where a component is named for it, and not where the context is silent."""
    assert is_read({"stream->target->grouping": {"rejects": {"dead": {"type": "SHUFFLE"}}}}, "rejects")
    assert not is_read({"stream->target->grouping": {"default": {"dead": {"type": "SHUFFLE"}}}}, "rejects")
    assert not is_read({}, "rejects")


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"carrier": "string"}, r"parse\.types names no type for delay, at"),
        (TYPES | {"dep_delay": "int16"}, r"parse\.types: dep_delay is not a field"),
        (TYPES | {"at": "datetime"}, r"parse\.types: at:datetime: no type datetime"),
        (["carrier"], r"parse\.types: 'carrier' is not name:type"),
    ],
)
def test_types_are_checked_when_the_topology_is_built(types: Any, said: str) -> None:
    """A type too few, too many or unknown is an error that names it, before anything runs."""
    with pytest.raises(ConfigError, match=said):
        JsonParseBolt.spec(fields=FIELDS, types=types)


@pytest.mark.parametrize("types", [None, {"user_id": "int64"}])
def test_a_key_with_a_dot_is_not_taken_for_a_missing_path(types: dict[str, str] | None) -> None:
    """A path that leads nowhere and is a key as a whole rejects the record, and names the quoted form."""
    parse = JsonParseBolt.spec(fields=["user_id=user.id"], types=types)
    values = [b'{"user": {"id": 1}}', b'{"user.id": 3}', b'{"user": null, "user.id": 4}', b"{}"]
    tuples = [{"origin": Origin("orders", "id", 2, place), "value": value} for place, value in enumerate(values)]
    records = run_bolt(parse, tuples)
    assert sorted((row.origin.offset, row.user_id) for row in records.emitted("bolt")) == [(0, 1), (2, None), (3, None)]
    chunks = run_chunks(parse, [chunk(values)])
    (source,) = chunks.components["source"]
    assert (sorted(source.acked), source.given_up) == ([0, 2, 3], [1])
    for result in (records, chunks):
        assert 'parse.fields needs "user.id", in quotes' in result.errors[0]
