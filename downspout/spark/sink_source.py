"""A sink's directory as a source for PySpark: ``format("downspout-sink")``. Use ``stream_sink`` and ``read_sink``.

The driver plans from the commit log alone (``downspout/sink/log_stream.py``). Tasks locate the files, read them with
pyarrow and pass Arrow batches to Spark. Spark's own file source would be faster, but it identifies files by name.

Spark keeps the end of each batch, a position in the log, in its checkpoint. After a restart it requests the files of
the last written batch again, so these depend on the two positions and on the log alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from downspout.errors import SinkError
from downspout.settings.object_path import place
from downspout.sink.aggregation import END, LATE
from downspout.sink.layout import Layout
from downspout.sink.log import CommitLog
from downspout.sink.log_entry import DataFile
from downspout.sink.log_stream import AFRESH, Follower, Position
from downspout.sink.object_store import storage_of
from downspout.sink.snapshot import View, open_file
from downspout.sink.storage import Storage

NAME = "downspout-sink"

TASK_BYTES_MAX = 128 << 20
FILE_COST_BYTES = 4 << 20
"""Spark's rule for packing files into tasks: opening a file costs as much as reading so many bytes."""

BATCH_ROWS = 32_768


@dataclass
class Files(InputPartition):
    """A task's data files, by their names in the log."""

    paths: tuple[str, ...]


