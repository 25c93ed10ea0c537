"""The word count as a topology on Spark against its native twin, on one topic, in one session, interleaved.

The topology (unmodified bolts: a call of Python per line, a tuple per word) leaves exact partial counts in Parquet, by
way of a commit log. The twin (``explode``, ``groupBy``: compiled by Spark) leaves the finished table: as a batch, which
keeps nothing, and as a stream with a checkpoint, which is what the topology is. Both read by the same source in Python.

The session has run each job once before: starting the JVM and the workers is in no figure. Every result is checked.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.spark_source import cpu_s

WORDS = 10
VOCABULARY = 5_000


class Bench:
    """The jobs, in one session."""

    def __init__(self, spark: Any, bootstrap: str, scratch: Path, lines: int) -> None:
        self.spark, self.bootstrap, self.scratch, self.lines = spark, bootstrap, scratch, lines
        self.source = {"kafka.bootstrap.servers": bootstrap, "subscribe": "lines"}
        self._number = 0

    def topology(self, out: Path) -> None:
        """Run the topology to the end of the topic."""
        from downspout.spark.topology import run

        run(
            "topologies/word_count.py",
            spark=self.spark,
            overrides=[f"kafka.bootstrap={self.bootstrap}", f"word_counts:parquet.directory={out / 'counts'}"],
            options={"run.until": "end"},
            checkpoint=out / "checkpoint",
        )

    def batch(self, out: Path) -> None:
        """Run the twin as a batch."""
        from topologies.word_count_spark import twin

        records = self.spark.read.format("downspout").options(**self.source).load()
        twin(self.spark, {"spout": records})["word_counts"].write.parquet(str(out / "counts"))

    def stream(self, out: Path) -> None:
        """Run the twin as a stream that ends at what is there."""
        from topologies.word_count_spark import twin

        def write(counts: Any, _: int) -> None:
            counts.write.mode("overwrite").parquet(str(out / "counts"))

        records = self.spark.readStream.format("downspout").options(**self.source, startingOffsets="earliest").load()
        counts = twin(self.spark, {"spout": records})["word_counts"]
        writer = counts.writeStream.outputMode("complete").foreachBatch(write).trigger(availableNow=True)
        writer.option("checkpointLocation", str(out / "checkpoint")).start().awaitTermination()

    def measure(self, job: Callable[[Path], None]) -> tuple[float, float]:
        """Do a job, check what it left, and return wall and CPU seconds."""
        self._number += 1
        out = self.scratch / f"run-{self._number}"
        out.mkdir()
        wall, cpu = time.monotonic(), cpu_s(os.getpid())
        job(out)
        wall, cpu = time.monotonic() - wall, cpu_s(os.getpid()) - cpu
        found = self.spark.read.parquet(str(out / "counts")).groupBy("word").sum("count").collect()
        total = sum(row[1] for row in found)
        if total != self.lines * WORDS or len(found) != VOCABULARY:
            sys.exit(f"{job.__name__}: {total:,} words, {len(found):,} different ones")
        shutil.rmtree(out)
        return wall, cpu


def publish(bootstrap: str, lines: int) -> None:
    """Write the lines into the topic, four partitions."""
    from downspout.kafka.port import cluster_for

    cluster = cluster_for(bootstrap)
    cluster.ensure_topic("lines", 4)
    producer = cluster.producer()
    for number in range(lines):
        words = " ".join(f"word{(number * WORDS + place) * 7919 % VOCABULARY}" for place in range(WORDS))
        producer.send("lines", key=None, value=words.encode(), partition=number % 4)
    producer.flush()
    producer.close()


def report(figures: dict[str, list[tuple[float, float]]], lines: int) -> str:
    """Return the Markdown table."""
    made = [
        f"{lines:,} lines of {WORDS} words, {VOCABULARY:,} different ones, 4 partitions, local[2], "
        f"{len(figures['topology'])} interleaved runs; median (min – max) in seconds; {os.cpu_count()} cores. "
        "CPU time is that of the JVM, the driver and the workers.",
        "",
        "| job | wall | CPU | the topology's rate against it: wall | CPU |",
        "| --- | --- | --- | --- | --- |",
    ]
    medians = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in figures.items()
    }
    for name, runs in figures.items():
        columns = [f"{statistics.median(c):.2f} ({min(c):.2f} – {max(c):.2f})" for c in zip(*runs, strict=True)]
        ratios = [f"{medians[name][place] / medians['topology'][place]:.2f}x" for place in (0, 1)]
        made.append(f"| {name} | {' | '.join(columns)} | {' | '.join(ratios)} |")
    return "\n".join(made)


def main() -> None:
    """Publish, do each job in turn, print and save the table."""
    from downspout.kafka.embedded import EmbeddedKafka
    from downspout.spark import register
    from downspout.spark.session import spark_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="downspout-bench-"))
    try:
        with EmbeddedKafka(scratch / "broker") as broker, spark_session("bench") as spark:
            publish(broker.bootstrap, given.lines)
            register(spark)
            bench = Bench(spark, broker.bootstrap, scratch, given.lines)
            jobs = {"topology": bench.topology, "native twin, stream": bench.stream, "native twin, batch": bench.batch}
            figures: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
            for job in jobs.values():
                bench.measure(job)
            for run in range(given.runs):
                for name, job in jobs.items():
                    figures[name].append(bench.measure(job))
                    wall, cpu = figures[name][-1]
                    print(f"run {run + 1}: {name}: {wall:.1f} s, {cpu:.1f} CPU-s", file=sys.stderr)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    table = report(figures, given.lines)
    print(table)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "spark-topology.md").write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
