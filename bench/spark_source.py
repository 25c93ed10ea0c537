"""The Kafka source in Python against Spark's JVM connector, on one topic, in one run, interleaved.

Three jobs: count the records; write them to Parquet; write them to Parquet by a stream that ends at what is there. The
connector runs in an environment of its own, made in a temporary directory, with a PySpark for which its jars resolve.

Each source has one session, which has read the topic once before: starting the JVM and the workers is in neither
figure. Every result is checked: as many rows as there are records.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

JOBS = ("batch count", "batch → Parquet", "availableNow → Parquet")
CONNECTOR_PYSPARK = "4.0.0"

WORKER = r"""
import json, shutil, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

kind, bootstrap, topic, out, jars = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").appName(kind)
for name, value in {
    "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g", "spark.log.level": "ERROR", "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false", **({"spark.jars": jars} if jars else {}),
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
if kind == "downspout":
    from downspout.spark import register
    register(spark)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}

def count(path):
    return spark.read.format(kind).options(**options).load().count()

def batch(path):
    spark.read.format(kind).options(**options).load().write.parquet(path + "/out")

def stream(path):
    frame = spark.readStream.format(kind).options(**options, startingOffsets="earliest").load()
    writer = frame.writeStream.format("parquet").option("path", path + "/out")
    writer.option("checkpointLocation", path + "/checkpoint").trigger(availableNow=True).start().awaitTermination()

count(out)
for line in sys.stdin:
    job = (count, batch, stream)[int(line)]
    shutil.rmtree(out, ignore_errors=True)
    before = time.monotonic()
    rows = job(out)
    seconds = time.monotonic() - before
    if rows is None:
        rows = spark.read.parquet(out + "/out").count()
    print(json.dumps({"seconds": seconds, "rows": rows}), flush=True)
spark.stop()
"""


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, of all that it started, and of what of these has ended, in seconds."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        ticks[int(path.parent.name)] = sum(int(field) for field in fields[11:15])
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    total, todo = 0, [pid]
    while todo:
        total += ticks.get(one := todo.pop(), 0)
        todo += children.get(one, [])
    return total / os.sysconf("SC_CLK_TCK")


class Contender:
    """One source in a process of its own, which does a job whenever it is told."""

    def __init__(self, kind: str, python: str, bootstrap: str, topic: str, out: Path, jars: str) -> None:
        self.kind = kind
        self.seconds: list[list[float]] = [[] for _ in JOBS]
        self.cpu_s: list[list[float]] = [[] for _ in JOBS]
        command = [python, "-c", WORKER, kind, bootstrap, topic, str(out / f"{kind}-out"), jars]
        environment = os.environ | {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        if kind == "downspout":
            environment["PYTHONPATH"] = os.getcwd()
        else:
            environment.pop("PYTHONPATH", None)
        log = (out / f"{kind}.log").open("wb")
        self._log = out / f"{kind}.log"
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def run(self, job: int, records: int) -> None:
        """Do a job once, and check how many rows it saw."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = cpu_s(self._process.pid)
        print(job, file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            sys.exit(f"{self.kind} ended:\n{self._log.read_text()[-3000:]}")
        done = json.loads(line)
        if done["rows"] != records:
            sys.exit(f"{self.kind}, {JOBS[job]}: {done['rows']:,} rows of {records:,} records")
        self.seconds[job].append(done["seconds"])
        self.cpu_s[job].append(cpu_s(self._process.pid) - before)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def connector_environment(folder: Path) -> tuple[str, str]:
    """Make an environment with the connector's PySpark where it is not there; return its Python, and the jars."""
    from downspout import jars

    python = str(folder / "bin" / "python")
    if not folder.exists():
        print(f"installing PySpark {CONNECTOR_PYSPARK} for the JVM connector", file=sys.stderr)
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "-q", f"pyspark=={CONNECTOR_PYSPARK}", "setuptools<81"]
        subprocess.run(install, check=True)
    needed = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")  # PySpark has the others
    found = [str(path) for path in jars.resolve("spark-kafka") if path.name.startswith(needed)]
    return python, ",".join(found)


def report(ours: Contender, theirs: Contender, records: int) -> str:
    """Return the Markdown table."""
    lines = [
        f"{records:,} flights as JSON, 4 partitions, local[2], {len(ours.seconds[0])} interleaved runs; "
        f"median (min – max) in seconds; {os.cpu_count()} cores. CPU time is that of the JVM and its workers.",
        "",
        f"| job | | Python source | JVM connector {CONNECTOR_PYSPARK} | rate against the connector |",
        "| --- | --- | --- | --- | --- |",
    ]
    for job, name in enumerate(JOBS):
        for what in ("wall", "CPU"):
            mine, other = ((source.seconds if what == "wall" else source.cpu_s)[job] for source in (ours, theirs))
            ratio = statistics.median(other) / statistics.median(mine)
            lines.append(f"| {name} | {what} | {_spread(mine)} | {_spread(other)} | {ratio:.2f}x |")
    return "\n".join(lines)


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} – {max(seconds):.2f})"


def main() -> None:
    """Publish, let both do each job in turn, print and save the table."""
    from downspout.kafka.embedded import EmbeddedKafka
    from downspout.kafka.port import cluster_for
    from topologies.flights_data import Flights, load_flights, publish

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=336_776, help="how many flights, at most all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--environment", type=Path, help="keep the connector's environment there; default: made anew")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="downspout-bench-"))
    contenders: list[Contender] = []
    try:
        python, jars = connector_environment(given.environment or scratch / "connector")
        with EmbeddedKafka(scratch / "broker") as broker:
            print(f"publishing {given.records:,} flights", file=sys.stderr)
            publish(cluster_for(broker.bootstrap), Flights(load_flights(given.records)), "flights")
            for kind, program, classpath in (("downspout", sys.executable, ""), ("kafka", python, jars)):
                contenders.append(Contender(kind, program, broker.bootstrap, "flights", scratch, classpath))
            for run in range(given.runs):
                for job, name in enumerate(JOBS):
                    for contender in contenders:
                        contender.run(job, given.records)
                        took = contender.seconds[job][-1]
                        print(f"run {run + 1}: {name}: {contender.kind}: {took:.2f} s", file=sys.stderr)
            for contender in contenders:
                contender.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    table = report(*contenders, given.records)
    print(table)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "spark-source.md").write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
