"""The workers' supervisor: it starts workers, merges their metrics, restarts crashed ones, and stops them all.

It polls them eight times a second. Its only other inputs are the clock and two flags set by signal handlers, so tests
drive it with a virtual clock and scripted workers.

============  =====================================================================================================
a run stops   when
============  =====================================================================================================
``end``       a worker has ended with ``end``: it reads the commits of the whole group, so all are done. The others
              end by themselves for the same reason; one that dies from then on is not needed
``for``       ``run.for_s`` have passed since the first worker ran
``records``   ``run.records`` trees are complete over all workers. Each worker stops at the number that was missing
              when it started; together they may exceed it by the trees in flight and half a second's work
``signal``    ``stop()`` was called: each worker gets SIGTERM and drains
``aborted``   ``abort()`` was called: each gets another SIGTERM, and is killed ABORT_S later
(an error)    a worker has died and a restart would not help. The others drain, then the error is raised
============  =====================================================================================================

**No orphans.** However :meth:`Supervisor.run` ends, no worker is left alive: one that does not end within
``run.drain_s`` + GRACE_S of the request is killed. Nothing is lost: the next run reads its records again. If the
supervisor itself is killed, the workers notice (``worker_process``).

**A harmless race.** A worker may die just when the run is asked to stop. Either it is found dead before the request is
sent, or the request goes to a process that is dead but not reaped, without effect. In both cases the next poll finds it
dead while the run is stopping, so it is not restarted.

**Restarts.** A crashed worker is restarted depending on how it ended, and how often in a row:

==========================================  =====================================================================
it ended by                                 then
==========================================  =====================================================================
a signal; BrokerError                       restart, at most RESTARTS_MAX times in a row
SIGTERM from outside, in order              the same
ComponentError; without an error (a crash)  restart, at most ERRORS_MAX times in a row: it will probably recur
any other error of ours                     the run stops: all workers share the wrong setting or missing package;
                                            lost data and bad records need a person's decision
TakenOverError                              the run stops: a new worker would fence that process in turn
UnreadableError                             the run stops: Kafka cannot return the record to any worker
==========================================  =====================================================================

*In a row* means deaths of one worker number, each within STEADY_S of its start. Isolating a record that kills the
process (decision 0004) takes five to eight deaths, and ``kafka.retries_max`` + 1 more; the limit allows for that.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine.loop import Bounds
from downspout.engine.result import RunResult, WorkerResult
from downspout.errors import BrokerError, ComponentError, DownspoutError, TakenOverError, UnreadableError
from downspout.run.merged_results import WorkerReports, add_up, merge, worker_result
from downspout.run.run_snapshots import RunMetrics
from downspout.run.worker_process import Worker, WorkerReport

# --- restarts ---

STEADY_S = 60.0  # The death of a worker that ran this long starts a new row
BACKOFF_S = (0.5, 10.0)
"""First wait before a restart, and the limit up to which it doubles. Static members have 10 s to come back."""
RESTARTS_MAX, ERRORS_MAX = 20, 3


@dataclass(frozen=True)
class WorkerDeath:
    """How a worker ended without being asked to."""

    exit_code: int  # of the process; the negative number of a signal that killed it
    error: DownspoutError | None = None  # as it reported
    drained: bool = False  # it got a SIGTERM from outside, and ended in order

    def __str__(self) -> str:
        """Describe it.

        >>> str(WorkerDeath(-9)), str(WorkerDeath(1)), str(WorkerDeath(143, drained=True))
        ('was killed by signal 9 (SIGKILL)', 'ended with exit code 1', 'was stopped from outside (exit code 143)')
        """
        if self.error is not None:
            return f"ended with an error: {self.error.message.splitlines()[0]}"
        return self.in_short

    @property
    def in_short(self) -> str:
        """The description without the error."""
        if self.exit_code >= 0:
            code = f"exit code {self.exit_code}"
            return f"was stopped from outside ({code})" if self.drained else f"ended with {code}"
        try:
            name = f" ({signal.Signals(-self.exit_code).name})"
        except ValueError:
            name = ""
        return f"was killed by signal {-self.exit_code}{name}"

    def has_same_error_as(self, error: DownspoutError | None) -> bool:
        """Return whether the worker reported ``error`` too."""
        return self.error is not None and error is not None and self.error.message == error.message

    @property
    def is_final(self) -> bool:
        """Whether a restart would not help."""
        if self.error is None or type(self.error) is DownspoutError:
            return False
        return isinstance(self.error, TakenOverError | UnreadableError) or not isinstance(
            self.error, BrokerError | ComponentError
        )

    @property
    def repeats(self) -> bool:
        """Whether it will probably happen again."""
        if self.error is not None:
            return not isinstance(self.error, BrokerError)
        return self.exit_code > 0 and not self.drained


class Restarts:
    """Counts the deaths of one worker."""

    def __init__(self, most: int = RESTARTS_MAX) -> None:
        self._most = most
        self.in_a_row = 0

    def wait_s(self, death: WorkerDeath, lived_s: float) -> float | None:
        """Return how long to wait before the restart; None: the run stops.

        >>> restarts = Restarts(2)
        >>> [restarts.wait_s(WorkerDeath(-9), lived_s=3) for _ in range(3)]
        [0.5, 1.0, None]
        """
        if death.is_final:
            return None
        self.in_a_row = 1 if lived_s >= STEADY_S else self.in_a_row + 1
        if self.in_a_row > (min(self._most, ERRORS_MAX) if death.repeats else self._most):
            return None
        return float(min(BACKOFF_S[0] * 2 ** (self.in_a_row - 1), BACKOFF_S[1]))

    def final_error(self, death: WorkerDeath, worker: int) -> DownspoutError:
        """Return the error that ends the run, of the class of the worker's error."""
        if death.error is not None and death.is_final:
            return death.error
        times = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        if death.error is not None:
            cause = type(death.error)(f"worker {worker}{times}: {death.error.message}", cure=death.error.cure)
            cause.exit_code = death.error.exit_code
            return cause
        return ComponentError(
            f"worker {worker} {death}{times}",
            cure="see its output above; if signal 9 killed it, memory may have run out: fewer workers, or less in "
            "flight (topology.max.spout.pending)",
        )


