"""Offsets that a user names: where reading starts, and where a bounded run ends."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.errors import BrokerError, DataLossError
from tests.spout.spout_driver import TOPIC, Driver, Kafka, fill, place_of


@pytest.fixture
def two(bare_kafka: Kafka) -> Kafka:
    """A topic of two partitions with ten records in each."""
    bare_kafka.create_topic(TOPIC, 2)
    fill(bare_kafka, 10)
    fill(bare_kafka, 10, 1)
    return bare_kafka


def places(driver: Driver) -> set[tuple[int, int]]:
    return {place_of(tup_id) for tup_id, _ in driver.emitted}


def span(partition: int, start: int, stop: int) -> set[tuple[int, int]]:
    return {(partition, offset) for offset in range(start, stop)}


def test_reading_starts_at_the_offset_named(two: Kafka) -> None:
    driver = Driver(two, start="OFFSETS", start_offsets=["orders[1]=7"])
    driver.run()
    assert places(driver) == span(0, 0, 10) | span(1, 7, 10)


@pytest.mark.parametrize(("start", "expected"), [("OFFSETS", 2), ("UNCOMMITTED_OFFSETS", 4)])
def test_a_commit_of_another_topology(kafka: Kafka, start: str, expected: int) -> None:
    """After a redeploy OFFSETS goes back to the offset named, and UNCOMMITTED_OFFSETS goes on at the commit."""
    first = Driver(kafka)
    first.run()
    first.ack(range(4))
    first.spout.close()
    second = Driver(kafka, topology_id="orders-2", start=start, start_offsets=["orders[0]=2"])
    assert second.run() == list(range(expected, 10))


def test_a_restart_goes_on_at_its_own_commit(kafka: Kafka) -> None:
    """The offset named is for the first start alone: a restart goes on behind what is done."""
    settings: dict[str, Any] = {"start": "OFFSETS", "start_offsets": ["orders[0]=2"]}
    first = Driver(kafka, **settings)
    first.run()
    first.ack_all()
    first.spout.close()
    fill(kafka, 3)
    assert Driver(kafka, **settings).run() == [10, 11, 12]


def test_the_named_start_is_committed_at_once(kafka: Kafka) -> None:
    """A crash before the first ack does not change where the group starts."""
    driver = Driver(kafka, start="OFFSETS", start_offsets=["orders[0]=6"])
    driver.run(3)
    assert driver.committed() == 6


@pytest.mark.parametrize("named", [2, 11])
def test_an_offset_outside_the_log_is_an_error(kafka: Kafka, named: int) -> None:
    """Below what is left of the log, or beyond its end: the message names the place, the setting, and what there is."""
    kafka.delete_records(TOPIC, 0, 5)
    driver = Driver(kafka, start="OFFSETS", start_offsets=[f"orders[0]={named}"])
    with pytest.raises(DataLossError) as raised:
        driver.run()
    assert all(part in str(raised.value) for part in (f"orders[0]@{named}", "kafka.start_offsets", "5 to 10"))


@pytest.mark.parametrize(
    ("policy", "named", "start", "lost"),
    [("earliest", 2, 5, 3), ("latest", 2, 10, 8), ("earliest", 11, 5, 0), ("latest", 11, 10, 0)],
)
def test_an_offset_outside_the_log_goes_by_the_policy(
    kafka: Kafka, policy: str, named: int, start: int, lost: int
) -> None:
    """`kafka.on_data_loss` says where to start instead, and records that are gone are counted as lost."""
    kafka.delete_records(TOPIC, 0, 5)
    driver = Driver(kafka, start="OFFSETS", start_offsets=[f"orders[0]={named}"], on_data_loss=policy)
    assert driver.run() == list(range(start, 10))
    assert driver.figure("lost") == lost


def test_a_run_ends_before_the_offset_named(two: Kafka) -> None:
    """Nothing from the stop on is emitted or committed; a partition that is not named ends where its log does."""
    settings: dict[str, Any] = {"start": "OFFSETS", "start_offsets": ["orders[0]=2"], "stop_offsets": ["orders[0]=6"]}
    driver = Driver(two, run__until="end", **settings)
    driver.run()
    assert places(driver) == span(0, 2, 6) | span(1, 0, 10)
    driver.ack(range(2, 6))
    driver.ack(range(10), 1)
    driver.run()
    assert driver.spout.exhausted()
    assert driver.spout.end_reached()
    assert (driver.committed(0), driver.committed(1)) == (6, 10)


def test_the_next_run_goes_on_at_the_stop(kafka: Kafka) -> None:
    """Runs with stops one behind the other read each record once."""
    offsets = []
    for stop in (3, 7, 10):
        driver = Driver(kafka, run__until="end", stop_offsets=[f"orders[0]={stop}"])
        offsets += driver.run()
        driver.ack_all()
        driver.spout.close()
    assert offsets == list(range(10))


@pytest.mark.parametrize("stop", [0, 3])
def test_a_stop_that_is_reached_already(kafka: Kafka, stop: int) -> None:
    """A run whose stop is not beyond its start reads nothing, and ends."""
    first = Driver(kafka)
    first.run()
    first.ack(range(4))
    first.spout.close()
    driver = Driver(kafka, run__until="end", stop_offsets=[f"orders[0]={stop}"])
    assert driver.run() == []
    assert driver.spout.exhausted()
    assert driver.spout.end_reached()
    assert driver.committed() == 4


def test_a_stop_beyond_the_log(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """The run ends where the log ended at its start, as all bounded runs do, and says so."""
    driver = Driver(kafka, run__until="end", stop_offsets=["orders[0]=50"])
    assert "orders[0] ends at 10, before kafka.stop_offsets" in caplog.text
    driver.run()
    fill(kafka, 5)
    driver.ack_all()
    driver.run()
    assert driver.offsets == list(range(10))
    assert driver.spout.end_reached()


@pytest.mark.parametrize("setting", ["start_offsets", "stop_offsets"])
def test_a_partition_that_does_not_exist_ends_a_bounded_run(kafka: Kafka, setting: str) -> None:
    """It would never be read: the error names setting, partition and brokers."""
    given: dict[str, Any] = {"start_offsets": ["orders[0]=0"], setting: ["orders[3]=1"]}
    with pytest.raises(BrokerError, match=rf"kafka\.{setting} names orders\[3\], which does not exist"):
        Driver(kafka, run__until="end", start="OFFSETS", **given)


def test_a_partition_that_does_not_exist_yet_is_warned_about(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """In a run without end it may be added later, so the rest is read."""
    driver = Driver(kafka, start="OFFSETS", start_offsets=["orders[3]=1"])
    assert "kafka.start_offsets names orders[3], which does not exist" in caplog.text
    assert driver.run() == list(range(10))


def test_a_pattern_takes_named_offsets(two: Kafka) -> None:
    bounds: dict[str, Any] = {"start_offsets": ["orders[1]=4"], "stop_offsets": ["orders[0]=3", "orders[1]=8"]}
    driver = Driver(two, topics=None, pattern="ord.*", start="OFFSETS", run__until="end", **bounds)
    driver.run()
    assert places(driver) == span(0, 0, 3) | span(1, 4, 8)
