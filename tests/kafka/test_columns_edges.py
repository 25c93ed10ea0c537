from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from kafka import codec as codecs
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from downspout.kafka import FastPathMiss, batches, decode
from downspout.kafka.columns import reading
from tests.kafka.wire_batches import (
    ATTRIBUTES_AT,
    COUNT_AT,
    HEADER_SIZE,
    TP,
    Aborted,
    Sent,
    as_tuple,
    batch,
    fetch,
    marker,
    old,
    records_of,
    sealed,
)

CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
MIB = 1024 * 1024


def part(data: bytes, start: int = 0, **options: Any) -> Any:
    """Return the object that the fetcher would take columns of."""
    return records_of(True, [])(start, TP, MemoryRecords(data), **options)


def values(count: int, size: int = 1) -> list[Sent]:
    return [Sent(value=b"%d" % number * size) for number in range(count)]


# --- large and many ---


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_a_record_of_ten_mebibytes(codec: int) -> None:
    """A record of 10 MiB comes whole, between small ones, whatever the compression."""
    large = Sent(key=b"k", value=bytes(range(256)) * (10 * MIB // 256), headers=[("h", b"x" * MIB)])
    data = batch([Sent(), large, Sent()], codec=codec) + batch([Sent()], 3)
    whole = fetch(data, columns=False)
    assert fetch(data, columns=True) == whole
    assert len(whole.records[1][6]) == 10 * MIB


def test_many_small_batches_are_one_piece() -> None:
    data = b"".join(batch([Sent(value=b"%d" % number)], number) for number in range(500))
    (columns,) = part(data).take(1000)
    assert columns.values.to_pylist() == [b"%d" % number for number in range(500)]


def test_batches_are_decoded_a_few_megabytes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is packed tightly does not unfold all at once: a piece ends as soon as it is large."""
    monkeypatch.setattr(reading, "PIECE_BYTES", MIB)
    data = b"".join(batch([Sent(value=b"x" * MIB)], number, codec=4) for number in range(5))
    assert len(data) < 10_000
    taking = part(data)
    tracemalloc.start()
    for number in range(5):
        (columns,) = taking.take(1000)
        assert columns.offsets.tolist() == [number]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * MIB


# --- bytes that lie ---


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("count", [-1, 4, 1 << 20, (1 << 31) - 1])
def test_a_batch_with_another_number_of_records_is_corrupt(count: int, codec: int) -> None:
    """A count that the bytes do not bear out ends as in the client, and takes no memory."""
    raw = bytearray(batch([Sent(value=b"x" * 50)] * 3, codec=codec))
    struct.pack_into(">i", raw, COUNT_AT, count)
    data = sealed(raw, 0)
    fetch(old(values(1)), columns=True)  # loads what is loaded once
    tracemalloc.start()
    found = fetch(data, columns=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == fetch(data, columns=False)
    assert found.failure is CorruptRecordError
    assert peak < 4 * MIB


FIELDS = {"length": 0, "timestamp": 2, "offset": 3, "key": 4, "value": 6, "headers": 8, "name": 9, "header": 11}


@pytest.mark.parametrize("number", [b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80" * 11, b"\x01", b"\x7f"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_number_that_cannot_be_is_corrupt(field: str, number: bytes) -> None:
    """Lengths of 2 GiB, negative ones and endless numbers end as in the client: what is before them is read."""
    sound = batch([Sent(value=b"a")])[HEADER_SIZE:]
    record = bytearray(batch([Sent(key=b"k", value=b"v", headers=[("h", b"x")])])[HEADER_SIZE:])
    at = FIELDS[field]
    record[at : at + 1] = number
    if field != "length":  # else the length would give it away at once
        record[0] = 2 * (len(record) - 1)
    raw = bytearray(batch([Sent(value=b"a"), Sent()]))[:HEADER_SIZE] + sound + record
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    data = sealed(raw, 0)
    found, whole = fetch(data, columns=True), fetch(data, columns=False)
    assert found == whole
    assert found.records[0][6] == b"a"


def test_the_straight_way_knows_no_lies() -> None:
    """A record that is cut off in the middle of any number is not taken the straight way, wherever it is cut."""
    raw = batch([Sent(1 << 40, b"k", b"v", [("h", b"x")])] * 2)
    (sound,) = batches(raw)
    data, start, end = sound.records()
    for cut in range(start, end):
        with pytest.raises(FastPathMiss):
            decode("t", 0, [sound], [(data[:cut], start, cut)])


def test_a_batch_that_is_too_short_is_corrupt() -> None:
    """A size that leaves no room for a header is an error, in both formats, and never an endless loop."""
    raw = bytearray(batch([Sent()]))
    for size in (-13, -12, -1, 0, 13, 14, 48):
        struct.pack_into(">i", raw, 8, size)
        for magic in (1, 2):
            raw[16] = magic
            assert fetch(batch(values(2)) + bytes(raw), 0, columns=True, check_crcs=False).failure is not None


# --- errors stay, and tell where ---


@pytest.mark.parametrize(("columns", "told"), [(True, r"wire\[3\]@2: .*checksum"), (False, "offset 2 failed crc")])
def test_a_wrong_check_sum_is_told_until_somebody_seeks(columns: bool, told: str) -> None:
    """The records before it come first; then each poll says it again, with its place, and none waits for ever."""
    damaged = bytearray(batch(values(3), 2))
    damaged[-1] ^= 1
    taking = records_of(columns, [])(0, TP, MemoryRecords(batch(values(2)) + bytes(damaged)))
    assert len(taking.take(1000)) == 2
    for _ in range(3):
        with pytest.raises(CorruptRecordError, match=told):
            taking.take(1000)
    assert (taking.next_fetch_offset, bool(taking)) == (2, True)
    taking.drain()
    assert not taking


def test_check_sums_can_be_left_out() -> None:
    """Without ``check_crcs`` a batch is read whatever its checksum says."""
    damaged = bytearray(batch([Sent(value=b"abc")]))
    damaged[-2] ^= 1
    assert fetch(bytes(damaged), columns=True, check_crcs=False).records[0][6] == b"abb"
    assert fetch(bytes(damaged), columns=True).failure is CorruptRecordError


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_have_check_sums_for_records(magic: int) -> None:
    data = bytearray(old(values(3), magic=magic))
    data[-1] ^= 1
    found = fetch(bytes(data), columns=True)
    assert (found.failure, len(found.records)) == (CorruptRecordError, 2)
    assert found == fetch(bytes(data), columns=False)


@pytest.mark.parametrize("kind", [2, 3, 4])
def test_a_codec_without_its_package_is_the_same_error(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own error names the codec; what was fetched before it is read."""
    data = batch(values(2)) + batch(values(9, 50), 2, codec=kind)
    monkeypatch.setattr(codecs, f"has_{CODECS[kind]}", lambda: False)
    whole = fetch(data, columns=False)
    assert fetch(data, columns=True) == whole
    assert (len(whole.records), whole.failure) == (2, UnsupportedCodecError)
    taking = part(data)
    taking.take(1000)
    with pytest.raises(UnsupportedCodecError, match=rf"\w+\[\d+\]@2: .*{CODECS[kind]}"):
        taking.take(1000)


def test_an_unknown_codec_is_the_same_error() -> None:
    """A codec that is not invented yet ends as in the client."""
    raw = bytearray(batch(values(2)))
    struct.pack_into(">h", raw, ATTRIBUTES_AT, 6)
    assert fetch(sealed(raw, 0), columns=True) == fetch(sealed(raw, 0), columns=False)


# --- what is told when ---


def test_aborted_batches_are_told_when_reading_passes_them() -> None:
    """Nothing is heard of an aborted batch while a record before it is not taken; the position waits as well."""
    data = batch(values(3))
    data += batch(values(2), 3, producer=7, transactional=True) + marker(5, 7, abort=True) + batch(values(1), 6)
    heard: list[Any] = []
    taking = records_of(True, heard)(
        0, TP, MemoryRecords(data), isolation_level=1, aborted_transactions=[Aborted(7, 3)]
    )
    for position in (1, 2, 3):
        assert len(taking.take(1)) == 1
        assert (taking.next_fetch_offset, heard) == (position, [])
    (columns,) = taking.take(1)
    assert (columns.offsets.tolist(), heard, taking.next_fetch_offset) == ([6], [(TP, 3, 2)], 7)


def test_the_leader_epoch_is_that_of_the_last_record_taken() -> None:
    """The position's epoch never belongs to a batch that was not taken yet: the log would look cut off."""
    taking = part(batch(values(2), epoch=4) + batch(values(2), 2, epoch=5))
    for count, epoch in ((1, 4), (1, 4), (2, 5)):
        assert len(taking.take(count)) == count
        assert taking.leader_epoch == epoch


def test_the_clients_figures_are_kept() -> None:
    """The client's metrics see as many records as without columns."""
    for columns in (False, True):
        taking = records_of(columns, [])(0, TP, MemoryRecords(batch(values(5)) + old(values(3), 5)))
        while taking:
            taking.take(100)
        assert taking.records_read == 8
        assert taking.bytes_read > 0


def test_a_dropped_fetch_lets_go_of_its_columns() -> None:
    """After a seek the rest of what was fetched is given up, and nothing holds on to it."""
    taking = part(batch(values(5)))
    taking.take(2)
    taking.drain()
    assert (bool(taking), taking.held) == (False, None)


def test_columns_hold_on_to_no_fetched_bytes() -> None:
    """Keys, values and headers are gathered: a few records that are kept do not keep a fetch of megabytes."""
    records = [Sent(key=b"k", value=b"v" * 100, headers=[("h", b"x")])] * 100
    (columns,) = part(batch(records, codec=0)).take(3)
    kept = sum(buffer.size for array in (columns.keys, columns.values) for buffer in array.buffers() if buffer)
    assert kept < 100 * 101 + 4096
    assert [as_tuple(record)[5:] for record in columns] == [(b"k", b"v" * 100, [("h", b"x")])] * 3


class OddName(str):
    """A header's name that is no UTF-8 on the wire, as any producer but Java's may write one."""

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfename"


@pytest.mark.parametrize("packed", [0, 1], ids=["plain", "gzip"])
def test_a_header_name_that_is_no_text_is_read_as_java_reads_it(packed: int) -> None:
    """The bytes are replaced; the records around it, and all else of that record, are as they were written."""
    builder = DefaultRecordBatchBuilder(2, packed, 0, -1, -1, -1, 1_000_000)
    for number in range(5):
        name = OddName("x") if number in (1, 3) else "x"
        builder.append(number, 1_000, b"k", b"v%d" % number, [("a", None), (name, b"1")])
    (batch,) = batches(bytes(builder.build()))
    for made in (batch.of_the_client(), batch.of_the_client(batch.records())):
        found = [(record.offset, record.value, record.headers) for record in made]
        names = ["x", "��name", "x", "��name", "x"]
        assert found == [(at, b"v%d" % at, [("a", None), (name, b"1")]) for at, name in enumerate(names)]
