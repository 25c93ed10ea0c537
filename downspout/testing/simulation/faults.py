"""Draw a world's plan from a seed: its size, the topology's settings, and its faults.

Each world draws its kinds of faults. So rare combinations of faults occur in some worlds, and faults that hide each
other occur alone in others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kafka import errors
from kafka.structs import TopicPartition

from downspout.sink.recovery import SWEEP_AFTER_S
from downspout.testing.simulation.fault_proxy import ANSWERS, KAFKA, REQUESTS, STORE, Killed
from downspout.testing.simulation.simulated_process import Fuse, SimulatedProcess, places_in

if TYPE_CHECKING:
    from downspout.testing.simulation.world import World

__all__ = ["CHUNKS", "KINDS", "FaultPlan", "Faults", "Step", "draw"]

KINDS: Mapping[str, str] = {
    "crash": "a process is killed at some call, and started again after a while",
    "pause": "a process stands still at some call, mostly for longer than its session, and wakes",
    "replaced": "a paused process is replaced by another of the same member number before it wakes",
    "join": "one more process joins the group",
    "leave": "a process ends in order, and maybe comes back",
    "commit_lost": "a commit is not applied, or applied and its answer lost",
    "request_lost": "a question to a broker is not answered, or a poll fails",
    "coordinator": "the group coordinator is away for a while, or moves",
    "outage": "no broker answers for a while",
    "dead_letters_lost": "a dead letter is not acknowledged, written or not",
    "bolt_fails": "a bolt fails a tuple",
    "bolt_raises": "a bolt raises on a tuple",
    "bolt_loses": "a bolt forgets a tuple, which so times out",
    "disk": "a step on the disk fails, done or not",
    "sweep": "for a while, who opens the sink's directory takes staged files for old ones, and sweeps them",
    "compaction": "records are taken out of the middle of a log",
    "retention": "the start of a log moves, at times past what was read",
    "partitions": "a topic gets one more partition",
    "killer": "a record comes that kills each process in which a bolt gets it",
    "silence": "one process hears nothing from Kafka or its store for a while; its requests arrive, or do not",
    "store": "a request to the object store is not done, done without an answer, done twice, or late",
}
"""Kinds of faults, injected at random times."""

OFTEN: Mapping[str, float] = {"crash": 2, "pause": 2, "killer": 0.2}
"""Relative frequencies: most bugs show between two deaths. Killers are rare, because each causes a dozen deaths."""

CHUNKS = 1 / 3  # Share of worlds in which tuples are chunks
STORES = 1 / 4  # Share of worlds in which sinks write to an object store


@dataclass(frozen=True)
class Step:
    """One step of a plan: its time in virtual seconds from the start, its kind, and random numbers for it."""

    at: float
    kind: str
    member: int = 0
    size: float = 0.0
    chance: float = 0.0


@dataclass(frozen=True)
class FaultPlan:
    """The plan of a world."""

    seed: int
    partitions: int  # of each topic
    members: int  # processes at the start
    cooperative: bool  # whether groups rebalance incrementally
    duration_s: float  # of records and faults; then the world calms down
    config: dict[str, Any]  # settings and Storm's keys, for all components
    transactions: float  # share of bursts that are transactions
    latency_s: float  # maximum time of a request
    store: bool = False  # whether the sinks write to an object store
    steps: list[Step] = field(default_factory=list)  # in order of time

    @property
    def kinds(self) -> set[str]:
        """The kinds of faults in it."""
        return {step.kind for step in self.steps} & KINDS.keys()


def draw(seed: int, without: tuple[str, ...] = ()) -> FaultPlan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed}/plan")
    duration = rng.uniform(60, 540)
    timeout = rng.choice([6, 6, 12, 30])
    config = {
        "topology.message.timeout.secs": timeout,
        "topology.max.spout.pending": rng.choice([None, None, 3, 20, 100]),
        "kafka.session_timeout_ms": rng.choice([6_000, 10_000]),
        "kafka.commit_period_ms": rng.choice([500, 2_000, 10_000, 30_000]),
        "kafka.poll_timeout_ms": rng.choice([200, 1_000, 3_000]),
        "kafka.poll_records_max": rng.choice([1, 5, 50, 500]),
        "kafka.emits_per_next_max": rng.choice([1, 7, 500]),
        "kafka.uncommitted_max": rng.choice([4, 20, 250_000]),
        "kafka.retries_max": rng.choice([3, 10]),
        "kafka.retry_cache_bytes": rng.choice([0, 8 * 1024 * 1024]),
        "kafka.drain_ms_max": rng.choice([0, 1_000, 5_000]),
        "kafka.on_data_loss": "earliest",
        "parquet.flush_rows": rng.choice([3, 10, 40, 100_000]),
        "parquet.flush_age_s": rng.choice([0.0, 0.5, 1.0, timeout / 3 if timeout < 30 else 2.0]),
        "parquet.compression": "none",
        "run.drain_s": rng.choice([1.0, 5.0]),
        **_mode(seed),
    }
    store = random.Random(f"{seed}/store").random() < STORES
    plan = FaultPlan(
        seed=seed,
        partitions=rng.randint(1, 4),
        members=rng.choice([1, 2, 2, 3]),
        cooperative=rng.random() < 0.5,
        duration_s=duration,
        config=config,
        transactions=rng.choice([0.0, 0.0, 0.3, 0.8]),
        # A flush makes a dozen requests to a store, and some worlds flush every row: it must not look stuck.
        latency_s=min(rng.choice([0.0, 0.005, 0.05, 0.3]), 0.05 if store else 1.0),
        store=store,
    )
    plan.steps.extend(_bursts(rng, duration))
    plan.steps.extend(requests(seed, plan) if plan.store and "store" not in without else [])
    kinds = [kind for kind in KINDS if kind not in without and kind != "store"]
    share = rng.choice([0.0, 0.15, 0.3, 0.5])
    for kind in kinds:
        if rng.random() < share * OFTEN.get(kind, 1):
            faults = _faults(rng, kind, duration)
            plan.steps.extend(faults)
            plan.steps.extend(_work_for(rng, faults))
    plan.steps.sort(key=lambda step: step.at)
    return plan


def _mode(seed: int) -> dict[str, Any]:
    """Draw records or chunks, from a separate random generator to keep the rest of a world as it was."""
    rng = random.Random(f"{seed}/mode")
    if rng.random() >= CHUNKS:
        return {"kafka.emit": "record"}
    return {
        "kafka.emit": "chunk",
        "kafka.chunk_records_max": rng.choice([1, 2, 7, 40, 10_000]),
        "kafka.chunk_bytes_max": rng.choice([1, 100, 500, 8 * 1024 * 1024]),
    }


def requests(seed: int, plan: FaultPlan) -> list[Step]:
    """Draw the faults of a store's requests, from a separate random generator."""
    rng = random.Random(f"{seed}/requests")
    if rng.random() < 0.2:
        return []
    faults = [fault for _ in range(3) for fault in _faults(rng, "store", plan.duration_s)]
    return faults + _work_for(rng, faults)


