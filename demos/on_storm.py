"""The main job on a real Storm: Kafka → `sparse submit` → Parquet, and an audit of it.

    python -m demos --on storm            # or: make storm-demo

1. starts a Kafka broker and publishes the flights, as ``make demo`` does;
2. starts a single-node Storm (ZooKeeper, nimbus, supervisor);
3. submits ``flight_delays.py`` with stock streamparse and waits until the consumer group's lag is 0;
4. audits both Parquet directories and prints nimbus's counts;
5. stops all that it started.

Each run starts with a new consumer group and a new directory (``output/storm``). ``FLIGHTS=1000`` takes fewer,
``FRESH=1`` deletes the topic first and publishes it anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from demos import state
from demos.screen import Screen
from demos.shared import Options, flights_in_kafka, parse, run_alone
from downspout.audit.audit import audit
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import StormError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import Cluster
from downspout.storm import program, stats
from downspout.storm.node import StormNode
from downspout.storm.node import default_directory as storm_directory
from downspout.storm.stats import TopologyStats
from downspout.system import jars

NAME = "flight_delays"
STALLED_S_MAX = 180.0
"""The demo stops after this time without progress."""
COUNTERS_S_MAX = 30.0
"""Workers report to nimbus every few seconds, so its counts may lag behind Kafka this long."""
POLL_S = 1.0


class StormDemo:
    """One run of the demo."""

    def __init__(self, options: Options, screen: Screen) -> None:
        self.given, self.screen = options, screen
        self.output, self.flights = options.output.absolute(), options.flights
        self.group = f"storm-demo-{uuid.uuid4().hex[:8]}"

    def run(self) -> int:
        """Do all steps; return the exit code."""
        self.screen.step(1, "Start Kafka and publish the flights")
        with flights_in_kafka(self.screen, self.given, ("kafka", "storm")) as published:
            with self.storm() as node:
                self.submit(node, published.bootstrap)
                figures = self.wait(node)
                right = self.audit(cluster_for(published.bootstrap))
                self.screen.console.print(stats.render(figures), markup=False)
            self.screen.say("Storm is stopped")
        self.screen.end_step()
        return 0 if right else 1

    @contextmanager
    def storm(self) -> Iterator[StormNode]:
        """Yield a Storm whose workers resolve relative directories in ours; stop it at the end."""
        self.screen.step(2, "Start Storm: ZooKeeper, nimbus, supervisor")
        shutil.rmtree(self.output, ignore_errors=True)
        node = StormNode(storm_directory(), project=self.output)
        with self.screen.busy("starting"):
            node.start(progress=lambda line: None)
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
            env={**os.environ, **program.environment(node)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StormError(f"sparse submit failed:\n{done.stdout}{done.stderr}", cure="`downspout storm logs`")

    def options(self, bootstrap: str) -> list[str]:
        """Return the options for the topology, besides its file."""
        return ["-o", f"kafka.group={self.group}", "-o", f"kafka.bootstrap={bootstrap}"]

    def wait(self, node: StormNode) -> TopologyStats:
        """Wait until all is committed and nimbus has counted it; return the figures.

        Raises:
            StormError: there is no progress.
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
        for name in state.SINKS:
            with self.screen.busy("reading every row"):
                report = audit(self.output / "output" / name, cluster=cluster)
            right = right and report.exit_code == 0
            mark = "[green]✓[/green]" if report.exit_code == 0 else "[red]✗[/red]"
            self.screen.say(f"{mark} {name}: {report.verdict}")
        return right


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 right, 1 the audit found differences, 130 interrupted."""
    options = parse(arguments, command="make storm-demo", about="The main job on a real Storm.", output="output/storm")
    screen = Screen()
    return run_alone(screen, StormDemo(options, screen).run)


if __name__ == "__main__":
    sys.exit(main())
