from __future__ import annotations

from typing import Any

import pytest

from downspout.batches.reader import BatchReader, Limits
from downspout.clock import SYSTEM_CLOCK
from downspout.kafka.port import TopicPartition
from downspout.testing import FakeKafka

pytestmark = pytest.mark.fake_only("the real client raises NoOffsetForPartitionError where this test fails")


@pytest.mark.parametrize("exactly", [True, False])
def test_each_partition_has_a_position_before_a_poll(kafka: FakeKafka, exactly: bool) -> None:
    """Also one of which a batch has no records: the client refuses to poll as long as one has none."""
    one, other = TopicPartition("lines", 0), TopicPartition("lines", 1)
    for number in range(3):
        kafka.produce("lines", value=b"%d" % number, partition=0)
    consumer: Any = kafka.consumer(group=None)
    sought, poll, seek = set[TopicPartition](), consumer.poll, consumer.seek

    def placed(tp: TopicPartition, offset: int) -> None:
        sought.add(tp)
        seek(tp, offset)

    def polled(timeout_ms: int, max_records: int) -> Any:
        assert sought == {one, other}
        return poll(timeout_ms, max_records)

    consumer.seek, consumer.poll = placed, polled
    reader = BatchReader(consumer, SYSTEM_CLOCK, 10)
    reader.assign([one, other])
    if exactly:
        found = reader.exactly({one: (0, 1)}, SYSTEM_CLOCK.monotonic() + 60)
        assert found is not None
        offsets = [record.offset for record in found[one]]
    else:
        offsets = [record.offset for record in reader.fresh({one: 0}, {one: 2}, Limits(9, 999))[one].records]
    assert offsets == [0, 1]
    again = reader.fresh({one: 2, other: 0}, {one: 3, other: 0}, Limits(9, 999))
    assert [record.offset for record in again[one].records] == [2]
    assert again[other] == ([], 0)
