from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import PartitionProgress, StallReport
from downspout.ledger.breaker import LATE_MS

LIMIT_MS = 20_000


def looks(progress: PartitionProgress, seconds: range, point: int | None = 7, waits: bool = True) -> list[StallReport]:
    found = [progress.check(point, waits, second * 1000) for second in seconds]
    return [word for word in found if word is not None]


def test_an_episode_is_told_once_and_so_is_its_end() -> None:
    """A partition that stands still is stuck after the limit, not before, and moves again when its point does."""
    progress = PartitionProgress(LIMIT_MS, now=0)
    assert looks(progress, range(1, 21)) == []
    assert looks(progress, range(21, 60)) == [StallReport(True, 7, LIMIT_MS)]
    assert progress.stuck
    assert looks(progress, range(60, 62), point=8) == [StallReport(False, 7, 59_000)]
    assert not progress.stuck
    assert looks(progress, range(62, 90), point=8) == [StallReport(True, 8, LIMIT_MS)]


def test_who_waits_for_nothing_is_never_stuck() -> None:
    """Where no records wait the same point means the end, however long; the clock starts when some do."""
    progress = PartitionProgress(LIMIT_MS, now=0)
    assert looks(progress, range(1, 100), waits=False) == []
    assert progress.still_ms(100_000) <= 1_000
    assert looks(progress, range(100, 119)) == []
    assert looks(progress, range(119, 121)) == [StallReport(True, 7, LIMIT_MS)]


def test_records_that_nobody_waits_for_any_more_end_an_episode() -> None:
    """When the last record is done by other means, at the same point, the partition is not stuck any more."""
    progress = PartitionProgress(LIMIT_MS, now=0)
    assert len(looks(progress, range(1, 30))) == 1
    assert looks(progress, range(30, 31), waits=False) == [StallReport(False, 7, 29_000)]


def test_a_process_that_slept_looks_twice_before_it_complains() -> None:
    """After a long time without a look the first one tells nothing: what happened meanwhile is taken in after it."""
    progress = PartitionProgress(LIMIT_MS, now=0)
    looks(progress, range(1, 3))
    assert looks(progress, range(100, 101)) == []
    assert looks(progress, range(101, 102)) == [StallReport(True, 7, 100_000)]


def test_a_partition_whose_start_is_not_known_can_be_stuck() -> None:
    progress = PartitionProgress(LIMIT_MS, now=0)
    assert looks(progress, range(1, 22), point=None) == [StallReport(True, None, LIMIT_MS)]


def test_a_first_emit_is_progress_and_a_retry_is_none() -> None:
    """A record that came late has the whole limit for its answer; one that is emitted again has not."""
    late = PartitionProgress(LIMIT_MS, now=0)
    assert [late.check(7, True, second * 1000, 15_000 if second > 15 else None) for second in range(1, 35)] == [
        None
    ] * 34
    assert late.check(7, True, 35_000, 15_000) == StallReport(True, 7, LIMIT_MS)
    assert late.check(7, True, 36_000, 36_000) is None, "told once"
    assert late.check(8, True, 37_000) == StallReport(False, 7, 22_000)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, LATE_MS - 1)), max_size=60))
def test_words_alternate_and_tell_the_truth(steps: list[tuple[int, bool, int]]) -> None:
    """Stuck and moving are told in turn, and stuck only where point and need were the same for the limit."""
    progress, now, since, before = PartitionProgress(LIMIT_MS, 0), 0, 0, (-1, True)
    stuck = False
    for point, waits, passed in steps:
        now += passed
        word = progress.check(point, waits, now)
        if (point, waits) != before or not waits:
            since, before = now, (point, waits)
        if word is not None:
            assert word.stuck is not stuck
            stuck = word.stuck
            assert not stuck or (waits and now - since >= LIMIT_MS and word.offset == point)
        assert progress.stuck is stuck
        assert stuck or not waits or now - since < LIMIT_MS
