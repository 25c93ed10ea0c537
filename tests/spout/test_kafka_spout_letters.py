"""Dead letters in flight while the spout continues; a record is done only when its letter is durable."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors

from downspout.component import Failure
from downspout.dead_letters import read_dead_letters
from downspout.spout import PollReader
from downspout.testing import FakeKafka
from downspout.testing.fake_kafka import FakeProducer
from tests.spout.reasons import ACKS_DECIDE, OTHERS_NEED_IT
from tests.spout.spout_driver import GROUP, Driver, Kafka, fill

LETTERS = f"{GROUP}.dead-letters"
ROOM = 1_000_000


def give_up(driver: Driver, offsets: list[int], turns: int = 3) -> None:
    """Fail records that get no retry, and give the spout the turns to send their letters."""
    driver.fail(offsets)
    driver.run(turns)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    flush = FakeProducer.flush

    def counted(producer: FakeProducer, timeout_s: float = 30.0) -> None:
        counts.append(len(producer._queue))
        flush(producer, timeout_s)

    monkeypatch.setattr(FakeProducer, "flush", counted)
    return counts


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    timeouts: list[int] = []
    poll = PollReader._poll

    def noted(reader: PollReader, resting: Any, timeout_ms: int, now: int) -> Any:
        timeouts.append(timeout_ms)
        return poll(reader, resting, timeout_ms, now)

    monkeypatch.setattr(PollReader, "_poll", noted)
    return timeouts


def test_the_spout_goes_on_while_letters_are_on_their_way(kafka: Kafka) -> None:
    """New records are emitted meanwhile; the given-up one is resolved and committed past once its letter is durable."""
    kafka.acks_after_s = 2
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    give_up(driver, [4])
    fill(kafka, 3)
    assert driver.run(2) == [10, 11, 12]
    assert list(read_dead_letters(kafka, LETTERS)) == []
    assert driver.figure("dead_lettered") == 0
    kafka.clock.sleep(2)
    driver.run()
    driver.ack([10, 11, 12])
    driver.commit()
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [4]
    assert (driver.committed(), driver.figure("dead_lettered")) == (13, 1)


def test_a_commit_meanwhile_stays_before_the_record(kafka: Kafka) -> None:
    """What is committed while a letter is on its way does not cover its record: a crash loses nothing."""
    kafka.acks_after_s = 2
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM, commit_period_ms=0)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    give_up(driver, [4])
    assert driver.committed() == 4
    driver.crash()
    assert Driver(kafka).run() == [4]


def test_a_letter_that_takes_too_long_is_written_again(kafka: Kafka) -> None:
    """After three seconds without word it counts as lost; its record is resolved by the next letter."""
    kafka.acks_after_s = 100
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    give_up(driver, [4])
    kafka.clock.sleep(3)
    driver.run(1)
    assert (driver.figure("errors"), driver.figure("dead_lettered")) == (1, 0)
    kafka.acks_after_s = 0
    kafka.clock.sleep(1)
    driver.run()
    driver.commit()
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [4]
    assert driver.committed() == 10


@pytest.mark.fake_only("how many letters gather within 0.1 s depends on how fast a broker answers")
def test_a_busy_spout_gathers_its_letters(kafka: FakeKafka, batches: list[int]) -> None:
    """While polls bring records, 250 letters go together, and a single one waits no longer than 0.25 s."""
    fill(kafka, 2990)
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM, poll_records_max=10, emits_per_next_max=10)
    while len(driver.emitted) < 1200:
        driver.run(1)
        driver.fail([offset for offset in driver.offsets[-10:] if offset % 4 == 0])
    assert batches == [250]
    kafka.clock.sleep(0.25)
    driver.run(2)
    assert len(batches) == 2
    assert batches[1] < 250


def test_a_stop_writes_the_letters_that_wait(kafka: Kafka) -> None:
    """Letters that were to be sent later are durable, and their records committed past, when the spout has left."""
    fill(kafka, 20)
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM, poll_records_max=10, emits_per_next_max=10)
    give_up(driver, [], turns=2)
    give_up(driver, [3])  # makes the producer
    kafka.clock.sleep(1)
    driver.run(3)
    fill(kafka, 10)
    driver.run(1)
    driver.fail([30])
    driver.ack([offset for offset in driver.offsets if offset not in (3, 30)])
    driver.spout.deactivate()
    driver.spout.close()
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [3, 30]
    assert driver.committed() == len(driver.offsets)


def test_a_stop_waits_for_letters_on_their_way(kafka: Kafka) -> None:
    """A letter that is durable a moment after the stop was asked for is not written again by the next start."""
    kafka.acks_after_s = 0.3
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    give_up(driver, [4], turns=2)
    driver.spout.deactivate()
    assert (driver.committed(), len(kafka.records(LETTERS))) == (10, 1)


def test_a_hand_over_waits_for_letters_on_their_way(kafka: Kafka) -> None:
    """A planned hand-over begins when the letters are durable, so the next owner does not try their records again."""
    # A letter is given up after 3 s without a word, and on a broker the time that a slow machine takes counts for that.
    kafka.acks_after_s = 1
    kafka.create_topic("more", 1)
    old = Driver(kafka, member=2, retries_max=0, retry_cache_bytes=ROOM)
    old.run()
    old.ack([n for n in range(10) if n != 4])
    give_up(old, [4])
    new = Driver(kafka, member=1, retries_max=0)  # the lower number gets the only partition
    new.ask_to_join()
    for _ in range(60):
        for driver in (old, new):
            driver.run(1)
        kafka.clock.sleep(0.25)
        if old.committed() == 10:
            break
    else:
        old.commit()  # a real group may be done before the letter is: then its owner commits by its timer
    assert len(kafka.records(LETTERS)) == 1
    assert old.offsets.count(4) + new.offsets.count(4) == 1
    assert old.committed() == 10


def test_a_partition_that_is_lost_takes_its_letters_along(kafka: Kafka) -> None:
    """Word of a letter that comes after its partition has gone resolves nothing in the new assignment."""
    kafka.acks_after_s = 2
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM, drain_ms_max=0)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    give_up(driver, [4])
    kafka.expire_members(GROUP)
    driver.run(6)
    assert driver.offsets.count(4) == 2
    kafka.clock.sleep(3)
    driver.run()
    assert driver.figure("dead_lettered") == 0
    driver.ack([n for n in range(10) if n != 4])
    driver.commit()
    assert driver.committed() == 4
    driver.ack([4])
    driver.commit()
    assert driver.committed() == 10


@pytest.mark.fake_only("on a broker nothing says when in a rebalance the letter becomes durable")
def test_word_that_comes_in_time_resolves_nothing_of_a_lost_partition(kafka: FakeKafka) -> None:
    """The letter is durable, and its record is the next owner's: the old spout counts nothing and waits for nothing."""
    kafka.acks_after_s = 1.5
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM, drain_ms_max=0)
    driver.run()
    give_up(driver, [4], turns=1)
    kafka.expire_members(GROUP)
    driver.run(4)
    assert driver.offsets.count(4) == 2
    for _ in range(20):
        kafka.clock.sleep(0.1)
        driver.run(1)
    assert len(kafka.records(LETTERS)) == 1
    assert (driver.figure("dead_lettered"), driver.spout.services.dead_lettering.busy) == (0, False)


