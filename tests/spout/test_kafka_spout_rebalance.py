from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest
from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.errors import BrokerError
from downspout.testing import FakeKafka
from tests.sampling import WHOLE
from tests.spout.spout_driver import GROUP, PARTITIONS, RECORDS, TOPIC, Driver, Kafka, fill, place_of


def where(driver: Driver) -> list[tuple[int, int]]:
    return [place_of(tup_id) for tup_id, _ in driver.emitted]


def run_all(drivers: list[Driver], turns: int = 40) -> None:
    """Let members take turns, so that a rebalance can complete."""
    for _ in range(turns):
        for driver in drivers:
            driver.run(1)


def settle_rebalance(drivers: list[Driver]) -> None:
    """Run until every member knows what is its own, with time for drains to end."""
    for _ in range(10):
        run_all(drivers, 3)
        drivers[0].kafka.clock.sleep(1)
    run_all(drivers, 10)


def test_planned_hand_over_repeats_nothing(wide: Kafka) -> None:
    """The old owner drains and commits before it lets go: no record is emitted twice, none is missing."""
    old = Driver(wide, poll_records_max=20, emits_per_next_max=20)
    old.run(3)
    new = Driver(wide, member=2)
    new.ask_to_join()
    for _ in range(60):
        for driver in (old, new):
            driver.run(1)
            driver.ack_all()
    counts = Counter(where(old) + where(new))
    assert set(counts.values()) == {1}
    assert len(counts) == PARTITIONS * RECORDS
    assert where(new)


def test_the_lags_of_members_are_that_of_the_group(wide: Kafka) -> None:
    """Once a hand-over is through, each member tells the lag of what is its own: none is counted twice or left out."""
    old = Driver(wide)
    old.run()
    assert old.figure("lag") == PARTITIONS * RECORDS
    new = Driver(wide, member=2)
    assert "lag" not in new.spout.report()
    settle_rebalance([old, new])
    assert old.figure("lag") + new.figure("lag") == PARTITIONS * RECORDS
    assert new.figure("lag") > 0


def test_a_member_without_partitions_has_no_lag(kafka: Kafka) -> None:
    drivers = [Driver(kafka), Driver(kafka, member=2)]
    settle_rebalance(drivers)
    assert sorted(driver.figure("lag") for driver in drivers) == [0, 10]


def test_hand_over_with_holes_repeats_only_what_was_not_acked(wide: Kafka) -> None:
    """Acked records beyond the commit are not processed again by the next owner."""
    old = Driver(wide)
    old.run()
    acked = {(p, o) for p in range(PARTITIONS) for o in range(RECORDS) if o % 3}
    for partition, offset in acked:
        old.ack([offset], partition)
    new = Driver(wide, member=2)
    settle_rebalance([old, new])
    moved = {partition for partition, _ in where(new)}
    assert moved
    assert set(where(new)) == {(p, o) for p in moved for o in range(RECORDS) if o % 3 == 0}


def test_late_words_on_revoked_partitions_change_nothing(wide: Kafka) -> None:
    """After a hand-over, acks and fails of what was given away neither commit nor crash."""
    old = Driver(wide)
    old.run()
    new = Driver(wide, member=2)
    settle_rebalance([old, new])
    moved = {partition for partition, _ in where(new)}
    assert moved
    before = dict(wide.committed(GROUP))
    for partition in moved:
        old.ack(range(10), partition)
        old.fail(range(10, 20), partition)
    for _ in range(3):
        old.kafka.clock.sleep(31)
        old.run(3)
    after = wide.committed(GROUP)
    assert all(after[TopicPartition(TOPIC, p)] == before[TopicPartition(TOPIC, p)] for p in moved)


def test_nobody_commits_what_is_not_its_own(wide: Kafka) -> None:
    """Through joins and departures, the commits of each partition never go back."""
    drivers = [Driver(wide, commit_period_ms=100)]
    drivers[0].run()
    for member in (2, 3):
        drivers.append(Driver(wide, member=member, commit_period_ms=100))
        for _ in range(40):
            for driver in drivers:
                driver.run(1)
                driver.ack_all()
            wide.clock.sleep(0.2)
    drivers.pop(0).spout.close()
    for _ in range(40):
        run_all(drivers, 1)
        for driver in drivers:
            driver.ack_all()
        wide.clock.sleep(0.2)
    for partition in wide.partitions(TOPIC):
        offsets = [c.offset for c in wide.commits(GROUP) if c.partition == partition]
        assert offsets == sorted(offsets)
        assert offsets[-1] == RECORDS


