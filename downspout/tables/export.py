"""Keep a table in step with a sink's directory: what the log has and the table has not goes over in one commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from downspout.errors import SinkError
from downspout.sink.readers.log_stream import Follower, Position
from downspout.sink.readers.snapshot import read_files
from downspout.sink.readers.view import ORIGIN_COLUMNS, View
from downspout.tables.target import Held, Overtaken, Target

OVERTAKEN_MAX = 100
PROGRESS_S = 5.0


@dataclass(frozen=True)
class Exported:
    """One commit of the table."""

    rows: int
    files: int  # of the directory
    entries: int  # of the log that the table has taken now


class Export:
    """An export of one directory into one table; any number may run at once, and each row goes over once.

    Args:
        directory: the sink's ``parquet.directory``.
        target: the table.
        origins: whether the columns that say which record a row came from go along.
        accept_changes: go on though others have changed rows of the table.
        say: takes a line about the progress of a long commit.
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
        """Take over what is new, in one commit; None where the table has all of it.

        Raises:
            SinkError: the directory has no log, is damaged or was rebuilt; the table is another's, or others have
                changed it.
        """
        for _ in range(OVERTAKEN_MAX):
            head = self._follower.head()
            if head.is_new:
                View.of(self._directory)  # which says why
            source = f"downspout:{head.log}/{head.rebuild}"
            start = self._start(head, self._target.look(source))
            end = self._follower.latest(start)
            if end == start:
                return None
            try:
                return self._take_over(source, start, end)
            except Overtaken:  # by another export, most likely: then its rows are ours
                continue
        raise SinkError(
            f"{self._target.title} was changed by others {OVERTAKEN_MAX} times while an export wrote to it",
            cure="let one export at a time write to it, or try again when the others rest",
        )

    def _start(self, head: Position, held: Held) -> Position:
        """Return how far the table has read the log."""
        title = self._target.title
        if not held.exists:
            return Position()
        if held.entries is None:
            if held.changes:
                raise SinkError(
                    f"{title} is there already, and it holds no rows of {self._directory} as it is now: it is "
                    "another's, or the directory was rebuilt since",
                    cure="another --to or --table; or delete the table, if all rows are to come again",
                )
            return Position()  # a table that was made, and has no rows yet
        if held.entries > head.base:
            raise SinkError(
                f"{title} has taken {held.entries:,} entries of the log of {self._directory}, which has {head.base:,}: "
                "the directory is an older copy",
                cure="restore the newer one; or another --to or --table, for all rows anew",
            )
        if held.changes and not self._accept_changes:
            raise SinkError(
                f"{title} was changed by others since the last export: {', '.join(held.changes[:5])}",
                cure="restore the table as it was, or go on beside these changes with --accept-changes",
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
