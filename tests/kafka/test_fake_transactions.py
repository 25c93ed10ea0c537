"""Lost answers in the fake Kafka's transactions: the offsets show whether they took effect."""

from __future__ import annotations

import pytest
from kafka import errors

from downspout.kafka import GroupMembership, OffsetAndMetadata, TopicPartition
from downspout.testing import FakeKafka

pytestmark = pytest.mark.fake_only("it is the fake itself that is tested")

TP = TopicPartition("out", 0)


@pytest.mark.parametrize("step", ["begin", "send_offsets", "commit_transaction", "abort_transaction"])
@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_ends_the_producer_and_nothing_is_half_done(step: str, applied: bool) -> None:
    """Whatever step it is of: a successor finds records and offsets both, or neither, and its own are whole."""
    with FakeKafka("lost") as kafka:
        kafka.create_topic("out")
        first = kafka.transactional_producer("id")
        kafka.faults.fail_next(step, errors.KafkaTimeoutError("no answer"), applied=applied)
        with pytest.raises(errors.KafkaTimeoutError):  # noqa: PT012
            first.begin()
            first.send("out", key=None, value=b"1", token=1)
            first.send_offsets({TP: OffsetAndMetadata(1, "", -1)}, GroupMembership("g"))
            (first.abort if step == "abort_transaction" else first.commit)()
        assert first.is_over
        second = kafka.transactional_producer("id")
        is_committed = step == "commit_transaction" and applied
        assert (TP in kafka.committed("g")) == is_committed
        assert [record.value for record in kafka.records("out")] == ([b"1"] if is_committed else [])
        second.begin()
        second.send("out", key=None, value=b"2", token=2)
        second.commit()
        assert [record.value for record in kafka.records("out")][-1:] == [b"2"]
