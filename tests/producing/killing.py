"""Processes that run a topology from Kafka to Kafka, and die or freeze at a step of their work with Kafka."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import streamparse
from streamparse import Topology

from bolts.kafka import KafkaBolt
from downspout.errors import DownspoutError
from downspout.kafka import clusters
from downspout.testing import ROUND_S, FakeKafka, Killed, VirtualClock, run_topology
from spouts.kafka import KafkaSpout

IN, OUT, GROUP = "in", "out", "copies"
STEPS = ("transactional_producer", "begin", "send", "flush", "send_offsets", "commit", "abort", "committed", "poll")
"""Calls that are steps."""
SENDS_EVERY = 5
"""Only every so many-th send is one: one is like the next."""
_worlds = itertools.count()


class HastyClock(VirtualClock):
    """Virtual time in large steps: who waits for a session to end need not look a hundred times."""

    def sleep(self, seconds: float) -> None:
        """Let at least a fifth of a second pass, unless it is the time that a round takes."""
        self.advance(seconds if seconds <= ROUND_S else max(seconds, 0.2))


class Split(streamparse.Bolt):
    """Two results of each record; a record ``bad…`` fails between them."""

    outputs: ClassVar[list[str]] = ["origin", "key", "message"]

    def process(self, tup: Any) -> None:
        value = tup.values.value
        for number in range(2):
            self.emit([tup.values.origin.child("split", number), value, f"{value}.{number}"])
            if value.startswith("bad"):
                raise ValueError(value)


class Copies(Topology):
    lines = KafkaSpout.spec(
        topics=[IN], group=GROUP, fields=["origin", "value"], transaction_ms=100, poll_records_max=4, retries_max=1
    )
    split = Split.spec(inputs=[lines])
    out = KafkaBolt.spec(inputs=[split], topic=OUT, transactional=True, auto_create=False)


class Life:
    """One process: its calls of Kafka are steps, and before and after each something may happen to it.

    Args:
        world: what outlives it.
        at: called with the number of each step, twice: before it, and (as its half) when it took effect.
    """

    def __init__(self, world: World, at: Callable[[float, str], None]) -> None:
        self.world, self._at = world, at
        self.steps = 0
        self.is_dead = False
        self._sends = 0

    def run(self) -> bool:
        """Run to the end of the log; return whether it got there, and was not killed or ended by another one."""
        bootstrap = f"fake://life-{next(_worlds)}"
        clusters.register(bootstrap, Guarded(self, self.world.kafka))
        try:
            run_topology(
                self.world.topology,
                config={"kafka.bootstrap": bootstrap, "topology.message.timeout.secs": 30, **self.world.settings},
                clock=self.world.clock,
            )
        except (Killed, DownspoutError):
            return False
        finally:
            clusters.unregister(bootstrap)
        return True

    def step(self, name: str) -> Callable[[], None]:
        self.check()
        if name not in STEPS:
            return lambda: None
        if name == "send":
            self._sends += 1
            if self._sends % SENDS_EVERY:
                return lambda: None
        self.steps += 1
        number = self.steps
        self._at(number, name)
        self.check()

        def end() -> None:
            self._at(number + 0.5, name)
            self.check()

        return end

    def check(self) -> None:
        if self.is_dead:
            raise Killed


class Guarded:
    """Hands each call on, as a step of a life."""

    def __init__(self, life: Life, real: Any) -> None:
        self._life, self._real = life, real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            end = self._life.step(name)
            answer = found(*args, **options)
            end()
            return Guarded(self._life, answer) if name in ("consumer", "producer", "transactional_producer") else answer

        return call

    def __enter__(self) -> Guarded:
        self._real.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._real.__exit__(*error)


class World:
    """Kafka, and what must be in it in the end."""

    def __init__(self, topology: Any = Copies, **settings: Any) -> None:
        self.topology, self.settings = topology, settings
        self.clock = HastyClock()
        self.kafka = FakeKafka(f"killing-{next(_worlds)}", self.clock)
        self.kafka.create_topic(IN, 2)
        self.kafka.create_topic(OUT, 2)
        for number in range(16):
            value = b"bad" if number == 9 else b"%d" % number
            self.kafka.produce(IN, value, partition=number % 2)

    def live(self, at: Callable[[float, str], None] = lambda number, name: None) -> tuple[Life, bool]:
        """Let a process run; return it, and whether it got to the end."""
        life = Life(self, at)
        return life, life.run()

    def is_open(self) -> bool:
        """Return whether a transaction is open, with records in it or not."""
        return any(each.under_way is not None for each in self.kafka.transactional.values())

    def violations(self) -> list[str]:
        """Return what is wrong now: results that are there twice, not at all, or that should not be."""
        found = self._committed(OUT)
        expected = Counter(f"{n}.{half}" for n in range(16) if n != 9 for half in range(2))
        wrong = [
            f"{value}: {found[value]} times" for value in sorted(found | expected) if found[value] != expected[value]
        ]
        dead = self._committed(f"{GROUP}.dead-letters")
        return wrong + ([] if dead == {"bad": 1} else [f"dead letters: {dict(dead)}"])

    def _committed(self, topic: str) -> Counter[str]:
        return Counter((record.value or b"").decode() for record in self.kafka.records(topic))
