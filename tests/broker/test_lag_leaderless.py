"""The lag of a group while a broker of three is gone for good: partitions without a leader are named, others shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.broker import EmbeddedCluster
from downspout.kafka import NO_LEADER, KafkaCluster, OffsetAndMetadata, TopicPartition
from downspout.offsets import Question, collect
from tests.kafka.broker_stage import RealStage, wait_until
from tests.kafka.stage import unique

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PARTITIONS = 3


@pytest.fixture
def brokers(three_brokers: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    three_brokers.start()
    yield three_brokers
    three_brokers.start()


def test_a_partition_without_a_leader_is_one_row(brokers: EmbeddedCluster) -> None:
    """With one replica each, a killed broker takes its partitions along: they say so, and keep their commits."""
    cluster, topic, group = KafkaCluster(brokers.bootstrap), unique(), unique("g")
    stage = RealStage(brokers.bootstrap)
    stage.create(topic, PARTITIONS)  # with one replica of each
    stage.close()
    producer = cluster.producer()
    for partition in range(PARTITIONS):
        producer.send(topic, key=None, value=b"x", partition=partition)
    producer.flush()
    producer.close()
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer = cluster.consumer(group=group)
    consumer.assign(places)
    consumer.commit({tp: OffsetAndMetadata(0, "", -1) for tp in places})
    consumer.close()
    leaders = cluster.leaders(topic)
    gone = next(node for node in leaders.values() if node != brokers.coordinator(group))
    lost = {partition for partition, node in leaders.items() if node == gone}
    brokers.node(gone).kill()

    def is_known() -> bool:
        logs = cluster.describe_logs([topic])[topic].partitions
        return all(logs[partition].problem == NO_LEADER for partition in lost)

    wait_until(is_known)
    found = collect(cluster, group, Question(with_age=False))
    rows = {row.partition: (row.committed, row.lag, row.problem) for row in found.partitions}
    for partition in range(PARTITIONS):
        assert rows[partition] == ((0, None, NO_LEADER) if partition in lost else (0, 1, ""))
    assert found.total.problems == len(lost)
