from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError

from tests.kafka.wire_batches import Aborted, Sent, batch, fetch, marker, old

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
        """Append a batch that takes so many offsets."""
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
    options = {"aborted": log.aborted, "committed": committed}
    whole = fetch(data, start, columns=False, **options)
    assert fetch(data, start, columns=True, **options) == whole
    stops: list[tuple[int, int]] = []
    assert fetch(data, start, columns=True, limits=lambda: numbers.randint(1, 5), stops=stops, **options) == whole
    offsets = [record[2] for record in whole.records]
    assert all(offset < position for taken, position in stops for offset in offsets[:taken])
    assert all(position <= offset for taken, position in stops for offset in offsets[taken:])


@pytest.mark.slow
@settings(deadline=None)
@given(logs(), st.integers(0, 2**32), st.booleans())
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
