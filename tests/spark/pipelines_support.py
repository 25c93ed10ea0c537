"""Shared code for tests of pipelines: a sink flushed by calls, and queries over its directory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bolts.parquet import ParquetBolt
from downspout.spark import parquet_stream
from tests.sink.support import sink, tup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def drain(frame: DataFrame, path: Path) -> Any:
    """Run a query over what is there now, to its end, and return it."""
    query = parquet_stream(frame, path).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def rows_in(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.read.parquet(str(path)).collect()))
