"""The Kafka source in Python against Spark's JVM connector, on one topic, by turns.

The jobs: count the records; write them to Parquet unchanged; parse them as JSON and write typed columns; and write them
unchanged with a stream to the end of the topic, also of a longer topic. Both run on the installed PySpark, in a session
from ``downspout.spark.session``, the connector with the jars of that version.

Each source has one warmed-up session, so the figures exclude the start of the JVM and the workers, and compilation.
They include the start of a stream, which for a source in Python is a separate process. Every result is checked
separately: it must have as many rows as records.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pandas as pd

from bench.contenders import connector_jars
from bench.cpu_meter import CpuMeter
from bench.harness import (
    ROOT,
    BenchError,
    Options,
    begin,
    load,
    machine,
    save,
    say,
    spread,
    table,
)  # fmt: skip
from downspout.system import jars

MANY = 4
JOBS = (
    "batch count",
    "batch → Parquet",
    "batch, JSON → typed Parquet",
    "availableNow → Parquet",
    f"availableNow → Parquet, {MANY} times the records",
)

WORKER = r"""
import contextlib, json, shutil, sys, time
from pyspark.sql.functions import col, from_json
from downspout.spark.session import spark_session

kind, bootstrap, topic, out, jars, flight = sys.argv[1:]
config = {"spark.driver.memory": "2g", **({"spark.jars": jars} if jars else {})}
stack = contextlib.ExitStack()
spark = stack.enter_context(spark_session(kind, config=config))
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

def stream(path, topic=topic):
    given = {**options, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format(kind).options(**given).load()
    writer = frame.writeStream.format("parquet").option("path", path + "/out")
    writer.option("checkpointLocation", path + "/checkpoint").trigger(availableNow=True).start().awaitTermination()

def many(path):
    stream(path, topic + "-many")

rows = count(out)
print(rows, flush=True)
for line in sys.stdin:
    if line == "rows\n":
        print(spark.read.parquet(out + "/out").count() if rows is None else rows, flush=True)
        continue
    job = (count, batch, typed, stream, many)[int(line)]
    shutil.rmtree(out, ignore_errors=True)
    before = time.monotonic()
    rows = job(out)
    print(time.monotonic() - before, flush=True)
stack.close()
"""


def _fields() -> str:
    """Return the fields of a flight, as Spark declares them."""
    from topologies.flight_delays import KEYS, TYPES

    fields = ((KEYS.get(field, field), "INT" if kind.startswith("int") else "STRING") for field, kind in TYPES.items())
    return ", ".join(f"{name} {kind}" for name, kind in fields)


class Contender:
    """One source in a separate process, which does jobs on command."""

    def __init__(self, kind: str, bootstrap: str, topic: str, records: int, out: Path, jars: str) -> None:
        self.kind, self.records = kind, records
        self.seconds: list[list[float]] = [[] for _ in JOBS]
        self.cpu_s: list[list[float]] = [[] for _ in JOBS]
        command = [sys.executable, "-c", WORKER, kind, bootstrap, topic, str(out / f"{kind}-out"), jars, _fields()]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "DOWNSPOUT_HOME": str(out / f"{kind}-home")}
        log = (out / f"{kind}.log").open("wb")
        self._log = out / f"{kind}.log"
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self._meter = CpuMeter(self._process.pid)

    def wait(self) -> None:
        """Wait until it has read the topic once, so that the first job excludes its start."""
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise BenchError(f"{self.kind} ended:\n{self._log.read_text()[-3000:]}")
        return line

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def run(self, job: int, *, counts: bool) -> None:
        """Do a job once, and check its row count; ``counts``: keep the figure."""
        before = self._meter.cpu_s
        seconds = float(self._ask(str(job)))
        cpu_s = self._meter.cpu_s - before
        records = self.records * (MANY if job == len(JOBS) - 1 else 1)
        if (rows := int(self._ask("rows"))) != records:
            raise BenchError(f"{self.kind}, {JOBS[job]}: {rows:,} rows of {records:,} records")
        if counts:
            self.seconds[job].append(seconds)
            self.cpu_s[job].append(cpu_s)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._meter.close()
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
    version = jars.SETS["spark-kafka"].version
    return "\n".join([
        f"{records:,} flights as JSON, 4 partitions, local[2], {len(ours.seconds[0])} interleaved runs; median "
        f"(min – max). PySpark {metadata.version('pyspark')} for both. CPU time is that of the JVM and its workers, "
        "without the count that checks a result. `python -m bench.spark_source`", "", described, "",
        table(["job", "Python source, s", f"JVM connector {version}, s", "rate against the connector"], rows),
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
    connector = connector_jars()
    scratch = Path(tempfile.mkdtemp(prefix="downspout-bench-"))
    try:
        with EmbeddedKafka(scratch / "broker") as broker:
            say(f"publishing {given.records:,} flights")
            flights, cluster = load_flights(given.records), cluster_for(broker.bootstrap)
            publish(cluster, Flights(flights), "flights")
            publish(cluster, Flights(pd.concat([flights] * MANY, ignore_index=True)), "flights-many")
            for kind, classpath in (("downspout", ""), ("kafka", connector)):
                contenders.append(Contender(kind, broker.bootstrap, "flights", given.records, scratch, classpath))
                contenders[-1].wait()
            for run in range(given.runs + 1):  # the first is a warm-up
                for job, name in enumerate(JOBS):
                    for contender in contenders[:: 1 if run % 2 else -1]:
                        contender.run(job, counts=run > 0)
                        if run:
                            say(f"run {run}: {name}: {contender.kind}: {contender.cpu_s[job][-1]:.2f} CPU-s")
            for contender in contenders:
                contender.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    save(given.results, "spark-source", report(*contenders, given.records, machine(before)))


if __name__ == "__main__":
    begin(main)
