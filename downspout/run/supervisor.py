"""The supervisor of the workers: it starts them, adds their metrics up, restarts crashed ones, and ends them all.

It looks at them eight times a second and decides by what it sees. Only time and the signal handlers' two flags come
from elsewhere, so tests drive it with a virtual clock and scripted workers.

============  =====================================================================================================
a run stops   when
============  =====================================================================================================
``end``       a worker has ended with ``end``: it looks at the commits of the whole group, so all are done. The others
              see the same and end by themselves; one that dies from then on is not needed any more
``for``       ``run.for_s`` have passed since the first worker ran
``records``   ``run.records`` trees are complete over all workers. Each of them stops by itself at what was left of them
              when it started; together they may do more, by what is in flight and half a second's work
``signal``    ``stop()`` was called: each worker is sent SIGTERM and drains
``aborted``   ``abort()`` was called: each is sent another one, and is killed ABORT_S later
(an error)    a worker has died that no restart mends. The others drain, then the error is raised
============  =====================================================================================================

**No orphans.** However :meth:`Supervisor.run` ends, no worker is alive then: one that does not end within
``run.drain_s`` and GRACE_S of the request is killed. Nothing is lost: the next run reads its records again.
A supervisor that is killed itself is seen by the workers (``worker_process``).

**A race that is none.** A worker dies just when the run is asked to stop. Either it is seen as dead before the request
reaches it, or the request goes to a process that is dead and not reaped yet, and has no effect. In both cases the next
look finds it dead while the run stops, and then it is not restarted.

**Restarts.** Whether and when a crashed worker is restarted follows from its end, and from the number of ends in a row:

==========================================  =====================================================================
it ended by                                 then
==========================================  =====================================================================
a signal; BrokerError                       again, at most RESTARTS_MAX times in a row
SIGTERM from outside, in order              the same
ComponentError; without an error (a crash)  again, at most ERRORS_MAX times in a row: it will happen again
any other error of ours                     the run stops: a setting is wrong in each worker alike, a package is
                                            missing everywhere; about lost data and bad records people decide
TakenOverError                              the run stops: a new one would take the place of that process in turn
UnreadableError                             the run stops: Kafka could not return the record in full to another one
==========================================  =====================================================================

*In a row* are deaths of one worker number, each within STEADY_S of its start. A record that kills the process is found
by dying of it (decision 0004): five to eight deaths, and ``kafka.retries_max`` + 1 more. So the limit is not small.
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

STEADY_S = 60.0  # A worker that ran for this long starts a new row
BACKOFF_S = (0.5, 10.0)
"""Wait before the first and, doubled each time, before any later start. Static members have 10 s to come back."""
RESTARTS_MAX, ERRORS_MAX = 20, 3


@dataclass(frozen=True)
class WorkerDeath:
    """How a worker ended that was not asked to."""

    exit_code: int  # of the process; the negative number of a signal that killed it
    error: DownspoutError | None = None  # that it reported
    drained: bool = False  # it got a SIGTERM from outside, and ended in order

    def __str__(self) -> str:
        """Say it in words.

        >>> str(WorkerDeath(-9)), str(WorkerDeath(1)), str(WorkerDeath(143, drained=True))
        ('was killed by signal 9 (SIGKILL)', 'ended with exit code 1', 'was stopped from outside (exit code 143)')
        """
        if self.error is not None:
            return f"ended with an error: {self.error.message.splitlines()[0]}"
        return self.in_short

    @property
    def in_short(self) -> str:
        """What there is to say without the error."""
        if self.exit_code >= 0:
            code = f"exit code {self.exit_code}"
            return f"was stopped from outside ({code})" if self.drained else f"ended with {code}"
        try:
            name = f" ({signal.Signals(-self.exit_code).name})"
        except ValueError:
            name = ""
        return f"was killed by signal {-self.exit_code}{name}"

    def has_same_error_as(self, error: DownspoutError | None) -> bool:
        """Return whether another worker has reported this error already."""
        return self.error is not None and error is not None and self.error.message == error.message

    @property
    def is_final(self) -> bool:
        """Whether a restart would change nothing."""
        if self.error is None or type(self.error) is DownspoutError:
            return False
        return isinstance(self.error, TakenOverError | UnreadableError) or not isinstance(
            self.error, BrokerError | ComponentError
        )

    @property
    def repeats(self) -> bool:
        """Whether it will probably end like this again."""
        if self.error is not None:
            return not isinstance(self.error, BrokerError)
        return self.exit_code > 0 and not self.drained


class Restarts:
    """Counts the deaths of one worker."""

    def __init__(self, most: int = RESTARTS_MAX) -> None:
        self._most = most
        self.in_a_row = 0

    def wait_s(self, death: WorkerDeath, lived_s: float) -> float | None:
        """Return how long to wait before the worker is started again; None: the run stops.

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
        """Return the error that ends the run, of the class that the worker's has."""
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
ABORT_S = 5.0  # How long a worker that is to stop at once may take to say what it did
DEATHS_MAX = 20  # So many deaths of a worker are remembered in words
GRACE_S = 30.0  # How long beyond ``run.drain_s`` a worker may take to end once it is asked to


