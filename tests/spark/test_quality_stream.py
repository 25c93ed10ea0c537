"""Checks of data quality on streams."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from downspout.errors import ConfigError
from downspout.spark import (
    Check,
    Report,
    StreamQuality,
    check,
    freshness,
    in_range,
    not_null,
    parquet_stream,
    read_sink,
    references,
    row_count,
    stream_sink,
    unique,
)
from downspout.spark.quality_stream import gate
from tests.spark.pipelines_support import Words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def words(tmp_path: Path) -> Words:
    """Three flushes, of which the second and the third have a row that is wrong."""
    words = Words(tmp_path / "words")
    words.flush(("a", 1, 0), ("b", 2, 1))
    words.flush(("a", 3, 2), ("c", -4, 3))
    words.flush(("b", -5, 4), partition=1)
    return words


def checks(spark: SparkSession) -> list[Check]:
    """Return one check of each kind that can be observed."""
    known = spark.createDataFrame([("a",), ("b",)], "word string")
    now_old = timedelta(days=365 * 200)
    return [in_range("n", 0), references("word", known), freshness("at", now_old), row_count(3), not_null("at")]


@pytest.mark.sweep
def test_a_stream_is_counted_as_it_is_written(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """What the batches of a query held makes, together, the report of a batch; the rows are written as they were."""
    told: list[tuple[int, int]] = []
    quality = StreamQuality(
        spark, checks(spark), name="words", on_batch=lambda n, report: told.append((n, len(report.errors)))
    )
    stream = stream_sink(spark, words.directory, origins=True, maxFilesPerTrigger=2)
    query = parquet_stream(quality.observe(stream), tmp_path / "out").trigger(availableNow=True).start()
    query.awaitTermination()
    found = quality.report(query)
    quality.close()
    rows = read_sink(spark, words.directory, origins=True)
    assert found == check(rows, checks(spark), name="words")
    assert [result.failed for result in found.results] == [2, 1, 0, 0, 0]
    assert [(one["_partition"], one["_offset"], one["n"]) for one in found.results[0].examples] == [
        (0, 3, -4),
        (1, 0, -5),
    ]
    assert [number for number, _ in told] == [0, 1, 2]
    written = spark.read.parquet(str(tmp_path / "out"))
    assert written.columns == stream.columns
    assert written.select(*rows.columns).exceptAll(rows).count() == 0
    assert written.count() == rows.count() == 5


def test_unique_cannot_be_observed(spark: SparkSession) -> None:
    """A check that needs a pass of its own is refused when the stream is built, with what to use instead."""
    with pytest.raises(ConfigError, match=r"n is unique: a stream cannot be checked for that.*Try: gate"):
        StreamQuality(spark, [unique("n")])


@pytest.mark.sweep
def test_a_gate_stops_before_it_writes(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """A batch with an error is not written and stops the query; with the check corrected it goes on with that batch."""
    written: list[list[int]] = []
    reports: list[Report] = []

    def write(batch: DataFrame, number: int) -> None:
        written.append(sorted(row["n"] for row in batch.collect()))

    def run(wanted: list[Check]) -> None:
        stream = stream_sink(spark, words.directory, origins=True, maxFilesPerTrigger=2)
        write_or_stop = gate(wanted, write, name="words", on_batch=lambda _, report: reports.append(report))
        state = str(tmp_path / "state")
        query = stream.writeStream.option("checkpointLocation", state).foreachBatch(write_or_stop)
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match=r"words, batch 1: 0 <= n: 1 row of 2.*t\[0\]@3: n=-4"):
        run([in_range("n", 0), unique("n")])
    assert written == [[1, 2]]
    run([in_range("n", 0, severity="warn"), unique("n")])
    assert written == [[1, 2], [-4, 3], [-5]]
    assert [(report.exit_code, len(report.warnings)) for report in reports] == [(0, 0), (14, 0), (0, 1), (0, 1)]


def test_what_is_not_over_is_not_waited_for(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Asked about a query that still runs the listener does not hang: it says so after the time that it was given."""
    quality = StreamQuality(spark, [row_count(1)], name="words")
    stream = quality.observe(stream_sink(spark, words.directory))
    query: Any = parquet_stream(stream, tmp_path / "out").start()
    query.processAllAvailable()
    with pytest.raises(TimeoutError, match="did not report the end"):
        quality.report(query, timeout_s=0.01)
    query.stop()
    assert quality.report(query).rows == 5
    quality.close()
