"""Shared code of the demos: exit codes; and for Storm and Spark, a broker with the flights and the command line.

The broker of ``make demo`` holds all flights. A smaller number (``FLIGHTS=1000``) needs another broker, with its data
in ``.downspout/demo/kafka-1000``, because one topic cannot have the right number for both.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pandas as pd

from demos import flights_data, state
from demos.flights_data import TOPIC, TOTAL, Flights, load_flights
from demos.screen import Screen
from downspout.broker.embedded import EmbeddedKafka, default_directory
from downspout.errors import DownspoutError
from downspout.kafka.client import KafkaCluster
from downspout.kafka.clusters import cluster_for
from downspout.settings import folders
from downspout.system import jars


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
        output: where the files go.
        flights: how many, the earliest first.
        fresh: whether to delete the topic first.
        command: what starts this demo.
    """

    output: Path
    flights: int
    fresh: bool
    command: str

    @property
    def start_over(self) -> str:
        """The command that publishes this number of flights anew."""
        count = f" FLIGHTS={self.flights}" if self.flights != TOTAL else ""
        return f"{self.command}{count} FRESH=1"


@dataclass(frozen=True)
class Published:
    """The flights in Kafka.

    Attributes:
        bootstrap: where.
        frame: as the package has them, in the order of publishing.
        flights: as records.
    """

    bootstrap: str
    frame: pd.DataFrame
    flights: Flights


@contextmanager
def flights_in_kafka(screen: Screen, options: Options, programs: Sequence[str]) -> Iterator[Published]:
    """Yield a broker with the flights; stop it at the end, unless it ran before.

    Args:
        screen: says what is done; the step has begun.
        options: of the command line.
        programs: whose jars the demo needs.
    """
    for name in programs:
        jars.resolve(name, progress=screen.say)
    kafka = EmbeddedKafka(broker_directory(options.flights))
    runs = kafka.status().broker is not None
    with screen.busy("starting the broker"):
        bootstrap = kafka.bootstrap if runs else kafka.start(progress=lambda line: None).bootstrap
    try:
        yield publish(screen, options, bootstrap)
    finally:
        if not runs:
            kafka.stop()


def publish(screen: Screen, options: Options, bootstrap: str) -> Published:
    """Publish the flights that the topic lacks."""
    if options.fresh and KafkaCluster(bootstrap).delete_topic(TOPIC):
        screen.say("deleted the topic")
    frame = load_flights(options.flights)
    flights = Flights(frame)
    with screen.counting("flights") as progress:
        published = flights_data.publish(
            cluster_for(bootstrap), flights, progress=progress, start_over=options.start_over
        )
    screen.say(f"{published.sent:,} flights published, {published.before:,} were there, at {bootstrap}")
    return Published(bootstrap, frame, flights)


@contextmanager
def started(screen: Screen, kafka: EmbeddedKafka, *more: str) -> Iterator[None]:
    """Start a demo's own broker, and stop it at the end.

    Args:
        screen: says what is done; the step has begun.
        kafka: the broker.
        more: sets of jars that the demo needs besides.
    """
    for name in ("kafka", *more):
        jars.resolve(name, progress=screen.say)
    with screen.busy("starting the broker"):
        kafka.start(progress=lambda line: None)
    try:
        yield
    finally:
        kafka.stop()


def flights_topic(screen: Screen, bootstrap: str, flights: Flights) -> str:
    """Publish the flights to a topic for this number of them, on the broker for the drills; return it."""
    topic = TOPIC if len(flights) == TOTAL else f"{TOPIC}-{len(flights)}"
    with screen.counting("flights") as progress:
        sent = flights_data.publish(
            cluster_for(bootstrap), flights, topic, progress, "rm -r .downspout/demo/kafka-to-kafka"
        )
    screen.say(f"{sent.sent:,} flights published, {sent.before:,} were there, at {bootstrap}")
    return topic


def broker_directory(flights: int) -> Path:
    """Return the data directory of the broker for this number of flights."""
    return default_directory() if flights == TOTAL else folders.home() / "demo" / f"kafka-{flights}"


def parse(arguments: Sequence[str] | None, *, command: str, about: str, output: str) -> Options:
    """Parse the command line.

    Args:
        arguments: without the program; None: the process's.
        command: what starts this demo, as in ``make storm-demo``.
        about: what it is.
        output: where the files go, if nothing else is said.
    """
    parser = argparse.ArgumentParser(
        prog=f"demos --on {command.rpartition(' ')[2].partition('-')[0]}", description=about
    )
    parser.add_argument("--output", type=Path, default=Path(output), help=f"where the files go ({output})")
    parser.add_argument("--fresh", action="store_true", help="delete the topic first (it is also that of `make demo`)")
    parser.add_argument("--flights", type=_count, default=TOTAL, help="how many flights, the earliest first")
    given = parser.parse_args(arguments)
    return Options(given.output, given.flights, given.fresh, command)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= TOTAL:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {TOTAL}")
    return int(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run_alone(
    screen: Screen, demo: Callable[[], int], interrupted: str = "Interrupted; what was started is stopped."
) -> int:
    """Run a demo unless another one runs; return its exit code, 130 if interrupted, or that of its error.

    Args:
        screen: where the end is said.
        demo: does it all.
        interrupted: what is said then.
    """
    signal.signal(signal.SIGTERM, _interrupt)  # so that `kill` also stops the broker
    try:
        with state.only_one():
            return demo()
    except KeyboardInterrupt:
        screen.console.print(f"\n   {interrupted}")
        return 130
    except DownspoutError as error:
        screen.console.print(f"\n   [red]{type(error).__name__}[/red]: {error}", markup=True)
        return error.exit_code
