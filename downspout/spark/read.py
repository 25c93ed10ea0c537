"""From a sink's directory to a DataFrame: of all rows (batch), or of those that come (streaming).

Why a streaming query sees each row exactly once. Spark's file source remembers the names of the files that it has
read, and its checkpoint holds them. So a file must appear whole, once, and never change, and that is what the sinks do
(``downspout/parquet/writer.py``). A file is staged below ``_downspout/``, where Spark does not look. It comes into
sight by one rename, after the commit log names its rows. Its name holds the writer's unique id, so it is never used
again, and nothing in sight is ever rewritten. A writer that stops between entry and rename only delays the file.

That delay is why :func:`stream_sink` sets ``maxFileAge``. By default Spark forgets files that are a week older than the
newest one it has read, and passes over whatever comes into sight with such an age. A file keeps the time at which it
was staged: one whose writer died before the rename, and that is renamed when the topology starts again weeks later,
beside another task that went on writing, would be lost without a word.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.errors import ConfigError, SinkError
from downspout.parquet.aggregate import Aggregate, fold
from downspout.parquet.disk import Disk
from downspout.parquet.entry import Entry
from downspout.parquet.log import CommitLog
from downspout.parquet.schema import ORIGIN_SCHEMA, Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ORIGIN_COLUMNS", "finish_aggregates", "read_sink", "sink_schema", "stream_sink"]

ORIGIN_COLUMNS = tuple(ORIGIN_SCHEMA.names)
"""What the sinks write beside the row: which record it came from, and which of that record's rows it is."""

SPARK_LOG = "_spark_metadata"
"""What a streaming query keeps in the directory that it writes: its list of files. Spark then reads no others."""

MAX_FILE_AGE = "36500d"
"""A hundred years: no file is too old to be read."""

STREAM_OPTIONS = ("maxFilesPerTrigger", "maxBytesPerTrigger", "maxCachedFiles", "discardCachedInputRatio", "maxFileAge")
"""Options of Spark's file source that :func:`stream_sink` passes on."""

_REFUSED = {
    "latestFirst": "newest files first let the watermark run ahead, and the older rows would be dropped as late",
    "fileNameOnly": "files of one flush have one name in several folders, and all but one would be passed over",
    "cleanSource": "the commit log names the files of a sink: one that is deleted or moved is missing to the audit",
    "sourceArchiveDir": "the commit log names the files of a sink: one that is moved is missing to the audit",
    "recursiveFileLookup": "folders such as month=7 would be no columns any more",
    "ignoreCorruptFiles": "rows would be missing without a word",
    "ignoreMissingFiles": "rows would be missing without a word",
}

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
        SinkError: the directory does not exist, holds no data file yet, or a streaming query has written to it.
    """
    path = Path(directory)
    if not path.is_dir():
        raise SinkError(f"{path} does not exist", cure="run the topology that writes it")
    _check_unowned(path)
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


def _check_unowned(path: Path) -> None:
    if (path / SPARK_LOG).exists():
        raise SinkError(
            f"{path} is the output of a streaming query: Spark reads what {SPARK_LOG} lists, no file of a sink",
            cure=f"spark.read.parquet for a query's output; if a sink writes here too, move {SPARK_LOG} and the "
            "query's files elsewhere",
        )


def stream_sink(
    spark: SparkSession, directory: str | Path, *, sink: Any = None, origins: bool = False, **options: str | int
) -> DataFrame:
    """Return the rows of a sink's directory as a stream, those that are there and those that come, each exactly once.

    The topology may be writing meanwhile, may have stopped, or may not have started yet.

    Args:
        spark: the session.
        directory: what the sink's ``parquet.directory`` says.
        sink: the sink in the topology (``FlightDelays.flights``): needed as long as it has never flushed, since a
            stream needs its columns beforehand. Afterwards the commit log has them.
        origins: whether to keep the origin columns; watermarks by partition need them
            (:func:`~downspout.spark.event_time.event_time`).
        options: of Spark's file source: those in STREAM_OPTIONS. ``maxFilesPerTrigger=100`` bounds a micro-batch.

    Raises:
        SinkError: the columns are not known, the log has others than the sink, or a streaming query has written there.
        ConfigError: an option is unknown, or would lose rows.
    """
    path = Path(directory).resolve()  # Spark knows files by their whole names: one directory must have one
    given = _checked_options(options)
    if glob := sorted(set(str(path)) & set("{}[]*?\\")):
        raise ConfigError(f"{path}: Spark takes {' '.join(glob)} for a pattern", cure="a directory without it")
    schema = sink_schema(path, sink)
    _check_unowned(path)
    _make(path)
    frame = spark.readStream.schema(schema).options(**given).parquet(str(path))
    return frame if origins else frame.drop(*ORIGIN_COLUMNS)


def _checked_options(options: dict[str, str | int]) -> dict[str, str]:
    known = {name.lower(): name for name in (*STREAM_OPTIONS, *_REFUSED)}
    given = {"maxFileAge": MAX_FILE_AGE}
    for name, value in options.items():
        spelled = known.get(name.lower())
        if spelled is None:
            near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
            raise ConfigError(
                f"{name} is no option of stream_sink",
                cure=known[near[0]] if near else f"one of {', '.join(STREAM_OPTIONS)}",
            )
        if spelled in _REFUSED and str(value).lower() not in ("false", "off"):
            raise ConfigError(f"{spelled}={value}: {_REFUSED[spelled]}", cure=f"leave {spelled} out")
        given[spelled] = str(value)
    return given


def _make(path: Path) -> None:
    """Make a directory that the sink has not made yet: durably, as the sink would, and Spark insists on one."""
    disk = Disk()
    new = [place for place in (path, *path.parents) if not place.exists()]
    disk.make_folder(path)
    for place in new:
        disk.sync(place.parent)


def sink_schema(directory: str | Path, sink: Any = None) -> StructType:
    """Return the columns of a sink's directory as Spark reads them; those that name folders are last.

    Args:
        directory: what the sink's ``parquet.directory`` says.
        sink: the sink in the topology, where the directory has no commit log yet.

    Raises:
        SinkError: neither the commit log nor a sink says, or they disagree; or the log is damaged.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    path = Path(directory)
    logged = _logged(path)
    declared = _declared(sink) if sink is not None else None
    if logged is None and declared is None:
        raise SinkError(
            f"{path} has no commit log yet, so its columns are not known",
            cure="name the sink, as in stream_sink(…, sink=FlightDelays.flights); or run the topology once",
        )
    if logged is not None and declared is not None and set(logged) != set(declared):
        raise SinkError(
            f"{path} has the columns {', '.join(logged)}; the sink has {', '.join(declared)}",
            cure="the directory of that sink, or no sink at all: the commit log knows the columns",
        )
    return from_arrow_schema(_arrow_schema(logged or declared or ()))


