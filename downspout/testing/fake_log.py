"""The logs of the fake Kafka: topics, partitions and their visible records.

A partition's log is a list of entries in offset order. Like on a real broker, offsets have gaps, left by compaction,
transaction markers and aborted transactions. The isolation level decides which records are visible:

* ``read_uncommitted``: all records, up to the end of the log.
* ``read_committed``: records of committed or no transactions, up to the first offset of the oldest open transaction
  (the *last stable offset*).

Invariant: ``start <= every offset < end``, and ``start <= stable_end <= end``.
"""

from __future__ import annotations

import base64
import uuid
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import OffsetOutOfRangeError
from kafka.structs import TopicPartition

from downspout.kafka.unreadable import Unreadable

Header = tuple[str, bytes]


@dataclass(slots=True)
class _Entry:
    offset: int
    record: ConsumerRecord | None  # None: a transaction marker
    aborted: bool = False


class PartitionLog:
    """One partition's log, with appends, compaction and truncation at either end.

    >>> log = PartitionLog("t", 0)
    >>> [log.append(b"k", value, (), 0) for value in (b"a", b"b", b"c")]
    [0, 1, 2]
    >>> log.remove([1])
    >>> records, position = log.read(0, 10, committed_only=True)
    >>> [record.value for record in records], position
    ([b'a', b'c'], 3)
    """

    def __init__(self, topic: str, partition: int) -> None:
        self.partition = TopicPartition(topic, partition)
        self.start = 0
        self.end = 0
        self._entries: list[_Entry] = []
        self._open: dict[int, int] = {}
        self.damaged: list[Unreadable] = []

    @property
    def stable_end(self) -> int:
        """The last stable offset: where the oldest open transaction begins, else the end."""
        return max(self.start, min(self._open.values(), default=self.end))

    def readable_end(self, committed_only: bool) -> int:
        """Return the end for a reader of this isolation level."""
        return self.stable_end if committed_only else self.end

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header],
        timestamp_ms: int,
        transaction: int | None = None,
    ) -> int:
        """Append one record, perhaps in an open ``transaction``, and return its offset."""
        offset = self.end
        self._entries.append(_Entry(offset, _record(self.partition, offset, key, value, headers, timestamp_ms)))
        self.end += 1
        if transaction is not None:
            self._open.setdefault(transaction, offset)
        return offset

    def append_gap(self, count: int) -> None:
        """Skip ``count`` offsets, as if compaction had removed their records."""
        self.end += count

    def end_transaction(self, transaction: int, members: Collection[int], *, commit: bool) -> int:
        """Write the marker that ends ``transaction`` with the records ``members``; return the marker's offset."""
        self._open.pop(transaction, None)
        if not commit:
            for entry in self._entries:
                entry.aborted = entry.aborted or entry.offset in members
        marker = self.end
        self._entries.append(_Entry(marker, None))
        self.end += 1
        return marker

    def read(self, position: int, limit: int, *, committed_only: bool) -> tuple[list[ConsumerRecord], int]:
        """Return up to ``limit`` visible records from ``position`` on, and the position after them.

        If fewer than ``limit`` are left, that position is the readable end, after any trailing gap.
        """
        if not self.start <= position <= self.end:
            raise OffsetOutOfRangeError({self.partition: position})
        end = self.readable_end(committed_only)
        found: list[ConsumerRecord] = []
        for entry in islice(self._entries, self._index(position), None):
            if entry.offset >= end:
                break
            if len(found) == limit:
                return found, found[-1].offset + 1 if found else position
            if entry.record is not None and not (entry.aborted and committed_only):
                found.append(entry.record)
        return found, max(position, end)

    def aborted(self, start: int, end: int) -> Iterator[int]:
        """Yield the offsets of aborted records from ``start`` to below ``end``."""
        for entry in islice(self._entries, self._index(start), None):
            if entry.offset >= end:
                return
            if entry.aborted:
                yield entry.offset

    def delete_before(self, offset: int) -> None:
        """Move the start of the log, like retention and DeleteRecords."""
        self.start = max(self.start, min(offset, self.end))
        del self._entries[: self._index(self.start)]

    def truncate(self, end: int) -> None:
        """Remove everything from ``end`` on, like an unclean leader election."""
        del self._entries[self._index(end) :]
        self.end = min(self.end, end)
        self.start = min(self.start, self.end)
        self._open = {txn: first for txn, first in self._open.items() if first < self.end}

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove these records and keep their offsets unused, like compaction."""
        gone = set(offsets)
        self._entries = [entry for entry in self._entries if entry.offset not in gone]

    def compact(self) -> None:
        """Keep the last record of each key, records without a key, and markers."""
        last = {entry.record.key: entry.offset for entry in self._entries if entry.record is not None}
        self._entries = [
            entry
            for entry in self._entries
            if entry.record is None or entry.record.key is None or last[entry.record.key] == entry.offset
        ]

    def first_since(self, timestamp_ms: int, *, committed_only: bool) -> int | None:
        """Return the first offset whose timestamp is at or after ``timestamp_ms``, or None."""
        end = self.readable_end(committed_only)
        for entry in self._entries:
            if entry.record is not None and entry.offset < end and entry.record.timestamp >= timestamp_ms:
                return entry.offset
        return None

    def visible(self, *, committed_only: bool = True) -> list[ConsumerRecord]:
        """Return all visible records."""
        return self.read(self.start, len(self._entries) + 1, committed_only=committed_only)[0]

    def _index(self, offset: int) -> int:
        return bisect_left(self._entries, offset, key=lambda entry: entry.offset)


def _record(
    partition: TopicPartition,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header],
    timestamp_ms: int,
) -> ConsumerRecord:
    kept = list(headers)
    given = {
        "topic": partition.topic,
        "partition": partition.partition,
        "leader_epoch": 0,
        "offset": offset,
        "timestamp": timestamp_ms,
        "timestamp_type": 0,
        "key": key,
        "value": value,
        "headers": kept,
        "serialized_key_size": -1 if key is None else len(key),
        "serialized_value_size": -1 if value is None else len(value),
        "serialized_header_size": sum(len(name) + len(content or b"") for name, content in kept),
    }
    return ConsumerRecord(*(given.get(name) for name in ConsumerRecord._fields))


@dataclass
class Topic:
    """A topic: its Kafka id, its partitions and its configuration."""

    name: str
    id: str
    logs: list[PartitionLog]
    config: dict[str, str] = field(default_factory=dict)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The topic's partitions in order."""
        return [log.partition for log in self.logs]

    @property
    def max_message_bytes(self) -> int:
        """The maximum size of a record."""
        return int(self.config.get("max.message.bytes", 1_048_588))


