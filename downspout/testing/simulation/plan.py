"""From a seed to the plan of a world: how large it is, how the topology is set, and what goes wrong when.

Not every world has every kind of fault: each draws which kinds it has. Faults that are rare together, or that hide
each other, so meet in some worlds and are alone in others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["CHUNKS", "KINDS", "FaultPlan", "Step", "draw"]

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
    "silence": "one process hears nothing of Kafka or of its store for a while; its requests arrive, or do not",
    "store": "a request to the object store is not done, done without an answer, done twice, or late",
}
"""Kinds of faults, and what each is. They are injected at random moments."""

OFTEN: Mapping[str, float] = {"crash": 2, "pause": 2, "killer": 0.2}
"""Kinds that are so many times as frequent as others: what is interesting happens between two deaths. Killers are
so seldom because each takes a dozen deaths."""

CHUNKS = 1 / 3  # Share of the worlds in which tuples are chunks
STORES = 1 / 4  # Share of those in which sinks write to an object store


@dataclass(frozen=True)
class Step:
    """One thing that the world does: when (virtual seconds from the start), what, and chance's numbers for it."""

    at: float
    kind: str
    member: int = 0
    size: float = 0.0
    chance: float = 0.0


@dataclass(frozen=True)
class FaultPlan:
    """What a world is."""

    seed: int  # of everything
    partitions: int  # of each topic
    members: int  # processes at the start
    cooperative: bool  # whether groups rebalance incrementally
    duration_s: float  # how long records and faults come; then the world calms down
    config: dict[str, Any]  # settings and Storm's keys, for all components
    transactions: float  # share of the bursts of records that are written in transactions
    latency_s: float  # longest time that a request takes
    store: bool = False  # whether the sinks write to an object store
    steps: list[Step] = field(default_factory=list)  # what happens, in the order of time

    @property
    def kinds(self) -> set[str]:
        """Which kinds of faults there are."""
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
        # A flush is a dozen requests to a store, and some worlds flush every row: it must not look as if it were stuck.
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
    """Say whether tuples are records or chunks; by chance of its own, so that all else in a world is as it was."""
    rng = random.Random(f"{seed}/mode")
    if rng.random() >= CHUNKS:
        return {"kafka.emit": "record"}
    return {
        "kafka.emit": "chunk",
        "kafka.chunk_records_max": rng.choice([1, 2, 7, 40, 10_000]),
        "kafka.chunk_bytes_max": rng.choice([1, 100, 500, 8 * 1024 * 1024]),
    }


def requests(seed: int, plan: FaultPlan) -> list[Step]:
    """Say what becomes of requests to a store; by chance of its own, too."""
    rng = random.Random(f"{seed}/requests")
    if rng.random() < 0.2:
        return []
    faults = [fault for _ in range(3) for fault in _faults(rng, "store", plan.duration_s)]
    return faults + _work_for(rng, faults)


def of_batches(plan: FaultPlan, without: tuple[str, ...]) -> FaultPlan:
    """Return the plan for a topology of batches: one process, and stores that may not answer."""
    rng = random.Random(f"{plan.seed}/batches")
    config = {key: value for key, value in plan.config.items() if not key.startswith(("parquet.", "kafka.emit"))}
    config |= {
        # Without a pause, a world would do little else than begin empty batches.
        "batch.emit_interval_ms": rng.choice([300, 1_000, 5_000]),
        "batch.max_active": rng.choice([1, 2, 5]),
        "batch.records_max": rng.choice([1, 3, 20, 10_000]),
        "batch.attempts_max": 1_000,
    }
    steps = plan.steps + (requests(plan.seed, plan) if "store" not in without else [])
    steps.sort(key=lambda step: step.at)
    return replace(plan, members=1, store=False, config=config, steps=steps)


def _bursts(rng: random.Random, duration: float) -> list[Step]:
    """Records come in bursts, with quiet times between."""
    return [
        Step(rng.uniform(0, duration), "records", size=rng.choice([1, 1, 3, 8, 25]), chance=rng.random())
        for _ in range(rng.randint(2, 14))
    ]


def _work_for(rng: random.Random, faults: list[Step]) -> list[Step]:
    """A fault is interesting where there is work to disturb: records come shortly before, mostly."""
    return [
        Step(max(0.0, step.at - rng.uniform(0, 4)), "records", size=rng.choice([3, 10, 25]), chance=rng.random())
        for step in faults
        if rng.random() < 0.4
    ]


def _faults(rng: random.Random, kind: str, duration: float) -> list[Step]:
    """Some of one kind, mostly far apart, at times together."""
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
