"""The supervisor's reactions to workers that report, end and die: scripted ones, on a virtual clock."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from downspout.engine import Bounds, Counts, RunResult
from downspout.errors import BrokerError, ComponentError, ConfigError, DownspoutError
from downspout.run import ERRORS_MAX, STEADY_S, RunMetrics, WorkerMessage, WorkerReport
from downspout.run.supervisor import ABORT_S, GRACE_S, LOOK_S, Supervisor
from downspout.testing import VirtualClock

DRAIN_S = 30.0
KILLED, DRAINED = -signal.SIGKILL, 128 + signal.SIGTERM


def report(completed: int = 0, reason: str = "running", *, in_flight: int = 0, lasts: bool = False) -> WorkerMessage:
    counts = Counts(1, completed)
    result = RunResult(
        reason, not in_flight, 1.0, {"spout": counts}, completed, 0, 0, in_flight, None, None, spouts=["spout"]
    )  # fmt: skip
    return WorkerMessage(WorkerReport(result, is_last=lasts))


@dataclass
class Life:
    """A scripted worker.

    Attributes:
        says: what, by the seconds since its start.
        ends: seconds since its start, and the exit code.
        drains_s: how long it takes to end once it is asked; None: it does not.
        dies: the code by which it ends if asked, where that is not in order.
    """

    says: Sequence[tuple[float, WorkerMessage]] = ((0.5, report()),)
    ends: tuple[float, int] | None = None
    drains_s: float | None = 1.0
    dies: int | None = None
    pid: int = 0
    asked: list[float] = field(default_factory=list)
    killed: bool = False
    closed: bool = False

    def begin(self, clock: VirtualClock, pid: int) -> None:
        self.clock, self.pid, self.began, self.heard = clock, pid, clock.monotonic(), 0

    @property
    def age(self) -> float:
        return self.clock.monotonic() - self.began

    def poll(self) -> int | None:
        if self.killed:
            return KILLED
        if self.ends is not None and self.age >= self.ends[0]:
            return self.ends[1]
        if self.asked and self.drains_s is not None and self.clock.monotonic() >= self.asked[0] + self.drains_s:
            return DRAINED if self.dies is None else self.dies
        return None

    def take(self) -> list[WorkerMessage]:
        said = [message for at, message in self.says if at <= self.age]
        if self.poll() == DRAINED and not self.closed:
            last = said[-1].report.result.completed if said and said[-1].report else 0
            said = [*said[: self.heard], report(last, "signal", lasts=True)]
        fresh, self.heard = said[self.heard :], len(said)
        return fresh

    def ask_to_end(self) -> None:
        self.asked.append(self.clock.monotonic())

    def kill(self) -> None:
        self.killed = self.killed or self.poll() is None

    def close(self) -> None:
        self.closed = True

    @property
    def is_alive(self) -> bool:
        return self.poll() is None


def through(at: float, completed: int, reason: str = "end") -> Life:
    return Life([(0.5, report()), (at, report(completed, reason, lasts=True))], (at, 0))


def failing(error: DownspoutError, at: float = 2.0) -> Life:
    return Life([(0.5, report()), (at, WorkerMessage(error=error))], (at, error.exit_code))


class Crew:
    """A supervisor over scripted lives, by worker; one that has no more lives runs on and on."""

    def __init__(self, *lives: list[Life], restarts_max: int = 20, **bounds: object) -> None:
        self.clock = VirtualClock()
        self.scripts = {number: list(each) for number, each in enumerate(lives, 1)}
        self.started: list[tuple[int, float, int | None]] = []
        self.lives: list[Life] = []
        self.at: list[tuple[float, Callable[[], None]]] = []
        self.shown: list[RunMetrics] = []
        self.supervisor = Supervisor(
            "t", ["spout"], len(lives), bounds=Bounds(drain_s=DRAIN_S, **bounds), start=self._start,
            restarts_max=restarts_max, clock=self.clock, view=self,
        )  # fmt: skip

    def _start(self, number: int, left: int | None) -> Life:
        assert not any(life.is_alive and life.pid // 100 == number for life in self.lives), "one member twice"
        life = self.scripts[number].pop(0) if self.scripts[number] else Life()
        life.begin(self.clock, 100 * number + len(self.lives))
        self.lives.append(life)
        self.started.append((number, round(self.clock.monotonic(), 1), left))
        return life

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        assert now < 3_600, "it does not end"
        self.shown.append(take())
        due = [what for at, what in self.at if at <= now]
        self.at = [(at, what) for at, what in self.at if at > now]
        for what in due:
            what()

    def run(self) -> RunResult:
        try:
            return self.supervisor.run()
        finally:
            assert not any(life.is_alive for life in self.lives), "an orphan"
            assert all(life.closed for life in self.lives)


def test_all_come_to_the_end() -> None:
    """A bounded run ends when all workers have ended; one that reaches the end first waits for the others."""
    crew = Crew([through(3, 10)], [through(9, 5)], until="end")
    result = crew.run()
    assert (result.reason, result.completed, result.drained) == ("end", 15, True)
    assert [(worker.state, worker.pid, worker.restarts) for worker in result.workers] == [("end", None, 0)] * 2
    assert not any(life.asked for life in crew.lives)


def test_a_killed_worker_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """Who is killed comes back at once under its number, what it had done counts, and the log says why."""
    crew = Crew([through(30, 10)], [Life([(0.5, report(7, in_flight=3))], (5, KILLED)), through(9, 5)], until="end")
    with caplog.at_level(logging.INFO, "downspout.run.workers"):
        result = crew.run()
    assert [(number, at) for number, at, _ in crew.started] == [(1, 0.0), (2, 0.0), (2, 5.5)]
    assert (result.completed, result.in_flight) == (10 + 7 + 5, 0)
    assert result.workers[1].deaths == ["was killed by signal 9 (SIGKILL)"]
    assert "worker 2 (pid 201) was killed by signal 9 (SIGKILL); restarting in 0.5 s (restart 1)" in caplog.text
    assert max(len([w for w in shown.result.workers if w.pid]) for shown in crew.shown) == 2
    assert "restarting" in {shown.result.workers[1].state for shown in crew.shown}


def test_the_end_needs_no_worker_that_died_meanwhile() -> None:
    """Where one worker has seen the end, all is committed: one that is to be started again is not."""
    crew = Crew([through(6.0, 10)], [Life(ends=(5.8, KILLED))], [Life(ends=(7.0, KILLED))], until="end")
    result = crew.run()
    assert result.reason == "end"
    assert len(crew.started) == 3
    assert [worker.state for worker in result.workers] == ["end", "died", "died"]


def test_too_many_deaths_end_the_run() -> None:
    """A worker that dies again and again ends the run with an error that names it; the others drain."""
    crew = Crew([Life()], [Life(ends=(1, KILLED)) for _ in range(4)], restarts_max=3)
    with pytest.raises(ComponentError, match=r"worker 2 was killed by signal 9 \(SIGKILL\), 4 times in a row"):
        crew.run()
    assert [at for number, at, _ in crew.started if number == 2] == [0.0, 1.5, 3.5, 6.5]
    assert len(crew.lives[0].asked) == 1


def test_errors_that_repeat_end_the_run_sooner() -> None:
    """A bolt that raises will raise again: few restarts, and the worker's own error and exit code."""
    crew = Crew([Life()], [failing(ComponentError("it raised", cure="mend it")) for _ in range(9)])
    with pytest.raises(ComponentError, match=r"worker 2, 4 times in a row: it raised\. Try: mend it"):
        crew.run()
    assert len(crew.started) == 1 + 1 + ERRORS_MAX


