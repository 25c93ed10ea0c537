"""Processes that die: what the next one knows, and records that kill the process each time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.component import Failure
from downspout.kafka.deadletter import read_dead_letters
from downspout.ledger.metadata import ENDED, decode, encode
from downspout.ledger.watch import AT_WORK, WINDOW, Watch
from tests.topology.reasons import ACKS_DECIDE
from tests.topology.spout_driver import GROUP, PARTITIONS, RECORDS, TOPIC, Driver, Kafka, fill, offset_of, place_of

LETTERS = f"{GROUP}.dead-letters"
IN_VAIN_MAX = 12
"""After so many turns without a tuple there is nothing left to process."""


def test_a_crash_before_the_dead_letter_gives_no_further_try(kafka: Kafka) -> None:
    """The last failure was committed, its letter was not written: the next process writes it and emits nothing."""
    driver = Driver(kafka, retries_max=1)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    driver.run()
    driver.fail([4])
    driver.spout._member.commit(0)
    driver.die()
    successor = Driver(kafka, retries_max=1)
    assert successor.run() == []
    successor.commit()
    assert [(letter.offset, letter.attempts) for letter in read_dead_letters(kafka, LETTERS)] == [(4, 2)]
    assert successor.committed() == 10


def told(kafka: Kafka, partition: int = 0) -> Watch:
    """Return the watch that the group's commit tells."""
    meta = kafka.committed(GROUP)[TopicPartition(TOPIC, partition)]
    return decode(meta.offset, meta.metadata, topic_id=kafka.topic_id(TOPIC)).watch


def die(kafka: Kafka, times: int) -> None:
    """Let so many processes read, and die before anything is acked."""
    for _ in range(times):
        driver = Driver(kafka)
        driver.run()
        driver.die()


def live(kafka: Kafka, poison: set[int], done: set[int], **settings: Any) -> Driver | None:
    """Run a process that dies when a poison record comes out; return None then, else the process at its end.

    Words come late: up to 20 records are out before the first is acked.
    """
    driver = Driver(kafka, retries_max=2, **settings)
    acked = in_vain = 0
    while in_vain < IN_VAIN_MAX:
        in_vain = 0 if driver.run(1) else in_vain + 1
        out = driver.emitted[acked:]
        if any(offset_of(tup_id) in poison for tup_id, _ in out):
            driver.die()
            return None
        for tup_id, _ in out:
            driver.spout.ack(tup_id)
            done.add(offset_of(tup_id))
        acked = len(driver.emitted)
    driver.commit()
    return driver


def deaths(kafka: Kafka, poison: set[int], done: set[int], **settings: Any) -> tuple[int, Driver]:
    """Start processes until one does not die; return how many died, and that one."""
    for count in range(200):
        if (driver := live(kafka, poison, done, **settings)) is not None:
            return count, driver
    raise AssertionError("still dying after 200 starts")


