"""Where a partition is read: positions and seeks, and what was read and waits to be looked at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from downspout.kafka.port import ConsumerPort, Record, TopicPartition


@dataclass(slots=True, eq=False)
class Cursor:
    """The reading of one partition."""

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
    turns_in_vain: int = 0  # how often it was polled alone since records came, and none did
    aborted_below: int = 0  # aborted records below it were counted

    def take(self, records: Sequence[Record]) -> None:
        """Take what a poll brought."""
        self.reading = offset_at(records, -1) + 1
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
        """Return how far it was read, what waits included; in a bounded run not beyond the stop."""
        position = self.reading if self.has_waiting else consumer.position(self.tp)
        return position if self.stop is None else min(position, self.stop)


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
