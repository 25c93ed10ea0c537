"""The fake beyond the contract: failures on command, and deaths of a group's members."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import errors

from downspout.kafka import OffsetAndMetadata, TopicPartition, clusters
from downspout.testing import FakeConsumer, FakeKafka, VirtualClock
from tests.kafka.stage import CLIENT, Facts, die_between_two_rounds, fall_out_while_joining, poll_until

pytestmark = pytest.mark.fake_only("it is the fake itself that is tested")

TP = TopicPartition("t", 0)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A cluster with one topic of four partitions and eight records."""
    with FakeKafka("beyond") as cluster:
        cluster.create_topic("t", 4)
        for number in range(8):
            cluster.produce("t", b"%d" % number)
        yield cluster


def _session(kafka: FakeKafka, **client: int) -> tuple[FakeConsumer, Facts]:
    consumer, facts = kafka.consumer(group="g", client={"session_timeout_ms": 10_000, **client}), Facts()
    consumer.subscribe(["t"], facts)
    return consumer, facts


def _offset(offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TP: OffsetAndMetadata(offset, "", -1)}


def test_it_answers_for_its_name_until_it_is_closed() -> None:
    """The fake is found by its bootstrap string inside the block and not after it."""
    with FakeKafka("named") as kafka:
        assert kafka.bootstrap == "fake://named"
        assert clusters.cluster_for("fake://named") is kafka
    assert not clusters.is_registered("fake://named")


def test_a_fault_is_met_as_often_as_asked(kafka: FakeKafka) -> None:
    """A fault without effect leaves the cluster as it was, and the call works once the fault is used up."""
    consumer = kafka.consumer(group="g")
    consumer.assign([TP])
    kafka.faults.fail_next("commit", errors.RequestTimedOutError, times=2)
    for _ in range(2):
        with pytest.raises(errors.RequestTimedOutError):
            consumer.commit(_offset(1))
    assert kafka.committed("g") == {}
    consumer.commit(_offset(1))
    assert kafka.committed("g")[TP].offset == 1
    assert kafka.faults.pending() == {}


def test_a_lost_answer_leaves_the_effect(kafka: FakeKafka) -> None:
    """With applied=True the commit raises and yet holds."""
    consumer = kafka.consumer(group="g")
    consumer.assign([TP])
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError("no answer"), applied=True)
    with pytest.raises(errors.KafkaTimeoutError, match="no answer"):
        consumer.commit(_offset(1))
    assert kafka.committed("g")[TP].offset == 1


def test_a_poll_that_fails_loses_no_record(kafka: FakeKafka) -> None:
    consumer = kafka.consumer(group=None)
    consumer.assign([TP])
    kafka.faults.fail_next("poll", errors.CorruptRecordError)
    with pytest.raises(errors.CorruptRecordError):
        consumer.poll(0, 10)
    assert [record.offset for record in consumer.poll(0, 10)[TP]] == [0, 1]


@pytest.mark.parametrize("applied", [False, True], ids=["not written", "answer lost"])
def test_a_send_that_fails_tells_in_flush(kafka: FakeKafka, applied: bool) -> None:
    """A failed flush raises; whether its records are in the log is as asked."""
    producer = kafka.producer()
    producer.send("t", key=None, value=b"x", partition=0)
    kafka.faults.fail_next("flush", errors.KafkaTimeoutError, applied=applied)
    with pytest.raises(errors.KafkaTimeoutError):
        producer.flush()
    producer.flush()
    assert kafka.log(TP).end == 2 + applied


def test_an_unknown_fault_is_refused(kafka: FakeKafka) -> None:
    """A fault that could never be met is an error when it is asked for."""
    with pytest.raises(ValueError, match="comit"):
        kafka.faults.fail_next("comit", errors.KafkaTimeoutError)
    with pytest.raises(ValueError, match="poll"):
        kafka.faults.fail_next("poll", errors.KafkaTimeoutError, applied=True)


