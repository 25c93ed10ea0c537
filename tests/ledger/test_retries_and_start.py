from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.ledger import Backoff, Start, start_at
from downspout.ledger.epochs import STARTS
from downspout.settings.table import START_STRATEGIES

MS = st.integers(0, 10**7)


def test_the_reference_schedule() -> None:
    """2 ms · 2^(n-1), up to 10 s."""
    assert [Backoff().delay(n) for n in (1, 2, 3, 12, 13, 14)] == [2, 4, 8, 4096, 8192, 10_000]


@pytest.mark.parametrize("failures", [43, 44, 45, 63, 64, 65, 10**9])
def test_no_overflow(failures: int) -> None:
    """Where the reference's shift overflows, ours stays at its limit."""
    assert Backoff().delay(failures) == 10_000


@given(MS, MS, st.integers(0, 200) | st.integers(1, 1 << 40))
def test_never_falls_and_never_exceeds(delay: int, limit: int, failures: int) -> None:
    """For any settings, more failures never wait less, and never more than the limit."""
    backoff = Backoff(delay, limit)
    assert 0 <= backoff.delay(failures) <= backoff.delay(failures + 1) <= limit


@given(MS, MS, st.integers(0, 200))
def test_doubling_is_exact(delay: int, limit: int, failures: int) -> None:
    """The waits are those of the reference, to the millisecond."""
    assert Backoff(delay, limit).delay(failures + 1) == min(limit, delay << failures)


def test_no_failure_counts_as_the_first() -> None:
    """Zero failures wait as one does: the schedule has no case of its own for it."""
    assert Backoff(7, 100).delay(0) == Backoff(7, 100).delay(1) == 7


def test_the_table_knows_every_strategy_of_the_settings() -> None:
    assert set(STARTS) == set(START_STRATEGIES)


@pytest.mark.parametrize("strategy", sorted(STARTS))
def test_our_own_commit_always_counts(strategy: str) -> None:
    """After a restart, whatever the strategy, reading goes on at the commit."""
    assert start_at(strategy, committed=True, by_this_topology=True) is Start.COMMITTED


@pytest.mark.parametrize(
    ("strategy", "foreign", "none"),
    [
        ("EARLIEST", Start.BEGINNING, Start.BEGINNING),
        ("LATEST", Start.END, Start.END),
        ("UNCOMMITTED_EARLIEST", Start.COMMITTED, Start.BEGINNING),
        ("UNCOMMITTED_LATEST", Start.COMMITTED, Start.END),
        ("TIMESTAMP", Start.TIMESTAMP, Start.TIMESTAMP),
        ("UNCOMMITTED_TIMESTAMP", Start.COMMITTED, Start.TIMESTAMP),
        ("OFFSETS", Start.OFFSET, Start.OFFSET),
        ("UNCOMMITTED_OFFSETS", Start.COMMITTED, Start.OFFSET),
    ],
)
def test_section_five(strategy: str, foreign: Start, none: Start) -> None:
    """The reference's table, and our rows for named offsets, row by row."""
    assert start_at(strategy, committed=True, by_this_topology=False) is foreign
    assert start_at(strategy, committed=False, by_this_topology=False) is none
