"""From a sink's directory to a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from downspout.errors import ConfigError, SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN_COLUMNS = ("_topic", "_topic_id", "_partition", "_offset", "_path")
"""What the sinks write beside the row: which record it came from, and which of that record's rows it is."""

FINISHERS = ("sum", "min", "max")
"""Functions that finish partial results: applied to these they give what they give applied to all rows."""


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


def finish_aggregates(frame: DataFrame, keys: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """Return one row per key from the partial aggregates that an AggregateBolt wrote.

    Every flush of every task writes what it has added up since the flush before, so a key has many rows. Sums and
    counts are finished by adding (``"sum"``), minima and maxima by ``"min"`` and ``"max"``. A mean cannot be finished:
    keep its sum and its count, and divide at the very end.

    Args:
        frame: the partial aggregates.
        keys: columns that make the key.
        columns: column → the function that finishes it.

    Raises:
        ConfigError: another function, or a column that is not there.
    """
    from pyspark.sql import functions as F

    for column, finisher in columns.items():
        if finisher not in FINISHERS:
            raise ConfigError(f"{finisher}({column}) cannot finish partial results", cure=", ".join(FINISHERS))
    for column in (*keys, *columns):
        if column not in frame.columns:
            raise ConfigError(
                f"the partial aggregates have no column {column}", cure=f"one of {', '.join(frame.columns)}"
            )
    return frame.groupBy(*keys).agg(
        *(getattr(F, finisher)(column).alias(column) for column, finisher in columns.items())
    )
