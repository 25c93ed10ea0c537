"""Dropping what a PySpark query has written to Kafka more than once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downspout.errors import ConfigError
from downspout.spark.writing.write import BATCH, RECORD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["without_repeats"]

NEEDED = ("topic", "partition", "offset", "headers")
ID = "__downspout_id"


def without_repeats(frame: DataFrame) -> DataFrame:
    """Return a frame of Kafka's records in which each one is there once that ``format("downspout-kafka")`` has written.

    Repeats are records of one topic whose headers name the same row of the same batch. Records without these headers
    all stay. A streaming query remembers each record that it has seen, unless its frame has a watermark.

    Args:
        frame: what ``format("downspout")`` reads with ``includeHeaders``.

    Raises:
        ConfigError: it lacks a column.
    """
    from pyspark.sql import functions as F

    if missing := [name for name in NEEDED if name not in frame.columns]:
        raise ConfigError(
            f"repeats cannot be found without the column {missing[0]}",
            cure='.option("includeHeaders", "true"), and this before any select',
        )

    def of(name: str) -> str:
        return f"element_at(filter(headers, header -> header.key = '{name}'), -1).value"

    # Nulls are equal to one another when duplicates are dropped: a record without ids gets one, which is its place.
    row = f"concat(decode({of(BATCH)}, 'utf-8'), '/', decode({of(RECORD)}, 'utf-8'))"
    marked = frame.withColumn(ID, F.expr(f"coalesce({row}, concat('at ', partition, '@', offset))"))
    return marked.dropDuplicates(["topic", ID]).drop(ID)
