"""Readers that go through the commit log: each row once, before, during and after a compaction.

Two ways, for two kinds of readers:

* :func:`snapshot` pins the present state: a folder of hard links to the committed files. Any engine can read it as a
  directory of Hive folders, for as long as it likes: no flush, compaction, sweep or rebuild changes it.
* :func:`read_table` reads at once, into an Arrow table with the declared columns. It writes nothing at all.

Neither ever writes to the log, and neither waits for a writer.
"""

from __future__ import annotations

import errno
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.dataset as ds  # which imports pandas, where it is installed: half a second of a start
import pyarrow.parquet as pq
from pyarrow import fs

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import ConfigError, SinkError
from downspout.settings.object_path import ObjectPath, place
from downspout.sink.aggregation import END, LATE, START, Watermark, logged_schema
from downspout.sink.layout import Layout
from downspout.sink.log import CommitLog
from downspout.sink.log_entry import DataFile, Partition
from downspout.sink.log_stream import gone
from downspout.sink.object_store import storage_of
from downspout.sink.recovery import lost_log
from downspout.sink.schema import ORIGIN_SCHEMA, hive_values
from downspout.sink.storage import Storage

logger = logging.getLogger("downspout.sink")

_TIME = "%Y%m%dT%H%M%SZ"
"""A snapshot's name begins with it, for people; no reader of Parquet looks into folders that begin with a dot."""
SWEPT = ".swept-"  # How the name of a snapshot begins that is being deleted
EMPTY_NAME = "empty.parquet"
_THREADS = 4
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


@contextmanager
def snapshot(directory: str | Path) -> Iterator[Path]:
    """Yield a folder with the present rows of a sink's directory; it stays unchanged until the block ends.

    Its files are hard links, so it takes no disk space, only names. They are not deleted meanwhile. If the process
    dies, the folder stays until ``downspout compact`` finds it older than its ``--keep``.

    Args:
        directory: the sink's ``parquet.directory``.

    Raises:
        SinkError: the directory does not exist, has no log, is damaged, or links cannot be made beside it.
        ConfigError: it is on an object store, which has no links.

    >>> import pandas as pd
    >>> with snapshot("output/flights") as path:  # doctest: +SKIP
    ...     frame = pd.read_parquet(path)
    """
    path = take_snapshot(directory)
    try:
        yield path
    finally:
        with suppress(OSError):  # what stays is deleted by a compaction
            remove_snapshot(path)


def take_snapshot(directory: str | Path, *, disk: Storage | None = None, clock: Clock = SYSTEM_CLOCK) -> Path:
    """Return a new snapshot, which the caller removes; for callers that cannot use a ``with`` block.

    Raises:
        SinkError, ConfigError: as for :func:`snapshot`.
    """
    top = place(directory)
    if isinstance(top, ObjectPath):
        raise ConfigError(
            f"{top} is on {top.scheme}, where files have no links: a snapshot would copy all rows",
            cure="read_table, which reads each row once; or the plain directory, with any reader of Parquet",
        )
    try:
        return restarting(top, disk, lambda view: pin(view, view.files, disk=disk, clock=clock))
    except OSError as error:
        raise SinkError(
            f"no snapshot can be made in {Layout(top).snapshots}: {error.strerror or error}",
            cure="read_table, which needs no links; or the right to write there, on the directory's own file system, "
            "and hard links on it",
        ) from error


def pin(view: View, files: Iterable[DataFile], *, disk: Storage | None = None, clock: Clock = SYSTEM_CLOCK) -> Path:
    """Return a new folder with links to data files.

    Raises:
        FileNotFoundError: a file is gone.
        OSError: links cannot be made.
    """
    disk = disk or storage_of(view.directory)
    stamp = time.strftime(_TIME, time.gmtime(clock.wall()))
    top = view.layout.snapshots / f"{stamp}-{view.length}-{uuid.uuid4().hex[:12]}"
    made: set[Path] = set()
    try:
        for file in files:
            target = top / file.path
            if target.parent not in made:
                disk.make_folder(target.parent)
                made.add(target.parent)
            wherever(view.layout, file.path, lambda place, target=target: disk.link(place, target))  # type: ignore[misc]
        if not made:  # no engine reads a folder without files: what are its columns?
            disk.make_folder(top)
            content = pa.BufferOutputStream()
            pq.write_table(view.schema.empty_table(), content)
            disk.write(top / EMPTY_NAME, content.getvalue().to_pybytes())
    except BaseException:
        shutil.rmtree(top, ignore_errors=True)
        raise
    return top


