"""Reading sinks with Spark, and finishing partial aggregates."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bolts.aggregate import AggregateBolt
from downspout.errors import ConfigError, SinkError
from downspout.sink import Layout
from downspout.spark import ORIGIN_COLUMNS, read_sink, spark_session
from downspout.spark.read import finish_aggregates
from tests.sink.support import sink, tup
from tests.spark.pipelines_support import Words
from topologies import word_count_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def write(path: Path, **columns: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_session_is_quiet_and_local(spark: SparkSession) -> None:
    """The session is in UTC, binds to the loopback interface and serves no web page."""
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sql("SELECT current_timezone()").first() == ("UTC",)


def test_a_running_session_is_used_and_left_running(spark: SparkSession) -> None:
    """Asked for a session while one runs, the same is given, and it survives the block."""
    with spark_session("another") as given:
        assert given is spark
    assert spark.range(3).count() == 3


@pytest.mark.sweep
def test_ctrl_c_is_handled_as_before() -> None:
    """After a session of its own, in a process of its own, Ctrl-C does again what it did before."""
    program = (
        "import signal\nfrom downspout.spark.session import spark_session\nbefore = signal.getsignal(signal.SIGINT)\n"
        "with spark_session('own') as spark:\n    assert spark.range(2).count() == 2\n"
        "assert signal.getsignal(signal.SIGINT) is before\nprint('as before')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "as before\n"
    assert done.stderr == ""


def test_python_workers_have_our_packages(spark: SparkSession) -> None:
    """Code that runs in Spark's Python workers runs on this very Python."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_read_sees_what_the_log_says(spark: SparkSession, tmp_path: Path) -> None:
    """The files that the log names are read, with their Hive folders as columns; no other, in sight or hidden."""
    Words(tmp_path / "a[1]").flush(("a", 1, 0), ("007", 2, 0), (None, 3, 0))
    directory = tmp_path / "a[1]"
    (seen,) = directory.glob("word=a/*.parquet")
    for place in ("word=a/other.parquet", "_hidden/part-a-3.parquet"):
        (directory / place).parent.mkdir(exist_ok=True)
        shutil.copy(seen, directory / place)
    rows = read_sink(spark, directory).orderBy("n").drop("at").collect()
    assert [tuple(row) for row in rows] == [(1, "a"), (2, "007"), (3, None)]
    assert set(ORIGIN_COLUMNS) <= set(read_sink(spark, directory, origins=True).columns)


def test_read_says_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    """No directory, and a directory that no sink has flushed to, are errors with a cure."""
    with pytest.raises(SinkError, match=r"does not exist\. Try: run the topology"):
        read_sink(spark, tmp_path / "none")
    (tmp_path / "sink").mkdir()
    write(Layout(tmp_path / "sink").staging / "x.parquet", a=[1])
    with pytest.raises(SinkError, match="no sink has flushed"):
        read_sink(spark, tmp_path / "sink")


def test_finishing_equals_aggregating_everything(spark: SparkSession) -> None:
    chance = random.Random(7)
    rows = pd.DataFrame(
        {"key": [chance.choice("abc") for _ in range(300)], "x": [chance.randrange(-50, 50) for _ in range(300)]}
    )
    rows["piece"] = [chance.randrange(9) for _ in range(300)]

    def aggregate(by: list[str]) -> pd.DataFrame:
        return (
            rows.groupby(by)
            .agg(count=("x", "size"), sum_x=("x", "sum"), min_x=("x", "min"), max_x=("x", "max"))
            .reset_index()
        )

    partials = aggregate(["piece", "key"]).drop(columns="piece")
    frame = spark.createDataFrame(partials.to_dict("records"))
    finished = finish_aggregates(frame, ["key"], ["count", "sum:x", "min:x", "max:x"])
    found = [row.asDict() for row in finished.orderBy("key").collect()]
    assert found == aggregate(["key"]).to_dict("records")


def test_finishing_keeps_nothing_apart_from_null(spark: SparkSession) -> None:
    """A key whose partial results are all null, as the delays of cancelled flights, is kept, with null."""
    frame = spark.createDataFrame([("a", None), ("a", None), ("b", 2)], "key string, max_x int")
    found = finish_aggregates(frame, ["key"], ["max:x"]).orderBy("key").collect()
    assert [tuple(row) for row in found] == [("a", None), ("b", 2)]


@pytest.mark.parametrize(
    ("aggregate", "said"),
    [
        ("avg:x", "'avg:x' cannot be finished"),
        ("sum", "'sum' cannot be finished"),
        ("sum:y", r"have no column sum_y\. Try: one of key, sum_x"),
    ],
)
def test_finishing_refuses(spark: SparkSession, aggregate: str, said: str) -> None:
    """An aggregate whose partial results cannot be finished, or that is not there, is refused by name."""
    frame = spark.createDataFrame([("a", 1)], "key string, sum_x int")
    with pytest.raises(ConfigError, match=said):
        finish_aggregates(frame, ["key"], [aggregate])


def test_word_counts_are_finished(spark: SparkSession, tmp_path: Path) -> None:
    """The counts of the native Spark version equal Python's Counter over all words, however files split them."""
    words = ("to be or not to be that is the question " * 3).split()
    conf = {"parquet.schema": ["word:string!"], "parquet.keys": ["word"], "parquet.aggregates": ["count"]}
    bolt = sink(AggregateBolt, tmp_path / "word_counts", fields=["origin", "word"], **conf)
    for number, piece in enumerate(_fours(words)):
        for place, word in enumerate(piece):
            bolt.process(tup(("t", "", 0, 4 * number + place, ""), word))
        bolt.drain()
    assert word_count_report.run(spark, tmp_path) == Counter(words)


def _fours(words: list[str]) -> list[list[str]]:
    return [words[start : start + 4] for start in range(0, len(words), 4)]