def _logged(path: Path) -> tuple[str, ...] | None:
    """Return the columns as the log's first entry has them; all entries have the same."""
    log = CommitLog(path)
    try:
        return Entry.from_bytes(log.path(0).read_bytes()).schema
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SinkError(f"{log.path(0)} is damaged: {error}", cure="restore it from a backup") from None


def _declared(sink: Any) -> tuple[str, ...]:
    """Return the columns of a sink of a topology, in the words of the commit log."""
    config = sink.config if isinstance(sink.config, dict) else json.loads(sink.config)  # streamparse keeps it as text
    columns = [column.declared for column in sink.component_cls.columns_of(config).columns]
    keys = [f"key {name}" for name in config.get("parquet.keys", ())]
    aggregates = [text.replace(":", "_") for text in config.get("parquet.aggregates", ())]
    return (*columns, *keys, *aggregates, *(f"/{name}" for name in config.get("parquet.partition_by", ())))


def _arrow_schema(fingerprint: Sequence[str]) -> Any:
    """Return the columns of the rows, from the words in which a commit log holds them.

    >>> _arrow_schema(["word:string", "n:int16", "key word", "count", "sum_n"]).names
    ['word', 'count', 'sum_n']
    >>> _arrow_schema(["word:string", "n:int16", "/word"]).names
    ['n', '_topic', '_topic_id', '_partition', '_offset', '_path', 'word']
    """
    import pyarrow as pa

    columns = Columns.parse([text for text in fingerprint if ":" in text]).schema
    folders = [text[1:] for text in fingerprint if text.startswith("/") and ":" not in text]
    keys = [text[4:] for text in fingerprint if text.startswith("key ") and ":" not in text]
    if keys:
        names = [text for text in fingerprint if ":" not in text and not text.startswith(("/", "key "))]
        functions = [Aggregate(function, column or None) for function, _, column in (n.partition("_") for n in names)]
        rows = fold(columns.empty_table(), keys, functions).schema
    else:
        rows = pa.schema([*columns, *ORIGIN_SCHEMA])
    # Spark puts folders' columns behind the others, and a stream that starts before there are folders must do the same.
    return pa.schema([field for field in rows if field.name not in folders] + [columns.field(name) for name in folders])


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
