"""The examples' native Spark versions: of the same records of a real broker the same tables, to the last bit."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from demos.flights_data import PARTITIONS, Flights, load_flights, publish
from downspout.broker import EmbeddedKafka
from downspout.compare import Sink, compare
from downspout.compare.outputs import columns_wrong
from downspout.engine import RunResult, resolve
from downspout.engine.load import load
from downspout.engine.settings import reads
from downspout.kafka import KafkaCluster
from downspout.run.runner import run
from downspout.settings import parse_scope
from downspout.spark import register
from topologies import flight_delays_spark, flight_topics_spark, word_count_spark
from topologies.flight_topics import DELAYS, REJECTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

GOOD = {
    "year": 2013, "month": 1, "day": 1, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
    "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR", "dest": "IAH", "dep_time": 517,
    "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830, "sched_arr_time": 819, "arr_delay": 11, "air_time": 227,
    "distance": 1400,
}  # fmt: skip

NO_OBJECTS = [
    b"", b" ", b"{", b"{}}", b"{} x", b"{}{}", b"{},{}", b"[]", b"[{}]", b"5", b"null", b"true", b'"text"', b"{'a': 1}",
    b'{"month": NaN}', b'{"month": 01}', b'{"month": 1,}', b'{"month": 1 /* one */}', b'{"carrier": "\xff"}',
    b'{"carrier": "\t"}', b'{"dest": "\\ud800"}', b'{"carrier": "\\ud800"}',
    b'\xef\xbb\xbf{"month": 1}', b'\x0b{"month": 1}', b"\x00",
]  # fmt: skip
"""What is no JSON object, for one reason or another."""

ODD_VALUES: list[tuple[str, Any]] = [
    ("month", 200), ("month", 128), ("month", -128), ("month", -129), ("dep_delay", 32_767), ("dep_delay", 32_768),
    ("dep_delay", -32_768), ("dep_delay", -32_769), ("dep_delay", 2.0), ("dep_delay", -0.0), ("dep_delay", 2.5),
    ("dep_delay", 1e2), ("dep_delay", 1e300), ("dep_delay", 2**80), ("dep_delay", "2"), ("dep_delay", ""),
    ("dep_delay", True), ("dep_delay", [2]), ("dep_delay", {"x": 2}), ("air_time", "long"), ("air_time", 3.5),
    ("hour", 24), ("hour", 5.0), ("hour", 300), ("hour", "5"), ("minute", 75), ("minute", -5), ("minute", 100),
    ("minute", 200), ("minute", 15.0), ("minute", "x"), ("carrier", 5), ("carrier", 1.5), ("carrier", False),
    ("carrier", {"x": "UA"}), ("tailnum", ["N14228"]), ("origin", 5),
    ("carrier", "null"), ("carrier", "5"), ("carrier", "XX"), ("carrier", ""),
    ("carrier", "Ü\u0000\u2028"), ("tailnum", "NA"), ("tailnum", "N725MQ"), ("dest", ""),
    ("dest", "MVY"), ("origin", "nowhere"), ("time_hour", "soon"), ("time_hour", ""), ("time_hour", 20130101),
    ("time_hour", "2013-01-01 10:00:00Z"), ("time_hour", "2013-1-1T10:00:00Z"), ("time_hour", "2013-02-30T10:00:00Z"),
    ("more", {"a": [1, {"b": None}]}), ("flight", 40_000),
]  # fmt: skip


def odd_records() -> list[bytes | None]:
    """Return records of all kinds: no objects, one odd value, null or nothing in each place, and some that are fine."""
    made: list[bytes | None] = [None, *NO_OBJECTS, b"{}", b' {"month": 1}\n', b'{"month": 1, "month": 2}']
    made += [json.dumps({**GOOD, key: value}).encode() for key, value in ODD_VALUES]
    made += [json.dumps({**GOOD, key: None}).encode() for key in GOOD]
    made += [json.dumps({k: v for k, v in GOOD.items() if k != key}, ensure_ascii=False).encode() for key in GOOD]
    return [*made, *[json.dumps(GOOD).encode()] * 3]


class Scene:
    """A topic, what the local engine makes of it, and what a native version does."""

    def __init__(self, spark: SparkSession, cluster: KafkaCluster, topic: str, path: Path) -> None:
        self.spark, self.cluster, self.topic, self.path = spark, cluster, topic, path
        self.source = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}

    def send(self, values: Sequence[bytes | None], partitions: int) -> None:
        self.cluster.ensure_topic(self.topic, partitions)
        producer = self.cluster.producer()
        for number, value in enumerate(values):
            producer.send(self.topic, key=None, value=value, partition=number % partitions)
        producer.flush()
        producer.close()

    def run(self, target: str) -> tuple[dict[str, pa.Table], RunResult]:
        """Run a topology on the local engine; return the finished tables, by sink."""
        graph = load(target)
        sinks = {
            name: Sink.of(component, parse_scope(resolve(graph).components[name].values, "parquet"))
            for name, component in graph.components.items()
            if reads(component, "parquet")
        }
        options = {"kafka.bootstrap": self.cluster.bootstrap, "kafka.topics": self.topic, "kafka.group": self.topic}
        result = run(
            graph,
            overrides=[
                f"spout:kafka.topics={self.topic}",
                *(f"{name}:parquet.directory={self.path / name}" for name in sinks),
            ],
            options={**options, "run.until": "end", "parquet.flush_rows": 700, "kafka.breaker_ratio": 0,
                     "kafka.retries_max": 1},
        )  # fmt: skip
        self.sinks = sinks
        return {name: sink.read(self.path / name) for name, sink in sinks.items()}, result

    def records(self) -> DataFrame:
        return self.spark.read.format("downspout").options(**self.source).load()

    def assert_equal(self, tables: dict[str, pa.Table], name: str, found: pa.Table) -> None:
        schema = self.sinks[name].schema
        assert columns_wrong(found.schema, schema) == []
        comparison = compare({"local": tables[name], "native": found.select(schema.names).cast(schema)})
        assert comparison.equal, "\n".join(map(repr, comparison.differences[:6]))


@pytest.fixture
def scene(spark: SparkSession, kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> Iterator[Scene]:
    register(spark)
    cluster = KafkaCluster(kafka_broker.bootstrap)
    yield Scene(spark, cluster, topic_name, tmp_path)
    cluster.delete_topic(topic_name)


@pytest.mark.sweep
def test_real_flights_are_equal(scene: Scene) -> None:
    """Both tables of a slice of the real flights of all seasons equal the local engine's, types included."""
    year = load_flights()
    picked = year[year["day"].isin([3, 9])].iloc[::6].reset_index(drop=True)
    publish(scene.cluster, Flights(picked), scene.topic)
    tables, _ = scene.run("topologies.flight_delays:FlightDelays")
    assert tables["flights"].num_rows == len(picked) > 3_000
    for name, frame in flight_delays_spark.native(scene.spark, {"spout": scene.records()}).items():
        scene.assert_equal(tables, name, frame.toArrow())


