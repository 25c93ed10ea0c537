"""The main job on Spark, killed once, and the proof that all engines agree.

    python -m demos --on spark            # or: make spark-demo

1. starts a Kafka broker and publishes the flights, as ``make demo`` does;
2. runs ``flight_delays.py`` as a streaming query with ``downspout spark run``, kills its driver with ``kill -9`` in the
   middle, and starts it again;
3. audits both Parquet directories, and compares them with pandas' results from the package;
4. runs ``downspout compare``: the local engine, Storm if one runs, the topology on Spark, and the native Spark version
   (``flight_delays_spark.py``) over the same offsets; and compares the native version's table with pandas' as well.

Each run starts with a new consumer group and a new directory (``output/spark-demo``). ``FLIGHTS=20000`` takes
fewer, ``FRESH=1`` deletes the topic first and publishes it anew.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from demos import flights_data, state
from demos.audit import Finding, check_coverage, check_values, read_rows, say_all
from demos.flights_data import PARTITIONS, TOPIC
from demos.screen import Screen
from demos.shared import Options, Published, flights_in_kafka, parse, run_alone
from downspout.audit.audit import audit
from downspout.errors import ComponentError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import Cluster, TopicPartition

TARGET = "topologies/flight_delays.py"
BATCHES = 5
"""Number of batches for all flights; the first run is killed after its first one."""
RENAMED = {"count": "flights", "count_dep_delay": "departed", "count_arr_delay": "arrived"} | {
    f"{function}_{column}": f"{column}_{function}"
    for column in ("dep_delay", "arr_delay")
    for function in ("sum", "max")
}
"""Names of the aggregates in pandas' table."""


class SparkDemo:
    """One run of the demo."""

    def __init__(self, options: Options, screen: Screen) -> None:
        self.options, self.screen = options, screen
        self.output = options.output.absolute()
        self.group = f"spark-demo-{uuid.uuid4().hex[:8]}"

    def run(self) -> int:
        """Do all steps; return the exit code."""
        self.screen.step(1, "Start Kafka and publish the flights")
        with flights_in_kafka(self.screen, self.options, ("kafka",)) as published:
            shutil.rmtree(self.output, ignore_errors=True)
            self.screen.step(2, f"downspout spark run {TARGET}, killed in the middle and started again")
            self.query(published, kill=True)
            self.query(published, kill=False)
            self.screen.step(3, "Audit")
            with self.screen.busy("reading every row"):
                right = say_all(self.screen, self.findings(cluster_for(published.bootstrap), published))
            self.screen.step(4, f"downspout compare {TARGET}")
            right = self.compare(published) and right
        self.screen.end_step()
        return 0 if right else 1

    def query(self, published: Published, *, kill: bool) -> None:
        """Run the topology on Spark to the end of the topic; or kill it after its first batch.

        Raises:
            ComponentError: it failed.
        """
        batch = max(1, len(published.frame) // BATCHES)
        command = [
            *("spark", "run", TARGET, "--until", "end", "--records-per-batch", str(batch)),
            *("--checkpoint", str(self.output / "checkpoint")),
            *("--set", f"kafka.bootstrap={published.bootstrap}", "--set", f"kafka.group={self.group}"),
        ]
        for name in state.SINKS:
            command += ["--set", f"{name}:parquet.directory={self.output / name}"]
        process = downspout(command)
        lines: list[str] = []
        try:
            with self.screen.busy("Spark starts" if kill else "Spark starts again"):
                for line in process.stderr or ():
                    lines.append(line.rstrip())
                    if line.startswith(("batch ", "downspout: ")):
                        self.screen.say(line.rstrip())
                    if kill and line.startswith("batch "):
                        process.kill()
                        break
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if kill and code == -signal.SIGKILL:
            self.screen.say(f"kill -9 of the driver, process {process.pid}")
        elif code != 0:
            raise ComponentError("\n".join(["downspout spark run failed:", *lines[-20:]]), cure="read the lines above")

    def findings(self, cluster: Cluster, published: Published) -> Iterator[Finding]:
        """Yield the audit's findings."""
        consumer = cluster.consumer(group=None)
        try:
            ends = consumer.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        finally:
            consumer.close()
        rows = read_rows(self.output / "flights")
        coverage = check_coverage(rows, [ends[partition] for partition in sorted(ends)])
        yield coverage
        if coverage.right:
            yield check_values(rows, published.frame, published.flights)
        for name in state.SINKS:
            report = audit(self.output / name, cluster=cluster)
            yield Finding(report.exit_code == 0, f"downspout audit {self.options.output / name}: {report.verdict}")

    def compare(self, published: Published) -> bool:
        """Run all available engines over the same offsets; return whether they and pandas agree."""
        kept = self.output / "compare"
        process = downspout(["compare", TARGET, "--keep", str(kept), "--set", f"kafka.bootstrap={published.bootstrap}"])
        with self.screen.busy("running every engine over the same offsets"):
            said, _ = process.communicate()
        self.screen.console.print(said, markup=False, highlight=False)
        return process.returncode == 0 and say_all(self.screen, [check_native(kept, published.frame)])


def downspout(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start ``downspout`` as a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "downspout", *arguments],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_native(kept: Path, frame: pd.DataFrame) -> Finding:
    """Check that the native version's delays equal pandas' results, bit by bit.

    Args:
        kept: the folder of ``downspout compare`` with the tables.
        frame: the flights.
    """
    wanted = flights_data.reference_route_hours(frame)
    found = pd.read_parquet(kept / "native" / "route_delays").rename(columns=RENAMED)
    sums = [name for name in found.columns if name.endswith("_sum")]
    found = found.fillna(dict.fromkeys(sums, 0)).sort_values(["route", "hour"], ignore_index=True)
    try:
        pd.testing.assert_frame_equal(found[list(wanted.columns)], wanted, check_dtype=False, check_exact=True)
    except AssertionError as error:
        return Finding(False, f"the native version's delays differ from pandas': {' '.join(str(error).split())[:300]}")
    return Finding(True, f"the native Spark version's {len(found):,} rows of delays equal pandas', to the last bit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 right, 1 something differs, 130 interrupted."""
    options = parse(arguments, command="make spark-demo", about="The main job on Spark.", output="output/spark-demo")
    screen = Screen()
    return run_alone(screen, SparkDemo(options, screen).run)


if __name__ == "__main__":
    sys.exit(main())