class SinkSource(DataSource):
    """The source. ``stream_sink`` registers it and passes the columns of the log."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def reader(self, schema: StructType) -> FilesReader:
        """Return the reader of a batch query."""
        return FilesReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> SinkReader | ClosedReader:
        """Return the reader of a streaming query."""
        given = {name.lower(): value for name, value in self.options.items()}
        reader = ClosedReader if given.get("closed") == "true" else SinkReader
        return reader(dict(self.options), schema)


class _Reads:
    """The common part of all readers, copies of which read on the executors."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self._directory = place(self._given["path"])
        self._parallelism = int(self._given.get("parallelism", 1))
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def _disk(self) -> Storage:
        """Return the directory's storage, with secrets resolved on this machine."""
        return storage_of(self._directory, json.loads(self._given.get("storageoptions", "[]")))

    def _packed(self, files: Sequence[DataFile]) -> list[InputPartition]:
        return [Files(tuple(file.path for file in packed)) for packed in pack(files, self._parallelism)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files, on an executor."""
        disk = self._disk()
        view = View(Layout(self._directory), 0, self._schema, ())
        for path in partition.paths:
            yield from read_file(view, path, disk)


class FilesReader(_Reads, DataSourceReader):
    """Reads the files that the log had when the DataFrame was created, each at its current location."""

    def partitions(self) -> list[InputPartition]:
        """Return the tasks' files."""
        named = json.loads(self._given["files"])
        # Without partitions, Spark would read a default one.
        return self._packed([DataFile(path, 0, size) for path, size in named]) or [Files(())]


class SinkReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: one instance plans on the driver, copies of another read on the executors."""

    def __getstate__(self) -> dict[str, Any]:
        """Omit the follower, which holds the log and connections."""
        return {name: value for name, value in vars(self).items() if name != "_follower"}

    @cached_property
    def _follower(self) -> Follower:
        return Follower(self._directory, self._files_max, self._number("maxbytespertrigger"), self._disk())

    @property
    def _files_max(self) -> int | None:
        return self._number("maxfilespertrigger")

    def _number(self, option: str) -> int | None:
        return int(self._given[option]) if option in self._given else None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without checkpoint starts."""
        return Position().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options. PySpark has no combined limit; ``latestOffset`` applies both numbers."""
        if self._files_max is not None:
            return ReadMaxFiles(self._files_max)
        bytes_max = self._number("maxbytespertrigger")
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends."""
        limited = not isinstance(limit, ReadAllAvailable)
        return self._follower.latest(Position.from_json(start), limited=limited).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the log's current end."""
        self._follower.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks' files of a batch."""
        files = self._follower.files(Position.from_json(start), Position.from_json(end))
        return self._packed(files)


@dataclass
class ClosedFiles(Files):
    """A task's files, of which it reads the rows of windows that have become final."""

    after: int | None  # in µs: windows that end after this …
    until: int  # … and at or before this


class ClosedReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads windows once they are final.

    A position is a watermark. Rows of final windows never change (``downspout/sink/aggregation.py``), so the rows
    between two watermarks are the same whenever they are read, and whichever files hold them.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._last: dict[str, Any] | None = None  # the end of a query with availableNow

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without checkpoint starts."""
        return {"log": "", "rebuild": 0, "watermark": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit, because a window is read whole."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the watermark, if it has moved."""
        end = self._last or self._read_log()[0]
        if end["watermark"] is None and start == self.initialOffset():
            return start
        self._check(start, end)
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the current watermark."""
        self._last = self._read_log()[0]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks' files of a batch."""
        if end["watermark"] is None:
            return []
        now, files = self._read_log()
        self._check(end, now)
        bounds = start["watermark"], end["watermark"]
        return [ClosedFiles(tuple(file.path for file in packed), *bounds) for packed in pack(files, self._parallelism)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows that became final, on an executor."""
        after, until = (pa.scalar(each, pa.int64()) for each in (partition.after, partition.until))
        for batch in super().read(partition):
            ends = batch.column(END).cast(pa.int64())
            wanted = pc.and_(pc.less_equal(ends, until), pc.equal(batch.column(LATE), pa.scalar(0, pa.int64())))
            if partition.after is not None:
                wanted = pc.and_(wanted, pc.greater(ends, after))
            yield batch.filter(wanted)

    def _read_log(self) -> tuple[dict[str, Any], list[DataFile]]:
        """Return the position of the log's end and the current files."""
        log = CommitLog(self._directory, self._disk())
        log.refresh()
        first = log.entry(0) if log.length else None
        log.sync()
        position = {"log": first.writer if first else "", "rebuild": log.rebuild, "watermark": log.watermark.value}
        return position, list(log.files.values())

    def _check(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Raise a SinkError if the directory is not the one that was read before."""
        if before["log"] and (before["log"], before["rebuild"]) != (now["log"], now["rebuild"]):
            raise SinkError(
                f"{self._directory} was rebuilt, or has another commit log than the one that was read", cure=AFRESH
            )


def pack(files: Sequence[DataFile], parallelism: int) -> list[list[DataFile]]:
    """Distribute the files over tasks, in order, of about equal sizes up to 128 MB.

    >>> [len(task) for task in pack([DataFile(str(n), 1, 1_000_000) for n in range(10)], 2)]
    [5, 5]
    >>> [len(task) for task in pack([DataFile(str(n), 1, 100_000_000) for n in range(3)], 2)]
    [1, 1, 1]
    """
    costs = [file.bytes + FILE_COST_BYTES for file in files]
    most = min(TASK_BYTES_MAX, -(-sum(costs) // max(parallelism, 1)))
    tasks: list[list[DataFile]] = []
    room = 0
    for file, cost in zip(files, costs, strict=True):
        if not tasks or cost > room:
            tasks.append([])
            room = max(most, cost)
        tasks[-1].append(file)
        room -= cost
    return tasks


def read_file(view: View, path: str, disk: Storage) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file with the columns of the view."""
    folders = view.folders(path)
    names = [name for name in view.schema.names if name not in folders]
    try:
        handle = open_file(view, path, disk)
    except FileNotFoundError as error:
        raise SinkError(f"{error.filename} was deleted while it was being read", cure="run the query again") from None
    with handle:
        file = pq.ParquetFile(handle)
        written = set(file.schema_arrow.names)  # an older version of the topology may have had fewer columns
        for batch in file.iter_batches(BATCH_ROWS, columns=[n for n in names if n in written], use_threads=False):
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
            arrays = [
                found[field.name].cast(field.type)
                if field.name in found
                else pa.repeat(folders.get(field.name, pa.scalar(None, field.type)), batch.num_rows)
                for field in view.schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=view.schema)
