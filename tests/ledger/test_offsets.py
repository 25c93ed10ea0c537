from __future__ import annotations

from downspout.ledger import NEVER, Backoff, PartitionLedger

SLOW = Backoff(100, 1000)


def emitted(count: int, base: int = 0, backoff: Backoff | None = None) -> PartitionLedger:
    ledger = PartitionLedger(base, backoff)
    for offset in range(base, base + count):
        assert ledger.emit(offset, now=0)
    return ledger


def test_nothing_seen_commits_the_base() -> None:
    assert PartitionLedger(5).commit_point() == 5


def test_the_commit_is_the_lowest_that_is_out() -> None:
    ledger = emitted(5)
    for offset in (0, 1, 3, 4):
        ledger.ack(offset)
    assert ledger.commit_point() == 2
    assert ledger.pending
    ledger.ack(2)
    assert ledger.commit_point() == 5
    assert not ledger.pending


def test_a_failed_record_holds_the_commit() -> None:
    ledger = emitted(3)
    ledger.ack(0)
    ledger.ack(2)
    ledger.fail(1, now=0)
    assert ledger.commit_point() == 1
    assert (ledger.failed, ledger.in_flight, ledger.pending) == (1, 0, 1)


def test_with_all_done_the_commit_is_the_readers_place() -> None:
    """Behind the last record there may be markers; what is out holds the commit all the same."""
    ledger = emitted(2)
    ledger.ack(0)
    ledger.passed(9)
    assert ledger.commit_point() == 1
    ledger.ack(1)
    assert ledger.commit_point() == 9
    ledger.passed(3)
    assert ledger.commit_point() == 9
    assert ledger.outstanding == 2


def test_gaps_are_done_when_the_reader_has_passed_them() -> None:
    """Offsets without a record never wait for anything."""
    ledger = PartitionLedger(0)
    ledger.emit(3, now=0)
    ledger.emit(7, now=0)
    assert ledger.commit_point() == 3
    ledger.ack(3)
    assert ledger.commit_point() == 7
    assert ledger.outstanding == 2
    ledger.check()


def test_done_and_out_are_not_emitted_again() -> None:
    """A reader that went back skips them."""
    ledger = emitted(3)
    ledger.ack(0)
    assert [ledger.emit(offset, now=0) for offset in (0, 1, 2)] == [False, False, False]


def test_below_the_commit_nothing_is_emitted() -> None:
    ledger = emitted(3)
    ledger.ack(0)
    ledger.committed(1)
    assert not ledger.emit(0, now=0)
    assert ledger.is_done(0)


def test_late_and_double_words_change_nothing() -> None:
    """An ack or fail counts once for each emit."""
    ledger = emitted(2)
    assert ledger.ack(0)
    assert not ledger.ack(0)
    assert ledger.fail(0, now=0) is None
    assert ledger.fail(1, now=0) is not None
    assert ledger.fail(1, now=0) is None
    assert ledger.timeout(1, now=0) is None
    assert not ledger.ack(1)
    assert not ledger.ack(99)
    ledger.check()


def test_a_retry_waits_for_its_time() -> None:
    ledger = emitted(1, backoff=SLOW)
    ledger.fail(0, now=1000)
    assert ledger.earliest_ready_retry(now=1099) is None
    assert not ledger.emit(0, now=1099)
    assert ledger.earliest_ready_retry(now=1100) == 0
    assert ledger.emit(0, now=1100)
    assert ledger.earliest_ready_retry(now=1100) is None
    assert ledger.emitted_at(0) == 1100


def test_the_lowest_ready_retry_is_named() -> None:
    """Not the one that failed first, and not one whose time has not come."""
    ledger = PartitionLedger(0, SLOW)
    for offset in range(3):
        ledger.emit(offset, now=0)
    ledger.fail(2, now=0)
    ledger.fail(0, now=500)
    assert ledger.earliest_ready_retry(now=100) == 2
    assert ledger.earliest_ready_retry(now=600) == 0


def test_each_failure_waits_longer() -> None:
    """The schedule is by all fails and timeouts of the record."""
    ledger = emitted(1, backoff=SLOW)
    first = ledger.fail(0, now=0)
    assert first is not None
    assert first.ready_at == 100
    ledger.emit(0, now=100)
    second = ledger.fail(0, now=100)
    assert second is not None
    assert (second.failures, second.ready_at) == (2, 100 + 200)


def test_a_timeout_backs_off_without_an_attempt() -> None:
    """And counts as one amid progress only where others were acked meanwhile."""
    ledger = emitted(3, backoff=SLOW)
    alone = ledger.timeout(0, now=0)
    assert alone is not None
    assert (alone.failures, alone.timeouts, alone.ready_at) == (0, 0, 100)
    ledger.emit(0, now=100)
    ledger.ack(1)
    amid = ledger.timeout(0, now=100)
    assert amid is not None
    assert (amid.failures, amid.timeouts, amid.backoffs) == (0, 1, 2)
    ledger.emit(0, now=9999)
    again = ledger.timeout(0, now=9999)
    assert again is not None
    assert again.timeouts == 1


