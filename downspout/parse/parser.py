"""The base of chunk parsers: blocks, the exact strategy, and how results are combined."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from downspout.errors import USER_ERRORS
from downspout.parse.columns import Ints, Mask, Parsed, RowConverter, put_together
from downspout.sink.schema import Columns, Rejected

BLOCK_ROWS = 4_096  # Rows that are parsed at once: what is made of them meanwhile stays in the processor's cache
BLOCK_BYTES = 4 * 1024 * 1024
LARGE = 32 * 1024  # Bytes of a value from which on the exact way is as fast as any
ROWS_MIN = 48  # Fewer rows are done the exact way before another has begun
PIECE_ROWS = 1_024  # Rows that are done the exact way at once

Part = tuple[Ints, Sequence[Any]]  # Some rows, rising, and their arrays by column


class ChunkParser(ABC):
    """Parses values into declared columns, with the outcome that each value has by itself."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._values = RowConverter(columns.columns)

    @abstractmethod
    def read(self, value: Any) -> Sequence[Any]:
        """Return a Python value for each column from one value: this defines the result.

        Raises:
            ValueError: it cannot be parsed; the message says why.
        """

    @abstractmethod
    def _trim(self, data: Any, starts: Ints, ends: Ints) -> None:
        """Leave out what is around values and means nothing, in place."""

    @abstractmethod
    def _is_plain(self, data: Any, starts: Ints, ends: Ints) -> Mask:
        """Return for which values a fast strategy may be tried; they are not large."""

    @abstractmethod
    def _fast(self, texts: Any, data: Any, starts: Ints, ends: Ints, rows: Ints, parts: list[Part]) -> Ints:
        """Parse as many of these rows as possible fast, and add them to ``parts``; return the other rows."""

    def parse_one(self, value: Any) -> list[Any]:
        """Return the values of the columns in one value, as in record mode.

        Raises:
            ValueError: it cannot be read, or a value does not fit its column.
        """
        return self._values.row(self.read(value))

    def parse_many(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the values of the columns in these values, up to the first that is null or is rejected."""
        return read_some(self.parse_one, values)

    def parse(self, values: Any) -> Parsed:
        """Return the rows of a column of values, and the reasons for the rejected ones."""
        live = np.flatnonzero(np.array(values.is_valid())) if values.null_count else np.arange(len(values))
        texts = _binary(values)
        parts: list[Part] = []
        left = live
        if texts is not None and len(live) >= ROWS_MIN:
            left = self._at_once(texts, live, parts)
        rejected: list[Rejected] = []
        for at in range(0, len(left), PIECE_ROWS):
            some = left[at : at + PIECE_ROWS]
            rows, arrays, bad = self._exactly(_python(values.take(pa.array(some))), some)
            parts.append((rows, arrays))
            rejected += bad
        rows, batch = put_together(self._columns, parts)
        return Parsed(rows, batch, rejected, len(values) - len(live))

    def _at_once(self, texts: Any, live: Ints, parts: list[Part]) -> Ints:
        """Parse what can be parsed fast; return the other rows."""
        _, offsets, found = texts.buffers()
        places = np.frombuffer(offsets, dtype=np.int32, count=len(texts) + 1, offset=4 * texts.offset).astype(np.int64)
        data = np.frombuffer(found, dtype=np.uint8) if found is not None else np.zeros(0, dtype=np.uint8)
        starts, ends = places[:-1].copy(), places[1:].copy()
        self._trim(data, starts, ends)
        plain = self._is_plain(data, starts[live], ends[live])
        left = [live[~plain]]
        left += [
            self._fast(texts, data, starts, ends, rows, parts) if len(rows) >= ROWS_MIN else rows
            for rows in _blocks(live[plain], ends)
        ]
        return np.sort(np.concatenate(left))

    def _exactly(self, values: Sequence[Any], rows: Ints) -> tuple[Ints, list[Any], list[Rejected]]:
        """Return which rows are right, with their arrays, and which are not."""
        found, good, rejected = [], [], []
        for row, value in zip(rows.tolist(), values, strict=True):
            try:
                found.append(self.parse_one(value))
                good.append(row)
            except ValueError as error:
                rejected.append(Rejected(row, str(error)))
        if not found:
            return np.empty(0, dtype=np.int64), [], rejected
        by_column = zip(*found, strict=True)
        arrays = [column.array(items) for column, items in zip(self._columns.columns, by_column, strict=True)]
        return np.array(good, dtype=np.int64), arrays, rejected


def read_some(read: Callable[[Any], Sequence[Any]], values: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the fields of these values, up to the first that is null or cannot be read."""
    found: list[Sequence[Any]] = []
    with suppress(*USER_ERRORS):
        for value in values:
            if value is None:
                break
            found.append(read(value))
    return found


def _binary(values: Any) -> Any:
    """Return texts or binary values as one kind of array; None if that is impossible."""
    types = pa.types
    if types.is_binary(values.type):
        return values
    if types.is_string(values.type) or (
        (types.is_large_string(values.type) or types.is_large_binary(values.type)) and values.nbytes < 2**31
    ):
        return values.cast(pa.binary())
    return None


def _python(values: Any) -> list[Any]:
    """Return values as records have them; texts that are none, which only an unchecked array holds, as bytes."""
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError:
        return list(values.cast(pa.binary()).to_pylist())


def _blocks(rows: Ints, ends: Ints) -> list[Ints]:
    """Cut rows into blocks that are neither too many nor too many bytes."""
    if not len(rows):
        return []
    places = ends[rows]
    by_bytes = np.flatnonzero(np.diff((places - places[0]) // BLOCK_BYTES)) + 1
    return [part[at : at + BLOCK_ROWS] for part in np.split(rows, by_bytes) for at in range(0, len(part), BLOCK_ROWS)]
