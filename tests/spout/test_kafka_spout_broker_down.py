"""The broker is away when the spout rests and comes back."""

from __future__ import annotations

import io

import pytest
from kafka import errors

from downspout.errors import BrokerError
from downspout.spout import rebalancing
from spouts.kafka import KafkaSpout
from tests.spout.spout_driver import Driver, Kafka, fill


def test_activate_goes_on_trying(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spout that has left the group, and finds no broker when it is to join again, tries until there is one."""
    driver = Driver(kafka)
    driver.run(2)
    driver.ack_all()
    driver.spout.deactivate()
    opened = rebalancing.open_consumer
    tries = []

    def refuse(*args: object) -> object:
        tries.append(args)
        if len(tries) < 3:
            raise BrokerError("No Kafka")
        return opened(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(rebalancing, "open_consumer", refuse)
    driver.spout.activate()
    for _ in range(10):
        driver.spout.next_tuple()
    assert len(tries) == 1  # not at every call
    fill(kafka, 1)
    for _ in range(3):
        kafka.clock.sleep(2.1)
        driver.spout.next_tuple()
    assert len(tries) == 3
    driver.run(4)
    assert driver.offsets[-1] == 10


@pytest.mark.fake_only("a call of the real client cannot be made to last a given time")
@pytest.mark.parametrize("call", ["topic_ids", "poll", "end_offsets"])
def test_a_back_off_begins_when_the_call_has_failed(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A call that fails after 4 s is not made again in the very next turn: its back-off is not over before it began."""
    driver = Driver(kafka, poll_timeout_ms=0)  # the turns themselves take no time
    driver.run(2)
    driver.ack_all()
    kafka.clock.sleep(3)
    consumer, calls = driver.session.consumer, []

    def fail_late(*args: object) -> object:
        calls.append(args)
        kafka.clock.sleep(4)
        raise errors.KafkaTimeoutError("silence")

    if call == "end_offsets":  # which is asked for where a poll finds its position outside the log
        kafka.faults.fail_next("poll", errors.OffsetOutOfRangeError({}), times=2)
    monkeypatch.setattr(consumer, call, fail_late)
    driver.run(1)
    assert len(calls) == 1
    driver.run(3)
    assert len(calls) == 1


def test_a_spout_that_never_began_closes_quietly() -> None:
    """Where no broker answers at the start that is the error, and closing adds none of its own."""
    spout = KafkaSpout(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    spout.component_name = "reader"
    with pytest.raises(BrokerError, match="No Kafka at"):
        spout.initialize({"kafka.topics": ["orders"], "kafka.bootstrap": "127.0.0.1:1"}, {"taskid": 1})
    spout.close()
