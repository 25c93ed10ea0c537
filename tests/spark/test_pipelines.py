"""Streams from a sink's directory, and outputs of a query's own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.errors import ConfigError, DownspoutError, SinkError
from downspout.parquet.log import STAGING_FOLDER
from downspout.spark.event_time import event_time
from downspout.spark.listening import LateRows, wait_until_stopped, watermark_of
from downspout.spark.output import check_output, committed_files, parquet_stream
from downspout.spark.read import MAX_FILE_AGE, read_sink, sink_schema, stream_sink
from tests.parquet.support import SteppedDisk, Stopped, sink, tup, write_rows
from tests.spark.test_sink_files import ROW
from topologies.flight_delays import FlightDelays

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = {"word": "string", "n": "int32", "at": "timestamp"}
SINK = ParquetBolt.spec(directory="words", schema=SCHEMA, partition_by=["word"])
START = datetime(2013, 1, 1, tzinfo=UTC)


class Words:
    """A sink as the engine builds it; each call is one flush."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._offsets: dict[int, int] = {}
        self._bolt = sink(
            ParquetBolt,
            directory,
            fields=["origin", *SCHEMA],
            **{"parquet.schema": [f"{name}:{kind}" for name, kind in SCHEMA.items()], "parquet.partition_by": ["word"]},
        )

    def flush(self, *rows: tuple[str, int, int], partition: int = 0) -> None:
        """Write (word, n, minutes after START) rows, the next records of a partition."""
        for word, n, minutes in rows:
            offset = self._offsets[partition] = self._offsets.get(partition, -1) + 1
            at = START + timedelta(minutes=minutes)
            self._bolt.process(tup(("t", "id", partition, offset, ""), word, n, at))
        self._bolt.drain()


@pytest.fixture
def words(tmp_path: Path) -> Words:
    """A sink that has written nothing."""
    return Words(tmp_path / "words")


def drain(frame: DataFrame, path: Path) -> Any:
    """Run a query over what is there now, to its end, and return it."""
    query = parquet_stream(frame, path).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def rows_in(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a query's output, sorted."""
    return sorted(map(tuple, spark.read.parquet(str(path)).collect()))


# --- the source ---


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
    staged = words.directory / STAGING_FOLDER / "word=a" / "part-x-1.parquet"
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(b"half a file")
    drain(stream_sink(spark, words.directory).select("word", "n"), tmp_path / "out")
    assert rows_in(spark, tmp_path / "out") == [("a", 1)]


@pytest.mark.parametrize("age", [MAX_FILE_AGE, "7d"])
def test_a_file_that_came_late_into_sight_is_read(spark: SparkSession, tmp_path: Path, age: str) -> None:
    """A flush whose writer died before the rename is read when another writer brings it into sight weeks later.

    With Spark's own limit of 7 days it is not: that is the trap, and this test would notice if it were none.
    """
    directory, out = tmp_path / "sink", tmp_path / "out"
    write_rows(directory, [("t", "", 0, 0, "")], writer="first")
    other = write_rows(directory, [("t", "", 1, 0, "")], writer="other")

    def crash_before_rename(_: int) -> None:
        if list(directory.glob("_downspout/log/*2.json")):
            raise Stopped

    with pytest.raises(Stopped):
        write_rows(directory, [("t", "", 0, 1, "")], writer="died", disk=SteppedDisk(crash_before_rename))
    (staged,) = (directory / STAGING_FOLDER).glob("*.parquet")
    weeks_ago = time.time() - 30 * 86_400
    os.utime(staged, (weeks_ago, weeks_ago))

    def run() -> list[tuple[Any, ...]]:
        frame = stream_sink(spark, directory, origins=True, maxFileAge=age)
        drain(frame.select("_partition", "_offset"), out)
        return rows_in(spark, out)

    assert run() == [(0, 0), (1, 0)]
    write_rows(directory, [("t", "", 0, 2, "")], writer="again")  # opening the directory rolls forward
    assert not staged.exists()
    late = [(0, 1)] if age == MAX_FILE_AGE else []
    assert run() == sorted([(0, 0), (1, 0), (0, 2), *late])
    assert other.log.length == 2


def test_max_files_bounds_a_batch(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """With maxFilesPerTrigger=2 five files are read in three batches."""
    for number in range(5):
        words.flush(("a", number, 0))
    query = drain(stream_sink(spark, words.directory, maxFilesPerTrigger=2), tmp_path / "out")
    assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [2, 2, 1]


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
    settings = {"schema": {"word": "string", "n": "int8", "x": "decimal(9,2)"}, "keys": ["word", "n"]}
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


def test_columns_are_found_by_place_of_the_folders(spark: SparkSession, words: Words) -> None:
    """A stream defined before there are folders has the same columns, in the same order, as one defined after."""
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
        ({"maxFilesPerTriger": 1}, r"maxFilesPerTriger is no option of stream_sink\. Try: maxFilesPerTrigger"),
        ({"path": "x"}, "path is no option"),
        ({"latestFirst": "true"}, "the older rows would be dropped as late"),
        ({"LATESTFIRST": True}, "latestFirst=True"),
        ({"fileNameOnly": "true"}, "would be passed over"),
        ({"cleanSource": "delete"}, "missing to the audit"),
        ({"recursiveFileLookup": "true"}, "no columns any more"),
        ({"ignoreMissingFiles": "true"}, "missing without a word"),
    ],
)
def test_options_that_would_lose_rows_are_refused(
    spark: SparkSession, words: Words, options: dict[str, Any], said: str
) -> None:
    """Each option of Spark's file source that would lose rows is refused with the reason; so is a misspelt one."""
    words.flush(("a", 1, 0))
    with pytest.raises(ConfigError, match=said):
        stream_sink(spark, words.directory, **options)
    assert stream_sink(spark, words.directory, latestFirst="false").isStreaming


