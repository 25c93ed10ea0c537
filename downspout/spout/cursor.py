"""The records of one partition in memory: polled ones, those that may be needed again, and how old they are."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sortedcontainers import SortedDict

from downspout.kafka.port import ConsumerPort, Record, TopicPartition
from downspout.ledger.offsets import PartitionLedger

TIMES_MAX = 512
"""Most offsets of a partition whose timestamps are kept: two of each poll, up to the limit of what is uncommitted."""


class ReadTimes:
    """The timestamps of some records that were read, to estimate the age of an uncommitted offset.

    >>> times = ReadTimes()
    >>> times.add(100, 5_000)
    >>> times.add(300, 9_000)
    >>> times.at(99), times.at(200), times.at(300), times.at(400)
    (None, 7000, 9000, 9000)
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: deque[tuple[int, int]] = deque()  # offset and timestamp in ms, by offset

    def add(self, offset: int, at_ms: int) -> None:
        """Note a record; ignore one without a timestamp (-1) or read again."""
        known = self._known
        if at_ms < 0 or (known and offset <= known[-1][0]):
            return
        known.append((offset, at_ms))
        if len(known) > TIMES_MAX:
            self._known = deque(entry for index, entry in enumerate(known) if index % 2 == 0)

    def at(self, offset: int) -> int | None:
        """Return the timestamp in ms at an offset, interpolated between known ones; None if unknown.

        Entries below are forgotten, so ask for ascending offsets.
        """
        known = self._known
        while len(known) > 1 and known[1][0] <= offset:
            known.popleft()
        if not known or known[0][0] > offset:
            return None
        (first, first_ms), *_ = known
        if len(known) == 1:
            return first_ms
        then, then_ms = known[1]
        return first_ms + (then_ms - first_ms) * (offset - first) // (then - first)


@dataclass(slots=True, eq=False)
class PartitionCursor:
    """The read position of one partition, and the polled records that wait to be emitted."""

    tp: TopicPartition
    reading: int  # the next offset to read, as far as this spout has asked for
    stop: int | None = None  # bounded run: nothing at or beyond it is emitted or committed
    waiting: Sequence[Record] = ()  # records that were polled and not yet looked at, from index ``at`` on
    at: int = 0
    noted: int = 0  # how many of ``waiting`` the breaker has counted
    noted_below: int = 0  # it has counted each record below this offset
    # indexes into ``waiting`` of records that are not in their format; None: not searched for yet
    unreadable: list[int] | None = None
    sought: int | None = None  # the retry that the reader was sent back to, until records come from there
    served_at: int | None = None  # when records came last, or should have, in ms
    turns_in_vain: int = 0  # how often it was polled alone without a record since its last records
    aborted_below: int = 0  # aborted records below it were counted
    times: ReadTimes = field(default_factory=ReadTimes)

    def take(self, records: Sequence[Record]) -> None:
        """Take the records of a poll."""
        self.reading = offset_at(records, -1) + 1
        for index in (0, -1):
            self.times.add(offset_at(records, index), timestamp_at(records, index))
        if self.stop is not None and self.reading > self.stop:
            records = records[: index_of(records, self.stop)]
        self.waiting, self.at, self.noted, self.unreadable = records, 0, 0, None

    @property
    def has_waiting(self) -> bool:
        """Return whether records wait to be looked at."""
        return self.at < len(self.waiting)

    @property
    def next_waiting(self) -> int | None:
        """Return the offset of the first record that waits."""
        return offset_at(self.waiting, self.at) if self.has_waiting else None

    @property
    def at_stop(self) -> bool:
        """Return whether there is no more to read in a bounded run."""
        return self.stop is not None and self.reading >= self.stop

    def seek(self, consumer: ConsumerPort, offset: int) -> None:
        """Read on from ``offset``."""
        consumer.seek(self.tp, offset)
        self.reading = offset

    def put_back(self, consumer: ConsumerPort) -> None:
        """Put back the records that wait: they will be read again."""
        if (offset := self.next_waiting) is not None:
            self.seek(consumer, offset)
        self.waiting, self.at, self.noted = (), 0, 0

    def skip_below(self, offset: int) -> None:
        """Skip waiting records below an offset, which a commit has covered."""
        if self.has_waiting and offset_at(self.waiting, self.at) < offset:
            self.at = index_of(self.waiting, offset)

    def skip_all(self) -> None:
        """Skip all that waits."""
        self.at = len(self.waiting)

    def position(self, consumer: ConsumerPort) -> int:
        """Return the position after the last record read, waiting ones included; in a bounded run, at most the stop."""
        position = self.reading if self.has_waiting else consumer.position(self.tp)
        return position if self.stop is None else min(position, self.stop)