@pytest.mark.fake_only("on a broker nothing says when in a rebalance the letter becomes durable")
def test_letters_that_wait_are_not_written_for_a_lost_partition(kafka: FakeKafka) -> None:
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM, drain_ms_max=0)
    driver.run()
    kafka.faults.fail_next("flush", errors.KafkaTimeoutError("no room"))
    give_up(driver, [4], turns=1)
    kafka.expire_members(GROUP)
    driver.run(4)
    kafka.clock.sleep(1)
    driver.run()
    assert (driver.offsets.count(4), len(kafka.records(LETTERS))) == (2, 0)
    assert not driver.spout.services.dead_lettering.busy


def test_a_poll_ends_when_a_retry_is_due(kafka: Kafka, waits: list[int]) -> None:
    """While a failed record waits in memory no poll waits longer than its back-off; then polls wait as they should."""
    driver = Driver(kafka, retry_cache_bytes=ROOM, retry_delay_ms=70, poll_timeout_ms=200)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    before = len(waits)
    assert driver.run(4) == [4]
    assert max(waits[before:]) <= 70
    driver.ack([4])
    driver.run(1)
    assert waits[-1] == 200


def test_a_poll_does_not_wait_while_a_retry_in_memory_is_ready(kafka: Kafka, waits: list[int]) -> None:
    """Retries beyond what one call may emit keep the poll of that call from waiting."""
    driver = Driver(kafka, retry_cache_bytes=ROOM, emits_per_next_max=1, retry_delay_ms=0)
    driver.run(12)
    driver.ack([n for n in range(10) if n not in (4, 5)])
    driver.fail([4, 5])
    assert driver.run(1) == [4]
    assert waits[-1] == 0
    assert driver.run(1) == [5]


