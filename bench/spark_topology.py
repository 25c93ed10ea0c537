"""Topologies on Spark: records, chunks, and native Spark versions, on one topic and session, by turns.

**Flights.** The flight delays (JSON → joins → every flight, and delays added up) as they are, a tuple for each record,
and with ``kafka.emit=chunk``, where a tuple is a RecordBatch of Spark's. The native version is a batch of Spark's own
functions.

**Words.** The word count, by record (a call of Python per line, a tuple per word) and in chunks, against its native
version as a batch and as a stream. The topology leaves exact partial counts in Parquet, by way of a commit log. The
native version (``explode``, ``groupBy``: compiled by Spark) leaves the finished table: as a batch, which keeps nothing,
and as a stream with a checkpoint, which is what the topology is. All read by the same source in Python.

The session has run each job once before: starting the JVM and the workers is in no figure. Every result is checked.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cpu_meter import CpuMeter
from bench.harness import Options, begin, load, machine, save, say, spread, table

WORDS = 10
VOCABULARY = 5_000
Job = Callable[[Path], None]
Figures = dict[str, list[tuple[float, float]]]


class Bench(ABC):
    """Jobs in one session, each of which leaves something in a folder.

    Args:
        spark: the session.
        bootstrap: the broker.
        scratch: a folder for what jobs leave.
        records: in the topic.
        meter: of this process and all that it started.
    """

    topic: str

    def __init__(self, spark: Any, bootstrap: str, scratch: Path, records: int, meter: CpuMeter) -> None:
        self.spark, self.bootstrap, self.scratch, self.records, self.meter = spark, bootstrap, scratch, records, meter
        self.source = {"kafka.bootstrap.servers": bootstrap, "subscribe": self.topic}
        self._number = 0

    @abstractmethod
    def jobs(self) -> dict[str, Job]:
        """Return the jobs by name; the first is the reference."""

    @abstractmethod
    def wrong(self, out: Path) -> str:
        """Return an error about a job's output; empty: it is right."""

    def measure(self, name: str, job: Job) -> tuple[float, float]:
        """Do a job, check its output, and return wall and CPU seconds."""
        self._number += 1
        out = self.scratch / f"{self.topic}-{self._number}"
        out.mkdir()
        wall, cpu = time.monotonic(), self.meter.cpu_s
        job(out)
        wall, cpu = time.monotonic() - wall, self.meter.cpu_s - cpu
        if wrong := self.wrong(out):
            sys.exit(f"{name}: {wrong}")
        shutil.rmtree(out)
        return wall, cpu

    def run(self, runs: int) -> Figures:
        """Do each job once, then ``runs`` times by turns; return the figures."""
        jobs = self.jobs()
        figures: Figures = {name: [] for name in jobs}
        for name, job in jobs.items():
            self.measure(name, job)
        for number in range(runs):
            for name, job in jobs.items():
                figures[name].append(self.measure(name, job))
                wall, cpu = figures[name][-1]
                say(f"run {number + 1}: {name}: {wall:.1f} s, {cpu:.1f} CPU-s")
        return figures


class Words(Bench):
    """The word count."""

    topic = "lines"

    def jobs(self) -> dict[str, Job]:
        """Return the topology and its native Spark versions."""
        return {
            "topology, by record": lambda out: self.topology(out, "record"),
            "topology, in chunks": lambda out: self.topology(out, "chunk"),
            "native version, stream": self.stream,
            "native version, batch": self.batch,
        }

    def topology(self, out: Path, emit: str) -> None:
        """Run the topology to the end of the topic."""
        from downspout.spark import run

        run(
            "topologies/word_count.py",
            spark=self.spark,
            overrides=[
                f"kafka.bootstrap={self.bootstrap}", f"spout:kafka.emit={emit}",
                f"word_counts:parquet.directory={out / 'counts'}",
            ],
            options={"run.until": "end"},
            checkpoint=out / "checkpoint",
        )  # fmt: skip

    def batch(self, out: Path) -> None:
        """Run the native version as a batch."""
        from topologies.word_count_spark import native

        records = self.spark.read.format("downspout").options(**self.source).load()
        native(self.spark, {"spout": records})["word_counts"].write.parquet(str(out / "counts"))

    def stream(self, out: Path) -> None:
        """Run the native version as a stream to the end of the topic."""
        from topologies.word_count_spark import native

        def write(counts: Any, _: int) -> None:
            counts.write.mode("overwrite").parquet(str(out / "counts"))

        records = self.spark.readStream.format("downspout").options(**self.source, startingOffsets="earliest").load()
        counts = native(self.spark, {"spout": records})["word_counts"]
        writer = counts.writeStream.outputMode("complete").foreachBatch(write).trigger(availableNow=True)
        writer.option("checkpointLocation", str(out / "checkpoint")).start().awaitTermination()

    def wrong(self, out: Path) -> str:
        """Count the words."""
        found = self.spark.read.parquet(str(out / "counts")).groupBy("word").sum("count").collect()
        total = sum(row[1] for row in found)
        is_right = total == self.records * WORDS and len(found) == VOCABULARY
        return "" if is_right else f"{total:,} words, {len(found):,} different ones"


