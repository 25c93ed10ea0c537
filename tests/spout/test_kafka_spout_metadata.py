"""A broker with a lower limit for commit metadata than the default: the spout lowers its bound."""

from __future__ import annotations

import pytest

from downspout.kafka import TopicPartition
from downspout.ledger import decode
from downspout.offsets import commit_moves, plan_moves
from downspout.testing import FakeKafka, fake_group
from tests.spout.reasons import ACKS_DECIDE
from tests.spout.spout_driver import GROUP, TOPIC, Driver, fill

FAKE = pytest.mark.fake_only("the tests share one broker, which has one limit; tests/broker/test_metadata_broker.py")


@pytest.fixture(params=[2_000, 300, 100, 0])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(fake_group, "METADATA_MAX", request.param)
    return int(request.param)


@FAKE
def test_a_commit_with_many_holes_is_sent_again_with_less(kafka: FakeKafka, limit: int) -> None:
    """The commit is at its place, and tells as many of the lowest ranges as the broker takes."""
    fill(kafka, 1_990)
    driver = Driver(kafka)
    driver.run()
    chance = [offset for offset in range(2_000) if offset * 7919 % 3 == 1 or offset * 104729 % 7 == 2]
    driver.ack([offset for offset in chance if offset])
    driver.commit()
    committed = kafka.committed(GROUP)[TopicPartition(TOPIC, 0)]
    assert (committed.offset, driver.figure("errors")) == (0, 0)
    assert len(committed.metadata) <= limit
    done = decode(0, committed.metadata, topic_id=kafka.topic_id(TOPIC)).done
    assert bool(done) == (limit >= 300)
    driver.ack([0])
    driver.commit()
    assert kafka.committed(GROUP)[TopicPartition(TOPIC, 0)].offset > 0
    driver.spout.close()
    again = Driver(kafka)
    assert set(again.run()).isdisjoint(offset for start, end in done for offset in range(start, end))


@FAKE
@pytest.mark.record_only(ACKS_DECIDE)
@pytest.mark.parametrize("guarantee", ["AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT"])
def test_every_guarantee_commits_at_such_a_broker(kafka: FakeKafka, guarantee: str, limit: int) -> None:
    """Positions are committed with as much metadata as fits, or with none."""
    driver = Driver(kafka, guarantee=guarantee)
    driver.run()
    for _ in range(3):
        driver.commit()
        driver.run()
    driver.spout.close()
    assert driver.committed() == 10


@FAKE
def test_a_group_can_be_moved_at_such_a_broker(kafka: FakeKafka, limit: int) -> None:
    """What `offsets` tools commit fits as well."""
    fill(kafka, 990)
    driver = Driver(kafka)
    driver.run()
    driver.ack([offset for offset in range(1_000) if offset % 3])
    driver.commit()
    driver.spout.close()
    commit_moves(kafka, GROUP, plan_moves(kafka, GROUP, {TopicPartition(TOPIC, 0): 6}))
    assert kafka.committed(GROUP)[TopicPartition(TOPIC, 0)].offset == 6
