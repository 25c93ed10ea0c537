from __future__ import annotations

from collections.abc import Iterator

import pytest

from downspout.testing.fake_kafka import FakeKafka
from tests.topology.spout_driver import GROUP, TOPIC, Driver, fill


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A fake Kafka with one topic of one partition and ten records."""
    with FakeKafka("spout") as kafka:
        kafka.create_topic(TOPIC, 1)
        fill(kafka, 10)
        yield kafka


def test_emits_all_records_in_order(kafka: FakeKafka) -> None:
    """Each record becomes one tuple, in offset order, with the fields asked for."""
    driver = Driver(kafka)
    driver.run()
    assert [values for _, values in driver.emitted] == [[n, str(n)] for n in range(10)]


def test_commits_the_contiguous_acked_prefix(kafka: FakeKafka) -> None:
    """What is acked beyond an offset that is out is not committed."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1, 2, 4, 5])
    driver.commit()
    assert driver.committed() == 3


def test_commits_the_next_offset_to_read(kafka: FakeKafka) -> None:
    """With all acked, the commit is the end of the log: lag is 0."""
    driver = Driver(kafka)
    driver.run()
    driver.ack(range(10))
    driver.commit()
    assert driver.committed() == 10
    assert driver.figure("lag") == 0


def test_a_failed_record_is_sought_and_emitted_again(kafka: FakeKafka) -> None:
    """Only the failed one comes again, and then the commit goes on."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    assert driver.run() == [4]
    driver.ack([4])
    driver.commit()
    assert driver.committed() == 10


def test_restart_emits_only_what_was_not_acked(kafka: FakeKafka) -> None:
    """Acked records beyond the commit travel in its metadata: a killed spout's successor skips them."""
    driver = Driver(kafka)
    driver.run()
    driver.ack([0, 1, 3, 5, 6, 9])
    driver.commit()
    driver.crash()
    successor = Driver(kafka)
    assert successor.run() == [2, 4, 7, 8]


def test_unsubscribed_group_name_is_used(kafka: FakeKafka) -> None:
    """Commits go to the group that was set."""
    driver = Driver(kafka)
    driver.run()
    assert {commit.group for commit in kafka.commits(GROUP)} == {GROUP}
