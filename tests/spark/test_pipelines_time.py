"""Event time: watermarks, windows, and late rows."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downspout.errors import ConfigError
from downspout.spark import LateRows, parquet_stream, read_sink, stream_sink, watermark_of
from downspout.spark.event_time import event_time
from downspout.spark.query_progress import wait_until_stopped
from tests.spark.pipelines_support import SINK, START, Words, drain, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(tmp_path / "words")


def counts(frame: DataFrame, **settings: Any) -> DataFrame:
    from pyspark.sql import functions as F

    timed = event_time(frame, "at", "0 minutes", **settings)
    totals = timed.groupBy(F.window("at", "1 hour"), "word").agg(F.sum("n").alias("n"))
    return totals.select("window.start", "word", "n")


def hours(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return windows with the hour after START instead of the moment."""
    return [((start.astimezone(UTC) - START) // timedelta(hours=1), *rest) for start, *rest in rows]


@pytest.mark.sweep
def test_partitions_have_watermarks_of_their_own(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Where one partition is hours ahead, one watermark for all drops the other's rows; one for each drops none."""
    words.flush(("a", 1, 10), ("a", 2, 310), partition=0)
    words.flush(("c", 32, 15), partition=3)  # a partition that is newer than the query: shares with number 1
    words.flush(("b", 4, 20), partition=1)
    words.flush(("b", 8, 30), ("b", 16, 130), partition=1)
    late = LateRows(spark)
    found = {}
    for partitions in (None, 2):
        frame = stream_sink(spark, words.directory, origins=True, maxFilesPerTrigger=1)
        out = tmp_path / str(partitions)
        query = drain(counts(frame, partitions=partitions, checkpoint=f"{out}.checkpoint"), out)
        found[partitions] = (hours(rows_in(spark, out)), late.of(query), watermark_of(f"{out}.checkpoint"))
    late.close()
    # Spark looks for late rows by the watermark before last: the second file is just in time, the others are not.
    assert found[None] == ([(0, "a", 1), (0, "c", 32)], 3, START + timedelta(minutes=310))
    assert found[2] == ([(0, "a", 1), (0, "b", 12), (0, "c", 32)], 0, START + timedelta(minutes=130))


@pytest.mark.sweep
def test_partitions_go_on_where_they_were(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """After a restart a partition without new rows keeps its watermark: windows close as far as without the restart."""
    out = tmp_path / "out"
    late = LateRows(spark)

    def run() -> list[tuple[Any, ...]]:
        frame = stream_sink(spark, words.directory, origins=True)
        query = drain(counts(frame, partitions=2, checkpoint=f"{out}.checkpoint"), out)
        assert late.of(query) == 0
        return hours(rows_in(spark, out))

    words.flush(("a", 1, 10), ("a", 2, 500), partition=0)
    words.flush(("b", 4, 20), partition=1)
    assert run() == []
    words.flush(("b", 8, 310), partition=1)  # nothing of partition 0, which is at 500
    assert run() == [(0, "a", 1), (0, "b", 4)]
    assert watermark_of(f"{out}.checkpoint") == START + timedelta(minutes=310)
    words.flush(("a", 16, 490), ("a", 32, 700), partition=0)
    assert run() == [(0, "a", 1), (0, "b", 4)]
    words.flush(("b", 64, 610), partition=1)
    assert run() == [(0, "a", 1), (0, "b", 4), (5, "b", 8), (8, "a", 18)]
    late.close()


@pytest.mark.sweep
def test_rows_of_no_partition_are_kept(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Rows without an origin share the first partition's watermark, before a restart and after it; none is left out."""
    from pyspark.sql import functions as F

    words.flush(("a", 1, 10), ("b", 2, 20))
    state = tmp_path / "out.checkpoint"
    for number in (2, 3):
        stream = stream_sink(spark, words.directory, origins=True)
        nowhere = stream.withColumn("_partition", F.when(F.col("word") == "b", F.col("_partition")))
        drain(event_time(nowhere, "at", "1 hour", partitions=2, checkpoint=state).select("n"), tmp_path / "out")
        assert len(rows_in(spark, tmp_path / "out")) == number
        words.flush(("a", 3, 30))


@pytest.mark.sweep
def test_what_came_too_late_is_counted(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """A row behind the watermark is dropped and counted, for the run that dropped it; the batch still has it."""
    late = LateRows(spark)
    out = tmp_path / "out"

    def run() -> int:
        return late.of(drain(counts(stream_sink(spark, words.directory)), out))

    words.flush(("a", 1, 10), ("a", 2, 190))
    assert run() == 0
    words.flush(("a", 4, 20), ("b", 8, 200), ("a", 16, 310))
    assert run() == 1
    late.close()
    assert hours(rows_in(spark, out)) == [(0, "a", 1), (3, "a", 2), (3, "b", 8)]
    assert (0, "a", 5) in hours(sorted(map(tuple, counts(read_sink(spark, words.directory)).collect())))


@pytest.mark.parametrize(
    ("column", "settings", "said"),
    [
        ("when", {}, r"when is not there.*Try: one of at"),
        ("n", {}, r"n is int.*Try: one of at"),
        ("at", {"partitions": 4}, r"which partition.*Try: stream_sink\(…, origins=True\)"),
        ("at", {"partitions": 0}, r"partitions = 0"),
    ],
)
def test_event_time_refuses(spark: SparkSession, words: Words, column: str, settings: Any, said: str) -> None:
    """A column that is not a timestamp, and partitions of rows without an origin, are refused with a cure."""
    with pytest.raises(ConfigError, match=said):
        event_time(stream_sink(spark, words.directory, sink=SINK), column, "1 hour", **settings)


def test_watermarks_by_partition_need_the_checkpoint(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Without the checkpoint, and for a time that is not a column of the sink, no partition's position is known."""
    words.flush(("a", 1, 0))
    frame = stream_sink(spark, words.directory, origins=True)
    with pytest.raises(ConfigError, match="need the query's checkpoint"):
        event_time(frame, "at", "1 hour", partitions=2)
    state = tmp_path / "out.checkpoint"
    drain(counts(frame, partitions=2, checkpoint=state), tmp_path / "out")
    renamed = frame.withColumnRenamed("at", "when")
    with pytest.raises(ConfigError, match="when is not a column of the sink"):
        event_time(renamed, "when", "1 hour", partitions=2, checkpoint=state)


def test_event_time_needs_the_slowest_watermark(spark: SparkSession, words: Words) -> None:
    """Under Spark's other policy the fastest partition would close the windows: refused."""
    frame = stream_sink(spark, words.directory, sink=SINK, origins=True)
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    try:
        with pytest.raises(ConfigError, match="the fastest partition would close"):
            event_time(frame, "at", "1 hour", partitions=2, checkpoint="x")
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")


@pytest.mark.sweep
def test_ctrl_c_stops_the_queries(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """A signal stops all queries, and is then handled as before; without one they run to their end."""
    words.flush(("a", 1, 0))
    queries = [parquet_stream(stream_sink(spark, words.directory), tmp_path / name).start() for name in "ab"]
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        queries[0].processAllAvailable()
        while signal.getsignal(signal.SIGINT) == before:  # a signal before it waits would end the tests
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert wait_until_stopped(*queries)
    thread.join()
    assert [query.isActive for query in queries] == [False, False]
    assert signal.getsignal(signal.SIGINT) is before
    bounded = parquet_stream(stream_sink(spark, words.directory), tmp_path / "c").trigger(availableNow=True).start()
    assert not wait_until_stopped(bounded)
    assert len(rows_in(spark, tmp_path / "c")) == 1


def test_no_watermark_before_the_first_batch(tmp_path: Path) -> None:
    assert watermark_of(tmp_path) is None
