"""Fetched data that cannot be returned in full: limits, notes, and where reading continues."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import lz4.frame
import pytest
import snappy
import zstandard
from kafka.codec import snappy_decode
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.structs import OffsetAndMetadata

from downspout.kafka import CUT_BYTES, Limits, Tolerance, Unreadable, bounded, column_records, watched
from downspout.kafka.columns.batch import unpacked, unpacked_whole
from downspout.kafka.unreadable import UnreadableBatchError
from tests.kafka.wire_batches import LAST_DELTA_AT, TP, Sent, batch, old, sealed

KIB = 1024
MIB = KIB * KIB
CODECS = [1, 2, 3, 4]
SMALL = Limits(record_bytes=64 * KIB, batch_bytes=256 * KIB)


def read(
    data: bytes, start: int = 0, *, limits: Limits = SMALL, corrupt: bool = True, large: bool = True, end: int = 1000
) -> tuple[list[Any], list[Unreadable], int]:
    """Let the client's fetcher take all; return the records, the notes and the position."""
    tolerance = Tolerance(limits, notes_large=large, notes_corrupt=corrupt, highwater=lambda _: end)
    part = watched(column_records(Fetcher.PartitionRecords, tolerance), [])(
        start, TP, MemoryRecords(data), isolation_level=IsolationLevel.READ_COMMITTED
    )
    place = SimpleNamespace(position=OffsetAndMetadata(start, "", -1), highwater=None)
    known = SimpleNamespace(is_assigned=lambda _: True, is_fetchable=lambda _: True, assignment={TP: place})
    records: list[Any] = []
    while part:
        found: Any = defaultdict(list)
        Fetcher._append(SimpleNamespace(_subscriptions=known, _sensors=None), found, part, 1000, True)
        records += [record for piece in found[TP] for record in piece]
    return records, tolerance.take(), place.position.offset


