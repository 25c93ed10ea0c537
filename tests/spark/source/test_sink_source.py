"""Spark's readers of a sink's directory, beside compactions."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from downspout.sink import CommitLog, Disk, Layout
from downspout.spark import read, read_sink, sink_schema, stream_sink
from tests.sink.readers_support import compact, delete_replaced, start_anew
from tests.sink.support import write
from tests.spark.pipelines_support import Words, drain, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(tmp_path / "words")


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row["n"] for row in frame.select("n").collect())


def test_a_frame_stays_as_it_is(spark: SparkSession, words: Words) -> None:
    """What read_sink returned gives the same rows after flushes, a compaction, deletions and a rebuild."""
    for number in range(3):
        words.flush(("a", number, 0), (None, 10 + number, 0))
    frame = read_sink(spark, words.directory)
    words.flush(("a", 3, 0))
    compact(words.directory)
    delete_replaced(words.directory)
    assert numbers(frame) == [0, 1, 2, 10, 11, 12]
    later = read_sink(spark, words.directory)
    start_anew(words.directory)
    delete_replaced(words.directory)
    assert numbers(frame.where("word IS NULL")) == [10, 11, 12]
    assert numbers(later) == [0, 1, 2, 3, 10, 11, 12]
    empty = read_sink(spark, words.directory, origins=True)
    assert (empty.count(), empty.columns) == (0, [field.name for field in sink_schema(words.directory)])


@pytest.mark.sweep
def test_columns_that_grow_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """Batch and stream read one table of old and wider rows; a query of before keeps its columns, and misses no row."""
    directory = tmp_path / "grown"
    small = ["n:int32", "x:float32", "d:decimal(5,2)"]
    wide = ["n:int64", "x:float64", "d:decimal(18,2)", "later:string"]
    write(directory, small, range(3), lambda n: (n, 0.5, Decimal("1.25")))
    before = stream_sink(spark, directory)
    write(directory, wide, range(3, 6), lambda n: (n, 0.1, Decimal("2.50"), "new"))
    read = read_sink(spark, directory)
    assert [kind for _, kind in read.dtypes] == ["bigint", "double", "decimal(18,2)", "string"]
    rows = sorted((row.n, row.x, row.d, row.later) for row in read.collect())
    assert rows == [(n, 0.5, Decimal("1.25"), None) for n in range(3)] + [
        (n, 0.1, Decimal("2.50"), "new") for n in range(3, 6)
    ]
    for name, frame in {"before": before.select("n"), "after": stream_sink(spark, directory).select("n")}.items():
        query = (
            frame.writeStream.format("memory")
            .queryName(f"grown_{name}")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / name))
            .start()
        )
        assert query.awaitTermination(60)
        assert sorted(row.n for row in spark.table(f"grown_{name}").collect()) == list(range(6))


def test_links_are_made_once_and_removed(spark: SparkSession, words: Words) -> None:
    """Read again without a change, the directory is linked once; swept, again; at the end no link is left."""
    words.flush(("a", 1, 0))
    top = Layout(words.directory).snapshots
    for _ in range(2):
        read_sink(spark, words.directory)
    (first,) = top.iterdir()
    first.rename(first.with_name(".swept"))
    frame = read_sink(spark, words.directory)
    (second,) = (path for path in top.iterdir() if path.name != ".swept")
    assert numbers(frame) == [1]
    read.remove_snapshots()
    assert not second.exists()


def test_where_no_links_can_be_made(
    spark: SparkSession, words: Words, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a directory that is read-only the files are read where they are, hidden ones too; one that moves is missed."""

    def refuse(self: Disk, source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(target))

    words.flush(("a", 1, 0), (None, 2, 0))
    words.flush(("a", 3, 0))
    (moved,) = (path for path in words.directory.glob("word=a/*-1.parquet"))
    hidden = Layout(words.directory).staged(f"word=a/{moved.name}")
    hidden.parent.mkdir(exist_ok=True, parents=True)
    moved.rename(hidden)
    monkeypatch.setattr(Disk, "link", refuse)
    frame = read_sink(spark, words.directory)
    assert "no links can be made" in caplog.text
    rows = frame.select("n", "word").collect()
    assert sorted(map(tuple, rows)) == [(1, "a"), (2, None), (3, "a")]
    hidden.rename(moved)
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound|does not exist"):
        read_sink(spark, words.directory).unionByName(frame).collect()


@pytest.mark.sweep
def test_a_stream_goes_on_across_a_compaction(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """Started again from its checkpoint after compactions, before and behind its position, a query reads each row once.

    Some of the rows were compacted away before it has read them.
    """
    out = tmp_path / "out"

    def run() -> list[Any]:
        drain(stream_sink(spark, words.directory, maxFilesPerTrigger=2).select("n", "word"), out)
        return rows_in(spark, out)

    for number in range(4):
        words.flush(("a", number, 0))
    compact(words.directory, most=3)
    delete_replaced(words.directory)
    assert run() == [(number, "a") for number in range(4)]
    # By hand: `downspout compact` would leave the first file alone, whose codec is not the sink's.
    compact(words.directory, most=100)
    for number in range(4, 7):
        words.flush(("a", number, 0))
    compact(words.directory, most=100)
    assert len(list(words.directory.glob("word=a/*.parquet"))) == 1
    assert run() == [(number, "a") for number in range(7)]
    delete_replaced(words.directory)
    assert run() == [(number, "a") for number in range(7)]
    start_anew(words.directory)
    with pytest.raises(Exception, match="was rebuilt: it is at rebuild 1, and rebuild 0 was read"):
        run()


def test_everything_at_once(spark: SparkSession, words: Words, tmp_path: Path) -> None:
    """While one thread flushes and another compacts, a running query and batches see each row once, none too few."""
    words.flush(("a", 0, 0))
    done, compacted, errors = threading.Event(), threading.Event(), list[BaseException]()
    flushed = 1

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            done.set()

    def flush() -> None:
        nonlocal flushed
        for number in range(1, 30):
            words.flush(("ab"[number % 2], number, 0))
            flushed = number + 1
            while number == 15 and not done.is_set() and not compacted.wait(0.05):
                pass  # neither is done before the other has begun
        done.set()

    def merge() -> None:
        while not done.is_set():
            compact(words.directory, most=4)
            if any(entry.removed for entry in CommitLog(words.directory, checkpoints=False).refresh()):
                compacted.set()

    frame = stream_sink(spark, words.directory, maxFilesPerTrigger=5).select("n")
    query = frame.writeStream.format("memory").queryName("everything").start()
    threads = [threading.Thread(target=guarded, args=(work,)) for work in (flush, merge)]
    for thread in threads:
        thread.start()
    while True:
        last, before = done.is_set(), flushed
        found = numbers(read_sink(spark, words.directory))
        assert found == list(range(len(found)))
        assert len(found) >= before
        if last:
            break
    for thread in threads:
        thread.join()
    assert not errors
    query.processAllAvailable()
    query.stop()
    assert numbers(spark.table("everything")) == list(range(30))
    assert any(entry.removed for entry in CommitLog(words.directory, checkpoints=False).refresh())
