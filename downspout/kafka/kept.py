"""Records of ranges that failed, in memory, so that they can be tried again in parts without being read again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from sortedcontainers import SortedDict

from downspout.kafka.port import Record
from downspout.ledger.offsets import PartitionLedger

__all__ = ["Kept", "index_of", "offset_at"]

HELD_BACK_MAX = 4
"""A slice that takes up to so many times its own size is kept as it is."""
SMALL = 64 * 1024
"""So many bytes more do not matter."""


class Kept:
    """Slices of one partition's records. Each stays until all of it is done, whatever parts it was tried again in.

    ``s`` is the number of slices.

    Args:
        bytes_max: room for keys, values and headers.
    """

    __slots__ = ("_bytes", "_bytes_max", "_slices")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._slices: SortedDict = SortedDict()
        """lowest offset → columns"""

    def __len__(self) -> int:
        return len(self._slices)

    def keep(self, rows: Any) -> None:
        """Keep the records of a range that failed, if there is room and they are not kept already. O(log s).

        Args:
            rows: their columns. A few of many that were fetched together are copied: they would hold all of these.
        """
        size, start = rows.nbytes, offset_at(rows, 0)
        if self._bytes + size > self._bytes_max or self.find(start) is not None:
            return
        if rows.keys.get_total_buffer_size() + rows.values.get_total_buffer_size() > HELD_BACK_MAX * size + SMALL:
            rows = type(rows).of(list(rows))
        self._slices[start] = rows
        self._bytes += size

    def find(self, offset: int) -> Sequence[Record] | None:
        """Return the records from an offset on, as far as they are kept together; None where they are not. O(log s)."""
        start = next(self._slices.irange(maximum=offset, reverse=True), None)
        if start is None:
            return None
        rows = self._slices[start]
        at = index_of(rows, offset)
        return rows[at:] if at < len(rows) else None

    def release(self, offset: int, ledger: PartitionLedger) -> None:
        """Something at this offset is done: drop the slice that it is in, if all of that is. O(log s)."""
        start = next(self._slices.irange(maximum=offset, reverse=True), None)
        if start is not None:
            rows = self._slices[start]
            if ledger.done_until(max(start, ledger.base)) > offset_at(rows, -1):
                self._bytes -= rows.nbytes
                del self._slices[start]

    def sweep(self, ledger: PartitionLedger) -> None:
        """Drop all slices that are done. O(s)."""
        for start in list(self._slices):
            self.release(start, ledger)


def offset_at(records: Sequence[Record], index: int) -> int:
    """Return the offset of one of some records; of columns without making a record."""
    offsets = getattr(records, "offsets", None)
    return records[index].offset if offsets is None else int(offsets[index])


def index_of(records: Sequence[Record], offset: int) -> int:
    """Return the index of the first record at or beyond an offset. O(log n).

    >>> from types import SimpleNamespace
    >>> index_of([SimpleNamespace(offset=3), SimpleNamespace(offset=7)], 4)
    1
    """
    offsets = getattr(records, "offsets", None)
    if offsets is not None:
        return int(offsets.searchsorted(offset))
    return bisect_left(records, offset, key=_offset)


def _offset(record: Record) -> int:
    return record.offset