def test_a_broker_that_comes_back_is_waited_for() -> None:
    """Workers that find no broker are started again, and go on once there is one."""
    away = [failing(BrokerError("no broker"), 1.0) for _ in range(6)]
    result = Crew([*away, through(5, 9)], until="end").run()
    assert (result.reason, result.completed, result.workers[0].restarts) == ("end", 9, 6)


def test_a_wrong_setting_ends_the_run_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong in each worker alike is raised once, as the worker said it, and nobody is started again."""
    wrong = ConfigError("parquet.schema: int63 is no type", cure="int64")
    crew = Crew([failing(wrong, 2.0)], [failing(ConfigError("parquet.schema: int63 is no type"), 2.2)])
    with pytest.raises(ConfigError) as raised:
        crew.run()
    assert str(raised.value) == "parquet.schema: int63 is no type. Try: int64"
    assert len(crew.started) == 2
    assert "worker 1 (pid 100) ended with exit code 2; the run ends" in caplog.text
    assert "int63" not in caplog.text, "it is printed at the end, once"


def test_records_are_counted_over_all_workers() -> None:
    """run.records ends the run when all workers together have done so many; a later life is told what is left."""
    one = Life([(0.5, report()), (4.0, report(40)), (8.0, report(60))])
    two = [Life([(0.5, report()), (3.0, report(30))], (5, KILLED)), Life([(0.5, report(1)), (2.5, report(40))])]
    crew = Crew([one], two, records=100)
    result = crew.run()
    assert crew.started == [(1, 0.0, 100), (2, 0.0, 100), (2, 5.5, 30)]
    assert (result.reason, result.completed) == ("records", 60 + 30 + 40)
    assert len(one.asked) == 1


def test_a_worker_that_has_done_all_records_ends_the_run() -> None:
    crew = Crew([through(3, 100, "records")], [Life()], records=100)
    assert (crew.run().reason, len(crew.lives[1].asked)) == ("records", 1)


def test_time_begins_with_the_first_worker_that_runs() -> None:
    """run.for_s is measured by the supervisor, from when the first worker ran, whatever becomes of workers later."""
    slow = Life([(5.0, report())])
    crew = Crew([slow], [Life([(9.0, report())], (12.0, KILLED))], for_s=20.0)
    result = crew.run()
    assert result.reason == "for"
    assert slow.asked == pytest.approx([5.0 - 1.0 + 20.0], abs=0.2), "its first report says that it ran for 1 s by then"


def test_a_run_takes_as_long_as_it_is_looked_at() -> None:
    """The time that is shown is that since the start, and does not begin anew when a worker runs."""
    crew = Crew([Life([(5.0, report(3))])], for_s=20.0)
    crew.run()
    shown = [figures.result.duration_s for figures in crew.shown]
    assert shown == pytest.approx([number * LOOK_S for number in range(len(shown))])
    stops = {figures.bounds.for_s for figures in crew.shown if figures.result.workers[0].state == "running"}
    assert list(stops) == [pytest.approx(5.0 - 1.0 + 20.0)], "from when it began to run, 4 s after the start"
    waits = [figures for figures in crew.shown if figures.result.workers[0].state == "starting"]
    assert all(figures.bounds.for_s == pytest.approx(figures.result.duration_s + 20.0) for figures in waits)
    assert waits


def test_a_stop_asks_each_worker_once() -> None:
    """A signal lets all workers drain, and the run ends when the last one has."""
    crew = Crew([Life(drains_s=2.0)], [Life(drains_s=7.0)])
    crew.at = [(4.0, crew.supervisor.stop)]
    result = crew.run()
    assert (result.reason, result.drained) == ("signal", True)
    assert [len(life.asked) for life in crew.lives] == [1, 1]
    assert [worker.state for worker in result.workers] == ["signal", "signal"]


def test_a_stop_reaches_workers_that_have_not_begun_or_wait_for_another_life() -> None:
    """SIGTERM kills a process that has no handler yet: it had nothing in flight, so that is a clean end too."""
    crew = Crew([Life(says=[], dies=-signal.SIGTERM, drains_s=0.1)], [Life(ends=(3.8, KILLED))], [Life()])
    crew.at = [(4.0, crew.supervisor.stop)]
    result = crew.run()
    assert (result.reason, len(crew.started)) == ("signal", 3)
    assert [worker.state for worker in result.workers] == ["signal", "died", "signal"]


def test_a_second_signal_kills_whom_it_cannot_stop() -> None:
    """Aborted, workers get some seconds to say what they did; who hangs is killed, and its tuples were in flight."""
    hangs = Life([(0.5, report(5, in_flight=9))], drains_s=None)
    crew = Crew([hangs], [Life()])
    crew.at = [(4.0, crew.supervisor.stop), (6.0, crew.supervisor.abort)]
    result = crew.run()
    assert (result.reason, result.drained, result.in_flight) == ("aborted", False, 9)
    assert [(worker.state, worker.deaths) for worker in result.workers] == [("aborted", []), ("signal", [])]
    assert len(hangs.asked) == 2
    assert hangs.killed
    assert crew.clock.monotonic() == pytest.approx(6.0 + ABORT_S, abs=0.5)


def test_who_was_killed_has_not_drained() -> None:
    """A worker that had nothing in flight when it last spoke may have had something when it was killed."""
    crew = Crew([Life([(0.5, report(5))], drains_s=None)])
    crew.at = [(4.0, crew.supervisor.stop), (4.0, crew.supervisor.abort)]
    result = crew.run()
    assert (result.in_flight, result.drained) == (0, False)


def test_a_signal_ends_workers_that_do_not_see_the_end() -> None:
    """Where one worker has seen the end and another one does not come to it, Ctrl-C asks that one."""
    crew = Crew([through(3, 5)], [Life()], until="end")
    crew.at = [(9.0, crew.supervisor.stop)]
    result = crew.run()
    assert (result.reason, len(crew.lives[1].asked)) == ("end", 1)


def test_a_worker_that_never_drains_is_killed_in_the_end() -> None:
    """A stop ends though a worker hangs; that it did not finish is an error."""
    crew = Crew([Life(drains_s=None)], [Life()])
    crew.at = [(4.0, crew.supervisor.stop)]
    with pytest.raises(ComponentError, match=r"worker 1 was killed by signal 9 .* while it was finishing"):
        crew.run()
    assert crew.clock.monotonic() == pytest.approx(4.0 + DRAIN_S + GRACE_S, abs=0.5)


def test_a_worker_that_dies_while_it_drains_is_not_started_again() -> None:
    """What it had in flight is not committed, and the run says so with an exit code of its own."""
    crew = Crew([Life(dies=KILLED)], [Life()])
    crew.at = [(4.0, crew.supervisor.stop)]
    with pytest.raises(ComponentError, match="in flight is not committed"):
        crew.run()
    assert len(crew.started) == 2


@pytest.mark.parametrize("reason", ["signal", "aborted"])
def test_who_stops_one_worker_gets_another(reason: str) -> None:
    """SIGTERM to a single worker drains it; the run was not asked to end, so it is started again."""
    stopped = Life([(0.5, report()), (3.0, report(5, reason, lasts=True))], (3.0, DRAINED))
    crew = Crew([stopped, through(4, 5)], until="end")
    result = crew.run()
    assert (result.completed, result.workers[0].deaths) == (10, ["was stopped from outside (exit code 143)"])


def test_a_supervisor_that_fails_leaves_no_orphan() -> None:
    """Whatever is raised, workers are asked to end, and killed where they do not."""
    hangs = Life(drains_s=None)
    crew = Crew([hangs], [Life()])

    def fail() -> None:
        raise ZeroDivisionError

    crew.at = [(4.0, fail)]
    with pytest.raises(ZeroDivisionError):
        crew.run()
    assert hangs.killed
    assert crew.lives[1].asked


def test_a_long_life_is_no_death_in_a_row() -> None:
    """Limits are for workers that die at once: one that dies now and then is started again for ever."""
    lives = [Life([(0.5, report(7, in_flight=3))], ends=(STEADY_S + 1, KILLED)) for _ in range(10)]
    crew = Crew([*lives, through(3, 1)], restarts_max=1, until="end")
    result = crew.run()
    assert (result.reason, result.workers[0].restarts, result.completed) == ("end", 10, 10 * 7 + 1)
    assert len(crew.supervisor.slots[0].reports) == 2, "what is kept does not grow with the number of lives"


def test_silence_is_counted_from_the_last_report() -> None:
    """A worker that has begun or reported is not silent; one that says nothing more is, and it shows for how long."""
    crew = Crew([Life([(0.5, report()), (4.0, report())])], [Life([(0.5, report())])])
    crew.at = [(10.0, crew.supervisor.stop)]
    result = crew.run()
    first, second = (
        [metrics.result.workers[number].silent_s for metrics in crew.shown if metrics.result.duration_s <= 10.0]
        for number in (0, 1)
    )
    assert max(each for each in first if each is not None) == pytest.approx(6.0, abs=LOOK_S)
    assert max(each for each in second if each is not None) == pytest.approx(9.5, abs=LOOK_S)
    assert [worker.silent_s for worker in result.workers] == [None, None]
