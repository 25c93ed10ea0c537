"""Records that kill their process, in several partitions: a death is blamed on no other partition's record."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors

from downspout.component import Failure
from downspout.dead_letters import read_dead_letters
from downspout.ledger import decode
from downspout.protocols import SpoutEngine
from downspout.testing import FakeKafka
from tests.spout.deaths import LETTERS, SINGLE
from tests.spout.spout_driver import GROUP, Driver, Kafka, fill, offset_of


def test_a_killer_takes_no_innocent_of_another_partition_with_it(kafka: Kafka) -> None:
    """Lone records of two partitions are out together until one was out at a death; then it is out alone."""
    kafka.create_topic("wide", 2)
    fill(kafka, 3, 0, "wide")
    fill(kafka, 3, 1, "wide")
    killer, done = ("1", 1), set()
    for _ in range(60):
        driver = Driver(kafka, topics=["wide"], retries_max=2)
        for _ in range(60):
            driver.run(1)
            out = [(tup_id.split("/")[3], offset_of(tup_id)) for tup_id, _ in driver.emitted]
            if killer in out:
                driver.die()
                break
            done |= set(out[:-1])  # words come late: the last one is out
            for tup_id, _ in driver.emitted[:-1]:
                driver.spout.ack(tup_id)
            if not driver.run(1):
                driver.ack_all()
                done |= set(out)
        else:
            driver.commit()
            break
    letters = {(str(letter.partition), letter.offset) for letter in read_dead_letters(kafka, LETTERS)}
    assert letters == {killer}
    assert done == {(partition, n) for partition in "01" for n in range(3)} - {killer}


def wide(kafka: Kafka, records: int = 3) -> Driver:
    """Return a process under crash isolation over both partitions of a topic; one record leaves in each turn."""
    kafka.create_topic("wide", 2)
    fill(kafka, records, 0, "wide")
    fill(kafka, records, 1, "wide")
    for _ in range(SINGLE):
        died = Driver(kafka, topics=["wide"])
        died.run()
        died.die()
    return Driver(kafka, topics=["wide"], emits_per_next_max=1, retry_delay_ms=0)


def told_alone(kafka: Kafka) -> dict[int, int]:
    """Return by partition the record that is out alone, as the group's commits tell."""
    id_ = kafka.topic_id("wide")
    isolations = {
        tp.partition: decode(of.offset, of.metadata, topic_id=id_).isolation
        for tp, of in kafka.committed(GROUP).items()
    }
    return {partition: isolation.alone for partition, isolation in isolations.items() if isolation.alone is not None}


def test_what_failed_alone_has_its_turn_beside_a_partition_that_never_rests(kafka: Kafka) -> None:
    """A suspect waits for the other partitions' lone records, and none of theirs leaves before it."""
    driver = wide(kafka, 15)
    failed = {"0": 0, "1": 0}
    answered = 0
    for _ in range(120):
        driver.run(1)
        for tup_id, _ in driver.emitted[answered:]:
            partition = tup_id.split("/")[3]
            if offset_of(tup_id) % 5 == 0 and failed[partition] == offset_of(tup_id) // 5:
                failed[partition] += 1
                driver.spout.fail_with(tup_id, Failure("exception", "bolt", 1, "bad"))
            else:
                driver.spout.ack(tup_id)
        answered = len(driver.emitted)
        driver.run(1)  # whose turn it is now may go, before the others are heard of
    order = [(tup_id.split("/")[3], offset_of(tup_id)) for tup_id, _ in driver.emitted]
    for partition, suspect in {place for place in order if order.count(place) > 1}:
        first, second = (at for at, place in enumerate(order) if place == (partition, suspect))
        assert second - first <= 4, order[first : second + 1]
    assert {place for place in order if order.count(place) > 1} >= {("0", 0), ("1", 0), ("0", 10), ("1", 10)}


def test_a_record_that_could_not_be_written_down_is_not_blamed_for_another(kafka: Kafka) -> None:
    """While commits fail no lone record leaves; the commit that then lets one out tells of that one alone."""
    driver = wide(kafka)
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError, times=1000)
    for _ in range(5):
        driver.run(2)
        kafka.clock.sleep(5)
    assert driver.emitted == []
    kafka.faults.clear()
    kafka.clock.sleep(30)
    driver.run(1)
    ((tup_id, _),) = driver.emitted
    assert told_alone(kafka) == {int(tup_id.split("/")[3]): offset_of(tup_id)}


@pytest.mark.fake_only("the broker's driver calls each spout of a process until it rests")
def test_a_suspect_that_is_not_looked_at_holds_the_others_up_for_ten_seconds(kafka: FakeKafka) -> None:
    """Of two spouts of a process the one with a suspect gets no turn: the other waits, but not for ever."""
    kafka.create_topic("wide", 2)
    for partition in (0, 1):
        fill(kafka, 3, partition, "wide")
    both: dict[str, Any] = {"member": None, "mode": "assign", "topics": ["wide"]}
    tasks = [both | {"task": (number, 2)} for number in (0, 1)]
    for _ in range(5):
        for task in tasks:
            died = Driver(kafka, **task)
            died.run()
            died.crash()
    still, other = (Driver(kafka, **task) for task in tasks)
    for one, two in ((still, other), (other, still)):
        one.spout.engine_services = SpoutEngine(one.emit_many, other_spouts=lambda spout=two.spout: [spout])
    assert (still.run(), other.run()) == ([0], [0])
    still.fail([0])
    kafka.clock.sleep(1)
    assert still.run(2) == []
    other.ack([0], partition=1)
    kafka.clock.sleep(8)
    assert other.run(2) == []
    kafka.clock.sleep(2)
    assert other.run(2) == [1]


def test_a_commit_whose_answer_was_lost_is_said_again(kafka: Kafka) -> None:
    """A record that a lost commit called out alone, and that never left, is taken back by the next one."""
    driver = wide(kafka)
    while not driver.emitted:
        driver.run(1)
    ((tup_id, _),) = driver.emitted
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError, times=1, applied=True)
    driver.run(1)
    assert len(told_alone(kafka)) == 2
    assert len(driver.emitted) == 1
    kafka.clock.sleep(3)  # less than a session
    assert driver.session.commit(driver.spout.services.now())
    assert told_alone(kafka) == {int(tup_id.split("/")[3]): offset_of(tup_id)}
