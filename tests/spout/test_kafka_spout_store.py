"""Offsets in a store outside Kafka: it decides, and the group gets a copy."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.errors import ConfigError
from downspout.spout import OffsetStore, StaleOwnerError, StoreContext, StoredOffset, open_store
from tests.kafka.broker_stage import wait_until
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka

FIRST = TopicPartition(TOPIC, 0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/offsets.db"


def opened(url: str) -> OffsetStore:
    return open_store(url, StoreContext(GROUP))


def stored(url: str) -> int | None:
    store = opened(url)
    found = store.load([FIRST])
    store.close()
    return found[FIRST].offset if found else None


def put(url: str, offset: int) -> None:
    store = opened(url)
    store.store({FIRST: StoredOffset(offset, "", store.claim([FIRST])[FIRST].epoch)})
    store.close()


def commit(kafka: Kafka, offset: int) -> None:
    outsider = kafka.consumer(group=GROUP)
    outsider.assign([FIRST])
    outsider.commit({FIRST: OffsetAndMetadata(offset, "", -1)})
    outsider.close()


def fail_to_commit(driver: Driver) -> None:
    """Let the spout try to commit until that has failed; on a broker ``driver.commit()`` waits until it has not."""
    driver.kafka.clock.sleep(31)
    before = driver.figure("errors")

    def has_failed() -> bool:
        driver.spout.next_tuple()
        return driver.figure("errors") > before

    wait_until(has_failed)


def test_commits_go_to_the_store_and_the_group_gets_a_copy(kafka: Kafka, url: str) -> None:
    driver = Driver(kafka, offset_store=url)
    assert driver.run() == list(range(10))
    driver.ack([*range(5), 7])
    driver.commit()
    store = opened(url)
    found = store.list()[FIRST]
    store.close()
    copy = kafka.committed(GROUP)[FIRST]
    assert (found.offset, found.metadata) == (5, copy.metadata) == (copy.offset, copy.metadata)


def test_the_store_decides_where_reading_starts(kafka: Kafka, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The store's offset holds whatever the group says; that the group is further on is said."""
    put(url, 4)
    commit(kafka, 8)
    assert Driver(kafka, offset_store=url).run() == [4, 5, 6, 7, 8, 9]
    assert f"group {GROUP} has committed {TOPIC}[0]@8, but " in caplog.text


def test_what_is_done_beyond_the_offset_is_stored_too(kafka: Kafka, url: str) -> None:
    """The next owner skips what was acked beyond a hole."""
    driver = Driver(kafka, offset_store=url)
    driver.run()
    driver.ack([0, 1, 5, 6])
    driver.commit()
    driver.die()
    assert Driver(kafka, offset_store=url).run() == [2, 3, 4, 7, 8, 9]


@pytest.mark.parametrize(("adopt", "expected"), [(False, list(range(10))), (True, [6, 7, 8, 9])])
def test_an_empty_store_and_a_group_that_is_not(
    kafka: Kafka, url: str, adopt: bool, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The start goes by kafka.start, and says how to adopt the group's offsets; or it adopts them, and says so."""
    commit(kafka, 6)
    caplog.set_level(logging.INFO, logger="tests.spout")
    driver = Driver(kafka, offset_store=url, offset_store_adopt=adopt)
    assert driver.run() == expected
    said = "adopting the commits of group" if adopt else "kafka.offset_store_adopt=true"
    assert said in caplog.text
    assert f"{TOPIC}[0]@6" in caplog.text
    assert "is new to" not in caplog.text, "the group has commits"
    assert adopt or f"has no offset of {TOPIC}[0]: reading from the beginning" in caplog.text
    driver.ack_all()
    driver.commit()
    assert (stored(url), driver.committed()) == (10, 10)


def test_an_empty_group_and_a_store_that_is_not(kafka: Kafka, url: str, caplog: pytest.LogCaptureFixture) -> None:
    put(url, 7)
    assert Driver(kafka, offset_store=url).run() == [7, 8, 9]
    assert f"group {GROUP} has committed nothing for {TOPIC}[0]@7" in caplog.text


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
def test_a_stale_owner_stores_nothing(kafka: Kafka, url: str, mode: str) -> None:
    """Once another has claimed the partition, a commit moves neither store nor group; without a group it is the end."""
    driver = Driver(kafka, member=None, mode=mode, offset_store=url)
    driver.run()
    driver.ack(range(3))
    driver.commit()
    put(url, 9)
    driver.ack(range(3, 6))
    if mode == "assign":
        with pytest.raises(StaleOwnerError):
            driver.commit()
    else:
        fail_to_commit(driver)
    assert (stored(url), driver.committed()) == (9, 3)


def test_a_locked_store_is_waited_for(kafka: Kafka, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the file nothing is committed and nothing is lost; the commit is made later."""
    monkeypatch.setattr("downspout.offsets.stores.sql.WAIT_S", 0.05)
    driver = Driver(kafka, offset_store=url)
    driver.run()
    driver.ack(range(4))
    other = sqlite3.connect(tmp_path / "offsets.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    fail_to_commit(driver)
    assert (stored(url), driver.committed()) == (0, 0)
    other.execute("ROLLBACK")
    other.close()
    driver.commit()
    assert (stored(url), driver.committed()) == (4, 4)


@pytest.mark.parametrize("guarantee", ["AT_MOST_ONCE", "NO_GUARANTEE"])
def test_without_acks_positions_are_stored(kafka: Kafka, url: str, guarantee: str) -> None:
    """Other guarantees commit to the store what they commit to the group."""
    driver = Driver(kafka, offset_store=url, guarantee=guarantee, emit="record", retry_cache_bytes=None)
    driver.run()
    driver.commit()
    assert driver.commit_becomes(10)
    assert stored(url) == 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"offset_store": "redis://cache"}, "is not an offset store"),
        ({"offset_store": "mysql://db"}, r"Try: one of .*postgresql://….*sqlite:///…, zookeeper://…"),
        ({"offset_store": "sqlit:///x.db"}, "Try: sqlite:///…$"),
        ({"offset_store": "sqlite:///x.db", "guarantee": "AUTO_COMMIT"}, "AUTO_COMMIT"),
        ({"offset_store": "postgresql://me:hush@db/x"}, "holds a password"),
        ({"offset_store": "sqlite:///x.db", "offset_store_password": "hush"}, "is not a reference"),
    ],
)
def test_what_cannot_be_is_refused(kafka: Kafka, settings: dict[str, Any], said: str) -> None:
    """An unknown store, a guarantee that goes past it, and a password in the open are errors at the start."""
    with pytest.raises(ConfigError, match=said) as raised:
        Driver(kafka, **({"emit": "record"} | settings))
    assert "hush" not in str(raised.value)
