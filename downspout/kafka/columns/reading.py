"""Iterate over the batches of one fetch: decode, skip, or report them as unreadable.

Batches are decoded together, up to some megabytes. A *piece* ends before anything that must not be reported early: an
aborted batch, an error, a batch of another leader. So position, leader epoch and ``take_aborted`` are never ahead of
the records taken. The next piece is made when the previous one has been taken whole. A batch that unpacks to more than
the limit of one record is read a few megabytes at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from typing import Any, NamedTuple

from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.protocol.consumer import IsolationLevel
from kafka.record.util import decode_varint
from kafka.structs import TopicPartition

from downspout.errors import coordinates
from downspout.kafka.columns.batch import Unpacked, WireBatch, batches
from downspout.kafka.columns.decode import decode
from downspout.kafka.columns.record_columns import ColumnRecord, RecordColumns
from downspout.kafka.columns.wire import FastPathMiss
from downspout.kafka.unreadable import (
    CUT_BYTES,
    Limits,
    Tolerance,
    Unreadable,
    UnreadableBatchError,
    UnreadableRecordError,
)

# --- Batches that unpack to more than the limit of one record ---

PORTION_BYTES = 4 * 1024 * 1024
PASSED_BYTES_MAX = 1 << 30
"""How many bytes of large records are unpacked and dropped to reach the records after them."""
_LENGTH_BYTES_MAX = 5


class WholeRecords(NamedTuple):
    """The bytes of consecutive records."""

    data: bytes
    records: int


class CutRecord(NamedTuple):
    """The beginning of a record that is too large, and its size in bytes."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    size: int


def portions(batch: WireBatch, limits: Limits) -> Iterator[WholeRecords | CutRecord]:
    """Yield the records of a batch in order, and the beginning of those that are too large.

    Raises:
        CorruptRecordError: the batch is malformed.
    """
    stream = _Stream(batch.stream(limits))
    kept = passed = size = count = 0
    parts: list[bytes] = []
    for number in range(batch.records_count):
        prefix, length = stream.length()
        is_large = length > limits.record_bytes
        if not is_large:
            kept += length
            if kept > limits.batch_bytes:
                break
            parts += (prefix, stream.take(length))
            size, count = size + length, count + 1
        if parts and (is_large or size >= PORTION_BYTES):
            yield WholeRecords(b"".join(parts), count)
            parts, size, count = [], 0, 0
        if is_large:
            head = stream.take(min(length, CUT_BYTES))
            yield _cut(batch, head, length)
            passed += length
            if number + 1 == batch.records_count:
                return
            if passed > PASSED_BYTES_MAX:
                raise UnreadableBatchError(f"{passed:,} bytes of records before it are too large")
            stream.skip(length - len(head))
    if parts:
        yield WholeRecords(b"".join(parts), count)
    if kept > limits.batch_bytes:
        raise UnreadableBatchError(
            f"its records unpack to more than {limits.batch_bytes:,} bytes",
            cure="a larger kafka.record_bytes_max, if the batch is sound; or kafka.on_corrupt_batch=dead_letter",
        )