class FlightDelays(Bench):
    """The flight delays."""

    topic = "flights"

    def jobs(self) -> dict[str, Job]:
        """Return the topology in both modes, and its native version."""
        return {
            "topology, by record": lambda out: self.topology(out, "record"),
            "topology, in chunks": lambda out: self.topology(out, "chunk"),
            "native version, batch": self.batch,
        }

    def topology(self, out: Path, emit: str) -> None:
        """Run the topology to the end of the topic."""
        from downspout.spark import run

        folders = [f"{name}:parquet.directory={out / name}" for name in ("flights", "route_delays")]
        run(
            "topologies/flight_delays.py",
            spark=self.spark,
            overrides=[f"kafka.bootstrap={self.bootstrap}", f"spout:kafka.emit={emit}", *folders],
            options={"run.until": "end"},
            checkpoint=out / "checkpoint",
        )

    def batch(self, out: Path) -> None:
        """Run the native version as a batch that reads the topic once for both tables."""
        from topologies.flight_delays_spark import native

        records = self.spark.read.format("downspout").options(**self.source).load().persist()
        for name, frame in native(self.spark, {"spout": records}).items():
            frame.write.parquet(str(out / name))
        records.unpersist()

    def wrong(self, out: Path) -> str:
        """Count the flights in both tables."""
        flights = self.spark.read.parquet(str(out / "flights")).count()
        added_up = self.spark.read.parquet(str(out / "route_delays")).groupBy().sum("count").collect()[0][0]
        is_right = flights == added_up == self.records
        return "" if is_right else f"{flights:,} flights, {added_up:,} in the delays"


def publish(bootstrap: str, lines: int) -> None:
    """Write the lines into the topic, four partitions."""
    from downspout.kafka.clusters import cluster_for

    cluster = cluster_for(bootstrap)
    cluster.ensure_topic("lines", 4)
    producer = cluster.producer()
    for number in range(lines):
        words = " ".join(f"word{(number * WORDS + place) * 7919 % VOCABULARY}" for place in range(WORDS))
        producer.send("lines", key=None, value=words.encode(), partition=number % 4)
    producer.flush()
    producer.close()


def rows_of(figures: Figures, records: int) -> list[list[str]]:
    """Return the rows of a table: a job's cost, its cost per million records, and its ratio to the first job."""
    medians = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in figures.items()
    }
    first = next(iter(medians.values()))
    return [
        [
            name,
            *(spread(column) for column in zip(*runs, strict=True)),
            f"{medians[name][1] / records * 1_000_000:.1f}",
            *(f"{medians[name][place] / first[place]:.2f}x" for place in (0, 1)),
        ]
        for name, runs in figures.items()
    ]


def report(flights: Figures, words: Figures, sizes: tuple[int, int], described: str) -> str:
    """Return the Markdown report."""
    columns = ["job", "wall, s", "CPU-s", "CPU-s per million records", "cost against the first: wall", "CPU"]
    runs = len(next(iter(words.values())))
    return "\n".join([
        f"4 partitions, local[2], {runs} interleaved runs; median (min – max). CPU time is that of the JVM, the driver "
        "and the workers, a query's start included. `python -m bench.spark_topology`", "", described, "",
        f"**Flights**: {sizes[0]:,} flights as JSON, to rows and to delays added up.", "",
        table(columns, rows_of(flights, sizes[0])), "",
        f"**Words**: {sizes[1]:,} lines of {WORDS} words, {VOCABULARY:,} different ones, counted.", "",
        table(columns, rows_of(words, sizes[1])),
    ])  # fmt: skip


def main() -> None:
    """Publish, do each job in turn, print and save the table."""
    from demos.flights_data import Flights, load_flights
    from demos.flights_data import publish as publish_flights
    from downspout.broker.embedded import EmbeddedKafka
    from downspout.kafka.clusters import cluster_for
    from downspout.spark import register
    from downspout.spark.session import spark_session

    options = Options(__doc__, runs=5)
    options.size("--lines", 200_000, 10_000, type=int)
    options.size("--flights", 336_776, 10_000, type=int, help="how many, at most all")
    given, before = options.read(), load()
    scratch = Path(tempfile.mkdtemp(prefix="downspout-bench-"))
    try:
        with (
            EmbeddedKafka(scratch / "broker") as broker,
            spark_session("bench") as spark,
            CpuMeter(os.getpid()) as meter,
        ):
            publish(broker.bootstrap, given.lines)
            publish_flights(cluster_for(broker.bootstrap), Flights(load_flights(given.flights)), "flights")
            register(spark)
            flights = FlightDelays(spark, broker.bootstrap, scratch, given.flights, meter).run(given.runs)
            words = Words(spark, broker.bootstrap, scratch, given.lines, meter).run(given.runs)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    text = report(flights, words, (given.flights, given.lines), machine(before))
    save(given.results, "spark-topology", text, {"flights": flights, "words": words})


if __name__ == "__main__":
    begin(main)
