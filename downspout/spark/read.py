"""Read a sink's directory into a DataFrame: the current rows (batch), or also later ones (streaming).

Both use the commit log, and so see the same rows before, during and after a compaction.

A DataFrame is lazy: Spark lists the files when it is created and reads them when rows are needed, perhaps after a
compaction has moved them. So :func:`read_sink` reads a *snapshot*, hard links to the current files (see
``downspout/sink/log_stream.py``), with Spark's own Parquet reader. Nothing signals when the last DataFrame on it is
gone, so the links live as long as this process. Objects have no links: for an object store, the DataFrame has the
files' names, and its tasks look up where each one is.

Spark's file source identifies files by name, so a streaming query would read a compacted file as a new one. So
:func:`stream_sink` has its own source, which reads the log (``downspout/spark/sink_source.py``). It also reads the
objects of batch queries: with pyarrow, so Spark needs no jar for them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.errors import ConfigError, SinkError
from downspout.formatting import nearest
from downspout.settings.object_path import place
from downspout.settings.secrets import STORAGE_OPTIONS
from downspout.settings.table import SETTINGS
from downspout.sink.aggregation import END, FINISHERS, LATE, logged_schema
from downspout.sink.log import logged_columns
from downspout.sink.log_entry import DataFile
from downspout.sink.object_store import storage_of
from downspout.sink.recovery import SPARK_LOG
from downspout.sink.schema import merge_schemas, refusals
from downspout.sink.snapshot import ORIGIN_COLUMNS, View, pin, remove_snapshot, restarting, wherever
from downspout.sink.storage import Storage
from downspout.spark import check_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ORIGIN_COLUMNS", "finish_aggregates", "frame_of", "read_sink", "sink_schema", "stream_sink"]

logger = logging.getLogger("downspout.spark")

STREAM_OPTIONS = ("maxFilesPerTrigger", "maxBytesPerTrigger")
"""Options of :func:`stream_sink`, with the meaning of Spark's file source."""

_REFUSED = {
    "latestFirst": "files are read in the order of the commit log: newest first would let the watermark run ahead",
    "maxFileAge": "no file is too old: the commit log says which there are",
    "maxCachedFiles": "nothing is listed, so nothing is cached",
    "discardCachedInputRatio": "nothing is listed, so nothing is cached",
    "fileNameOnly": "files are known by the commit log, not by their names",
    "cleanSource": "the commit log names the files of a sink: one that is deleted or moved is missing to the audit",
    "sourceArchiveDir": "the commit log names the files of a sink: one that is moved is missing to the audit",
    "recursiveFileLookup": "folders such as month=7 would no longer be columns",
    "pathGlobFilter": "rows would be missing silently",
    "ignoreCorruptFiles": "rows would be missing silently",
    "ignoreMissingFiles": "rows would be missing silently",
}

_READ_OPTIONS = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "__globPaths__": "false"}
"""These override the session's settings. The last one is internal to Spark: it disables globbing in paths."""

_snapshots: dict[tuple[Path, int], tuple[Path, float]] = {}
"""Snapshots and their times by directory and log length; repeated reads of an unchanged directory share one."""
_ours: list[Path] = []
REUSED_S = 3600.0  # Older ones are not reused, because a compaction may soon delete them


def read_sink(
    spark: SparkSession,
    directory: str | Path,
    *,
    origins: bool = False,
    closed: bool = False,
    storage_options: Sequence[str] = (),
) -> DataFrame:
    """Return the current rows of a sink's directory, each exactly once; Hive folders become columns.

    The DataFrame keeps these rows, whatever is flushed, compacted or rebuilt before it is evaluated, until the process
    ends, but no longer than ``downspout compact --keep``. If links are impossible (in a read-only directory), it reads
    the files in place, and fails if a compaction moves one before it is read.

    Args:
        spark: the session.
        directory: the sink's ``parquet.directory``.
        origins: whether to keep the origin columns.
        closed: whether to return only final windows, as for :func:`~downspout.sink.snapshot.read_table`.
        storage_options: access to an object store, as ``parquet.storage_options``; references to secrets are resolved
            on each executor. Default: that setting in this process's environment.

    Raises:
        SinkError: the directory does not exist, no sink has flushed to it, or its log is damaged.
        ConfigError: sinks cannot write to such a place, or ``closed`` is set for rows without windows.
    """
    path = place(directory).resolve()
    options = _storage_options(storage_options)
    disk = storage_of(path, options)
    _check_sinks(path, disk)

    def frame_of_view(view: View) -> DataFrame:
        frame = _frame_now(spark, view, options, disk)
        return _in_closed_windows(frame, view) if closed else frame

    frame = restarting(path, disk, frame_of_view)
    return frame if origins else frame.drop(*ORIGIN_COLUMNS)


def _in_closed_windows(frame: DataFrame, view: View) -> DataFrame:
    view.check_windows()
    if (watermark := view.watermark.value) is None:
        return frame.limit(0)
    return frame.where(f"{END} <= timestamp_micros({watermark}) AND {LATE} = 0")


