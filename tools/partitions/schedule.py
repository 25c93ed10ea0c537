"""The schedule of faults (order, victims, durations), a function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORKERS, BROKERS = ("w1", "w2", "w3"), ("b1", "b2", "b3")
STORES = {"disk": None, "s3": "s3", "kafka": None, "sql": "pg"}
"""By sink, the machine that holds the output, besides brokers."""
NAMES = {
    "cut": "network cut, both ways",
    "one-way": "network cut, one way",
    "flapping": "network cut, both ways, on and off",
    "pause": "SIGSTOP of a machine",
    "clock": "clock jump, and back",
    "slow": "slow disk",
    "full": "full disk",
}
WITH_SHIM = frozenset({"clock", "slow", "full"})
"""Faults that need a compiler, for ``shim.c``: the last one since nobody would know whether it was met."""
SHORT_S, LONG_S = (1.0, 5.0), (11.0, 25.0)
"""Shorter than a session of 6 s, and longer than a transaction may take, which is 10 s."""
PAUSE_S = (1.0, 8.0)
FLAP_S = (0.3, 2.0)
CLOCK_S = (60.0, 3600.0)
DELAY_S = (0.02, 0.3)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: a key of :data:`NAMES`.
        victim: the machine.
        others: those that it is cut off from.
        after_s: so long after the end of the fault before.
        lasts_s: how long.
        flaps_s: how long a flapping network is cut, and works, in turn.
        by: seconds that a clock jumps by, or that each write of a slow disk takes.
        inwards: whether a one-way cut drops what the others send, and not what the victim does.
    """

    kind: str
    victim: str
    others: Sequence[str] = ()
    after_s: float = 0.0
    lasts_s: float = 0.0
    flaps_s: Sequence[float] = ()
    by: float = 0.0
    inwards: bool = False

    def __str__(self) -> str:
        who = f"{self.victim} and {', '.join(self.others)}" if self.others else self.victim
        way = {"one-way": ", to it" if self.inwards else ", from it", "clock": f" by {self.by:.0f} s"}.get(
            self.kind, ""
        )
        return f"{self.kind} of {who}{way}, {self.lasts_s:.1f} s"


def make_schedule(sink: str, seed: int, seconds: float, *, shim: bool = True) -> list[Fault]:
    """Return the faults of so many seconds, in their order. All kinds come before one of them comes again.

    >>> faults = make_schedule("sql", 1, 600)
    >>> faults == make_schedule("sql", 1, 600), {fault.kind for fault in faults} == set(NAMES)
    (True, True)
    """
    chance = random.Random(f"{sink} {seed}")
    store = STORES[sink]
    kinds = [kind for kind in NAMES if shim or kind not in WITH_SHIM]
    if sink not in ("disk", "sql"):
        kinds = [kind for kind in kinds if kind != "full"]
    faults: list[Fault] = []
    bag: list[str] = []
    left_s = seconds
    while left_s > 0:
        if not bag:
            bag = chance.sample(kinds, len(kinds))
        fault = _fault(bag.pop(), store, chance)
        faults.append(fault)
        left_s -= fault.after_s + fault.lasts_s
    return faults


def pause_brokers(times: int) -> list[Fault]:
    """Return pauses of 20 s, of one broker after the other.

    >>> [str(fault) for fault in pause_brokers(4)][-1]
    'pause of b1, 20.0 s'
    """
    return [Fault("pause", BROKERS[number % len(BROKERS)], (), 10.0, 20.0) for number in range(times)]


def _fault(kind: str, store: str | None, chance: random.Random) -> Fault:
    after_s, lasts_s = chance.uniform(*PAUSE_S), chance.uniform(*chance.choice((SHORT_S, LONG_S)))
    everybody = [*WORKERS, *BROKERS, *([store] if store else [])]
    if kind in ("cut", "one-way", "flapping"):
        victim = chance.choice(everybody)
        others = [name for name in everybody if name != victim and not (victim in WORKERS and name in WORKERS)]
        if chance.random() < 0.5:
            others = [chance.choice(others)]
        flaps = tuple(chance.uniform(*FLAP_S) for _ in range(100)) if kind == "flapping" else ()
        return Fault(kind, victim, tuple(others), after_s, lasts_s, flaps, inwards=chance.random() < 0.5)
    if kind == "pause":
        return Fault(kind, chance.choice(everybody), (), after_s, lasts_s)
    if kind == "clock":
        by = chance.choice((-1, 1)) * chance.uniform(*CLOCK_S)
        return Fault(kind, chance.choice((*WORKERS, *BROKERS)), (), after_s, lasts_s, by=by)
    if kind == "slow":
        return Fault(kind, chance.choice(everybody), (), after_s, lasts_s, by=chance.uniform(*DELAY_S))
    return Fault(kind, store or chance.choice(WORKERS), (), after_s, lasts_s)
