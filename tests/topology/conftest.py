from __future__ import annotations

import pytest

from tests.topology.spout_driver import PARTITIONS, RECORDS, TOPIC, Kafka, fill


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka with one topic of one partition and ten records, whose values are their offsets."""
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 10)
    return bare_kafka


@pytest.fixture
def wide(wide_kafka: Kafka) -> Kafka:
    """A Kafka with one topic of four partitions."""
    wide_kafka.create_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        fill(wide_kafka, RECORDS, partition)
    return wide_kafka