@pytest.mark.sweep
def test_odd_records_are_equal(scene: Scene) -> None:
    """What the topology dead-letters or passes over is in no native table, and what it takes is, sink by sink."""
    records = odd_records()
    scene.send(records, PARTITIONS)
    tables, result = scene.run("topologies.flight_delays:FlightDelays")
    letters = result.reports["spout"]["dead_lettered"]
    assert len(NO_OBJECTS) < letters < len(records) - 50
    assert tables["flights"].num_rows == len(records) - letters - 1  # the tombstone
    for name, frame in flight_delays_spark.native(scene.spark, {"spout": scene.records()}).items():
        scene.assert_equal(tables, name, frame.toArrow())


@pytest.mark.sweep
def test_stream_equals_batch_and_goes_on(scene: Scene) -> None:
    """The native version as a stream, in two goes with records in between, writes what the local engine writes."""
    flights = Flights(load_flights(600))
    publish(scene.cluster, Flights(load_flights(300)), scene.topic)
    output = scene.path / "stream"
    for _ in range(2):
        queries = flight_delays_spark.stream(scene.spark, scene.source, output, availableNow=True)
        for query in queries:
            query.awaitTermination()
            assert query.exception() is None
        publish(scene.cluster, flights, scene.topic)
    tables, _ = scene.run("topologies.flight_delays:FlightDelays")
    assert tables["flights"].num_rows == 600
    for name in tables:
        found = scene.spark.read.parquet(str(output / name))
        if name == "flights":  # the name of a folder has no type
            found = found.withColumn("month", found["month"].cast("tinyint"))
        scene.assert_equal(tables, name, found.toArrow())


