"""The whole records that a spout still has."""

from __future__ import annotations

import pytest

from downspout.ledger import Origin
from tests.spout.spout_driver import TOPIC, Driver, Kafka

HEADERS = [("trace", b"\x00")]


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_a_spout_has_what_it_read_last(bare_kafka: Kafka, emit: str) -> None:
    """A record that is out is given whole, by its topic's id too; one that was never read, or is elsewhere, is not."""
    bare_kafka.create_topic(TOPIC, 2)
    for number in range(3):
        bare_kafka.produce(TOPIC, b"%d" % number, key=b"k", headers=HEADERS, partition=0, timestamp_ms=1_000 + number)
    driver = Driver(bare_kafka, emit=emit, chunk_records_max=2)
    driver.run()
    topic_id = bare_kafka.topic_id(TOPIC)
    found = driver.spout.record_at(Origin(TOPIC, topic_id, 0, 1))
    assert found is not None
    assert (found.offset, found.key, found.value, list(found.headers), found.timestamp) == (
        1,
        b"k",
        b"1",
        HEADERS,
        1_001,
    )
    for origin in (
        (TOPIC, topic_id, 0, 3),
        (TOPIC, topic_id, 1, 1),
        (TOPIC, "other", 0, 1),
        ("others", topic_id, 0, 1),
    ):
        assert driver.spout.record_at(Origin(*origin)) is None
