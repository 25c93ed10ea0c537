"""From a sink's directory to a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from downspout.errors import ConfigError, SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN_COLUMNS = ("_topic", "_topic_id", "_partition", "_offset", "_path")
"""What the sinks write beside the row: which record it came from, and which of that record's rows it is."""

_FINISHERS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""Which function finishes an aggregate's partial results."""


def read_sink(spark: SparkSession, directory: str | Path, *, origins: bool = False) -> DataFrame:
    """Return the rows of a sink's directory, each exactly once; Hive folders become columns.

    Nothing special is needed to read such a directory: any reader sees each row once. This function checks that
    there is something, and hides the origin columns.

    Args:
        spark: the session.
        directory: what the sink's ``parquet.directory`` says.
        origins: whether to keep the origin columns.

    Raises:
        SinkError: the directory does not exist, or holds no data file yet.
    """
    path = Path(directory)
    if not path.is_dir():
        raise SinkError(f"{path} does not exist", cure="run the topology that writes it")
    if not any(_data_files(path)):
        raise SinkError(f"{path} holds no data files", cure="run the topology until it has flushed once")
    frame = spark.read.parquet(str(path.absolute()))
    return frame if origins else frame.drop(*ORIGIN_COLUMNS)


def _data_files(directory: Path) -> list[Path]:
    """Return what Spark would read: nothing whose name, or folder's name, begins with ``_`` or ``.``."""
    return [
        path
        for path in directory.rglob("*.parquet")
        if not any(part[0] in "_." for part in path.relative_to(directory).parts)
    ]


def finish_aggregates(frame: DataFrame, keys: Sequence[str], aggregates: Sequence[str]) -> DataFrame:
    """Return one row per key from the partial aggregates that an AggregateBolt wrote.

    Every flush of every task writes what it has added up since the flush before, so a key has many rows. Counts and
    sums are finished by adding, minima and maxima by min and max. A mean cannot be finished: keep its sum and its
    count, and divide at the very end.

    Args:
        frame: the partial aggregates.
        keys: the topology's ``parquet.keys``, or fewer of them for a coarser result.
        aggregates: the topology's ``parquet.aggregates`` (``count``, ``sum:delay``), or some of them.

    Raises:
        ConfigError: an aggregate is none, or its column or a key is not there.
    """
    from pyspark.sql import functions as F

    finishers = dict(map(_finisher, aggregates))
    for column in (*keys, *finishers):
        if column not in frame.columns:
            raise ConfigError(
                f"the partial aggregates have no column {column}", cure=f"one of {', '.join(frame.columns)}"
            )
    return frame.groupBy(*keys).agg(*(getattr(F, name)(column).alias(column) for column, name in finishers.items()))


def _finisher(aggregate: str) -> tuple[str, str]:
    """Return the column of an aggregate and the function that finishes it.

    >>> _finisher("count"), _finisher("count:delay"), _finisher("max:delay")
    (('count', 'sum'), ('count_delay', 'sum'), ('max_delay', 'max'))
    """
    function, _, column = aggregate.partition(":")
    if function not in _FINISHERS or (not column and function != "count"):
        raise ConfigError(f"{aggregate!r} cannot be finished", cure="count, count:x, sum:x, min:x or max:x")
    return (f"{function}_{column}" if column else function), _FINISHERS[function]
