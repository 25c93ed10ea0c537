"""Another thread asks a run for its metrics, and the run's own thread answers."""

from __future__ import annotations

import threading

from downspout.engine import Bounds, RunResult
from downspout.run import RunMetrics, Snapshots
from downspout.testing import VirtualClock
from tests.waiting import eventually


def metrics(completed: int) -> RunMetrics:
    return RunMetrics("t", RunResult("running", True, 1.0, {}, completed, 0, 0, 0, None, None), {}, Bounds(), False)


def test_nothing_is_taken_unless_a_thread_has_asked() -> None:
    """The first look takes metrics, so that there are some; later ones only where a thread waits."""
    snapshots, taken = Snapshots(), []

    def take() -> RunMetrics:
        taken.append(1)
        return metrics(len(taken))

    for _ in range(5):
        snapshots.look(0.0, take)
    assert len(taken) == 1
    found = snapshots.latest(wait_s=0)
    assert found is not None
    assert found.metrics.result.completed == 1
    for _ in range(5):
        snapshots.look(0.0, take)
    assert len(taken) == 2


def test_who_asks_gets_an_answer_of_after_the_question() -> None:
    """A thread that waits gets metrics that were taken for it, in the thread that runs."""
    snapshots, found, takers = Snapshots(), [], set()
    snapshots.look(0.0, lambda: metrics(1))
    asking = threading.Thread(target=lambda: found.append(snapshots.latest(wait_s=60)))
    asking.start()

    def take() -> RunMetrics:
        takers.add(threading.current_thread())
        return metrics(2)

    eventually(lambda: snapshots.look(0.0, take) or not asking.is_alive())
    assert found[0].metrics.result.completed == 2
    assert takers == {threading.current_thread()}


def test_a_run_that_does_not_answer_leaves_the_last_answer_and_its_age() -> None:
    """While a component keeps the loop, what was known before is given, and how old that is."""
    clock = VirtualClock()
    snapshots = Snapshots(clock)
    assert snapshots.latest(wait_s=0) is None
    snapshots.look(0.0, lambda: metrics(3))
    clock.advance(42.0)
    found = snapshots.latest(wait_s=0)
    assert found is not None
    assert (found.metrics.result.completed, found.age_s) == (3, 42.0)


def test_the_end_of_a_run_lets_a_waiting_thread_go() -> None:
    snapshots = Snapshots()
    asking = threading.Thread(target=snapshots.latest, kwargs={"wait_s": 600})
    asking.start()
    snapshots.close()
    asking.join(60)
    assert not asking.is_alive()