# --- unpacking ---


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, MIB, 3 * MIB + 7])
def test_all_is_unpacked_and_nothing_beyond_the_limit(kind: int, size: int) -> None:
    """What fits comes whole, whatever the codec; one byte too much, and nothing does."""
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    pack: Any = {1: gzip.compress, 2: snappy.compress, 3: lz4.frame.compress, 4: zstandard.compress}[kind]
    packed = pack(data)
    assert unpacked_whole(kind, packed, size, 4 * MIB) == data
    assert size == 0 or unpacked_whole(kind, packed, size - 1, 4 * MIB) is None
    if size and kind != 4:  # zstandard does not say so; that records are missing does
        with pytest.raises(CorruptRecordError):
            list(unpacked(kind, packed[: len(packed) // 2], 4 * MIB))


def test_parts_that_follow_each_other_are_unpacked_together() -> None:
    """Two members of gzip, two frames of zstd and the blocks of snappy's stream are one content."""
    assert unpacked_whole(1, gzip.compress(b"ab") + gzip.compress(b"cd") + b"\0\0", 9, 9) == b"abcd"
    assert unpacked_whole(4, zstandard.compress(b"ab") + zstandard.compress(b"cd"), 9, 9) == b"abcd"
    block = snappy.compress(b"ab")
    stream = b"\x82SNAPPY\0" + b"\0" * 8 + 2 * (struct.pack(">i", len(block)) + block)
    assert unpacked_whole(2, stream, 9, 9) == b"abab"


def test_a_last_block_of_snappy_that_claims_more_than_is_left_is_what_is_left() -> None:
    """A block's length counts no further than the bytes go, as in the client; one without bytes is an error."""
    block = snappy.compress(b"ab")
    head = b"\x82SNAPPY\0" + b"\0" * 8
    stream = head + struct.pack(">i", len(block)) + block + struct.pack(">i", 1 << 24) + block
    assert unpacked_whole(2, stream, 9, 9) == snappy_decode(stream) == b"abab"
    for size in (0, -1, -(1 << 31)):
        with pytest.raises(CorruptRecordError, match=rf"a block of {size} bytes"):
            unpacked_whole(2, head + struct.pack(">i", size) + block, 9, 9)


def test_a_block_of_snappy_that_claims_gigabytes_takes_none() -> None:
    """Its size is compared with the limit before anything is unpacked."""
    with pytest.raises(CorruptRecordError, match=r"unpacks to 4,294,967,295 bytes"):
        list(unpacked(2, b"\xff\xff\xff\xff\x0f" + b"\0" * 50, MIB))


# --- records that are too large ---


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_a_record_that_is_too_large_is_noted_and_the_others_come(codec: int) -> None:
    """In its place comes its beginning; those of its batch and of the next are whole."""
    large = Sent(7000, b"k", b"x" * 100 * KIB, [("h", b"y")])
    data = batch([Sent(value=b"a"), large, Sent(value=b"b")], codec=codec) + batch([Sent(value=b"c")], 3)
    records, notes, position = read(data, limits=Limits(64 * KIB + 1_000, 1 << 20))
    assert [(record.offset, record.value) for record in records if record.offset != 1] == [
        (0, b"a"), (2, b"b"), (3, b"c"),
    ]  # fmt: skip
    (cut,) = [record for record in records if record.offset == 1]
    assert (cut.timestamp, cut.key, cut.headers) == (7000, b"k", [])
    assert set(cut.value) == set(b"x")
    assert CUT_BYTES - 100 < len(cut.value) <= CUT_BYTES
    (note,) = notes
    assert (note.offset, note.end, position) == (1, 2, 4)
    assert note.size is not None
    assert 100 * KIB < note.size < 101 * KIB
    assert f"{note.size:,} bytes" in note.why
    assert "kafka.record_bytes_max" in note.why


@pytest.mark.parametrize("codec", CODECS)
def test_a_small_batch_that_unpacks_to_much_takes_little_memory(codec: int) -> None:
    """Of a record of 200 MB no more than a few megabytes are ever unpacked at once."""
    size = (8 if codec == 2 else 200) * MIB
    data = batch([Sent(value=bytes(size))], codec=codec) + batch([Sent(value=b"next")], 1)
    read(batch([Sent()], codec=codec))  # loads what is loaded once
    tracemalloc.start()
    records, notes, _ = read(data, limits=Limits(MIB, 16 * MIB))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [record.offset for record in records] == [0, 1]
    assert [note.offset for note in notes] == [0]
    assert peak < 12 * MIB


def test_a_poll_ends_after_some_megabytes() -> None:
    """Of a hundred small batches of 20 MB each, a poll that may bring 2,000 records takes few."""
    data = b"".join(batch([Sent(value=bytes(20 * MIB))], number, codec=4) for number in range(100))
    part = column_records(Fetcher.PartitionRecords)(0, TP, MemoryRecords(data))
    left, taken = 2_000, 0
    while left > 0:
        left -= len(part.take(left))
        taken += 1
    assert taken < 12


def test_reading_may_begin_behind_a_record_that_is_too_large() -> None:
    data = batch([Sent(value=b"x" * 100 * KIB), Sent(value=b"b")], codec=4)
    assert [[record.offset for record in read(data, 1)[0]], read(data, 1)[1]] == [[1], []]


def test_whoever_asks_for_no_notes_gets_an_error() -> None:
    """It names the place, the size and the setting."""
    data = batch([Sent(value=b"x" * 100 * KIB)], 5, codec=4)
    with pytest.raises(UnreadableBatchError, match=r"wire\[3\]@5: a record of 102,\d\d\d bytes") as raised:
        read(data, 5, large=False)
    with pytest.raises(UnreadableBatchError, match=r"wire\[3\]@5: a record of 102,\d\d\d bytes"):
        read(data, 5, large=False, corrupt=False)
    assert "kafka.record_bytes_max" in raised.value.cure


# --- batches that unpack to too much ---


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_of_a_batch_that_unpacks_to_too_much_the_rest_is_noted(codec: int) -> None:
    """The records within the limit come; what is beyond is one range, and the next batch follows."""
    data = batch([Sent(value=b"x" * 50 * KIB)] * 9, codec=codec) + batch([Sent(value=b"c")], 9)
    records, notes, position = read(data)
    assert [record.offset for record in records] == [0, 1, 2, 3, 4, 5]
    assert [(note.offset, note.end) for note in notes] == [(5, 9)]
    assert "more than 262,144 bytes" in notes[0].why
    assert position == 9  # what follows is fetched again
    with pytest.raises(UnreadableBatchError, match=r"wire\[3\]@5: .*more than 262,144") as raised:
        read(data, corrupt=False)
    assert "kafka.record_bytes_max" in raised.value.cure


def test_a_batch_of_an_old_format_is_bounded_too() -> None:
    """A wrapper of version 1 is not unpacked beyond the limit."""
    data = old([Sent(value=b"x" * 50 * KIB)] * 9, codec=1)
    with pytest.raises(UnreadableBatchError, match="unpacks to more than 262,144"):
        read(data, corrupt=False)


def test_a_client_that_is_unknown_is_bounded_too() -> None:
    """Where records come one by one, as the client makes them, nothing is unpacked beyond the limits either."""
    made = bounded(Fetcher.PartitionRecords, Tolerance(SMALL))
    sound = batch([Sent(value=b"a")] * 3, codec=4)
    part = made(0, TP, MemoryRecords(sound + batch([Sent(value=bytes(100 * KIB))], 3, codec=4)))
    assert [record.value for record in part.take(10)] == [b"a"] * 3
    with pytest.raises(UnreadableBatchError, match="more than 65,536 bytes"):
        part.take(10)


# --- damaged batches ---


def damaged(records: list[Sent | None], base: int, at: int = -1, **options: Any) -> bytes:
    raw = bytearray(batch(records, base, **options))
    raw[at] ^= 1
    return bytes(raw)


def test_reading_goes_on_behind_a_damaged_batch() -> None:
    """What is before it comes, it is noted with its offsets, and the position is behind it."""
    data = batch([Sent()] * 2) + damaged([Sent(value=b"x")] * 3, 2) + batch([Sent()], 5)
    records, notes, position = read(data)
    assert [record.offset for record in records] == [0, 1, 2]
    assert [(note.offset, note.end) for note in notes] == [(2, 5)]
    assert (records[2].key, records[2].value, position) == (None, None, 5)


@pytest.mark.parametrize(("delta", "behind"), [(50, True), (0, True), (1 << 30, False)])
def test_a_header_that_lies_takes_no_sound_batch_along(delta: int, behind: bool) -> None:
    """Where a damaged batch says itself how far it goes, the next sound batch, or else the log's end, is believed."""
    raw = bytearray(batch([Sent(value=b"x")] * 3, 2))
    struct.pack_into(">i", raw, LAST_DELTA_AT, delta)
    data = batch([Sent()] * 2) + bytes(raw) + (batch([Sent()], 5) if behind else b"")
    _, notes, position = read(data, end=5)
    assert ([(note.offset, note.end) for note in notes], position) == ([(2, 5)], 5)


def test_two_damaged_batches_in_a_row_are_passed() -> None:
    """The range ends where a sound batch begins."""
    data = damaged([Sent(value=b"x")] * 3, 0) + damaged([Sent(value=b"x")] * 3, 3) + batch([Sent()], 6)
    assert ([(note.offset, note.end) for note in read(data)[1]], read(data)[2]) == ([(0, 6)], 6)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_cannot_be_unpacked_is_noted(codec: int) -> None:
    """Its check sum is right, so its own header says how far it goes."""
    raw = bytearray(batch([Sent(value=random.Random(1).randbytes(500))] * 3, codec=codec))
    del raw[-40:]
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    records, notes, position = read(sealed(raw, 0))
    assert ([record.value for record in records], position) == ([None], 3)
    assert [(note.offset, note.end) for note in notes] == [(0, 3)]
