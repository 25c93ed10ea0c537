"""Ranges in flight: their counts, their splits, and their parts."""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import NEVER, Backoff, PartitionLedger, RangesInFlight, RetryState, range_of, split_id
from downspout.ledger.origin import range_id

AT_ONCE = Backoff(0, 0)


def ranges(*spans: tuple[int, int, int], backoff: Backoff = AT_ONCE) -> PartitionLedger:
    """Return a ledger with these ranges out: start, end, records."""
    ledger = PartitionLedger(spans[0][0], backoff)
    for start, end, records in spans:
        ledger.emit_range(start, end, records, now=0)
    ledger.check()
    return ledger


def counts(ledger: PartitionLedger) -> tuple[int, int, int, int]:
    return ledger.in_flight, ledger.failed, ledger.pending, ledger.outstanding


def test_a_range_is_counted_in_records() -> None:
    ledger = ranges((0, 10, 10), (12, 20, 3))
    assert counts(ledger) == (13, 0, 13, 13)
    assert [ledger.out_until(offset) for offset in (0, 5, 12, 13)] == [10, None, 20, None]
    ledger.fail(12, now=0)
    assert counts(ledger) == (10, 3, 13, 13)
    assert ledger.ack(0) == 10
    assert counts(ledger) == (0, 3, 3, 13)
    ledger.committed(ledger.commit_point())
    assert (ledger.base, counts(ledger)) == (12, (0, 3, 3, 3))
    ledger.check()


def test_acks_are_of_ranges() -> None:
    """An ack of the middle changes nothing; one of the whole covers its gaps, and the commit goes over them."""
    ledger = ranges((0, 10, 4))
    assert (ledger.ack(1), ledger.fail(9, now=0), ledger.ack(0), ledger.ack(0)) == (0, None, 4, 0)
    assert (ledger.commit_point(), list(ledger.done_beyond(0))) == (10, [(0, 10)])


def test_a_range_of_one_is_a_record() -> None:
    ledger = ranges((5, 6, 1))
    trouble = ledger.fail(5, now=0)
    assert trouble == RetryState(failures=1, backoffs=1, end=6)
    assert ledger.emit(5, now=0)
    assert ledger.ack(5) == 1


def test_a_range_that_fails_goes_out_again_in_halves() -> None:
    """At most half as many records each, no attempt counted; what does not go waits on, under its own offset."""
    ledger = ranges((0, 10, 9))
    trouble = ledger.fail(0, now=0)
    assert trouble is not None
    assert (trouble.failures, trouble.backoffs, trouble.records, trouble.most) == (0, 1, 9, 5)
    assert ledger.emit_part(0, 0, 5, 5, now=0) == 0
    assert (ledger.out_until(0), ledger.earliest_ready_retry(0), counts(ledger)) == (5, 5, (5, 4, 9, 9))
    assert ledger.emit_part(5, 6, 10, 4, now=0) == 0  # there is nothing at 5
    assert (ledger.is_done(5), ledger.out_until(6), counts(ledger)) == (True, 10, (9, 0, 9, 9))
    assert list(ledger.failures_from(0)) == []
    ledger.check()


