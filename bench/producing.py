"""The cost of writing to Kafka: KafkaBolt with records and with chunks, beside bare producers.

    python -m bench.producing --records 1000000

Contenders are separate processes that take turns. Each writes flights (a key of 2 bytes, a value of 180) to its own
topic with 4 partitions, on one broker, with acks=all and idempotence, batches of 128 KiB and a linger of 5 ms. Measured
are the CPU-seconds of the process, with all threads, from the first record to the last answer. KafkaBolt's include the
whole local engine: a spout with message ids, the tuple trees, the bolt, and the acks. The peers are bare loops.
"""

from __future__ import annotations

import gc
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pyarrow as pa
import streamparse
from streamparse import Topology

from bench.environments import UnavailableError, python_of
from bench.flights import PARTITIONS, flights
from bench.harness import Options, begin, by_turns, load, machine, save, say, spread, table
from bolts.kafka import KafkaBolt
from downspout.broker.embedded import EmbeddedKafka
from downspout.engine import Bounds, Engine, from_class
from downspout.engine.lifecycle import GC_THRESHOLDS
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition

PEERS = Path(__file__).parent / "peers"
PER_CALL, CHUNK = 200, 10_000
DISTINCT = 100_000
BARE, RECORDS, CHUNKS, PORT = "kafka-python, bare loop", "KafkaBolt, records", "KafkaBolt, chunks", "our producer alone"
LATENCY, RATE, LATENCY_S = "latency", 20_000, 5
"""Of the port alone, by its linger in ms, at this rate and for this time."""
LINGERS_MS = (0, 5, 20)
CONFLUENT = "confluent-kafka, bare loop"


class RecordSpout(streamparse.Spout):
    outputs: ClassVar = ["key", "message"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.rows = ROWS
        self.number = 0

    def next_tuple(self) -> None:
        emit, rows, number = self.emit, self.rows, self.number
        for row in rows[number % DISTINCT : number % DISTINCT + PER_CALL]:
            number += 1
            emit(row, tup_id=number)
        self.number = number


class ChunkSpout(streamparse.Spout):
    outputs: ClassVar = ["key", "message"]

    def initialize(self, conf: Any, context: Any) -> None:
        keys, values = zip(*ROWS, strict=True)
        whole = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "message"])
        self.chunks = [whole.slice(start, CHUNK) for start in range(0, len(ROWS), CHUNK)]
        self.number = 0

    def next_tuple(self) -> None:
        self.emit(self.chunks[self.number % len(self.chunks)], tup_id=self.number)
        self.number += 1


ROWS: list[list[bytes]] = []


def engine(bootstrap: str, topic: str, records: int, spout: Any) -> float:
    """Run a spout and a KafkaBolt; return the CPU-seconds."""

    class Flow(Topology):
        rows = spout.spec()
        out = KafkaBolt.spec(inputs=[rows], topic=topic, key_format="bytes", message_format="bytes")

    conf = {"kafka.bootstrap": bootstrap, "topology.message.timeout.secs": 120, "topology.max.spout.pending": 100_000}
    graph = from_class(Flow, "bench")
    if spout is ChunkSpout:
        conf["topology.max.spout.pending"] = 80_000
    confs = {name: {**component.config, **conf} for name, component in graph.components.items()}
    made = Engine(graph, confs, bounds=Bounds(records=records), rng=random.Random(1))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    start = time.process_time()
    result = made.run()
    assert result.completed, result
    return time.process_time() - start


def port(bootstrap: str, topic: str, records: int) -> float:
    """Send through the port, and count the answers; return the CPU-seconds."""
    producer = cluster_for(bootstrap).producer(client={"linger_ms": 5})
    start, done = time.process_time(), 0
    for number in range(records):
        key, value = ROWS[number % DISTINCT]
        producer.send(topic, key=key, value=value, token=number)
        if number % 256 == 0:
            done += sum(len(sent.tokens) for sent in producer.results())
            while producer.buffered_bytes > 32 << 20:
                time.sleep(0.002)
                done += sum(len(sent.tokens) for sent in producer.results())
    producer.flush(60)
    results = producer.results()
    assert not [sent for sent in results if sent.error]
    assert done + sum(len(sent.tokens) for sent in results) == records
    seconds = time.process_time() - start
    producer.close()
    return seconds


