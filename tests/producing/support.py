"""Shared code for tests of KafkaBolt."""

from __future__ import annotations

from collections import Counter

from downspout.kafka import Record
from tests.spout.spout_driver import Kafka

IN, OUT = "in", "out"


def committed(kafka: Kafka, topic: str = OUT) -> Counter[bytes | None]:
    return Counter(record.value for record in kafka.records(topic))


def written(kafka: Kafka, topic: str = OUT) -> list[Record]:
    return list(kafka.records(topic))