def test_an_orderly_end_leaves_no_mark(kafka: Kafka) -> None:
    """While somebody is at work each commit says so; the last before an orderly end does not."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(5))
    driver.commit()
    assert told(kafka) == AT_WORK
    driver.spout.close()
    assert told(kafka) == ENDED
    successor = Driver(kafka)
    successor.run()
    assert told(kafka) == AT_WORK
    assert successor.figure("unclean") == 0


def test_unclean_starts_are_counted_at_one_offset(kafka: Kafka) -> None:
    """Each death at the same committed offset adds one."""
    for starts in range(4):
        driver = Driver(kafka)
        driver.run()
        assert told(kafka).starts == starts
        driver.die()


def test_a_commit_that_moves_on_ends_a_row_of_one(kafka: Kafka) -> None:
    """The next death counts from one again, and nothing is slowed down."""
    die(kafka, 1)
    driver = Driver(kafka)
    assert driver.run() == list(range(10))
    assert told(kafka) == Watch(1)
    driver.ack(range(3))
    driver.commit()
    assert told(kafka) == AT_WORK
    driver.die()
    successor = Driver(kafka)
    assert successor.run() == list(range(3, 10))
    assert told(kafka) == Watch(1)


@pytest.mark.slow
def test_behind_the_lone_records_a_window_may_be_out(kafka: Kafka) -> None:
    """Nothing beyond it leaves before a commit has moved on, which is then made ahead of the timer."""
    fill(kafka, 1690)
    die(kafka, 2)
    driver = Driver(kafka)
    for offset in range(WINDOW):
        assert driver.run(1 + (offset == 0)) == [offset]
        driver.ack([offset])
    for first, end in ((100, 200), (200, 600), (600, 1700)):
        assert driver.run(20) == list(range(first, end))
        assert driver.spout.waits_for_acks() == (end < 1700)
        driver.ack(range(first, end))
    driver.commit()
    assert (driver.committed(), told(kafka)) == (1700, AT_WORK)


def test_windows_pass_a_gap(kafka: Kafka) -> None:
    """Where a window holds no record the commit moves on to the next that there is."""
    kafka.gap(TOPIC, count=1490)
    fill(kafka, 200)
    kafka.gap(TOPIC, count=900)
    fill(kafka, 400)
    die(kafka, 2)
    driver = Driver(kafka)
    seen = 0
    for _ in range(60):
        driver.run(20)
        driver.ack_all()
        assert len(driver.offsets) > seen or seen == 610
        seen = len(driver.offsets)
    assert driver.offsets == [*range(10), *range(1500, 1700), *range(2600, 3000)]


def test_a_death_with_nothing_to_process_is_nobodys(kafka: Kafka) -> None:
    """Killed at the end of the log, a process leaves no suspicion behind."""
    for _ in range(4):
        driver = Driver(kafka)
        driver.run()
        driver.ack_all()
        driver.commit()
        driver.die()
    driver = Driver(kafka)
    driver.run()
    assert (told(kafka), driver.figure("unclean")) == (AT_WORK, 0)


def test_after_the_second_unclean_start_one_record_is_out_at_a_time(kafka: Kafka) -> None:
    """It is written down before it is out, another partition goes on, and the watch ends with what was suspected."""
    kafka.create_topic("more", 1)
    fill(kafka, 10, topic="more")
    die(kafka, 2)
    driver = Driver(kafka, topics=[TOPIC, "more"])
    for offset in range(10):
        driver.run()
        mine = [offset_of(tup_id) for tup_id, _ in driver.emitted if "/orders/" in tup_id]
        assert mine == list(range(offset + 1))
        assert (told(kafka).alone, driver.spout.waits_for_acks()) == (offset, True)
        driver.spout.ack(
            next(tup_id for tup_id, _ in driver.emitted if f"/0/{offset}" in tup_id and "/orders/" in tup_id)
        )
    assert sum("/more/" in tup_id for tup_id, _ in driver.emitted) == 10
    fill(kafka, 5)
    driver.run()
    assert told(kafka) == AT_WORK
    assert driver.offsets[-5:] == [10, 11, 12, 13, 14]
    assert not driver.spout.waits_for_acks()


@pytest.mark.slow
@pytest.mark.parametrize("cache", [0, 1_000_000])
def test_a_record_that_kills_the_process_is_dead_lettered(kafka: Kafka, cache: int) -> None:
    """After so many deaths while it was out alone it is a dead letter; nothing else is; all the rest is done."""
    fill(kafka, 2990)
    done: set[int] = set()
    count, driver = deaths(kafka, {1234}, done, retry_cache_bytes=cache)
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.offset, letter.attempts, letter.kind, letter.error_class) == (1234, 3, "crash", "ProcessDied")
    assert letter.letter.value == b"1224"
    assert letter.first_failure_ms is None, "whoever knew it died of it"
    assert letter.last_failure_ms is not None
    assert done == set(range(3000)) - {1234}
    assert (driver.committed(), told(kafka)) == (3000, AT_WORK)
    assert count == 2 + 2 + 3, "twice free, twice in windows, and then alone"


def test_a_task_that_counts_its_partitions_out_finds_the_killer_too(kafka: Kafka) -> None:
    """Under kafka.mode=assign there are no members to lose: the commits tell all the same."""
    fill(kafka, 90)
    done: set[int] = set()
    deaths(kafka, {50}, done, member=None, mode="assign")
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [50]
    assert done == set(range(100)) - {50}


def test_another_member_takes_the_killer_over(kafka: Kafka) -> None:
    """Each death moves the partition on to another process, as an orchestrator does: the row goes on all the same."""
    fill(kafka, 90)
    done: set[int] = set()
    members = itertools.count(1)
    count = 0
    while (driver := live(kafka, {50}, done, member=next(members))) is None:
        count += 1
        assert count < 20, "still dying"
    assert count == 2 + 3
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [50]
    assert (done, driver.committed()) == (set(range(100)) - {50}, 100)


def test_a_killer_and_a_rebalance(kafka: Kafka) -> None:
    """A watch over lone records survives a hand-over in order: the next owner goes on where the last one was."""
    fill(kafka, 20)
    die(kafka, 2)
    one = Driver(kafka)
    assert one.run() == [0]
    one.ack([0])
    kafka.rebalance(GROUP)
    one.run(20)
    assert one.offsets == [0, 1]
    assert told(kafka) == Watch(2, 30, 30, alone=1)
    one.ack([1])
    one.spout.close()
    assert told(kafka) == Watch(2, 30, 30, ended=True)


@pytest.mark.slow
def test_several_records_that_kill(kafka: Kafka) -> None:
    """Neighbours, the first and the last record of the log: each is found, and nothing else."""
    fill(kafka, 1990)
    done: set[int] = set()
    poison = {0, 700, 701, 1999}
    deaths(kafka, poison, done)
    assert {letter.offset for letter in read_dead_letters(kafka, LETTERS)} == poison
    assert done == set(range(2000)) - poison


def test_a_gap_hides_no_killer(kafka: Kafka) -> None:
    """Where the offsets that were suspected hold no record, the watch goes on to those that do."""
    kafka.gap(TOPIC, count=1490)
    fill(kafka, 1500)
    done: set[int] = set()
    deaths(kafka, {1600}, done)
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [1600]
    assert done == {*range(10), *range(1500, 3000)} - {1600}


def test_nothing_leaves_alone_before_it_is_written_down(kafka: Kafka) -> None:
    """While the commit fails, the record stays in."""
    die(kafka, 2)
    driver = Driver(kafka)
    kafka.faults.fail_next("commit", errors.KafkaTimeoutError, times=1000)
    for _ in range(20):
        driver.run(2)
        kafka.clock.sleep(5)
    assert driver.emitted == []
    kafka.faults.clear()
    kafka.clock.sleep(30)
    assert driver.run() == [0]
    assert told(kafka).alone == 0


def test_a_record_that_fails_alone_waits_for_its_retry(kafka: Kafka) -> None:
    """Its back-off holds up no other, its answer takes it from the commit, and its retry is alone again."""
    die(kafka, 2)
    driver = Driver(kafka, retry_initial_ms=60_000, retry_delay_ms_max=60_000)
    driver.run()
    driver.fail([0])
    assert driver.run() == [1]
    driver.spout._member.commit(driver.spout._now())
    assert told(kafka).alone == 1
    kafka.clock.sleep(61)
    assert driver.run() == []
    driver.ack([1])
    driver.spout._member.commit(driver.spout._now())
    assert told(kafka).alone is None
    assert driver.run() == [0]
    assert told(kafka).alone == 0
    driver.ack([0])
    driver.spout._member.commit(driver.spout._now())
    assert (driver.committed(), told(kafka).alone) == (2, None)


def test_a_watch_is_handed_on(kafka: Kafka) -> None:
    """An orderly end under a watch adds nothing to the row and loses nothing; a death then counts no record."""
    die(kafka, 2)
    driver = Driver(kafka)
    assert driver.run() == [0]
    driver.ack([0])
    driver.spout.close()
    assert told(kafka) == Watch(2, 10, 10, ended=True)
    successor = Driver(kafka)
    assert successor.run() == [1]
    assert told(kafka) == Watch(2, 10, 10, alone=1)
    assert successor.spout._member.membership.parts[TopicPartition(TOPIC, 0)].ledger.failed == 0


def test_a_session_that_runs_out_is_no_death(kafka: Kafka) -> None:
    """Thrown out of the group and back with nobody in between, a living process counts nothing."""
    driver = Driver(kafka)
    driver.run()
    for _ in range(3):
        kafka.expire_members(GROUP)
        kafka.clock.sleep(5)
        driver.run(20)
    assert len(driver.offsets) > 10
    assert (driver.figure("unclean"), told(kafka).starts) == (0, 0)


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
    """Return a process under a watch over both partitions of a topic; one record leaves in each turn."""
    kafka.create_topic("wide", 2)
    fill(kafka, records, 0, "wide")
    fill(kafka, records, 1, "wide")
    for _ in range(2):
        died = Driver(kafka, topics=["wide"])
        died.run()
        died.die()
    return Driver(kafka, topics=["wide"], emits_per_next_max=1)


def told_alone(kafka: Kafka) -> dict[int, int]:
    """Return by partition the record that is out alone, as the group's commits tell."""
    id_ = kafka.topic_id("wide")
    watches = {
        tp.partition: decode(of.offset, of.metadata, topic_id=id_).watch for tp, of in kafka.committed(GROUP).items()
    }
    return {partition: watch.alone for partition, watch in watches.items() if watch.alone is not None}


