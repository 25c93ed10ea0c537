from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords

from downspout.kafka import Tolerance, bounded, column_records
from tests.kafka.wire_batches import TP, Aborted, Sent, batch, fetch, marker, old

OCTETS = st.one_of(st.none(), st.binary(max_size=12), st.integers(100, 400).map(lambda n: b"x" * n))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
TIMES = st.one_of(st.integers(0, 2000), st.sampled_from([0, 1, 1_700_000_000_000, 1 << 45, -1]))
RECORD = st.builds(Sent, TIMES, OCTETS, OCTETS, st.one_of(st.just(()), HEADERS))
PRODUCERS = (7, 8)


CLEARER: dict[Any, type[Exception]] = {struct.error: CorruptRecordError}
"""A batch that is too short for a header: the client stumbles over it."""


class Log:
    """The batches of a partition, with the transactions that were aborted in it."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        """The offset after each, and its bytes."""
        self.end = 0
        self.aborted: list[Aborted] = []

    def __repr__(self) -> str:
        return f"{self.batches} {self.aborted}"

    def add(self, raw: bytes, offsets: int) -> None:
        self.end += offsets
        self.batches.append((self.end, raw))

    def answer(self, start: int, cut: int) -> bytes:
        """Return what a broker sends: from the batch on that has the offset, cut off anywhere after that one."""
        sent = [raw for end, raw in self.batches if end > start]
        whole = b"".join(sent)
        return whole[: max(len(whole) - cut, len(sent[0]))] if sent else b""


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Return a log as producers, transactions, compaction and elections leave it."""
    log, opened, epoch = Log(), {}, 0
    log.end = draw(st.sampled_from([0, 5, 1 << 40]))
    for _ in range(draw(st.integers(1, 6))):
        epoch += draw(st.sampled_from([0, 0, 0, 1]))
        kind = draw(st.sampled_from(["plain", "plain", "plain", "transactional", "marker", "old", "gap"]))
        records = draw(st.lists(st.one_of(RECORD, RECORD, st.none()), min_size=1, max_size=8))
        codec = draw(st.integers(0, 4))
        tail = draw(st.integers(0, 2))
        if kind == "gap":
            log.end += draw(st.integers(1, 300))
        elif kind == "old":
            kept = [record for record in records if record is not None] or [Sent()]
            magic = draw(st.sampled_from([0, 1]))
            log.add(old(kept, log.end, magic=magic, codec=draw(st.sampled_from([0, 1, 2]))), len(kept))
        elif kind == "marker" and opened:
            producer = draw(st.sampled_from(sorted(opened)))
            abort = draw(st.booleans())
            if abort:
                log.aborted.append(Aborted(producer, opened[producer]))
            del opened[producer]
            log.add(marker(log.end, producer, abort=abort, epoch=epoch), 1)
        else:
            producer = draw(st.sampled_from(PRODUCERS)) if kind == "transactional" else -1
            if producer >= 0:
                opened.setdefault(producer, log.end)
            raw = batch(
                records,
                log.end,
                codec=codec,
                epoch=epoch,
                producer=producer,
                transactional=producer >= 0,
                broker_time=draw(st.one_of(st.none(), st.just(5_000))),
                tail=tail,
            )
            log.add(raw, len(records) + tail)
    for producer in sorted(opened):  # as the broker does: an open transaction that is read to is a committed one, later
        log.add(marker(log.end, producer, abort=False, epoch=epoch), 1)
    return log


@pytest.mark.slow
@settings(deadline=None)
@given(logs(), st.integers(0, 2**32), st.booleans(), st.integers(0, 100))
def test_columns_are_what_the_client_decodes(log: Log, seed: int, committed: bool, cut: int) -> None:
    """Of any log, from any offset, cut off anywhere, in any portions: the same records, positions, aborted batches."""
    numbers = random.Random(seed)
    start = numbers.choice([0, numbers.randint(max(log.end - 60, 0), log.end)])
    data = log.answer(start, cut if cut < 60 else 0)
    options: dict[str, Any] = {"aborted": log.aborted, "committed": committed}
    whole = fetch(data, start, columns=False, **options)
    assert fetch(data, start, columns=True, **options) == whole
    stops: list[tuple[int, int]] = []
    assert fetch(data, start, columns=True, limits=lambda: numbers.randint(1, 5), stops=stops, **options) == whole
    offsets = [record[2] for record in whole.records]
    assert all(offset < position for taken, position in stops for offset in offsets[:taken])
    assert all(position <= offset for taken, position in stops for offset in offsets[taken:])