def test_halves_wait_for_the_shortest_back_off() -> None:
    """They were not tried yet: only what is tried again as it was, after a time-out, waits longer and longer."""
    ledger = ranges((0, 1024, 1024))
    waits = []
    for size in (1024, 512, 256, 128):
        trouble = ledger.fail(0, now=0)
        assert trouble is not None
        waits.append(trouble.ready_at)
        ledger.emit_part(0, 0, size // 2, size // 2, now=0)
    assert len(set(waits)) == 1
    again = []
    for _ in range(3):
        trouble = ledger.timeout(0, now=0)
        assert trouble is not None
        again.append(trouble.ready_at)
        ledger.emit_part(0, 0, 64, 64, now=0)
    assert again == [2 * waits[0], 4 * waits[0], 8 * waits[0]]


def test_a_record_that_stands_alone_has_no_past() -> None:
    """Neither the fails of the ranges that it was in, nor their timeouts, are its own."""
    ledger = ranges((0, 2, 2), (2, 3, 1))
    ledger.ack(2)
    ledger.timeout(0, now=0)
    ledger.split(0)
    ledger.emit_part(0, 0, 1, 1, now=0)
    assert ledger.retry_state(0) == RetryState(end=1, emitted_at=0, acks_seen=1)
    assert ledger.retry_state(1) == RetryState(end=2)


def test_a_range_that_times_out_stays_whole() -> None:
    """Until the caller has it split; parts keep the count, so that each further timeout splits at once."""
    ledger = ranges((0, 8, 8), (8, 9, 1))
    ledger.ack(8)
    for count in (1, 2):
        trouble = ledger.timeout(0, now=0)
        assert trouble is not None
        assert (trouble.timeouts, trouble.most) == (1, 8)
        ledger.emit_part(0, 0, 8, 8, now=0)
        assert ledger.retry_state(0).timeouts == 1, count
    ledger.timeout(0, now=0)
    ledger.split(0)
    ledger.emit_part(0, 0, 4, 4, now=0)
    assert [ledger.retry_state(offset).timeouts for offset in (0, 4)] == [1, 1]


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=6))
def test_few_culprits_take_few_ranges(count: int, culprits: set[int]) -> None:
    """Each stands alone after O(log n) rounds; k of them take O(k log n) ranges, and all others are acked."""
    culprits = {offset for offset in culprits if offset < count}
    ledger = ranges((0, count, count))
    alone: set[int] = set()
    emitted = rounds = 0
    out = [(0, count)]
    while out:
        rounds += 1
        emitted += len(out)
        for start, end in out:
            if not culprits & set(range(start, end)):
                ledger.ack(start)
            elif end == start + 1:
                alone.add(start)
                ledger.ack(start)
            else:
                ledger.fail(start, now=0)
        out = []
        while (start := ledger.earliest_ready_retry(now=0)) is not None:
            trouble = ledger.retry_state(start)
            assert trouble is not None
            end = start + min(trouble.most, trouble.end - start)
            if trouble.end == start + 1:
                ledger.emit(start, now=0)
            else:
                ledger.emit_part(start, start, end, end - start, now=0)
            out.append((start, end))
        ledger.check()
    depth = ceil(log2(count)) if count > 1 else 0
    assert alone == culprits
    assert rounds <= 1 + depth
    assert emitted <= 1 + 2 * len(culprits) * depth
    assert ledger.commit_point() == count


def test_what_is_done_or_told_of_is_not_free() -> None:
    """It ends a range; and a range over it is refused."""
    ledger = PartitionLedger(0, done=[(4, 6), (9, 10)], failures={7: 2})
    assert [ledger.free_until(start, 20) for start in (0, 4, 6, 8, 9, 10)] == [4, 4, 7, 9, 9, 20]
    assert (ledger.free_until(0, 3), ledger.free_until(7, 8), ledger.done_until(4), ledger.done_until(6)) == (
        3,
        7,
        6,
        6,
    )
    for start, end in ((0, 5), (4, 6), (6, 8)):
        with pytest.raises(ValueError, match=rf"\[{start}, {end}\) is not free"):
            ledger.emit_range(start, end, end - start, now=0)
    ledger.emit_range(0, 4, 4, now=0)
    with pytest.raises(ValueError, match="is not free"):
        ledger.emit_range(2, 4, 2, now=0)
    with pytest.raises(ValueError, match="nothing waits at 3"):
        ledger.emit_part(3, 3, 4, 1, now=0)


