"""The figures of several workers as those of one run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from downspout.engine import Bounds, Counts, Latencies, PendingTrees, RunResult, TaskResult, Tree, WorkerResult
from downspout.run import RunMetrics, WorkerReport
from downspout.run.merged_results import WorkerReports, add_up, merge, worker_result


def report(completed: int, *, in_flight: int = 0, tasks: int = 1, **reports: dict[str, float]) -> WorkerReport:
    """Return what a worker says of a spout and a sink."""
    result = RunResult(
        reason="running", drained=not in_flight, duration_s=9.0,
        components={"spout": Counts(tasks, emitted=completed), "sink": Counts(tasks, executed=completed, errors=1)},
        completed=completed, failed=2, timeouts=1, in_flight=in_flight, latency_p50_ms=None, latency_p99_ms=None,
        errors=["1 × no"], reports=reports, metrics={"sink[task 2]": {"size": completed}}, spouts=["spout"],
        uncommitted={"spout": 1}, tasks=[TaskResult(name, 0, values) for name, values in reports.items()],
    )  # fmt: skip
    return WorkerReport(result, {"spout": (0, in_flight), "sink": (completed, 1)})


def merged(*workers: list[WorkerReport]) -> RunMetrics:
    """Return the whole of workers, each given by the reports of its lives."""
    told = [
        WorkerReports(worker_result(WorkerResult(number, "running", 70 + number), reports), reports)
        for number, reports in enumerate(workers, 1)
    ]
    return merge("t", ["spout", "sink"], told, Bounds(), reason="running", duration_s=3.0)


def test_counters_add_up_over_all_lives_and_states_over_the_latest() -> None:
    """What a killed life had done counts; what it had in flight, held or had before it is its successor's."""
    dead = report(100, in_flight=50, spout={"records": 150, "lag": 900, "still_s": 9.0}, sink={"rows": 80, "held": 20})
    alive = report(10, in_flight=5, spout={"records": 15, "lag": 890, "still_s": 2.0}, sink={"rows": 8, "held": 2})
    other = report(1, in_flight=1, spout={"records": 2, "lag": 7, "still_s": 3.0}, sink={"rows": 1, "held": 0})
    found = merged([dead, alive], [other])
    result = found.result
    assert (result.completed, result.failed, result.timeouts, result.in_flight) == (111, 6, 3, 6)
    assert result.reports == {
        "spout": {"records": 167, "lag": 897, "still_s": 3.0}, "sink": {"rows": 89, "held": 2}
    }  # fmt: skip
    assert found.lag == 897
    assert result.components["spout"] == Counts(tasks=2, emitted=111)
    assert result.components["sink"] == Counts(tasks=2, executed=111, errors=3)
    assert found.queues == {"spout": (0, 6), "sink": (11, 2)}
    assert result.uncommitted == {"spout": 2}, "a life that has had a successor leaves nothing to the next run"
    assert result.errors == ["worker 1: 1 × no"] * 2 + ["worker 2: 1 × no"]
    assert result.metrics == {"sink[task 2] of worker 1": {"size": 10}, "sink[task 2] of worker 2": {"size": 1}}
    assert [(w.number, w.completed, w.in_flight, w.lag) for w in result.workers] == [(1, 110, 5, 890), (2, 1, 1, 7)]


def test_a_worker_that_does_not_know_its_lag_leaves_the_run_without_one() -> None:
    """The lag of some partitions is not that of the run, and no time that is left comes of it."""
    knows = report(1, spout={"records": 2, "lag": 7, "assigned": 1})
    joins = report(1, spout={"records": 2, "assigned": 0})
    for told in ([knows], [joins]), ([knows], []):
        found = merged(*told)
        assert found.lag is None
        assert "lag" not in found.result.reports["spout"]
        assert found.result.workers[0].lag == 7
    assert merged([knows], [knows]).lag == 14