def _storage_options(given: Sequence[str]) -> list[str]:
    """Return the storage options, by default those of the environment."""
    setting = SETTINGS[STORAGE_OPTIONS]
    return list(setting.parse(list(given) or os.environ.get(setting.env) or [], "storage_options"))


def _frame_now(spark: SparkSession, view: View, options: Sequence[str], disk: Storage) -> DataFrame:
    if disk.is_remote:
        return _frame_by_source(spark, view.directory, view, view.files, options)
    try:
        path = _pinned(view)
    except FileNotFoundError:
        raise
    except OSError as error:
        logger.warning("%s: no links can be made (%s): a compaction may make reads fail", view.directory, error)
        return _frame_in_place(spark, view, view.files)
    return _reader(spark, view).parquet(str(path))


def _pinned(view: View) -> Path:
    """Return a snapshot that is deleted when this process ends."""
    now = time.monotonic()
    path, since = _snapshots.get((view.directory, view.length), (None, 0.0))
    if path is not None and now - since < REUSED_S and path.is_dir():
        return path
    if not _ours:
        atexit.register(remove_snapshots)
    path = pin(view, view.files)
    _snapshots[view.directory, view.length] = path, now
    _ours.append(path)
    return path


def remove_snapshots() -> None:
    for path in _ours:
        with contextlib.suppress(OSError):  # a compaction deletes the rest
            remove_snapshot(path)


def _frame_by_source(
    spark: SparkSession, directory: Path, view: View, files: Iterable[DataFile], options: Sequence[str]
) -> DataFrame:
    """Return the rows of files, each located when it is read."""
    check_pyspark()
    from pyspark.sql.pandas.types import from_arrow_schema

    from downspout.spark.sink_source import NAME, SinkSource

    spark.dataSource.register(SinkSource)
    given = {"files": json.dumps([[file.path, file.bytes] for file in files]), **_source_options(spark, options)}
    return spark.read.format(NAME).schema(from_arrow_schema(view.schema)).options(**given).load(str(directory))


def _source_options(spark: SparkSession, options: Sequence[str]) -> dict[str, str]:
    """Return the internal options of our source."""
    return {"parallelism": str(spark.sparkContext.defaultParallelism), "storageOptions": json.dumps(list(options))}


def _reader(spark: SparkSession, view: View) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.read.schema(from_arrow_schema(view.schema)).options(**_READ_OPTIONS)


def _frame_in_place(spark: SparkSession, view: View, files: Iterable[DataFile]) -> DataFrame:
    """Return the rows of files at their current locations.

    Raises:
        FileNotFoundError: one no longer exists.
    """
    found: dict[Path, list[str]] = {}
    for file in files:
        path = wherever(view.layout, file.path, lambda path: path.stat() and path)
        top = next(top for top in view.layout.places if path == view.layout.at(top, file.path))
        found.setdefault(top, []).append(str(path))
    frames = [
        _reader(spark, view).option("basePath", str(top)).parquet(*found[top])
        for top in view.layout.places
        if top in found
    ]
    if not frames:
        from pyspark.sql.pandas.types import from_arrow_schema

        return spark.createDataFrame([], from_arrow_schema(view.schema))
    return reduce(lambda one, other: one.unionByName(other), frames)


def frame_of(spark: SparkSession, directory: Path, files: Sequence[DataFile], options: Sequence[str]) -> DataFrame:
    """Return the rows of some files of a directory, to be evaluated at once. Raises SinkError: a file is gone."""
    disk = storage_of(directory, options)
    view = View.of(directory, disk)
    try:
        if disk.is_remote:
            return _frame_by_source(spark, directory, view, files, options)
        return _frame_in_place(spark, view, files)
    except FileNotFoundError as error:
        raise SinkError(f"{error.filename} is gone", cure="restore it from a backup") from None


def _check_sinks(path: Path, disk: Storage) -> None:
    """Raise if the directory has no commit log but the file list of a Spark query."""
    if disk.exists(path / SPARK_LOG) and logged_columns(path, disk) is None:
        raise SinkError(
            f"{path} is the output of a streaming query, not of a sink", cure="spark.read.parquet for a query's output"
        )