def test_resolving_is_being_done() -> None:
    """A filtered or dead-lettered record needs no ack, whatever state it was in."""
    ledger = emitted(4)
    ledger.fail(1, now=0)
    ledger.fail(2, now=0)
    ledger.emit(2, now=0)
    assert [ledger.resolve(offset) for offset in (0, 1, 2, 3, 4)] == [True] * 5
    assert not ledger.resolve(2)
    assert ledger.commit_point() == 5
    assert ledger.earliest_ready_retry(now=10**9) is None
    ledger.check()


def test_a_postponed_retry_waits_until_then() -> None:
    """For ever, where it is settled in another way; then it is not taken for compacted either."""
    ledger = emitted(2)
    ledger.fail(0, now=0)
    ledger.fail(1, now=0)
    assert ledger.earliest_ready_retry(now=0) == 0
    ledger.postpone(0, NEVER)
    ledger.postpone(1, 500)
    assert ledger.earliest_ready_retry(now=499) is None
    assert ledger.earliest_ready_retry(now=500) == 1
    assert ledger.earliest_ready_retry(now=10**9) == 1
    assert ledger.gone(0, 2) == 1
    assert ledger.commit_point() == 0
    ledger.postpone(7, 1)


def test_an_earlier_time_of_a_retry_does_not_count_any_more() -> None:
    """Postponed before its time came, it waits for the later one."""
    ledger = emitted(1, backoff=SLOW)
    ledger.fail(0, now=0)
    ledger.postpone(0, 500)
    assert ledger.earliest_ready_retry(now=499) is None
    assert ledger.earliest_ready_retry(now=500) == 0


def test_a_resolved_record_is_no_retry() -> None:
    ledger = emitted(2)
    ledger.fail(0, now=0)
    assert ledger.earliest_ready_retry(now=0) == 0
    ledger.resolve(0)
    assert ledger.earliest_ready_retry(now=0) is None


def test_what_is_gone_from_the_log_is_resolved() -> None:
    """Those that wait for a retry; those that are out still get their word."""
    ledger = emitted(4)
    ledger.fail(0, now=0)
    ledger.fail(1, now=0)
    ledger.emit(1, now=0)
    ledger.fail(3, now=0)
    assert ledger.gone(0, 3) == 1
    assert ledger.commit_point() == 1
    assert ledger.ack(1)
    assert ledger.ack(2)
    assert ledger.commit_point() == 3


def test_skipping_counts_what_is_lost() -> None:
    """Failed and unseen offsets are lost; done ones, and those that are out, are not."""
    ledger = PartitionLedger(0, done=[(6, 8)])
    for offset in range(4):
        ledger.emit(offset, now=0)
    ledger.ack(0)
    ledger.fail(1, now=0)
    assert ledger.skip_to(10) == 1 + (10 - 4) - 2
    assert ledger.commit_point() == 2
    assert ledger.ack(2)
    assert ledger.ack(3)
    assert ledger.commit_point() == 10
    ledger.check()


def test_committing_forgets() -> None:
    """What lies below is dropped; a commit below the last one changes nothing."""
    ledger = emitted(10)
    for offset in range(5):
        ledger.ack(offset)
    assert ledger.outstanding == 10
    ledger.committed(5)
    assert (ledger.base, ledger.outstanding, len(list(ledger.done_beyond(ledger.base)))) == (5, 5, 0)
    ledger.committed(3)
    assert ledger.base == 5


def test_a_commit_beyond_what_was_seen_moves_the_reader_on() -> None:
    """Markers behind the last record: the next record is the one behind them."""
    ledger = emitted(1)
    ledger.ack(0)
    ledger.committed(4)
    assert (ledger.base, ledger.next, ledger.outstanding) == (4, 4, 0)
    ledger.check()


def test_the_limit_is_by_offsets_not_covered_by_the_commit() -> None:
    ledger = emitted(3)
    assert ledger.may_poll(4, now=0)
    assert not ledger.may_poll(3, now=0)
    ledger.ack(0)
    assert not ledger.may_poll(3, now=0)
    ledger.committed(1)
    assert ledger.may_poll(3, now=0)


def test_at_the_limit_only_a_ready_retry_below_it_is_read() -> None:
    """A retry among the first so many offsets leads nowhere new; one behind them could."""
    ledger = emitted(5, backoff=SLOW)
    ledger.fail(2, now=0)
    assert not ledger.may_poll(3, now=99)
    assert ledger.may_poll(3, now=100)
    assert not ledger.may_poll(2, now=100)


def test_the_limit_counts_emitted_offsets_not_gaps() -> None:
    ledger = PartitionLedger(0)
    for offset in (0, 10, 20):
        ledger.emit(offset, now=0)
    ledger.fail(10, now=0)
    assert ledger.may_poll(4, now=0)
    assert ledger.may_poll(2, now=0)
    assert not ledger.may_poll(1, now=0)


