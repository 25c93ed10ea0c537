"""Numbers in texts."""

from __future__ import annotations

import pytest

from downspout.cli.dlq import render_replay
from downspout.dead_letters.replay import Replay
from downspout.engine import Counts, RunResult
from downspout.errors import ConfigError
from downspout.run import live_view as live
from downspout.settings import SETTINGS


@pytest.mark.parametrize(("value", "said"), [(2_000_000, "is above 1,800,000. Try: a value of at most 1,800,000"),
                                             (10, "is below 1,000. Try: a value of at least 1,000")])  # fmt: skip
def test_limits_are_told_with_all_their_digits(value: int, said: str) -> None:
    """A setting out of its range is told its limit as a whole number, never as 1.8e+06."""
    with pytest.raises(ConfigError) as caught:
        SETTINGS["kafka.session_timeout_ms"].parse(value, "test")
    assert str(caught.value).endswith(said)


def test_a_limit_that_is_no_whole_number_keeps_its_fraction() -> None:
    with pytest.raises(ConfigError, match=r"is above 1\. Try: a value of at most 1$"):
        SETTINGS["kafka.breaker_ratio"].parse(1.5, "test")


@pytest.mark.parametrize(("count", "said"), [(1, "1 error, 1 restart"), (2000, "2,000 errors, 2,000 restarts")])
def test_the_summary_counts_in_singular_and_plural(count: int, said: str) -> None:
    counts = {"parse": Counts(errors=count, restarts=count)}
    text = live.summary("g", RunResult("end", True, 1.0, counts, count, 0, 0, 0, None, None))
    assert said in text
    assert f"{count:,} tuple tree{'s' if count > 1 else ''} complete" in text


@pytest.mark.parametrize(("count", "said"), [(1, "1 record would be written to t"), (2, "2 records would be written")])
def test_a_replay_counts_in_singular_and_plural(count: int, said: str) -> None:
    assert said in render_replay(Replay(counts={"t": count}), done=False)