def test_what_failed_alone_has_its_turn_beside_a_partition_that_never_rests(kafka: Kafka) -> None:
    """A suspect waits for the other partitions' lone records, and none of theirs leaves before it."""
    driver = wide(kafka, 40)
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
    assert driver.spout._member.commit(driver.spout._now())
    assert told_alone(kafka) == {int(tup_id.split("/")[3]): offset_of(tup_id)}


def test_a_rebalance_is_an_orderly_end(kafka: Kafka) -> None:
    """What is handed over, and what stays, counts no unclean start; what stays is marked as at work again."""
    kafka.create_topic("wide", 2)
    fill(kafka, 5, 0, "wide")
    fill(kafka, 5, 1, "wide")
    one = Driver(kafka, topics=["wide"])
    one.run()
    one.ack_all()
    two = Driver(kafka, member=2, topics=["wide"])
    for _ in range(40):
        for driver in (one, two):
            driver.run(1)
            driver.ack_all()
    assert {driver.figure("partitions") for driver in (one, two)} == {1}
    assert {driver.figure("unclean") for driver in (one, two)} == {0}
    metas = kafka.committed(GROUP)
    marks = [decode(m.offset, m.metadata, topic_id=kafka.topic_id("wide")).watch for tp, m in metas.items()]
    assert marks == [AT_WORK, AT_WORK]


