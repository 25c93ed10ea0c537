"""Event time: watermarks by partition, for topics whose partitions are not in step.

The *watermark* of a stream is the latest event time seen, minus a delay. When it passes the end of a window, the window
is finished and, in append mode, written; later rows of that window are dropped.

A topology reads all partitions of a topic at the same speed. If one holds a fifth of another's records for the same
period, it will soon be far ahead in event time, and its times would close the other's windows. So each partition gets
its own watermark, and the slowest one counts: several ``withWatermark`` under a union, with Spark's policy ``min``.

Spark's checkpoint only keeps the slowest one. After a restart Spark treats a partition without new rows as one at the
beginning of time, and holds all windows open until it gets a row, if ever. So :func:`event_time` restores each
partition's latest time from the files that the query has read. A row of *another* partition carries that time past the
watermark operator and is filtered out after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from downspout.errors import ConfigError
from downspout.settings.object_path import place
from downspout.sink.log_stream import Position, files_before
from downspout.sink.object_store import storage_of
from downspout.spark.checkpoint import batch_numbers
from downspout.spark.query_progress import watermark_of
from downspout.spark.read import frame_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def event_time(
    frame: DataFrame, column: str, delay: str, *, partitions: int | None = None, checkpoint: str | Path | None = None
) -> DataFrame:
    """Set the column of the event time and how late a row may be, for windows and other stateful operators.

    Args:
        frame: the result of ``stream_sink``; a batch frame is returned unchanged.
        column: of type timestamp.
        delay: how far a row may be behind the latest one (of its partition), in Spark's form: ``"10 minutes"``.
        partitions: the topic's number of partitions, each of which gets its own watermark; None: one for all. It needs
            ``stream_sink(…, origins=True)``. The cost: the columns are read ``partitions`` times, and a partition
            without any row holds all windows open. Partitions that are added later share these watermarks.
        checkpoint: of the query, required with ``partitions``: restores each partition's time after a restart.

    Raises:
        ConfigError: the column is missing or not a timestamp; rows lack their partition; ``checkpoint`` is missing; or
            Spark's policy is not ``min``.
    """
    kind = dict(frame.dtypes).get(column)
    if kind != "timestamp":
        what = f"is {kind}" if kind else "is not there"
        names = [name for name, other in frame.dtypes if other == "timestamp"]
        cure = f"one of {', '.join(names)}" if names else "a column of type timestamp"
        raise ConfigError(f"{column} {what}; the time of an event is a timestamp", cure=cure)
    if not frame.isStreaming:
        return frame
    if partitions is None:
        return frame.withWatermark(column, delay)
    _check(frame, partitions, checkpoint)
    seen = _seen(frame, column, partitions, Path(checkpoint)) if checkpoint is not None else {}
    parts = [_part(frame, column, delay, part, partitions, seen.get(part)) for part in range(partitions)]
    return reduce(lambda one, other: one.unionByName(other), parts)


def _check(frame: DataFrame, partitions: int, checkpoint: str | Path | None) -> None:
    if partitions < 1:
        raise ConfigError(f"partitions = {partitions}", cure="how many the topic has")
    if "_partition" not in frame.columns:
        raise ConfigError("the rows do not say which partition they came from", cure="stream_sink(…, origins=True)")
    if checkpoint is None:
        raise ConfigError(
            "watermarks by partition need the query's checkpoint, which has the position of each",
            cure="checkpoint=, the directory that the query gets as checkpointLocation",
        )
    if (policy := frame.sparkSession.conf.get(POLICY, "min")) != "min":
        raise ConfigError(f"{POLICY} is {policy}: the fastest partition would close the windows", cure="min")


def _number(partitions: int) -> Column:
    """Return the number of a row's watermark; rows without an origin use the first."""
    from pyspark.sql import functions as F

    return F.coalesce(F.pmod("_partition", F.lit(partitions)), F.lit(0))


def _part(frame: DataFrame, column: str, delay: str, part: int, partitions: int, seen: datetime | None) -> DataFrame:
    """Return the rows of one partition with their watermark, which starts at the time seen before."""
    from pyspark.sql import functions as F

    number = _number(partitions)
    if seen is None:
        return frame.where(number == part).withWatermark(column, delay)
    stand_in = F.when(number == part, F.col(column)).otherwise(F.lit(seen))
    timed = frame.withColumn(column, stand_in).withWatermark(column, delay)
    # Spark would push the filter below the watermark operator, and the stand-in rows would never reach it. A condition
    # that uses the event time cannot be pushed down; `& 0` removes its effect.
    return timed.where(F.hash(column).bitwiseAND(F.lit(0)) + number == part)


def _seen(frame: DataFrame, column: str, partitions: int, checkpoint: Path) -> Mapping[int, datetime]:
    """Return the latest time of each partition in all files that the query has read, or has begun to read.

    The latter are in its next batch, the first that these times can affect, so the times are never ahead. Statistics
    exclude files whose rows are all below the watermark.
    """
    from pyspark.sql import functions as F

    directory, options = _directory(frame)
    files = files_before(directory, _position(checkpoint), storage_of(directory, options))
    if not files:
        return {}
    rows = frame_of(frame.sparkSession, directory, files, options)
    if dict(rows.dtypes).get(column) != "timestamp":
        raise ConfigError(
            f"{column} is not a column of the sink, so the position of each partition is not known",
            cure="event_time on what stream_sink returned, before other steps",
        )
    if (watermark := watermark_of(checkpoint)) is not None:
        rows = rows.where(F.col(column) >= F.lit(watermark))
    latest = rows.groupBy(_number(partitions).alias("part")).agg(F.max(column).alias("seen"))
    return {row["part"]: row["seen"] for row in latest.where("seen IS NOT NULL").collect()}


def _directory(frame: DataFrame) -> tuple[Path, list[str]]:
    """Return the directory and storage options of a stream, from its plan."""
    from downspout.spark.sink_source import NAME

    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for leaf in map(leaves.apply, range(leaves.size())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName() == NAME:
            options = leaf.extraOptions()
            return place(options.get("path")), json.loads(options.get("storageOptions"))
    raise ConfigError(
        "the position of each partition is known for a sink's directory only",
        cure="event_time on what stream_sink returned",
    )


def _position(checkpoint: Path) -> Position:
    """Return how far the query's sources have read or begun to read; the furthest behind of several."""
    begun = batch_numbers(checkpoint / "offsets")
    found: list[Position] = []
    for line in (checkpoint / "offsets" / str(max(begun))).read_text("utf-8").splitlines()[2:] if begun else ():
        _, brace, rest = line.partition("{")  # a name may precede it
        with suppress(ConfigError, ValueError):  # of another source; the query reports it
            found.append(Position.from_json(json.loads(brace + rest)))
    return min(found, key=lambda position: (position.entry, position.file), default=Position())
