"""Batch queries over the real broker, on real PySpark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, TopicPartition
from downspout.spark import SCHEMA, SCHEMA_WITH_HEADERS
from tests.spark.source_support import Bench, texts

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def test_columns_and_rows(bench: Bench) -> None:
    """A record's key, value, place, moment and headers arrive; columns and types are the connector's."""
    bench.create(1)
    bench.send(["a"], headers=[("h", b"1"), ("h", b"")], timestamp_ms=1_357_000_000_123)
    bench.send(["b"], timestamp_ms=0)
    frame = bench.read(includeHeaders="true")
    assert to_arrow_schema(frame.schema, timezone="UTC") == SCHEMA_WITH_HEADERS
    assert to_arrow_schema(bench.read().schema, timezone="UTC") == SCHEMA
    moment = "date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS moment"
    first, second = frame.orderBy("offset").selectExpr("*", moment).collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (
        b"a", b"a", bench.topic, 0, 0,
    )  # fmt: skip
    assert (first.moment, first.timestampType) == ("2013-01-01 00:26:40.123", 0)
    assert [(header.key, bytes(header.value)) for header in first.headers] == [("h", b"1"), ("h", b"")]
    assert (second.moment, second.headers) == ("1970-01-01 00:00:00.000", None)


def test_nulls_and_the_brokers_time(bench: Bench) -> None:
    """A tombstone's value and a missing key are null, and the broker's own stamps are told apart."""
    bench.create(1, message_timestamp_type="LogAppendTime")
    producer = bench.cluster.producer()
    producer.send(bench.topic, key=None, value=b"v", partition=0)
    producer.send(bench.topic, key=b"k", value=None, partition=0)
    producer.flush()
    producer.close()
    first, second = bench.read().orderBy("offset").collect()
    assert (first.key, bytes(first.value), first.timestampType) == (None, b"v", 1)
    assert (bytes(second.key), second.value, second.timestampType) == (b"k", None, 1)


def test_selections_and_positions(bench: Bench) -> None:
    """Topics, patterns and partitions are selected, from and to offsets and moments."""
    other = f"{bench.topic}-b"
    bench.create(2)
    bench.create(1, topic=other)
    for number in range(10):
        bench.send([number], timestamp_ms=1000 + number)
    bench.send([10], partition=1, timestamp_ms=2000)
    bench.send(["x"], topic=other, timestamp_ms=3000)
    name = bench.topic
    assert bench.values() == texts(0, 11)
    assert bench.values(subscribe=f"{name}, {other}") == [*texts(0, 11), "x"]
    assert bench.values(subscribePattern=f"{name}.*") == [*texts(0, 11), "x"]
    assert bench.values(subscribePattern=f"{name}-.*") == ["x"]
    assert bench.values(assign=f'{{"{name}": [1]}}') == ["10"]
    assert bench.values(
        startingOffsets=f'{{"{name}": {{"0": 3, "1": -2}}}}', endingOffsets=f'{{"{name}": {{"0": 5, "1": -1}}}}'
    ) == ["3", "4", "10"]
    assert bench.values(startingTimestamp="1008", endingTimestamp="1500") == ["8", "9"]
    assert bench.values(startingOffsetsByTimestamp=f'{{"{name}": {{"0": 1009, "1": 0}}}}') == ["9", "10"]
    assert bench.values(startingTimestamp="1500", startingOffsetsByTimestampStrategy="latest") == ["10"]


@pytest.mark.sweep
def test_min_partitions_makes_more_tasks(bench: Bench) -> None:
    """minPartitions and maxRecordsPerPartition cut the work, and every row still comes once."""
    bench.create(1)
    bench.send(range(100))
    assert bench.read().rdd.getNumPartitions() == 1
    for options in ({"minPartitions": "5"}, {"maxRecordsPerPartition": "20"}):
        frame = bench.read(**options)
        assert frame.rdd.getNumPartitions() == 5
        assert frame.count() == frame.select("offset").distinct().count() == 100


def test_transactions(bench: Bench) -> None:
    """Committed records are read and aborted ones not; markers at the end hold nothing up."""
    bench.create(1)
    bench.send([0])
    bench.transaction([1, 2], commit=True)
    bench.transaction([3, 4], commit=False)
    assert bench.values() == ["0", "1", "2"]
    assert bench.values(kafka__isolation__level="read_uncommitted") == texts(0, 5)
    middle = f'{{"{bench.topic}": {{"0": 2}}}}'
    assert bench.values(startingOffsets=middle) == ["2"]


@pytest.mark.sweep
def test_compaction_gaps(bench: Bench, tmp_path: Path) -> None:
    """What compaction took away holds no range up, wherever ranges are cut."""
    with EmbeddedKafka(tmp_path / "compacting", properties={"log.cleaner.backoff.ms": "100"}) as broker:
        cluster = KafkaCluster(broker.bootstrap)
        compacting = Bench(bench.spark, cluster, bench.topic, tmp_path)
        compacting.create(
            1,
            cleanup_policy="compact",
            segment_ms="100",
            min_cleanable_dirty_ratio="0.001",
            max_compaction_lag_ms="100",
        )
        began_ms = int(time.time() * 1000) - 60_000
        for number in range(6):  # by these times each is older than a segment may be when the next one comes
            compacting.send([number % 2] * 50, timestamp_ms=began_ms + 1000 * number)
        consumer = cluster.consumer(group=None)
        partition = TopicPartition(bench.topic, 0)
        consumer.assign([partition])
        deadline = time.monotonic() + 120
        left: list[int] = []
        # The last records of both keys, and the segment that is still written to: then nothing is left to compact, and
        # who reads after us finds the same.
        while len(left) != 2 + 50:
            assert time.monotonic() < deadline, f"the broker did not compact: {len(left)} are left"
            consumer.seek(partition, 0)
            left = []
            while consumer.position(partition) < 300:
                left += [record.offset for record in consumer.poll(500, 1000).get(partition, ())]
        consumer.close()
        frame = compacting.read(minPartitions="7")
        assert [row.offset for row in frame.orderBy("offset").collect()] == left


def test_large_records_and_many(bench: Bench) -> None:
    """Records larger than a fetch, and more records than one poll brings, all arrive."""
    bench.create(1)
    bench.send(["x" * 3_000_000, "y"])
    bench.send(range(25_000))
    frame = bench.read()
    assert frame.count() == 25_002
    assert frame.selectExpr("max(length(value))").first()[0] == 3_000_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOfset": "latest"}, "startingofset is not an option of the source. Try: startingOffsets"),
        ({"subscribe": "not-there"}, "not-there does not exist at"),
        ({"kafka__fetch__max__byts": "1"}, "Try: kafka.fetch.max.bytes"),
        ({"kafka__security__protocol": "SASL_PLAINTEXT"}, "sasl_mechanism is not set, and SASL_PLAINTEXT needs it"),
        (
            {"kafka__security__protocol": "SSL", "fetchOffset__numRetries": "0"},
            "speaks PLAINTEXT, but kafka.client.sec",
        ),
    ],
)
def test_errors_are_clear(bench: Bench, options: dict[str, str], said: str) -> None:
    bench.create()
    with pytest.raises(PySparkException) as caught:
        bench.read(**options).count()
    assert said in str(caught.value)


def test_an_unreachable_broker_is_named(bench: Bench) -> None:
    """Where nobody answers, the error says so, with the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: nobody else can take the port
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PySparkException, match=f"No Kafka at {nobody}: .*connection refused"):
            bench.read(kafka__bootstrap__servers=nobody, fetchOffset__numRetries="0").count()