def latency(bootstrap: str, topic: str, linger_ms: int) -> list[float]:
    """Send at a fixed rate, polling for answers every ms; return the sorted latencies in seconds."""
    producer = cluster_for(bootstrap).producer(client={"linger_ms": linger_ms})
    count, done, found = RATE * LATENCY_S, 0, []
    begin_at = time.monotonic()
    while len(found) < count:
        due = min(count, int((time.monotonic() - begin_at) * RATE))
        for number in range(done, due):
            key, value = ROWS[number % DISTINCT]
            producer.send(topic, key=key, value=value, token=time.monotonic())
        done = due
        now = time.monotonic()
        for sent in producer.results():
            assert sent.error is None, sent.error
            found += [now - token for token in sent.tokens]
        time.sleep(0.001)
    producer.close()
    return sorted(found)


def one(name: str, bootstrap: str, topic: str, records: int, file: str) -> None:
    """Run one of our contenders."""
    ROWS.extend(map(list, pickle.loads(Path(file).read_bytes())))
    if name.startswith(LATENCY):
        found = latency(bootstrap, topic, int(name.removeprefix(LATENCY)))
        print(*(found[int(len(found) * share)] * 1000 for share in (0.5, 0.99)))
    elif name == PORT:
        print(port(bootstrap, topic, records))
    else:
        print(engine(bootstrap, topic, records, RecordSpout if name == RECORDS else ChunkSpout))


def written(bootstrap: str, topic: str) -> int:
    """Return the number of records in a topic."""
    asker = cluster_for(bootstrap).consumer(group=None)
    found = asker.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
    asker.close()
    return sum(found.values())


def command(name: str) -> list[str]:
    """Return the command of a contender."""
    if name == BARE:
        return [sys.executable, str(PEERS / "kafka_python_producer.py")]
    if name == CONFLUENT:
        return [str(python_of("confluent_loop")), str(PEERS / "confluent_producer.py")]
    return [sys.executable, "-m", "bench.producing", "--one", name]


def main() -> None:
    options = Options(__doc__, runs=3)
    options.size("--records", 1_000_000, 100_000, type=int)
    given, before = options.read(), load()
    contenders = [BARE, RECORDS, CHUNKS, PORT]
    notes = []
    try:
        python_of("confluent_loop")
        contenders.append(CONFLUENT)
    except UnavailableError as error:
        notes.append(f"confluent-kafka could not be installed: {error}")
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    with TemporaryDirectory() as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        file = Path(scratch) / "rows"
        file.write_bytes(pickle.dumps(list(flights(DISTINCT))))
        cluster = cluster_for(broker.bootstrap)
        for number, name in by_turns(contenders, given.runs):
            topic = f"out-{number}-{contenders.index(name)}"
            cluster.ensure_topic(topic, PARTITIONS)
            more = [broker.bootstrap, topic, str(given.records), str(file)]
            found = subprocess.run([*command(name), *more], capture_output=True, text=True, timeout=600)
            if found.returncode:
                raise SystemExit(found.stderr[-3000:])
            assert written(broker.bootstrap, topic) >= given.records, name
            figures[name].append(float(found.stdout.split()[-1]) / given.records * 1e6)
            say(f"{name}: {figures[name][-1]:.2f} CPU-s per million")
        waits = []
        for linger_ms in LINGERS_MS:
            topic = f"late-{linger_ms}"
            cluster.ensure_topic(topic, PARTITIONS)
            more = [broker.bootstrap, topic, "0", str(file)]
            late = [sys.executable, "-m", "bench.producing", "--one", f"{LATENCY}{linger_ms}", *more]
            said = subprocess.run(late, capture_output=True, text=True, timeout=120, check=True).stdout.split()
            waits.append([f"{linger_ms} ms", *(f"{float(value):.1f}" for value in said)])
            say(f"linger {waits[-1][0]}: p50 {waits[-1][1]} ms, p99 {waits[-1][2]} ms")
    bare = sorted(figures[BARE])[len(figures[BARE]) // 2]
    rows = [
        [name, spread(values), f"{sorted(values)[len(values) // 2] / bare:.2f}"] for name, values in figures.items()
    ]
    text = table(["what", "CPU-s per million records", "× bare kafka-python"], rows)
    text += f"\n\nFrom `send` to the answer, at {RATE:,} records/s:\n\n"
    text += table(["linger", "p50, ms", "p99, ms"], waits)
    head = f"# Writing to Kafka\n\n{given.records:,} records. {machine(before)}"
    save(given.results, "producing", f"{head}\n\n{text}", figures, notes)


if __name__ == "__main__":
    if "--one" in sys.argv:
        name, bootstrap, topic, records, file = sys.argv[sys.argv.index("--one") + 1 :]
        one(name, bootstrap, topic, int(records), file)
    else:
        begin(main)
