"""Streaming queries over the real broker, on real PySpark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from downspout.kafka import TopicPartition
from downspout.spark import ends_of, lag_of
from tests.spark.source_support import Bench, report_of, texts

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.mark.sweep
def test_available_now_continues_where_it_ended(bench: Bench) -> None:
    """A bounded run takes what is there, in batches of the limit; the next one goes on from the checkpoint."""
    bench.create(2)
    bench.send(range(100))
    bench.send(range(100, 150), partition=1)
    progress = bench.run(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    assert [batch["numInputRows"] for batch in progress] == [60, 60, 30]
    assert sum(batch["numInputRows"] for batch in bench.run(startingOffsets="earliest")) == 0
    bench.send(range(150, 200), partition=1)
    bench.run(startingOffsets="earliest")
    assert bench.written() == texts(0, 200)


def test_progress_tells_the_lag(bench: Bench) -> None:
    """Reports hold the connector's JSON of offsets, with the ends of the logs, from which the lag follows."""
    bench.create(1)
    bench.send(range(10))
    first, last = bench.run(startingOffsets="earliest", maxOffsetsPerTrigger="6")
    where = TopicPartition(bench.topic, 0)
    consumer = bench.cluster.consumer(group=None)
    topic_id = consumer.topic_id(bench.topic)
    consumer.close()
    assert first["sources"][0]["endOffset"] == {bench.topic: {"0": 6}, f"{bench.topic}:{topic_id}": {}}
    assert (lag_of(first), lag_of(last)) == ({where: 4}, {where: 0})
    assert ends_of(last) == {where: 10}


def test_a_running_query_finds_new_records_partitions_and_topics(bench: Bench) -> None:
    bench.create(1)
    bench.send(["before"])
    query = bench.start(bench.stream(subscribePattern=f"{bench.topic}.*"), processingTime="200 milliseconds")
    try:
        _wait_for_batches(bench, query, 1)
        bench.send(range(3))
        query.processAllAvailable()
        assert bench.written() == texts(0, 3)
        admin = bench.admin()
        admin.create_partitions({bench.topic: 2})
        admin.close()
        bench.create(1, topic=f"{bench.topic}-new")
        bench.send(["partition"], partition=1)
        bench.send(["topic"], topic=f"{bench.topic}-new")
        query.processAllAvailable()
        assert sorted(bench.written()) == sorted([*texts(0, 3), "partition", "topic"])
    finally:
        query.stop()


def _wait_for_batches(bench: Bench, query: object, batches: int) -> None:
    """Wait until so many batches are finished: their commit files are there."""
    folder = bench.path / "out.checkpoint" / "commits"
    while not (folder / str(batches - 1)).exists():
        assert query.isActive, query.exception()
        time.sleep(0.05)


def test_once_takes_one_batch(bench: Bench) -> None:
    bench.create(1)
    bench.send(range(10))
    query = bench.start(bench.stream(startingOffsets="earliest", maxOffsetsPerTrigger="3"), once=True)
    query.awaitTermination()
    assert [batch.numInputRows for batch in query.recentProgress] == [10]
    assert bench.written() == texts(0, 10)


@pytest.mark.sweep
def test_transactions_leave_no_rest(bench: Bench) -> None:
    """A stream over transactions reads the committed ones, and the markers behind them end no batch early."""
    bench.create(1)
    bench.transaction([0, 1], commit=True)
    bench.transaction([2], commit=False)
    bench.run(startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert bench.written() == ["0", "1"]
    bench.send([3])
    (last,) = bench.run(startingOffsets="earliest")
    assert (last["numInputRows"], bench.written()) == (1, ["0", "1", "3"])
    # Cut into tasks of one offset, some have nothing but a marker, or an aborted record.
    bench.run("cut", startingOffsets="earliest", minPartitions="10")
    assert bench.written("cut") == bench.values(minPartitions="10") == ["0", "1", "3"]


def test_a_crash_before_the_first_commit_loses_nothing(bench: Bench) -> None:
    """A query from "latest" whose first batch was written down but not finished reads on from where it began."""
    bench.create(1)
    bench.send(["before"])
    bench.run()
    for name in ("0", ".0.crc"):
        (bench.path / "out.checkpoint" / "commits" / name).unlink()
    bench.send(range(5))
    bench.run()
    assert bench.written() == texts(0, 5)


@pytest.mark.sweep
def test_a_checkpoint_of_the_connector_is_understood(bench: Bench) -> None:
    """Offsets as the JVM connector writes them, in any order and without spaces, are where a query goes on."""
    bench.create(2)
    bench.send(range(4))
    bench.send(range(4, 8), partition=1)
    bench.run(startingOffsets="earliest")
    log = bench.path / "out.checkpoint" / "offsets" / "0"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:-1], f'{{"{bench.topic}":{{"1":4,"0":4}}}}']))
    (log.parent / ".0.crc").unlink()
    bench.send(range(8, 10), partition=1)
    bench.run(startingOffsets="earliest")
    assert bench.written() == texts(0, 10)


