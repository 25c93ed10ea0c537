"""What transactions cost: Kafka → JSON → Kafka in one process, with transactions of three lengths and without.

    python -m bench.transactions --records 1000000

Each contender is a separate process, by turns with the others in one run. It reads the same flights (178 bytes of
JSON, 4 partitions), parses them, and writes two of their fields to its own topic with KafkaBolt. What is counted
are the CPU-seconds of the process between its start and its last commit, all its threads included; and the wall time,
since a spout emits nothing while a transaction ends.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from streamparse import Topology

from bench.flights import PARTITIONS, flights
from bench.harness import Options, begin, by_turns, load, machine, save, say, spread, table
from bench.producing import written
from bolts.kafka import KafkaBolt
from bolts.parse import JsonParseBolt
from downspout.broker.embedded import EmbeddedKafka
from downspout.engine.garbage import GC_THRESHOLDS
from downspout.engine.graph import from_class
from downspout.engine.loop import Bounds, Engine
from downspout.kafka.clusters import cluster_for
from spouts.kafka import KafkaSpout

DISTINCT = 100_000
WITHOUT = 0
LENGTHS_MS = (WITHOUT, 100, 1_000, 10_000)
EMITS = ("record", "chunk")


def topology(source: str, topic: str, emit: str, length_ms: int) -> Any:
    """Return the topology of a contender."""

    class Flow(Topology):
        spout = KafkaSpout.spec(
            topics=[source], group=topic, fields=["origin", "value"], emit=emit, transaction_ms=length_ms or 1_000,
            commit_period_ms=1_000,
        )  # fmt: skip
        parse = JsonParseBolt.spec(
            inputs=[spout], fields=["carrier", "arr_delay"], types={"carrier": "string", "arr_delay": "int32"}
        )
        out = KafkaBolt.spec(
            inputs=[parse], topic=topic, key_field="carrier", message_field="arr_delay", message_format="json",
            transactional=length_ms != WITHOUT,
        )  # fmt: skip

    return Flow


def one(bootstrap: str, source: str, topic: str, emit: str, length_ms: int) -> None:
    """Be one contender: print its CPU-seconds and its wall time."""
    conf = {"kafka.bootstrap": bootstrap, "topology.message.timeout.secs": 60, "run.until": "end"}
    conf["topology.max.spout.pending"] = 20_000 if emit == "record" else 80_000  # records
    graph = from_class(topology(source, topic, emit, length_ms), "bench")
    confs = {name: {**component.config, "topology.name": topic, **conf} for name, component in graph.components.items()}
    made = Engine(graph, confs, bounds=Bounds(until="end"), rng=random.Random(1))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    start, began = time.process_time(), time.monotonic()
    result = made.run()
    assert result.completed, result
    print(time.process_time() - start, time.monotonic() - began)


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Publish the flights."""
    cluster_for(bootstrap).ensure_topic(topic, PARTITIONS)
    producer, rows = cluster_for(bootstrap).producer(), list(flights(DISTINCT))
    for number in range(records):
        key, value = rows[number % DISTINCT]
        producer.send(topic, key=key, value=value, partition=number // 1_000 % PARTITIONS)
    producer.flush(60)
    producer.close()


def main() -> None:
    options = Options(__doc__, runs=3)
    options.size("--records", 1_000_000, 100_000, type=int)
    given, before = options.read(), load()
    contenders = [(emit, length) for emit in EMITS for length in LENGTHS_MS]
    cpu: dict[tuple[str, int], list[float]] = {each: [] for each in contenders}
    wall: dict[tuple[str, int], list[float]] = {each: [] for each in contenders}
    with TemporaryDirectory() as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        fill(broker.bootstrap, "flights", given.records)
        for number, (emit, length) in by_turns(contenders, given.runs):
            topic = f"out-{number}-{emit}-{length}"
            cluster_for(broker.bootstrap).ensure_topic(topic, PARTITIONS)
            command = [sys.executable, "-m", "bench.transactions", "--one", broker.bootstrap, "flights", topic, emit]
            found = subprocess.run([*command, str(length)], capture_output=True, text=True, timeout=900)
            if found.returncode:
                raise SystemExit(found.stderr[-3000:])
            assert written(broker.bootstrap, topic) >= given.records, topic
            used, passed = map(float, found.stdout.split()[-2:])
            cpu[emit, length].append(used / given.records * 1e6)
            wall[emit, length].append(passed)
            say(f"{emit}, {name_of(length)}: {cpu[emit, length][-1]:.2f} CPU-s per million, {passed:.1f} s")
    rows = []
    for emit, length in contenders:
        seconds = cpu[emit, length]
        ratio = middle(seconds) / middle(cpu[emit, WITHOUT])
        rows.append([emit, name_of(length), spread(seconds), f"{ratio:.2f}", f"{middle(wall[emit, length]):.1f}"])
    text = table(["emit", "transactions", "CPU-s per million records", "× without", "wall, s"], rows)
    figures = {f"{emit} {name_of(length)}": cpu[emit, length] for emit, length in contenders}
    head = f"# Kafka to Kafka in transactions\n\n{given.records:,} records. {machine(before)}"
    save(given.results, "transactions", f"{head}\n\n{text}", figures, [])


def name_of(length_ms: int) -> str:
    """Return what a contender is called."""
    return "none" if length_ms == WITHOUT else f"{length_ms / 1000:g} s"


def middle(values: list[float]) -> float:
    """Return the median."""
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    if "--one" in sys.argv:
        bootstrap, source, topic, emit, length = sys.argv[sys.argv.index("--one") + 1 :]
        one(bootstrap, source, topic, emit, int(length))
    else:
        begin(main)