def stream_sink(
    spark: SparkSession,
    directory: str | Path,
    *,
    sink: Any = None,
    origins: bool = False,
    closed: bool = False,
    storage_options: Sequence[str] = (),
    **options: str | int,
) -> DataFrame:
    """Return the present and future rows of a sink's directory as a stream, each exactly once.

    They arrive in the order of the commit log. The topology may be running, stopped or not started yet; the directory
    may be compacted, and even moved between two runs of the query.

    Args:
        spark: the session.
        directory: the sink's ``parquet.directory``.
        sink: the sink in the topology (``FlightDelays.flights``), needed for the columns only before its first flush.
        origins: whether to keep the origin columns; watermarks by partition need them
            (:func:`~downspout.spark.event_time.event_time`).
        closed: whether to return the rows of a window only once it is final, all in one micro-batch, each window once.
            Later rows are omitted.
        storage_options: access to an object store, as in :func:`read_sink`.
        options: those in STREAM_OPTIONS. ``maxFilesPerTrigger=100`` limits a micro-batch.

    Raises:
        SinkError: the columns are unknown, the log and the sink disagree on them, or a streaming query has written
            there. A running query raises it if the directory was rebuilt, or if the query was behind for longer than
            compactions keep replaced files.
        ConfigError: an option is unknown or has no effect here, or ``closed`` is set for rows without windows.
        MissingExtraError: PySpark is older than 4.2.
    """
    check_pyspark()
    from pyspark.sql.types import StructType

    from downspout.spark.sink_source import NAME, SinkSource

    path = place(directory).resolve()
    given = _checked_options(options)
    reached = _storage_options(storage_options)
    disk = storage_of(path, reached)
    _check_sinks(path, disk)
    schema = sink_schema(path, sink, storage_options=reached)
    _make(path, disk)
    if closed and (given or END not in schema.names):
        what = f"{min(given)} has no effect: a window is read whole" if given else f"{path} has no windows"
        raise ConfigError(f"closed=True: {what}", cure="leave one of them out")
    fields = [field for field in schema.fields if origins or field.name not in ORIGIN_COLUMNS]
    spark.dataSource.register(SinkSource)
    reader = (
        spark.readStream.format(NAME).schema(StructType(fields)).options(**given, **_source_options(spark, reached))
    ).option("closed", closed)
    return reader.load(str(path))


def _checked_options(options: dict[str, str | int]) -> dict[str, str]:
    known = {name.lower(): name for name in (*STREAM_OPTIONS, *_REFUSED)}
    given = {}
    for name, value in options.items():
        spelled = known.get(name.lower())
        if spelled is None:
            cure = known.get(nearest(name.lower(), known, ""), f"one of {', '.join(STREAM_OPTIONS)}")
            raise ConfigError(f"{name} is not an option of stream_sink", cure=cure)
        if spelled in _REFUSED:
            raise ConfigError(f"{spelled}={value}: {_REFUSED[spelled]}", cure=f"leave {spelled} out")
        if not str(value).isdecimal() or not int(value):
            raise ConfigError(f"{spelled}={value} is not a number above 0", cure=f"{spelled}=100")
        given[spelled] = str(value)
    return given


def _make(path: Path, disk: Storage) -> None:
    """Create the directory, if missing, durably, as the sink would."""
    if disk.is_remote:
        return
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    disk.make_folder(path)
    for folder in new:
        disk.sync(folder.parent)


def sink_schema(directory: str | Path, sink: Any = None, *, storage_options: Sequence[str] = ()) -> StructType:
    """Return the columns of a sink's directory as Spark reads them, those of folders last.

    Args:
        directory: the sink's ``parquet.directory``.
        sink: the sink in the topology, if the directory has no commit log yet.
        storage_options: access to an object store, as in :func:`read_sink`.

    Raises:
        SinkError: neither a commit log nor a sink exists, they disagree, or the log is damaged.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    path = place(directory)
    logged = logged_columns(path, storage_of(path, _storage_options(storage_options)))
    declared = _declared(sink) if sink is not None else None
    if logged is None and declared is None:
        raise SinkError(
            f"{path} has no commit log yet, so its columns are not known",
            cure="name the sink, as in stream_sink(…, sink=FlightDelays.flights); or run the topology once",
        )
    if logged is None or declared is None or set(logged) == set(declared):
        return from_arrow_schema(logged_schema(logged or declared or ()))
    if refusals(logged, declared) and refusals(declared, logged):
        raise SinkError(
            f"{path} has the columns {', '.join(logged)}; the sink has {', '.join(declared)}",
            cure="the directory of that sink, or leave sink out: the commit log knows the columns",
        )
    return from_arrow_schema(logged_schema(merge_schemas([logged, declared])))


def _declared(sink: Any) -> tuple[str, ...]:
    """Return the columns of a topology's sink in the notation of the commit log."""
    config = sink.config if isinstance(sink.config, dict) else json.loads(sink.config)  # streamparse serializes it
    return (
        *sink.component_cls.fingerprint(config), *(f"/{name}" for name in config.get("parquet.partition_by", ()))
    )  # fmt: skip


def finish_aggregates(frame: DataFrame, keys: Sequence[str], aggregates: Sequence[str]) -> DataFrame:
    """Return one row per key from the partial aggregates that an AggregateBolt wrote.

    Each flush of each task writes one row per key, so a key has many rows. Counts and sums are added; minima and maxima
    are reduced to the lowest and highest. For a mean, keep sum and count, and divide at the end.

    Args:
        frame: the partial aggregates.
        keys: the topology's ``parquet.keys``, or some of them for a coarser result.
        aggregates: the topology's ``parquet.aggregates`` (``count``, ``sum:delay``), or some of them.

    Raises:
        ConfigError: an aggregate is unknown, or its column or a key is missing.
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
    if function not in FINISHERS or (not column and function != "count"):
        raise ConfigError(f"{aggregate!r} cannot be finished", cure="count, count:x, sum:x, min:x or max:x")
    return (f"{function}_{column}" if column else function), FINISHERS[function]
