"""What the state of a bolt costs a batch on Spark: many keys, of which few are touched; kept whole, and by key.

    python -m bench.spark_state [--keys 1000000] [--touched 100] [--batches 12] [--quick]

A bolt counts in a dict, in one task, as a streamparse bolt does. A first batch fills it; each batch after that touches
some keys. The bolt is kept whole and by key (``stateful_keys``), with many keys and with few: the last is what a batch
costs without a large state. CPU time is that of the JVM, the driver and the workers, from batch to batch; the median.
At the end the counts are checked against what was sent.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from streamparse import Bolt, Grouping, Topology

from bench.cpu_meter import CpuMeter
from bench.harness import BenchError, Options, begin, load, machine, save, say, spread, table
from bolts.parquet import ParquetBolt
from downspout.ledger.origin import Origin
from spouts.kafka import KafkaSpout

TOUCHED_AT_ONCE = 10_000  # Keys that one record names
FEW = 1_000


class Count(Bolt):
    """Counts the users of each record, ``START:COUNT:STEP``; emits the sum of what it knows of these."""

    outputs: ClassVar[list[str]] = ["origin", "known"]
    counts: dict[str, int]

    def initialize(self, conf: Any, context: Any) -> None:
        """Start from nothing."""
        self.counts = {}

    def process(self, tup: Any) -> None:
        """Count."""
        start, count, step = map(int, tup.values.value.split(":"))
        known = 0
        for number in range(start, start + count * step, step):
            user = f"user-{number}"
            self.counts[user] = self.counts.get(user, 0) + 1
            known += self.counts[user]
        self.emit([Origin.of(tup.values.origin).child("count", 0), known])


class KeyedCount(Count):
    """The same, kept by key."""

    stateful_keys = "counts"


class Whole(Topology):
    """A spout, the bolt, a sink."""

    spout = KafkaSpout.spec(topics=["whole"], fields=["origin", "value"])
    count = Count.spec(inputs={spout: Grouping.GLOBAL})
    known = ParquetBolt.spec(inputs=[count], directory="out", schema={"known": "int64"})


class ByKey(Topology):
    """The same with the bolt that is kept by key."""

    spout = KafkaSpout.spec(topics=["by-key"], fields=["origin", "value"])
    count = KeyedCount.spec(inputs={spout: Grouping.GLOBAL})
    known = ParquetBolt.spec(inputs=[count], directory="out", schema={"known": "int64"})


class Job(NamedTuple):
    """A way to keep the state."""

    name: str
    topology: str
    keys: int


class Figures(NamedTuple):
    """What the batches of a job took, each; and what the state takes in the checkpoint."""

    cpu_s: list[float]
    wall_s: list[float]
    first_cpu_s: float
    written_bytes: int


def records_of(job: Job, touched: int, batches: int) -> list[str]:
    """Return the records: as many as fill the state, then one for each batch."""
    fill = [f"{start}:{min(TOUCHED_AT_ONCE, job.keys - start)}:1" for start in range(0, job.keys, TOUCHED_AT_ONCE)]
    step = max(1, job.keys // touched)
    return [*fill, *(f"{number % step}:{touched}:{step}" for number in range(batches))]


def measure(
    spark: Any, bootstrap: str, scratch: Path, job: Job, touched: int, batches: int, meter: CpuMeter
) -> Figures:
    """Fill the state, then touch some keys batch after batch, and return what each batch took.

    Raises:
        BenchError: the counts are wrong.
    """
    from downspout.kafka.clusters import cluster_for
    from downspout.spark.topology import run

    topic, out = job.name.replace(" ", "-").replace(",", ""), scratch / job.name
    cluster = cluster_for(bootstrap)
    cluster.ensure_topic(topic, 1)
    records = records_of(job, touched, batches)
    fill, seen = len(records) - batches, list[tuple[float, float]]()
    producer = cluster.producer()

    def send(some: list[str]) -> None:
        for record in some:
            producer.send(topic, key=None, value=record.encode(), partition=0)
        producer.flush()

    def go(per_batch: int) -> None:
        run(
            f"bench.spark_state:{job.topology}",
            spark=spark,
            overrides=[
                f"kafka.bootstrap={bootstrap}",
                f"kafka.topics={topic}",
                f"known:parquet.directory={out / 'known'}",
            ],
            options={"run.until": "end"},
            checkpoint=out / "checkpoint",
            records_per_batch=per_batch,
            on_batch=lambda batch: seen.append((meter.cpu_s, batch.seconds)),
        )

    send(records[:fill])
    before = meter.cpu_s
    go(fill)
    first = seen[-1][0] - before
    seen.clear()
    send(records[fill:])
    before_bytes = _written(out / "checkpoint" / "state")
    go(1)
    written = (_written(out / "checkpoint" / "state") - before_bytes) // batches
    producer.close()
    total = spark.read.parquet(str(out / "known")).groupBy().sum("known").collect()[0][0]
    if total != (wanted := _wanted(records)):
        raise BenchError(f"{job.name}: {total:,} is the sum of what was known, and {wanted:,} is right")
    # The first of these batches reads the state from the checkpoint, as every run does: no figure of a batch.
    pairs = list(itertools.pairwise(seen[1:]))
    return Figures([b[0] - a[0] for a, b in pairs], [b[1] for _, b in pairs], first, written)


def _wanted(records: list[str]) -> int:
    counts: dict[int, int] = {}
    total = 0
    for record in records:
        start, count, step = map(int, record.split(":"))
        for key in range(start, start + count * step, step):
            counts[key] = counts.get(key, 0) + 1
            total += counts[key]
    return total


def _written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def report(found: Mapping[Job, Figures], touched: int, described: str) -> str:
    """Return the Markdown report."""
    least = statistics.median(list(found.values())[-1].cpu_s)
    rows = [
        [
            job.name, f"{job.keys:,}", spread(figures.cpu_s), f"{statistics.median(figures.cpu_s) - least:+.2f}",
            spread(figures.wall_s), f"{figures.written_bytes / 1000:,.0f} kB", f"{figures.first_cpu_s:.1f}",
        ]
        for job, figures in found.items()
    ]  # fmt: skip
    columns = [
        "state", "keys", "CPU-s a batch", "of that the state's", "wall, s", "written a batch",
        "CPU-s of the first batch",
    ]  # fmt: skip
    return "\n".join([
        "# What the state of a bolt costs a batch on Spark", "",
        f"A bolt counts; a batch touches {touched:,} keys; {len(next(iter(found.values())).cpu_s)} batches, one task, "
        "local[2]; median (min – max). CPU time is that of the JVM, the driver and the workers. The state's is what a "
        "batch costs beyond one of the last row. The first batch sets all keys, the query's start included. "
        "`python -m bench.spark_state`", "", described, "", table(columns, rows),
    ])  # fmt: skip


def main() -> None:
    """Measure each way, print and save the table."""
    from downspout.broker.embedded import EmbeddedKafka
    from downspout.spark import register
    from downspout.spark.session import spark_session

    options = Options(__doc__, runs=1)
    options.size("--keys", 1_000_000, 20_000, type=int)
    options.size("--touched", 100, 100, type=int, help="keys, in each batch")
    options.size("--batches", 12, 4, type=int)
    given, before = options.read(), load()
    jobs = [
        Job("whole", "Whole", given.keys),
        Job("by key", "ByKey", given.keys),
        Job("by key, few keys", "ByKey", FEW),
        Job("whole, few keys", "Whole", FEW),
    ]
    scratch = Path(tempfile.mkdtemp(prefix="downspout-bench-"))
    found = {}
    try:
        with (
            EmbeddedKafka(scratch / "broker") as broker,
            spark_session("bench") as spark,
            CpuMeter(os.getpid()) as meter,
        ):
            register(spark)
            for job in jobs:
                found[job] = measure(spark, broker.bootstrap, scratch, job, given.touched, given.batches, meter)
                say(f"{job.name}, {job.keys:,} keys: {statistics.median(found[job].cpu_s):.2f} CPU-s a batch")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    save(given.results, "spark-state", report(found, given.touched, machine(before)))


if __name__ == "__main__":
    begin(main)
