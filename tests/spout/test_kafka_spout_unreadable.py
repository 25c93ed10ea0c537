"""Records that Kafka cannot return in full: the spout writes a dead letter and continues, or ends with a reason."""

from __future__ import annotations

import pytest

from downspout.dead_letters import DeadLetter, plan_replay, read_dead_letters
from downspout.errors import BrokerError, ConfigError
from downspout.testing import FakeKafka
from tests.spout.reasons import ACKS_DECIDE
from tests.spout.spout_driver import GROUP, MANY, TOPIC, Driver

LETTERS = f"{GROUP}.dead-letters"
FAKE = pytest.mark.fake_only("a real broker's log is damaged in tests/broker/test_unreadable_broker.py")


def letters(kafka: FakeKafka) -> list[DeadLetter]:
    return list(read_dead_letters(kafka, LETTERS))


def drive(driver: Driver) -> None:
    for _ in range(6):
        driver.run(3)
        driver.ack_all()
    driver.commit()


@FAKE
def test_a_record_that_is_too_large_is_given_up_with_its_beginning(kafka: FakeKafka) -> None:
    """Its dead letter says where it was, how large it is and what was cut; the rest of the partition goes on."""
    kafka.damage(TOPIC, 0, 4, 5, size=400_000_000)
    driver = Driver(kafka)
    drive(driver)
    (letter,) = letters(kafka)
    assert (letter.origin[2:] if letter.origin else None, letter.record_bytes, letter.end) == (
        (0, 4),
        400_000_000,
        None,
    )
    assert letter.incomplete is not None
    assert "cut after 65,536 bytes" in letter.incomplete
    assert letter.record.value == b"4"
    assert (driver.committed(), driver.figure("dead_lettered"), driver.figure("unreadable")) == (10, 1, 1)
    assert driver.figure("acked") == 9


@FAKE
def test_a_damaged_batch_goes_to_the_dead_letter_topic_if_so_told(kafka: FakeKafka) -> None:
    """One dead letter names all of its offsets, they are counted apart, and what is behind it is read."""
    kafka.damage(TOPIC, 0, 3, 7)
    driver = Driver(kafka, on_corrupt_batch="dead_letter")
    drive(driver)
    (letter,) = letters(kafka)
    assert (letter.offsets, letter.is_cut, letter.record.value) == (range(3, 7), True, None)
    assert (driver.committed(), driver.figure("dead_lettered"), driver.figure("unreadable")) == (10, 1, 4)
    assert driver.figure("acked") == 6


@FAKE
def test_nothing_behind_a_damaged_batch_is_committed_before_its_letter_is_durable(kafka: FakeKafka) -> None:
    """After a crash before that, the next owner meets with the batch again, and writes the letter."""
    kafka.acks_after_s = 100
    kafka.damage(TOPIC, 0, 3, 7)
    driver = Driver(kafka, on_corrupt_batch="dead_letter")
    driver.run()
    driver.ack_all()
    driver.commit()
    assert driver.committed() == 3
    driver.crash()
    kafka.acks_after_s = 0
    again = Driver(kafka, on_corrupt_batch="dead_letter")
    drive(again)
    assert {letter.offsets for letter in letters(kafka)} == {range(3, 7)}
    assert again.committed() == 10
    assert again.offsets == []


@FAKE
def test_records_that_wait_for_a_retry_when_their_batch_is_damaged_are_given_up_with_it(
    kafka: FakeKafka,
) -> None:
    """What was read before and failed is not there any more when it is read again: the letter stands for it too."""
    driver = Driver(kafka, on_corrupt_batch="dead_letter", retry_cache_bytes=0, chunk_records_max=1)
    driver.run()
    driver.ack([0, 1, 2, 6, 7, 8, 9])
    driver.fail([3, 4, 5])
    kafka.damage(TOPIC, 0, 3, 7)
    kafka.clock.sleep(20)
    drive(driver)
    assert driver.committed() == 10
    assert {offset for letter in letters(kafka) for offset in letter.offsets} == {3, 4, 5, 6}


@FAKE
def test_by_default_a_damaged_batch_ends_the_run_with_its_place_and_the_cure(kafka: FakeKafka) -> None:
    """The error names the offsets and the setting, and says nothing about rights; what was before it is emitted."""
    kafka.damage(TOPIC, 0, 3, 7)
    driver = Driver(kafka)
    with pytest.raises(BrokerError, match=rf"{TOPIC}\[0\]@3: .*checksum") as raised:
        driver.run()
    assert raised.value.cure is not None
    assert "kafka.on_corrupt_batch=dead_letter" in raised.value.cure
    assert "rights" not in str(raised.value)
    assert driver.offsets == [0, 1, 2]


@FAKE
def test_a_letter_without_the_whole_record_is_not_replayed(kafka: FakeKafka) -> None:
    """A replay of it is refused before anything is written, and names it; with a flag the others are replayed."""
    kafka.damage(TOPIC, 0, 4, 5, size=400_000_000)
    driver = Driver(kafka, retries_max=0)
    driver.run()
    driver.fail([8])
    drive(driver)
    before = len(kafka.records(TOPIC))
    with pytest.raises(ConfigError, match=rf"{TOPIC}\[0\]@4: .*does not hold the whole record"):
        plan_replay(kafka, LETTERS, letters(kafka), write=False)
    plan = plan_replay(kafka, LETTERS, letters(kafka), write=True, skip_cut=True)
    assert (plan.total, plan.cut, len(kafka.records(TOPIC)) - before) == (1, 1, 1)


@FAKE
@pytest.mark.record_only(ACKS_DECIDE)
@pytest.mark.parametrize("guarantee", ["AT_MOST_ONCE", "NO_GUARANTEE"])
def test_without_acks_a_damaged_batch_becomes_a_dead_letter_too(kafka: FakeKafka, guarantee: str) -> None:
    """Under each guarantee the letter is written, and no record of the batch is emitted."""
    kafka.damage(TOPIC, 0, 3, 7)
    driver = Driver(kafka, guarantee=guarantee, topology__max__spout__pending=MANY, on_corrupt_batch="dead_letter")
    driver.run(12)
    assert sorted(driver.offsets) == [0, 1, 2, 7, 8, 9]
    assert [letter.offsets for letter in letters(kafka)] == [range(3, 7)]