def test_columns_cannot_be_chosen(bench: Bench) -> None:
    """A schema of the user's is refused, as by the connector."""
    reader = bench.spark.read.format("downspout").schema("value STRING").option("subscribe", bench.topic)
    with pytest.raises(PySparkException, match="the columns are fixed: key, value, topic"):
        reader.option("kafka.bootstrap.servers", bench.cluster.bootstrap).load().count()


LOCAL_CLUSTER = """
import os, sys
from downspout.spark import register
from downspout.spark.session import spark_session
bootstrap, topic, path = sys.argv[1:]
config = {"spark.master": "local-cluster[2,1,1024]", "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
with spark_session("cluster", config=config) as spark:
    register(spark)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    frame = spark.read.format("downspout").options(**options, minPartitions="4").load()
    print(frame.count(), frame.select("partition", "offset").distinct().count())
    stream = spark.readStream.format("downspout").options(**options, startingOffsets="earliest")
    query = stream.option("maxOffsetsPerTrigger", "600").load().writeStream.format("parquet")
    query = query.option("path", path + "/out").option("checkpointLocation", path + "/checkpoint")
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    print(spark.read.parquet(path + "/out").count(), len(query.recentProgress))
"""


@pytest.mark.sweep
def test_on_a_cluster(bench: Bench, tmp_path: Path) -> None:
    """With executors in processes of their own, batch and streaming queries read every record once."""
    bench.create(2)
    bench.send(range(500))
    bench.send(range(500), partition=1)
    command = [sys.executable, "-c", LOCAL_CLUSTER, bench.cluster.bootstrap, bench.topic, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}  # executors run this checkout
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800, env=environment)
    assert (done.stdout, done.returncode) == ("1000 1000\n1000 2\n", 0), done.stderr