def test_a_broker_that_is_down_answers_nothing_and_forgets_nothing(kafka: FakeKafka) -> None:
    """While the broker is down polls are empty and calls time out; afterwards membership and positions stand."""
    consumer, facts = _session(kafka)
    consumer.poll(0, 3)
    consumer.freeze()
    kafka.broker_down()
    assert consumer.poll(60_000, 10) == {}
    for call in (lambda: consumer.commit(_offset(1)), lambda: consumer.end_offsets([TP])):
        with pytest.raises(errors.KafkaTimeoutError):
            call()
    kafka.broker_up()
    assert sum(len(records) for records in consumer.poll(0, 10).values()) == 5
    consumer.commit(_offset(1))
    assert facts.real() == [("assigned", {0, 1, 2, 3})]


def test_an_empty_poll_takes_its_time_on_the_clock() -> None:
    """A poll that finds nothing lets its time-out pass on a virtual clock, and one that finds something takes none."""
    clock = VirtualClock()
    with FakeKafka("time", clock) as kafka:
        kafka.produce("t", b"v")
        consumer = kafka.consumer(group=None)
        consumer.assign([TP])
        consumer.poll(200, 10)
        assert clock.monotonic() == 0.0
        consumer.poll(200, 10)
        assert clock.monotonic() == 0.2


def test_a_member_that_died_is_replaced_when_its_session_ends(kafka: FakeKafka) -> None:
    """The partitions of a killed member stay unread until its session is over, and go to the other then."""
    dead, facts = _session(kafka)
    alive, _ = _session(kafka)
    for member in (dead, alive, dead, alive):
        member.poll(0, 1)
    dead.crash()
    kafka.clock.sleep(9.9)
    alive.poll(0, 1)
    assert len(alive.assignment()) == 2
    kafka.clock.sleep(0.2)
    alive.poll(0, 1)
    assert len(alive.assignment()) == 4
    assert facts.real()[-1][0] == "assigned", "nobody tells the dead"


def test_a_member_that_slept_too_long_is_told_that_it_lost(kafka: FakeKafka) -> None:
    """A member whose heartbeats stopped for longer than its session commits in vain, then hears lost, then joins."""
    sleeper, facts = _session(kafka)
    sleeper.poll(0, 1)
    sleeper.freeze()
    kafka.clock.sleep(11)
    other, _ = _session(kafka)
    other.poll(0, 1)
    assert len(other.assignment()) == 4
    with pytest.raises(errors.CommitFailedError):
        sleeper.commit(_offset(1))
    sleeper.poll(0, 1)
    assert facts.real()[1:] == [("lost", {0, 1, 2, 3})]
    other.poll(0, 1)
    sleeper.poll(0, 1)
    assert len(sleeper.assignment()) == 2


def test_a_generation_that_is_over_cannot_commit(kafka: FakeKafka) -> None:
    """A member that waits for the others between two generations is refused with RebalanceInProgressError."""
    first, _ = _session(kafka)
    second, _ = _session(kafka)
    for member in (first, second, first, second):
        member.poll(0, 1)
    kafka.rebalance("g")
    assert first.rejoin_pending()
    assert second.rejoin_pending()
    first.commit(_offset(1))
    first.poll(0, 1)
    with pytest.raises(errors.RebalanceInProgressError):
        first.commit(_offset(2))
    second.poll(0, 1)
    first.poll(0, 1)
    first.commit(_offset(2))
    assert [commit.offset for commit in kafka.commits("g")] == [1, 2]


def test_cooperative_members_hand_over_only_what_moves() -> None:
    """In cooperative mode a member keeps reading what stays, and hears only of what moves."""
    with FakeKafka("cooperative", cooperative=True) as kafka:
        kafka.create_topic("t", 4)
        first, told_first = _session(kafka)
        second, told_second = _session(kafka)
        first.poll(0, 1)
        for _ in range(4):
            second.poll(0, 1)
            first.poll(0, 1)
        assert told_first.real() == [("assigned", {0, 1, 2, 3}), ("revoked", {2, 3})]
        assert told_second.real() == [("assigned", {2, 3})]
        assert not first.rejoin_pending()