def test_lives_that_are_over_are_kept_as_one() -> None:
    """Added up or not, the whole of several lives is the same; and nothing of those added up is in flight."""
    lives = [
        report(10 * number, in_flight=number, tasks=2, spout={"records": 3, "lag": 9}, sink={"rows": number, "held": 4})
        for number in range(1, 5)
    ]
    apart = merged(lives)
    together = merged([add_up(add_up(lives[0], lives[1]), lives[2]), lives[3]])
    assert (apart.result.errors, together.result.errors) == (["worker 1: 1 × no"] * 4, ["worker 1: 1 × no"] * 2)
    apart.result.errors = together.result.errors = []
    assert together == apart


def test_tasks_are_told_apart_by_worker() -> None:
    """Counters of a task are those of all lives of its worker, gauges those of the latest; workers stay apart."""
    dead, alive = report(1, spout={"records": 150, "lag": 900}), report(1, spout={"records": 15, "lag": 890})
    found = merged([dead, alive], [report(1, spout={"records": 2, "lag": 7})]).result
    assert found.tasks == [
        TaskResult("spout", 0, {"records": 165, "lag": 890}, 1),
        TaskResult("spout", 0, {"records": 2, "lag": 7}, 2),
    ]


def test_workers_that_have_not_spoken_are_nothing() -> None:
    """The view can be shown before any worker has said a word."""
    found = merged([], [])
    assert found.result.completed == 0
    assert found.result.components == {"spout": Counts(), "sink": Counts()}
    assert (found.lag, found.result.latency_p50_ms, found.queues["sink"]) == (None, None, (0, 0))


def test_quantiles_over_workers_are_those_of_all_trees() -> None:
    """A fast worker and a slow one with a tenth of the trees: quantiles of both are right to 2 %."""
    chance = random.Random(8)
    measured = {
        "fast": [chance.uniform(0.0, 0.1) for _ in range(18_000)],
        "slow": [1 + chance.random() for _ in range(2_000)],
    }
    reports = []
    for times in measured.values():
        latencies = Latencies()
        latencies.add([Tree(PendingTrees(), "id", -time) for time in times], lambda: 0.0)
        reports.append([replace(report(1), latencies=latencies.histogram)])
    everything = sorted(time * 1000 for times in measured.values() for time in times)
    found = merged(*reports).result
    for q, quantile in ((0.5, found.latency_p50_ms), (0.99, found.latency_p99_ms)):
        assert quantile == pytest.approx(everything[int(q * len(everything))], rel=0.02)


def test_partitions_are_put_together_and_the_newer_report_of_one_counts() -> None:
    """Each worker tells of its own partitions; of one that moved, the report that has committed more is newer."""

    def told(**committed: int | None) -> WorkerReport:
        made = report(1)
        figures = {place.replace("_", "["): {"committed": offset, "lag": 0} for place, offset in committed.items()}
        return replace(
            made, result=replace(made.result, partitions={"spout": {f"{k}]": v for k, v in figures.items()}})
        )

    found = merged([told(t_0=99), told(t_0=5, t_10=None)], [told(t_0=7, t_2=3, t_10=1)]).result.partitions
    assert {place: figures["committed"] for place, figures in found["spout"].items()} == {
        "t[0]": 7,
        "t[2]": 3,
        "t[10]": 1,
    }
    assert list(found["spout"]) == ["t[0]", "t[2]", "t[10]"]


def test_histograms_dead_letters_and_tracebacks_are_those_of_all_lives() -> None:
    """What a life that is over has counted stays; of dead letters the last ten by time, of tracebacks the newest."""

    def life(number: int) -> WorkerReport:
        made = report(number)
        letters = {"topic": "dead", "by_error": {"KeyError": number}, "last": [{"at_ms": 7 * number, "offset": number}]}
        made.result.dead_letters = {"spout": letters}
        made.result.stacks = {"sink": f"Traceback {number}"}
        return replace(made, latencies={5: float(number), number: 1.0})

    found = merged([add_up(life(1), life(2)), life(3)], [life(4)])
    assert found.latencies == {5: 10.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
    assert found.result.dead_letters["spout"]["by_error"] == {"KeyError": 10}
    assert [each["offset"] for each in found.result.dead_letters["spout"]["last"]] == [1, 2, 3, 4]
    assert found.result.stacks == {"sink": "Traceback 4"}
