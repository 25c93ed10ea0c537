"""Run a topology on given records, each at its own offset: what an audit asks of a memory (``audit/replay.py``)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from downspout.component import Bolt
from downspout.dead_letters.dead_letter import DeadLetter, read_dead_letters
from downspout.engine.graph import Graph
from downspout.engine.settings import reads
from downspout.kafka.port import Record, TopicPartition
from downspout.settings.table import SETTINGS
from downspout.testing.fake_kafka import FakeKafka
from downspout.testing.harness import run_topology

LETTERS = "given-records.dead-letters"
BOUNDS = ("kafka.start_offsets", "kafka.stop_offsets", "kafka.partitions", "kafka.offset_store")


def run_on_records(graph: Graph, sinks: type[Bolt], records: Sequence[Record]) -> list[DeadLetter]:
    """Run a topology with another class for all its sinks, and return the dead letters of what failed.

    Each record is tried once. Spouts that do not read Kafka emit nothing.
    """
    components = {
        bolt.name: replace(bolt, cls=sinks, par=1, config={}) for bolt in graph.bolts if reads(bolt, "parquet")
    }
    others = [spout.name for spout in graph.spouts if not reads(spout, "kafka")]
    with FakeKafka(f"given-{id(components)}") as kafka, _silence():
        _fill(kafka, graph, records)
        run_topology(
            replace(graph, components={**graph.components, **components}),
            spouts={name: [] for name in others},
            config={
                "kafka.bootstrap": kafka.bootstrap,
                "kafka.group": "given-records",
                "kafka.start": "EARLIEST",
                "kafka.on_data_loss": "earliest",
                "kafka.guarantee": "AT_LEAST_ONCE",
                "kafka.dead_letter_topic": LETTERS,
                "kafka.retries_max": 0,
                "kafka.emit": "record",
                # All of the records may be bad: that is what is asked.
                "kafka.breaker_ratio": 0.0,
                "run.restarts_max": len(records),
                # What bounded the run, or each of its workers, says nothing of these records.
                **{key: SETTINGS[key].default for key in BOUNDS},
                "topology.acker.executors": 1,
            },
        )
        return list(read_dead_letters(kafka, LETTERS))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the bolts' errors out of the log: the dead letters hold them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _fill(kafka: FakeKafka, graph: Graph, records: Sequence[Record]) -> None:
    """Put each record at its own offset; topics of the topology that have none are there and empty."""
    partitions: dict[str, int] = {}
    for spout in graph.spouts:
        for topic in spout.config.get("kafka.topics") or ():
            partitions[str(topic)] = 1
    for record in records:
        partitions[record.topic] = max(partitions.get(record.topic, 1), record.partition + 1)
    for topic, count in partitions.items():
        kafka.create_topic(topic, count)
    for record in sorted(records, key=lambda r: (r.topic, r.partition, r.offset)):
        log = kafka.log(TopicPartition(record.topic, record.partition))
        if record.offset > log.end:
            kafka.gap(record.topic, record.partition, record.offset - log.end)
        kafka.produce(
            record.topic,
            record.value,
            record.key,
            partition=record.partition,
            headers=record.headers,
            timestamp_ms=record.timestamp,
        )