KILLED = """
import sys, time
from downspout.spark import register
from downspout.spark.session import spark_session
bootstrap, topic, path = sys.argv[1:]
def held(batches):
    for batch in batches:
        while "9999" in batch.column("value").to_pylist():
            time.sleep(0.1)
        yield batch
with spark_session("killed") as spark:
    register(spark)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("downspout").options(**options, maxOffsetsPerTrigger="200").load()
    columns = frame.selectExpr("string(value) AS value", "topic", "partition", "offset")
    query = columns.mapInArrow(held, columns.schema).writeStream.format("parquet").option("path", path + "/out")
    query.option("checkpointLocation", path + "/out.checkpoint").start().awaitTermination()
"""
"""It never ends the last batch: however quick it is, and slow the one who kills it, it has not done all by then."""


@pytest.mark.sweep
def test_kill_minus_nine_changes_no_row(bench: Bench) -> None:
    """The driver, its JVM and its workers killed in the middle of a batch, a restart ends in exactly the same rows."""
    bench.create(2)
    for partition in (0, 1):
        bench.send(range(partition * 5000, (partition + 1) * 5000), partition=partition)
    command = [sys.executable, "-c", KILLED, bench.cluster.bootstrap, bench.topic, str(bench.path)]
    driver = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        log = bench.path / "out.checkpoint"
        while not (log / "commits" / "3").exists() or _last(log / "offsets") == _last(log / "commits"):
            assert driver.poll() is None, driver.communicate()[1].decode()
            time.sleep(0.002)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    before = len(bench.written())
    bench.run(startingOffsets="earliest")
    assert 0 < before < 10_000
    assert bench.written() == texts(0, 10_000)


def _last(folder: Path) -> int:
    return max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


@pytest.mark.sweep
def test_records_that_retention_took(bench: Bench) -> None:
    """Offsets that are gone fail the query; with failOnDataLoss=false the rest is read."""
    bench.create(1)
    bench.send(range(10))
    bench.run(startingOffsets="earliest")
    bench.send(range(10, 30))
    bench.cluster.delete_records(bench.topic, 0, 20)
    with pytest.raises(StreamingQueryException, match=r"offsets 10 to 19 are gone from Kafka"):
        bench.run(startingOffsets="earliest")
    bench.run(startingOffsets="earliest", failOnDataLoss="false")
    assert bench.written() == [*texts(0, 10), *texts(20, 30)]


@pytest.mark.sweep
def test_a_topic_that_was_created_again(bench: Bench) -> None:
    """A topic that is gone, or another and longer one by now, fails a stopped query; or is read as a new one."""
    bench.create(1)
    bench.send(range(10))
    bench.run(startingOffsets="earliest")
    bench.cluster.delete_topic(bench.topic)
    with pytest.raises(StreamingQueryException, match=r"@10 was read up to this offset, but the partition is gone"):
        bench.run(startingOffsets="earliest")
    bench.create(1)
    bench.send(range(10, 30))
    with pytest.raises(StreamingQueryException, match=r"@10: the topic was deleted and created again"):
        bench.run(startingOffsets="earliest")
    bench.run(startingOffsets="earliest", failOnDataLoss="false")
    assert sorted(bench.written()) == sorted(texts(0, 30))


@pytest.mark.sweep
def test_another_querys_checkpoint_is_refused(bench: Bench) -> None:
    bench.create(1)
    bench.create(1, topic=f"{bench.topic}-b")
    bench.send([0])
    bench.run(startingOffsets="earliest")
    with pytest.raises(StreamingQueryException, match=r"which is not read \(subscribe = .*-b\)"):
        bench.run(subscribe=f"{bench.topic}-b", startingOffsets="earliest")


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_triggers_without_batches_are_refused(bench: Bench, trigger: dict[str, str]) -> None:
    """Continuous and real-time queries are refused by name before they start."""
    bench.create(1)
    writer = bench.stream().writeStream.format("console").outputMode("update").trigger(**trigger)
    with pytest.raises(PySparkException) as caught:
        writer.option("checkpointLocation", str(bench.path / "checkpoint")).start().awaitTermination(60)
    said = str(caught.value)
    assert "does not support continuous processing" in said or "REAL_TIME_MODE" in said


def test_a_missing_topic_is_named(bench: Bench) -> None:
    """A stream over a topic that does not exist fails at its start and says which."""
    with pytest.raises(StreamingQueryException, match=f"{bench.topic} does not exist at"):
        bench.run()


def test_reports_are_plain(bench: Bench) -> None:
    """A query without records reports no lag and fails nothing."""
    bench.create(1)
    query = bench.start(bench.stream())
    query.awaitTermination()
    (only,) = [report_of(progress) for progress in query.recentProgress]
    assert (only["numInputRows"], lag_of(only)) == (0, {TopicPartition(bench.topic, 0): 0})
