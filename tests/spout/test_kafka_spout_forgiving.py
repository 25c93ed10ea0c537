"""Records that failed for good, and whose letters were not written when a run ended in order: they come again."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors
from kafka.structs import TopicPartition

from downspout.component import Failure
from downspout.dead_letters import read_dead_letters
from downspout.errors import RecordError
from downspout.ledger import Breaker, CommitMetadata, decode
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill

LETTERS = f"{GROUP}.dead-letters"
BROKEN: dict[str, Any] = {"retries_max": 1, "breaker_ratio": 0.5}
KEY_ERROR = Failure("exception", "parse", 4, "KeyError: 'a'")


@pytest.fixture(autouse=True)
def _short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Breaker, "WINDOW", 20)


SOLO = 5
"""After so many deaths at one offset a record is out alone: twice free, then in windows of 1,000, 125 and 15."""


def told(kafka: Kafka) -> CommitMetadata:
    meta = kafka.committed(GROUP)[TopicPartition(TOPIC, 0)]
    return decode(meta.offset, meta.metadata, topic_id=kafka.topic_id(TOPIC))


def fail_all(driver: Driver) -> None:
    """Let a bolt raise on whatever comes, until the run stops."""
    answered = 0
    for _ in range(40):
        driver.run(2)
        out, answered = driver.emitted[answered:], len(driver.emitted)
        for tup_id, _ in out:
            driver.spout.fail_with(tup_id, KEY_ERROR)
        driver.kafka.clock.sleep(11)
    raise AssertionError("it did not stop")


def stop_by_breaker(kafka: Kafka, **settings: Any) -> Driver:
    """Run with a bolt that fails everything; return the spout, closed."""
    driver = Driver(kafka, **{**BROKEN, **settings})
    with pytest.raises(RecordError, match="records failed for good, most often with KeyError"):
        fail_all(driver)
    driver.spout.close()
    return driver


def test_after_the_breaker_and_a_repair_everything_is_processed(kafka: Kafka) -> None:
    """What the breaker held back comes again, and with the bolt repaired none of it is a dead letter."""
    fill(kafka, 190)
    stop_by_breaker(kafka)
    repaired = Driver(kafka, **BROKEN)
    assert repaired.run(20) == list(range(200))
    repaired.ack_all()
    repaired.commit()
    assert (repaired.committed(), list(read_dead_letters(kafka, LETTERS))) == (200, [])


@pytest.mark.parametrize("room", [0, 1_000_000])
def test_restarts_of_what_is_still_broken_give_up_nothing(
    kafka: Kafka, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each restart is stopped by the breaker like the first run: no letter is written, nothing committed past."""
    monkeypatch.setattr(Breaker, "WINDOW", 200)
    fill(kafka, 290)
    for _ in range(5):
        driver = stop_by_breaker(kafka, retry_cache_bytes=room)
        assert set(driver.offsets) == set(range(300))
        assert (driver.committed(), told(kafka).failures) == (0, {})
    assert list(read_dead_letters(kafka, LETTERS)) == []


def test_restarts_over_unreadable_records_give_up_nothing(kafka: Kafka) -> None:
    """What is not in its format counts for the breaker from the first poll on, at each start."""
    for _ in range(300):
        kafka.produce(TOPIC, b"\xff", partition=0)
    for _ in range(3):
        driver = Driver(kafka, breaker_ratio=0.5)
        with pytest.raises(RecordError, match="most often with UnicodeDecodeError"):
            driver.run(3)
        driver.spout.close()
        assert driver.committed() == 0
    assert list(read_dead_letters(kafka, LETTERS)) == []


def test_a_process_that_storm_ends_after_the_breaker_forgives_too(kafka: Kafka) -> None:
    """On Storm only the commit before the exit is left to say so; that start is an unclean one all the same."""
    fill(kafka, 190)
    driver = Driver(kafka, **BROKEN)
    with pytest.raises(RecordError):
        fail_all(driver)
    driver.spout.before_exit()
    driver.die()
    repaired = Driver(kafka, **BROKEN)
    assert repaired.run(20) == list(range(200))
    assert repaired.figure("unclean") == 1
    repaired.ack_all()
    repaired.commit()
    assert (repaired.committed(), list(read_dead_letters(kafka, LETTERS))) == (200, [])


def test_after_the_topic_is_corrected_the_letter_tells_the_error(kafka: Kafka) -> None:
    """A run that stopped because a letter was refused tells no more than its retries: the last try is made again."""
    kafka.create_topic("refused", 1, {"max.message.bytes": "0"})
    driver = Driver(kafka, dead_letter_topic="refused", retries_max=1, run__until="end")
    driver.run()
    driver.ack(range(1, 10))
    driver.fail([0])
    driver.run()
    driver.spout.fail_with(driver.last_id(0), KEY_ERROR)
    with pytest.raises(RecordError, match="its dead letter cannot be written"):
        driver.run()
    driver.spout.close()
    assert told(kafka).failures == {0: 1}
    kafka.create_topic("corrected", 1)
    successor = Driver(kafka, dead_letter_topic="corrected", retries_max=1, run__until="end")
    assert successor.run() == [0]
    successor.spout.fail_with(successor.last_id(0), KEY_ERROR)
    successor.run()
    successor.commit()
    [letter] = read_dead_letters(kafka, "corrected")
    assert (letter.offset, letter.attempts, letter.error_class, letter.error) == (0, 2, "KeyError", "'a'")
    assert successor.committed() == 10


