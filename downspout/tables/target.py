"""What an export needs of a table: how much it holds, and one commit that says how much it holds now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


class Overtaken(Exception):
    """Somebody else has committed to the table since it was looked at; nothing of ours was committed."""


@dataclass(frozen=True)
class Held:
    """What a table says of itself."""

    exists: bool = False
    entries: int | None = None  # how many entries of the log it has taken; None: it holds no rows of this log
    changes: Sequence[str] = ()  # what others have done to its rows since our last commit: ``DELETE in version 7``


class Target(Protocol):
    """A table. What it was when :meth:`look` returned is what :meth:`append` adds to, or it is :class:`Overtaken`."""

    @property
    def title(self) -> str:
        """Its name for people."""
        ...

    def look(self, source: str) -> Held:
        """Read how the table stands now.

        Args:
            source: which log is exported, and which rebuild of it.
        """
        ...

    def append(self, source: str, entries: int, rows: pa.RecordBatchReader) -> None:
        """Add rows, and note how many entries the table has taken now, in one commit. Makes a table that is not there.

        Raises:
            Overtaken: the table has changed since :meth:`look`.
        """
        ...


def widened(known: pa.Schema, schema: pa.Schema) -> list[pa.Field[Any]]:
    """Return the columns of a directory that a table knows as another kind of number: they have become wider since.

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
    """Return the columns with none that must have a value: a column that comes later has none in older rows.

    >>> nullable(pa.schema([pa.field("n", pa.int64(), nullable=False)])).field("n").nullable
    True
    """
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


def with_schema(rows: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
    """Return a stream of rows with other types of the same columns."""
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in rows))
