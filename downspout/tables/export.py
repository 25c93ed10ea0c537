"""Exports a sink's directory to a table: adds the log entries that the table lacks in one commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from downspout.errors import SinkError
from downspout.sink.log_stream import Follower, Position
from downspout.sink.snapshot import ORIGIN_COLUMNS, View, read_files

# --- A table ---


class Overtaken(Exception):
    """Another writer has committed to the table since :meth:`Target.look`; our commit failed."""


@dataclass(frozen=True)
class TableState:
    """The current state of a table."""

    exists: bool = False
    entries: int | None = None  # log entries exported to it; None: it holds no rows of this log
    changes: Sequence[str] = ()  # changes by others since our last commit: ``DELETE in version 7``


class Target(Protocol):
    """A table. :meth:`append` adds to the state that :meth:`look` read, or raises :class:`Overtaken`."""

    @property
    def title(self) -> str:
        """The table's name in messages."""
        ...

    def look(self, source: str) -> TableState:
        """Read the table's current state.

        Args:
            source: identifies the exported log and its rebuild.
        """
        ...

    def append(self, source: str, entries: int, rows: pa.RecordBatchReader) -> None:
        """Add rows and record the total of entries exported, in one commit. Creates a missing table.

        Raises:
            Overtaken: the table has changed since :meth:`look`.
        """
        ...


def widened(known: pa.Schema, schema: pa.Schema) -> list[pa.Field[Any]]:
    """Return the columns of a directory whose number type differs from the table's: they have been widened.

    >>> now = pa.schema([("n", pa.int64()), ("word", pa.string()), ("later", pa.int8())])
    >>> [field.name for field in widened(pa.schema([("n", pa.int32()), ("word", pa.large_string())]), now)]
    ['n']
    """
    return [
        field
        for field in schema
        if field.name in known.names and _is_number(field.type) and field.type != known.field(field.name).type
    ]


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def nullable(schema: pa.Schema) -> pa.Schema:
    """Make all columns nullable: a column added later has no values in older rows.

    >>> nullable(pa.schema([pa.field("n", pa.int64(), nullable=False)])).field("n").nullable
    True
    """
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


def with_schema(rows: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
    """Cast a stream of rows to another schema."""
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in rows))


# --- Exports ---


OVERTAKEN_MAX = 100
PROGRESS_S = 5.0


@dataclass(frozen=True)
class Exported:
    """One commit of the table."""

    rows: int
    files: int  # of the directory
    entries: int  # log entries exported in total


class Export:
    """An export of one directory to one table; several may run concurrently, and each row is exported once.

    Args:
        directory: the sink's ``parquet.directory``.
        target: the table.
        origins: whether to export the origin columns too.
        accept_changes: continue although others have changed rows of the table.
        say: receives progress lines of a long commit.
    """

    def __init__(
        self,
        directory: Path,
        target: Target,
        *,
        origins: bool = True,
        accept_changes: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._directory = directory
        self._target = target
        self._origins = origins
        self._accept_changes = accept_changes
        self._say = say
        self._follower = Follower(directory)

    def step(self) -> Exported | None:
        """Export all new rows in one commit; None if there are none.

        Raises:
            SinkError: the directory has no log, is damaged or was rebuilt; the table belongs to another directory, or
                others have changed it.
        """
        for _ in range(OVERTAKEN_MAX):
            head = self._follower.head()
            if head.is_new:
                View.of(self._directory)  # raises an error with the reason
            source = f"downspout:{head.log}/{head.rebuild}"
            start = self._start(head, self._target.look(source))
            end = self._follower.latest(start)
            if end == start:
                return None
            try:
                return self._take_over(source, start, end)
            except Overtaken:  # most likely by another export of the same rows
                continue
        raise SinkError(
            f"{self._target.title} was changed by others {OVERTAKEN_MAX} times while an export wrote to it",
            cure="let one export at a time write to it, or try again when the others have ended",
        )

    def _start(self, head: Position, held: TableState) -> Position:
        """Return the position in the log up to which rows are exported."""
        title = self._target.title
        if not held.exists:
            return Position()
        if held.entries is None:
            if held.changes:
                raise SinkError(
                    f"{title} already exists, but holds no rows of {self._directory} as it is now: it belongs to "
                    "another directory, or this one was rebuilt since",
                    cure="another --to or --table; or delete the table, to write all rows again",
                )
            return Position()  # a new table without rows
        if held.entries > head.base:
            raise SinkError(
                f"{title} has taken {held.entries:,} entries of the log of {self._directory}, which has only "
                f"{head.base:,}: the directory is an older copy",
                cure="restore the newer one; or another --to or --table, to write all rows again",
            )
        if held.changes and not self._accept_changes:
            raise SinkError(
                f"{title} was changed by others since the last export: {', '.join(held.changes[:5])}",
                cure="restore the table as it was, or continue despite these changes with --accept-changes",
            )
        return Position(head.log, head.rebuild, base=held.entries, entry=held.entries)

    def _take_over(self, source: str, start: Position, end: Position) -> Exported:
        files = self._follower.files(start, end)
        view = View.of(self._directory)
        names = [name for name in view.schema.names if self._origins or name not in ORIGIN_COLUMNS]
        total, taken = sum(file.rows for file in files), 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal taken
            said = time.monotonic()
            for batch in read_files(view, files, names):
                taken += batch.num_rows
                yield batch
                if (now := time.monotonic()) - said > PROGRESS_S:
                    self._say(f"{taken:,} of {total:,} rows")
                    said = now

        schema = pa.schema([view.schema.field(name) for name in names])
        self._target.append(source, end.entry, pa.RecordBatchReader.from_batches(schema, batches()))
        return Exported(taken, len(files), end.entry)
