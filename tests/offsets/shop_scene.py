"""The scene of docs/how-to/monitor.md: a group that is behind, with something failed, and a partition never read."""

from __future__ import annotations

from downspout.kafka import Cluster, OffsetAndMetadata, TopicPartition
from downspout.ledger import encode

TOPIC, GROUP = "orders", "shop"
RECORDS = (120, 80, 5)
AGE_MS = 95_000


def make(cluster: Cluster, now_ms: int) -> None:
    """Write the records, and commit as a spout would that has records failed and done beyond its commit."""
    cluster.ensure_topic(TOPIC, len(RECORDS))
    producer = cluster.producer()
    for partition, count in enumerate(RECORDS):
        for _ in range(count):
            producer.send(TOPIC, key=None, value=b"{}", partition=partition, timestamp_ms=now_ms - AGE_MS)
    producer.flush()
    producer.close()
    consumer = cluster.consumer(group=GROUP)
    facts = {"topology_id": "shop-1", "topic_id": consumer.topic_id(TOPIC)}
    behind = encode(100, task=4, done=[(103, 110), (112, 113)], failures=[(100, 2)], **facts)
    at_end = encode(80, task=5, **facts)
    consumer.assign([TopicPartition(TOPIC, number) for number in range(len(RECORDS))])
    consumer.commit(
        {
            TopicPartition(TOPIC, 0): OffsetAndMetadata(100, behind, -1),
            TopicPartition(TOPIC, 1): OffsetAndMetadata(80, at_end, -1),
        }
    )
    consumer.close()
