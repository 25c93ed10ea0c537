"""The spout's messages on a group's commits at its start, and `kafka.partitions`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from downspout.errors import BrokerError, ConfigError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.settings import parse_scope
from downspout.spout import check, partitions_named
from downspout.testing import FakeKafka
from tests.kafka.stage import Deaf
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill

ZERO = TopicPartition(TOPIC, 0)


def assigned(kafka: Kafka, **settings: object) -> Driver:
    return Driver(kafka, member=None, mode="assign", **settings)  # type: ignore[arg-type]


def commit(kafka: Kafka, offset: int, metadata: str = "") -> None:
    """Commit as a tool does that knows nothing about us."""
    consumer = kafka.consumer(group=GROUP)
    consumer.commit({ZERO: OffsetAndMetadata(offset, metadata, -1)})
    consumer.close()


# --- what a tool has moved ---


def test_a_commit_without_a_topology_is_said_not_to_be_obeyed(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka's own tool drops the topology id, so kafka.start=EARLIEST begins anew; the log says so, and the cure."""
    commit(kafka, 7)
    with caplog.at_level(logging.WARNING, logger="tests.spout"):
        assert Driver(kafka, start="EARLIEST").run() == list(range(10))
    (said,) = [record.getMessage() for record in caplog.records if "do not name a topology" in record.getMessage()]
    assert "the commits for orders[0]@7 do not name a topology (moved by Kafka's own tool" in said
    assert "kafka.start = EARLIEST ignores them" in said
    assert "downspout offsets seek readers --to-current --topology-id orders-1" in said