def remove_snapshot(snapshot: Path, disk: Storage | None = None) -> bool:
    """Delete a snapshot; return whether it was still there.

    It is renamed first: a reader that lists a half-deleted folder would take the remaining files for all of them.

    Raises:
        OSError: it cannot be renamed.
    """
    swept = snapshot
    if not snapshot.name.startswith(SWEPT):
        swept = snapshot.with_name(f"{SWEPT}{snapshot.name}")
        try:
            (disk or storage_of(snapshot)).rename(snapshot, swept)
        except FileNotFoundError:
            return False
    shutil.rmtree(swept, ignore_errors=True)
    return True


# --- into Arrow ---------------------------------------------------------------------------------------------


def read_table(
    directory: str | Path,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    *,
    origins: bool = False,
    closed: bool = False,
) -> pa.Table:
    """Return the rows of a sink's directory as they are now, each exactly once, with the columns as declared.

    The columns that name Hive folders have their types, and nulls are nulls, which not every reader infers by itself.
    It writes nothing, so it also works without write access. For pandas: ``.to_pandas()``; DuckDB and Polars take the
    table as it is.

    Args:
        directory: the sink's ``parquet.directory``.
        columns: which; None: all.
        filters: which rows: a ``pyarrow.dataset`` expression, or as for ``pandas.read_parquet``,
            ``[("month", "==", 7)]``. Files whose folders or statistics rule them out are not read.
        origins: whether to keep the columns that say which record a row came from.
        closed: whether to return only final windows, without rows that came later: the rows of a window never change.

    Raises:
        SinkError: the directory does not exist, has no log, or is damaged.
        ConfigError: a column does not exist, ``closed`` is given for rows without windows, or no sink can write to
            this kind of place.
    """
    wanted = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
    return restarting(
        place(directory), None, lambda view: read_view(view, columns, wanted, origins=origins, closed=closed)
    )


def in_closed_windows(view: View) -> ds.Expression:
    """Return which rows belong to final windows, as of the moment these became final.

    Raises:
        ConfigError: the rows have no windows.
    """
    view.check_windows()
    watermark = pa.scalar(view.watermark.value, pa.int64()).cast(view.schema.field(END).type)
    is_closed: ds.Expression = (ds.field(END) <= watermark) & (ds.field(LATE) == 0)
    return is_closed


def read_view(
    view: View,
    columns: Sequence[str] | None,
    wanted: ds.Expression | None = None,
    *,
    origins: bool = False,
    closed: bool = False,
) -> pa.Table:
    """Return rows of a view; the other arguments are those of :func:`read_table`.

    Raises:
        FileNotFoundError: a file is gone.
    """
    if closed:
        is_closed = in_closed_windows(view)
        wanted = is_closed if wanted is None else wanted & is_closed
    names = view.schema.names if origins else [name for name in view.schema.names if name not in ORIGIN_COLUMNS]
    for name in columns or ():
        if name not in view.schema.names:
            raise ConfigError(f"{view.directory} has no column {name}", cure=f"one of {', '.join(view.schema.names)}")
    shape: dict[str, Any] = {
        "schema": view.schema,
        "columns": list(names if columns is None else columns),
        "filter": wanted,
    }
    with ThreadPoolExecutor(_THREADS) as pool:
        tables = list(pool.map(lambda path: _read_file(view, path, shape), _ruled_in(view, wanted)))
    empty = ds.dataset(view.schema.empty_table()).to_table(columns=shape["columns"])
    return pa.concat_tables([empty, *(table for table in tables if table.num_rows)])


