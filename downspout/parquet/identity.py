"""The identities of the rows of one flush, as arrays.

Each row is one number for its stream (topic, topic id, partition, path) and its offset; so asking the log for 100,000
rows costs a few array operations per stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from downspout.parquet.coverage import Coverage, Offsets, Stream
from downspout.parquet.schema import ORIGIN_SCHEMA

__all__ = ["Identities", "Mask"]

Mask = NDArray[np.bool_]


class Identities:
    """Of rows with origins, or (``origins=None``) of ``count`` rows without: these are always written.

    >>> rows = Identities.of([("orders", "", 0, 5, ""), ("orders", "", 0, 6, ""), ("orders", "", 0, 5, "")])
    >>> rows.not_in(Coverage()).tolist()   # the third is the first again
    [True, True, False]
    """

    def __init__(self, count: int, streams: Sequence[Stream], numbers: Offsets, offsets: Offsets) -> None:
        self._count = count
        self._streams = streams
        self._numbers = numbers
        self._offsets = offsets

    @classmethod
    def of(cls, origins: Sequence[Sequence[Any]]) -> Identities:
        """Return the identities that a list of origins tells.

        Raises:
            ValueError, TypeError: one is no origin.
        """
        known: dict[Stream, int] = {}
        numbers = np.empty(len(origins), dtype=np.int64)
        offsets = np.empty(len(origins), dtype=np.int64)
        for row, (topic, topic_id, partition, offset, path) in enumerate(origins):
            key = Stream(topic, topic_id, partition, path)
            numbers[row] = known.setdefault(key, len(known))
            offsets[row] = offset
        return cls(len(origins), list(known), numbers, offsets)

    @classmethod
    def none(cls, count: int) -> Identities:
        """Return the identities of rows that have none."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(count, [], nothing, nothing)

    @property
    def has_origins(self) -> bool:
        """Return whether the rows have origins."""
        return bool(self._streams)

    def __len__(self) -> int:
        return self._count

    def not_in(self, coverage: Coverage) -> Mask:
        """Return which rows are to be written: not covered, and not the same row again."""
        wanted = np.ones(self._count, dtype=bool)
        for number, stream in enumerate(self._streams):
            rows = np.flatnonzero(self._numbers == number)
            offsets = self._offsets[rows]
            _, first = np.unique(offsets, return_index=True)
            repeated = np.ones(len(rows), dtype=bool)
            repeated[first] = False
            wanted[rows[repeated | coverage.contains(stream, offsets)]] = False
        return wanted

    def coverage(self, mask: Mask) -> Coverage:
        """Return the rows that a mask leaves as a set."""
        covered = Coverage()
        for number, stream in enumerate(self._streams):
            covered.add(stream, self._offsets[(self._numbers == number) & mask])
        return covered

    def columns(self) -> list[pa.Array[Any]]:
        """Return the origin columns of all rows, in the order of ``ORIGIN_SCHEMA``."""
        numbers = pa.array(self._numbers, pa.int64())
        arrays: list[pa.Array[Any]] = []
        for name, kind in zip(ORIGIN_SCHEMA.names, ORIGIN_SCHEMA.types, strict=True):
            if name == "_offset":
                arrays.append(pa.array(self._offsets, kind))
            else:
                arrays.append(pa.array([getattr(s, name[1:]) for s in self._streams], kind).take(numbers))
        return arrays
