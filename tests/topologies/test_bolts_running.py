"""The bolts between spout and sink, run by the engine: emits, acks and fails."""

from __future__ import annotations

from typing import Any

import pytest
from streamparse import Topology

from bolts.parse import CsvParseBolt, JsonParseBolt
from bolts.split import SplitBolt
from demos.flights_data import TOPIC, Flights, load_flights, publish
from downspout.errors import ConfigError, TopologyError
from downspout.ledger import Origin
from downspout.testing import run_bolt, run_topology
from spouts.kafka import KafkaSpout
from tests.spout.spout_driver import Kafka
from topologies.flight_enrich import FLIGHT_FIELDS, FlightEnrichBolt

HERE = Origin("flights", "id", 2, 17)


def test_parse_emits_the_fields_with_the_origin() -> None:
    """A record's tuple carries its origin unchanged, then the fields, renamed where that was asked for."""
    bolt = JsonParseBolt.spec(fields=["carrier", "from_airport=origin"])
    result = run_bolt(bolt, [{"origin": HERE, "value": '{"origin": "EWR", "carrier": "UA"}'}])
    (found,) = result.emitted("bolt")
    assert found._asdict() == {"origin": HERE, "carrier": "UA", "from_airport": "EWR"}


DELETE = {"origin": HERE, "key": "k", "value": None}


@pytest.mark.parametrize("cls", [JsonParseBolt, CsvParseBolt])
@pytest.mark.parametrize("types", [None, {"a": "int64", "b": "string"}], ids=["untyped", "typed"])
def test_a_null_value_is_a_row_of_nulls_with_what_is_carried(cls: Any, types: Any) -> None:
    """A tombstone keeps its origin and its key, in its place among the others, and nothing fails or is filtered."""
    rows = [DELETE | {"origin": HERE._replace(offset=number)} for number in range(5)]
    for number in (1, 3):
        rows[number]["value"] = '{"a": 1, "b": "x"}' if cls is JsonParseBolt else "1,x"
    result = run_bolt(cls.spec(fields=["a", "b"], carry=["key"], **({"types": types} if types else {})), rows)
    one = 1 if types or cls is JsonParseBolt else "1"
    assert result.emitted("bolt") == [
        (HERE._replace(offset=number), "k", *((one, "x") if number in (1, 3) else (None, None))) for number in range(5)
    ]
    assert result.run.reports["bolt"] == {"filtered": 0}


@pytest.mark.parametrize("cls", [JsonParseBolt, CsvParseBolt])
def test_null_values_are_filtered_where_asked_for(cls: Any) -> None:
    """With on_null=filter a null value is acked and counted, and nothing is emitted for it."""
    result = run_bolt(cls.spec(fields=["a"], on_null="filter"), [DELETE, DELETE])
    assert (result.emitted("bolt"), result.counts("bolt").acked) == ([], 2)
    assert result.run.reports["bolt"] == {"filtered": 2}


def test_null_values_are_filtered_with_a_warning_where_a_type_is_required(caplog: pytest.LogCaptureFixture) -> None:
    """There is no row of nulls where a column may not be null: one warning names the first record and the cure."""
    bolt = JsonParseBolt.spec(fields=["a"], types={"a": "int64!"})
    result = run_bolt(bolt, [DELETE, DELETE, DELETE | {"value": '{"a": 1}'}])
    assert [found.a for found in result.emitted("bolt")] == [1]
    assert (result.counts("bolt").failed, result.run.reports["bolt"]) == (0, {"filtered": 2})
    (said,) = [record.getMessage() for record in caplog.records if "null values" in record.getMessage()]
    assert said.startswith("flights[2]@17: bolt: ")
    assert "parse.on_null=filter" in said


@pytest.mark.parametrize("fields", [["key"], ["a", "key"]])
def test_what_is_carried_has_a_name_of_its_own(fields: list[str]) -> None:
    """A carried field that is called like a parsed one is refused, and the error says how to rename the latter."""
    with pytest.raises(ConfigError, match=r"parse\.carry: the tuple has a field 'key' already\. Try: `key_parsed=key`"):
        JsonParseBolt.spec(fields=fields, carry=["key"])