def test_partitions_that_stay_keep_their_state(wide: Kafka) -> None:
    """What returns in the same rebalance is not emitted again, and acks from before it count."""
    driver = Driver(wide)
    driver.run()
    wide.rebalance(GROUP)
    settle_rebalance([driver])
    assert len(driver.emitted) == PARTITIONS * RECORDS
    driver.ack_all()
    driver.commit()
    assert [driver.committed(p) for p in range(PARTITIONS)] == [RECORDS] * PARTITIONS
    assert driver.figure("stale") == 0


@pytest.mark.fake_only("it is said when the client forgets")
def test_positions_that_a_client_forgets_in_a_rebalance_are_set_again(
    wide: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of partitions that return, of which Java's client keeps none, and of those that never left."""
    driver = Driver(wide, drain_ms_max=0)
    driver.run()
    session = driver.session
    listener, consumer = session.assignment.listener, session.consumer
    hear = listener.on_partitions_assigned

    def forget(partitions: Collection[TopicPartition]) -> None:
        hear(partitions)
        for tp in consumer.assignment():
            consumer.seek(tp, 0)

    monkeypatch.setattr(listener, "on_partitions_assigned", forget)
    wide.add_partitions(TOPIC, PARTITIONS + 1)
    for _ in range(50):
        wide.clock.sleep(1)
        driver.run(1)
        if listener.facts:
            break
    assert listener.facts
    session.catch_up()
    session.assignment.start_partitions()
    positions = {tp.partition: consumer.position(tp) for tp in consumer.assignment()}
    assert positions == {**dict.fromkeys(range(PARTITIONS), RECORDS), PARTITIONS: 0}


def test_the_drain_waits_only_so_long(wide: Kafka) -> None:
    """A tuple that is never acked holds a hand-over back for kafka.drain_ms_max, and no longer."""
    old = Driver(wide, drain_ms_max=3000)
    old.run()
    new = Driver(wide, member=2)
    started = wide.clock.monotonic()
    limit_s = 10 if isinstance(wide, FakeKafka) else 90  # a broker's answers take their time, on top of the drain
    while not where(new):
        run_all([old, new], 1)
        wide.clock.sleep(0.1)
        assert wide.clock.monotonic() - started < limit_s
    assert wide.clock.monotonic() - started >= 3


def test_nothing_is_polled_while_draining(wide: Kafka) -> None:
    """A spout that prepares a hand-over emits nothing new."""
    old = Driver(wide, poll_records_max=10, emits_per_next_max=10)
    old.run(4)
    wide.rebalance(GROUP)
    assert old.run(5) == []


def test_a_member_that_was_thrown_out_starts_from_the_commits(wide: Kafka) -> None:
    """Lost partitions are forgotten without a commit; what was not committed comes again, under new ids."""
    driver = Driver(wide)
    driver.run()
    driver.ack(range(10), partition=0)
    count = len(wide.commits(GROUP))
    wide.expire_members(GROUP)
    settle_rebalance([driver])
    assert all(commit.offset == 0 for commit in wide.commits(GROUP)[count:])
    assert Counter(where(driver)) == {(p, o): 2 for p in range(PARTITIONS) for o in range(RECORDS)}


def test_a_member_that_was_thrown_out_joins_again_without_a_drain(kafka: Kafka) -> None:
    """With all acked, nothing is waited for: the group takes no commit of it, however long a drain may take."""
    driver = Driver(kafka, drain_ms_max=200_000)
    driver.run()
    driver.ack_all()
    kafka.expire_members(GROUP)
    settle_rebalance([driver])
    assert driver.offsets == [*range(10), *range(10)]
    driver.ack_all()
    driver.commit()
    assert driver.committed() == 10


@pytest.mark.parametrize("done", [10, 4, 0])
def test_what_others_have_committed_meanwhile_is_not_called_uncommitted(kafka: Kafka, done: int) -> None:
    """A member that was thrown out, and ends before it joins again, counts only what nobody has committed."""
    old = Driver(kafka)
    old.run()
    old.ack_all()
    kafka.expire_members(GROUP)
    new = Driver(kafka, member=2)
    while not new.emitted:
        new.run(1)
    new.ack(range(done))
    new.commit()
    assert new.committed() == done
    old.spout.close()
    assert (old.figure("uncommitted"), new.committed()) == (10 - done, done)


def test_a_killed_members_work_is_taken_over(wide: Kafka) -> None:
    """Its partitions go to the others after the session; only what it had not made known comes again."""
    dead, alive = Driver(wide, session_timeout_ms=5000), Driver(wide, member=2)
    for _ in range(20):
        run_all([dead, alive], 1)
        wide.clock.sleep(0.5)
        alive.ack_all()
    for partition, offset in where(dead):
        if offset < 20:
            dead.ack([offset], partition)
    dead.commit()
    given = set(where(dead))
    dead.crash()
    for _ in range(40):
        wide.clock.sleep(1)
        alive.run(2)
        alive.ack_all()
    again = set(where(alive)) & given
    assert all(offset >= 20 for _, offset in again)
    assert {*where(alive), *((p, o) for p, o in given if o < 20)} == {
        (p, o) for p in range(PARTITIONS) for o in range(RECORDS)
    }


def test_a_start_that_the_broker_does_not_answer_is_asked_again(wide: Kafka) -> None:
    """Until it is known where a partition starts, nothing of it is emitted; then all of it is."""
    driver = Driver(wide)
    wide.faults.fail_next("committed", errors.CoordinatorNotAvailableError, times=3)
    for _ in range(20):
        driver.run(2)
        wide.clock.sleep(1)
    assert len(driver.emitted) == PARTITIONS * RECORDS


def test_new_partitions_are_read_from_their_beginning(wide: Kafka) -> None:
    driver = Driver(wide)
    driver.run()
    driver.ack_all()
    wide.add_partitions(TOPIC, PARTITIONS + 1)
    fill(wide, 5, PARTITIONS)
    settle_rebalance([driver])
    assert [(p, o) for p, o in where(driver) if p == PARTITIONS] == [(PARTITIONS, o) for o in range(5)]
    assert len(driver.emitted) == PARTITIONS * RECORDS + 5


@pytest.mark.fake_only("a broker's rebalance cannot be stopped between two calls")
def test_what_others_have_committed_for_is_not_taken_back(kafka: FakeKafka) -> None:
    """A partition that returns after a commit that is not ours goes on at that one, under new ids."""
    driver = Driver(kafka, drain_ms_max=0)
    driver.run()
    kafka.rebalance(GROUP)
    driver.run(1)
    assert driver.session.assignment.listener.facts
    kafka.group(GROUP).offsets[TopicPartition(TOPIC, 0)] = OffsetAndMetadata(6, "", -1)
    assert driver.run() == [6, 7, 8, 9]
    driver.ack_all()
    driver.commit()
    assert driver.committed() == 10


@pytest.mark.fake_only("a broker's rebalance cannot be stopped between two calls")
def test_a_process_that_ends_commits_nothing_of_what_its_last_poll_took(kafka: FakeKafka) -> None:
    """SIGTERM comes when the last poll has told of lost partitions: the new owner's commits stay what they are."""
    old, new = Driver(kafka, member=2, drain_ms_max=0), Driver(kafka, member=1)
    old.run()
    new.ask_to_join()
    for _ in range(20):
        old.run(1)
        if old.session.assignment.listener.facts:
            break
    new.run()
    assert new.offsets == list(range(10))
    new.ack_all()
    new.commit()
    old.spout.before_exit()
    assert new.committed() == 10


# --- bounded runs ---


def test_a_bounded_run_ends_at_the_end_as_of_its_start(kafka: Kafka) -> None:
    """Records that come later are neither emitted nor committed."""
    driver = Driver(kafka, run__until="end")
    fill(kafka, 5)
    assert not driver.spout.exhausted()
    assert driver.run() == list(range(10))
    assert driver.spout.exhausted()
    assert not driver.spout.end_reached()
    driver.ack_all()
    driver.run(2)
    assert driver.spout.end_reached()
    assert driver.committed() == 10


def test_a_bounded_run_is_not_exhausted_while_a_retry_waits(kafka: Kafka) -> None:
    """All was emitted only once what failed was emitted again."""
    driver = Driver(kafka, run__until="end", retry_delay_ms=1000)
    driver.run()
    driver.fail([3])
    assert not driver.spout.exhausted()
    kafka.clock.sleep(2)
    assert driver.run() == [3]
    assert driver.spout.exhausted()


def test_a_bounded_run_of_an_empty_topic_ends_at_once(kafka: Kafka) -> None:
    kafka.create_topic("empty", 3)
    driver = Driver(kafka, topics=["empty"], run__until="end")
    driver.run(4)
    assert driver.spout.exhausted()
    assert driver.spout.end_reached()


def test_a_second_bounded_run_finds_nothing_new(kafka: Kafka) -> None:
    first = Driver(kafka, run__until="end")
    first.run()
    first.ack_all()
    first.run(2)
    first.spout.close()
    second = Driver(kafka, run__until="end")
    assert second.run() == []
    assert second.spout.end_reached()


def test_a_bounded_run_passes_markers_at_the_end(kafka: Kafka) -> None:
    """A tail that holds no record does not keep a run from its end."""
    kafka.gap(TOPIC, count=3)
    driver = Driver(kafka, run__until="end")
    driver.run()
    driver.ack_all()
    driver.run(3)
    assert driver.spout.end_reached()
    assert driver.committed() == 13


def test_a_bounded_run_without_its_topic_is_an_error(kafka: Kafka) -> None:
    with pytest.raises(BrokerError, match=r"nowhere.*downspout kafka create nowhere"):
        Driver(kafka, topics=["nowhere"], run__until="end")


def test_the_end_of_a_bounded_run_is_the_whole_groups(wide: Kafka) -> None:
    """With two members, neither has reached the end before the other's partitions are committed."""
    one, two = Driver(wide, run__until="end"), Driver(wide, member=2, run__until="end")
    settle_rebalance([one, two])
    assert where(one)
    assert where(two)
    one.ack_all()
    for _ in range(4):
        run_all([one, two], 2)
        wide.clock.sleep(1)
    assert one.spout.exhausted()
    assert not one.spout.end_reached()
    two.ack_all()
    for _ in range(4):
        run_all([one, two], 2)
        wide.clock.sleep(1)
    assert one.spout.end_reached()
    assert two.spout.end_reached()


@pytest.fixture
def narrow(wide_kafka: Kafka) -> Kafka:
    wide_kafka.create_topic(TOPIC, 1)
    return wide_kafka


def test_a_member_without_partitions_ends_with_the_group(narrow: Kafka) -> None:
    """A bounded run of two members over one partition ends for both, though one never gets anything."""
    fill(narrow, 10)
    drivers = [Driver(narrow, member=number, run__until="end") for number in (1, 2)]
    for _ in range(60):
        for driver in drivers:
            driver.run(1)
            driver.ack_all()
        narrow.clock.sleep(0.2)
    idle = next(driver for driver in drivers if not driver.emitted)
    assert idle.figure("partitions") == 0
    assert [driver.spout.exhausted() and driver.spout.end_reached() for driver in drivers] == [True, True]


def test_a_member_that_has_not_joined_yet_has_not_ended(narrow: Kafka) -> None:
    """Before the group has given an answer nothing is known to be at its end."""
    driver = Driver(narrow, run__until="end")
    assert not driver.spout.exhausted()
    driver.run(5)
    assert driver.spout.exhausted()


def test_words_that_come_after_a_loss_and_before_a_turn(wide: Kafka) -> None:
    """While nobody asks for tuples a spout learns what it has lost too, and late acks of that change nothing."""
    old = Driver(wide)
    old.run()
    wide.expire_members(GROUP)
    new = Driver(wide, member=2)
    settle_rebalance([new])
    assert {partition for partition, _ in where(new)} == set(range(PARTITIONS))
    for _ in range(3):
        old.ack_all()
        wide.clock.sleep(1)
    old.run(3)
    assert old.figure("stale") > 0


def test_what_a_rebalance_has_dropped_is_no_gap(wide: Kafka) -> None:
    """The commit point, asked for between a poll whose records were dropped and the next turn, makes no gap of them."""
    driver = Driver(wide, poll_records_max=5, emits_per_next_max=5)
    driver.run(3)
    driver.ack_all()
    driver.commit()
    member = driver.session
    assert member is not None
    for _ in range(6 if WHOLE or isinstance(wide, FakeKafka) else 2):
        wide.rebalance(GROUP)
        member.reader.poll(0)
        for part in member.parts:
            if part.tp in member.consumer.assignment():
                part.commit_point(member.consumer)
        settle_rebalance([driver])
    driver.run(40)
    assert set(where(driver)) == {(p, o) for p in range(PARTITIONS) for o in range(RECORDS)}