def test_without_a_dead_letter_topic_a_repair_lets_it_go_on(kafka: Kafka) -> None:
    """The record at which the run stopped comes again, and once it succeeds the commit goes on."""
    driver = Driver(kafka, retries_max=0, dead_letter_topic="")
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    with pytest.raises(RecordError, match=r"orders\[0\]@4: failed 1 time"):
        driver.run()
    driver.spout.close()
    repaired = Driver(kafka, retries_max=0, dead_letter_topic="")
    assert repaired.run() == [4]
    repaired.ack([4])
    repaired.commit()
    assert repaired.committed() == 10


def test_a_hand_over_before_the_letter_leaves_one_more_try(kafka: Kafka) -> None:
    """The next owner tries the record once more, and its letter tells what that owner learned."""
    kafka.create_topic("more", 1)
    old = Driver(kafka, retries_max=1)
    old.run()
    old.ack([n for n in range(10) if n != 4])
    old.fail([4])
    old.run()
    kafka.faults.fail_next("flush", errors.KafkaTimeoutError, times=1000)
    old.fail([4])
    old.run(2)
    new = Driver(kafka, member=2, retries_max=1, topics=[TOPIC, "more"])
    new.ask_to_join()
    for _ in range(60):
        for driver in (old, new):
            driver.run(1)
        kafka.clock.sleep(0.1)
    old.spout.close()
    kafka.faults.clear()
    assert told(kafka).failures == {4: 1}
    for _ in range(20):
        new.run(1)
        kafka.clock.sleep(1)
    assert new.offsets == [4]
    new.spout.fail_with(new.last_id(4), KEY_ERROR)
    kafka.clock.sleep(11)
    new.run()
    new.commit()
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.offset, letter.attempts, letter.error_class) == (4, 2, "KeyError")
    assert new.committed() == 10


def die_of(kafka: Kafka, offset: int, **settings: Any) -> None:
    """Run a process until that record is out, and let it die."""
    driver = Driver(kafka, **settings)
    for _ in range(40):
        driver.run(1)
        if offset in driver.offsets:
            driver.die()
            return
        driver.ack_all()
    raise AssertionError("the record did not come")


def ack_all(driver: Driver) -> None:
    for _ in range(30):
        driver.run(1)
        driver.ack_all()
        driver.kafka.clock.sleep(1)


@pytest.mark.parametrize("end", ["close", "before_exit"])
def test_deaths_are_not_forgiven(kafka: Kafka, end: str) -> None:
    """A record that killed too often is emitted by no later process, however many end in order before its letter."""
    settings: dict[str, Any] = {"retries_max": 1, "dead_letter_topic": "refused", "run__until": "end"}
    kafka.create_topic("refused", 1, {"max.message.bytes": "0"})
    for _ in range(SOLO + 2):  # before it goes alone, and then once more than it has retries
        die_of(kafka, 3, **settings)
    for _ in range(4):
        driver = Driver(kafka, **settings)
        with pytest.raises(RecordError, match=r"orders\[0\]@3: failed for good"):
            ack_all(driver)
        assert 3 not in driver.offsets
        getattr(driver.spout, end)()
        if end == "before_exit":
            driver.die()
        assert told(kafka).failures[3] >= 2
    last = Driver(kafka, retries_max=1)
    ack_all(last)
    last.commit()
    assert 3 not in last.offsets
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [3]
    assert last.committed() == 10


def test_failures_under_a_watch_are_forgiven(kafka: Kafka) -> None:
    """What raised in a process that looks for a killer gets its one more try too; a death in it is the last."""
    settings: dict[str, Any] = {"retries_max": 1, "dead_letter_topic": "refused", "run__until": "end"}
    kafka.create_topic("refused", 1, {"max.message.bytes": "0"})
    for _ in range(SOLO):
        die_of(kafka, 0, **settings)
    driver = Driver(kafka, **settings)
    with pytest.raises(RecordError, match=r"orders\[0\]@0: failed for good"):
        fail_all(driver)
    driver.spout.close()
    assert told(kafka).failures[0] == 1
    die_of(kafka, 0, **settings)
    successor = Driver(kafka, **settings)
    with pytest.raises(RecordError, match=r"orders\[0\]@0: failed for good"):
        ack_all(successor)
    assert 0 not in successor.offsets
    successor.spout.close()
    assert told(kafka).failures[0] == 2
