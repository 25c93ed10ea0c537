"""The cost of batch transactions: an opaque word count with exact state, beside the same count without batches.

    python -m bench.batches --records 200000

Contenders are separate processes that take turns. Each reads the same lines of eight words (4 partitions), splits them,
and counts the words. *plain* has a KafkaSpout, and a bolt that counts in memory: a crash loses its counts, and a replay
counts twice. The others have KafkaBatches with batches of 10,000 records and a StateBolt on SQLite, which is exactly
once. Measured are the CPU-seconds of the process from start to end, with all threads, and the wall time.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import streamparse
from streamparse import Grouping, Topology

from bench.harness import Options, begin, by_turns, load, machine, save, say, spread, table
from bolts.state import StateBolt
from downspout.broker.embedded import EmbeddedKafka
from downspout.engine import Bounds, Engine, from_class
from downspout.engine.lifecycle import GC_THRESHOLDS
from downspout.kafka.clusters import cluster_for
from spouts.batches import KafkaBatches
from spouts.kafka import KafkaSpout

PARTITIONS, WORDS, VOCABULARY, BATCH = 4, 8, 5_000, 10_000
PLAIN = "plain"
KINDS = {"opaque": ("opaque", 1), "opaque, 3 at once": ("opaque", 3), "transactional": ("transactional", 1)}
CONTENDERS = [PLAIN, *KINDS]


class Split(streamparse.Bolt):
    """Splits lines into words."""

    outputs: ClassVar[list[str]] = ["word"]

    def process(self, tup: Any) -> None:
        """Emit each word."""
        for word in tup.values.value.split():
            self.emit([word])


class SplitBatch(streamparse.Bolt):
    """Splits lines into words, and passes the attempt on."""

    outputs: ClassVar[list[str]] = ["attempt", "word"]

    def process(self, tup: Any) -> None:
        """Emit each word."""
        attempt, line = tup.values
        for word in line.split():
            self.emit([attempt, word])


class Count(streamparse.Bolt):
    """Counts in memory."""

    def initialize(self, storm_conf: Any, context: Any) -> None:
        """Start without counts."""
        self.counts: Counter[str] = Counter()

    def process(self, tup: Any) -> None:
        """Count a word."""
        self.counts[tup.values.word] += 1


def topology(name: str, database: Path) -> Any:
    """Return the topology of a contender."""
    if name == PLAIN:

        class Plain(Topology):
            spout = KafkaSpout.spec(topics=["lines"], group=database.stem, fields=["value"], commit_period_ms=1_000)
            split = Split.spec(inputs=[spout])
            counts = Count.spec(inputs={split: Grouping.fields("word")})

        return Plain
    kind, active = KINDS[name]

    class Batches(Topology):
        coordinator, lines = KafkaBatches.spec(
            topics=["lines"], fields=["value"], kind=kind, max_active=active, records_max=BATCH, emit_interval_ms=0,
            store=f"sqlite:///{database}",
        )  # fmt: skip
        split = SplitBatch.spec(inputs=[lines])
        counts = StateBolt.spec(
            coordinator=coordinator, inputs={split: Grouping.fields("word")}, kind=kind, key=["word"], update="count",
            store=f"sqlite:///{database}",
        )  # fmt: skip

    return Batches


def one(bootstrap: str, name: str, database: Path) -> None:
    """Run one contender, and print its CPU-seconds and wall time."""
    conf = {"kafka.bootstrap": bootstrap, "topology.message.timeout.secs": 60, "run.until": "end"}
    conf["topology.max.spout.pending"] = 20_000
    graph = from_class(topology(name, database), "bench")
    confs = {
        each: {**component.config, "topology.name": database.stem, **conf}
        for each, component in graph.components.items()
    }
    made = Engine(graph, confs, bounds=Bounds(until="end"), rng=random.Random(1))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    start, began = time.process_time(), time.monotonic()
    result = made.run()
    assert result.completed, result
    print(time.process_time() - start, time.monotonic() - began)


def fill(bootstrap: str, records: int) -> None:
    """Publish lines; some words are much more frequent than others."""
    cluster_for(bootstrap).ensure_topic("lines", PARTITIONS)
    producer, chance = cluster_for(bootstrap).producer(), random.Random(1)
    for number in range(records):
        words = (int(VOCABULARY * chance.random() ** 3) for _ in range(WORDS))
        line = " ".join(f"word{word}" for word in words)
        producer.send("lines", key=None, value=line.encode(), partition=number // 1_000 % PARTITIONS)
    producer.flush(60)
    producer.close()


def main() -> None:
    options = Options(__doc__, runs=3)
    options.size("--records", 200_000, 20_000, type=int)
    given, before = options.read(), load()
    cpu: dict[str, list[float]] = {each: [] for each in CONTENDERS}
    wall: dict[str, list[float]] = {each: [] for each in CONTENDERS}
    with TemporaryDirectory() as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        fill(broker.bootstrap, given.records)
        for number, name in by_turns(CONTENDERS, given.runs):
            database = Path(scratch) / f"{CONTENDERS.index(name)}-{number}.db"
            command = [sys.executable, "-m", "bench.batches", "--one", broker.bootstrap, name, str(database)]
            found = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if found.returncode:
                raise SystemExit(found.stderr[-3000:])
            used, passed = map(float, found.stdout.split()[-2:])
            cpu[name].append(used / given.records * 1e6)
            wall[name].append(passed)
            say(f"{name}: {cpu[name][-1]:.2f} CPU-s per million lines, {passed:.1f} s")
    rows = [
        [name, spread(cpu[name]), f"{middle(cpu[name]) / middle(cpu[PLAIN]):.2f}", f"{middle(wall[name]):.1f}"]
        for name in CONTENDERS
    ]
    text = table(["batches", "CPU-s per million lines", "× plain", "wall, s"], rows)
    head = f"# Word count in batches\n\n{given.records:,} lines of {WORDS} words. {machine(before)}"
    save(given.results, "batches", f"{head}\n\n{text}", cpu, [])


def middle(values: list[float]) -> float:
    """Return the median."""
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    if "--one" in sys.argv:
        bootstrap, name, database = sys.argv[sys.argv.index("--one") + 1 :]
        one(bootstrap, name, Path(database))
    else:
        begin(main)
