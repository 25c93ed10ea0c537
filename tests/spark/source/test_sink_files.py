"""A sink's files, read by Spark."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.audit.audit import audit
from downspout.sink import Layout, is_visible
from downspout.sink.recovery import SPARK_LOG
from downspout.sink.schema import NULL_FOLDER
from downspout.sink.snapshot import snapshot
from tests.sink.compaction_support import compact, flush
from tests.sink.support import sink, tup, write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROW: dict[str, tuple[str, Any, str]] = {
    "a": ("string", "ü\x00", "string"),
    "b": ("binary", b"\xff\x00", "binary"),
    "c": ("bool", True, "boolean"),
    "d": ("int8", -128, "tinyint"),
    "e": ("int16", -32768, "smallint"),
    "f": ("int32", 2**31 - 1, "int"),
    "g": ("int64", -(2**63), "bigint"),
    "h": ("float32", 1.5, "float"),
    "i": ("float64", 0.1, "double"),
    "j": ("decimal(38,4)", Decimal("12345678901234567890123456789012.3456"), "decimal(38,4)"),
    "k": ("date", date(1582, 10, 4), "date"),
    "l": ("timestamp", datetime(2013, 3, 31, 1, 30, 0, 123456, tzinfo=UTC), "timestamp"),
    "m": ("list<string>", ["x", None], "array<string>"),
    "n": ("list<int16>", [], "array<smallint>"),
}
"""Column → declared type, a value at its limits, Spark's type."""


def test_spark_reads_every_type(spark: SparkSession, tmp_path: Path) -> None:
    """Each type arrives in Spark as its own counterpart, with the value that was written, or null."""
    bolt = sink(
        ParquetBolt,
        tmp_path,
        fields=["origin", *ROW],
        **{"parquet.schema": [f"{name}:{kind}" for name, (kind, _, _) in ROW.items()]},
    )
    bolt.process(tup(("t", "id", 3, 2**62, "split.0"), *(value for _, value, _ in ROW.values())))
    bolt.process(tup(("t", "id", 3, 5, ""), *[None] * len(ROW)))
    bolt.drain()
    frame = spark.read.parquet(str(tmp_path))
    types = dict(frame.dtypes)
    assert {name: types[name] for name in ROW} == {name: spark_type for name, (_, _, spark_type) in ROW.items()}
    low, high = frame.orderBy("_offset").collect()
    found = {name: high[name] for name in ROW}
    found["b"] = bytes(found["b"])
    found["l"] = found["l"].astimezone(UTC)
    assert found == {name: value for name, (_, value, _) in ROW.items()}
    assert [low[name] for name in ROW] == [None] * len(ROW)
    origin = [high[name] for name in ("_topic", "_topic_id", "_partition", "_offset", "_path")]
    assert origin == ["t", "id", 3, 2**62, "split.0"]


def test_spark_reads_every_folder(spark: SparkSession, tmp_path: Path) -> None:
    """Partition values of any kind come back from their folders; the empty text comes back as null."""
    values = [
        "a",
        "../x",
        "a/b=c",
        "%41",
        "nul\x00",
        "\n\"#'*:?\\{[]^",
        "ü€",
        " ",
        "007",
        ".",
        "",
        None,
        NULL_FOLDER,
    ]
    bolt = sink(
        ParquetBolt,
        tmp_path,
        fields=["origin", "n", "word", "month"],
        **{
            "parquet.schema": ["n:int32", "word:string", "month:int8"],
            "parquet.partition_by": ["word", "month"],
        },
    )
    for number, value in enumerate(values):
        bolt.process(tup(("t", "", 0, number, ""), number, value, number % 3))
    bolt.drain()
    assert len(bolt.acked) == len(values)
    schema = "n int, word string, month tinyint, _offset bigint"
    rows = spark.read.schema(schema).parquet(str(tmp_path)).orderBy("n").collect()
    assert [row["word"] for row in rows] == [value or None for value in values]
    assert [row["month"] for row in rows] == [number % 3 for number in range(len(values))]


def test_spark_does_not_see_what_is_staged(spark: SparkSession, tmp_path: Path) -> None:
    """Staged files and the log are hidden from Spark; what an aggregate has committed is not."""
    settings = {"parquet.schema": ["word:string", "n:int32"], "parquet.keys": ["word"]}
    aggregates = ["count", "sum:n", "min:n", "max:n", "count:n"]
    bolt = sink(
        AggregateBolt, tmp_path, fields=["origin", "word", "n"], **settings, **{"parquet.aggregates": aggregates}
    )
    for offset, (word, n) in enumerate([("a", 1), ("b", None), ("a", 5)]):
        bolt.process(tup(("t", "", 0, offset, ""), word, n))
    bolt.drain()
    Layout(tmp_path).staged("part-x-1.parquet").write_bytes(b"half a file")
    rows = spark.read.parquet(str(tmp_path)).orderBy("word").collect()
    assert [tuple(row) for row in rows] == [("a", 2, 6, 1, 5, 2), ("b", 1, None, None, None, 0)]


@pytest.mark.parametrize("layout", ["beside", "inside"])
def test_spark_counts_nothing_twice(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """The plain directory and a glob of it have each row once while a snapshot is open and after a compaction; so has a
    glob from above once the snapshot is closed."""
    directory = tmp_path / "output" / "rows"
    if layout == "inside":
        (directory / "_downspout" / "log").mkdir(parents=True)
    for number in range(2):
        flush(directory, range(number * 10, number * 10 + 10), f"w{number}")

    def seen(*patterns: str) -> list[list[int]]:
        frames = (spark.read.parquet(f"{directory.parent}/{pattern}") for pattern in patterns)
        return [sorted(row["value"] for row in frame.select("value").collect()) for frame in frames]

    with snapshot(directory):
        assert compact(directory).made == 2
        assert seen("rows", "rows/*=*", "rows/*/*.parquet") == [list(range(20))] * 3
    assert seen("rows", "rows/*=*", "rows/*/*.parquet", "*/*/*.parquet") == [list(range(20))] * 4


@pytest.mark.parametrize(
    "name", ["copy.parquet.bak", "copy.PARQUET", "_k=1/copy.parquet", "_copy.parquet", ".copy", "_old/copy.parquet"]
)
def test_spark_reads_what_the_audit_calls_visible(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark goes by the first character of names, as the audit does; only Hive folders may begin with _."""
    write_rows(tmp_path, [("t", "id", 0, offset, "") for offset in range(4)])
    (written,) = tmp_path.glob("*.parquet")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    shutil.copy(written, tmp_path / name)
    if "=" in name:  # Spark takes files above Hive folders for a contradiction: only the copy is left
        written.unlink()
    files = {Path(file).name for file in spark.read.parquet(str(tmp_path)).inputFiles()}
    assert (Path(name).name in files) == is_visible(name)


def test_spark_reads_nothing_beside_a_list_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """The list of a streaming query hides a sink's files from Spark; the rows are there, and nobody sees them."""
    write_rows(tmp_path, [("t", "id", 0, 1, "")])
    (tmp_path / SPARK_LOG).mkdir()
    (tmp_path / SPARK_LOG / "0").write_text("v1\n", encoding="utf-8")
    assert spark.read.schema("n long").parquet(str(tmp_path)).count() == 0
    assert audit(tmp_path).exit_code == 13
