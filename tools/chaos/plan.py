"""The plan of faults (order, victims, durations), a function of the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

MEMBERS = 3
FULL = {"kill": 190, "join": 17, "leave": 17, "stop": 16, "restart": 10}
"""On one broker."""
FULL_CLUSTER = {"kill": 10, "leader": 5, "coordinator": 5}
"""On three."""
NAMES = {
    "kill": "kill -9 of a process",
    "join": "a fourth process joins",
    "leave": "a process leaves in order",
    "stop": "SIGSTOP longer than the session timeout",
    "restart": "broker restart (in turn in order and by kill -9)",
    "leader": "kill -9 of a partition's leader",
    "coordinator": "kill -9 of the group's coordinator",
}
BROKER_FAULTS = frozenset({"restart", "leader", "coordinator"})
LONG_S = (11.0, 16.0)
"""Longer than the session timeout of 10 s, so that others take the partitions."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: a key of :data:`NAMES`.
        victim: number of a process, or of a partition (``leader``).
        pause_s: random delay after everything is ready for it.
        down_s: time until a killed process is restarted, or a stopped one continues.
        eager: does not wait for the recovery from the previous fault.
        hard: a broker restart by kill -9.
    """

    kind: str
    victim: int
    pause_s: float
    down_s: float
    eager: bool = False
    hard: bool = False


def make_plan(counts: dict[str, int], seed: int, partitions: int = 4) -> list[Fault]:
    """Return the faults in the order in which they happen.

    >>> plan = make_plan({"kill": 3, "restart": 2}, seed=1)
    >>> sorted(fault.kind for fault in plan), plan == make_plan({"kill": 3, "restart": 2}, seed=1)
    (['kill', 'kill', 'kill', 'restart', 'restart'], True)
    """
    chance = random.Random(seed)
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    chance.shuffle(kinds)
    hard = False
    plan = []
    for kind in kinds:
        hard = not hard if kind == "restart" else hard
        victim = chance.randrange(partitions) if kind == "leader" else chance.randint(1, MEMBERS)
        plan.append(
            Fault(
                kind,
                victim,
                pause_s=chance.uniform(0.0, 1.5),
                down_s=_down_s(kind, chance),
                eager=kind == "kill" and chance.random() < 0.3,
                hard=kind == "restart" and hard,
            )
        )
    return plan


def _down_s(kind: str, chance: random.Random) -> float:
    if kind == "stop":
        return chance.uniform(*LONG_S)
    if kind in BROKER_FAULTS:
        return chance.uniform(0.0, 4.0)
    if kind == "join":
        return chance.uniform(3.0, 8.0)
    # Usually the process is back at once; sometimes only after others have taken over.
    return chance.choices([0.0, chance.uniform(0.0, 3.0), chance.uniform(*LONG_S)], weights=[80, 14, 6])[0]


def scaled(counts: dict[str, int], share: float) -> dict[str, int]:
    """Return a smaller plan with all kinds of faults in it.

    >>> scaled({"kill": 190, "join": 17}, 0.1), scaled({"leader": 5}, 0.01)
    ({'kill': 19, 'join': 2}, {'leader': 1})
    """
    return {kind: max(1, round(count * share)) for kind, count in counts.items()}
