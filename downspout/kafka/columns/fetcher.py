"""Replace kafka-python's ``PartitionRecords`` by a class that returns columns.

The fetcher makes such an object for the bytes fetched for a partition, and takes its records until none are left
(``downspout.kafka.patches.fetching``). Ours returns columns, one piece at a time (``reading``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, takewhile
from typing import Any

import kafka
from kafka.structs import TopicPartition

from downspout.errors import ConfigError
from downspout.kafka.columns.batch import WireBatch, batches
from downspout.kafka.columns.reading import FetchReading, Piece
from downspout.kafka.columns.record_columns import RecordColumns
from downspout.kafka.columns.wire import FastPathMiss
from downspout.kafka.patches.fetching import bounded_records, fetcher_of, otherwise_unpacked, trouble
from downspout.kafka.patches.private_api import CURE
from downspout.kafka.unreadable import Limits, Tolerance, UnreadableBatchError

POLL_BYTES = 32 * 1024 * 1024
"""A large piece counts as more records than it has, which ends a poll after a few times this size: otherwise highly
compressed records, up to the poll's maximum, could exhaust the memory."""
JOINED_BYTES_MAX = 1 << 30  # Maximum for one partition in one poll; Arrow's arrays could hold twice as much

log = logging.getLogger("downspout.kafka")


class Taken:
    """Columns for the fetcher: iterates as one element, with the length of its records or more."""

    __slots__ = ("_columns", "_count")

    def __init__(self, columns: RecordColumns, most: int | None) -> None:
        self._columns = columns
        self._count = len(columns)
        if most is not None:
            self._count = max(self._count, min(most, most * columns.nbytes // POLL_BYTES))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RecordColumns]:
        yield self._columns


def column_records(known: type[Any], tolerance: Tolerance | None = None) -> type[Any]:
    """Return a subclass of ``known``, a ``PartitionRecords``, that returns columns instead of records."""
    bounds = tolerance or Tolerance()

    def pieces(client: Any, tp: TopicPartition, data: bytes) -> Iterator[Piece]:
        return FetchReading(client, tp, data, bounds).pieces()

    unpacked: Any = otherwise_unpacked(known, pieces)

    class ColumnRecords(unpacked):
        """The records of one partition in one fetch."""

        held: Piece | None = None

        def take(self, n: int | None = None) -> Sequence[Any] | Taken:
            piece = self.held or next(self.record_iterator, None)
            if piece is None:
                return ()
            part, left = piece.columns[:n], piece.columns[len(piece.columns) if n is None else n :]
            self.held = piece._replace(columns=left) if len(left) else None
            self.next_fetch_offset = int(part.offsets[-1]) + 1 if len(left) else piece.next_offset
            self.leader_epoch = piece.leader_epoch
            return Taken(part, n)

        def drain(self) -> None:
            self.held = None
            super().drain()

    return ColumnRecords


def bounded(known: type[Any], tolerance: Tolerance) -> type[Any]:
    """Return a subclass of ``known`` that returns records, and limits unpacking.

    Exceeding a limit is an error here, and never noted.
    """
    return bounded_records(known, partial(_Bounded, tolerance.limits))


class _Bounded:
    """The batches of a fetch in the client's interface, each unpacked by us."""

    def __init__(self, limits: Limits, data: bytes) -> None:
        self._batches = batches(data, limits)
        self._limits = limits

    def next_batch(self) -> Any:
        """Return the next batch, or None."""
        batch = next(self._batches, None)
        if not isinstance(batch, WireBatch) or batch.is_control_batch or not batch.validate_crc():
            return batch.of_the_client() if isinstance(batch, WireBatch) else batch
        try:
            unpacked = batch.records(self._limits)
        except FastPathMiss:
            return batch.of_the_client()
        if unpacked is None:
            raise UnreadableBatchError(
                f"offset {batch.base_offset}: its records unpack to more than {self._limits.record_bytes:,} bytes",
                cure="kafka.record_bytes_max",
            )
        return batch.of_the_client(unpacked)


def install(consumer: Any, tolerance: Tolerance | None = None) -> None:
    """Make a consumer's polls return columns, or records if the installed client is not supported."""
    fetcher = fetcher_of(consumer)
    for name in ("key_deserializer", "value_deserializer"):
        if fetcher.config[name] is not None:
            raise ConfigError(f"kafka.client.{name} cannot be used with columns", cure="remove it")
    kind: Any = type(fetcher)
    if _warn_of(trouble(kind, column_records)):
        fetcher.PartitionRecords = bounded(fetcher.PartitionRecords, tolerance or Tolerance())
    else:
        fetcher.PartitionRecords = column_records(fetcher.PartitionRecords, tolerance)


@cache
def _warn_of(why: str) -> bool:
    """Return whether there is a problem; warn of it once."""
    if why:
        log.warning(
            "kafka-python %s is not as expected (%s): records are read one by one, at several times the CPU. Try: %s",
            kafka.__version__,
            why,
            CURE,
        )
    return bool(why)


def combined(found: Sequence[Any]) -> tuple[RecordColumns, int | None]:
    """Join a poll's results for one partition; also return the offset of any excess, to be read again."""
    if not isinstance(found[0], RecordColumns):
        return RecordColumns.of(found), None
    sizes = accumulate(part.nbytes for part in found)
    count = max(sum(1 for _ in takewhile(lambda size: size <= JOINED_BYTES_MAX, sizes)), 1)
    return RecordColumns.join(found[:count]), int(found[count].offsets[0]) if count < len(found) else None
