"""Streams from a sink's directory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.errors import ConfigError, SinkError
from downspout.sink import Layout
from downspout.spark import read_sink, sink_schema, stream_sink
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sink.support import sink, tup, write_rows
from tests.spark.pipelines_support import SINK, Words, drain, rows_in
from tests.spark.source.test_sink_files import ROW
from topologies.flight_delays import FlightDelays

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(tmp_path / "words")


@pytest.mark.sweep
def test_a_stream_sees_each_row_once(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Started before the sink has a file, and started again between flushes, a query reads each row once."""
    out = tmp_path / "out"
    wanted: list[tuple[str, int]] = []

    def run() -> None:
        frame = stream_sink(spark, words.directory, sink=SINK).select("word", "n")
        drain(frame, out)

    run()
    for number in range(3):
        words.flush(("a", number, 0), ("b", 10 + number, 0), (str(number), 20 + number, 0))
        wanted += [("a", number), ("b", 10 + number), (str(number), 20 + number)]
        run()
        assert rows_in(spark, out) == sorted(wanted)
    run()
    assert rows_in(spark, out) == sorted(wanted)
    assert sorted(map(tuple, read_sink(spark, words.directory).select("word", "n").collect())) == sorted(wanted)


def test_a_stream_sees_nothing_that_is_staged(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Half a file in the staging folder does not disturb a query, and its rows are not read."""
    words.flush(("a", 1, 0))
    staged = Layout(words.directory).staging / "word=a" / "part-x-1.parquet"
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(b"half a file")
    drain(stream_sink(spark, words.directory).select("word", "n"), tmp_path / "out")
    assert rows_in(spark, tmp_path / "out") == [("a", 1)]


def test_what_is_committed_is_read_though_its_writer_died(spark: SparkSession, tmp_path: Path) -> None:
    """Rows whose writer died between commit and rename are read at once, and not again when they come into sight."""
    directory, out = tmp_path / "sink", tmp_path / "out"
    write_rows(directory, [("t", "", 0, 0, "")], writer="first")

    def crash_before_rename(_: int) -> None:
        if list(Layout(directory).log.glob("*1.json")):
            raise Killed

    with pytest.raises(Killed):
        write_rows(directory, [("t", "", 0, 1, "")], writer="died", disk=SteppedDisk(crash_before_rename))
    (staged,) = Layout(directory).staging.glob("*.hidden")
    weeks_ago = time.time() - 30 * 86_400
    os.utime(staged, (weeks_ago, weeks_ago))

    def run() -> list[tuple[Any, ...]]:
        drain(stream_sink(spark, directory, origins=True).select("_partition", "_offset"), out)
        return rows_in(spark, out)

    assert run() == [(0, 0), (0, 1)]
    assert sorted(map(tuple, read_sink(spark, directory).collect())) == [(0,), (1,)]
    write_rows(directory, [("t", "", 0, 2, "")], writer="again")  # opening the directory rolls forward
    assert not staged.exists()
    assert run() == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.sweep
def test_max_files_bounds_a_batch(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """With maxFilesPerTrigger=2 five files are read in three batches."""
    for number in range(5):
        words.flush(("a", number, 0))
    query = drain(stream_sink(spark, words.directory, maxFilesPerTrigger=2), tmp_path / "out")
    assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [2, 2, 1]


@pytest.mark.sweep
def test_the_schema_is_what_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """For every type, the columns from the commit log are those that Spark finds in the files."""
    declared = {name: kind for name, (kind, _, _) in ROW.items()}
    conf = {"parquet.schema": [f"{name}:{kind}" for name, kind in declared.items()], "parquet.partition_by": ["d"]}
    bolt = sink(ParquetBolt, tmp_path, fields=["origin", *declared], **conf)
    bolt.process(tup(("t", "", 0, 1, ""), *(value for _, value, _ in ROW.values())))
    bolt.drain()
    kinds = {name: kind for name, (_, _, kind) in ROW.items()}
    found = {field.name: field.dataType.simpleString() for field in sink_schema(tmp_path)}
    assert {name: found[name] for name in kinds} == kinds
    assert list(found) == spark.read.parquet(str(tmp_path)).columns
    spec = ParquetBolt.spec(directory="x", schema=declared, partition_by=["d"])
    assert sink_schema(tmp_path / "none", spec) == sink_schema(tmp_path)
    (row,) = _memory(spark, stream_sink(spark, tmp_path).select("b", "j", "n", "d"))
    assert (bytes(row[0]), *row[1:]) == (ROW["b"][1], ROW["j"][1], [], -128)


def test_the_schema_of_partial_aggregates(spark: SparkSession, tmp_path: Path) -> None:
    """What an AggregateBolt writes has the keys and the aggregates as columns, from the log and from the topology."""
    settings: dict[str, Any] = {"schema": {"word": "string", "n": "int8", "x": "decimal(9,2)"}, "keys": ["word", "n"]}
    aggregates = ["count", "sum:n", "max:x", "sum:x", "count:x"]
    conf = {
        "parquet.schema": ["word:string", "n:int8", "x:decimal(9,2)"], "parquet.keys": ["word", "n"],
        "parquet.aggregates": aggregates, "parquet.partition_by": ["word"],
    }  # fmt: skip
    bolt = sink(AggregateBolt, tmp_path, fields=["origin", "word", "n", "x"], **conf)
    for offset in range(2):
        bolt.process(tup(("t", "", 0, offset, ""), "a", 5, None))
    bolt.drain()
    read = spark.read.parquet(str(tmp_path))
    assert [(field.name, field.dataType.simpleString()) for field in sink_schema(tmp_path)] == read.dtypes
    spec = AggregateBolt.spec(directory="x", aggregates=aggregates, partition_by=["word"], **settings)
    assert sink_schema(tmp_path / "none", spec) == sink_schema(tmp_path)
    assert [tuple(row) for row in _memory(spark, stream_sink(spark, tmp_path))] == [(5, 2, 10, None, None, 0, "a")]


def _memory(spark: SparkSession, frame: DataFrame) -> list[Any]:
    query = frame.writeStream.format("memory").queryName("made").trigger(availableNow=True).start()
    query.awaitTermination()
    return list(spark.table("made").collect())


@pytest.mark.sweep
def test_columns_are_found_by_place_of_the_folders(spark: SparkSession, words: Words) -> None:
    before = stream_sink(spark, words.directory, sink=SINK, origins=True)
    words.flush(("007", 1, 0))
    after = stream_sink(spark, words.directory, origins=True)
    assert before.columns == after.columns
    assert _memory(spark, before) == _memory(spark, after)
    assert [row["word"] for row in _memory(spark, before)] == ["007"]


def test_a_directory_that_is_new_is_left_to_the_sink(spark: SparkSession, tmp_path: Path) -> None:
    """A directory that the stream had to make is empty, and the sink starts in it as if it had made it."""
    directory = tmp_path / "a" / "b"
    assert stream_sink(spark, directory, sink=SINK).isStreaming
    assert list(directory.iterdir()) == []
    Words(directory).flush(("a", 1, 0))
    assert read_sink(spark, directory).count() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxFilesPerTriger": 1}, r"maxFilesPerTriger is not an option of stream_sink\. Try: maxFilesPerTrigger"),
        ({"path": "x"}, "path is not an option"),
        ({"latestFirst": "true"}, "let the watermark run ahead"),
        ({"LATESTFIRST": True}, "latestFirst=True"),
        ({"fileNameOnly": "true"}, "known by the commit log"),
        ({"cleanSource": "delete"}, "missing to the audit"),
        ({"recursiveFileLookup": "true"}, "no longer be columns"),
        ({"ignoreMissingFiles": "true"}, "missing silently"),
        ({"maxFileAge": "7d"}, "no file is too old"),
        ({"maxFilesPerTrigger": 0}, r"is not a number above 0.*Try: maxFilesPerTrigger=100"),
        ({"maxBytesPerTrigger": "1g"}, "is not a number above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    spark: SparkSession, words: Words, options: dict[str, Any], said: str
) -> None:
    """Each option of Spark's file source that makes no sense here is refused with the reason; so is a misspelt one."""
    words.flush(("a", 1, 0))
    with pytest.raises(ConfigError, match=said):
        stream_sink(spark, words.directory, **options)


def test_what_cannot_be_read_is_named(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Unknown columns, another sink's columns and a damaged log are errors with a cure."""
    with pytest.raises(SinkError, match=r"no commit log yet.*Try: name the sink"):
        stream_sink(spark, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    words.flush(("a", 1, 0))
    with pytest.raises(SinkError, match=r"word:string, n:int32.*the sink has scheduled_at"):
        stream_sink(spark, words.directory, sink=FlightDelays.flights)
    (entry,) = Layout(words.directory).log.glob("*.json")
    entry.write_bytes(entry.read_bytes()[:-9])
    with pytest.raises(SinkError, match="is damaged"):
        stream_sink(spark, words.directory)
