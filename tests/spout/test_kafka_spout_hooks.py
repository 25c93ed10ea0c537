"""`kafka.listener`: the calls to a user's listener."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kafka import errors
from kafka.structs import TopicPartition

from downspout.component import Failure
from downspout.errors import ConfigError
from downspout.kafka import Record
from downspout.spout import SpoutListener
from tests.spout.reasons import ACKS_DECIDE, CLEANER, NO_KAFKA_YET
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka

HERE = "tests.spout.test_kafka_spout_hooks"
heard: list[tuple[Any, ...]] = []


class Ears(SpoutListener):
    def on_emit(self, partition: TopicPartition, offset: int, values: Sequence[Any]) -> None:
        heard.append(("emit", offset, values[1]))

    def on_ack(self, partition: TopicPartition, offset: int) -> None:
        heard.append(("ack", offset))

    def on_retry(self, partition: TopicPartition, offset: int) -> None:
        heard.append(("retry", offset))

    def on_max_retries(self, record: Record) -> None:
        heard.append(("max", record.offset, record.value))

    def on_commit(self, offsets: Mapping[TopicPartition, int], error: Exception | None) -> None:
        heard.append(("commit", {tp.partition: at for tp, at in offsets.items()}, type(error) if error else None))

    def on_partitions_reassigned(self, partitions: frozenset[TopicPartition]) -> None:
        heard.append(("parts", {tp.partition for tp in partitions}))


class Grumbler(Ears):
    def on_emit(self, partition: TopicPartition, offset: int, values: Sequence[Any]) -> None:
        raise RuntimeError("no")

    on_ack = on_retry = on_max_retries = on_commit = on_partitions_reassigned = on_emit  # type: ignore[assignment]


class Leaver(Ears):
    def on_emit(self, partition: TopicPartition, offset: int, values: Sequence[Any]) -> None:
        sys.exit("no")

    on_ack = on_retry = on_max_retries = on_commit = on_partitions_reassigned = on_emit  # type: ignore[assignment]


class Gone(SpoutListener):
    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        sys.exit("never")


class Unwilling(SpoutListener):
    def __init__(self) -> None:
        raise RuntimeError("never")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    heard.clear()


def told(kind: str) -> list[tuple[Any, ...]]:
    """Return what was heard of one kind, without the kind."""
    return [words[1:] for words in heard if words[0] == kind]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_hears_emits_acks_and_retries(kafka: Kafka, cache_bytes: int) -> None:
    """Each tuple, its ack, and its next try are told with the record's offset, from memory or read again."""
    driver = Driver(kafka, listener=f"{HERE}.Ears", retry_cache_bytes=cache_bytes)
    driver.run()
    driver.ack([0, 1])
    driver.fail([2])
    driver.run()
    assert told("emit") == [*((n, str(n)) for n in range(10)), (2, "2")]
    assert told("ack") == [(0,), (1,)]
    assert told("retry") == [(2,)]


def test_hears_the_record_that_failed_for_good(kafka: Kafka) -> None:
    """The whole record comes with on_max_retries, once its letter is written; on_ack follows, on_retry does not."""
    driver = Driver(kafka, listener=f"{HERE}.Ears", retries_max=0)
    driver.run()
    driver.spout.fail_with(driver.last_id(4), Failure("exception"))
    assert told("max") == []
    driver.run()
    assert told("max") == [(4, b"4")]
    assert told("ack") == [(4,)]
    assert told("retry") == []


def test_hears_of_commits_and_why_they_failed(kafka: Kafka) -> None:
    """Each answer comes with the offsets that it is about; where nothing changed, nothing is heard."""
    driver = Driver(kafka, listener=f"{HERE}.Ears")
    driver.run()
    driver.ack(range(5))
    kafka.faults.fail_next("commit", errors.NotCoordinatorError)
    driver.commit()
    kafka.clock.sleep(3)
    driver.run(2)
    driver.commit()
    assert told("commit") == [({0: 0}, None), ({0: 5}, errors.NotCoordinatorError), ({0: 5}, None)]


@pytest.mark.record_only(ACKS_DECIDE)
def test_hears_of_commits_of_what_was_read(kafka: Kafka) -> None:
    """With AT_MOST_ONCE each commit that lets records leave is told."""
    driver = Driver(kafka, listener=f"{HERE}.Ears", guarantee="AT_MOST_ONCE")
    driver.run()
    assert told("commit")[-1] == ({0: 10}, None)


@pytest.mark.fake_only(CLEANER)
def test_hears_of_null_and_compacted_records(kafka: Kafka) -> None:
    """A null value is told like any other record, and what the cleaner took before its retry as acked."""
    kafka.produce(TOPIC, None, partition=0)
    driver = Driver(kafka, listener=f"{HERE}.Ears")
    driver.run()
    driver.ack([10])
    assert told("ack") == [(10,)]
    driver.fail([3, 4])
    kafka.remove_offsets(TOPIC, 0, [3])
    driver.run()
    assert told("ack") == [(10,), (3,)]


def test_hears_the_full_set_of_partitions(kafka: Kafka) -> None:
    kafka.add_partitions(TOPIC, 2)
    one = Driver(kafka, listener=f"{HERE}.Ears")
    one.run()
    assert told("parts") == [({0, 1},)]
    two = Driver(kafka, member=2)
    for _ in range(20):
        one.run(1)
        one.ack_all()
        two.run(1)
    assert told("parts") == [({0, 1},), ({0},)]


def test_hears_nothing_in_the_middle_of_a_rebalance(kafka: Kafka) -> None:
    """What is set aside until all members have joined again is not told as gone, and is no end of a bounded run."""
    kafka.add_partitions(TOPIC, 2)
    one = Driver(kafka, listener=f"{HERE}.Ears", run__until="end")
    two = Driver(kafka, member=2)
    for _ in range(20):
        one.run(1)
        one.ack_all()
        two.run(1)
    heard = list(told("parts"))
    assert heard[-1] == ({0},)
    kafka.rebalance(GROUP)
    one.run(4)
    assert not one.spout.exhausted()
    for _ in range(20):
        two.run(1)
        one.run(1)
        one.ack_all()
    assert told("parts") == heard


@pytest.mark.record_only(ACKS_DECIDE)
def test_untracked_emits_are_heard(kafka: Kafka) -> None:
    """A guarantee that looks at no acks tells emits all the same."""
    Driver(kafka, listener=f"{HERE}.Ears", guarantee="AT_MOST_ONCE").run()
    assert [offset for offset, _ in told("emit")] == list(range(10))


@pytest.mark.parametrize("name", ["Grumbler", "Leaver"])
def test_a_listener_that_raises_changes_nothing(kafka: Kafka, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """What it raises, an exit too, is logged; emits, acks, retries and dead letters go on."""
    driver = Driver(kafka, listener=f"{HERE}.{name}", retries_max=0)
    driver.run()
    driver.ack(range(9))
    driver.fail([9])
    driver.run()
    driver.commit()
    assert driver.committed() == 10
    assert driver.figure("dead_lettered") == 1
    assert "kafka.listener" in caplog.text


@pytest.mark.fake_only(NO_KAFKA_YET)
@pytest.mark.parametrize(
    "path", ["nowhere", "no.such.module", *(f"{HERE}.{name}" for name in ("nothing", "told", "Unwilling", "Gone"))]
)
def test_a_listener_that_cannot_be_made_is_an_error(kafka: Kafka, path: str) -> None:
    """A path that leads to no listener fails before anything is read, and names the setting."""
    with pytest.raises(ConfigError, match=r"kafka\.listener"):
        Driver(kafka, listener=path)