def snappy_then_plain() -> Log:
    """Return a log of two batches: one packed by snappy, and one that is not packed."""
    log = Log()
    log.add(batch([Sent(0, None, None), Sent(0, None, None), Sent(0, None, b"x" * 100)], codec=2), 3)
    log.add(batch([Sent(0, None, None)], 3), 1)
    return log


def aborted_transaction() -> Log:
    """Return a log of a batch that is aborted, and the marker that says so."""
    log = Log()
    log.add(batch([Sent(0, None, b"x")], producer=7, transactional=True), 1)
    log.add(marker(1, 7, abort=True), 1)
    log.aborted.append(Aborted(7, 0))
    return log


@pytest.mark.parametrize("kind", [0, 1, 5], ids=["abort", "commit", "unknown"])
def test_the_book_of_transactions_is_kept_as_the_client_keeps_it(kind: int) -> None:
    """A marker that ends an aborted transaction otherwise than by an abort is passed and counted as by the client."""
    log = aborted_transaction()
    data = bytearray(log.answer(0, 0))
    kind_at = len(data) - 1 - 7 - 2  # the end of the key; the value with its length, and no headers, follow
    struct.pack_into(">h", data, kind_at, kind)
    more = batch([Sent(0, None, b"y")], 2, producer=7, transactional=True) + batch([Sent(0, None, b"z")], 3)
    whole = fetch(bytes(data) + more, columns=False, check_crcs=False, aborted=log.aborted)
    assert fetch(bytes(data) + more, columns=True, check_crcs=False, aborted=log.aborted) == whole
    assert [record[6] for record in whole.records] == ([b"y", b"z"] if kind == 0 else [b"z"])


@pytest.mark.parametrize("magic", [2, 3, 0x7F])
@pytest.mark.parametrize("columns", [True, False], ids=["columns", "records"])
def test_a_batch_too_short_for_the_header_of_its_format_is_corrupt(magic: int, columns: bool) -> None:
    """The error is the one for what cannot be read, whatever format the batch claims to have."""
    data = bytearray(40)
    struct.pack_into(">i", data, 8, len(data) - 12)
    data[16] = magic
    hook = column_records if columns else bounded
    part = hook(Fetcher.PartitionRecords, Tolerance())(0, TP, MemoryRecords(bytes(data)), check_crcs=False)
    with pytest.raises(CorruptRecordError, match=r"a batch of 40 bytes at 0"):
        part.take(100)


@pytest.mark.slow
@settings(deadline=None)
@given(logs(), st.integers(0, 2**32), st.booleans())
@example(snappy_then_plain(), 1722, False).via("a block of snappy claims more bytes than there are")
def test_damaged_bytes_end_as_they_do_in_the_client(log: Log, seed: int, check_crcs: bool) -> None:
    """Whatever bytes are changed, with check sums or without: the same records come, and then the same error."""
    numbers = random.Random(seed)
    data = bytearray(log.answer(0, 0))
    for _ in range(numbers.randint(1, 3)):
        if data:
            data[numbers.randrange(len(data))] = numbers.choice([0, 1, 0x7F, 0x80, 0xFF, numbers.randrange(256)])
    whole = fetch(bytes(data), columns=False, check_crcs=check_crcs, aborted=log.aborted)
    found = fetch(bytes(data), columns=True, check_crcs=check_crcs, aborted=log.aborted)
    assert (found.records, found.aborted) == (whole.records, whole.aborted)
    assert found.failure in (whole.failure, CLEARER.get(whole.failure))
