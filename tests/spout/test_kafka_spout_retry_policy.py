"""How soon and how often a record is tried again: the multiplier, for ever, and a policy of the user's."""

from __future__ import annotations

from typing import Any

import pytest

from downspout.errors import ConfigError
from downspout.ledger.retry_schedule import FOR_EVER
from downspout.settings import parse_scope
from downspout.spark.topology.record_input import SpoutSettings
from tests.spout.spout_driver import Driver, Kafka

HERE = "tests.spout.test_kafka_spout_retry_policy"
MINUTE = 60_000


def minutes(failures: int) -> int:
    return failures * MINUTE


def useless(failures: int) -> Any:
    return [None, "soon", -1, float("nan"), True][failures % 5]


def broken(failures: int) -> int:
    raise KeyError(failures)


def without_arguments() -> int:
    return 1


def fail_and_wait(driver: Driver, seconds: float) -> list[int]:
    """Fail the first record, and return what comes after so long."""
    driver.fail([0])
    driver.kafka.clock.sleep(seconds)
    return driver.run(2)


@pytest.mark.fake_only("only virtual time can show when a retry comes")
def test_a_policy_decides_when_a_record_comes_again(kafka: Kafka) -> None:
    """The function gets the number of failures, and what it returns is how long the record waits."""
    driver = Driver(kafka, retry_policy=f"{HERE}.minutes")
    driver.run()
    for failures in (1, 2, 3):
        assert fail_and_wait(driver, failures * 60 - 2) == []
        driver.kafka.clock.sleep(3)
        assert driver.run(2) == [0]


@pytest.mark.parametrize("name", ["useless", "broken"])
@pytest.mark.fake_only("only virtual time can show when a retry comes")
def test_where_a_policy_fails_the_settings_hold(kafka: Kafka, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """What it raises, or returns instead of a time, is logged once, and takes neither the spout nor the record."""
    driver = Driver(kafka, retry_policy=f"{HERE}.{name}", retry_delay_ms=5_000)
    driver.run()
    for _ in range(5):
        assert fail_and_wait(driver, 4) == []
        driver.kafka.clock.sleep(7)
        assert driver.run(2) == [0]
    said = [record.getMessage() for record in caplog.records if "kafka.retry_policy" in record.getMessage()]
    assert len(said) == 1
    assert f"{HERE}.{name}(1)" in said[0]


@pytest.mark.parametrize("path", ["nowhere.policy", "tests.nothing", f"{HERE}.without_arguments", f"{HERE}.MINUTE"])
def test_what_is_no_policy_is_refused_at_the_start(kafka: Kafka, path: str) -> None:
    """A path that cannot be imported, or does not take a number, ends the start and names the setting."""
    with pytest.raises(ConfigError, match=r"kafka\.retry_policy"):
        Driver(kafka, retry_policy=path)


def test_for_ever_is_more_often_than_any_limit(kafka: Kafka) -> None:
    """With kafka.retries_max = -1 a record that fails again and again is tried again, and never dead-lettered."""
    driver = Driver(kafka, retries_max=-1, retry_delay_ms=0, retry_delay_ms_max=0)
    driver.run()
    driver.ack(range(1, 10))
    for _ in range(25):
        driver.fail([0])
        assert driver.run() == [0]
    assert driver.figure("dead_lettered") == 0
    driver.ack([0])
    driver.commit()
    assert driver.committed() == 10


def test_spark_reads_the_same_settings() -> None:
    """A spout on Spark waits as long, and tries as often."""
    spout = SpoutSettings(
        "reader", {"kafka.topics": ["t"], "kafka.retries_max": -1, "kafka.retry_policy": f"{HERE}.minutes"}
    )
    assert spout.settings["retries_max"] == FOR_EVER
    assert spout.backoff.delay(0) == spout.backoff.delay(1) == MINUTE
    slow = SpoutSettings("reader", {"kafka.topics": ["t"], "kafka.retry_delay_ms": 100})
    assert [slow.backoff.delay(n) for n in (1, 2, 3)] == [100, 200, 400]


def test_fewer_than_for_ever_is_refused() -> None:
    """-1 is the only number below 0 that means anything."""
    with pytest.raises(ConfigError, match=r"kafka\.retries_max = -2"):
        parse_scope({"kafka.topics": ["t"], "kafka.retries_max": -2}, "kafka")