def read_files(view: View, files: Iterable[DataFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some data files, one file after another, with columns of the directory.

    Raises:
        SinkError: a file is gone, or cannot be read.
    """
    shape: dict[str, Any] = {"schema": view.schema, "columns": list(columns), "filter": None}
    for file in files:
        try:
            yield from _read_file(view, file.path, shape).to_batches()
        except FileNotFoundError:
            raise gone(view.directory, file) from None


def _ruled_in(view: View, wanted: ds.Expression | None) -> list[str]:
    """Return the files whose folders do not rule them out; none is opened."""
    make = ds.ParquetFileFormat().make_fragment
    here = fs.LocalFileSystem()
    every = [make(file.path, here, partition_expression=view.guarantee(file.path)) for file in view.files]
    fragments = ds.FileSystemDataset(every, view.schema, ds.ParquetFileFormat(), here).get_fragments(wanted)
    return [fragment.path for fragment in fragments]


def _read_file(view: View, path: str, shape: dict[str, Any]) -> pa.Table:
    """Read one file by its handle: once that is open, it may be moved or deleted."""
    with open_file(view, path) as file:
        fragment: Any = _FORMAT.make_fragment(cast(Any, file), partition_expression=view.guarantee(path))
        try:
            fragment.ensure_complete_metadata()
        except (OSError, pa.ArrowInvalid) as error:
            raise _damaged(view, path, error) from error
        try:
            return cast(pa.Table, fragment.to_table(**shape))
        except OSError as error:  # pages that cannot be decoded
            raise _damaged(view, path, error) from error


def open_file(view: View, path: str, disk: Storage | None = None) -> pa.NativeFile:
    """Open a data file at its present place.

    Args:
        view: whose file it is.
        path: as the log names it.
        disk: the directory's storage; None: from the environment.

    Raises:
        FileNotFoundError: it is nowhere any more.
        SinkError: it cannot be read.
    """
    try:
        return wherever(view.layout, path, lambda place: _opened(place, disk))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _damaged(view, path, error) from error


def _opened(path: Path, disk: Storage | None) -> pa.NativeFile:
    if isinstance(path, ObjectPath):
        return pa.BufferReader((disk or storage_of(path)).read(path))
    return pa.OSFile(str(path), "rb")


def _damaged(view: View, path: str, error: Exception) -> SinkError:
    return SinkError(
        f"{view.directory / path} cannot be read: {error}",
        cure="correct the permissions, or restore it from a backup; downspout audit names the records",
    )


# --- what a directory holds, as its commit log says ---
#
# While a compaction renames files, a reader that lists the directory may see the old files and the new one, or neither.
# A reader that takes the list of files from the log sees each row once at every moment, and then opens each file where
# it is by now. A file only ever moves forward: from staging to its final name, and from there to the replaced files,
# which are kept for a while. So checking these three places, in that order, finds every file that still exists. The
# rows of a deleted file are in newer files, which the log names.

ORIGIN_COLUMNS = tuple(ORIGIN_SCHEMA.names)
"""What the sinks write beside the row: which record it came from, and which of that record's rows it is."""

RESTARTS_MAX = 10

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class View:
    """The content of a directory after some entries of its log."""

    layout: Layout  # where its files are
    length: int  # how many entries
    schema: pa.Schema  # of the rows, the columns of Hive folders last
    files: tuple[DataFile, ...]  # that hold the rows; their folders are part of the rows
    watermark: Watermark = field(default_factory=Watermark)  # which windows are final

    @property
    def directory(self) -> Path:
        """The sink's."""
        return self.layout.directory

    @classmethod
    def of(cls, directory: Path, disk: Storage | None = None) -> View:
        """Return a view of a directory's present content."""
        log = CommitLog(directory, disk)
        if not log.disk.is_remote and not directory.is_dir():
            raise SinkError(f"{directory} does not exist", cure="run the topology that writes it")
        log.refresh()
        log.check_complete()
        if log.schema is None:
            if (error := lost_log(log)) is not None:
                raise error
            raise SinkError(
                f"{directory} has no commit log: no sink has flushed to it",
                cure="run the topology until it has flushed once; what others wrote is read as it is",
            )
        schema = logged_schema(log.schema)
        return cls(log.layout, log.length, schema, tuple(log.files.values()), log.watermark)

    def check_windows(self) -> None:
        """Raise a ConfigError if the rows have no windows."""
        if END not in self.schema.names:
            raise ConfigError(
                f"{self.directory} has no windows, so none is closed",
                cure='a directory of an AggregateBolt with a key such as "window(departure, 1 hour)"',
            )

    def folders(self, path: str) -> dict[str, Any]:
        """Return the columns that the folders of a data file name, with their values as Arrow scalars."""
        found = hive_values(path)
        return {
            name: pa.scalar(text, pa.string()).cast(self.schema.field(name).type)
            for name, text in found.items()
            if name in self.schema.names
        }

    def guarantee(self, path: str) -> ds.Expression:
        """Return what the folders guarantee about all rows of a data file."""
        made: ds.Expression = ds.scalar(True)
        for name, value in self.folders(path).items():
            field = ds.field(name)
            made = made & (field == value if value.is_valid else field.is_null())
        return made


def wherever(layout: Layout, path: str, use: Callable[[Path], _Made]) -> _Made:
    """Use a data file at the first place where it exists: staged, published or replaced.

    Args:
        use: called with each place in turn; it raises FileNotFoundError if the file is not there.
    """
    for way in layout.way(path):
        try:
            return use(way)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(errno.ENOENT, "it is gone", str(layout.directory / path))


def restarting(directory: Path, disk: Storage | None, attempt: Callable[[View], _Made]) -> _Made:
    """Call ``attempt`` with a view of a directory; start again if a file was deleted before it was read."""
    view = View.of(directory, disk)
    for _ in range(RESTARTS_MAX):
        try:
            return attempt(view)
        except FileNotFoundError as error:
            before, view, gone = view, View.of(directory, disk), error.filename
            # If the log has new entries, the file was replaced and then deleted before it was read: start again.
            if view.length == before.length:
                raise SinkError(
                    f"{gone} is gone, although the commit log names it: its rows are missing",
                    cure=f"restore it from a backup; downspout audit {directory} names the records",
                ) from None
    raise SinkError(
        f"{directory}: files were replaced and deleted {RESTARTS_MAX} times while they were being read",
        cure="keep replaced files for longer (downspout compact --keep)",
    )


# --- windows: which are final, and where rows came late ---

COUNT = "count"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class WindowRow:
    """One window, over all its keys."""

    start: datetime | None  # None: of rows without a time
    end: datetime | None
    final: bool
    rows: int | None  # with the late ones; None where the sink does not count
    late_rows: int  # those that came when it was final


@dataclass(frozen=True)
class WindowReport:
    """The windows of a directory at one moment."""

    watermark: datetime | None  # windows that end by then are final
    windows: Sequence[WindowRow]  # in the order of their starts
    partitions: Mapping[Partition, datetime]  # how far each is that counts: of its writers, the one that is behind

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "watermark": _text(self.watermark),
            "final": sum(row.final for row in self.windows),
            "open": sum(not row.final for row in self.windows),
            "late_rows": sum(row.late_rows for row in self.windows),
            "windows": [{**vars(row), "start": _text(row.start), "end": _text(row.end)} for row in self.windows],
            "partitions": [
                {"topic": topic, "partition": number, "time": _text(at)}
                for (topic, number), at in self.partitions.items()
            ],
        }


def read_windows(directory: str | Path) -> WindowReport:
    """Return the windows of a sink's directory as they are now.

    Raises:
        SinkError: the directory does not exist, has no log, or is damaged.
        ConfigError: the rows have no windows, or no sink can write to this kind of place.
    """
    return restarting(place(directory), None, _report)


def _report(view: View) -> WindowReport:
    view.check_windows()
    counts = [LATE, *([COUNT] if COUNT in view.schema.names else [])]
    table = read_view(view, [START, END, *counts]).group_by([START, END]).aggregate([(name, "sum") for name in counts])
    watermark = None if view.watermark.value is None else _moment(view.watermark.value)
    windows = [
        WindowRow(
            row[START], row[END], watermark is not None and row[END] is not None and row[END] <= watermark,
            row.get(f"{COUNT}_sum"), row[f"{LATE}_sum"],
        )
        for row in table.sort_by(START).to_pylist()
    ]  # fmt: skip
    partitions: dict[Partition, int] = {}
    for (topic, partition, _), (at, _) in sorted(view.watermark.seen.items()):
        partitions[topic, partition] = min(at, partitions.get((topic, partition), at))
    return WindowReport(watermark, windows, {each: _moment(at) for each, at in partitions.items()})


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
