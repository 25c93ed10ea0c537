"""A broker's outage is not a record's fault: no record is given up, and other brokers' records continue."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors
from streamparse import Topology

from bolts.kafka import KafkaBolt
from downspout.errors import UnavailableError
from downspout.kafka import TopicPartition, partition_of_key
from downspout.producing import error_of_record
from downspout.testing import FakeKafka, VirtualClock, run_topology
from spouts.kafka import KafkaSpout
from tests.producing.support import IN, OUT, committed, written

AWAY_S = 40.0
RECORDS = 60
TIMEOUT_S = 10


class AwayUntil(set[TopicPartition]):
    def __init__(self, places: Any, clock: VirtualClock, until: float) -> None:
        super().__init__(places)
        self.clock, self.until = clock, until

    def __contains__(self, place: object) -> bool:
        return self.clock.monotonic() < self.until and super().__contains__(place)


class Keyed(Topology):
    lines = KafkaSpout.spec(topics=[IN], group="keyed", fields=["key", "value", "origin"])
    out = KafkaBolt.spec(inputs=[lines], topic=OUT, fields={"message": "value"})


@pytest.mark.fake_only("its leaders are away for minutes of virtual time")
def test_a_partition_that_cannot_be_written_stops_no_other_and_costs_no_record() -> None:
    """Its leader is away for four message timeouts, and few tuples may be out: the other partitions' are written
    meanwhile, its own afterwards; none is a dead letter."""
    clock = VirtualClock()
    with FakeKafka("away", clock) as kafka:
        kafka.create_topic(IN, 2)
        kafka.create_topic(OUT, 3)
        for number in range(RECORDS):
            kafka.produce(IN, b"%d" % number, key=b"%d" % number, partition=number % 2)
        until = clock.monotonic() + AWAY_S
        back_ms = (clock.wall() + AWAY_S) * 1000
        kafka.leaderless = AwayUntil({TopicPartition(OUT, 1)}, clock, until)
        config = {
            "kafka.bootstrap": kafka.bootstrap, "topology.message.timeout.secs": TIMEOUT_S, "run.until": "end",
            "topology.max.spout.pending": 10, "produce.auto_create": False,
        }  # fmt: skip
        run_topology(Keyed, config=config, clock=clock)
        found = written(kafka)
        assert {record.value for record in found} == {b"%d" % number for number in range(RECORDS)}
        late = [record for record in found if record.timestamp >= back_ms]
        assert {record.partition for record in late} == {1}
        lost_place = {b"%d" % n for n in range(RECORDS) if partition_of_key(b"%d" % n, 3) == 1}
        assert {record.value for record in late} == lost_place
        assert kafka.topic("keyed.dead-letters") is None


class Exact(Topology):
    lines = KafkaSpout.spec(topics=[IN], group="exact", fields=["value", "origin"], transaction_ms=50)
    out = KafkaBolt.spec(inputs=[lines], topic=OUT, fields={"message": "value"}, transactional=True)


@pytest.mark.fake_only("its leaders are away for minutes of virtual time")
@pytest.mark.parametrize(("emit", "retries_max"), [("chunk", 1), ("record", 0)])
def test_transactions_wait_for_a_leader_and_no_record_is_given_up(emit: str, retries_max: int) -> None:
    """With hardly a retry, through an outage of several transactions: each result is there once in the end."""
    clock = VirtualClock()
    with FakeKafka("away", clock) as kafka:
        kafka.create_topic(IN, 2)
        kafka.create_topic(OUT, 3)
        for number in range(RECORDS):
            kafka.produce(IN, b"%d" % number, partition=number % 2)
        away = {TopicPartition(OUT, number) for number in range(3)}
        kafka.leaderless = AwayUntil(away, clock, clock.monotonic() + 2 * TIMEOUT_S)
        config = {
            "kafka.bootstrap": kafka.bootstrap, "topology.message.timeout.secs": TIMEOUT_S, "run.until": "end",
            "kafka.retries_max": retries_max, "kafka.emit": emit, "produce.auto_create": False,
        }  # fmt: skip
        run_topology(Exact, config=config, clock=clock)
        assert committed(kafka) == dict.fromkeys((b"%d" % number for number in range(RECORDS)), 1)
        assert kafka.topic("exact.dead-letters") is None


@pytest.mark.parametrize("error", [
    errors.KafkaTimeoutError(None), errors.OutOfOrderSequenceNumberError(), errors.InvalidProducerIdMappingError(),
    errors.InvalidProducerEpochError(), errors.ProducerFencedError(), errors.InvalidTxnStateError(),
    errors.KafkaError("Could not execute transactional request for unknown reasons: no answer"),
    errors.RequestTimedOutError(), errors.IllegalStateError("the producer is closed"), errors.Cancelled(),
])  # fmt: skip
def test_what_concerns_brokers_or_a_producer_counts_no_attempt(error: errors.KafkaError) -> None:
    """Whatever the class says of being retriable: another record would have fared no better."""
    assert isinstance(error_of_record("out", "", "out[0]", error), UnavailableError)
    assert "None" not in str(error_of_record("out", "", "out[0]", error))
