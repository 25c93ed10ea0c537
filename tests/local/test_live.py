"""What the live view makes of figures."""

from __future__ import annotations

from downspout.local.engine import Bounds
from downspout.local.figures import Figures
from downspout.local.live import Rates
from downspout.local.result import RunResult


def figures(
    at_s: float, done: int, *, lag: float | None = None, queues: dict[str, tuple[int, int]] | None = None
) -> Figures:
    """Return the figures of a run that goes on to the end of its topics."""
    reports = {} if lag is None else {"reader": {"lag": lag}}
    result = RunResult("running", False, at_s, {}, done, 0, 0, 0, None, None, reports=reports, spouts=["reader"])
    return Figures("made", result, queues or {}, Bounds(until="end"), stopping=False)


def test_the_time_that_is_left_does_not_jump_with_each_flush() -> None:
    """Where a sink flushes every 8 s, the rate stays near the mean, and the time that is left near the truth."""
    rates, per_s = Rates(), 10_000
    for at_s in range(5, 300, 5):
        done = at_s // 8 * 8 * per_s  # what is flushed, is acked
        rates.look(figures(at_s, done))
        if at_s >= 40:
            left = rates.eta_s(figures(at_s, done, lag=300 * per_s - done))
            assert left is not None
            truth = 300 - at_s
            assert 0.7 * truth < left < 1.3 * truth + 12


def test_a_line_names_the_bolt_for_which_most_tuples_wait() -> None:
    """A plain line tells where the work piles up, and says nothing of queues where nothing waits."""
    rates = Rates()
    assert "5,000 wait for slow" in rates.line(figures(5, 0, queues={"parse": (10, 0), "slow": (5_000, 0)}))
    assert "wait for" not in rates.line(figures(5, 0, queues={"parse": (0, 9)}))
