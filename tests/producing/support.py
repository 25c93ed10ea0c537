"""What tests of KafkaBolt share."""

from __future__ import annotations

from collections import Counter

from downspout.kafka import Record, TopicPartition
from tests.spout.spout_driver import Kafka

IN, OUT = "in", "out"


def committed(kafka: Kafka, topic: str = OUT) -> Counter[bytes | None]:
    """Return how often a read_committed reader sees each value."""
    reader = kafka.consumer(group=None)
    partitions = [TopicPartition(topic, number) for number in reader.partitions_for(topic)]
    reader.assign(partitions)
    ends = reader.end_offsets(partitions)
    for tp, begin in reader.beginning_offsets(partitions).items():
        reader.seek(tp, begin)
    found: Counter[bytes | None] = Counter()
    while any(reader.position(tp) < ends[tp] for tp in partitions):
        for records in reader.poll(100, 1000).values():
            found.update(record.value for record in records)
    reader.close()
    return found


def written(kafka: Kafka, topic: str = OUT) -> list[Record]:
    """Return what is in a topic, partition by partition."""
    return list(kafka.records(topic))
