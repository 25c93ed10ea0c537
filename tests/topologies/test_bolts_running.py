"""The bolts between spout and sink, run by the engine: what they emit, ack and fail."""

from __future__ import annotations

import pytest
from streamparse import Topology

from bolts.enrich import FLIGHT_FIELDS, EnrichBolt
from bolts.parse import JsonParseBolt
from bolts.split import SplitBolt
from downspout.errors import TopologyError
from downspout.ledger.origin import Origin
from downspout.testing.harness import run_bolt, run_topology
from spouts.kafka import KafkaSpout
from tests.topology.spout_driver import Kafka
from topologies.flights_data import TOPIC, Flights, load_flights, publish

HERE = Origin("flights", "id", 2, 17)


def test_parse_emits_the_fields_with_the_origin() -> None:
    """A record's tuple carries its origin unchanged, then the fields, renamed where that was asked for."""
    bolt = JsonParseBolt.spec(fields=["carrier", "from_airport=origin"])
    result = run_bolt(bolt, [{"origin": HERE, "value": '{"origin": "EWR", "carrier": "UA"}'}])
    (found,) = result.emitted("bolt")
    assert found._asdict() == {"origin": HERE, "carrier": "UA", "from_airport": "EWR"}


def test_parse_passes_over_tombstones() -> None:
    """A null value is acked and counted, and nothing is emitted for it."""
    result = run_bolt(JsonParseBolt.spec(fields=["a"]), [{"origin": HERE, "value": None}])
    assert result.emitted("bolt") == []
    assert result.counts("bolt").acked == 1
    assert result.run.reports["bolt"] == {"filtered": 1}


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
    """A text without words is acked and counted."""
    result = run_bolt(SplitBolt, [{"origin": HERE, "value": text}])
    assert (result.emitted("bolt"), result.counts("bolt").acked) == ([], 1)
    assert result.run.reports["bolt"] == {"filtered": 1}


def test_enrich_refuses_what_is_no_flight() -> None:
    """Wired behind a stream with other fields, the bolt ends the run and says which fields it needs."""
    with pytest.raises(TopologyError, match=r"has the fields origin, carrier\. Try: origin, year, month"):
        run_bolt(EnrichBolt, [{"origin": HERE, "carrier": "UA"}])


class Lookup(Topology):
    """Spout, parse, enrich."""

    spout = KafkaSpout.spec(topics=[TOPIC], fields=["origin", "value"])
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=[
            {"from_airport": "from_airport=origin", "to_airport": "to_airport=dest"}.get(f, f) for f in FLIGHT_FIELDS
        ],
    )
    enrich = EnrichBolt.spec(inputs=[parse])


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A cluster with 300 flights."""
    publish(bare_kafka, Flights(load_flights(300)))
    return bare_kafka


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
