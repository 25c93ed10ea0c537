"""Batches in wire format, made with kafka-python's own builders, and a fetcher's results from them."""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords, default_records, legacy_records
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import calc_crc32c
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.kafka import column_records, watched
from downspout.kafka.columns.record_columns import RecordColumns

TP = TopicPartition("wire", 3)
CRC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, MAX_TIME_AT, COUNT_AT, HEADER_SIZE = 17, 21, 23, 35, 57, 61
CONTROL = 0x20
BROKERS_TIME = 0x08


class Sent(NamedTuple):
    """One record; None in a list of these is a gap."""

    timestamp: int = 1000
    key: bytes | None = None
    value: bytes | None = b""
    headers: Sequence[tuple[str, bytes | None]] = ()


@contextmanager
def without_clock() -> Iterator[None]:
    """Let gzip write no time of day into what it packs: an example must be the same bytes each time."""

    def packed(data: bytes) -> bytes:
        return gzip.compress(data, mtime=0)

    with patch.object(default_records, "gzip_encode", packed), patch.object(legacy_records, "gzip_encode", packed):
        yield


def sealed(raw: bytearray, base: int, epoch: int = 0) -> bytes:
    """Return a batch with its place in the log, as the broker leaves it, and a check sum that is right."""
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 12, epoch)
    struct.pack_into(">I", raw, CRC_AT, calc_crc32c(memoryview(raw)[ATTRIBUTES_AT:]))
    return bytes(raw)


def batch(
    records: Sequence[Sent | None],
    base: int = 0,
    *,
    codec: int = 0,
    epoch: int = 0,
    producer: int = -1,
    transactional: bool = False,
    broker_time: int | None = None,
    tail: int = 0,
) -> bytes:
    """Return a batch of version 2.

    Args:
        records: None is an offset that compaction took.
        base: the first offset.
        codec: 0 to 4: none, gzip, snappy, lz4, zstd.
        epoch: of the leader.
        producer: its id; -1: none.
        transactional: whether a marker decides over it.
        broker_time: the broker's timestamp for all, in milliseconds.
        tail: how many records compaction took from the end.
    """
    more = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0} if producer >= 0 else {}
    builder = MemoryRecordsBuilder(2, codec, 1 << 30, transactional=transactional, **more)
    for record in records:
        if record is None:
            builder.skip(1)
        else:
            builder.append(record.timestamp, record.key, record.value, list(record.headers))
    with without_clock():
        builder.close()
    raw = bytearray(builder.buffer())
    last = max(len(records) - 1 + tail, 0)
    struct.pack_into(">i", raw, LAST_DELTA_AT, last)
    if broker_time is not None:
        struct.pack_into(">h", raw, ATTRIBUTES_AT, struct.unpack_from(">h", raw, ATTRIBUTES_AT)[0] | BROKERS_TIME)
        struct.pack_into(">q", raw, MAX_TIME_AT, broker_time)
    return sealed(raw, base, epoch)


def marker(base: int, producer: int, *, abort: bool, epoch: int = 0) -> bytes:
    key, value = struct.pack(">hh", 0, 0 if abort else 1), b"\0\0\0\0\0\0"
    raw = bytearray(batch([Sent(0, key, value)], producer=producer, transactional=True))
    struct.pack_into(">h", raw, ATTRIBUTES_AT, struct.unpack_from(">h", raw, ATTRIBUTES_AT)[0] | CONTROL)
    return sealed(raw, base, epoch)


def old(records: Sequence[Sent], base: int = 0, *, magic: int = 1, codec: int = 0) -> bytes:
    builder = MemoryRecordsBuilder(magic, codec, 1 << 30, offset=base)
    for record in records:
        builder.append(record.timestamp, record.key, record.value)
    with without_clock():
        builder.close()
    return bytes(builder.buffer())


@dataclass(frozen=True)
class Aborted:
    """What the answer to a fetch says of an aborted transaction."""

    producer_id: int
    first_offset: int


class Seen(NamedTuple):
    """What came out of a fetch.

    Attributes:
        records: topic, partition, offset, timestamp and its type, key, value, headers of each.
        positions: position and leader epoch after the last of them.
        aborted: what was heard of aborted batches.
        failure: the class of the error that ended it.
    """

    records: list[tuple[Any, ...]]
    positions: tuple[int, int]
    aborted: list[tuple[TopicPartition, int, int]]
    failure: type[BaseException] | None


def as_tuple(record: Any) -> tuple[Any, ...]:
    """Return what counts of a record. Formats without timestamps have None in the client, -1 here."""
    kind = -1 if record.timestamp_type is None else record.timestamp_type
    at = -1 if record.timestamp is None else record.timestamp
    return record.topic, record.partition, record.offset, at, kind, record.key, record.value, list(record.headers)


def records_of(columns: bool, heard: list[tuple[TopicPartition, int, int]]) -> Any:
    """Return the class that a consumer's fetcher has for what was fetched of a partition."""
    known = column_records(Fetcher.PartitionRecords) if columns else Fetcher.PartitionRecords
    return watched(known, heard)


def kind_of(error: Exception, columns: bool) -> type[BaseException]:
    """Return what an error is. The client has those of each package for what cannot be unpacked; we have one."""
    is_corrupt = not isinstance(error, UnsupportedCodecError) and (isinstance(error, CorruptRecordError) or not columns)
    return CorruptRecordError if is_corrupt else type(error)


def fetch(
    data: bytes,
    start: int = 0,
    *,
    columns: bool,
    limits: Callable[[], int] = lambda: 1000,
    aborted: Sequence[Aborted] = (),
    committed: bool = True,
    check_crcs: bool = True,
    stops: list[tuple[int, int]] | None = None,
) -> Seen:
    """Let the client's own fetcher take what was fetched, as records or as columns.

    Args:
        data: the bytes of a partition.
        start: what offset was asked for.
        columns: with our class for the records of a fetch.
        limits: how many each poll asks for.
        aborted: transactions, as the answer lists them.
        committed: read committed records only.
        check_crcs: look at the check sums.
        stops: where to write down, after each poll, how many records there are, and the position.
    """
    heard: list[tuple[TopicPartition, int, int]] = []
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    part = records_of(columns, heard)(
        start, TP, MemoryRecords(data), check_crcs=check_crcs, isolation_level=level, aborted_transactions=aborted
    )
    place = SimpleNamespace(position=OffsetAndMetadata(start, "", -1), highwater=None)
    known = SimpleNamespace(is_assigned=lambda _: True, is_fetchable=lambda _: True, assignment={TP: place})
    fetcher = SimpleNamespace(_subscriptions=known, _sensors=None)
    records: list[Any] = []
    places: list[tuple[int, int]] = []
    failure = None
    while part and failure is None:
        limit, found = limits(), defaultdict(list)
        try:
            count = Fetcher._append(fetcher, found, part, limit, True)
        except Exception as error:
            failure = kind_of(error, columns)
        else:
            assert count <= limit
        for piece in found[TP]:
            assert isinstance(piece, RecordColumns) == columns
            records.extend(piece if columns else [piece])
        places.append((len(records), place.position.offset))
    if stops is not None:
        stops += places
    return Seen([as_tuple(record) for record in records], place.position[::2], heard, failure)
