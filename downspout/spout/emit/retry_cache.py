"""Records of one partition that may be needed again, in memory: failed ones need not be read again for their retry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sortedcontainers import SortedDict

from downspout.kafka.port import Record
from downspout.ledger.offsets import PartitionLedger
from downspout.spout.cursor import index_of, offset_at

RECORDS_MAX = 1_000  # Single records that one partition holds
RECORD_BYTES_MAX = 8 * 1024 * 1024  # Their keys and values; a single larger record is held all the same
HELD_BACK_MAX = 4  # A slice that takes up to so many times its own size is kept as it is
SMALL = 64 * 1024  # So many bytes more do not matter


class RetryCache:
    """Single records by their offsets, and slices of chunks that failed.

    A single record is held for its retry, or because it may fail for good: its dead letter needs the whole of it. A
    slice stays until all of it is done, whatever parts it was tried again in. ``s`` is the number of slices.
    """

    __slots__ = ("_bytes_max", "_earlier", "_record_bytes", "_records", "_slice_bytes", "_slices")

    def __init__(self, bytes_max: int) -> None:
        # room for the keys and values of single records that failed, and as much for slices; 0: what fails is read
        # again, and only records that may fail for good are held
        self._bytes_max = bytes_max
        self._earlier: Sequence[Record] = ()
        """The records that waited before those that wait now: their answers come about now."""
        self._records: dict[int, Record] = {}
        self._record_bytes = 0
        self._slices: SortedDict = SortedDict()  # lowest offset → columns
        self._slice_bytes = 0

    def __len__(self) -> int:
        """Return how many single records and slices there are."""
        return len(self._records) + len(self._slices)

    def pass_on(self, waiting: Sequence[Record]) -> None:
        """Other records take the place of those that waited, of which some may fail yet."""
        if self._bytes_max:
            self._earlier = waiting

    # --- what comes in ---

    def hold(self, record: Record) -> bool:
        """Hold a record that may fail for good, if there is room; return whether it is held."""
        if record.offset in self._records:
            return True
        size = size_of(record)
        full = len(self._records) >= RECORDS_MAX or self._record_bytes + size > RECORD_BYTES_MAX
        if self._records and full:
            return False
        self._records[record.offset] = record
        self._record_bytes += size
        return True

    def keep_failed(self, start: int, end: int, waiting: Sequence[Record]) -> None:
        """Keep the records in ``[start, end)``, which failed together, if they are still in memory and there is room.

        Args:
            waiting: the records that were polled last.
        """
        if not self._bytes_max:
            return
        for records in (waiting, self._earlier):
            at = index_of(records, start)
            if at < len(records) and offset_at(records, at) == start and offset_at(records, -1) >= end - 1:
                if end > start + 1:
                    self.keep(records[at : index_of(records, end)])
                elif self._record_bytes + size_of(records[at]) <= self._bytes_max:
                    self.hold(records[at])
                return

    def keep(self, rows: Any) -> None:
        """Keep a slice, if there is room and it is not kept already. O(log s).

        Args:
            rows: its columns. A few of many that were fetched together are copied: they would hold all of these.
        """
        size, start = rows.nbytes, offset_at(rows, 0)
        if self._slice_bytes + size > self._bytes_max or self.find(start) is not None:
            return
        if rows.keys.get_total_buffer_size() + rows.values.get_total_buffer_size() > HELD_BACK_MAX * size + SMALL:
            rows = type(rows).of(list(rows))
        self._slices[start] = rows
        self._slice_bytes += size

    # --- what is asked ---

    def get(self, offset: int) -> Record | None:
        """Return a single record, if it is held."""
        return self._records.get(offset)

    def __getitem__(self, offset: int) -> Record:
        """Return a single record that is held."""
        return self._records[offset]

    def find(self, offset: int) -> Sequence[Record] | None:
        """Return the records of a slice from an offset on; None where it is in no slice. O(log s)."""
        start = next(self._slices.irange(maximum=offset, reverse=True), None)
        if start is None:
            return None
        rows = self._slices[start]
        at = index_of(rows, offset)
        return rows[at:] if at < len(rows) else None

    def seen(self, offset: int, waiting: Sequence[Record]) -> Record | None:
        """Return any record that is in memory, held for a retry or not. O(log n).

        Args:
            waiting: the records that were polled last.
        """
        if (held := self._records.get(offset)) is not None:
            return held
        for records in (waiting, self._earlier, self.find(offset) or ()):
            at = index_of(records, offset)
            if at < len(records) and offset_at(records, at) == offset:
                return records[at]
        return None

    def has(self, offset: int) -> bool:
        """Return whether what begins at an offset is in memory."""
        return offset in self._records or (bool(self._slices) and self.find(offset) is not None)

    # --- what is done ---

    def release(self, offset: int, ledger: PartitionLedger) -> None:
        """What is at an offset is done: drop the record, and the slice that it is in if all of that is. O(log s)."""
        if (record := self._records.pop(offset, None)) is not None:
            self._record_bytes -= size_of(record)
        if self._slices:
            self._release_slice(offset, ledger)

    def _release_slice(self, offset: int, ledger: PartitionLedger) -> None:
        if (start := next(self._slices.irange(maximum=offset, reverse=True), None)) is not None:
            rows = self._slices[start]
            if ledger.done_until(max(start, ledger.base)) > offset_at(rows, -1):
                self._slice_bytes -= rows.nbytes
                del self._slices[start]

    def sweep(self, ledger: PartitionLedger) -> None:
        """Drop all slices that are done. O(s)."""
        for start in list(self._slices):
            self._release_slice(start, ledger)


def size_of(record: Record) -> int:
    """Return the bytes of a record's key and value."""
    return len(record.key or b"") + len(record.value or b"")
