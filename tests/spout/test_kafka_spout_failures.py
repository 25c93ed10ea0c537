from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kafka import errors

from downspout.component import Failure
from downspout.dead_letters import read_dead_letters
from downspout.errors import DataLossError, RecordError
from downspout.ledger import Backoff, Breaker
from downspout.spout import DeadLettering
from tests.spout.reasons import CLEANER, NO_ELECTION
from tests.spout.spout_driver import FEW_AT_A_TIME, GROUP, TOPIC, Driver, Kafka, fill

LETTERS = f"{GROUP}.dead-letters"


def fail_until_given_up(driver: Driver, offset: int, times: int) -> None:
    """Fail a record so often, with time for the back-off."""
    for _ in range(times):
        driver.fail([offset])
        driver.kafka.clock.sleep(11)
        driver.run()


def test_a_failed_record_is_sought_and_emitted_again(kafka: Kafka) -> None:
    driver = Driver(kafka)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    assert driver.run() == [4]
    driver.ack([4])
    driver.commit()
    assert driver.committed() == 10


def test_several_failed_records_come_again_lowest_first(kafka: Kafka) -> None:
    """The reader goes back to the lowest failed offset; the others are on the way."""
    driver = Driver(kafka)
    driver.run()
    driver.fail([8, 2, 5])
    assert driver.run() == [2, 5, 8]


def test_a_retry_waits_for_its_back_off(kafka: Kafka) -> None:
    """Before its time a failed record does not come, and others still do."""
    driver = Driver(kafka, retry_delay_ms=60_000, retry_delay_ms_max=60_000)
    driver.run()
    driver.fail([3])
    fill(kafka, 2)
    assert driver.run() == [10, 11]
    kafka.clock.sleep(61)
    assert driver.run() == [3]


def test_a_retry_is_possible_at_the_limit_of_uncommitted(kafka: Kafka) -> None:
    """A partition at its limit still reads what failed below it."""
    fill(kafka, 90)
    driver = Driver(kafka, uncommitted_max=20, poll_records_max=20)
    driver.run()
    assert driver.offsets == list(range(20))
    driver.fail([3])
    assert driver.run()[0] == 3
    assert driver.figure("in_flight") <= 20 + 20 - 1


def test_a_record_that_fails_for_good_is_dead_lettered(kafka: Kafka) -> None:
    """After the last retry it is in the dead-letter topic with its coordinates, and only then committed past."""
    driver = Driver(kafka, retries_max=2)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    fail_until_given_up(driver, 4, 3)
    driver.commit()
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.topic, letter.partition, letter.offset, letter.attempts) == (TOPIC, 0, 4, 3)
    assert letter.record.value == b"4"
    assert driver.committed() == 10
    assert driver.figure("dead_lettered") == 1
    assert driver.offsets.count(4) == 3


def test_without_any_retry_the_record_is_read_again_for_its_letter(kafka: Kafka) -> None:
    """With kafka.retries_max=0 nothing was held in memory: the record is fetched once more and not emitted."""
    driver = Driver(kafka, retries_max=0)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    fail_until_given_up(driver, 4, 1)
    driver.commit()
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [4]
    assert driver.offsets.count(4) == 1
    assert driver.committed() == 10


def test_the_letter_says_why(kafka: Kafka) -> None:
    """The engine's reason for the last failure is in the letter's headers."""
    driver = Driver(kafka, retries_max=0)
    driver.run()
    driver.spout.fail_with(driver.last_id(4), Failure("exception", "parse", 7, "ValueError: no", "Traceback"))
    driver.run()
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.component, letter.error_class, letter.error) == ("parse", "ValueError", "no")


def test_nothing_is_resolved_while_the_dead_letter_topic_is_unwritable(kafka: Kafka) -> None:
    """The commit stays before the record until its letter is durable."""
    driver = Driver(kafka, retries_max=0)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    kafka.faults.fail_next("flush", errors.KafkaTimeoutError, times=1000)
    fail_until_given_up(driver, 4, 1)
    driver.commit()
    assert driver.committed() == 4
    kafka.faults.clear()
    for _ in range(20):
        kafka.clock.sleep(5)
        driver.run(2)
    driver.commit()
    assert driver.committed() == 10
    assert driver.figure("dead_lettered") == 1


