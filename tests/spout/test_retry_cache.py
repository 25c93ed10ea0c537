"""Records of ranges that failed, in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from downspout.kafka import RecordColumns
from downspout.ledger import PartitionLedger
from downspout.spout import RetryCache, index_of, offset_at


def columns(offsets: list[int], size: int = 10) -> RecordColumns:
    count = len(offsets)
    values = pa.array([b"%0*d" % (size, offset) for offset in offsets], pa.binary())
    numbers = np.array(offsets, np.int64)
    return RecordColumns("t", 0, numbers, numbers, np.zeros(count, np.int8), pa.nulls(count, pa.binary()), values)


def found(kept: RetryCache, offset: int) -> list[int] | None:
    rows = kept.find(offset)
    return None if rows is None else [record.offset for record in rows]


def test_records_are_found_from_any_offset_of_their_range() -> None:
    """Also from one in a gap; but not beyond the last record of a slice."""
    kept = RetryCache(1000)
    kept.keep(columns([3, 5, 9]))
    kept.keep(columns([20, 21]))
    assert [found(kept, offset) for offset in (2, 3, 4, 9, 10, 20, 22)] == [
        None,
        [3, 5, 9],
        [5, 9],
        [9],
        None,
        [20, 21],
        None,
    ]


def test_there_is_so_much_room() -> None:
    """What does not fit is not kept; what is kept is kept once; what is done makes room."""
    kept, ledger = RetryCache(60), PartitionLedger(0)
    for start in (0, 3, 6):
        ledger.emit_range(start, start + 3, 3, now=0)
        kept.keep(columns([start, start + 1, start + 2]))
        kept.keep(columns([start + 1, start + 2]))
    assert (len(kept), found(kept, 6)) == (2, None)
    ledger.ack(0)
    kept.release(0, ledger)
    kept.keep(columns([6, 7, 8]))
    assert (len(kept), found(kept, 0), found(kept, 6)) == (2, None, [6, 7, 8])


def test_a_slice_stays_until_all_of_it_is_done() -> None:
    """Whatever parts it is tried in, and whatever was committed meanwhile."""
    kept, ledger = RetryCache(1000), PartitionLedger(0)
    ledger.emit_range(0, 4, 4, now=0)
    ledger.fail(0, now=0)
    kept.keep(columns([0, 1, 2, 3]))
    ledger.emit_part(0, 0, 2, 2, now=0)
    ledger.emit_part(2, 2, 4, 2, now=0)
    ledger.ack(0)
    kept.release(0, ledger)
    ledger.committed(2)
    kept.sweep(ledger)
    assert found(kept, 2) == [2, 3]
    ledger.ack(2)
    kept.sweep(ledger)
    assert len(kept) == 0


def test_a_few_of_many_do_not_hold_the_others_back() -> None:
    """A slice that is small beside what it was cut from is copied; a large one is not."""
    kept, fetched = RetryCache(10_000_000), columns(list(range(10_000)), size=1000)
    kept.keep(fetched[10:20])
    kept.keep(fetched[100:9_000])
    small, large = kept.find(10), kept.find(100)
    assert isinstance(small, RecordColumns)
    assert isinstance(large, RecordColumns)
    assert small.values.get_total_buffer_size() < 20_000
    assert large.values.get_total_buffer_size() > 9_000_000
    assert small.values.equals(fetched[10:20].values)


def test_records_and_columns_are_searched_alike() -> None:
    rows = columns([3, 5, 9])
    for offset in range(11):
        assert index_of(rows, offset) == index_of(list(rows), offset)
    assert [offset_at(rows, at) for at in (0, -1)] == [offset_at(list(rows), at) for at in (0, -1)] == [3, 9]
