"""Failed records still in memory are retried from there, with the same outcome as without the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from downspout.dead_letters import read_dead_letters
from downspout.kafka import KafkaConsumerPort
from downspout.testing import FakeConsumer, FakeKafka
from tests.spout.reasons import CLEANER
from tests.spout.spout_driver import GROUP, PARTITIONS, RECORDS, TOPIC, Driver, Kafka, fill, place_of

ROOM = 1_000_000
LETTERS = f"{GROUP}.dead-letters"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the offsets of all records of the topic that polls return."""
    offsets: list[int] = []
    for kind in (FakeConsumer, KafkaConsumerPort):

        def counted(consumer: Any, *arguments: Any, poll: Callable[..., Any] = kind.poll, **named: Any) -> Any:
            found = poll(consumer, *arguments, **named)
            offsets.extend(record.offset for tp, records in found.items() for record in records if tp.topic == TOPIC)
            return found

        monkeypatch.setattr(kind, "poll", counted)
    return offsets


def test_a_retry_from_memory_reads_nothing_again(kafka: Kafka, fetched: list[int]) -> None:
    """The failed ones come again, lowest first, and each record was fetched once."""
    driver = Driver(kafka, retry_cache_bytes=ROOM)
    driver.run()
    driver.ack([n for n in range(10) if n not in (2, 5, 8)])
    driver.fail([8, 2, 5])
    assert driver.run() == [2, 5, 8]
    driver.ack([2, 5, 8])
    driver.commit()
    assert (driver.committed(), fetched) == (10, list(range(10)))


def test_the_back_off_holds_in_memory_too(kafka: Kafka, fetched: list[int]) -> None:
    """Before its time a record that is held does not come."""
    driver = Driver(kafka, retry_cache_bytes=ROOM, retry_delay_ms=60_000, retry_delay_ms_max=60_000)
    driver.run()
    driver.fail([3])
    assert driver.run() == []
    kafka.clock.sleep(61)
    assert (driver.run(), len(fetched)) == ([3], 10)


@pytest.mark.parametrize(("room", "reads"), [(ROOM, 10), (0, 40)])
def test_poison_is_dead_lettered_from_memory(kafka: Kafka, fetched: list[int], room: int, reads: int) -> None:
    """With room it is fetched once for all its tries and its letter; without, once for each try."""
    driver = Driver(kafka, retry_cache_bytes=room, retries_max=3)
    driver.run()
    driver.ack(range(1, 10))
    for _ in range(4):
        driver.fail([0])
        kafka.clock.sleep(11)
        driver.run()
    driver.commit()
    [letter] = read_dead_letters(kafka, LETTERS)
    assert (letter.offset, letter.attempts, driver.offsets.count(0), driver.committed()) == (0, 4, 4, 10)
    assert len(fetched) == reads


def test_what_has_no_room_is_read_again(kafka: Kafka, fetched: list[int]) -> None:
    driver = Driver(kafka, retry_cache_bytes=3)
    driver.run()
    driver.fail(range(10))
    assert sorted(driver.run()) == list(range(10))
    assert len(fetched) > 10
    driver.ack(range(10))
    driver.commit()
    assert driver.committed() == 10


def test_one_record_in_a_hundred_failing_is_fetched_little(kafka: Kafka, fetched: list[int]) -> None:
    fill(kafka, 1990)
    driver = Driver(kafka, retry_cache_bytes=ROOM, poll_records_max=500, emits_per_next_max=100)
    failed: set[int] = set()
    done = 0
    for _ in range(200):
        driver.run(1)
        for tup_id, (offset, _) in driver.emitted[done:]:
            if offset % 100 == 7 and offset not in failed:
                failed.add(offset)
                driver.spout.fail(tup_id)
            else:
                driver.spout.ack(tup_id)
        done = len(driver.emitted)
    driver.commit()
    assert (driver.committed(), len(failed)) == (2000, 20)
    assert len(fetched) < 1.05 * 2000


def test_a_hand_over_forgets_what_is_held(kafka: Kafka) -> None:
    """What failed here comes at the next owner, and no more here."""
    driver = Driver(kafka, retry_cache_bytes=ROOM, retry_delay_ms=5000)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    driver.spout.close()
    successor = Driver(kafka, retry_cache_bytes=ROOM)
    assert successor.run() == [4]


@pytest.mark.fake_only(CLEANER)
@pytest.mark.parametrize(("room", "again", "compacted"), [(ROOM, [4], 0), (0, [], 1)])
def test_a_compacted_record_is_tried_again_from_memory(
    kafka: FakeKafka, room: int, again: list[int], compacted: int
) -> None:
    """Held, a failed record that the cleaner removed has its retry, and is not counted as compacted; else it is."""
    driver = Driver(kafka, retry_cache_bytes=room)
    driver.run()
    driver.ack([n for n in range(10) if n != 4])
    driver.fail([4])
    kafka.remove_offsets(TOPIC, 0, [4])
    assert driver.run() == again
    driver.ack(again)
    driver.commit()
    assert (driver.committed(), driver.figure("compacted")) == (10, compacted)


@pytest.mark.fake_only("who has which turn is the spout's own affair")
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_record_that_always_fails_leaves_turns_to_others(wide: FakeKafka, most: int) -> None:
    """Without a back-off it is due at each call: half of what a call emits is for records that are new."""
    settings: dict[str, Any] = dict.fromkeys(("retry_delay_ms", "retry_delay_ms_max"), 0)
    driver = Driver(wide, emits_per_next_max=most, retry_cache_bytes=ROOM, retries_max=-1, **settings)
    done = set[tuple[int, int]]()
    for _ in range(4 * PARTITIONS * RECORDS):
        before = len(driver.emitted)
        driver.spout.next_tuple()
        for tup_id, _ in driver.emitted[before:]:
            if (place := place_of(tup_id)) == (1, 0):
                driver.spout.fail(tup_id)
            else:
                driver.spout.ack(tup_id)
                done.add(place)
    assert len(done) == PARTITIONS * RECORDS - 1
