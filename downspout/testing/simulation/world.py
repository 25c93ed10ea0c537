"""A world: processes of one topology and one Kafka, stepped in turn in virtual time, with planned faults.

The scheduler is a loop: the earliest turn is next. A turn is one round of a process's engine, or one step of the plan.
A process paused at some call stays *inside* its turn while the loop runs the others; it may wake between two steps of a
flush.

A run has three phases: records and faults; calm (no more faults, dead processes restart, open transactions end) until
all is committed; shutdown of all processes.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition

from downspout.engine.graph import Graph
from downspout.errors import BrokerError, ComponentError, DownspoutError, StoreAwayError, TakenOverError
from downspout.testing.fake_group import AcceptedCommit
from downspout.testing.fake_kafka import FakeKafka
from downspout.testing.simulation.fault_proxy import Killed, SharedFolder
from downspout.testing.simulation.faults import FaultPlan, Faults, Step
from downspout.testing.simulation.simulated_process import SimulatedProcess
from downspout.testing.simulation.sources import Maker, ProducedRecord, SharedBatches, Sources, is_of_batches
from downspout.testing.simulation.store import Bucket
from downspout.testing.virtual_clock import Trace, WorldClock

__all__ = ["World"]

CALM_LOOK_S = 1.0
STUCK_EXTRA_S = 30.0
KILLER_EXTRA_S = 300.0
"""A killer record is given up after a dozen deaths; meanwhile its partition makes no progress."""
CALM_S_MAX = 20_000.0
AWAY = (BrokerError, StoreAwayError)
"""Errors of outages, which must not end a process that has started."""


class World:
    """One run of one plan.

    Args:
        confs: the configuration of each component, without the parts that differ between processes.
        top: an empty folder for the sinks.
    """

    def __init__(
        self,
        plan: FaultPlan,
        graph: Graph,
        confs: Mapping[str, Mapping[str, Any]],
        *,
        topics: list[str],
        group: str,
        make: Maker,
        top: Path,
    ) -> None:
        self.plan, self.graph, self.confs = plan, graph, confs
        self.topics, self.group = topics, group
        self.clock = WorldClock()
        self.shared_folder = SharedFolder(top, self.clock.wall)
        self.batches = SharedBatches("simulation") if is_of_batches(graph) else None
        self.bucket = Bucket(self.shared_folder, self._arrives) if plan.store else None
        self.trace = Trace(self.clock)
        self.kafka = FakeKafka("simulation", self.clock, cooperative=plan.cooperative)
        self.processes: list[SimulatedProcess] = []
        self.injected: Counter[str] = Counter()  # Faults that struck, by kind
        self.faulted: Counter[str] = Counter()
        self.progress: Counter[tuple[str, int]] = Counter()
        self.emitted = self.chunks = 0
        self.violations: list[str] = []
        self.calm = self.ending = False
        self._last_error = ""
        self._lives: Counter[int] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        for topic in topics:
            self.kafka.create_topic(topic, plan.partitions)
        self.sources = Sources(self, topics, make)
        self.faults = Faults(self)

    # --- the run ---

    def run(self) -> None:
        """Run to the end; problems are in ``violations``."""
        rng = random.Random(f"{self.plan.seed}/start")
        for number in range(1, self.plan.members + 1):
            self.at(rng.uniform(0, 2), lambda number=number: self.start(number))  # type: ignore[misc]
        for step in self.plan.steps:
            self.at(step.at, lambda step=step: self._take(step))  # type: ignore[misc]
        self.run_until(self.plan.duration_s)
        self._calm_down()
        if not self.violations:
            self._end()
        if not self.violations:
            self._look_back()
        if self.shared_folder.swept:
            self.injected["sweep"] += self.shared_folder.swept
        for process in self.processes:
            process.bury()
        if self.bucket is not None:
            self.bucket.save()

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedule something at a time."""
        heapq.heappush(self._events, (when, next(self._sequence), what))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule something in some seconds."""
        self.at(self.clock.monotonic() + seconds, what)

    def _arrives(self, request: Callable[[], None]) -> None:
        """Schedule a late request, after its sender gave up, but before sweepers consider its file abandoned."""
        self.later(self.faults.chance.choice([0.1, 2.0, 30.0, 300.0]) * self.faults.chance.random(), request)

    def _take(self, step: Step) -> None:
        if step.kind == "records":
            self.sources.burst(step)
        elif not self.calm:
            self.faults.inject(step)

    def run_until(self, until: float) -> None:
        """Give turns to all processes that are not busy, up to a time or a violation."""
        while not self.violations:
            free = [process for process in self.processes if not process.busy]
            process = min(free, key=lambda one: one.due, default=None)
            at = self._events[0][0] if self._events else float("inf")
            if min(at, process.due if process else float("inf")) > until:
                break
            if process is None or at <= process.due:
                when, _, what = heapq.heappop(self._events)
                self.clock.turn_to(when)
                what()
            else:
                self._turn(process)
        self.clock.turn_to(max(until, self.clock.monotonic()))

    def _turn(self, process: SimulatedProcess) -> None:
        self.clock.turn_to(process.due)
        process.busy = True
        try:
            process.step()
            if process.leaving and process.engine.stopping:
                self._gone(process, None)
        except Killed:
            self._gone(process, 0.5)
        except DownspoutError as error:
            process.note(f"ends with {type(error).__name__}")
            self._last_error = f"; the last process to fail: {error}"
            if isinstance(error, ComponentError):  # not caused by a fault: a bug
                self.violations.append(f"{process.name} ended: {error}\n{traceback.format_exc()}")
            elif process.runs and isinstance(error, AWAY) and not isinstance(error, TakenOverError):
                self.violations.append(f"{process.name} ended because of an outage: {error}")
            self.injected[f"ended: {type(error).__name__}"] += 1
            self._gone(process, 1.0)
        except Exception as error:
            self.violations.append(f"{process.name} raised {type(error).__name__}: {error}\n{traceback.format_exc()}")
        finally:
            process.busy = False
            process.due = self.clock.monotonic()

    def may_have_dead_letters(self, record: ProducedRecord) -> bool:
        """Return whether the spout may have given up a sound record.

        Once records kill, each death while a record is out alone counts as one of its attempts, whatever the cause.
        """
        return bool(self.faults.killers) and (self.faulted[record.place] > 0 or self.injected["crash"] > 2)

    # --- processes ---

    def start(self, number: int) -> None:
        """Start a process, unless another one has that number."""
        if not any(process.number == number for process in self.processes if not process.replaced):
            self._lives[number] += 1
            self.processes.append(SimulatedProcess(self, number, self._lives[number]))

    def _gone(self, process: SimulatedProcess, restart_s: float | None) -> None:
        """Remove an ended process; given ``restart_s``, restart it later, unless the world is ending."""
        process.die()
        process.bury()
        self.processes.remove(process)
        if restart_s is not None and not process.replaced and not self.ending:
            delay = restart_s + self.faults.chance.random() * (2 if self.calm else 20)
            self.later(delay, lambda: self.start(process.number))

    def hold(self, process: SimulatedProcess, seconds: float) -> None:
        """Pause a process with all its threads for at least this long."""
        for consumer in process.connection.consumers:
            consumer.freeze()
        until = self.clock.monotonic() + seconds
        self.run_until(until)
        self.clock.turn_to(max(until, self.clock.monotonic()))
        process.note(f"wakes after {seconds:.1f} s")

    @contextlib.contextmanager
    def among_others(self, process: SimulatedProcess) -> Iterator[None]:
        """Inside the block, others take their turns whenever this process sleeps."""

        def slept() -> None:
            now, self.clock.slept = self.clock.monotonic(), lambda: None
            try:
                self.run_until(now)
                self.clock.turn_to(now)
            finally:
                self.clock.slept = slept

        before, self.clock.slept = self.clock.slept, slept
        try:
            yield
        finally:
            self.clock.slept = before

    # --- the end ---

    def _look_back(self) -> None:
        """Check that no commit goes back, whoever commits."""
        reached: dict[TopicPartition, AcceptedCommit] = {}
        for commit in self.kafka.commits(self.group):
            before = reached.get(commit.partition)
            if before is not None and commit.offset < before.offset:
                place = f"{commit.partition.topic}[{commit.partition.partition}]@{commit.offset}"
                self.violations.append(
                    f"{place} committed by {commit.member}, after {before.offset} by {before.member}"
                )
            reached[commit.partition] = commit

    def _calm_down(self) -> None:
        """End all faults, and wait until all is committed; a partition without progress is a violation."""
        self.calm = True
        self.trace.note("world", "is calm from now on")
        self.faults.stop()
        self.sources.stop()
        for process in list(self.processes):
            process.fuse, process.disk_faults = None, 0
            process.bolt_faults.clear()
            process.store_faults.clear()
            process.silences.clear()
            process.leaving = process.engine.stopping
        started = self.clock.monotonic()
        gate_s = self._gate()
        seen: dict[TopicPartition, tuple[Any, float]] = {}
        while not self.violations and (behind := self.sources.behind()):
            now = self.clock.monotonic()
            if not self.processes:  # all have left, and none is about to restart
                self.start(1)
            for tp, at in behind.items():
                state = (at, self.progress[tp.topic, tp.partition])
                if tp not in seen or seen[tp][0] != state:
                    seen[tp] = state, now
                elif now - seen[tp][1] > gate_s:
                    self._stuck(tp, at, now - seen[tp][1])
            if now - started > CALM_S_MAX:
                self.violations.append(f"stuck: {behind} not committed after {CALM_S_MAX:.0f} s of calm")
            self.run_until(now + CALM_LOOK_S)

    def _gate(self) -> float:
        """Return how long a partition may go without an ack or a commit, once faults have ended."""
        config, killers = self.plan.config, len(self.faults.killers)
        session, period = config["kafka.session_timeout_ms"] / 1000, config["kafka.commit_period_ms"] / 1000
        timeout = config["topology.message.timeout.secs"]
        # A partition may wait for the records of all others, of which only ``pending`` are acked by each flush.
        records = sum(self.kafka.log(tp).stable_end - at for tp, at in self.sources.behind().items())
        pending = config["topology.max.spout.pending"] or max(1, records)
        turns = records / pending * config.get("parquet.flush_age_s", 0.0)
        return float(2 * session + 2 * timeout + period + turns + STUCK_EXTRA_S + KILLER_EXTRA_S * killers)

    def _stuck(self, tp: TopicPartition, at: int, seconds: float) -> None:
        end = self.kafka.log(tp).stable_end
        what = f"stuck: {tp.topic}[{tp.partition}]@{at} for {seconds:.0f} s of calm"
        self.violations.append(f"{what}; no ack, no commit; the log ends at {end}{self._last_error}")

    def _end(self) -> None:
        """Shut all processes down; commits must stay, and a new process must find nothing to do."""
        self._events.clear()
        self.ending = True
        for process in self.processes:
            process.leaving = True
        self.run_until(self.clock.monotonic() + 60)
        if self.processes:
            self.violations.append(f"{', '.join(one.name for one in self.processes)}: did not end within 60 s")
            return
        if left := self.sources.behind():
            self.violations.append(f"committed before the end, and not after it: {left}")
            return
        before, self.ending = self.emitted, False
        self.start(1)
        self.run_until(self.clock.monotonic() + 15)
        if self.emitted != before and self.batches is None:  # coordinators begin empty batches forever
            self.violations.append(f"{self.emitted - before} records were emitted again after an orderly end")