def offset_at(records: Sequence[Record], index: int) -> int:
    """Return the offset of one of some records; of columns without making a record."""
    offsets = getattr(records, "offsets", None)
    return records[index].offset if offsets is None else int(offsets[index])


def timestamp_at(records: Sequence[Record], index: int) -> int:
    """Return the timestamp of one of some records in ms; of columns without making a record."""
    timestamps = getattr(records, "timestamps", None)
    return records[index].timestamp if timestamps is None else int(timestamps[index])


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


RECORDS_MAX = 1_000  # Single records that one partition holds
RECORD_BYTES_MAX = 8 * 1024 * 1024  # Their keys and values; a single larger record is held all the same
HELD_BACK_MAX = 4  # A slice whose buffers take up to this many times its own size is kept without a copy
SMALL = 64 * 1024  # This many more bytes do not matter


class RetryCache:
    """Single records by their offsets, and slices of chunks that failed.

    A single record is held for its retry, or because it may fail for good: its dead letter needs the whole record. A
    slice stays until all its records are done, in whatever parts it was retried. ``s`` is the number of slices.
    """

    __slots__ = ("_bytes_max", "_earlier", "_record_bytes", "_records", "_slice_bytes", "_slices")

    def __init__(self, bytes_max: int) -> None:
        # bytes for keys and values of failed single records, and as many for slices; 0: failed records are read again,
        # and only records that may fail for good are held
        self._bytes_max = bytes_max
        self._earlier: Sequence[Record] = ()
        """The records of the previous poll, whose answers are arriving."""
        self._records: dict[int, Record] = {}
        self._record_bytes = 0
        self._slices: SortedDict = SortedDict()  # lowest offset → columns
        self._slice_bytes = 0

    def __len__(self) -> int:
        """Return how many single records and slices there are."""
        return len(self._records) + len(self._slices)

    def pass_on(self, waiting: Sequence[Record]) -> None:
        """Keep the previous poll's records: their acks and fails are still arriving."""
        if self._bytes_max:
            self._earlier = waiting

    # --- what comes in ---

    def hold(self, record: Record) -> bool:
        """Hold a record that may be dead-lettered, if there is room; return whether it is held."""
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
            rows: its columns. A small part of a fetch is copied: it would keep the whole fetch in memory.
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
        """Return the records of a slice from an offset on; None if no slice has it. O(log s)."""
        start = next(self._slices.irange(maximum=offset, reverse=True), None)
        if start is None:
            return None
        rows = self._slices[start]
        at = index_of(rows, offset)
        return rows[at:] if at < len(rows) else None

    def seen(self, offset: int, waiting: Sequence[Record]) -> Record | None:
        """Return a record if it is in memory, held for a retry or not. O(log n).

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
        """Return whether the record or range at an offset is in memory."""
        return offset in self._records or (bool(self._slices) and self.find(offset) is not None)

    # --- what is done ---

    def release(self, offset: int, ledger: PartitionLedger) -> None:
        """Drop the done record at an offset, and its slice once the whole slice is done. O(log s)."""
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
