"""What goes wrong in a simulated world: each kind of :data:`~downspout.testing.simulation.plan.KINDS`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kafka import errors
from kafka.structs import TopicPartition

from downspout.sink.recovery import SWEEP_AFTER_S
from downspout.testing.simulation.fault_proxy import ANSWERS, KAFKA, REQUESTS, STORE, Killed
from downspout.testing.simulation.plan import Step
from downspout.testing.simulation.process import Fuse, SimulatedProcess, places_in

if TYPE_CHECKING:
    from downspout.testing.simulation.world import World

__all__ = ["Faults"]

MEMBERS_MAX = 3
PARTITIONS_MAX = 6
COMMIT_ERRORS = (
    errors.KafkaTimeoutError,
    errors.RequestTimedOutError,
    errors.NotCoordinatorError,
    errors.CoordinatorNotAvailableError,
    errors.CoordinatorLoadInProgressError,
    errors.RebalanceInProgressError,
)
POLL_ERRORS = (errors.RequestTimedOutError, errors.NotLeaderForPartitionError, errors.KafkaConnectionError)
AIMS = (
    frozenset({"write", "sync", "link", "rename", "put", "create", "copy", "delete"}),
    frozenset({"commit"}),
    frozenset[str](),
)
AIMED_MAX, ANY_MAX = 14, 40
"""A fault comes at one of so many of the next calls; one flush of one file takes about 12 steps."""
STORE_FAULTS = ("lost", "unanswered", "late", "late", "twice")
QUESTIONS = ("committed", "beginning_offsets", "end_offsets", "topic_id", "partitions_for")


class Faults:
    """Injects the faults of a plan."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.chance = random.Random(f"{world.plan.seed}/troubles")
        self.killers: set[str] = set()
        self._killers_due = 0
        self._known: set[str] = set()

    def inject(self, step: Step) -> None:
        """Let something go wrong, now or soon."""
        self._world.trace.note("world", step.kind)
        getattr(self, f"_{step.kind}")(step)

    def stop(self) -> None:
        """Make good what is still wrong."""
        self._world.kafka.faults.clear()
        self._world.kafka.broker_up()
        self._world.kafka.coordinator_up()
        self._world.shared_folder.set_right()

    def _process(self, step: Step) -> SimulatedProcess | None:
        """Return the process that is meant: one that is not in the middle of something."""
        free = [process for process in self._world.processes if not process.busy and not process.leaving]
        return free[step.member % len(free)] if free else None

    def _count(self, kind: str) -> None:
        self._world.injected[kind] += 1

    # --- processes ---

    def _crash(self, step: Step) -> None:
        if (process := self._process(step)) is not None:
            process.fuse = self._fuse(step, self._kill)

    def _fuse(self, step: Step, action: Callable[[SimulatedProcess], None]) -> Fuse:
        """Aim at the steps of a flush, at commits, or at whatever comes."""
        aim = AIMS[int(step.size * len(AIMS))]
        return Fuse(self.chance.randrange(AIMED_MAX if aim else ANY_MAX), action, aim)

    def _kill(self, process: SimulatedProcess) -> None:
        self._count("crash")
        process.note("is killed")
        process.die()
        raise Killed

    def _pause(self, step: Step, replaced: bool = False) -> None:
        process = self._process(step)
        if process is None:
            return
        session = self._world.plan.config["kafka.session_timeout_ms"] / 1000
        seconds = session * (step.chance if self.chance.random() < 0.2 else 1 + 3 * step.chance)

        def fall_asleep(process: SimulatedProcess) -> None:
            self._count("pause")
            process.note(f"stands still for {seconds:.1f} s")
            if replaced:
                self._world.later(seconds * self.chance.random(), lambda: self._replace(process))
            self._world.hold(process, seconds)

        process.fuse = self._fuse(step, fall_asleep)

    def _replaced(self, step: Step) -> None:
        self._pause(step, replaced=True)

    def _replace(self, process: SimulatedProcess) -> None:
        """Somebody believes that it is dead, and starts another with the same member number."""
        if process.alive and process in self._world.processes and not self._world.calm:
            self._count("replaced")
            process.replaced = True
            self._world.start(process.number)

    def _join(self, step: Step) -> None:
        numbers = {process.number for process in self._world.processes}
        if free := sorted(set(range(1, MEMBERS_MAX + 1)) - numbers):
            self._count("join")
            self._world.start(free[0])

    def _leave(self, step: Step) -> None:
        if (process := self._process(step)) is not None:
            self._count("leave")
            process.leaving = True
            if step.size < 0.7:
                self._world.later(step.chance * 60, lambda: self._world.start(process.number))

    def _silence(self, step: Step) -> None:
        """Cut one process off, or from a store all; others of its group go on, and may take over what it has."""
        if (process := self._process(step)) is None:
            return
        session = self._world.plan.config["kafka.session_timeout_ms"] / 1000
        seconds = session * (step.size if self.chance.random() < 0.3 else 1 + 4 * step.size)
        dropped = REQUESTS if self.chance.random() < 0.6 else ANSWERS
        has_store = self._world.bucket is not None or self._world.batches is not None
        service = STORE if has_store and step.chance < 0.5 else KAFKA
        everybody = self._world.processes if service == STORE and step.chance < 0.2 else [process]
        self._count("silence")
        for each in everybody:
            each.fall_silent(service, dropped, seconds)

    # --- Kafka ---

    def _commit_lost(self, step: Step) -> None:
        error = self.chance.choice(COMMIT_ERRORS)
        self._count("commit_lost")
        self._world.kafka.faults.fail_next("commit", error, 1 + int(step.size * 4), applied=step.chance < 0.5)

    def _request_lost(self, step: Step) -> None:
        self._count("request_lost")
        times = 1 + int(step.size * 3)
        if step.chance < 0.4:
            self._world.kafka.faults.fail_next("poll", self.chance.choice(POLL_ERRORS), times)
        else:
            self._world.kafka.faults.fail_next(self.chance.choice(QUESTIONS), errors.KafkaTimeoutError, times)

    def _dead_letters_lost(self, step: Step) -> None:
        self._count("dead_letters_lost")
        self._world.kafka.faults.fail_next(
            "flush", errors.KafkaTimeoutError, 1 + int(step.size * 3), applied=step.chance < 0.5
        )

    def _coordinator(self, step: Step) -> None:
        self._count("coordinator")
        self._world.kafka.coordinator_down()
        self._world.later(step.size * 30, self._world.kafka.coordinator_up)

    def _outage(self, step: Step) -> None:
        self._count("outage")
        self._world.kafka.broker_down()
        self._world.later(step.size * 60, self._world.kafka.broker_up)

    # --- logs ---

    def _partition(self, step: Step) -> TopicPartition:
        kafka = self._world.kafka
        found = [tp for topic in self._world.topics for tp in kafka.partitions(topic)]
        return found[int(step.chance * len(found))]

    def _compaction(self, step: Step) -> None:
        """Take random records of a partition, up to the last stable offset."""
        tp = self._partition(step)
        log = self._world.kafka.log(tp)
        gone = self._world.sources.remove(
            lambda sent: (
                (sent.topic, sent.partition) == tp and sent.offset < log.stable_end and self.chance.random() < step.size
            )
        )
        self._count("compaction")
        self._world.kafka.remove_offsets(tp.topic, tp.partition, [sent.offset for sent in gone])
        self._world.trace.note("world", f"compacts {' '.join(sent.place for sent in gone)}")

    def _retention(self, step: Step) -> None:
        """Move the start of a log: mostly among what is committed, at times anywhere."""
        tp = self._partition(step)
        log = self._world.kafka.log(tp)
        committed = self._world.kafka.committed(self._world.group).get(tp)
        top = log.stable_end if step.size < 0.4 else (committed.offset if committed is not None else 0)
        before = min(int(self.chance.random() * (top + 1)), log.stable_end)
        self._count("retention")
        log.delete_before(before)
        self._world.sources.remove(lambda sent: (sent.topic, sent.partition) == tp and sent.offset < before)
        self._world.trace.note("world", f"deletes {tp.topic}[{tp.partition}] below {before}")

    def _partitions(self, step: Step) -> None:
        kafka = self._world.kafka
        topic = self._partition(step).topic
        total = len(kafka.partitions(topic)) + 1
        if total <= PARTITIONS_MAX:
            self._count("partitions")
            kafka.add_partitions(topic, total)

    # --- bolts and disk ---

    def _bolt_fails(self, step: Step) -> None:
        if (process := self._process(step)) is not None:
            process.bolt_faults.extend([step.kind] * (1 + int(step.size * 3)))

    _bolt_raises = _bolt_loses = _bolt_fails

    def _sweep(self, step: Step) -> None:
        self._world.shared_folder.ahead_s = SWEEP_AFTER_S + 1
        self._world.later(60 + 120 * step.size, self._world.shared_folder.set_right)

    def _disk(self, step: Step) -> None:
        if (process := self._process(step)) is not None:
            process.disk_faults = 1 + int(step.size * 2)

    def _store(self, step: Step) -> None:
        if (process := self._process(step)) is not None:
            process.store_faults.extend(self.chance.choices(STORE_FAULTS, k=1 + int(step.size * 3)))
            process.store_fault_in = self.chance.randrange(AIMED_MAX)

    def _killer(self, step: Step) -> None:
        self._killers_due += 1

    def may_kill(self, tups: Iterable[Any]) -> bool:
        """Return whether :meth:`kills` is to be asked about each of a bolt's tuples; otherwise they have been seen."""
        if self._killers_due or self.killers:
            return True
        self._known.update(place for tup in tups for place in places_in(tup.values))
        return False

    def kills(self, process: SimulatedProcess, tup: Any) -> bool:
        """Return whether a bolt's tuple kills the process: the next record that no bolt has seen is such a one."""
        for place in places_in(tup.values):
            if self._killers_due and place not in self._known:
                self._killers_due -= 1
                self.killers.add(place)
            self._known.add(place)
            if place in self.killers:
                self._count("killer")
                process.note(f"dies of {place}")
                return True
        return False