def test_a_commit_without_a_topology_is_obeyed_by_the_default(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """With UNCOMMITTED_… reading goes on there, without a warning."""
    commit(kafka, 7)
    with caplog.at_level(logging.INFO, logger="tests.spout"):
        assert Driver(kafka).run() == [7, 8, 9]
    (said,) = [record for record in caplog.records if "do not name a topology" in record.getMessage()]
    assert said.levelno == logging.INFO


@pytest.mark.parametrize(("owner", "warned"), [("sums-1-1712113012", True), ("orders-7-1712113012", False)])
def test_a_commit_of_another_topology_is_told(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, owner: str, warned: bool
) -> None:
    """Two topologies with one group get a part of the records each; a topology that was deployed anew is the same."""
    first = Driver(kafka, topology_id=owner)
    first.run()
    first.ack_all()
    first.spout.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tests.spout"):
        Driver(kafka).run()
    said = [record.getMessage() for record in caplog.records if "has committed" in record.getMessage()]
    assert len(said) == warned
    if warned:
        assert said[0].startswith("group readers: topology sums has committed orders[0]@10. If it still runs")


def test_a_new_group_is_said_to_be_new(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """One line says where reading begins, and which setting says so; the second start, with a commit, says nothing."""
    with caplog.at_level(logging.INFO, logger="tests.spout"):
        spout = Driver(kafka)
        spout.run()
        spout.ack_all()
        spout.commit()
        spout.spout.close()
        (said,) = [record.getMessage() for record in caplog.records if "is new to" in record.getMessage()]
        assert said == (
            "group readers is new to orders[0]: reading from the beginning (kafka.start = UNCOMMITTED_EARLIEST)"
        )
        caplog.clear()
        Driver(kafka).run()
    assert not [record for record in caplog.records if "is new to" in record.getMessage()]


# --- two topologies, one group ---


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
def test_a_topology_is_refused_while_another_is_a_live_member(kafka: Kafka, mode: str) -> None:
    """It would take a part of the other's records, or its commits would be refused; the other goes on undisturbed."""
    first = Driver(kafka, topology__name="top.one")
    first.run()
    member = 1 if mode == "subscribe" else None
    with pytest.raises(ConfigError, match=r"group readers: top_one\.reader\.0\.1 is a live member, of topology"):
        Driver(kafka, topology__name="top", member=member, mode=mode)
    first.ack_all()
    first.commit()
    assert first.committed() == 10
    first.spout.close()
    Driver(kafka, topology__name="top", member=member, mode=mode).spout.close()


def test_of_two_topologies_that_start_at_once_one_is_refused(wide: Kafka) -> None:
    """Both have looked before either has joined: who joins second looks again, and has read nothing by then."""
    first, second = Driver(wide, topology__name="one"), Driver(wide, topology__name="two")
    first.run()

    def both() -> None:
        for _ in range(40):
            first.run(1)
            first.ack_all()
            second.run(1)

    with pytest.raises(ConfigError, match=r"one\.reader\.0\.1 is a live member, of topology one\."):
        both()
    assert second.offsets == []


@pytest.mark.fake_only("a consumer of the test's own joins with one poll")
def test_a_member_that_is_no_spout_is_warned_of(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    """A console consumer, or a spout of Java's, has a part of the records too; that may be meant."""
    other = kafka.consumer(group=GROUP)
    other.subscribe([TOPIC], Deaf())
    other.poll(0, 1)
    with caplog.at_level(logging.WARNING, logger="tests.spout"):
        Driver(kafka)
    (said,) = [record.getMessage() for record in caplog.records if "not spouts of Downspout" in record.getMessage()]
    assert said.startswith("group readers has live members that are not spouts of Downspout: ")


# --- two topologies, one group, no coordinator ---


def test_a_second_topology_by_assignment_is_refused(kafka: Kafka) -> None:
    """While the other is at work, the start is refused, and names it; it goes on undisturbed."""
    first = assigned(kafka, topology_id="orders-1")
    first.run()
    first.ack(range(5))
    first.commit()
    with pytest.raises(
        ConfigError, match=r"topology orders-1 \(task 3\) committed orders\[0\]@5 .* ago and has not en"
    ):
        assigned(kafka, topology_id="sums-1").run()
    first.ack(range(5, 10))
    first.commit()
    assert first.committed() == 10


def test_a_topology_that_is_refused_claims_nothing(kafka: Kafka, tmp_path: Path) -> None:
    """With the offsets in a store the other one, which owns them there, goes on too."""
    store = f"sqlite:///{tmp_path}/offsets.db"
    first = assigned(kafka, topology_id="orders-1", offset_store=store)
    first.run()
    first.ack(range(5))
    first.commit()
    with pytest.raises(ConfigError, match=r"topology orders-1 \(task 3\) committed orders\[0\]@5 .* ago and") as error:
        assigned(kafka, topology_id="sums-1", offset_store=store).run()
    assert f"downspout offsets seek readers --store {store} --to-current" in str(error.value)
    first.ack(range(5, 10))
    first.commit()
    assert first.committed() == 10


def test_a_redeploy_after_an_orderly_end_is_not_refused(kafka: Kafka) -> None:
    """The last commit says that its owner has ended: another topology id goes on at once."""
    first = assigned(kafka, topology_id="orders-1")
    first.run()
    first.ack(range(5))
    first.spout.close()
    assert assigned(kafka, topology_id="orders-2").run() == [5, 6, 7, 8, 9]


@pytest.mark.fake_only("a minute passes, by the broker's clock")
def test_a_redeploy_after_a_kill_waits_until_the_commit_is_old(kafka: FakeKafka) -> None:
    """A live topology with something to do has committed meanwhile."""
    first = assigned(kafka, topology_id="orders-1")
    first.run()
    first.ack(range(5))
    first.commit()
    first.crash()
    with pytest.raises(ConfigError, match="overwrite each other's commits"):
        assigned(kafka, topology_id="orders-2").run()
    kafka.clock.sleep(61)
    assert assigned(kafka, topology_id="orders-2").run() == [5, 6, 7, 8, 9]


def test_two_topologies_may_share_a_group_without_sharing_partitions(kafka: Kafka) -> None:
    """Each commits for its own partitions, and neither for the other's."""
    kafka.add_partitions(TOPIC, 2)
    fill(kafka, 3, 1)
    first = assigned(kafka, topology_id="orders-1", partitions=["orders[0]"])
    second = assigned(kafka, topology_id="sums-1", partitions=["orders[1]"])
    for spout, number in ((first, 0), (second, 1)):
        spout.run()
        spout.ack_all()
        spout.commit()
        assert {tp.partition for tp in spout.session.assignment.parts} == {number}
    assert (first.committed(0), first.committed(1)) == (10, 3)


# --- kafka.partitions ---


def test_tasks_share_the_partitions_that_are_named(kafka: Kafka) -> None:
    """They go round the tasks in order, and a topic that is not named is read whole."""
    kafka.create_topic("other", 2)
    kafka.add_partitions(TOPIC, 4)
    settings: dict[str, Any] = {"mode": "assign", "topics": [TOPIC, "other"], "partitions": ["orders[0, 3]"]}
    tasks = [Driver(kafka, member=None, task=(index, 2), **settings) for index in range(2)]
    for task in tasks:
        task.run(2)
    owned = [{(tp.topic, tp.partition) for tp in task.session.assignment.parts} for task in tasks]
    assert owned == [{(TOPIC, 0), ("other", 0)}, {(TOPIC, 3), ("other", 1)}]


def test_a_bounded_run_ends_with_the_partitions_that_are_named(kafka: Kafka) -> None:
    """It does not wait for commits of partitions that it does not read; and needs those that it names."""
    kafka.add_partitions(TOPIC, 3)
    fill(kafka, 3, 2)
    spout = assigned(kafka, partitions=["orders[2]"], run__until="end")
    spout.run()
    spout.ack_all()
    spout.run()
    assert spout.spout.exhausted()
    with pytest.raises(BrokerError, match=r"kafka.partitions names orders\[7\], which does not exist"):
        assigned(kafka, partitions=["orders[7]"], run__until="end")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "subscribe"}, "the consumer group gives out the partitions"),
        ({"topics": ["users"]}, "kafka.partitions names"),
        ({"partitions": ["orders"]}, "'orders' does not name partitions of a topic"),
        ({"partitions": ["orders[]"]}, "does not name partitions"),
        ({"partitions": ["orders[0]", "orders[1]"]}, "names orders twice"),
    ],
)
def test_what_contradicts_itself_is_refused(settings: dict[str, object], said: str) -> None:
    """The error names the setting, and shows its form or the way out."""
    conf = {"mode": "assign", "topics": ["orders"], "partitions": ["orders[0]"], "bootstrap": "one:9092"} | settings
    with pytest.raises(ConfigError) as refused:
        check(parse_scope({f"kafka.{name}": value for name, value in conf.items()}, "kafka"))
    assert said in str(refused.value)


def test_the_environment_gives_partitions_as_one_text() -> None:
    """Its lists are split at commas, those between the numbers too."""
    settings = parse_scope({"kafka.partitions": "orders[0,2],users[1]"}, "kafka")
    assert partitions_named(settings["partitions"]) == {"orders": {0, 2}, "users": {1}}