class WorkersView(Protocol):
    """Shows the run of all workers."""

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Show metrics where it is time; only then take them."""


@dataclass
class Slot:
    """One worker, through all of its lives."""

    number: int  # of the worker, from 1
    restarts: Restarts  # counts its deaths
    worker: Worker | None = None  # its process; None before the first life, between two, and at the end
    started: float = 0.0  # when this life began
    due: float | None = None  # when the next life begins; None: there will be none
    # the last one of the latest life that has sent any, and before it the sum of all earlier lives
    reports: list[WorkerReport] = field(default_factory=list)
    has_reported: bool = False  # whether this life has sent a report
    heard: float = 0.0  # when it sent the last one, or began
    error: DownspoutError | None = None  # that it has reported in this life
    result: WorkerResult = field(init=False)  # what is shown of it

    def __post_init__(self) -> None:
        self.result = WorkerResult(self.number, "starting")

    def take(self, now: float) -> bool:
        """Take in its messages since the last look; return whether this life has sent its first report."""
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
        """Take note of a death."""
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
        # starts a worker: its number, and the records that are left of ``run.records``
        start: Callable[[int, int | None], Worker],
        restarts_max: int = RESTARTS_MAX,  # how often one is started again in a row
        clock: Clock = SYSTEM_CLOCK,
        view: WorkersView | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._name, self._components = name, list(components)
        self._bounds = bounds
        self._start = start
        self._clock = clock
        self._view = view
        self._log = log or logging.getLogger("downspout.run.workers")
        self.slots = [Slot(number, Restarts(restarts_max)) for number in range(1, workers + 1)]
        self._begun = clock.monotonic()
        self._ran_since: float | None = None
        self._reason: str | None = None
        self._is_aborted = False
        self._wanted = 0  # How often the workers are to be asked to end: once, or twice to end at once …
        self._asked = 0  # … and how often they were
        self._has_lost = False
        self._deadline = float("inf")
        self._error: DownspoutError | None = None

    def stop(self, reason: str = "signal") -> None:
        """Let all workers finish. May be called from a signal handler."""
        self._reason = self._reason or reason
        if reason != "end":  # that all workers see by themselves
            self._wanted = max(self._wanted, 1)

    def abort(self) -> None:
        """Stop all workers without waiting for anything. May be called from a signal handler."""
        self._is_aborted = True
        self._reason = "aborted"
        self._wanted = 2

    def run(self) -> RunResult:
        """Run until all workers have ended.

        Raises:
            DownspoutError: a worker has ended in a way that no restart mends. The others have drained.
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
        """Return what all workers have done so far."""
        now, bounds = self._clock.monotonic(), self._bounds
        for slot in self.slots:
            slot.result.silent_s = None if slot.worker is None else now - slot.heard
        reports = [WorkerReports(worker_result(slot.result, slot.reports), slot.reports) for slot in self.slots]
        if bounds.for_s is not None:  # it counts from when the first worker ran, and what is shown from the start
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
        """How many trees are complete, as far as workers have reported."""
        return sum(report.result.completed for slot in self.slots for report in slot.reports)

    # --- a look ---

    def _turn(self) -> None:
        """Look at each worker, then at the whole."""
        now = self._clock.monotonic()
        for slot in self.slots:
            # First whether it is dead, then its messages: so all messages of a dead one are there.
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
        """A worker has ended: because it was through, because it was asked, or it died."""
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
        # A run handles SIGTERM. A process that is killed by it had not begun, or was through: nothing was in flight.
        elif ended is not None or code == -signal.SIGTERM:
            slot.result.state = self._reason
        else:
            self._lost(slot, pid, death)

    def _died(self, slot: Slot, pid: int, death: WorkerDeath, now: float) -> None:
        """A worker died without a request to end: restart it, or end the run."""
        slot.record_death(death)
        wait_s = slot.restarts.wait_s(death, now - slot.started)
        if wait_s is None:
            # Its error is raised at the end, once.
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
        """A worker died while the run was on its way out: what it had in flight is read again by the next run."""
        self._has_lost = self._has_lost or self._reason != "end"
        if self._is_aborted:  # it ended as it was to
            slot.result.state = "aborted"
            return
        slot.record_death(death)
        if death.has_same_error_as(self._error):
            return
        self._log.warning("worker %d (pid %d) %s while it was finishing", slot.number, pid, death)
        if self._reason != "end":  # else the worker that saw the end has committed it
            self._fail(
                death.error
                or ComponentError(
                    f"worker {slot.number} {death} while it was finishing: what it had in flight is not committed",
                    cure="run the topology again: then it will be processed",
                )
            )

    def _fail(self, error: DownspoutError) -> None:
        """The run ends with an error; the first one is raised."""
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
        """Ask workers to end if the run is to end; a second time if it is to end at once."""
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
        """At the end no worker is alive, though this process fails."""
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
