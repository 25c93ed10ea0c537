"""The live view's display of figures."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from downspout.cli.terminal import StderrHandler
from downspout.engine import Bounds, Counts, RunResult
from downspout.run import RunMetrics
from downspout.run.live_view import PARTITIONS_SHOWN, LinesView, Rates, behind_lines, partition_rows
from downspout.run.table_view import TableView


def figures(
    at_s: float, done: int, *, lag: float | None = None, queues: dict[str, tuple[int, int]] | None = None
) -> RunMetrics:
    """Return the figures of a run that goes on to the end of its topics."""
    reports = {} if lag is None else {"reader": {"lag": lag}}
    result = RunResult("running", False, at_s, {}, done, 0, 0, 0, None, None, reports=reports, spouts=["reader"])
    return RunMetrics("made", result, queues or {}, Bounds(until="end"), stopping=False)


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
    """A plain line tells where the work piles up, and says nothing about queues where nothing waits."""
    rates = Rates()
    assert "5,000 queued for slow" in rates.line(figures(5, 0, queues={"parse": (10, 0), "slow": (5_000, 0)}))
    assert "wait for" not in rates.line(figures(5, 0, queues={"parse": (0, 9)}))


def test_a_line_is_shown_where_something_is_new() -> None:
    """A run that is idle says so once; time, rates and latencies that fade are no news."""
    out = io.StringIO()
    view = LinesView(out, every_s=5.0)
    for at_s in range(0, 60, 5):
        view.look(at_s, lambda at_s=at_s: figures(at_s, min(at_s, 10) * 100, lag=0.0))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["5", "10"]
    view.look(60.0, lambda: figures(60.0, 1_000, lag=3.0))
    assert out.getvalue().splitlines()[2:] == ["    60 s  1,000 done (5/s)  0 in flight  lag 3  1 s left"]


def test_a_line_tells_of_batches() -> None:
    """Of a coordinator of batches the line has the next transaction, what is active, and attempts that failed."""
    report = {"batch_txid": 1_234.0, "batches_active": 2.0, "batches_failed": 0.0}

    def line(failed: float) -> str:
        reports = {"coordinator": {**report, "batches_failed": failed}}
        result = RunResult("running", False, 1.0, {}, 0, 0, 0, 0, None, None, reports=reports, spouts=["coordinator"])
        return Rates().line(RunMetrics("made", result, {}, Bounds(until="end"), stopping=False))

    assert "transaction 1,234 is next, 2 active" in line(0.0)
    assert "failed attempt" not in line(0.0)
    assert "2 active  3 failed attempts" in line(3.0)


def test_the_time_that_is_left_counts_dead_letters_as_done_and_leaves_retries_out() -> None:
    rates = Rates()
    for at_s in range(1, 100):
        reports = {"reader": {"lag": 10_000.0 - 100 * at_s, "dead_lettered": 100.0 * at_s, "retry_waiting": 5.0}}
        result = RunResult("running", False, at_s, {}, 0, 0, 0, 0, None, None, reports=reports, spouts=["reader"])
        rates.look(now := RunMetrics("made", result, {}, Bounds(until="end"), stopping=False))
        if at_s > 40:
            left = rates.eta_s(now)
            assert left is not None
            assert 0.8 * (100 - at_s) <= left <= 1.2 * (100 - at_s) + 1
    assert " 9,900 done (100/s)" in rates.line(now), "the rate is that of what is shown as done"
    bounded = replace(now, bounds=Bounds(records=50))
    assert rates.eta_s(bounded) is None, "dead letters bring it no nearer to 50 records"
    reports["reader"] |= {"lag": 5.0}
    assert rates.eta_s(now) is None
    reports["reader"] |= {"lag": 5_000.0}
    assert Rates().eta_s(now) is None
    rates.rate = 0.4
    assert rates.eta_s(now) is None, "no time is left at 0/s"
    assert "5 to retry  9,900 dead letters" in rates.line(now)


def screen(width: int, given: RunMetrics, during: Callable[[], None] = lambda: None) -> str:
    out = io.StringIO()
    view = TableView(Console(file=out, force_terminal=True, width=width, color_system=None))
    view.look(0.0, lambda: given)
    during()
    view.close()
    return out.getvalue()


def full() -> RunMetrics:
    """Return figures with large numbers, an error and no broker."""
    counts = {name: Counts(2, *[1_234_567_890] * 4, errors=12_345) for name in ("reader", "a_bolt_with_a_long_name")}
    reports = {"reader": {"lag": 7.0, "dead_lettered": 402.0, "disconnected": 1.0, "retry_waiting": 3.0}}
    result = RunResult(
        "running", False, 60.0, counts, 1_234_567_890, 402, 0, 9, 1.0, 2.0, reports=reports, spouts=["reader"],
        last_errors={"a_bolt_with_a_long_name": "ValueError: " + "no good " * 40},
    )  # fmt: skip
    return RunMetrics(
        "made", result, dict.fromkeys(counts, (1_000_000, 2_000_000)), Bounds(until="end"), stopping=False
    )


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits_the_terminal_and_tells_the_troubles(width: int) -> None:
    """No line is wider than the terminal; dead letters, the last error and a broker that is gone are on it."""
    sent = screen(width, full()).replace("\x1b[2K", "\n").replace("\r", "")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "402" in text
    assert "last error in a_bolt_with_a_long_name: ValueError: no good" in text
    assert "NO BROKER" in text
    assert "a_bolt_with_a_long_name ×2" in text


def test_a_line_of_the_log_passes_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is logged while the table stands is whole, in a line of its own, and the table comes again below."""
    handler = StderrHandler()
    logger = logging.getLogger("downspout.test_live")
    logger.addHandler(handler)
    try:
        sent = screen(100, full(), lambda: logger.error("something happened"))
    finally:
        logger.removeHandler(handler)
    before, line, after = sent.partition("something happened\n")
    assert line
    assert before.endswith(("\r", "\x1b[2K"))
    assert "a_bolt_with_a_long_name" in after