def test_metadata_of_an_earlier_version_counts_nothing(kafka: Kafka) -> None:
    """A commit without the mark is read as before, and as an orderly end."""
    text = encode(2, topology_id="orders-1", task=3, topic_id=kafka.topic_id(TOPIC), done=[(4, 6)], failures=[(2, 1)])
    assert len(text.split(" ")) == 5
    writer = kafka.consumer(group=GROUP)
    writer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(2, text, -1)})
    writer.close()
    driver = Driver(kafka)
    assert driver.run() == [2, 3, 6, 7, 8, 9]
    assert (driver.figure("unclean"), told(kafka)) == (0, AT_WORK)


@pytest.mark.record_only(ACKS_DECIDE)
def test_other_guarantees_keep_no_watch(kafka: Kafka) -> None:
    """Under AT_MOST_ONCE nothing comes again, so nothing needs to be suspected: it takes over at full speed."""
    die(kafka, 3)
    driver = Driver(kafka, guarantee="AT_MOST_ONCE", tuple_tracking=True)
    assert driver.run() == list(range(10))
    assert told(kafka) == ENDED


def test_a_bounded_run_with_a_killer_ends(kafka: Kafka) -> None:
    """``--until end`` is reached once the killer is a dead letter."""
    fill(kafka, 90)
    done: set[int] = set()
    _, driver = deaths(kafka, {50}, done, run__until="end")
    assert driver.spout.exhausted()
    assert driver.spout.end_reached()
    driver.spout.close()
    assert told(kafka) == ENDED
    assert done == set(range(100)) - {50}


def test_whatever_is_out_the_commit_says_that_somebody_is_at_work(wide: Kafka) -> None:
    """Also in rebalances, nothing is emitted of a partition whose last commit tells of an end in order."""
    drivers = [Driver(wide, member=member, poll_records_max=5, emits_per_next_max=5) for member in (1, 2, 3)]
    seen = dict.fromkeys(drivers, 0)
    for turn in range(90):
        if turn in {30, 50}:
            wide.rebalance(GROUP)
        for driver in drivers[: 1 + turn // 20]:
            driver.run(1)
            for partition in {place_of(tup_id)[0] for tup_id, _ in driver.emitted[seen[driver] :]}:
                assert not told(wide, partition).ended
            seen[driver] = len(driver.emitted)
            driver.ack_all()
    assert sum(seen.values()) == PARTITIONS * RECORDS
