"""The soak's verdict: which samples pass and which fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tools.chaos.soak import Sample, brief, judge

MIB = 2**20
RATE = 1_000


def series(memory: Callable[[float], float], lag: Callable[[float], float], seconds: int = 1_800) -> list[Sample]:
    return [Sample(at, int(memory(at) * MIB), int(lag(at))) for at in range(0, seconds, 10)]


def flat(at: float) -> float:
    return 300.0


def saw(at: float) -> float:
    """Return a lag that grows until the flush, ten seconds' worth."""
    return (at % 30) / 30 * 10_000


def test_a_steady_run_is_good() -> None:
    """Memory that stays, and a lag that comes and goes with the flushes, are no problem."""
    assert judge(series(flat, saw), RATE, 300).problems == []


def test_what_grows_in_the_warm_up_does_not_count() -> None:
    """Memory and lag of the start are left out."""
    samples = series(lambda at: 100 + min(at, 300), lambda at: 100_000 if at < 300 else 5_000)
    verdict = judge(samples, RATE, 300)
    assert verdict.problems == []
    assert verdict.growth == 0
    assert verdict.lag_max == 5_000


@pytest.mark.parametrize(("slope", "good"), [(0.005, True), (0.02, False)])
def test_a_leak_is_found(slope: float, good: bool) -> None:
    """Memory that grows by less than 5 % between the first and the last quarter is good, and by more is not."""
    verdict = judge(series(lambda at: 300 + slope * at, saw), RATE, 300)
    assert (not verdict.problems) is good
    assert verdict.growth == pytest.approx(slope * 1_120 / 300, rel=0.15)


def test_a_lag_that_grows_is_found() -> None:
    """A run that falls behind slowly is found by the growth, one that stalls by the height of its lag."""
    slow = judge(series(flat, lambda at: 15 * at), RATE, 300)
    assert [problem for problem in slow.problems if "grew" in problem]
    stall = judge(series(flat, lambda at: 60_000 if 900 <= at < 930 else 4_000), RATE, 300)
    assert stall.lag_max == 60_000
    assert len(stall.problems) == 1


def test_too_few_looks_say_nothing() -> None:
    """A run that ended early is not good."""
    assert judge(series(flat, saw, seconds=350), RATE, 300).problems


def test_the_series_is_told_in_brief() -> None:
    """However long the run, about a dozen lines are printed."""
    assert len(brief(series(flat, saw)).splitlines()) == 12
