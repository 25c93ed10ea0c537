"""Batches decoded into columns, against kafka-python's own records, over random batches."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.structs import TopicPartition

from downspout.kafka.embedded import EmbeddedKafka
from downspout.spark.source.columns import Chunk, ChunkBatch, chunked, decode, install
from downspout.spark.source.fetch import to_batch
from downspout.spark.source.options import parse_options
from downspout.spark.source.topics import connect

ChunkRecords = chunked(Fetcher.PartitionRecords)
WHERE = TopicPartition("t", 3)
SIZES = st.sampled_from([0, 1, 2, 63, 64, 65, 127, 128, 8191, 8192, 20_000])
BYTES = st.none() | st.binary(max_size=4) | SIZES.map(lambda size: b"\x80" * size)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3)
RECORD = st.tuples(st.integers(0, 2**41), BYTES, BYTES, HEADERS, st.sampled_from([0, 0, 0, 1, 70, 9000]))
BATCH = st.tuples(st.lists(RECORD, min_size=1, max_size=12), st.sampled_from([0, 1, 3, 4]), st.booleans())
BATCHES = st.lists(BATCH, min_size=1, max_size=4)


def log_of(batches: list[tuple[list[Any], int, bool]]) -> tuple[bytes, int]:
    """Return batches as a broker sends them, and the offset after the last record."""
    data, offset = b"", 5
    for records, codec, brokers_time in batches:
        builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 30, offset=offset)
        for moment, key, value, headers, gap in records:
            builder.skip(gap)
            builder.append(timestamp=moment, key=key, value=value, headers=headers)
            offset += gap + 1
        builder.close()
        raw = bytearray(builder.buffer())
        if brokers_time:
            raw[22] |= 0x08  # the attributes' bit for the broker's time; the check sum is not looked at here
        data += bytes(raw)
    return data, offset


def as_records(data: bytes, fetch_offset: int) -> list[Any]:
    """Return what kafka-python makes of a fetch."""
    return Fetcher.PartitionRecords(fetch_offset, WHERE, MemoryRecords(data), check_crcs=False).take()


def as_chunks(data: bytes, fetch_offset: int) -> list[Chunk]:
    """Return what we make of it."""
    taken = ChunkRecords(fetch_offset, WHERE, MemoryRecords(data), check_crcs=False).take()
    return [record.value for record in taken]


@settings(deadline=None)
@given(BATCHES, st.floats(0, 1), st.floats(0, 1))
def test_columns_equal_the_clients_records(batches: list[Any], first: float, last: float) -> None:
    """All columns equal kafka-python's records, through codecs, gaps, nulls, headers and partial ranges."""
    data, after = log_of(batches)
    begin = 5 + int(first * (after - 5))
    begin = min(begin, after - 1)
    end = begin + int(last * (after - begin))
    records = [record for record in as_records(data, begin) if record.offset < end]
    found = decode(WHERE, as_chunks(data, begin), begin, end, headers=True)
    if not records:
        assert found.num_rows == 0
    else:
        assert found.equals(to_batch(records, True))


@settings(deadline=None)
@given(BATCHES, st.integers(0, 10_000), st.integers(0, 255))
def test_damage_is_an_error_or_harmless(batches: list[Any], place: int, octet: int) -> None:
    """A changed byte in an uncompressed batch ends in CorruptRecordError or in another value, in nothing else."""
    data, after = log_of([(records, 0, False) for records, _, _ in batches[:1]])
    if (place := place % len(data)) < 61:  # the batch's head, which the check sum covers
        return
    damaged = data[:place] + bytes([octet]) + data[place + 1 :]
    with contextlib.suppress(CorruptRecordError):
        decode(WHERE, as_chunks(damaged, 0), 0, after, headers=False)


def test_positions_are_the_clients() -> None:
    """After the chunks the fetcher stands behind the last batch, as after its own records."""
    data, after = log_of([([(1, b"k", b"v", [], 0)] * 3, 0, False)])
    mine = ChunkRecords(0, WHERE, MemoryRecords(data))
    assert len(mine.take()) == 1
    assert (mine.next_fetch_offset, after) == (8, 8)
    assert not mine


@pytest.mark.broker
def test_the_installed_client_is_known(kafka_broker: EmbeddedKafka, topic_name: str) -> None:
    """The consumers that the project makes give chunks: with the pinned client columns are in use."""
    options = {"kafka.bootstrap.servers": kafka_broker.bootstrap, "subscribe": topic_name}
    consumer = connect(parse_options(options, streaming=True))
    try:
        assert install(consumer)
    finally:
        consumer.close()


def test_an_unknown_client_is_left_alone() -> None:
    """A consumer without the fetcher that we know keeps its records."""

    class Other:
        _fetcher = None

    assert not install(Other())
    assert not install(object())


@pytest.mark.parametrize("data", [b"\x80" * 11, b"\x02", b"", b"\x04\x00\x00\x00"])
def test_a_batch_that_does_not_add_up(data: bytes) -> None:
    """A batch whose records do not fill it is corrupt, as for the client."""
    raw, _ = log_of([([(1, b"k", b"v", [], 0)], 0, False)])
    batch = ChunkBatch(raw[:61] + data)
    with pytest.raises(CorruptRecordError):
        list(batch)
