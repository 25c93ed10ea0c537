"""Final windows in PySpark: the batch reader, and a stream that returns each window once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from downspout.errors import ConfigError
from downspout.sink import Compactor, read_table
from downspout.spark import read_sink, stream_sink
from downspout.spark.read import finish_aggregates
from downspout.testing import VirtualClock
from tests.sink.test_watermark import HOUR, START, flush, task, warm_up

pytestmark = pytest.mark.spark


def sums(rows: Any) -> dict[tuple[Any, Any], int]:
    """Return the counts of rows of Spark's by key and start; each may be there once."""
    found = {(row["key"], int(row["start"])): row["count"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_each_final_window_comes_once_and_spark_s_own_window_has_the_same(spark: Any, tmp_path: Path) -> None:
    """Through late rows, a compaction and a restart: what the stream has returned is what the batch returns."""
    from pyspark.sql import functions as F

    directory, output, checkpoint = (tmp_path / name for name in ("hours", "out", "checkpoint"))
    clock, source = VirtualClock(), []
    bolt = task(directory, clock)
    warm_up(bolt, clock)
    source += [("a", START - 10 * HOUR + number * HOUR) for number in range(9)]

    def read() -> None:
        stream = stream_sink(spark, directory, closed=True)

        def append(frame: Any, _: int) -> None:
            finished = finish_aggregates(frame, ["key", "window_start"], ["count"])
            finished.select("key", F.unix_seconds("window_start").alias("start"), "count").write.mode("append").parquet(
                str(output)
            )

        query = stream.writeStream.foreachBatch(append).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    read()
    for number in range(4):
        rows = [(0, 100 + 10 * number + each, "b", START + (2 * number + each % 3) * HOUR) for each in range(6)]
        source += [(key, at) for _, _, key, at in rows]
        flush(bolt, clock, *rows)
        flush(bolt, clock, (0, 50 + number, "late", START - 9 * HOUR))
        if number % 2:
            Compactor(directory, clock=clock).run()
            read()
    read()
    final = read_sink(spark, directory, closed=True)
    assert final.count() == read_table(directory, closed=True).num_rows
    batch = finish_aggregates(final, ["key", "window_start"], ["count"])
    found = sums(batch.select("key", F.unix_seconds("window_start").alias("start"), "count").collect())
    assert sums(spark.read.parquet(str(output)).collect()) == found

    ends = int(max(row["window_end"] for row in read_table(directory, closed=True).to_pylist()).timestamp())
    own = spark.createDataFrame(source, ["key", "at"]).groupBy("key", F.window("at", "1 hour")).count()
    columns = ("key", F.unix_seconds("window.start").alias("start"), "count")
    wanted = own.where(F.unix_seconds("window.end") <= ends).select(*columns).collect()
    assert sums(wanted) == found


def test_closed_is_refused_where_it_means_nothing(spark: Any, tmp_path: Path) -> None:
    """Without windows, and with limits that would cut a window in two."""
    clock = VirtualClock()
    flush(task(tmp_path / "hours", clock), clock, (0, 0, "a", START))
    flush(task(tmp_path / "sums", clock, keys=["key"]), clock, (0, 0, "a", START))
    assert read_sink(spark, tmp_path / "hours", closed=True).count() == 0
    with pytest.raises(ConfigError, match="maxFilesPerTrigger has no effect"):
        stream_sink(spark, tmp_path / "hours", closed=True, maxFilesPerTrigger=1)
    for reader in (read_sink, stream_sink):
        with pytest.raises(ConfigError, match="has no windows"):
            reader(spark, tmp_path / "sums", closed=True)
