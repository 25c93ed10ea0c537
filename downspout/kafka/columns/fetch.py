"""Where fetched bytes become columns: a hook in kafka-python's fetcher.

The fetcher hands the bytes of each partition to a class of its own (``PartitionRecords``), and takes records of its
object until there are none. Here it gets a subclass whose ``take`` gives columns. All else stays the client's: groups,
positions, pausing, transactions, metrics. What it relies on (read in the source of version 3.0.12):

* ``_append`` puts what ``take`` returns into a list with ``extend``, counts it with ``len``, and goes on reading at
  ``next_fetch_offset``. So what is taken iterates as one element, the columns, and is as long as it has records.
* The object counts as used up when ``record_iterator`` is None, which ``drain`` sees to.

Batches are decoded together, up to some megabytes. A *piece* ends before whatever must not be heard of early: an
aborted batch, an error, another leader's batch. So position, leader epoch and :meth:`take_aborted` are never ahead of
what was taken. Pieces are made one at a time, when the last one was taken whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, dropwhile, takewhile
from typing import Any, NamedTuple

import kafka
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from downspout.errors import ConfigError, coordinates
from downspout.kafka.columns.batch import Batch, Unpacked, batches
from downspout.kafka.columns.decode import decode
from downspout.kafka.columns.record_columns import ColumnRecord, RecordColumns
from downspout.kafka.columns.selftest import CURE, trouble
from downspout.kafka.columns.varints import NotStraight

PIECE_BYTES = 4 * 1024 * 1024
"""About how much is decoded at once, uncompressed; a larger batch is decoded alone."""
JOINED_BYTES_MAX = 1 << 30
"""How much one poll returns of a partition. Arrow's arrays could hold twice as much."""

BEFORE_ALL = -(1 << 63)

log = logging.getLogger("downspout.kafka")


class Piece(NamedTuple):
    """Columns, and where reading goes on when they are taken."""

    columns: RecordColumns
    next_offset: int
    leader_epoch: int


