"""Publishing: from any state that an interruption can leave, the topic comes to hold the flights, each once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demos.flights_data import PARTITIONS, TOPIC, TOPIC_CONFIG, Flights, Published, load_flights, publish
from downspout.errors import BrokerError, DataLossError
from downspout.testing import FakeKafka
from tests.spout.spout_driver import Kafka

COUNT = 1_200


@pytest.fixture(scope="module")
def flights() -> Flights:
    return Flights(load_flights(COUNT))


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    return bare_kafka


def assert_whole(kafka: Kafka, flights: Flights) -> None:
    """Every partition holds its flights, in order, from offset 0 on."""
    for partition in range(PARTITIONS):
        wanted = [flights.record(row) for row in flights.rows[partition]]
        found = kafka.records(TOPIC, partition)
        assert [record.offset for record in found] == list(range(len(wanted)))
        assert [(record.key, record.value, record.timestamp) for record in found] == [
            (flight.key, flight.value, flight.timestamp_ms) for flight in wanted
        ]


def test_publish_makes_the_topic(kafka: Kafka, flights: Flights) -> None:
    """An empty cluster gets the topic with all flights; told how far it is, the progress ends at the total."""
    told: list[tuple[int, int]] = []
    assert publish(kafka, flights, progress=lambda done, total: told.append((done, total))) == Published(0, COUNT)
    assert_whole(kafka, flights)
    assert told == [(1_000, COUNT), (COUNT, COUNT)]


def test_publish_again_sends_nothing(kafka: Kafka, flights: Flights) -> None:
    publish(kafka, flights)
    assert publish(kafka, flights) == Published(COUNT, 0)
    assert_whole(kafka, flights)


@pytest.mark.slow
@pytest.mark.fake_only("25 examples, each with a cluster of its own")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.tuples(*[st.floats(0, 1)] * PARTITIONS))
def test_publish_continues_each_partition(flights: Flights, kept: tuple[float, ...]) -> None:
    """However far each partition got before the interruption, publishing again completes it and doubles nothing."""
    with FakeKafka("ragged") as kafka:
        kafka.create_topic(TOPIC, PARTITIONS)
        ends = [int(share * len(rows)) for share, rows in zip(kept, flights.rows, strict=True)]
        for partition, end in enumerate(ends):
            for row in flights.rows[partition][:end]:
                record = flights.record(row)
                kafka.produce(TOPIC, record.value, record.key, partition=partition, timestamp_ms=record.timestamp_ms)
        assert publish(kafka, flights) == Published(sum(ends), COUNT - sum(ends))
        assert_whole(kafka, flights)


def test_publish_survives_a_lost_answer(kafka: Kafka, flights: Flights) -> None:
    """Where the broker took everything and only the answer was lost, the next run has nothing to send."""
    kafka.faults.fail_next("flush", ConnectionError("gone"), applied=True)
    with pytest.raises(ConnectionError):
        publish(kafka, flights)
    assert publish(kafka, flights) == Published(COUNT, 0)
    assert_whole(kafka, flights)


def test_publish_refuses_a_foreign_record(kafka: Kafka, flights: Flights) -> None:
    """A topic into which somebody else wrote is left alone, and the message names the place."""
    kafka.create_topic(TOPIC, PARTITIONS)
    kafka.produce(TOPIC, b"{}", b"UA", partition=1)
    with pytest.raises(BrokerError, match=r"flights\[1\]@0 is not the flight.*FRESH=1"):
        publish(kafka, flights)
    assert len(kafka.records(TOPIC)) == 1


def test_publish_refuses_too_many(kafka: Kafka, flights: Flights) -> None:
    """A topic that holds more than the flights is left alone."""
    publish(kafka, flights)
    with pytest.raises(BrokerError, match=r"holds \d+ records, there are \d+ flights"):
        publish(kafka, Flights(load_flights(COUNT // 2)))


def test_publish_refuses_other_partitions(kafka: Kafka, flights: Flights) -> None:
    """A topic of the same name with another number of partitions is left alone."""
    kafka.create_topic(TOPIC, 3)
    with pytest.raises(BrokerError, match="has 3 partitions, the flights need 4"):
        publish(kafka, flights)


def test_publish_refuses_a_topic_that_lost_its_start(kafka: Kafka, flights: Flights) -> None:
    """A topic whose first records were deleted is not taken for whole."""
    publish(kafka, flights)
    kafka.delete_records(TOPIC, 2, 5)
    with pytest.raises(DataLossError, match=r"flights\[2\]: records before 5 were deleted"):
        publish(kafka, flights)


@pytest.mark.fake_only("looks at what the fake was told; a real broker keeps it in sight in tests/spark/test_demo.py")
def test_flights_of_2013_are_kept_for_ever(kafka: Kafka, flights: Flights) -> None:
    """The topic is made without retention by time, which would delete records that old at once."""
    publish(kafka, flights)
    assert TOPIC_CONFIG["retention.ms"] == "-1"
    assert kafka.topic(TOPIC).config == TOPIC_CONFIG
