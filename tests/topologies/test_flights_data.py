"""The flights as records: the same every time, on Kafka's own partitions, true to the package."""

from __future__ import annotations

import orjson
import pandas as pd
import pytest
from kafka.partitioner.default import DefaultPartitioner

from demos import flights_data
from demos.flights_data import PARTITIONS, Flights, load_flights, partition_of

CARRIERS = ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return load_flights()


@pytest.fixture(scope="module")
def flights(frame: pd.DataFrame) -> Flights:
    return Flights(frame.head(3_000))


class _Metadata:
    """What the client's partitioner asks of its cluster metadata."""

    def topics(self) -> set[str]:
        return {"flights"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(PARTITIONS))

    available_partitions_for_topic = partitions_for_topic


@pytest.mark.parametrize("carrier", CARRIERS)
def test_partition_is_the_clients(carrier: str) -> None:
    """Every carrier goes to the partition that kafka-python's own partitioner gives its key."""
    key = carrier.encode()
    assert partition_of(key) == DefaultPartitioner().partition("flights", carrier, key, None, None, _Metadata())


@pytest.mark.parametrize(("key", "hashed"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)])
def test_partition_is_javas(key: bytes, hashed: int) -> None:
    """Keys go where Kafka's Java client puts them, by the hashes that its own tests name."""
    assert partition_of(key, 1_000) == (hashed & 0x7FFFFFFF) % 1_000


@pytest.mark.sweep
@pytest.mark.slow
def test_everything_is_there(frame: pd.DataFrame) -> None:
    """The order of publishing loses and repeats no flight of the package."""
    package = flights_data.read_table("flights")
    columns = list(package.columns)
    pd.testing.assert_frame_equal(
        frame.sort_values(columns, ignore_index=True), package.sort_values(columns, ignore_index=True)
    )
    assert len(frame) == flights_data.TOTAL


def test_event_time_never_goes_back(flights: Flights) -> None:
    """Flights are published in the order of their scheduled departures."""
    moments = [flights.record(row).timestamp_ms for row in range(len(flights))]
    assert moments == sorted(moments)
    assert pd.Timestamp(moments[0], unit="ms", tz="UTC") == pd.Timestamp("2013-01-01T10:15:00Z")


def test_same_bytes_every_time(frame: pd.DataFrame, flights: Flights) -> None:
    """A slice yields the very records that the whole begins with, so any publish can continue any other."""
    again = Flights(frame.head(3_500))
    assert [again.record(row) for row in range(3_000)] == [flights.record(row) for row in range(3_000)]
    for ours, longer in zip(flights.rows, again.rows, strict=True):
        assert longer[: len(ours)] == ours


def test_value_is_the_packages_row(frame: pd.DataFrame, flights: Flights) -> None:
    """A record's JSON holds all 19 columns, whole numbers as such, and null where the package has nothing."""
    cancelled = int(frame["dep_delay"].head(3_000).isna().to_numpy().argmax())
    for row in (0, cancelled):
        value = orjson.loads(flights.record(row).value)
        wanted = frame.iloc[row].to_dict()
        assert list(value) == list(frame.columns)
        assert {k: v for k, v in value.items() if v is not None} == {k: v for k, v in wanted.items() if not pd.isna(v)}
        assert not any(isinstance(item, float) for item in value.values())
    assert orjson.loads(flights.record(cancelled).value)["dep_delay"] is None


def test_reference_counts_cancelled_flights_apart(frame: pd.DataFrame) -> None:
    """The reference's tables count every flight once, and the package's 8,255 cancelled ones in no delay."""
    weather = flights_data.read_table("weather")
    for table in (
        flights_data.reference_routes(frame),
        flights_data.reference_hours(frame),
        flights_data.reference_weather(frame, weather),
    ):
        assert table["flights"].sum() == flights_data.TOTAL
        assert table["cancelled"].sum() == 8_255
        assert table["dep_delay_sum"].sum() == frame["dep_delay"].sum()