def test_what_is_carried_must_be_there() -> None:
    """A carried field that the input lacks is found before the first tuple."""
    with pytest.raises(TopologyError, match=r'bolt: .* lacks \'key\', .* Try: fields=\["origin", "value", "key"\]'):
        run_bolt(JsonParseBolt.spec(fields=["a"], carry=["key"]), [{"origin": HERE, "value": "{}"}])


@pytest.mark.parametrize("value", ["not JSON", "[1, 2]", b"\xff"])
def test_parse_fails_a_bad_record_by_its_coordinates(value: str | bytes) -> None:
    """A bad record among good ones fails with its place in Kafka, and the good ones pass."""
    good = {"origin": HERE._replace(offset=18), "value": '{"a": 1}'}
    result = run_bolt(JsonParseBolt.spec(fields=["a"]), [{"origin": HERE, "value": value}, good])
    assert [found.a for found in result.emitted("bolt")] == [1]
    assert {found.origin for found in result.failed("bolt")} == {HERE}
    assert "flights[2]@17: bolt: value is not as expected" in result.errors[0]


def test_split_gives_each_word_its_own_origin() -> None:
    """Words that are equal differ in their path, and the same line split again gives the same paths."""
    line = {"origin": list(HERE), "value": "to be or not to be"}  # a list, as it comes through Storm's pipe
    first, second = (run_bolt(SplitBolt, [line]).emitted("bolt") for _ in range(2))
    assert [found.word for found in first] == ["to", "be", "or", "not", "to", "be"]
    assert [found.origin.path for found in first] == [f"bolt.{index}" for index in range(6)]
    assert first == second


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_split_counts_texts_without_words(text: str | None) -> None:
    result = run_bolt(SplitBolt, [{"origin": HERE, "value": text}])
    assert (result.emitted("bolt"), result.counts("bolt").acked) == ([], 1)
    assert result.run.reports["bolt"] == {"filtered": 1}


def test_enrich_refuses_what_is_no_flight() -> None:
    """MultilangComponent behind a stream with other fields, the bolt ends the run and says which fields it needs."""
    with pytest.raises(TopologyError, match=r"has the fields origin, carrier\. Try: origin, year, month"):
        run_bolt(FlightEnrichBolt, [{"origin": HERE, "carrier": "UA"}])


class Lookup(Topology):
    spout = KafkaSpout.spec(topics=[TOPIC], fields=["origin", "value"])
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=[
            {"from_airport": "from_airport=origin", "to_airport": "to_airport=dest"}.get(f, f) for f in FLIGHT_FIELDS
        ],
    )
    enrich = FlightEnrichBolt.spec(inputs=[parse])


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    publish(bare_kafka, Flights(load_flights(300)))
    return bare_kafka


@pytest.mark.sweep
@pytest.mark.slow
def test_flights_go_through(kafka: Kafka) -> None:
    """Every flight comes out once, with its own origin, its codes as published and their meaning beside them."""
    result = run_topology(Lookup, config={"kafka.bootstrap": kafka.bootstrap})
    found = {(row.origin.partition, row.origin.offset): row for row in result.emitted("enrich")}
    frame, flights = load_flights(300), Flights(load_flights(300))
    assert len(result.emitted("enrich")) == len(found) == 300
    for partition, rows in enumerate(flights.rows):
        for offset, row in enumerate(rows):
            flight, wanted = found[partition, offset], frame.iloc[row]
            assert (flight.carrier, flight.from_airport, flight.to_airport, flight.flight) == (
                wanted["carrier"], wanted["origin"], wanted["dest"], wanted["flight"],
            )  # fmt: skip
            assert flight.route == f"{wanted['origin']}-{wanted['dest']}"
            assert flight.airline
            assert flight.origin.topic_id == kafka.topic_id(TOPIC)
