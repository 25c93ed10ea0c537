from __future__ import annotations

from typing import Any

import pytest
from kafka import errors

from downspout.batches.batch_reader import BatchLimits, BatchReader
from downspout.clock import SYSTEM_CLOCK
from downspout.kafka import TopicPartition
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
        offsets = [record.offset for record in reader.fresh({one: 0}, {one: 2}, BatchLimits(9, 999))[one].records]
    assert offsets == [0, 1]
    again = reader.fresh({one: 2, other: 0}, {one: 3, other: 0}, BatchLimits(9, 999))
    assert [record.offset for record in again[one].records] == [2]
    assert again[other] == ([], 0)


def test_an_error_in_the_middle_of_a_batch_loses_nothing(kafka: FakeKafka) -> None:
    """What was taken before a poll raised is read again by the next attempt, which starts at the same offset."""
    one = TopicPartition("lines", 0)
    for number in range(6):
        kafka.produce("lines", value=b"%d" % number, partition=0)
    consumer: Any = kafka.consumer(group=None)
    poll = consumer.poll
    consumer.poll = lambda timeout_ms, max_records: poll(timeout_ms, 1)
    reader = BatchReader(consumer, SYSTEM_CLOCK, 10)
    reader.assign([one])

    def read(start: int) -> list[int]:
        return [record.offset for record in reader.fresh({one: start}, {one: 6}, BatchLimits(3, 999))[one].records]

    assert read(0) == [0, 1, 2]
    for brought in range(3):

        def fails(timeout_ms: int, max_records: int, left: list[int] = [brought]) -> Any:  # noqa: B006
            left[0] -= 1
            if left[0] < 0:
                raise errors.KafkaTimeoutError
            return poll(timeout_ms, 1)

        consumer.poll = fails
        with pytest.raises(errors.KafkaTimeoutError):
            read(3)
    consumer.poll = poll
    assert read(3) == [3, 4, 5]