def test_what_cannot_be_read_is_named(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Unknown columns, another sink's columns, a pattern for a path and a damaged log are errors with a cure."""
    with pytest.raises(SinkError, match=r"no commit log yet.*Try: name the sink"):
        stream_sink(spark, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match=r"Spark takes \[ \] for a pattern"):
        stream_sink(spark, tmp_path / "a[1]", sink=SINK)
    words.flush(("a", 1, 0))
    with pytest.raises(SinkError, match=r"word:string, n:int32.*the sink has scheduled_at"):
        stream_sink(spark, words.directory, sink=FlightDelays.flights)
    (entry,) = (words.directory / "_downspout" / "log").glob("*.json")
    entry.write_bytes(entry.read_bytes()[:-9])
    with pytest.raises(SinkError, match="is damaged"):
        stream_sink(spark, words.directory)


# --- event time ---


def counts(frame: DataFrame, **settings: Any) -> DataFrame:
    """Return rows by hour and word."""
    from pyspark.sql import functions as F

    timed = event_time(frame, "at", "0 minutes", **settings)
    totals = timed.groupBy(F.window("at", "1 hour"), "word").agg(F.sum("n").alias("n"))
    return totals.select("window.start", "word", "n")


def hours(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return windows with the hour after START instead of the moment."""
    return [((start.astimezone(UTC) - START) // timedelta(hours=1), *rest) for start, *rest in rows]


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
    """A column that is no timestamp, and partitions of rows without an origin, are refused with a cure."""
    with pytest.raises(ConfigError, match=said):
        event_time(stream_sink(spark, words.directory, sink=SINK), column, "1 hour", **settings)


def test_watermarks_by_partition_need_the_checkpoint(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Without the checkpoint, and for a time that is no column of the sink, each partition's place cannot be told."""
    words.flush(("a", 1, 0))
    frame = stream_sink(spark, words.directory, origins=True)
    with pytest.raises(ConfigError, match="need the checkpoint of the query"):
        event_time(frame, "at", "1 hour", partitions=2)
    state = tmp_path / "out.checkpoint"
    drain(counts(frame, partitions=2, checkpoint=state), tmp_path / "out")
    renamed = frame.withColumnRenamed("at", "when")
    with pytest.raises(ConfigError, match="when is no column of the sink"):
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


def test_ctrl_c_stops_the_queries(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """A signal stops all queries, and is then handled as before; without one they run to their end."""
    words.flush(("a", 1, 0))
    queries = [parquet_stream(stream_sink(spark, words.directory), tmp_path / name).start() for name in "ab"]
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        queries[0].processAllAvailable()
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
    """A query that has never finished a batch has no watermark."""
    assert watermark_of(tmp_path) is None


# --- the output ---


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


def test_a_directory_that_a_query_wrote_is_no_sinks(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Spark would read nothing of a sink beside a query's own list of files: reading such a directory is refused."""
    words.flush(("a", 1, 0))
    drain(stream_sink(spark, words.directory), tmp_path / "out")
    (tmp_path / "out" / "_spark_metadata").rename(words.directory / "_spark_metadata")
    for read in (read_sink, stream_sink):
        with pytest.raises(SinkError, match=r"output of a streaming query.*Try: spark\.read\.parquet"):
            read(spark, words.directory)


def test_output_and_checkpoint_stay_together(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Without its checkpoint, or without its output, a query is refused: rows would be missing without a word."""
    words.flush(("a", 1, 0))
    out, state = tmp_path / "out", tmp_path / "out.checkpoint"
    drain(stream_sink(spark, words.directory), out)
    moved = state.rename(tmp_path / "moved")
    with pytest.raises(SinkError, match="new batches would count as repetitions"):
        parquet_stream(stream_sink(spark, words.directory), out)
    moved.rename(state)
    away = out.rename(tmp_path / "away")
    with pytest.raises(SinkError, match="says that rows were written which are not in"):
        parquet_stream(stream_sink(spark, words.directory), out)
    away.rename(out)
    words.flush(("a", 2, 0))
    drain(stream_sink(spark, words.directory), out)
    assert [row[0] for row in rows_in(spark, out)] == [1, 2]


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
