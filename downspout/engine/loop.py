"""The engine's loop: one thread, an injected clock and an injected random generator.

A round: spouts emit, bolts process until their queues are empty, spouts get their acks and fails, timers fire. The loop
waits only in the clock's ``sleep``, after a round that did nothing. Spouts get acks after the bolts' turn, never inside
a call of a bolt.

============  ===========================================================================================
a run stops   when
============  ===========================================================================================
``end``       all spouts have ``end_reached()``: everything up to the end as of the start is acked and committed
``for``       it has run for ``run.for_s``
``records``   ``run.records`` trees are complete
``signal``    ``stop()`` was called: no new tuples, bolts drain, trees finish (at most ``run.drain_s``)
``aborted``   ``abort()`` was called, or a component ended the run (then the caller gets the error)
============  ===========================================================================================
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.engine import acker
from downspout.engine.acker import forget_failed
from downspout.engine.bolt_task import BoltTask
from downspout.engine.graph import Graph
from downspout.engine.lifecycle import Shutdown, build_tasks
from downspout.engine.result import RunResult, collect
from downspout.engine.runtime import Observer, Runtime
from downspout.engine.spout_task import SpoutTask
from downspout.engine.task import Task
from downspout.errors import TopologyError
from downspout.formatting import counted
from downspout.protocols import SpoutOffers, offers

BURST_TUPLES = 512  # Tuples per spout before bolts get their turn; one call of next_tuple may emit more
BURST_CALLS = 64
TURN_S = 0.25  # How long a bolt may work on its queue before other bolts, timers and the view get their turn
PASSES_MAX = 64  # Passes over the bolts' queues per round; in a cycle of bolts they might never be empty
IDLE_S = (0.001, 0.010)  # First and longest sleep after rounds that did nothing
SLEEP_S_MIN = 0.000_001
TIMER_S = 0.1  # How often a busy run checks its timers
REST_FACTOR = 9  # A spout whose poll took d seconds and returned nothing is skipped for 9 · d while others have work …
REST_S_MAX = 1.0  # … but never longer than this
DRAIN_EVERY_S = 0.25  # How often bolts are drained again
LAST_TICKS_S = 1.0  # Time for tuples of the last ticks if ``run.drain_s`` is over
ALL_READ = ("end", "records")  # Reasons of a run that has read all its input


@dataclass(frozen=True)
class Bounds:
    """When a run stops by itself; see the settings ``run.*``."""

    until: str | None = None
    for_s: float | None = None
    records: int | None = None
    drain_s: float = 30.0


class EngineView(Protocol):
    """Shows a run in progress."""

    def update(self, engine: Engine) -> None:
        """Show the engine's state; called at most about ten times a second."""