def topic_id(seed: str) -> str:
    """Return an id in Kafka's format (base64 of a UUID), determined by ``seed``.

    >>> len(topic_id("cluster/orders/1"))
    22
    """
    raw = uuid.uuid5(uuid.NAMESPACE_URL, seed).bytes
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Transaction:
    """An open transaction of a transactional producer; :meth:`commit` or :meth:`abort` ends it in every partition."""

    def __init__(self, number: int, log_of: Callable[[str, int], PartitionLog]) -> None:
        self._number = number
        self._log_of = log_of
        self._written: dict[TopicPartition, set[int]] = {}

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = 0,
        timestamp_ms: int = 0,
        headers: Sequence[Header] = (),
    ) -> int:
        """Append a record and return its offset; read_committed readers see it after :meth:`commit`."""
        log = self._log_of(topic, partition)
        offset = log.append(key, value, headers, timestamp_ms, self._number)
        self._written.setdefault(log.partition, set()).add(offset)
        return offset

    def commit(self) -> None:
        """End the transaction and make its records visible."""
        self._end(commit=True)

    def abort(self) -> None:
        """End the transaction; its records stay in the log, invisible to read_committed readers."""
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        for partition, offsets in self._written.items():
            self._log_of(*partition).end_transaction(self._number, offsets, commit=commit)
        self._written.clear()
