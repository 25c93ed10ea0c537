"""What a directory holds, as its commit log says: the way in for readers.

A plain reader lists a directory. While a compaction, or whoever rolls it forward, renames files, a listing may have the
old ones and the new one, or neither. A reader that goes through the log takes the list of files from there, which has
each row once at every moment, and looks for each file where it is by then. Files go one way only: from staging into
sight, from there among the replaced, where they are kept for a while. So one look at the three places, in that order,
finds a file that was anywhere; it misses only one that was deleted in the end. Its rows are in newer files, and the
log says in which.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from downspout.errors import ConfigError, SinkError
from downspout.sink import hive
from downspout.sink.columns.aggregate import Aggregation
from downspout.sink.columns.window import END
from downspout.sink.layout import Layout
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.log.entry import DataFile
from downspout.sink.log.watermark import Watermark
from downspout.sink.recovery import lost_log
from downspout.sink.schema import ORIGIN_SCHEMA, Columns
from downspout.sink.storage import Storage

if TYPE_CHECKING:
    import pyarrow.dataset as ds

ORIGIN_COLUMNS = tuple(ORIGIN_SCHEMA.names)
"""What the sinks write beside the row: which record it came from, and which of that record's rows it is."""

RESTARTS_MAX = 10

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class View:
    """What a directory holds after some entries of its log."""

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
        """Return what a directory holds now."""
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
        found = hive.values(path)
        return {
            name: pa.scalar(text, pa.string()).cast(self.schema.field(name).type)
            for name, text in found.items()
            if name in self.schema.names
        }

    def guarantee(self, path: str) -> ds.Expression:
        """Return what its folders say of all rows of a data file."""
        import pyarrow.dataset as ds  # which imports pandas, where it is installed: half a second of a start

        made: ds.Expression = ds.scalar(True)
        for name, value in self.folders(path).items():
            field = ds.field(name)
            made = made & (field == value if value.is_valid else field.is_null())
        return made


def wherever(layout: Layout, path: str, use: Callable[[Path], _Made]) -> _Made:
    """Do something with a data file where it is by now.

    Args:
        use: what is done; a FileNotFoundError of it says that the file is not there.
    """
    for place in layout.way(path):
        try:
            return use(place)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(errno.ENOENT, "it is gone", str(layout.directory / path))


def restarting(directory: Path, disk: Storage | None, attempt: Callable[[View], _Made]) -> _Made:
    """Make something of what a directory holds; again where a file was deleted before it was reached."""
    view = View.of(directory, disk)
    for _ in range(RESTARTS_MAX):
        try:
            return attempt(view)
        except FileNotFoundError as error:
            before, view, gone = view, View.of(directory, disk), error.filename
            # That is no error if the log has moved on: the file was replaced, and not kept for long enough.
            if view.length == before.length:
                raise SinkError(
                    f"{gone} is gone, and the commit log names it: its rows are missing",
                    cure=f"restore it from a backup; downspout audit {directory} names the records",
                ) from None
    raise SinkError(
        f"{directory}: files were replaced and deleted {RESTARTS_MAX} times while they were being read",
        cure="keep what compactions replace for longer (downspout compact --keep)",
    )


def logged_columns(directory: Path, disk: Storage | None = None) -> tuple[str, ...] | None:
    """Return the columns of a directory in the words of its log, as they are now; None where there is no log.

    Raises:
        SinkError: the log is damaged.
    """
    log = CommitLog(directory, disk)
    log.refresh()
    return log.schema


def logged_folders(logged: Sequence[str]) -> list[str]:
    """Return the columns whose values are Hive folders, from the words in which a commit log holds them.

    >>> logged_folders(["word:string", "n:int16", "/word"])
    ['word']
    """
    return [text[1:] for text in logged if text.startswith("/") and ":" not in text]


def logged_schema(logged: Sequence[str]) -> pa.Schema:
    """Return the columns of the rows, from the words in which a commit log holds them. Those of folders are last.

    >>> logged_schema(["word:string", "n:int16", "key word", "count", "sum_n"]).names
    ['word', 'count', 'sum_n']
    >>> logged_schema(["word:string", "n:int16", "/word"]).names
    ['n', '_topic', '_topic_id', '_partition', '_offset', '_path', 'word']
    """
    columns = Columns.parse([text for text in logged if ":" in text])
    folders = logged_folders(logged)
    aggregation = Aggregation.logged(logged)
    rows = aggregation.schema(columns) if aggregation else pa.schema([*columns.schema, *ORIGIN_SCHEMA])
    ends = [columns.schema.field(name) for name in folders]
    return pa.schema([field for field in rows if field.name not in folders] + ends)