@pytest.mark.sweep
def test_a_batch_is_written_as_it_is_planned(scene: Scene) -> None:
    """The batch job writes both tables, and replaces them when it runs again."""
    publish(scene.cluster, Flights(load_flights(200)), scene.topic)
    for _ in range(2):
        flight_delays_spark.batch(scene.spark, scene.source, scene.path)
        assert scene.spark.read.parquet(str(scene.path / "flights")).count() == 200


def test_words_are_equal(scene: Scene) -> None:
    """The counts of lines with all of Unicode's blanks, no words, no text and no UTF-8 equal the local engine's."""
    chance = random.Random(5)
    blanks = [chr(code) for code in range(0x3001) if chr(code).isspace()] + ["\u200b", "\ufeff", "\u180e"]
    words = ["to", "be", "Ünïcode", "a\u0301", "\U0001f600", "x" * 300, "\x00", "a'b\"c"]
    lines = [
        "".join(chance.choice(words) + chance.choice(blanks) * chance.randrange(1, 3) for _ in range(8)).encode()
        for _ in range(300)
    ]
    scene.send([*lines, None, b"", b"  \t", b"\xff\xfe", b"ends in \xc3", b" before", "\u3000".encode()], 2)
    tables, result = scene.run("topologies.word_count:WordCount")
    assert result.reports["spout"]["dead_lettered"] == 2
    assert tables["word_counts"].num_rows > len(words)
    found = word_count_spark.native(scene.spark, {"spout": scene.records()})
    scene.assert_equal(tables, "word_counts", found["word_counts"].toArrow())


@pytest.mark.sweep
def test_flights_to_topics_are_equal(scene: Scene) -> None:
    """Each topic holds the same keys, messages and headers that the topology writes, of odd flights too."""
    # Left out: fields of other types, which the topology takes as they are.
    typed = [(k, v) for k, v in ODD_VALUES if k not in flight_topics_spark.FIELDS and (k != "origin" or v == "nowhere")]
    odd = [{**GOOD, key: value} for key, value in [*typed, ("carrier", 'Ü\u0000\u2028"'), ("arr_delay", -5)]]
    odd += [{**GOOD, key: None} for key in GOOD] + [{k: v for k, v in GOOD.items() if k != key} for key in GOOD]
    scene.send([None, *NO_OBJECTS, b"{}", *(json.dumps(flight).encode() for flight in odd)], 3)
    topics = (DELAYS, REJECTS)
    written = []
    for way in ("topology", "native"):
        for topic in topics:
            scene.cluster.ensure_topic(topic, 2)
        try:
            if way == "topology":
                scene.run("topologies.flight_topics:FlightTopics")
            else:
                flight_topics_spark.main(["--bootstrap", scene.cluster.bootstrap, "--topic", scene.topic])
            frame = scene.spark.read.format("downspout").options(
                **{**scene.source, "subscribe": ",".join(topics)}, includeHeaders="true"
            )
            written.append(
                Counter(
                    (
                        row.topic, row.key and bytes(row.key), bytes(row.value),
                        tuple((each.key, bytes(each.value)) for each in row.headers if each.key == "flight"),
                    )
                    for row in frame.load().collect()
                )
            )  # fmt: skip
        finally:
            for topic in topics:
                scene.cluster.delete_topic(topic)
    assert written[0] == written[1]
    assert {row[0] for row in written[0]} == set(topics)
    assert set(written[0].values()) == {1}


@pytest.mark.sweep
def test_the_jobs_run_by_themselves(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Each native version is a program: it reads the topic that it is told, and prints or writes what it found."""
    scene.send([b"to be or not", b"to be"], 1)
    word_count_spark.main(["--bootstrap", scene.cluster.bootstrap, "--topic", scene.topic, "--top", "2"])
    assert capsys.readouterr().out.split() == ["2", "be", "2", "to"]
    arguments = ["--bootstrap", scene.cluster.bootstrap, "--topic", scene.topic, "--output", str(scene.path / "jobs")]
    flight_delays_spark.main(arguments)
    written = scene.spark.read.schema("route string").parquet(str(scene.path / "jobs" / "batch" / "route_delays"))
    assert written.count() == 0