def test_the_beginning_of_a_range_is_gone() -> None:
    """It begins later; how many records went with it is known when the rest was read."""
    ledger = ranges((0, 10, 10))
    ledger.fail(0, now=0)
    assert ledger.gone(0, 4) == 4  # more than six cannot be left
    assert (ledger.commit_point(), ledger.failed, ledger.earliest_ready_retry(0)) == (4, 6, 4)
    assert ledger.emit_part(4, 7, 8, 1, now=0) == 3  # nor more than two behind this one
    assert (ledger.out_until(7), ledger.failed) == (8, 2)
    assert ledger.gone(8, 10) == 2
    assert ledger.pending == 1
    ledger.check()


def test_a_range_is_gone_as_a_whole() -> None:
    ledger = ranges((0, 10, 7), (10, 20, 10), (20, 21, 1))
    ledger.fail(0, now=0)
    assert (ledger.gone(0, 30), ledger.commit_point(), ledger.pending) == (7, 10, 11)
    ledger.check()


@pytest.mark.parametrize(("begin", "lost", "left"), [(5, 5, 5), (10, 10, 0), (1, 1, 9), (9, 9, 1), (25, 10, 0)])
def test_the_log_begins_within_a_range(begin: int, lost: int, left: int) -> None:
    """What is below is lost, the rest waits on; what is out has its chance."""
    ledger = ranges((0, 10, 10), (10, 25, 15))
    ledger.fail(0, now=0)
    assert ledger.lost_below(begin) == lost
    ledger.check()
    assert (ledger.skip_to(begin), ledger.failed, ledger.in_flight) == (lost, left, 15)
    ledger.check()


def test_no_more_is_lost_than_was_there() -> None:
    """In a range with gaps one record at least may be left, and is waited for."""
    ledger = ranges((0, 100, 3))
    ledger.fail(0, now=0)
    assert (ledger.skip_to(50), ledger.failed) == (2, 1)


def test_gaps_of_ranges_make_room() -> None:
    """The limit on what is outstanding goes by records, also while a range is half done."""
    ledger = ranges((0, 1000, 10))
    assert ledger.may_poll(11, now=0)
    assert not ledger.may_poll(10, now=0)
    ledger.fail(0, now=0)
    assert ledger.may_poll(10, now=0)
    ledger.emit_part(0, 0, 500, 5, now=0)
    ledger.ack(0)
    ledger.committed(500)
    assert 0 <= ledger.outstanding <= 10
    ledger.check()


def test_the_lowest_that_waits_is_found_due_or_not() -> None:
    """Those that are out are passed over; those that are settled otherwise are not."""
    ledger = ranges((0, 5, 5), (5, 6, 1), (6, 9, 3), backoff=Backoff(50, 100))
    assert ledger.first_waiting(0) is None
    for offset in (5, 6):
        ledger.fail(offset, now=0)
    ledger.postpone(5, NEVER)
    assert [ledger.first_waiting(offset) for offset in (0, 5, 6, 7)] == [5, 5, 6, None]


def test_spans_that_are_no_ranges_have_one_record() -> None:
    spans = RangesInFlight()
    assert (spans.take(7), spans.more, len(spans)) == ((8, 1), 0, 0)
    spans.add(7, 9, 2)
    spans.check()
    spans.more += 1
    with pytest.raises(AssertionError, match="records out are miscounted"):
        spans.check()


@pytest.mark.parametrize(
    ("damage", "says"), [("records", "miscounted"), ("records_out", "miscounted"), ("out", "are out")]
)
def test_damaged_counts_are_found_out(damage: str, says: str) -> None:
    ledger = ranges((0, 4, 4))
    ledger.fail(0, now=0)
    ledger.check()
    setattr(ledger._retries, damage, 77)
    with pytest.raises(AssertionError, match=says):
        ledger.check()


@pytest.mark.parametrize("text", ["", "-", "1", "1-", "-1", "a-b", "1-2-3", "1/2"])
def test_what_is_no_range_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="int"):
        range_of(text)


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_ids_of_ranges_are_read_back(start: int, length: int) -> None:
    text = range_id(start, start + length)
    assert range_of(text) == (start, start + length)
    assert split_id("3/orders//0/" + text) == ("3/orders//0", start)
