"""Event time: when a window is finished, for rows of a topic whose partitions do not run side by side.

The *watermark* of a stream is the latest event time seen, minus a delay. A window is finished, and in append mode
written, when the watermark has passed its end; a row of a finished window comes too late and is dropped.

A topology reads all partitions of a topic at the same speed. One that holds a fifth of the records of another is a
year ahead when both have been read for a minute, and its times would close the windows of the other. So each partition
gets a watermark of its own, and the slowest one counts: several ``withWatermark`` under a union, and Spark's policy
``min``.

Spark's checkpoint keeps the slowest one alone. After a restart it takes a partition without new rows for one that
stands at the beginning of time, and holds all windows open until it gets a row, if ever. So :func:`event_time` looks at
the files that the query has read, and lets each partition go on where it was: a row of *another* partition stands in
for it with the last time that was seen there, is looked at by the watermark, and left out again.
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
    """Say which column is the time of the event, and how late a row may be; for windows and other stateful operators.

    Args:
        frame: what ``stream_sink`` returned; the rows of a batch come back as they are.
        column: of type timestamp.
        delay: how late, behind a later row (of its partition), as Spark says it: ``"10 minutes"``, ``"2 days"``.
        partitions: how many the topic has: each gets a watermark of its own; None: one for all. It needs
            ``stream_sink(…, origins=True)``. The price: the columns are read ``partitions`` times, and a partition
            without any row holds all windows open. Partitions that are added later share the watermarks of these.
        checkpoint: of the query, with ``partitions``: where each partition was is found there after a restart.

    Raises:
        ConfigError: the column is not there or is no timestamp; the rows do not say which partition they came from, or
            ``checkpoint`` does not say where the query stood; or Spark's policy is another.
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
    """Return the number of the watermark that a row counts for; rows without an origin count for the first."""
    from pyspark.sql import functions as F

    return F.coalesce(F.pmod("_partition", F.lit(partitions)), F.lit(0))


def _part(frame: DataFrame, column: str, delay: str, part: int, partitions: int, seen: datetime | None) -> DataFrame:
    """Return the rows of one partition with their watermark, which starts at what was seen before."""
    from pyspark.sql import functions as F

    number = _number(partitions)
    if seen is None:
        return frame.where(number == part).withWatermark(column, delay)
    stand_in = F.when(number == part, F.col(column)).otherwise(F.lit(seen))
    timed = frame.withColumn(column, stand_in).withWatermark(column, delay)
    # Spark filters before it looks at the watermark, wherever it can, and the rows that stand in would be gone. It
    # cannot where the condition needs the event time; `& 0` takes it out again.
    return timed.where(F.hash(column).bitwiseAND(F.lit(0)) + number == part)


def _seen(frame: DataFrame, column: str, partitions: int, checkpoint: Path) -> Mapping[int, datetime]:
    """Return the latest time of each partition in all files that the query has read, or has begun to read.

    Those that it has begun to read are in its next batch, which is the first that these times reach: so they never run
    ahead. Files whose rows all lie behind the watermark are left out by their statistics.
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
    """Return the directory that a stream reads, and how its store is reached, from Spark's plan of it."""
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
    """Return how far the query's sources have read, or have begun to: of several the one that is furthest behind."""
    begun = batch_numbers(checkpoint / "offsets")
    found: list[Position] = []
    for line in (checkpoint / "offsets" / str(max(begun))).read_text("utf-8").splitlines()[2:] if begun else ():
        _, brace, rest = line.partition("{")  # a name may stand before it
        with suppress(ConfigError, ValueError):  # of another source: the query says so
            found.append(Position.from_json(json.loads(brace + rest)))
    return min(found, key=lambda position: (position.entry, position.file), default=Position())
