"""Liveness and readiness of a run for Kubernetes, with reasons."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.engine import Bounds, RunResult, TaskResult, WorkerResult
from downspout.export.health import Health, Verdict
from downspout.run import RunMetrics, Snapshots
from downspout.testing import VirtualClock

RUNNING = WorkerResult(1, "running", 4711, silent_s=0.4)


class Watches:
    """Stands for a watchdog that has found something."""

    def __init__(self, hang: str = "") -> None:
        self._hang = hang

    def hang(self, now: float) -> str:
        return self._hang


def asked(
    *workers: WorkerResult,
    assigned: float | None = 1.0,
    stopping: bool = False,
    age_s: float = 0.0,
    stuck_s: float = 30,
) -> Health:
    """Return the health of a run in a given state."""
    clock = VirtualClock()
    snapshots = Snapshots(clock)
    values = {} if assigned is None else {"assigned": assigned}
    number = workers[0].number if workers else None
    result = RunResult(
        "running", True, 1.0, {}, 0, 0, 0, 0, None, None, tasks=[TaskResult("reader", 4, values, number)],
        workers=workers,
    )  # fmt: skip
    snapshots.look(0.0, lambda: RunMetrics("t", result, {}, Bounds(), stopping))
    snapshots.close()
    clock.advance(age_s)
    return Health(snapshots, stuck_s=stuck_s)


def test_before_it_has_begun_a_run_is_alive_and_not_ready() -> None:
    snapshots = Snapshots()
    snapshots.close()
    health = Health(snapshots, stuck_s=30)
    assert (health.alive(), health.ready()) == (Verdict(True, "starting"), Verdict(False, "starting"))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"assigned": 1.0}, "ready"),
        ({"assigned": None}, "ready"),
        ({"assigned": 0.0}, "reader[task 4] does not know its partitions yet"),
        ({"stopping": True}, "the run ends"),
    ],
)
def test_a_run_is_ready_once_its_partitions_are_known(state: dict[str, Any], says: str) -> None:
    """A spout that has no assignment yet, or a run that ends, is not ready; other spouts than Kafka's always are."""
    health = asked(**state)
    health.watch(Watches())  # type: ignore[arg-type]
    assert health.ready() == Verdict(says == "ready", says)
    assert health.alive() == Verdict(True, "ok")


def test_a_component_that_hangs_makes_the_run_neither_alive_nor_ready() -> None:
    """The answer is what the watchdog knows: the component, the record and the line."""
    health = asked()
    health.watch(Watches("counts has worked on orders[0]@7 for 31 s, counts.py:9"))  # type: ignore[arg-type]
    told = Verdict(False, "counts has worked on orders[0]@7 for 31 s, counts.py:9")
    assert (health.alive(), health.ready()) == (told, told)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (WorkerResult(2, "running", 4712, silent_s=29.0), "ready"),
        (WorkerResult(2, "running", 4712, silent_s=31.0), "worker 2 (pid 4712) has not reported for 31 s"),
        (WorkerResult(2, "restarting", None), "worker 2 is restarting"),
    ],
)
def test_all_workers_run_and_report(second: WorkerResult, says: str) -> None:
    """A worker that is silent is not alive; one that is restarted makes the run not ready only."""
    health = asked(RUNNING, second)
    assert health.ready() == Verdict(says == "ready", says)
    assert health.alive().good == ("reported" not in says)


def test_a_supervisor_that_does_not_answer_is_not_alive() -> None:
    """Old metrics of workers are no sign of life."""
    assert asked(RUNNING, age_s=31.0).alive() == Verdict(False, "the supervisor has not answered for 31 s")
    assert asked(RUNNING, age_s=31.0, stuck_s=0).alive() == Verdict(True, "ok")
