"""Outputs of a query's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from downspout.errors import DownspoutError, SinkError
from downspout.spark import parquet_stream, read_sink, sink_schema, stream_sink
from downspout.spark.parquet_output import check_output, committed_files
from tests.spark.pipelines_support import Words, drain, rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(tmp_path / "words")


@pytest.mark.parametrize(
    ("place", "said"), [("", "is the directory"), ("x/y", "lies in the directory"), ("..", "holds the directory")]
)
def test_a_job_never_writes_where_a_sink_does(words: Words, spark: SparkSession, place: str, said: str) -> None:
    """A sink's directory, a folder in it and one around it are refused as an output, before anything is made."""
    words.flush(("a", 1, 0))
    output = Path(os.path.normpath(words.directory / place))
    before = sorted(words.directory.rglob("*"))
    with pytest.raises(SinkError, match=rf"{said} of a topology's sink \(.*words\).*Try: a directory of the job's own"):
        parquet_stream(stream_sink(spark, words.directory), output)
    assert sorted(words.directory.rglob("*")) == before
    check_output(words.directory.parent / "other")


@pytest.mark.sweep
def test_a_directory_that_a_query_wrote_is_no_sinks(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """What a query has written is refused as a sink's directory; beside a sink's log, a query's list hides nothing."""
    words.flush(("a", 1, 0))
    drain(stream_sink(spark, words.directory), tmp_path / "out")
    for read in (read_sink, stream_sink):
        with pytest.raises(SinkError, match=r"output of a streaming query.*Try: spark\.read\.parquet"):
            read(spark, tmp_path / "out")
    (tmp_path / "out" / "_spark_metadata").rename(words.directory / "_spark_metadata")
    assert read_sink(spark, words.directory).count() == 1
    drain(stream_sink(spark, words.directory), tmp_path / "again")
    assert len(rows_in(spark, tmp_path / "again")) == 1


@pytest.mark.sweep
def test_output_and_checkpoint_stay_together(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Without its checkpoint, or without its output, a query is refused: rows would be missing silently."""
    words.flush(("a", 1, 0))
    out, state = tmp_path / "out", tmp_path / "out.checkpoint"
    drain(stream_sink(spark, words.directory), out)
    moved = state.rename(tmp_path / "moved")
    with pytest.raises(SinkError, match="new batches would be taken for repetitions"):
        parquet_stream(stream_sink(spark, words.directory), out)
    moved.rename(state)
    away = out.rename(tmp_path / "away")
    with pytest.raises(SinkError, match=r"records rows that .* does not hold"):
        parquet_stream(stream_sink(spark, words.directory), out)
    away.rename(out)
    words.flush(("a", 2, 0))
    drain(stream_sink(spark, words.directory), out)
    assert [row[0] for row in rows_in(spark, out)] == [1, 2]


@pytest.mark.sweep
def test_a_directory_is_known_by_its_log(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """By a link, or moved with its log, nothing of a directory is read again; another one is refused."""
    out, link = tmp_path / "out", tmp_path / "link"
    words.flush(("a", 1, 0))
    drain(stream_sink(spark, words.directory), out)
    link.symlink_to(words.directory)
    words.flush(("a", 2, 0))
    drain(stream_sink(spark, link), out)
    assert [row[0] for row in rows_in(spark, out)] == [1, 2]
    moved = words.directory.rename(tmp_path / "moved")
    Words(moved).flush(("b", 3, 0), partition=1)
    drain(stream_sink(spark, moved), out)
    assert [row[0] for row in rows_in(spark, out)] == [1, 2, 3]
    for number in range(4):
        Words(words.directory).flush(("a", number, 0), partition=number)
    with pytest.raises(Exception, match="another commit log than the one that was read"):
        drain(stream_sink(spark, words.directory), out)


def test_files_that_were_read_by_name_are_not_moved(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """A query of Spark's file source over a directory that was moved is refused, as all its rows would come again."""
    out = tmp_path / "out"
    words.flush(("a", 1, 0))
    schema = sink_schema(words.directory)
    drain(spark.readStream.schema(schema).parquet(str(words.directory)), out)
    moved = words.directory.rename(tmp_path / "moved")
    with pytest.raises(SinkError, match=r"was read, but it is gone.*Try: the directory's old path"):
        parquet_stream(spark.readStream.schema(schema).parquet(str(moved)), out)


def test_what_other_sources_keep_is_no_list_of_files(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """A query over Kafka has its first offsets where a query over files has a list of them: it goes on all the same."""
    out = tmp_path / "out"
    words.flush(("a", 1, 0))
    drain(stream_sink(spark, words.directory), out)
    log = tmp_path / "out.checkpoint" / "sources" / "0" / "0"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"\0v1\n" + b'{"topic":{"0":5}}')
    assert parquet_stream(stream_sink(spark, words.directory), out) is not None


def test_committed_files_are_what_spark_reads(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Other readers that take the committed files see what Spark sees, past a compact list and beside leftovers."""
    out = tmp_path / "out dir"
    for number in range(12):
        words.flush(("ü b", number, 0))
    drain(stream_sink(spark, words.directory, maxFilesPerTrigger=1).select("word", "n"), out)
    assert list((out / "_spark_metadata").glob("*.compact"))
    leftover = out / "part-00000-of-a-task-that-was-killed.snappy.parquet"
    leftover.write_bytes(committed_files(out)[0].read_bytes())
    rows = [row for path in committed_files(out) for row in pq.ParquetFile(path).read().to_pylist()]
    assert sorted(row["n"] for row in rows) == list(range(12))
    assert rows_in(spark, out) == [("ü b", number) for number in range(12)]
    with pytest.raises(DownspoutError, match="is not the output of a streaming query"):
        committed_files(words.directory)
