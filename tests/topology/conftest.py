from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.testing.fake_kafka import FakeKafka
from tests.topology.spout_driver import TOPIC, fill


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A fake Kafka with one topic of one partition and ten records, whose values are their offsets."""
    with FakeKafka("spout") as kafka:
        kafka.create_topic(TOPIC, 1)
        fill(kafka, 10)
        yield kafka