def test_what_an_earlier_owner_acked_is_skipped() -> None:
    """Ranges of the metadata are done when they are read, and count towards the commit."""
    ledger = PartitionLedger(10, done=[(11, 13), (15, 16)])
    assert [ledger.emit(offset, now=0) for offset in range(10, 17)] == [
        True, False, False, True, True, False, True,
    ]  # fmt: skip
    ledger.ack(10)
    assert ledger.commit_point() == 13
    assert list(ledger.done_beyond(13)) == [(15, 16)]


def test_ranges_below_the_commit_are_ignored() -> None:
    """Metadata cannot make the past count."""
    assert PartitionLedger(10, done=[(3, 12)], failures={4: 2}).commit_point() == 12


def test_attempts_of_an_earlier_owner_count() -> None:
    """They are told on before the record comes, and its next failure adds to them."""
    ledger = PartitionLedger(0, SLOW, failures={1: 3, 5: 1, 6: 0})
    assert list(ledger.failures_from(0)) == [(1, 3), (5, 1)]
    ledger.emit(0, now=0)
    assert ledger.emit(1, now=0)
    assert ledger.earliest_ready_retry(now=10**6) is None
    trouble = ledger.fail(1, now=0)
    assert trouble is not None
    assert trouble.failures == 4
    assert list(ledger.failures_from(0)) == [(1, 4), (5, 1)]
    assert list(ledger.failures_from(2)) == [(5, 1)]
    ledger.check()


def test_attempts_of_a_record_that_is_not_there_any_more_are_dropped() -> None:
    ledger = PartitionLedger(0, failures={1: 3})
    ledger.emit(2, now=0)
    assert not list(ledger.failures_from(0))


def test_in_order_nothing_grows() -> None:
    """A hundred thousand records acked in order leave one range, and nothing after the commit."""
    ledger = PartitionLedger(0)
    for offset in range(100_000):
        ledger.emit(offset, now=0)
        ledger.ack(offset)
    assert len(list(ledger.done_beyond(ledger.base))) == 1
    ledger.committed(ledger.commit_point())
    assert (len(list(ledger.done_beyond(ledger.base))), ledger.pending, ledger.outstanding) == (0, 0, 0)


def test_memory_grows_with_holes() -> None:
    """One record that is out among many costs one range more."""
    ledger = emitted(10_000)
    for offset in range(10_000):
        if offset % 1000 != 500:
            ledger.ack(offset)
    assert len(list(ledger.done_beyond(ledger.base))) == 11
    assert ledger.pending == 10


def test_the_next_retry_is_never_told_too_late() -> None:
    """It is the end of the first back-off that is under way; None before any failure and when all are over."""
    ledger = PartitionLedger(0, Backoff(5))
    assert ledger.next_retry() is None
    for offset in (0, 1):
        ledger.emit(offset, now=0)
    ledger.fail(1, now=3)
    ledger.fail(0, now=4)
    assert ledger.next_retry() == 8
    assert ledger.earliest_ready_retry(now=8) == 1
    assert ledger.next_retry() == 9
    assert ledger.earliest_ready_retry(now=9) == 0
    assert ledger.next_retry() is None


def test_a_ready_retry_is_named_whatever_happened_to_others() -> None:
    """Emitted, postponed, resolved, failed again: of those that are left the lowest ready one is named, each once."""
    ledger = PartitionLedger(0, Backoff(5))
    for offset in range(6):
        ledger.emit(offset, now=0)
    for offset in range(6):
        ledger.fail(offset, now=-5)
    assert ledger.earliest_ready_retry(now=0) == 0
    ledger.emit(0, now=0)
    ledger.fail(0, now=0)  # again, in 10 ms
    ledger.postpone(1, NEVER)
    ledger.postpone(2, 3)
    ledger.resolve(3)
    named = []
    for now in (0, 0, 2, 3, 9, 10, 11):
        if (offset := ledger.earliest_ready_retry(now)) is not None:
            named.append((now, offset))
            ledger.emit(offset, now)
    assert named == [(0, 4), (0, 5), (3, 2), (10, 0)]


def test_a_clock_that_steps_back_loses_no_retry() -> None:
    """A retry that was ready and, by an earlier time, is not ready yet, is ready again later."""
    ledger = PartitionLedger(0, Backoff(5))
    ledger.emit(0, now=0)
    ledger.fail(0, now=0)
    assert [ledger.earliest_ready_retry(now) for now in (5, 4, 5)] == [0, None, 0]


def test_everything_is_resolved_in_the_end() -> None:
    """With failures that stop, whatever happened before, each record ends done and the commit at the end."""
    ledger = PartitionLedger(0, Backoff(5, 60))
    for offset in range(50):
        ledger.emit(offset, now=0)
        if offset % 3 == 0:
            ledger.fail(offset, now=0)
        else:
            ledger.ack(offset)
    now = 0
    while ledger.pending:
        pending = ledger.commit_point()
        now += 100
        retry = ledger.earliest_ready_retry(now)
        assert retry == pending
        ledger.emit(retry, now)
        ledger.ack(retry)
    assert ledger.commit_point() == 50
