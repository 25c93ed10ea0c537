"""Windows are differences of counters, and the timeline shows changes between two snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.engine import Bounds, WorkerResult, bucket_of, from_class, resolve
from downspout.run import RunMetrics
from downspout.web.history import RUN, WINDOWS, History
from downspout.web.processes import Processes
from downspout.web.state import SORTS, State
from tests.web.running import Shop, result


def metrics(at_s: float, done: int, latencies: dict[int, float] | None = None, **other: Any) -> RunMetrics:
    queues = {"reader": (0, 5), "check": (2, 6)}
    return RunMetrics("shop", result(at_s, done, **other), queues, Bounds(), False, latencies or {})


def partition(committed: int, end: int) -> dict[str, Any]:
    return {"committed": committed, "end": end, "owner": "reader[task 1]"}


def test_a_window_holds_what_happened_in_it() -> None:
    """Ten records per second for 15 minutes, then a hundred for the last: each window has its own rate."""
    history = History()
    done = 0
    for second in range(1, 961):
        done += 10 if second <= 900 else 100
        history.add(second, metrics(second, done))
    minute, ten, whole = (history.window(seconds) for seconds in WINDOWS.values())
    assert (minute.span_s, minute.per_s(RUN, "completed")) == (60, 100)
    assert ten.span_s == pytest.approx(600, abs=10)
    assert ten.per_s(RUN, "completed") == pytest.approx((540 * 10 + 60 * 100) / 600, rel=0.02)
    assert (whole.span_s, whole.grown(RUN, "completed")) == (960, done)
    assert minute.per_s("check", "busy_s") == pytest.approx(0.1)
    assert minute.inside == {"reader": 5, "check": 4}


def test_a_young_run_has_as_much_as_there_is() -> None:
    """After three seconds all windows are those three seconds."""
    history = History()
    for second in (1, 2, 3):
        history.add(second, metrics(second, 10 * second))
    assert [history.window(seconds).span_s for seconds in WINDOWS.values()] == [3, 3, 3]
    assert history.window(60).per_s(RUN, "completed") == 10


def test_the_latency_of_a_window_forgets_what_was_before() -> None:
    """Trees took ten milliseconds, and for the last minute a second: the window shows the second, all shows both."""
    history = History()
    fast, slow = bucket_of(0.010), bucket_of(1.0)
    for second in range(1, 200):
        late = max(0, second - 120)
        history.add(second, metrics(second, second, {fast: min(second, 120), slow: late}))
    assert history.window(60).latency_ms(0.5, 0.99) == [pytest.approx(1000, rel=0.02)] * 2
    assert history.window(None).latency_ms(0.5, 0.99) == [pytest.approx(10, rel=0.02), pytest.approx(1000, rel=0.02)]


def test_memory_is_bounded() -> None:
    """Of three hours there is an hour of points, a minute of samples by the second and ten minutes by ten."""
    history = History()
    for second in range(1, 3 * 3_600):
        history.add(second, metrics(second, second))
    assert len(history.points) == 3_600
    assert len(list(history.samples())) < 140


def test_lag_in_time_is_how_long_ago_the_log_ended_at_the_commit() -> None:
    """A log that grows by one a second, of which all but twenty are committed, is twenty seconds behind."""
    history = History()
    for second in range(1, 61):
        history.add(second, metrics(second, 0, partitions={"reader": {"a[0]": partition(second - 20, second)}}))
    assert history.behind_s("a[0]", 40) == 20
    assert history.behind_s("a[0]", 60) == 0
    assert history.behind_s("a[0]", 0) is None
    assert history.known_s == 59


def test_the_time_line_joins_what_belongs_together() -> None:
    """Retries within half a minute are one event with their number; later ones another."""
    history = History()
    for second, retries in ((1, 0), (2, 3), (12, 5), (100, 6)):
        history.add(second, metrics(second, 0, reports={"reader": {"retries": retries, "dead_lettered": 0}}))
    found = [(each["kind"], each["first_ms"], each["count"]) for each in history.events.newest_first()]
    assert found == [("retry", 100_000, 1), ("retry", 2_000, 5)]


def test_a_rebalance_says_what_was_got_lost_and_moved() -> None:
    """The first assignment is one; a partition that goes and one that comes are a rebalance."""
    history = History()
    for second, places in ((1, ("a[0]", "a[1]")), (2, ("a[0]", "a[1]")), (3, ("a[1]", "a[2]"))):
        owned = {"reader": {place: partition(0, 0) for place in places}}
        history.add(second, metrics(second, 0, partitions=owned))
    found = [(each["kind"], each["text"]) for each in history.events.newest_first()]
    assert found == [("rebalance", "got a[2]; lost a[0]"), ("assignment", "got a[0], a[1]")]


def test_a_spout_without_partitions_yet_is_no_event() -> None:
    """Before the group has answered nothing has happened; what it gives then is the assignment."""
    history = History()
    for second, places in ((1, ()), (2, ("a[0]",))):
        owned = {"reader": {place: partition(0, 0) for place in places}}
        history.add(second, metrics(second, 0, partitions=owned))
    assert [(each["kind"], each["text"]) for each in history.events.newest_first()] == [("assignment", "got a[0]")]


def test_a_worker_that_is_restarted_is_on_the_time_line() -> None:
    history = History()
    for second, restarts in ((1, 0), (2, 1)):
        worker = WorkerResult(2, "running", 7, restarts, deaths=["was killed by signal 9"] * restarts)
        history.add(second, metrics(second, 0, workers=[worker]))
    (found,) = history.events.newest_first()
    assert (found["kind"], found["component"], found["text"]) == ("worker", "worker 2", "was killed by signal 9")


def test_a_spout_of_the_users_may_report_what_it_likes() -> None:
    """Partitions with other figures than KafkaSpout's are no error, and have no lag."""
    history = History()
    history.add(1, metrics(1, 0, partitions={"reader": {"queue": {"depth": 3}}}))
    assert history.behind_s("queue", None) is None
    graph = from_class(Shop, "shop")
    state = State(graph, resolve(graph, []), history, Processes(), 1)
    for sort in SORTS:
        (row,) = state.partitions(sort=sort)["rows"]
        assert (row["partition"], row["depth"], row["lag_s"], row["error"]) == ("queue", 3, None, "")


def test_a_partition_whose_owner_becomes_known_has_not_moved() -> None:
    """Storm's commits name the owner: before the first there is none."""
    history = History()
    for second, owner in ((1, None), (2, "task 4"), (3, "task 5")):
        owned = {"reader": {"a[0]": {**partition(0, 0), "owner": owner}}}
        history.add(second, metrics(second, 0, partitions=owned))
    events = [(each["kind"], each["text"]) for each in history.events.newest_first()]
    assert events == [("rebalance", "moved a[0]"), ("assignment", "got a[0]")]
