"""`kafka.mode=assign`: tasks divide the partitions among themselves, and detect new ones."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from kafka import errors
from kafka.structs import TopicPartition
from streamparse import Topology

from downspout.errors import ConfigError
from downspout.ledger import AT_WORK, decode
from downspout.spout import REFRESH_MS, share
from downspout.spout.settings import RENEW_MS
from downspout.testing import run_topology
from spouts.kafka import KafkaSpout
from tests.spout.reasons import ACKS_DECIDE, NO_KAFKA_YET
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill, place_of


def assigned(kafka: Kafka, task: int = 0, tasks: int = 1, **settings: Any) -> Driver:
    """Return one of several tasks that count the partitions out."""
    return Driver(kafka, member=None, task=(task, tasks), mode="assign", **settings)


def owned(driver: Driver) -> set[int]:
    """Return the numbers of the partitions that a task reads."""
    return {tp.partition for tp in driver.session.assignment.parts}


def emitted(*drivers: Driver) -> list[tuple[int, int]]:
    ids = [tup_id for driver in drivers for tup_id, _ in driver.emitted]
    return sorted(map(place_of, ids))


def test_eleven_partitions_over_three_tasks(kafka: Kafka) -> None:
    """The reference's example: partitions go round the tasks in order."""
    kafka.create_topic("eleven", 11)
    drivers = [assigned(kafka, task, 3, topics=["eleven"]) for task in range(3)]
    for driver in drivers:
        driver.run(2)
    assert [owned(driver) for driver in drivers] == [{0, 3, 6, 9}, {1, 4, 7, 10}, {2, 5, 8}]


def test_shares_are_a_partition_of_all() -> None:
    """For any number of tasks each partition is in exactly one share, and shares differ by at most one."""
    for topics, count, tasks in itertools.product((1, 3), (0, 1, 5, 8), (1, 2, 7)):
        everything = [TopicPartition(f"t{topic}", number) for topic in range(topics) for number in range(count)]
        shares = [share(reversed(everything), index, tasks) for index in range(tasks)]
        assert sorted(tp for one in shares for tp in one) == everything
        sizes = [len(one) for one in shares]
        assert max(sizes) - min(sizes) <= 1


def test_reads_acks_and_commits_as_a_member_does(kafka: Kafka) -> None:
    """Commits go to the group, and the next run goes on behind them, without any member in the group."""
    first = assigned(kafka)
    assert first.run() == list(range(10))
    first.ack(range(6))
    first.fail([7])
    first.commit()
    assert first.committed() == 6
    assert not kafka.group(GROUP).members
    first.ack([6])
    first.spout.close()
    assert assigned(kafka).run() == [7, 8, 9]


def test_a_new_partition_is_read_after_the_refresh_period(kafka: Kafka) -> None:
    """It is not seen before the period is over, and from its beginning then; what was read goes on undisturbed."""
    driver = assigned(kafka)
    driver.run()
    kafka.add_partitions(TOPIC, 2)
    fill(kafka, 3, partition=1)
    fill(kafka, 1)
    driver.kafka.clock.sleep(0.1)
    driver.run(1)
    assert owned(driver) == {0}
    kafka.clock.sleep(REFRESH_MS / 1000)
    driver.run()
    assert emitted(driver) == [*((0, n) for n in range(11)), *((1, n) for n in range(3))]


def test_topics_by_pattern_are_picked_up_when_they_appear(kafka: Kafka) -> None:
    """The pattern must match the whole name, and a topic created later is read."""
    driver = assigned(kafka, topics=None, pattern="orders(-.+)?")
    driver.run()
    kafka.create_topic("orders-eu", 1)
    kafka.create_topic("my-orders", 1)
    fill(kafka, 2, topic="orders-eu")
    fill(kafka, 2, topic="my-orders")
    kafka.clock.sleep(2)
    driver.run()
    assert {tp.topic for tp in driver.session.assignment.parts} == {"orders", "orders-eu"}
    assert len(driver.emitted) == 12


def test_a_missing_topic_is_read_when_it_appears(kafka: Kafka) -> None:
    """A task without any partition waits, and begins when there is one."""
    driver = assigned(kafka, topics=["later"])
    assert driver.run() == []
    kafka.create_topic("later", 1)
    fill(kafka, 2, topic="later")
    kafka.clock.sleep(2)
    assert driver.run() == [0, 1]


def test_what_leaves_a_share_is_committed_first(kafka: Kafka) -> None:
    """A topic that sorts before all others shifts the shares: the new owner goes on behind the old one's acks."""
    kafka.create_topic("b", 2)
    for partition in range(2):
        fill(kafka, 5, partition=partition, topic="b")
    one, two = (assigned(kafka, task, 2, topics=None, pattern="a|b") for task in range(2))
    for driver in (one, two):
        driver.run()
        driver.ack_all()
    before = emitted(one, two)
    kafka.create_topic("a", 1)
    kafka.clock.sleep(2)
    for _ in range(8):
        one.run(1)
        two.run(1)
    assert {(tp.topic, tp.partition) for tp in one.session.assignment.parts} == {("a", 0), ("b", 1)}
    assert {(tp.topic, tp.partition) for tp in two.session.assignment.parts} == {("b", 0)}
    assert {tp.partition: commit.offset for tp, commit in kafka.committed(GROUP).items() if tp.topic == "b"} == {
        0: 5,
        1: 5,
    }
    assert set(emitted(one, two)) == set(before)  # as a set: task 0 may look before task 1 has committed