def partition(committed: int | None, lag: int | None, blocks: int | None = None) -> dict[str, object]:
    return {
        "committed": committed, "position": 20, "end": 20, "lag": lag, "done": 2, "uncommitted": 3, "in_flight": 1,
        "failed": 0, "blocks": blocks, "why": "failed 2 times, waits for another try" if blocks is not None else "",
    }  # fmt: skip


def standing(partitions: dict[str, dict[str, object]]) -> RunResult:
    """Return the result of a run whose spout stands like this."""
    found = {"reader": partitions}
    return RunResult("for", True, 1.0, {}, 0, 0, 0, 0, None, None, spouts=["reader"], partitions=found)


def test_the_view_shows_partitions_and_topics() -> None:
    """Each partition has a line, a topic with several another; what is not known is a dash, and so is its sum."""
    rows = partition_rows(standing({"a[0]": partition(7, 13), "a[1]": partition(None, None), "b[0]": partition(20, 0)}))
    assert rows == [
        ("a[0]", "7", "20", "20", "13", "2", "1", "0"),
        ("a[1]", "–", "20", "20", "–", "2", "1", "0"),
        ("a", "", "", "", "–", "4", "2", "0"),
        ("b[0]", "20", "20", "20", "0", "2", "1", "0"),
    ]


def test_very_many_partitions_are_shown_as_topics() -> None:
    """A table that no screen holds is not drawn."""
    many: dict[str, dict[str, object]] = {f"a[{number}]": partition(7, 13) for number in range(100)}
    assert [row[0] for row in partition_rows(standing(many))] == ["a"]
    lines = behind_lines(standing(many))
    assert len(lines) == PARTITIONS_SHOWN + 1
    assert lines[-1] == "  and 88 more partitions behind"


def test_the_summary_names_what_is_left_and_what_blocks() -> None:
    """At the end of a run each partition that is behind has a line; one that is at its end has none."""
    found = {"a[0]": partition(7, 13, 7), "a[1]": partition(20, 0)}
    assert behind_lines(standing(found)) == [
        "  a[0]: lag 13, committed 7 of 20, 2 done beyond; 7 blocks: failed 2 times, waits for another try"
    ]


def test_a_terminal_shows_the_partitions() -> None:
    """The live view has the partitions below the components."""
    out = io.StringIO()
    console = Console(file=out, width=140, force_terminal=True)
    metrics = RunMetrics("made", standing({"a[0]": partition(7, 13)}), {}, Bounds(), stopping=False)
    view = TableView(console)
    view.look(0.0, lambda: metrics)
    view.close()
    assert "done beyond" in out.getvalue()
    assert "a[0]" in out.getvalue()
