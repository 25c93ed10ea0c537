"""Processes that die: what the next one knows, and records that kill the process each time."""

from __future__ import annotations

from downspout.kafka.deadletter import read_dead_letters
from downspout.testing.fake_kafka import FakeKafka
from tests.topology.spout_driver import GROUP, Driver

LETTERS = f"{GROUP}.dead-letters"


def test_a_crash_before_the_dead_letter_gives_no_further_try(kafka: FakeKafka) -> None:
    """The last failure was committed, its letter was not written: the next process writes it and emits nothing."""
    driver = Driver(kafka, retries_max=1)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    driver.run()
    driver.fail([4])
    driver.spout._commit(0)
    driver.crash()
    kafka.clock.sleep(60)
    successor = Driver(kafka, retries_max=1)
    assert successor.run() == []
    successor.commit()
    assert [(letter.offset, letter.attempts) for letter in read_dead_letters(kafka, LETTERS)] == [(4, 2)]
    assert successor.committed() == 10