@pytest.mark.parametrize("operation", ["send", "flush"])
def test_a_letter_that_cannot_be_written_is_told(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    """The warning has the record's coordinates, the topic, the client's error and a cure."""
    driver = Driver(kafka, retries_max=0)
    driver.run()
    kafka.faults.fail_next(operation, errors.KafkaTimeoutError)
    driver.fail([4])
    driver.run()
    told = [record.getMessage() for record in caplog.records if "could not be written" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("orders[0]@4: its dead letter could not be written to topic readers.dead-letters: Kafka")
    assert "Try: check the broker" in told[0]


def test_an_error_of_the_producer_ends_no_bounded_run(kafka: Kafka) -> None:
    """Brokers have forgotten it: the letter is written by the next one."""
    driver = Driver(kafka, retries_max=0, run__until="end")
    driver.run()
    driver.ack([*range(4), *range(5, 10)])
    kafka.faults.fail_next("flush", errors.UnknownProducerIdError)
    driver.fail([4])
    driver.run()
    kafka.clock.sleep(60)
    driver.run()
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [4]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    send = DeadLettering._send

    def counted(dead_lettering: DeadLettering, batch: list[Any], now: Callable[[], int]) -> None:
        counts.append(len(batch))
        send(dead_lettering, batch, now)

    monkeypatch.setattr(DeadLettering, "_send", counted)
    return counts


def test_letters_that_are_due_leave_together(kafka: Kafka, batches: list[int]) -> None:
    driver = Driver(kafka, retries_max=0)
    driver.run()
    driver.ack([0, 9])
    driver.fail(range(1, 9))
    driver.run()
    driver.commit()
    assert batches == [8]
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == list(range(1, 9))
    assert (driver.committed(), driver.figure("dead_lettered")) == (10, 8)


def test_a_letter_that_cannot_be_written_holds_up_no_other(kafka: Kafka) -> None:
    """Too large for the topic: it alone stays unresolved, and each of the others is in the topic."""
    kafka.create_topic(LETTERS, 1, {"max.message.bytes": "1000"})
    kafka.produce(TOPIC, b"x" * 2000, partition=0)  # offset 10
    fill(kafka, 5)
    driver = Driver(kafka, retries_max=0)
    driver.run()
    driver.ack(range(8))
    driver.fail(range(8, 16))
    for _ in range(30):
        driver.run(2)
        kafka.clock.sleep(11)
    driver.commit()
    assert {letter.offset for letter in read_dead_letters(kafka, LETTERS)} == {8, 9, 11, 12, 13, 14, 15}
    assert (driver.committed(), driver.figure("dead_lettered")) == (10, 7)


def test_after_a_failed_flush_each_record_is_still_lettered(kafka: Kafka, batches: list[int]) -> None:
    """A batch that fails is written again in small steps that grow; nothing is resolved before its own flush."""
    driver = Driver(kafka, retries_max=0, retry_delay_ms=0)
    driver.spout.services.dead_lettering._backoff = Backoff(10_000, 10_000)
    driver.run()
    kafka.faults.fail_next("flush", errors.KafkaTimeoutError)
    driver.fail(range(10))
    driver.run(3)
    assert (batches, driver.figure("dead_lettered")) == ([10], 0)
    kafka.clock.sleep(11)
    driver.run()
    assert batches == [10, 1, 2, 4, 3]
    assert driver.figure("dead_lettered") == 10


def test_the_breaker_stops_a_run_that_gives_everything_up(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the last records given up: the run stops with the commonest error; nothing is written or committed."""
    monkeypatch.setattr(Breaker, "WINDOW", 20)
    fill(kafka, 90)
    driver = Driver(kafka, retries_max=1, breaker_ratio=0.5)
    driver.run()
    driver.ack(range(10))
    for _ in range(2):
        for offset in range(10, 100):
            why = "KeyError: 'a'" if offset % 3 else f"ValueError: {offset}"
            driver.spout.fail_with(driver.last_id(offset), Failure("exception", "parse", 4, why))
        if driver.offsets.count(99) == 1:
            kafka.clock.sleep(11)
            driver.run()
    with pytest.raises(RecordError, match=r"orders\[0\]@\d+: \d+ of the last \d+ records .* with KeyError \(\d+ times"):
        driver.run()
    driver.spout.close()
    assert list(read_dead_letters(kafka, LETTERS)) == []
    assert driver.committed() == 10


NOTHING = "nothing gets through"


def fail_for(driver: Driver, offsets: Iterable[int], kind: str = "exception") -> None:
    """Fail the last emit of these offsets, for a reason."""
    for offset in offsets:
        driver.spout.fail_with(driver.last_id(offset), Failure(kind, "parse", 4, "KeyError: 'a'"))


def test_where_nothing_gets_through_a_warning_says_so_at_once(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """Long before the breaker: after a hundred fails and no ack, one line names the bolt and the error."""
    fill(kafka, 190)
    driver = Driver(kafka)
    driver.run()
    fail_for(driver, range(99))
    assert NOTHING not in caplog.text
    fail_for(driver, range(99, 200))
    (line,) = [record.getMessage() for record in caplog.records if NOTHING in record.getMessage()]
    assert line.startswith(
        "orders[0]@99: nothing gets through: the last 100 answers are fails, this one last by exception in parse: "
        "KeyError: 'a'. 100 records wait for another try; each is tried again 10 times (kafka.retries_max), and the "
        "run ends when too many have failed for good (kafka.breaker_ratio). If"
    )


@pytest.mark.parametrize(
    ("settings", "prospect"),
    [
        ({"breaker_ratio": 0}, "10 times (kafka.retries_max). If"),
        ({"retries_max": -1}, "for ever (kafka.retries_max). If"),
    ],
)
def test_the_warning_names_no_breaker_that_cannot_open(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], prospect: str
) -> None:
    """With kafka.breaker_ratio=0, or retries for ever, nothing ends the run."""
    fill(kafka, 190)
    driver = Driver(kafka, **settings)
    driver.run()
    fail_for(driver, range(200))
    assert f"each is tried again {prospect}" in caplog.text


def test_a_few_bad_records_between_the_flushes_of_a_sink_are_no_streak(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Bad records gather while they wait for their retries; what a sink holds is in flight, and may be good."""
    fill(kafka, 890)
    driver = Driver(kafka, retries_max=200)
    driver.run()
    for start in range(0, 450, 90):
        fail_for(driver, range(start, start + 90))
        driver.ack([899 - start])
    fail_for(driver, range(450, 560))
    assert NOTHING not in caplog.text


def test_where_something_gets_through_nothing_is_said(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """One ack in a hundred answers, acks that a sink holds back, retries of a few, timeouts: that is no streak."""
    fill(kafka, 490)
    driver = Driver(kafka, retries_max=200)
    driver.run()
    fail_for(driver, range(120))  # and 380 are out, in a sink perhaps
    driver.ack([200])
    fail_for(driver, range(120, 180))
    driver.ack([201])
    fail_for(driver, range(202, 240))
    fail_for(driver, range(240, 500), "timeout")
    assert NOTHING not in caplog.text


def test_a_few_records_that_always_fail_are_no_streak(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """At the end of a topic the retries of a few bad records come alone, and are not taken for all records."""
    driver = Driver(kafka, retries_max=200)
    driver.run()
    driver.ack(range(5))
    for _ in range(25):
        fail_for(driver, range(5, 10))
        kafka.clock.sleep(11)
        driver.run()
    assert driver.figure("failed") == 125
    assert NOTHING not in caplog.text


def test_the_breaker_leaves_few_failures_alone(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record in ten given up while nothing at all is acked yet: they are dead letters, and the run goes on."""
    monkeypatch.setattr(Breaker, "WINDOW", 100)
    fill(kafka, 490)
    driver = Driver(kafka, retries_max=0, breaker_ratio=0.2)
    driver.run()
    driver.fail(range(0, 500, 10))
    driver.run()
    driver.ack([n for n in range(500) if n % 10])
    driver.commit()
    assert (driver.committed(), driver.figure("dead_lettered")) == (500, 50)


def test_the_breaker_can_be_switched_off(kafka: Kafka) -> None:
    """With kafka.breaker_ratio=0 everything may be dead-lettered."""
    fill(kafka, 190)
    driver = Driver(kafka, retries_max=0, breaker_ratio=0)
    driver.run()
    driver.fail(range(200))
    driver.run()
    assert driver.figure("dead_lettered") == 200


def test_without_a_dead_letter_topic_the_run_stops(kafka: Kafka) -> None:
    """The error names the record, its attempts and its last failure; nothing after it is committed."""
    driver = Driver(kafka, retries_max=1, dead_letter_topic="")
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    driver.run()
    driver.spout.fail_with(driver.last_id(4), Failure("exception", "parse", 7, "ValueError: no"))
    with pytest.raises(RecordError, match=r"orders\[0\]@4: failed 2 times.*parse.*ValueError: no"):
        driver.run()
    driver.spout.close()
    assert driver.committed() == 4


def test_a_timeout_is_no_attempt(kafka: Kafka) -> None:
    """A fail at the age of the message timeout backs off and does not count towards the ceiling."""
    driver = Driver(kafka, retries_max=1)
    driver.run()
    for _ in range(5):
        kafka.clock.sleep(31)
        driver.fail([4])
        kafka.clock.sleep(11)
        assert 4 in driver.run()
    assert (driver.figure("timeouts"), driver.figure("failed")) == (5, 0)


def test_the_engines_word_counts_more_than_the_age(kafka: Kafka) -> None:
    """A failure that the engine knows to be a timeout is one, however young."""
    driver = Driver(kafka, retries_max=0)
    driver.run()
    driver.spout.fail_with(driver.last_id(4), Failure("timeout"))
    assert driver.run() == [4]
    assert driver.figure("timeouts") == 1


def test_a_record_whose_ack_is_forgotten_does_not_block_for_ever(kafka: Kafka) -> None:
    """Ten timeouts while others get through: it is given up."""
    fill(kafka, 90)
    driver = Driver(kafka, timeouts_max=3)
    driver.run()
    for number in range(3):
        driver.ack(range(10 + 10 * number, 20 + 10 * number))
        kafka.clock.sleep(31)
        driver.fail([4])
        kafka.clock.sleep(11)
        driver.run()
    assert [letter.offset for letter in read_dead_letters(kafka, LETTERS)] == [4]


def test_timeouts_of_everything_give_up_nothing(kafka: Kafka) -> None:
    """While nothing gets through (a slow disk), no timeout counts towards giving up."""
    driver = Driver(kafka, timeouts_max=3)
    driver.run()
    for _ in range(6):
        kafka.clock.sleep(31)
        driver.fail(range(10))
        kafka.clock.sleep(11)
        assert driver.run() == list(range(10))


def test_attempts_survive_a_restart(kafka: Kafka) -> None:
    """The ceiling counts the attempts of earlier lives: they travel in the commit's metadata."""
    driver = Driver(kafka, retries_max=2)
    driver.run()
    driver.fail([4])
    driver.run()
    driver.fail([4])
    driver.commit()
    driver.crash()
    successor = Driver(kafka, retries_max=2)
    assert 4 in successor.run()
    successor.fail([4])
    kafka.clock.sleep(11)
    successor.run()
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.offset, letter.attempts) == (4, 3)


@pytest.mark.parametrize(("key", "value"), [(b"\xff", b"ok"), (b"ok", b"\xff")])
def test_an_unreadable_record_is_given_up_at_once(kafka: Kafka, key: bytes, value: bytes) -> None:
    """Bytes that are not in the declared format are a failed record, not a crash, and the others go on."""
    kafka.produce(TOPIC, value, key, partition=0)
    fill(kafka, 1)
    driver = Driver(kafka, fields=["offset", "key", "value"])
    assert driver.run() == [*range(10), 11]
    driver.ack_all()
    driver.commit()
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.offset, letter.error_class) == (10, "UnicodeDecodeError")
    assert (letter.record.key, letter.record.value) == (key, value)
    assert driver.committed() == 12


@pytest.mark.fake_only(CLEANER)
def test_a_compacted_retry_is_resolved(kafka: Kafka) -> None:
    """A failed record that the cleaner removed is counted as compacted, and the commit goes on."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([n for n in range(10) if n not in (3, 4)])
    driver.fail([3, 4])
    kafka.remove_offsets(TOPIC, 0, [3, 4])
    driver.run()
    driver.commit()
    assert driver.committed() == 10
    assert driver.figure("compacted") == 2


@pytest.mark.fake_only(CLEANER)
def test_a_retry_compacted_at_the_end_of_the_log_is_resolved(kafka: Kafka) -> None:
    """Where nothing is left behind it either, it is not retried for ever."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(9))
    driver.fail([9])
    kafka.remove_offsets(TOPIC, 0, [9])
    driver.run()
    driver.commit()
    assert driver.committed() == 10


def test_lost_records_stop_the_run_by_default(kafka: Kafka) -> None:
    """Records deleted before they were processed are an error that names the place."""
    driver = Driver(kafka, poll_records_max=2, emits_per_next_max=2, **FEW_AT_A_TIME)
    driver.run(2)
    kafka.delete_records(TOPIC, 0, before=8)
    with pytest.raises(DataLossError, match=r"orders\[0\]@0: .* below 8"):
        driver.run(10)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [8, 9, 10]), ("latest", [10])])
def test_lost_records_can_be_passed_over(kafka: Kafka, policy: str, expected: list[int]) -> None:
    """With another policy the spout goes on with what is left, or with what is new, and counts what is lost."""
    first = Driver(kafka)
    first.run()
    first.ack(range(3))
    first.spout.close()
    kafka.delete_records(TOPIC, 0, before=8)
    driver = Driver(kafka, on_data_loss=policy)
    driver.run()
    fill(kafka, 1)
    driver.run()
    assert driver.offsets == expected
    assert driver.figure("lost") == (5 if policy == "earliest" else 7)


def test_a_failed_record_that_was_deleted_is_lost(kafka: Kafka) -> None:
    """Retention that overtakes a retry is data loss, and the rest goes on."""
    driver = Driver(kafka, on_data_loss="earliest")
    driver.run()
    driver.fail([2])
    driver.ack([n for n in range(10) if n != 2])
    kafka.delete_records(TOPIC, 0, before=6)
    driver.run()
    driver.commit()
    assert driver.committed() == 10
    assert driver.figure("lost") == 1


def test_what_is_out_is_not_lost(kafka: Kafka) -> None:
    """Deleting records that are being processed loses nothing."""
    driver = Driver(kafka)
    driver.run()
    kafka.delete_records(TOPIC, 0, before=10)
    driver.run()
    driver.ack_all()
    driver.commit()
    assert driver.committed() == 10
    assert driver.figure("lost") == 0


@pytest.mark.fake_only(NO_ELECTION)
@pytest.mark.parametrize(("policy", "expected"), [("earliest", [0, 1]), ("latest", [])])
def test_a_truncated_log_starts_again(kafka: Kafka, policy: str, expected: list[int]) -> None:
    """A log that ends below the commit is read again from where the policy says, in a new epoch."""
    first = Driver(kafka)
    first.run()
    first.ack_all()
    first.spout.close()
    kafka.truncate(TOPIC, 0, end=2)
    assert Driver(kafka, on_data_loss=policy).run() == expected


@pytest.mark.fake_only(NO_ELECTION)
def test_a_truncated_log_stops_the_run_by_default(kafka: Kafka) -> None:
    """A commit beyond the end of the log is an error that says what may have happened."""
    first = Driver(kafka)
    first.run()
    first.ack_all()
    first.spout.close()
    kafka.truncate(TOPIC, 0, end=2)
    with pytest.raises(DataLossError, match=r"orders\[0\]@10: the log ends at 2"):
        Driver(kafka).run()


def test_a_letter_that_can_never_be_written_ends_a_bounded_run(kafka: Kafka) -> None:
    """A dead letter that the broker never takes ends a bounded run, named; nothing after it is committeds record."""
    kafka.create_topic("letters", 1, {"max.message.bytes": "0"})
    driver = Driver(kafka, dead_letter_topic="letters", retries_max=0, run__until="end")
    driver.run()
    driver.ack(range(1, 10))
    driver.fail([0])
    with pytest.raises(RecordError, match=r"orders\[0\]@0: failed for good, and its dead letter cannot") as caught:
        driver.run()
    assert str(caught.value).count("Try: ") == str(caught.value).count("orders[0]@0") == 1
    driver.commit()
    assert driver.committed() == 0