def test_a_static_member_that_dies_between_two_rounds_leaves_nothing_to_nobody() -> None:
    """What a static member let go of for another is read again after it died and came back, as on real brokers."""
    with FakeKafka("between", cooperative=True) as kafka:
        kafka.create_topic("t", 2)

        def member(name: str) -> FakeConsumer:
            consumer = kafka.consumer(group="g", instance_id=name, client={"session_timeout_ms": 10_000})
            consumer.subscribe(["t"], Facts())
            return consumer

        owners = die_between_two_rounds(member)
        assert {tp.partition for owner in owners for tp in owner.assignment()} == {0, 1}


def test_who_falls_out_of_a_group_while_it_joins_is_told_what_it_lost() -> None:
    """A member that is thrown out while it waits for a join has lost what it had, as on real brokers."""
    with FakeKafka("out", cooperative=True) as kafka:
        kafka.create_topic("t", 2)

        def member(told: Facts) -> FakeConsumer:
            consumer = kafka.consumer(group="g", client=CLIENT)
            consumer.subscribe(["t"], told)
            return consumer

        told = fall_out_while_joining(member, lambda: kafka.expire_members("g"))
    assert next(kind for kind, _ in told.real()) == "lost"


@pytest.mark.parametrize("waits", [True, False])
def test_who_comes_back_from_a_join_to_a_place_that_is_taken_is_fenced(waits: bool) -> None:
    """A static member whose place is taken while it waits for a join, or before it asks, learns that from its poll."""
    with FakeKafka("fenced", cooperative=True) as kafka:
        kafka.create_topic("t", 2)
        first, other = kafka.consumer(group="g", instance_id="one"), kafka.consumer(group="g", instance_id="other")
        for consumer in (first, other):
            consumer.subscribe(["t"], Facts())
        poll_until([first, other], lambda _: len(first.assignment()) == len(other.assignment()) == 1)
        poll_until([first, other], lambda _: not (first.rejoin_pending() or other.rejoin_pending()))
        late = kafka.consumer(group="g")
        late.subscribe(["t"], Facts())
        late.poll(0, 1)
        assert first.rejoin_pending()
        if waits:
            first.poll(0, 1)
        again = kafka.consumer(group="g", instance_id="one")
        again.subscribe(["t"], Facts())
        again.poll(0, 1)
        with pytest.raises(errors.FencedInstanceIdError):
            first.poll(0, 1)


def test_a_listener_that_raises_fails_the_poll(kafka: FakeKafka) -> None:
    """An exception in a callback comes out of poll as a KafkaError with its cause."""
    consumer = kafka.consumer(group="g")

    class Raises(Facts):
        def on_partitions_assigned(self, partitions: object) -> None:
            raise LookupError("mine")

    consumer.subscribe(["t"], Raises())
    with pytest.raises(errors.KafkaError, match="callback") as caught:
        consumer.poll(0, 1)
    assert isinstance(caught.value.__cause__, LookupError)


def test_compaction_keeps_the_last_of_each_key() -> None:
    """Compaction leaves holes where a key came again, and keeps records without a key."""
    with FakeKafka("compact") as kafka:
        for key in (b"a", b"b", b"a", None, b"b"):
            kafka.produce("t", b"v", key)
        kafka.compact("t")
        assert [record.offset for record in kafka.records("t")] == [2, 3, 4]
        kafka.compact("t", keep=[3])
        assert [record.offset for record in kafka.records("t")] == [3]
        assert kafka.log(TP).end == 5


def test_retention_deletes_what_is_old() -> None:
    """Retention by time moves the start of the log past what is older, and past everything where all is."""
    with FakeKafka("retention") as kafka:
        for age_s in (100, 50, 10):
            kafka.produce("t", b"v", timestamp_ms=int((kafka.clock.wall() - age_s) * 1000))
        kafka.retain("t", 60_000)
        assert kafka.log(TP).start == 1
        kafka.retain("t", 1)
        assert kafka.log(TP).start == kafka.log(TP).end == 3


def test_a_truncated_log_goes_back(kafka: FakeKafka) -> None:
    """After a truncation the end is lower and a position beyond it is out of range."""
    consumer = kafka.consumer(group=None)
    consumer.assign([TP])
    consumer.poll(0, 10)
    kafka.truncate("t", 0, 1)
    assert consumer.end_offsets([TP]) == {TP: 1}
    with pytest.raises(errors.OffsetOutOfRangeError):
        consumer.poll(0, 10)
