"""What reading costs: flights polled as columns, beside kafka-python's own poll loop, on one topic, by turns.

    python -m bench.columns [--records 1000000] [--runs 5] [--codec lz4] [--quick]

Nothing is done with what was read but to see that each offset came once and in order. CPU time is without that of
starting (a run over four records).
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.flights import PARTITIONS, flights
from bench.harness import Options, begin, by_turns, load, machine, mib, run, save, say, spread, table
from bench.track import RECORD_S_MAX, START_S_MAX
from downspout.broker.embedded import EmbeddedKafka
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition

POLL_RECORDS_MAX = 20_000
HEADERS = [("source", b"bench"), ("trace", b"0123456789abcdef")]


@dataclass
class Way:
    """One way of reading, and what it took.

    Attributes:
        key: its name on the command line.
        name: its name in the table.
        topic: what it reads.
        each_us: CPU-microseconds per record in each run.
        rss: peak memory of each run, in bytes.
    """

    key: str
    name: str
    topic: str = "plain"
    each_us: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)


def ways() -> list[Way]:
    return [
        Way("client", "kafka-python's own poll loop"),
        Way("record", "Downspout's consumer, records"),
        Way("columns", "Downspout's consumer, columns"),
        Way("columns", "the same, two headers each", "headers"),
    ]


def read_with_the_client(bootstrap: str, topic: str, count: int) -> None:
    """Read a topic to its end, in this process."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends, seen = dict.fromkeys(partitions, 0), 0
    while seen < count:
        for tp, records in consumer.poll(timeout_ms=200, max_records=POLL_RECORDS_MAX).items():
            assert (records[0].offset, records[-1].offset) == (ends[tp], ends[tp] + len(records) - 1)
            ends[tp] += len(records)
            seen += len(records)
    assert seen == count
    consumer.close()


def read_with_ours(bootstrap: str, topic: str, count: int, columns: bool) -> None:
    """Read a topic to its end, in this process."""
    consumer = cluster_for(bootstrap).consumer(group=None, columns=columns)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    for tp in partitions:
        consumer.seek(tp, 0)
    ends, seen = dict.fromkeys(partitions, 0), 0
    while seen < count:
        for tp, records in consumer.poll(200, POLL_RECORDS_MAX).items():
            found: Any = records
            first, last = (found.offsets[0], found.offsets[-1]) if columns else (found[0].offset, found[-1].offset)
            assert (first, last) == (ends[tp], ends[tp] + len(found) - 1)
            ends[tp] += len(found)
            seen += len(found)
    assert seen == count
    consumer.close()


def publish(bootstrap: str, topic: str, count: int, codec: str | None) -> None:
    say(f"publishing {count:,} flights to {topic}")
    cluster = cluster_for(bootstrap)
    cluster.ensure_topic(topic, PARTITIONS)
    producer = cluster.producer(client={"linger_ms": 20, "batch_size": 256 * 1024, "compression_type": codec})
    headers = HEADERS if topic.startswith("headers") else []
    for number, (key, value) in enumerate(flights(count)):
        producer.send(topic, key=key, value=value, headers=headers, partition=number % PARTITIONS)
    producer.flush(120)
    producer.close()


def measure(bootstrap: str, way: Way, count: int) -> None:
    """Run a way over the few records and over all, and keep what a record costs."""
    command = [sys.executable, "-m", "bench.columns", "--read", way.key, bootstrap]
    start = run([*command, f"{way.topic}-few", str(PARTITIONS)], START_S_MAX)
    cost = run([*command, way.topic, str(count)], START_S_MAX + count * RECORD_S_MAX)
    way.each_us.append((cost.cpu_s - start.cpu_s) / (count - PARTITIONS) * 1e6)
    way.rss.append(cost.rss_bytes)
    say(f"{way.name}: {way.each_us[-1]:.2f} CPU-s per million")


def report(measured: list[Way], count: int, codec: str | None, described: str) -> str:
    base = statistics.median(measured[0].each_us)
    rows = [
        [
            way.name,
            spread(way.each_us),
            f"{statistics.median(way.each_us) / base:.2f}x",
            mib(statistics.median(way.rss)),
        ]
        for way in measured
    ]
    columns = ("what", "CPU-s per million", "against kafka-python", "peak memory")
    return "\n".join([
        "# Reading as columns", "",
        f"{count:,} flights, {PARTITIONS} partitions, compression: {codec or 'none'}; medians of "
        f"{len(measured[0].each_us)} runs by turns (min – max), without what starting costs. `python -m bench.columns`",
        "", described, "", table(columns, rows),
    ])  # fmt: skip


def main() -> None:
    """Publish, run each way in turn, print and save the table."""
    parser = Options(__doc__, runs=5)
    parser.size("--records", 1_000_000, 20_000, type=int)
    parser.add_argument("--codec", choices=["gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--read", nargs=4, metavar=("WAY", "BOOTSTRAP", "TOPIC", "RECORDS"), help="one run, here")
    options = parser.read()
    if options.read:
        way, bootstrap, topic, count = options.read
        if way == "client":
            read_with_the_client(bootstrap, topic, int(count))
        else:
            read_with_ours(bootstrap, topic, int(count), way == "columns")
        return
    before, measured = load(), ways()
    with TemporaryDirectory() as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        for topic in ("plain", "headers"):
            publish(broker.bootstrap, f"{topic}-few", PARTITIONS, options.codec)
            publish(broker.bootstrap, topic, options.records, options.codec)
        for _, way in by_turns(measured, options.runs):
            measure(broker.bootstrap, way, options.records)
    text = report(measured, options.records, options.codec, machine(before))
    save(options.results, f"columns-{options.codec}" if options.codec else "columns", text, measured)


if __name__ == "__main__":
    begin(main)