def test_a_bounded_run_does_not_wait_for_records_beyond_its_end(kafka: Kafka, waits: list[int]) -> None:
    driver = Driver(kafka, run__until="end", poll_timeout_ms=200)
    driver.run()
    driver.ack_all()
    driver.run(2)
    assert waits[-1] == 10


def test_the_stack_reaches_the_letter(kafka: Kafka) -> None:
    """Class, message and stack of the last failure are in the letter, as the engine told them."""
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM)
    driver.run()
    driver.spout.fail_with(driver.last_id(4), Failure("exception", "parse", 7, "ValueError: no", "Traceback\n  x\n"))
    driver.run()
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.error_class, letter.error, letter.stack) == ("ValueError", "no", "Traceback\n  x\n")


@pytest.mark.record_only(ACKS_DECIDE)
@pytest.mark.fake_only(OTHERS_NEED_IT)
@pytest.mark.parametrize(("guarantee", "count"), [("AT_LEAST_ONCE", 9), ("NO_GUARANTEE", 10)])
def test_what_could_not_be_committed_is_counted(kafka: FakeKafka, guarantee: str, count: int) -> None:
    """A spout that leaves without its last commit tells how many records come again; committed ones do not count."""
    driver = Driver(kafka, guarantee=guarantee)
    driver.run()
    if guarantee == "AT_LEAST_ONCE":
        driver.ack([0])
        driver.commit()
        driver.ack(range(1, 10))
    kafka.broker_down()
    driver.spout.close()
    assert driver.figure("uncommitted") == count
    kafka.broker_up()
    kafka.expire_members(GROUP)
    assert len(set(Driver(kafka).run())) == count


@pytest.mark.fake_only(OTHERS_NEED_IT)
def test_a_stop_with_all_committed_counts_nothing(kafka: FakeKafka) -> None:
    """Where nothing is left to commit, a broker that is gone at the end is no loss."""
    driver = Driver(kafka)
    driver.run()
    driver.ack_all()
    driver.commit()
    kafka.broker_down()
    driver.spout.close()
    assert (driver.figure("uncommitted"), driver.committed()) == (0, 10)


def test_a_letter_that_cannot_be_written_is_warned_about_now_and_then(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try that fails counts as an error; the log hears of the first, and of the same error again after 30 s."""
    driver = Driver(kafka, retries_max=0, retry_cache_bytes=ROOM)
    driver.run()
    kafka.faults.fail_next("flush", errors.KafkaTimeoutError("no room"), times=1000)
    driver.fail([4])
    warned = []
    for _ in range(8):
        for _ in range(10):
            kafka.clock.sleep(1)
            driver.run(1)
        warned.append(sum("no room" in record.getMessage() for record in caplog.records))
    assert driver.figure("errors") > 8
    assert warned == [1, 1, 1, 2, 2, 2, 3, 3]