class _Stream:
    """Reads an iterator of bytes like a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._now = b""
        self._at = 0

    def length(self) -> tuple[bytes, int]:
        """Return the encoded length of a record, and its value."""
        found = b""
        while not found or (found[-1] >= 0x80 and len(found) < _LENGTH_BYTES_MAX):
            found += self.take(1)
        try:
            number: int = decode_varint(found, 0)[0]
        except (IndexError, ValueError):
            number = -1
        if number < 0:
            raise CorruptRecordError("a record with an impossible length")
        return found, number

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        parts = []
        while size:
            part = self._some(size)
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> None:
        """Skip the next bytes."""
        while size:
            size -= len(self._some(size))

    def _some(self, most: int) -> bytes:
        while self._at == len(self._now):
            piece = next(self._pieces, None)
            if piece is None:
                raise CorruptRecordError("a record goes on beyond the end of its batch")
            self._now, self._at = piece, 0
        part = self._now[self._at : self._at + most]
        self._at += len(part)
        return part


def _cut(batch: WireBatch, head: bytes, size: int) -> CutRecord:
    """Parse the beginning of a record."""
    try:
        delta_ms, at = decode_varint(head, 1)  # behind the attributes
        delta, at = decode_varint(head, at)
        key, at = _field(head, at)
        value = _field(head, at)[0] if at < len(head) else None
    except (IndexError, ValueError):
        raise CorruptRecordError("a record with impossible fields") from None
    offset = batch.base_offset + delta
    if not batch.base_offset <= offset <= batch.last_offset:
        raise CorruptRecordError("a record whose offset lies outside its batch")
    timestamp = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + delta_ms
    return CutRecord(offset, timestamp, key, value, size)


def _field(head: bytes, at: int) -> tuple[bytes | None, int]:
    """Return as much of a key or value as is available, and the position after it."""
    size, at = decode_varint(head, at)
    return (None, at) if size < 0 else (head[at : at + size], at + size)


# --- All batches of a fetch ---

PIECE_BYTES = 4 * 1024 * 1024  # Approximate unpacked bytes decoded at once; a larger batch is decoded alone
BEFORE_ALL = -(1 << 63)

BROKEN_LOG = (
    "check the broker's log: a replica may have the batch intact; kafka.start_offsets can name where to continue"
)

log = logging.getLogger("downspout.kafka")


class Piece(NamedTuple):
    """Columns, and the position after them."""

    columns: RecordColumns
    next_offset: int
    leader_epoch: int


class FetchReading:
    """Reads the batches of one fetch; the rules are those of the client's ``_unpack_records``."""

    def __init__(self, client: Any, tp: TopicPartition, data: bytes, tolerance: Tolerance) -> None:
        self._client = client
        self._tp = tp
        self._data = data
        self._tolerance = tolerance
        self._limits = tolerance.limits
        self._batch: Any = None  # The current one
        self._is_sound = False  # Whether its checksum matches, so that its header can be trusted
        self._waiting: list[tuple[WireBatch, Unpacked]] = []
        self._size = 0
        self._start: int = client.fetch_offset

    def pieces(self) -> Iterator[Piece]:
        """Yield columns; then raise an error if the rest cannot be read."""
        try:
            yield from self._read()
        except CorruptRecordError as error:
            trouble, batch, is_sound = error, self._batch, self._is_sound
            try:
                yield from self._decoded()  # the batches before it
            except CorruptRecordError as earlier:
                trouble = earlier
            else:
                self._batch, self._is_sound = batch, is_sound
            yield from self._damaged(trouble)
        except Exception:
            yield from self._decoded()
            raise

    def _damaged(self, error: CorruptRecordError) -> Iterator[Piece]:
        """Skip an unreadable batch if the reader wants that; otherwise raise."""
        if isinstance(error, UnreadableRecordError):
            raise error
        start: int = self._client.next_fetch_offset
        if self._batch is None:
            raise UnreadableBatchError(f"{self._place(start)}: {error.args[0]}", cure=BROKEN_LOG) from error
        end = self._end_of_damage(start)
        why = f"the batch of the offsets {start} to {end - 1} cannot be read: {error.args[0]}"
        if not self._tolerance.notes_corrupt:
            cure = [error.cure] if isinstance(error, UnreadableBatchError) else []
            raise UnreadableBatchError(f"{self._place(start)}: {why}", *cure) from error
        note = Unreadable(self._tp, start, end, why)
        yield self._noted(note, ColumnRecord(self._tp.topic, self._tp.partition, start, -1, None, None, (), -1))
        self._client.next_fetch_offset = end
        # Fetch the rest again, because the transaction state may lack this batch's information.
        self._client.drain()

    def _end_of_damage(self, start: int) -> int:
        """Return the offset after an unreadable batch, whose damaged header may name a wrong one."""
        batch = self._batch
        end: int = getattr(batch, "next_offset", batch.base_offset + 1)
        if not self._is_sound:
            following = (found.base_offset for found in self._sound_behind(batch) if found.base_offset > start)
            highwater = self._tolerance.highwater(self._tp)
            end = next(following, end if highwater is None else min(end, highwater))
        return max(end, start + 1)

    def _sound_behind(self, damaged: Any) -> Iterator[Any]:
        """Yield the later batches with correct checksums."""
        is_behind = False
        try:
            for batch in batches(self._data, self._limits):
                if is_behind and batch.validate_crc():
                    yield batch
                is_behind = is_behind or getattr(batch, "end", None) == getattr(damaged, "end", 0)
        except CorruptRecordError:
            return

    def _noted(self, note: Unreadable, record: ColumnRecord) -> Piece:
        """Note unreadable offsets, and return their placeholder record."""
        self._tolerance.found.append(note)
        self._start = BEFORE_ALL
        epoch = getattr(self._batch, "leader_epoch", self._client.leader_epoch)
        return Piece(RecordColumns.of([record]), note.end, epoch)

    def _read(self) -> Iterator[Piece]:
        last, epoch = None, self._client.leader_epoch
        for batch in self._batches():
            if self._client.check_crcs and not batch.validate_crc():
                raise CorruptRecordError("its checksum does not match its bytes")
            self._is_sound = True
            last, epoch = batch, getattr(batch, "leader_epoch", epoch)
            if not isinstance(batch, WireBatch):
                yield from self._decoded()
                yield from self._by_the_client(batch)
            elif self._is_aborted(batch):
                yield from self._decoded()
                self._client.pass_aborted(batch)
                self._pass(batch)
            elif not batch.is_control_batch:
                yield from self._add(batch)
            elif not self._waiting:
                self._pass(batch)
        yield from self._decoded()
        if isinstance(last, WireBatch):
            self._pass(last)
        self._client.leader_epoch = epoch
        self._client.drain()

    def _batches(self) -> Iterator[Any]:
        for batch in batches(self._data, self._limits):
            self._batch, self._is_sound = batch, False
            yield batch
            self._batch = None

    def _is_aborted(self, batch: WireBatch) -> bool:
        """Update the transaction state, and return whether this batch was aborted."""
        client = self._client
        if client.isolation_level != IsolationLevel.READ_COMMITTED or not batch.has_producer_id():
            return False
        client.consume_aborted_up_to(batch.last_offset)
        if batch.is_control_batch and client.contains_abort_marker(batch.of_the_client()):
            client.aborted_producer_ids.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in client.aborted_producer_ids

    def _pass(self, batch: WireBatch) -> None:
        """Continue after a batch; everything before it was taken."""
        self._client.next_fetch_offset = batch.next_offset
        self._client.leader_epoch = batch.leader_epoch

    def _add(self, batch: WireBatch) -> Iterator[Piece]:
        """Collect a batch to decode it together with others, if possible."""
        try:
            unpacked = batch.records(self._limits)
        except FastPathMiss as why:
            yield from self._decoded()
            yield from self._by_the_client(batch.of_the_client(), why)
            return
        if unpacked is None:
            yield from self._decoded()
            yield from self._bit_by_bit(batch)
            return
        if self._waiting and batch.leader_epoch != self._waiting[-1][0].leader_epoch:
            yield from self._decoded()
        self._waiting.append((batch, unpacked))
        self._size += unpacked[2] - unpacked[1]
        if self._size >= PIECE_BYTES:
            yield from self._decoded()

    def _bit_by_bit(self, batch: WireBatch) -> Iterator[Piece]:
        """Yield a batch that exceeds the limit of one record, without holding all of it in memory."""
        for portion in portions(batch, self._limits):
            if isinstance(portion, WholeRecords):
                unpacked = (portion.data, 0, len(portion.data))
                for piece in self._together([(batch.part(portion.records), unpacked)]):
                    yield piece._replace(next_offset=int(piece.columns.offsets[-1]) + 1)
            elif portion.offset >= self._start:
                yield self._too_large(portion)
        self._pass(batch)

    def _too_large(self, cut: CutRecord) -> Piece:
        """Return the placeholder of a record that is too large. Raises UnreadableBatchError if it must not be noted."""
        most = self._limits.record_bytes
        why = f"a record of {cut.size:,} bytes, but kafka.record_bytes_max allows {most:,}"
        if not self._tolerance.notes_large:
            raise UnreadableRecordError(f"{self._place(cut.offset)}: {why}", cure="kafka.record_bytes_max")
        note = Unreadable(self._tp, cut.offset, cut.offset + 1, why, cut.size)
        topic, partition = self._tp.topic, self._tp.partition
        return self._noted(note, ColumnRecord(topic, partition, cut.offset, cut.timestamp, cut.key, cut.value, ()))

    def _decoded(self) -> Iterator[Piece]:
        """Decode and yield the collected batches."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            yield from self._together(waiting)

    def _together(self, waiting: Sequence[tuple[WireBatch, Unpacked]]) -> Iterator[Piece]:
        """Yield batches as columns, one by one if they cannot be decoded together."""
        last, unpacked = waiting[-1]
        try:
            columns = decode(
                self._tp.topic,
                self._tp.partition,
                [batch for batch, _ in waiting],
                [unpacked for _, unpacked in waiting],
            )
        except FastPathMiss as why:
            if len(waiting) == 1:
                self._batch, self._is_sound = last, True
                yield from self._by_the_client(last.of_the_client(unpacked), why)
            else:
                for each in waiting:
                    yield from self._together([each])
            return
        self._count(len(columns), sum(end - start for _, (_, start, end) in waiting))
        begin = int(columns.offsets.searchsorted(self._start))
        if begin < len(columns):
            self._start = BEFORE_ALL
            yield Piece(columns[begin:] if begin else columns, last.next_offset, last.leader_epoch)

    def _by_the_client(self, batch: Any, why: FastPathMiss | None = None) -> Iterator[Piece]:
        """Yield a batch that the client decodes record by record; then raise its error, if any."""
        place = self._place(batch.base_offset)
        log.debug("%s: a batch is decoded record by record: %s", place, why or "its format is old")
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
            raise UnsupportedCodecError(f"{place}: {failure.args[0]}") from failure
        if isinstance(failure, CorruptRecordError):
            raise failure
        if failure is not None:
            raise CorruptRecordError(f"it cannot be read: {type(failure).__name__}: {failure}") from failure

    def _records(self, batch: Any) -> Iterator[ColumnRecord]:
        for record in batch:
            if self._client.check_crcs and not record.validate_crc():
                raise CorruptRecordError(f"the checksum of record {record.offset} does not match its bytes")
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
        """Update the client's metrics."""
        self._client.records_read += records
        self._client.bytes_read += size

    def _place(self, offset: int) -> str:
        return coordinates(self._tp.topic, self._tp.partition, offset)


def _some(records: Iterator[ColumnRecord]) -> tuple[list[ColumnRecord], Exception | None]:
    """Return some megabytes of records, and the error after them."""
    found: list[ColumnRecord] = []
    size = 0
    try:
        while size < PIECE_BYTES and (record := next(records, None)) is not None:
            found.append(record)
            size += len(record.key or b"") + len(record.value or b"")
    except Exception as error:
        return found, error
    return found, None