def of_batches(plan: FaultPlan, without: tuple[str, ...]) -> FaultPlan:
    """Adapt a plan to a topology of batches: one process, and stores with faults."""
    rng = random.Random(f"{plan.seed}/batches")
    config = {key: value for key, value in plan.config.items() if not key.startswith(("parquet.", "kafka.emit"))}
    config |= {
        # Without an interval, a world would mostly begin empty batches.
        "batch.emit_interval_ms": rng.choice([300, 1_000, 5_000]),
        "batch.max_active": rng.choice([1, 2, 5]),
        "batch.records_max": rng.choice([1, 3, 20, 10_000]),
        "batch.attempts_max": 1_000,
    }
    steps = plan.steps + (requests(plan.seed, plan) if "store" not in without else [])
    steps.sort(key=lambda step: step.at)
    return replace(plan, members=1, store=False, config=config, steps=steps)


def _bursts(rng: random.Random, duration: float) -> list[Step]:
    """Draw bursts of records, with quiet times between."""
    return [
        Step(rng.uniform(0, duration), "records", size=rng.choice([1, 1, 3, 8, 25]), chance=rng.random())
        for _ in range(rng.randint(2, 14))
    ]


def _work_for(rng: random.Random, faults: list[Step]) -> list[Step]:
    """Draw records shortly before many faults, so that these disturb some work."""
    return [
        Step(max(0.0, step.at - rng.uniform(0, 4)), "records", size=rng.choice([3, 10, 25]), chance=rng.random())
        for step in faults
        if rng.random() < 0.4
    ]


def _faults(rng: random.Random, kind: str, duration: float) -> list[Step]:
    """Draw faults of one kind, scattered or clustered."""
    count = 1 if kind == "killer" else rng.choice([1, 1, 2, 4]) * int(OFTEN.get(kind, 1))
    center, width = rng.uniform(0, duration), rng.choice([5.0, duration])
    return [
        Step(
            min(max(0.0, center + rng.uniform(-width, width)), duration),
            kind,
            member=rng.randint(1, 3),
            size=rng.random(),
            chance=rng.random(),
        )
        for _ in range(count)
    ]


# --- each kind of fault ---

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
"""A fault strikes at one of this many next calls; flushing a file takes about 12."""
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
        """Inject a fault, now or soon."""
        self._world.trace.note("world", step.kind)
        getattr(self, f"_{step.kind}")(step)

    def stop(self) -> None:
        """End all faults."""
        self._world.kafka.faults.clear()
        self._world.kafka.broker_up()
        self._world.kafka.coordinator_up()
        self._world.shared_folder.set_right()

    def _process(self, step: Step) -> SimulatedProcess | None:
        """Choose a process that is neither in the middle of a turn nor leaving."""
        free = [process for process in self._world.processes if not process.busy and not process.leaving]
        return free[step.member % len(free)] if free else None

    def _count(self, kind: str) -> None:
        self._world.injected[kind] += 1

    # --- processes ---

    def _crash(self, step: Step) -> None:
        if (process := self._process(step)) is not None:
            process.fuse = self._fuse(step, self._kill)

    def _fuse(self, step: Step, action: Callable[[SimulatedProcess], None]) -> Fuse:
        """Aim at the steps of a flush, at commits, or at any effect."""
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
        """Start another process with the same member number, as if the first were dead."""
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
        """Cut off one process, or all from a store; others of its group continue, and may take over."""
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
        """Remove random records of a partition below the last stable offset."""
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
        """Move the start of a log, mostly within the committed part, sometimes anywhere."""
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
        """Return whether to ask :meth:`kills` about each tuple of a bolt; otherwise note that it has seen them."""
        if self._killers_due or self.killers:
            return True
        self._known.update(place for tup in tups for place in places_in(tup.values))
        return False

    def kills(self, process: SimulatedProcess, tup: Any) -> bool:
        """Return whether a tuple kills the process: a due killer becomes the next record that no bolt has seen."""
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