class Taken:
    """Some columns, as the fetcher looks at them: as many as records, and one element of a list."""

    __slots__ = ("_columns",)

    def __init__(self, columns: RecordColumns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[RecordColumns]:
        yield self._columns


def column_records(known: type[Any]) -> type[Any]:
    """Return a class for the records of a fetch that gives columns where ``known`` gives records."""

    class ColumnRecords(known):
        """The records of one partition in one fetch."""

        _piece: Piece | None = None

        def _unpack_records(self, tp: TopicPartition, records: Any, *_: Any) -> Iterator[Piece]:
            return _Reading(self, tp, records._buffer).pieces()

        def _maybe_skip_record(self, record: Piece) -> bool:
            return False  # pieces begin where the fetch was told to

        def take(self, n: int | None = None) -> Sequence[Any] | Taken:
            piece = self._piece or next(self.record_iterator, None)
            if piece is None:
                return ()
            part, left = piece.columns[:n], piece.columns[len(piece.columns) if n is None else n :]
            self._piece = piece._replace(columns=left) if len(left) else None
            self.next_fetch_offset = int(part.offsets[-1]) + 1 if len(left) else piece.next_offset
            self.leader_epoch = piece.leader_epoch
            return Taken(part)

        def drain(self) -> None:
            self._piece = None
            super().drain()

    return ColumnRecords


class _Reading:
    """The way through the batches of one fetch; the rules are those of the client's ``_unpack_records``.

    Args:
        client: the client's object, which keeps the book of transactions.
        tp: of the batches.
        data: all of them, as fetched.
    """

    def __init__(self, client: Any, tp: TopicPartition, data: bytes) -> None:
        self._client = client
        self._tp = tp
        self._data = data
        self._waiting: list[tuple[Batch, Unpacked]] = []
        self._size = 0
        self._start: int = client.fetch_offset

    def pieces(self) -> Iterator[Piece]:
        """Yield columns; then raise what is wrong with the rest, if anything is."""
        try:
            yield from self._read()
        except Exception:
            yield from self._decoded()  # what came before it is read first
            raise

    def _read(self) -> Iterator[Piece]:
        last, epoch = None, self._client.leader_epoch
        for batch in batches(self._data):
            if self._client.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(f"{self._place(batch)}: the check sum of a batch is not that of its bytes")
            last, epoch = batch, getattr(batch, "leader_epoch", epoch)
            if not isinstance(batch, Batch):
                yield from self._decoded()
                yield from self._by_the_client(batch)
            elif self._is_aborted(batch):
                yield from self._decoded()
                self._client._is_batch_aborted(batch)  # whoever counts them hears of it
                self._pass(batch)
            elif not batch.is_control_batch:
                yield from self._add(batch)
            elif not self._waiting:
                self._pass(batch)
        yield from self._decoded()
        if isinstance(last, Batch):
            self._pass(last)
        self._client.leader_epoch = epoch
        self._client.drain()

    def _is_aborted(self, batch: Batch) -> bool:
        """Keep the book of transactions, and return whether this batch is of an aborted one."""
        client = self._client
        if client.isolation_level != IsolationLevel.READ_COMMITTED or not batch.has_producer_id():
            return False
        client._consume_aborted_transactions_up_to(batch.last_offset)
        if batch.is_control_batch:
            if client._contains_abort_marker(batch.of_the_client()):
                client.aborted_producer_ids.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in client.aborted_producer_ids

    def _pass(self, batch: Batch) -> None:
        """Go on behind a batch; all before it was taken."""
        self._client.next_fetch_offset = batch.next_offset
        self._client.leader_epoch = batch.leader_epoch

    def _add(self, batch: Batch) -> Iterator[Piece]:
        """Let a batch wait for others that are decoded with it, unless it must not."""
        try:
            unpacked = batch.records()
        except NotStraight as why:
            yield from self._decoded()
            yield from self._by_the_client(batch.of_the_client(), why)
            return
        if self._waiting and batch.leader_epoch != self._waiting[-1][0].leader_epoch:
            yield from self._decoded()
        self._waiting.append((batch, unpacked))
        self._size += unpacked[2] - unpacked[1]
        if self._size >= PIECE_BYTES:
            yield from self._decoded()

    def _decoded(self) -> Iterator[Piece]:
        """Yield what waits."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            yield from self._together(waiting)

    def _together(self, waiting: Sequence[tuple[Batch, Unpacked]]) -> Iterator[Piece]:
        """Yield batches as columns, each for itself where they cannot be decoded together."""
        last = waiting[-1][0]
        try:
            columns = decode(
                self._tp.topic,
                self._tp.partition,
                [batch for batch, _ in waiting],
                [unpacked for _, unpacked in waiting],
            )
        except NotStraight as why:
            if len(waiting) == 1:
                yield from self._by_the_client(last.of_the_client(), why)
            else:
                for each in waiting:
                    yield from self._together([each])
            return
        self._count(len(columns), sum(end - start for _, (_, start, end) in waiting))
        begin = int(columns.offsets.searchsorted(self._start))
        if begin < len(columns):
            self._start = BEFORE_ALL
            yield Piece(columns[begin:] if begin else columns, last.next_offset, last.leader_epoch)

    def _by_the_client(self, batch: Any, why: NotStraight | None = None) -> Iterator[Piece]:
        """Yield a batch that the client has decoded, record by record; then raise what it raises, if it does."""
        log.debug("%s: a batch is decoded record by record: %s", self._place(batch), why or "its format is old")
        records = self._records(batch)
        failure = None
        while failure is None:
            found, failure = _some(records)
            if not found:
                break
            if kept := list(dropwhile(lambda record: record.offset < self._start, found)):
                self._start = BEFORE_ALL
                epoch = getattr(batch, "leader_epoch", self._client.leader_epoch)
                yield Piece(RecordColumns.of(kept), kept[-1].offset + 1, epoch)
        if isinstance(failure, UnsupportedCodecError):
            raise UnsupportedCodecError(f"{self._place(batch)}: {failure.args[0]}") from failure
        if failure is not None:
            raise failure

    def _records(self, batch: Any) -> Iterator[ColumnRecord]:
        for record in batch:
            if self._client.check_crcs and not record.validate_crc():
                where = f"{self._place(batch)}, record {record.offset}"
                raise CorruptRecordError(f"{where}: its check sum is not that of its bytes")
            self._count(1, record.size_in_bytes)
            kind = -1 if record.timestamp_type is None else record.timestamp_type
            yield ColumnRecord(
                topic=self._tp.topic,
                partition=self._tp.partition,
                offset=record.offset,
                timestamp=record.timestamp,
                key=record.key,
                value=record.value,
                headers=record.headers,
                timestamp_type=kind,
            )

    def _count(self, records: int, size: int) -> None:
        """Tell the client's metrics."""
        self._client.records_read += records
        self._client.bytes_read += size

    def _place(self, batch: Any) -> str:
        return coordinates(self._tp.topic, self._tp.partition, batch.base_offset)


def _some(records: Iterator[ColumnRecord]) -> tuple[list[ColumnRecord], Exception | None]:
    """Take some megabytes of records; return them, and the error that ended them."""
    found: list[ColumnRecord] = []
    size = 0
    try:
        while size < PIECE_BYTES and (record := next(records, None)) is not None:
            found.append(record)
            size += len(record.key or b"") + len(record.value or b"")
    except Exception as error:
        return found, error
    return found, None


def install(consumer: Any) -> None:
    """Let a consumer's polls find columns. Where the installed client is not as we know it, they find records as ever.

    Raises:
        ConfigError: the client is told to make something else of keys or values.
    """
    fetcher = consumer._fetcher
    for name in ("key_deserializer", "value_deserializer"):
        if fetcher.config[name] is not None:
            raise ConfigError(f"kafka.client.{name} cannot be used with columns", cure="remove it")
    kind: Any = type(fetcher)
    if not _warn_of(trouble(kind, column_records)):
        fetcher.PartitionRecords = column_records(fetcher.PartitionRecords)


@cache
def _warn_of(why: str) -> bool:
    """Return whether something is wrong, and say so once."""
    if why:
        log.warning(
            "kafka-python %s is not as we know it (%s): records come one by one, at several times the CPU. Try: %s",
            kafka.__version__,
            why,
            CURE,
        )
    return bool(why)


def gathered(found: Sequence[Any]) -> tuple[RecordColumns, int | None]:
    """Return what a poll has found of one partition as one piece, and where to read again what is too much for it."""
    if not isinstance(found[0], RecordColumns):
        return RecordColumns.of(found), None
    sizes = accumulate(part.nbytes for part in found)
    count = max(sum(1 for _ in takewhile(lambda size: size <= JOINED_BYTES_MAX, sizes)), 1)
    return RecordColumns.join(found[:count]), int(found[count].offsets[0]) if count < len(found) else None