def test_a_share_is_kept_while_its_last_commit_fails(kafka: Kafka) -> None:
    """What must be handed over stays until it is committed, as long as the broker does not answer."""
    kafka.create_topic("b", 2)
    fill(kafka, 5, partition=1, topic="b")
    two = assigned(kafka, 1, 2, topics=None, pattern="a|b")
    two.run()
    two.ack_all()
    kafka.create_topic("a", 1)
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError("no answer"), times=2)
    kafka.clock.sleep(2)
    two.run(1)
    assert owned(two) == {1}
    for _ in range(8):
        kafka.clock.sleep(1)
        two.run(1)
    assert owned(two) == {0}
    assert kafka.committed(GROUP)[TopicPartition("b", 1)].offset == 5


def test_errors_while_looking_are_borne(kafka: Kafka) -> None:
    """A broker that does not answer the refresh costs nothing but time."""
    driver = assigned(kafka)
    driver.run()
    kafka.faults.fail_next("partitions_for", errors.KafkaTimeoutError("no answer"), times=3)
    kafka.add_partitions(TOPIC, 2)
    for _ in range(8):
        kafka.clock.sleep(2)
        driver.run(2)
    assert owned(driver) == {0, 1}
    assert driver.figure("errors") == 3


@pytest.mark.record_only(ACKS_DECIDE)
@pytest.mark.parametrize("guarantee", ["AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT"])
def test_every_guarantee_works_by_assign(kafka: Kafka, guarantee: str) -> None:
    """Positions are committed to the group, which has no members."""
    driver = assigned(kafka, guarantee=guarantee)
    driver.run()
    driver.spout.deactivate()
    assert len(driver.emitted) == 10
    assert driver.committed() == 10


@pytest.mark.fake_only(NO_KAFKA_YET)
def test_several_processes_cannot_count_out(kafka: Kafka) -> None:
    """With a member number there are processes that this one knows nothing about: that is an error."""
    with pytest.raises(ConfigError, match=r"kafka.mode.*run.member"):
        Driver(kafka, member=2, mode="assign")


def test_a_bounded_run_of_several_tasks_ends(kafka: Kafka) -> None:
    """Three tasks in the local engine read all partitions to their ends, more tasks than partitions too."""
    kafka.add_partitions(TOPIC, 2)
    fill(kafka, 7, partition=1)

    class Made(Topology):
        reader = KafkaSpout.spec(topics=[TOPIC], bootstrap=kafka.bootstrap, group=GROUP, mode="assign", par=3)

    run_topology(Made, clock=kafka.clock)
    found = {tp.partition: commit.offset for tp, commit in kafka.committed(GROUP).items()}
    assert found == {0: 10, 1: 7}


@pytest.mark.record_only(ACKS_DECIDE)
@pytest.mark.parametrize("guarantee", ["AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE"])
def test_an_idle_spout_says_its_commit_again(kafka: Kafka, guarantee: str) -> None:
    """Nothing has changed for an hour, and it is committed once more: a commit without a member expires by its age."""
    driver = assigned(kafka, guarantee=guarantee)
    driver.run()
    driver.ack_all()
    driver.commit()
    assert driver.commit_becomes(10)
    for _ in range(3):
        before = len(kafka.commits(GROUP))
        kafka.clock.sleep(RENEW_MS / 1000 + 31)
        driver.run(20)
        assert len(kafka.commits(GROUP)) > before
        assert driver.committed() == 10


def test_a_commit_is_not_said_again_before_its_time(kafka: Kafka) -> None:
    """While nothing changes, a commit is one request an hour, however often its timer ends."""
    driver = assigned(kafka)
    driver.run()
    driver.ack_all()
    driver.commit()
    before = len(kafka.commits(GROUP))
    for _ in range(50):
        driver.commit()
    assert len(kafka.commits(GROUP)) == before


def test_what_stays_of_a_share_is_marked_as_at_work_again(kafka: Kafka) -> None:
    """The last commit before a hand-over tells of an end in order; for what stays the next call takes that back.

    That does not wait for what is new in the share, of which the broker may say nothing for a while.
    """
    kafka.create_topic("a", 1)
    kafka.create_topic("c", 2)
    driver = assigned(kafka, 0, 2, topics=None, pattern="a|b|c")
    driver.run()
    kafka.create_topic("b", 1)
    kafka.faults.fail_next("committed", errors.KafkaTimeoutError("no answer"), times=1000)
    kafka.clock.sleep(2)
    driver.run(3)
    assert {(tp.topic, tp.partition) for tp in driver.session.assignment.parts} == {("a", 0)}
    meta = kafka.committed(GROUP)[TopicPartition("a", 0)]
    assert decode(meta.offset, meta.metadata, topic_id=kafka.topic_id("a")).isolation == AT_WORK


def test_the_start_that_was_decided_is_committed_at_once(kafka: Kafka) -> None:
    """Under LATEST, a crash before the first commit is due loses nothing that came after the first start."""
    driver = assigned(kafka, start="LATEST")
    driver.run(4)
    assert driver.committed() == 10
    driver.crash()
    fill(kafka, 3)
    assert assigned(kafka, start="LATEST").run() == [10, 11, 12]