# --- the supervisor ---

LOOK_S = 0.125
ABORT_S = 5.0  # How long an aborted worker may take to send its last report
DEATHS_MAX = 20  # Descriptions of deaths kept per worker
GRACE_S = 30.0  # How long beyond ``run.drain_s`` a worker may take to end after the request


class WorkersView(Protocol):
    """Shows the run of all workers."""

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Show metrics if it is time; only then take them."""


@dataclass
class Slot:
    """One worker, through all its lives."""

    number: int  # of the worker, from 1
    restarts: Restarts  # counts its deaths
    worker: Worker | None = None  # its process; None before the first life, between two, and at the end
    started: float = 0.0  # when this life began
    due: float | None = None  # when the next life begins; None: never
    # the sum of the earlier lives, then the last report of the latest life that has sent any
    reports: list[WorkerReport] = field(default_factory=list)
    has_reported: bool = False  # whether this life has sent a report
    heard: float = 0.0  # when it sent the last one, or began
    error: DownspoutError | None = None  # reported in this life
    result: WorkerResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = WorkerResult(self.number, "starting")

    def take(self, now: float) -> bool:
        """Process its new messages; return whether this life has sent its first report."""
        first = False
        for message in self.worker.take() if self.worker is not None else ():
            self.error = message.error or self.error
            if message.report is None:
                continue
            self.heard = now
            if self.has_reported:
                self.reports[-1] = message.report
            else:
                past = [add_up(*self.reports)] if len(self.reports) == 2 else self.reports
                self.reports = [*past, message.report]
                self.has_reported = first = True
        if first:
            self.result.state = "running"
        return first

    def record_death(self, death: WorkerDeath) -> None:
        """Record a death."""
        self.result.state = "died"
        self.result.deaths = [*self.result.deaths, str(death)][-DEATHS_MAX:]

    @property
    def ended_with(self) -> RunResult | None:
        """The result of this life, if it has ended in order."""
        last = self.reports[-1] if self.has_reported else None
        return last.result if last is not None and last.is_last else None


class Supervisor:
    """Runs a topology in several processes."""

    def __init__(
        self,
        name: str,
        components: Iterable[str],
        workers: int,
        *,
        bounds: Bounds,
        # starts a worker, given its number and the remainder of ``run.records``
        start: Callable[[int, int | None], Worker],
        restarts_max: int = RESTARTS_MAX,  # restarts of one worker in a row
        clock: Clock = SYSTEM_CLOCK,
        view: WorkersView | None = None,
    ) -> None:
        self._name, self._components = name, list(components)
        self._bounds = bounds
        self._start = start
        self._clock = clock
        self._view = view
        self._log = logging.getLogger("downspout.run.workers")
        self.slots = [Slot(number, Restarts(restarts_max)) for number in range(1, workers + 1)]
        self._begun = clock.monotonic()
        self._ran_since: float | None = None
        self._reason: str | None = None
        self._is_aborted = False
        self._wanted = 0  # How often workers must be asked to end: once, or twice to end at once …
        self._asked = 0  # … and how often they were asked
        self._has_lost = False
        self._deadline = float("inf")
        self._error: DownspoutError | None = None

    def stop(self, reason: str = "signal") -> None:
        """Let all workers finish. May be called from a signal handler."""
        self._reason = self._reason or reason
        if reason != "end":  # at the end, workers stop by themselves
            self._wanted = max(self._wanted, 1)

    def abort(self) -> None:
        """Stop all workers without draining. May be called from a signal handler."""
        self._is_aborted = True
        self._reason = "aborted"
        self._wanted = 2

    def run(self) -> RunResult:
        """Run until all workers have ended.

        Raises:
            DownspoutError: a worker has ended and a restart would not help. The others have drained.
        """
        with self._no_orphans():
            for slot in self.slots:
                self._begin(slot)
            while any(slot.worker is not None or slot.due is not None for slot in self.slots):
                self._turn()
                self._clock.sleep(LOOK_S)
        if self._error is not None:
            raise self._error
        result = self.metrics().result
        result.drained = result.drained and not self._has_lost
        return result

    def metrics(self) -> RunMetrics:
        """Return the merged metrics of all workers."""
        now, bounds = self._clock.monotonic(), self._bounds
        for slot in self.slots:
            slot.result.silent_s = None if slot.worker is None else now - slot.heard
        reports = [WorkerReports(worker_result(slot.result, slot.reports), slot.reports) for slot in self.slots]
        if bounds.for_s is not None:  # it counts from the first worker's run, the shown duration from the start
            waited = (now if self._ran_since is None else self._ran_since) - self._begun
            bounds = replace(bounds, for_s=bounds.for_s + waited)
        return merge(
            self._name,
            self._components,
            reports,
            bounds,
            reason=self._reason or "running",
            duration_s=now - self._begun,
        )

    @property
    def done(self) -> int:
        """How many trees are complete, according to the workers' reports."""
        return sum(report.result.completed for slot in self.slots for report in slot.reports)

    # --- a look ---

    def _turn(self) -> None:
        """Poll each worker, then decide about the run."""
        now = self._clock.monotonic()
        for slot in self.slots:
            # Poll before taking messages: then a dead worker's messages are complete.
            code = slot.worker.poll() if slot.worker is not None else None
            if slot.take(now) and self._ran_since is None:
                self._ran_since = now - slot.reports[-1].result.duration_s
            if code is not None:
                self._ended(slot, code, now)
            elif slot.due is not None and now >= slot.due:
                self._begin(slot)
        self._look_for_the_end(now)
        self._stop_workers(now)
        if self._view is not None:
            self._view.look(now, self.metrics)

    def _begin(self, slot: Slot) -> None:
        left = None if self._bounds.records is None else max(1, self._bounds.records - self.done)
        slot.worker = self._start(slot.number, left)
        slot.due, slot.has_reported, slot.error = None, False, None
        slot.started = slot.heard = self._clock.monotonic()
        slot.result.state, slot.result.pid = "starting", slot.worker.pid
        self._log.info("worker %d runs as process %d", slot.number, slot.worker.pid)

    def _ended(self, slot: Slot, code: int, now: float) -> None:
        """Handle a worker's end: it was done, was asked to end, or died."""
        assert slot.worker is not None
        slot.worker.close()
        pid = slot.worker.pid
        slot.worker = slot.result.pid = None
        ended = slot.ended_with
        if ended is not None and ended.reason in ("end", "records"):
            slot.result.state = ended.reason
            if ended.reason == "end":
                self.stop("end")
            return
        death = WorkerDeath(code, slot.error, drained=ended is not None)
        if self._reason is None:
            self._died(slot, pid, death, now)
        # A run handles SIGTERM. A process killed by it had not begun or was done, so nothing was in flight.
        elif ended is not None or code == -signal.SIGTERM:
            slot.result.state = self._reason
        else:
            self._lost(slot, pid, death)

    def _died(self, slot: Slot, pid: int, death: WorkerDeath, now: float) -> None:
        """Restart a worker that died without a request to end, or end the run."""
        slot.record_death(death)
        wait_s = slot.restarts.wait_s(death, now - slot.started)
        if wait_s is None:
            # Its error is raised once, at the end.
            self._log.warning("worker %d (pid %d) %s; the run ends", slot.number, pid, death.in_short)
            self._fail(slot.restarts.final_error(death, slot.number))
            return
        slot.due = now + wait_s
        slot.result.state = "restarting"
        slot.result.restarts += 1
        self._log.warning(
            "worker %d (pid %d) %s; restarting in %g s (restart %d)",
            slot.number, pid, death, wait_s, slot.result.restarts,
        )  # fmt: skip

    def _lost(self, slot: Slot, pid: int, death: WorkerDeath) -> None:
        """Handle a worker's death while the run is stopping: the next run reads its uncommitted records again."""
        self._has_lost = self._has_lost or self._reason != "end"
        if self._is_aborted:  # as requested
            slot.result.state = "aborted"
            return
        slot.record_death(death)
        if death.has_same_error_as(self._error):
            return
        self._log.warning("worker %d (pid %d) %s while it was finishing", slot.number, pid, death)
        if self._reason != "end":  # at the end, everything is committed
            self._fail(
                death.error
                or ComponentError(
                    f"worker {slot.number} {death} while it was finishing: what it had in flight is not committed",
                    cure="run the topology again: then it will be processed",
                )
            )

    def _fail(self, error: DownspoutError) -> None:
        """End the run with an error; the first one is raised."""
        self._error = self._error or error
        self.stop("error")

    # --- the end ---

    def _look_for_the_end(self, now: float) -> None:
        bounds = self._bounds
        if bounds.for_s is not None and self._ran_since is not None and now - self._ran_since >= bounds.for_s:
            self.stop("for")
        if bounds.records is not None and self.done >= bounds.records:
            self.stop("records")

    def _stop_workers(self, now: float) -> None:
        """Ask workers to end if the run is stopping, and again if it was aborted."""
        if self._reason is None:
            return
        for slot in self.slots:
            if slot.due is not None:
                slot.due, slot.result.state = None, "died"
        while self._asked < self._wanted:
            self._asked += 1
            self._deadline = now + (ABORT_S if self._is_aborted else self._bounds.drain_s + GRACE_S)
            for worker in self._alive():
                worker.ask_to_end()
        if now >= self._deadline:
            for worker in self._alive():
                self._log.warning("process %d did not end in time: killing it", worker.pid)
                worker.kill()

    def _alive(self) -> Sequence[Worker]:
        return [slot.worker for slot in self.slots if slot.worker is not None]

    @contextmanager
    def _no_orphans(self) -> Iterator[None]:
        """Leave no worker alive on exit, even after an error in this process."""
        try:
            yield
        finally:
            alive = self._alive()
            for worker in alive:
                worker.ask_to_end()
            deadline = self._clock.monotonic() + self._bounds.drain_s + GRACE_S
            for worker in alive:
                while worker.poll() is None and self._clock.monotonic() < deadline and not self._is_aborted:
                    self._clock.sleep(LOOK_S)
                worker.kill()
                worker.close()
