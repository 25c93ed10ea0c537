"""The demos with kills: each publishes the flights, runs a topology through kills, and compares the result.

    python -m demos.drill kafka|sql|s3|formats|batches|windows       # or: make kafka-demo, make sql-demo, …

Each run begins anew. ``--flights 20000`` takes fewer, ``--kills 3`` kills less; with ``make``, ``FLIGHTS=20000`` and
``KILLS=3``.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

from demos.audit import Finding, say_all
from demos.flights_data import TOTAL, Flights, load_flights
from demos.killed import KilledRun, count_of, kill_again_and_again
from demos.screen import Screen
from demos.shared import flights_topic, run_alone, started
from downspout.broker.embedded import EmbeddedKafka
from downspout.settings import folders

JOBS = {
    "kafka": "demos.to_kafka:KafkaDemo",
    "sql": "demos.to_sql:SqlDemo",
    "s3": "demos.to_s3:S3Demo",
    "formats": "demos.to_formats:FormatsDemo",
    "batches": "demos.to_batches:BatchDemo",
    "windows": "demos.to_windows:WindowsDemo",
}
Step = tuple[str, Callable[[], Iterable[Finding]]]
"""A step's description, and its iterator of findings."""


class Drill(ABC):
    """One run of a demo.

    Attributes:
        flights: set once they are published.
        topic: that they are in.
        opened: is closed at the end, before the broker stops.
    """

    NAME: ClassVar[str]
    KILLS: ClassVar[int] = 10  # The default of the command line
    PUBLISHES: ClassVar[str] = "Start Kafka and publish the flights"
    jars: Sequence[str] = ()  # sets of jars besides Kafka's
    flights: Flights
    topic: str

    def __init__(self, flights: int, kills: int, screen: Screen, seed: int | None = None) -> None:
        self.count, self.kills, self.screen = flights, kills, screen
        self.kafka = EmbeddedKafka(folders.home() / "demo" / "kafka-to-kafka")
        self.folder = (folders.home() / "demo" / self.NAME).absolute()
        self.random = random.Random(seed)
        self.opened = ExitStack()

    def run(self) -> int:
        """Do all steps; return the exit code: 0 if all is right, else 1."""
        right = True
        self.screen.step(1, self.PUBLISHES)
        with started(self.screen, self.kafka, *self.jars), self.opened:
            self.frame = load_flights(self.count)
            self.publish()
            for number, (title, find) in enumerate(self.steps(), 2):
                self.screen.step(number, title)
                right = say_all(self.screen, find()) and right
        self.screen.end_step()
        return 0 if right else 1

    def publish(self) -> None:
        """Publish the flights."""
        self.flights = Flights(self.frame)
        self.topic = flights_topic(self.screen, self.kafka.bootstrap, self.flights)

    @abstractmethod
    def steps(self) -> Iterable[Step]:
        """Yield the steps after publishing."""

    def run_killed(
        self,
        target: str,
        settings: Iterable[str],
        written: Callable[[], int],
        unit: str,
        most: int,
        *,
        log: str = "run",
        environment: Mapping[str, str] | None = None,
        pause_s: float = 0.0,
        after_kill: Callable[[], object] = lambda: None,
    ) -> Iterator[Finding]:
        """Run a topology to the end, through all kills; yield the number of kills and the time.

        Args:
            target: the topology's file.
            settings: of the run.
            written: returns the amount written so far.
            unit: its unit, and where it is.
            most: largest amount before the next kill.
            log: the log's name.
            environment: of the process.
            pause_s: longest delay of a kill after that.
            after_kill: called after each kill.
        """
        run = KilledRun(target, settings, self.folder / f"{log}.log", written, self.screen, environment)

        def say(pid: int) -> None:
            self.screen.say(f"kill -9 of process {pid}: {written():,} {unit}")
            after_kill()

        began = time.monotonic()
        kills = kill_again_and_again(
            run, self.kills, lambda: self.random.randint(1, most), say, lambda: self.random.uniform(0.0, pause_s)
        )
        seconds = time.monotonic() - began
        yield Finding(kills > 0 or not self.kills, f"{count_of(kills, self.kills)}, {seconds:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a demo; return its exit code, or 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="demos.drill", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--flights", type=int, default=TOTAL, help="how many flights, the earliest first")
    parser.add_argument("--kills", type=int, help="how often a process is killed (10; s3, formats, windows: 5)")
    parser.add_argument("--engines", nargs="+", choices=("local", "storm", "spark"), help="of batches: on which (all)")
    given = parser.parse_args(arguments)
    module, _, name = JOBS[given.job].partition(":")
    drill = getattr(importlib.import_module(module), name)
    more = {} if given.engines is None else {"engines": given.engines}
    screen = Screen()
    made = drill(given.flights, drill.KILLS if given.kills is None else given.kills, screen, **more)
    return run_alone(screen, made.run)


if __name__ == "__main__":
    sys.exit(main())