class Engine:
    """A topology in this process."""

    def __init__(
        self,
        graph: Graph,
        confs: Mapping[str, Mapping[str, Any]],  # the whole configuration of each component
        *,
        bounds: Bounds | None = None,  # when to stop
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,  # shuffles
        observer: Observer | None = None,  # sees every emit, ack and fail (tests)
        # called with each task before its component's ``initialize`` (tests)
        created: Callable[[Task], None] | None = None,
        view: EngineView | None = None,  # shows the run
        round_s: float = 0.0,  # seconds to sleep after every round, so that time passes in a simulation
        # by component and index, if the graph is part of a larger one
        task_ids: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        graph.check()
        self.graph = graph
        self.bounds = bounds or Bounds()
        self.clock = clock
        self.view = view
        self._round_s = round_s
        ackers = _ackers(next(iter(confs.values()), {}))
        self.world = Runtime(clock=clock, ackers=ackers > 0, observer=observer, created=created)
        self.tasks = build_tasks(graph, confs, self.world, rng or random.Random(), ackers, task_ids)
        self.spouts = [task for task in self.tasks if isinstance(task, SpoutTask)]
        by_name: dict[str, list[BoltTask]] = {}
        for task in self.tasks:
            if isinstance(task, BoltTask):
                by_name.setdefault(task.name, []).append(task)
        self.bolts = [task for bolt in graph.bolts for task in by_name[bolt.name]]
        self.world.spouts, self.world.bolts = self.spouts, self.bolts
        self.log: logging.Logger = self.world.log
        self.started = 0.0
        self.active = False
        self.ending = Shutdown(self.spouts, self.bolts)
        self.beats = 0  # Grows while the run makes progress; a watchdog in another thread reads it
        self._reason: str | None = None
        self._aborted = False
        self._idle_s = IDLE_S[0]
        self._timers_due = self._drain_due = 0.0
        self._drained_at = 0
        self._waited_at = -math.inf  # When a bolt last waited for its store

    # --- from outside -------------------------------------------------------------------------------------

    def stop(self, reason: str = "signal") -> None:
        """Stop emitting, then drain. May be called from a signal handler."""
        self._reason = self._reason or reason

    def abort(self) -> None:
        """Stop without draining. May be called from a signal handler."""
        self._aborted = True
        self._reason = "aborted"

    def activate(self) -> None:
        """Let spouts emit."""
        if not self.active:
            self.active = True
            for spout in self.spouts:
                spout.activate()

    def deactivate(self) -> None:
        """Keep spouts from emitting; acks and fails still reach them."""
        if self.active:
            self.active = False
            for spout in self.spouts:
                spout.deactivate()

    @property
    def in_flight(self) -> int:
        """How many records are in open trees; a chunk counts with all its records."""
        return sum(spout.in_flight for spout in self.spouts)

    @property
    def done(self) -> int:
        """How many records are complete; tuples without an id count when emitted."""
        return sum(spout.acked + spout.untracked for spout in self.spouts)

    @property
    def stopping(self) -> bool:
        """Whether the run is stopping."""
        return self._reason is not None

    # --- the run ------------------------------------------------------------------------------------------

    def run(self) -> RunResult:
        """Build, activate, loop, drain, close.

        Raises:
            DownspoutError: a component ended the run. Acked records are committed if possible.
        """
        self._check_bounds_early()
        with self.open():
            self._check_bounds()
            while self._reason is None:
                self.round()
            self.drain()
        return self.result()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Build and activate all tasks; on exit, deactivate and close them. For callers that run the rounds.

        Raises:
            DownspoutError: a component could not be built or closed.
        """
        try:
            self.start()
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                self.ending.interrupted(error.__traceback__)
            self.wind_up(quietly=True)
            raise
        self.wind_up(quietly=False)

    def start(self) -> None:
        """Build and activate all tasks. For callers that also call :meth:`wind_up`."""
        self.started = self.clock.monotonic()
        if self.bounds.for_s is not None:
            self.world.ends_at = self.started + self.bounds.for_s
        for task in self.tasks:
            task.build()
        now = self.clock.monotonic()
        for bolt in self.bolts:
            bolt.start_timers(now)
        self.activate()

    def finish_batch(self, keep: Collection[BoltTask] = ()) -> None:
        """Tick and drain all bolts, sources first, then time out the trees that are still open.

        For an engine whose input comes in separate batches.

        Args:
            keep: bolts that keep their tuples after the batch; their trees stay open.
        """
        for bolt in self.bolts:
            self._run_bolts(turn_s=math.inf)
            if bolt.tick_s and bolt not in keep:
                bolt.tick()
            if bolt not in keep:
                bolt.drain(wait=True)
        self.work()
        kept = {tree for bolt in keep for root in bolt.held.values() for tree in acker.trees_of(root)}
        for spout in self.spouts:
            for tree in [tree for tree in spout.forest.open if tree not in kept]:
                spout.forest.fail(tree, acker.TIMEOUT)
        for bolt in self.bolts:
            forget_failed(bolt)
            bolt.sweep()
        self.work()

    def _check_bounds_early(self) -> None:
        if self.bounds.until is None:
            return
        for spout in self.spouts:
            if not all(offers(spout.component.cls, m) for m in (SpoutOffers.exhausted, SpoutOffers.end_reached)):
                raise TopologyError(
                    f"--until end: the spout {spout.name} ({spout.component.cls.__name__}) has no end",
                    cure="--for 30s or --records 1000",
                )

    def _check_bounds(self) -> None:
        if self.bounds.records is not None and not self.spouts:
            raise TopologyError("--records: the topology has no spout")

    def round(self) -> None:
        """Do one round; sleep if there was nothing to do."""
        may_emit = self.active and not self._has_queued() and not self._waits()
        worked = self._run_spouts() if may_emit else False
        worked = self.work(TURN_S) or worked
        if not worked or self.clock.monotonic() >= self._timers_due:
            worked = self._timers() or worked
        self._look_for_the_end(worked)
        if worked:
            self._idle_s = IDLE_S[0]
            if self._round_s:
                self.clock.sleep(self._round_s)
        elif self._reason is None:
            self._sleep()

    def work(self, turn_s: float = math.inf) -> bool:
        """Run queued tuples through bolts, and pass acks and fails to spouts; return whether anything was done."""
        worked = self._run_bolts(turn_s)
        if self._aborted:
            return worked
        for spout in self.spouts:
            if spout.forest.completed or spout.forest.failed:
                spout.settle()
                worked = True
        return worked

    def _waits(self) -> bool:
        """Return whether a bolt waits for its store: then spouts do not emit, and tuples do not time out."""
        if any(bolt.is_waiting() for bolt in self.bolts):
            self._waited_at = self.clock.monotonic()
            return True
        return False

    def _has_queued(self) -> bool:
        return any(bolt.queue for bolt in self.bolts)

    def _run_spouts(self) -> bool:
        emitted = False
        now = self.clock.monotonic()
        resting = []
        for spout in self.spouts:
            if spout.rest_until > now:
                resting.append(spout)
            else:
                emitted = self._burst(spout) or emitted
        if not emitted:
            for spout in resting:
                spout.rest_until = 0.0
        return emitted

    def _burst(self, spout: SpoutTask) -> bool:
        """Call next_tuple until a burst for the bolts is complete; return whether anything was emitted."""
        start = spout.emitted
        for _ in range(BURST_CALLS):
            if not spout.may_emit or self._reason is not None or self._enough():
                break
            before = self.clock.monotonic()
            if not spout.next_tuple():
                now = self.clock.monotonic()
                spout.rest_until = now + min(REST_S_MAX, REST_FACTOR * (now - before))
                break
            if spout.emitted - start >= BURST_TUPLES:
                break
        return spout.emitted != start

    def _enough(self) -> bool:
        """Return whether ``run.records`` is reached if everything in flight succeeds."""
        return self.bounds.records is not None and self.done + self.in_flight >= self.bounds.records

    def _run_bolts(self, turn_s: float = TURN_S) -> bool:
        """Let bolts process queued tuples, each for up to ``turn_s``; return whether there were any."""
        worked, until = False, self.clock.monotonic() + turn_s
        for _ in range(PASSES_MAX):
            more = False
            self.beats += 1
            for bolt in self.bolts:
                if bolt.queue:
                    bolt.run_queue(turn_s)
                    more = True
                    if self._aborted:
                        return True
            if not more:
                break
            worked = True
            # A slow bolt or a large chunk would otherwise delay sinks' flushes and spouts' acks until tuples time out.
            if self.clock.monotonic() >= until:
                break
        return worked

    # --- time ---------------------------------------------------------------------------------------------

    def _timers(self) -> bool:
        """Fire due ticks, batches, flushes, timeouts and the view. Return whether a component did something."""
        now = self.clock.monotonic()
        self._timers_due = now + TIMER_S
        worked = False
        for bolt in self.bolts:
            if now >= bolt.tick_due:
                bolt.tick_due = max(bolt.tick_due + bolt.tick_s, now)  # missed ticks are skipped
                bolt.tick()
                worked = True
            if now >= bolt.batch_due:
                bolt.run_batches(now)
                worked = True
            if now >= bolt.drain_due():
                bolt.drain(due=True)
                worked = True
        is_busy = self._has_queued() or not self.active or self._waits()
        for spout in self.spouts:
            spout.run_timers(is_busy)
        worked = self._expire(now) or worked
        if self.view is not None:
            self.view.update(self)
        return worked

    def _expire(self, now: float) -> bool:
        # After a bolt's store was away, every tuple gets its whole timeout again.
        spouts = [spout for spout in self.spouts if self._waited_at <= now - spout.timeout_s]
        if any(spout.is_late(now) for spout in spouts):
            for bolt in self.bolts:
                forget_failed(bolt)
        late = [(spout.forest, spout.forest.expire(now - spout.timeout_s)) for spout in spouts]
        if expired := sum(len(trees) for _, trees in late):
            held = {bolt.name: 0 for bolt in self.bolts}
            for bolt in self.bolts:
                bolt.drop_queued()
                held[bolt.name] += bolt.sweep()
            where = ", ".join(f"{count:,} in {name}" for name, count in held.items() if count)
            records = sum(forest.sizes.get(tree, 1) for forest, trees in late for tree in trees)
            what = counted(expired, "tuple") + (f" of {records:,} records" if records != expired else "")
            self.log.warning("%s timed out%s", what, f" ({where})" if where else "")
        return expired > 0

    def _sleep(self) -> None:
        now = self.clock.monotonic()
        waits = [min(bolt.tick_due, bolt.batch_due, bolt.drain_due()) - now for bolt in self.bolts]
        # The same difference as in _expire: started + timeout - now may round to 0 although started > now - timeout.
        # Then nothing would be due, yet the loop would not sleep; on a virtual clock, for ever. A sleep shorter than
        # SLEEP_S_MIN could be lost in rounding too.
        starts = [(spout, spout.forest.oldest()) for spout in self.spouts]
        waits += [
            max(oldest, self._waited_at) - (now - spout.timeout_s) for spout, oldest in starts if oldest is not None
        ]
        wait = min([self._idle_s, *waits])
        self._idle_s = min(self._idle_s * 2, IDLE_S[1])
        if wait > 0:
            self.clock.sleep(max(wait, SLEEP_S_MIN))

    # --- the end ------------------------------------------------------------------------------------------

    def _look_for_the_end(self, worked: bool) -> None:
        bounds = self.bounds
        if bounds.for_s is not None and self.clock.monotonic() - self.started >= bounds.for_s:
            self.stop("for")
        if bounds.records is not None:
            if self.done >= bounds.records:
                self.stop("records")
            elif not worked and self._enough():
                self._drain_bolts()
        if bounds.until == "end" and not worked and all(spout.exhausted() for spout in self.spouts):
            if all(spout.end_reached() for spout in self.spouts):
                self.stop("end")
            elif self.in_flight:
                self._drain_bolts()
        elif any(spout.waits_for_acks() for spout in self.spouts):
            self._drain_bolts(at_once=not worked)

    def _drain_bolts(self, at_once: bool = False) -> None:
        """Drain bolts, sources first, at most every DRAIN_EVERY_S; with ``at_once``, also if spouts have emitted."""
        now = self.clock.monotonic()
        emitted = sum(spout.emitted for spout in self.spouts)
        if now < self._drain_due and not (at_once and emitted != self._drained_at):
            return
        self._drain_due, self._drained_at = now + DRAIN_EVERY_S, emitted
        for bolt in self.bolts:
            if bolt.drain():
                self._run_bolts()
        self.work(TURN_S)

    def drain(self) -> None:
        """Finish tuples in flight within ``run.drain_s``; if all input was read, tick each bolt once more."""
        if self._aborted:
            return
        deadline = self.clock.monotonic() + self.bounds.drain_s
        self._drain_due = 0.0
        ticks = self._reason in ALL_READ
        while not self._aborted:
            self._drain_bolts()
            worked = self.work(TURN_S)
            now, is_done = self.clock.monotonic(), not self.in_flight and not self._has_queued()
            # Tuples that a bolt gathers for its next tick may be acked already: without a last tick they would be lost.
            if ticks and (is_done or now >= deadline):
                ticks = False
                self._last_ticks(TURN_S if now >= deadline else math.inf)
                deadline = max(deadline, now + LAST_TICKS_S)
            elif is_done and self._finish():
                break
            elif now >= deadline:
                self.log.warning(
                    "after %g s: still %s in flight", self.bounds.drain_s, counted(self.in_flight, "tuple")
                )
                break
            worked = self._timers() or worked
            if not worked:
                self._sleep()

    def _finish(self) -> bool:
        """Let each spout make its last commit; return whether all have."""
        finished = [spout.finish() for spout in self.spouts]
        return all(finished)

    def _last_ticks(self, turn_s: float) -> None:
        """Tick each bolt once more, sources first, so that each also has the tuples that earlier ticks emitted."""
        for bolt in self.bolts:
            self._run_bolts(turn_s)
            if bolt.tick_s:
                bolt.tick()
        self._drain_due = 0.0

    def wind_up(self, quietly: bool) -> None:
        """Deactivate (spouts commit then) and close everything; after an error or abort, as far as possible."""
        is_active, self.active = self.active, False
        in_order = not quietly and not self._aborted
        errors = self.ending.end(work=functools.partial(self.work, TURN_S) if in_order else None, is_active=is_active)
        if errors and not quietly:
            raise errors[0]

    def result(self) -> RunResult:
        """Return the metrics as of now."""
        passed = self.clock.monotonic() - self.started
        return collect(self.graph, self.tasks, self.world, reason=self._reason or "running", duration_s=passed)


def _ackers(conf: Mapping[str, Any]) -> int:
    given = conf.get("topology.acker.executors")
    return 1 if given is None else int(given)
