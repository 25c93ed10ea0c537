"""The main job on a real Storm: Kafka → `sparse submit` → Parquet, and an audit of it.

    python -m topologies.storm_demo            # or: make storm-demo

1. starts a Kafka broker and publishes the flights, as ``make demo`` does;
2. starts a single-node Storm (ZooKeeper, nimbus, supervisor);
3. submits ``flight_delays.py`` with stock streamparse and waits until the consumer group's lag is 0;
4. audits both Parquet directories and prints what nimbus counted;
5. stops what it started.

Each run begins anew: with a consumer group and a directory (``output/storm``) of its own. All flights are in the
broker that ``make demo`` uses. Fewer (``make storm-demo FLIGHTS=1000``) are in one of their own, with its data in
``.downspout/demo/kafka-1000``: in one topic they would be too few for the one demo or too many for the other.
``FRESH=1`` deletes the topic first and publishes it anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from downspout import config, jars
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import DownspoutError, StormError
from downspout.kafka.client import KafkaCluster
from downspout.kafka.embedded import EmbeddedKafka, default_directory
from downspout.kafka.port import Cluster, cluster_for
from downspout.parquet.audit import audit
from downspout.storm import programs, stats
from downspout.storm.node import StormNode
from downspout.storm.node import default_directory as storm_directory
from downspout.storm.stats import TopologyStats
from topologies import demo_state, flights_data
from topologies.demo_screen import Screen
from topologies.flights_data import Flights, load_flights

NAME = "flight_delays"
STALLED_S_MAX = 180.0
"""Without any progress for so long the demo gives up."""
COUNTERS_S_MAX = 30.0
"""Nimbus hears from the workers every few seconds; it may know less than Kafka for so long."""
POLL_S = 1.0


class StormDemo:
    """One run of the demo."""

    def __init__(self, output: Path, flights: int, screen: Screen, fresh: bool = False) -> None:
        self.output, self.flights, self.screen, self.fresh = output.absolute(), flights, screen, fresh
        self.group = f"storm-demo-{uuid.uuid4().hex[:8]}"

    def run(self) -> int:
        """Do all steps; return the exit code."""
        with self.broker() as bootstrap:
            cluster = cluster_for(bootstrap)
            with self.storm() as node:
                self.submit(node, bootstrap)
                figures = self.wait(node)
                right = self.audit(cluster)
                self.screen.console.print(stats.render(figures), markup=False)
            self.screen.say("Storm is stopped")
        self.screen.end_step()
        return 0 if right else 1

    @contextmanager
    def broker(self) -> Iterator[str]:
        """Give the address of a broker that holds the flights; stop it at the end, unless it ran before."""
        self.screen.step(1, "Start Kafka and publish the flights")
        for name in ("kafka", "storm"):
            with self.screen.busy(
                f"looking for the jars of {name}; the first time they are fetched, in about a minute"
            ):
                jars.resolve(name, progress=lambda line: None)
        kafka = EmbeddedKafka(broker_directory(self.flights))
        runs = kafka.status().broker is not None
        with self.screen.busy("starting the broker"):
            bootstrap = kafka.bootstrap if runs else kafka.start().bootstrap
        try:
            self.publish(bootstrap)
            yield bootstrap
        finally:
            if not runs:
                kafka.stop()

    def publish(self, bootstrap: str) -> None:
        """Bring the flights into the topic."""
        if self.fresh and KafkaCluster(bootstrap).delete_topic(flights_data.TOPIC):
            self.screen.say("deleted the topic")
        flights = Flights(load_flights(self.flights))
        with self.screen.counting("flights") as progress:
            published = flights_data.publish(
                cluster_for(bootstrap), flights, progress=progress, start_over=start_over(self.flights)
            )
        self.screen.say(f"{published.sent:,} flights published, {published.before:,} were there, at {bootstrap}")

    @contextmanager
    def storm(self) -> Iterator[StormNode]:
        """Give a Storm whose workers keep relative directories in ours; stop it at the end."""
        self.screen.step(2, "Start Storm: ZooKeeper, nimbus, supervisor")
        shutil.rmtree(self.output, ignore_errors=True)
        node = StormNode(storm_directory(), project=self.output)
        with self.screen.busy("starting"):
            node.start()
        try:
            self.screen.say(f"Storm {jars.STORM_VERSION}, its nimbus at {node.status().nimbus}")
            yield node
        finally:
            node.stop()

    def submit(self, node: StormNode, bootstrap: str) -> None:
        """Submit the topology with stock streamparse."""
        self.screen.step(3, f"sparse submit -n {NAME}, and wait for lag 0")
        sparse = Path(sys.executable).with_name("sparse")
        done = subprocess.run(
            [str(sparse), "submit", "-n", NAME, *self.options(bootstrap)],
            env={**os.environ, **programs.environment(node)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StormError(f"sparse submit failed:\n{done.stdout}{done.stderr}", cure="`downspout storm logs`")

    def options(self, bootstrap: str) -> list[str]:
        """Return what is said to the topology besides what its file says."""
        return ["-o", f"kafka.group={self.group}", "-o", f"kafka.bootstrap={bootstrap}"]

    def wait(self, node: StormNode) -> TopologyStats:
        """Wait until all is committed, then until nimbus has counted it; return the figures.

        Raises:
            StormError: nothing moves any more.
        """
        clock = SYSTEM_CLOCK
        left, moved_at = self.flights, clock.monotonic()
        with self.screen.counting("flights") as progress:
            while left:
                clock.sleep(POLL_S)
                figures = stats.collect(*node.address, NAME)
                now_left = sum(each.lag for each in figures.lag)
                if now_left != left:
                    left, moved_at = now_left, clock.monotonic()
                elif clock.monotonic() - moved_at > STALLED_S_MAX:
                    raise StormError(
                        f"The lag stays at {left:,}:\n{stats.render(figures)}\n", cure="`downspout storm logs`"
                    )
                progress(self.flights - left, self.flights)
        deadline = clock.monotonic() + COUNTERS_S_MAX
        while figures.component("spout").acked < self.flights and clock.monotonic() < deadline:
            clock.sleep(POLL_S)
            figures = stats.collect(*node.address, NAME)
        return figures

    def audit(self, cluster: Cluster) -> bool:
        """Compare the files with Kafka; return whether they are exact."""
        self.screen.step(4, "Audit, and what nimbus counted")
        right = True
        for name in demo_state.SINKS:
            with self.screen.busy("reading every row"):
                report = audit(self.output / "output" / name, cluster=cluster)
            right = right and report.exit_code == 0
            mark = "[green]✓[/green]" if report.exit_code == 0 else "[red]✗[/red]"
            self.screen.say(f"{mark} {name}: {report.verdict}")
        return right


def broker_directory(flights: int) -> Path:
    """Return where the broker that holds so many flights has its data."""
    return default_directory() if flights == flights_data.TOTAL else config.home() / "demo" / f"kafka-{flights}"


def start_over(flights: int) -> str:
    """Return the command that publishes so many flights anew."""
    return "make storm-demo" + (f" FLIGHTS={flights}" if flights != flights_data.TOTAL else "") + " FRESH=1"


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= flights_data.TOTAL:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {flights_data.TOTAL}")
    return int(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 right, 1 the audit found differences, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="topologies.storm_demo", description="The main job on a real Storm.")
    parser.add_argument("--output", type=Path, default=Path("output/storm"), help="where the files go (output/storm)")
    parser.add_argument("--fresh", action="store_true", help="delete the topic first (it is also that of `make demo`)")
    parser.add_argument(
        "--flights", type=_count, default=flights_data.TOTAL, help="how many flights, the earliest first"
    )
    given = parser.parse_args(arguments)
    screen = Screen()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with demo_state.only_one():
            return StormDemo(given.output, given.flights, screen, given.fresh).run()
    except KeyboardInterrupt:
        screen.console.print("\n   Interrupted; what was started is stopped.")
        return 130
    except DownspoutError as error:
        screen.console.print(f"\n   [red]{type(error).__name__}[/red]: {error}", markup=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
