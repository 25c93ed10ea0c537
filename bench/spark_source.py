"""The Kafka source in Python against Spark's JVM connector, on one topic, in one run, interleaved.

Four jobs: count the records; write them to Parquet as they are; parse them as JSON and write typed columns; and write
them as they are by a stream that ends at what is there. The connector runs in its own environment, that of the
peers, with a PySpark for which its jars resolve.

Each source has one session, which has read the topic once before: starting the JVM and the workers is in neither
figure. Every result is checked: as many rows as there are records.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.contenders import connector_jars
from bench.environments import python_of, version_of
from bench.harness import BenchError, Options, begin, cpu_of_tree, load, machine, save, say, spread, table

JOBS = ("batch count", "batch → Parquet", "batch, JSON → typed Parquet", "availableNow → Parquet")

WORKER = r"""
import json, shutil, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

kind, bootstrap, topic, out, jars, flight = sys.argv[1:]
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

def typed(path):
    parsed = from_json(col("value").cast("string"), flight, {"mode": "FAILFAST"}).alias("flight")
    frame = spark.read.format(kind).options(**options).load()
    rows = frame.select(parsed, col("partition").alias("_partition"), col("offset").alias("_offset"))
    rows.select("flight.*", "_partition", "_offset").write.parquet(path + "/out")

def stream(path):
    frame = spark.readStream.format(kind).options(**options, startingOffsets="earliest").load()
    writer = frame.writeStream.format("parquet").option("path", path + "/out")
    writer.option("checkpointLocation", path + "/checkpoint").trigger(availableNow=True).start().awaitTermination()

count(out)
print("ready", flush=True)
for line in sys.stdin:
    job = (count, batch, typed, stream)[int(line)]
    shutil.rmtree(out, ignore_errors=True)
    before = time.monotonic()
    rows = job(out)
    seconds = time.monotonic() - before
    if rows is None:
        rows = spark.read.parquet(out + "/out").count()
    print(json.dumps({"seconds": seconds, "rows": rows}), flush=True)
spark.stop()
"""


def _fields() -> str:
    """Return the fields of a flight, as Spark declares them."""
    from topologies.flight_delays import KEYS, TYPES

    fields = ((KEYS.get(field, field), "INT" if kind.startswith("int") else "STRING") for field, kind in TYPES.items())
    return ", ".join(f"{name} {kind}" for name, kind in fields)


class Contender:
    """One source in a separate process, which does a job whenever it is told."""

    def __init__(self, kind: str, python: str, bootstrap: str, topic: str, out: Path, jars: str) -> None:
        self.kind = kind
        self.seconds: list[list[float]] = [[] for _ in JOBS]
        self.cpu_s: list[list[float]] = [[] for _ in JOBS]
        command = [python, "-c", WORKER, kind, bootstrap, topic, str(out / f"{kind}-out"), jars, _fields()]
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

    def wait(self) -> None:
        """Wait until it has read the topic once: what its start costs is not the first job's."""
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise BenchError(f"{self.kind} ended:\n{self._log.read_text()[-3000:]}")
        return line

    def run(self, job: int, records: int) -> None:
        """Do a job once, and check how many rows it saw."""
        assert self._process.stdin is not None
        before = cpu_of_tree(self._process.pid)
        print(job, file=self._process.stdin, flush=True)
        done = json.loads(self._answer())
        if done["rows"] != records:
            raise BenchError(f"{self.kind}, {JOBS[job]}: {done['rows']:,} rows of {records:,} records")
        self.seconds[job].append(done["seconds"])
        self.cpu_s[job].append(cpu_of_tree(self._process.pid) - before)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def report(ours: Contender, theirs: Contender, records: int, described: str) -> str:
    """Return the Markdown report."""
    rows = []
    for job, name in enumerate(JOBS):
        for what in ("wall", "CPU"):
            mine, other = ((source.seconds if what == "wall" else source.cpu_s)[job] for source in (ours, theirs))
            ratio = statistics.median(other) / statistics.median(mine)
            rows.append([f"{name}, {what}", spread(mine), spread(other), f"{ratio:.2f}x"])
    connector = f"JVM connector {version_of('spark_connector', 'pyspark')}, s"
    return "\n".join([
        f"{records:,} flights as JSON, 4 partitions, local[2], {len(ours.seconds[0])} interleaved runs; median "
        "(min – max). CPU time is that of the JVM and its workers. `python -m bench.spark_source`", "", described, "",
        table(["job", "Python source, s", connector, "rate against the connector"], rows),
    ])  # fmt: skip


def main() -> None:
    """Publish, let both do each job in turn, print and save the table."""
    from demos.flights_data import Flights, load_flights, publish
    from downspout.broker.embedded import EmbeddedKafka
    from downspout.kafka.clusters import cluster_for

    options = Options(__doc__, runs=5)
    options.size("--records", 336_776, 20_000, type=int, help="how many flights, at most all")
    given = options.read()
    before, contenders = load(), []
    python, jars = str(python_of("spark_connector")), connector_jars()
    scratch = Path(tempfile.mkdtemp(prefix="downspout-bench-"))
    try:
        with EmbeddedKafka(scratch / "broker") as broker:
            say(f"publishing {given.records:,} flights")
            publish(cluster_for(broker.bootstrap), Flights(load_flights(given.records)), "flights")
            for kind, program, classpath in (("downspout", sys.executable, ""), ("kafka", python, jars)):
                contenders.append(Contender(kind, program, broker.bootstrap, "flights", scratch, classpath))
            for contender in contenders:
                contender.wait()
            for run in range(given.runs):
                for job, name in enumerate(JOBS):
                    for contender in contenders:
                        contender.run(job, given.records)
                        say(f"run {run + 1}: {name}: {contender.kind}: {contender.seconds[job][-1]:.2f} s")
            for contender in contenders:
                contender.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    save(given.results, "spark-source", report(*contenders, given.records, machine(before)))


if __name__ == "__main__":
    begin(main)
