"""Processes that die: the next owner's knowledge, and records that kill the process each time."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.dead_letters import read_dead_letters
from downspout.ledger import AT_WORK, ENDED, Isolation, decode, encode
from downspout.spout import FlushRequests
from downspout.wire import FLUSH
from tests.spout.deaths import LETTERS, SINGLE, deaths, die, live, told
from tests.spout.reasons import ACKS_DECIDE
from tests.spout.spout_driver import GROUP, MANY, PARTITIONS, RECORDS, TOPIC, Driver, Kafka, fill, offset_of, place_of


def test_a_crash_before_the_dead_letter_gives_no_further_try(kafka: Kafka) -> None:
    """The last failure was committed, its letter was not written: the next process writes it and emits nothing."""
    driver = Driver(kafka, retries_max=1)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    driver.run()
    driver.fail([4])
    driver.session.commit(0)
    driver.die()
    successor = Driver(kafka, retries_max=1)
    assert successor.run() == []
    successor.commit()
    (letter,) = read_dead_letters(kafka, LETTERS)
    assert (letter.offset, letter.attempts, letter.kind, letter.error_class) == (4, 2, "crash", "ProcessDied")
    assert letter.error == (
        "2 attempts had failed, and kafka.retries_max allows no more, when the process died before it wrote this dead "
        "letter; the log of that process has the error"
    )
    assert letter.component is not None
    assert successor.committed() == 10


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
    assert told(kafka) == Isolation(1)
    driver.ack(range(3))
    driver.commit()
    assert told(kafka) == AT_WORK
    driver.die()
    successor = Driver(kafka)
    assert successor.run() == list(range(3, 10))
    assert told(kafka) == Isolation(1)


def test_after_the_second_unclean_start_a_window_may_be_out(kafka: Kafka) -> None:
    """Nothing beyond it leaves before a commit has moved on, which is then made ahead of the timer."""
    fill(kafka, 1690)
    die(kafka, 2)
    driver = Driver(kafka)
    assert driver.run(20) == list(range(1000))
    assert told(kafka) == Isolation(2, 1000, 0, 1700)
    assert driver.spout.waits_for_acks()
    driver.ack(range(1000))
    assert driver.run(20) == list(range(1000, 1700))
    assert told(kafka) == Isolation(2, 4000, 0, 1700)
    driver.ack(range(1000, 1700))
    driver.commit()
    assert (driver.committed(), told(kafka)) == (1700, AT_WORK)


def test_the_warning_does_not_say_that_the_process_before_is_dead(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """One that lives may have lost its partitions to another; the commit says only that it did not end in order."""
    fill(kafka, 1690)
    die(kafka, 2)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tests.spout"):
        Driver(kafka).run()
    (said,) = [record.getMessage() for record in caplog.records if "cleanly" in record.getMessage()]
    assert "did not stop cleanly (2 in a row): it was killed, it crashed, or another one took over from it" in said
    assert said.endswith("; records up to @1699 are tried 1,000 at a time")


def test_each_death_in_a_window_makes_it_smaller(kafka: Kafka) -> None:
    """Windows of that size are tried up to where the larger one ended; behind that they grow again."""
    fill(kafka, 1990)
    die(kafka, 3)
    driver = Driver(kafka)
    for first in range(0, 1000, 125):
        assert driver.run(5) == list(range(first, first + 125))
        driver.ack(range(first, first + 125))
    assert driver.run(5) == list(range(1000, 1500))
    assert told(kafka) == Isolation(3, 500, 0, 2000)


def test_the_first_acks_after_a_death_are_committed_at_once(kafka: Kafka) -> None:
    """They end the row: whoever is killed now and then, by others, is never suspected."""
    for start in range(8):
        driver = Driver(kafka, commit_period_ms=60_000)
        driver.run()
        assert driver.spout.waits_for_acks() == (start > 0)
        driver.spout.ack(driver.emitted[0][0])
        kafka.clock.sleep(0.3)
        driver.run(2)
        assert told(kafka) == (AT_WORK if start else told(kafka))
        assert driver.figure("unclean") <= 1
        driver.die()
    assert told(kafka).starts <= 1


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


def test_after_several_unclean_starts_one_record_is_out_at_a_time(kafka: Kafka) -> None:
    """It is written down before it is out, another partition goes on, and the search ends with what was suspected."""
    kafka.create_topic("more", 1)
    fill(kafka, 10, topic="more")
    die(kafka, SINGLE)
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
    assert letter.record.value == b"1224"
    assert letter.first_failure_ms is None, "whoever knew it died of it"
    assert letter.last_failure_ms is not None
    assert done == set(range(3000)) - {1234}
    assert (driver.committed(), told(kafka)) == (3000, AT_WORK)
    assert count == 2 + 4 + 3, "twice free, four times in windows, and then alone"


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
    assert count == SINGLE + 3
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [50]
    assert (done, driver.committed()) == (set(range(100)) - {50}, 100)


def test_a_killer_and_a_rebalance(kafka: Kafka) -> None:
    """A search by single records survives a hand-over in order: the next owner goes on where the last one was."""
    fill(kafka, 20)
    die(kafka, SINGLE)
    one = Driver(kafka)
    assert one.run() == [0]
    one.ack([0])
    kafka.rebalance(GROUP)
    one.run(20)
    assert one.offsets == [0, 1]
    assert told(kafka) == Isolation(SINGLE, 1, 15, 30, alone=1)
    one.ack([1])
    one.spout.close()
    assert told(kafka) == Isolation(SINGLE, 1, 15, 30, ended=True)


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
    """Where the offsets that were suspected hold no record, the isolation goes on to those that do."""
    kafka.gap(TOPIC, count=1490)
    fill(kafka, 1500)
    done: set[int] = set()
    deaths(kafka, {1600}, done)
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [1600]
    assert done == {*range(10), *range(1500, 3000)} - {1600}


def test_nothing_leaves_alone_before_it_is_written_down(kafka: Kafka) -> None:
    """While the commit fails, the record stays in."""
    die(kafka, SINGLE)
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
    die(kafka, SINGLE)
    driver = Driver(kafka, retry_delay_ms=60_000, retry_delay_ms_max=60_000)
    driver.run()
    driver.fail([0])
    assert driver.run() == [1]
    driver.session.commit(driver.spout.services.now())
    assert told(kafka).alone == 1
    kafka.clock.sleep(61)
    assert driver.run() == []
    driver.ack([1])
    driver.session.commit(driver.spout.services.now())
    assert told(kafka).alone is None
    assert driver.run() == [0]
    assert told(kafka).alone == 0
    driver.ack([0])
    driver.session.commit(driver.spout.services.now())
    assert (driver.committed(), told(kafka).alone) == (2, None)


def test_a_watch_is_handed_on(kafka: Kafka) -> None:
    """An orderly end under crash isolation adds nothing to the row and loses nothing; a death then counts no record."""
    die(kafka, SINGLE)
    driver = Driver(kafka)
    assert driver.run() == [0]
    driver.ack([0])
    driver.spout.close()
    assert told(kafka) == Isolation(SINGLE, 1, 10, 10, ended=True)
    successor = Driver(kafka)
    assert successor.run() == [1]
    assert told(kafka) == Isolation(SINGLE, 1, 10, 10, alone=1)
    assert successor.session.assignment.parts[TopicPartition(TOPIC, 0)].ledger.failed == 0


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
    marks = [decode(m.offset, m.metadata, topic_id=kafka.topic_id("wide")).isolation for tp, m in metas.items()]
    assert marks == [AT_WORK, AT_WORK]


def test_the_metadata_of_an_orderly_end_counts_nothing(kafka: Kafka) -> None:
    """What it says was done is left out, and no start is unclean."""
    text = encode(2, topology_id="orders-1", task=3, topic_id=kafka.topic_id(TOPIC), done=[(4, 6)], failures=[(2, 1)])
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
    driver = Driver(kafka, guarantee="AT_MOST_ONCE", topology__max__spout__pending=MANY)
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


@pytest.mark.record_only(ACKS_DECIDE)
def test_after_a_death_the_sinks_are_asked_to_flush_until_it_has_caught_up(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Storm, where nobody else can tell them: at the start, again while it lasts, and not after that."""
    die(kafka, 1)
    driver = Driver(kafka)
    asked: list[int] = []
    emit = driver.spout.emit

    def hear(values: Any, **how: Any) -> Any:
        if how.get("stream") == FLUSH:
            asked.append(len(driver.emitted))
            return None
        return emit(values, **how)

    monkeypatch.setattr(driver.spout, "emit", hear)
    monkeypatch.setattr(driver.spout, "_flush_requests", FlushRequests(hear))
    driver.run(3)
    assert asked[:1] == [0], "before anything leaves"
    driver.ack(range(5))
    kafka.clock.sleep(2)
    driver.run(2)
    assert (told(kafka), len(asked)) == (AT_WORK, 2)
    driver.ack(range(5, 10))
    kafka.clock.sleep(2)
    driver.run(2)
    count = len(asked)
    kafka.clock.sleep(2)
    driver.run(2)
    assert len(asked) == count
    assert driver.committed() == 10
