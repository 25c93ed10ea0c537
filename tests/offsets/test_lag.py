"""The lag of a group: the arithmetic, and the requests to a fake Kafka."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import errors

from downspout.errors import BrokerError
from downspout.kafka import GroupDescription, GroupMember, LogState, OffsetAndMetadata, TopicPartition, TopicState
from downspout.ledger import Isolation, encode
from downspout.offsets import PartitionLag, Question, collect
from downspout.offsets.lag import CUT, EARLIER, NO_GROUP, NO_PARTITION, SCHEMA, Total, as_json, assemble, lines, reckon
from downspout.testing import FakeKafka
from tests.kafka.stage import Facts

TP = TopicPartition("orders", 0)
ID = "topic-id"


def commit(base: int, topic_id: str = ID, **facts: Any) -> OffsetAndMetadata:
    return OffsetAndMetadata(base, encode(base, topology_id="shop-1", task=4, topic_id=topic_id, **facts), -1)


def figures(log: LogState, entry: OffsetAndMetadata | None, **more: Any) -> PartitionLag:
    """Return what is reckoned for the partition of these tests."""
    return reckon(TP, log, entry, topic_id=ID, **more)


# --- arithmetic ---


@pytest.mark.parametrize(
    ("committed_only", "end", "lag"), [(True, 10, 3), (False, 12, 5)], ids=["read_committed", "read_uncommitted"]
)
def test_the_end_is_what_the_group_can_see(committed_only: bool, end: int, lag: int) -> None:
    """A reader of committed records is behind the last stable offset, another the high watermark."""
    row = figures(LogState(0, 12, 10), commit(7), committed_only=committed_only)
    assert (row.committed, row.end, row.high_watermark, row.lag) == (7, end, 12, lag)


def test_without_a_commit_there_is_no_lag() -> None:
    """No commit is None, never -1, and a sum leaves it out; how much there is to read is known all the same."""
    row = figures(LogState(2, 10, 10), None)
    assert (row.committed, row.lag, row.unread) == (None, None, 8)
    behind = figures(LogState(0, 10, 10), commit(7))
    assert dataclasses.asdict(Total.of([row, behind])) == {
        "lag": 3, "lag_s": None, "done": 0, "uncommitted": 0, "failed": 0, "partitions": 2, "without_commit": 1,
        "problems": 0,
    }  # fmt: skip
    assert Total.of([row]).lag is None


def test_a_commit_says_what_lies_beyond_it() -> None:
    """What is done, what failed and how far the owner came is in the metadata, and so is who it was."""
    row = figures(LogState(0, 30, 30), commit(7, done=[(9, 12), (14, 15)], failures=[(7, 2), (20, 1)]))
    assert (row.done, row.failed, row.uncommitted) == (4, 2, 14)
    assert (row.topology_id, row.task) == ("shop-1", 4)
    assert (row.blocks, row.why) == (7, "failed 2 times, waits for another try or for its dead letter")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"done": [(9, 12)]}, "has no answer yet"),
        ({"failures": [(8, 1)]}, "has no answer yet"),
        ({"isolation": Isolation(2, 1, 9, 12)}, "up to offset 9 one record is processed at a time"),
        ({"isolation": Isolation(2, 1, 9, 12, alone=7)}, "is processed alone"),
    ],
)
def test_the_offset_that_blocks_has_its_reason(facts: dict[str, Any], why: str) -> None:
    """What holds a commit back is named, as far as the commit tells."""
    row = figures(LogState(0, 30, 30), commit(7, **facts))
    assert row.blocks == 7
    assert why in row.why


def test_nothing_blocks_where_nothing_is_known_beyond_the_commit() -> None:
    """A group that is merely behind, or at the end, has no offset that blocks; foreign metadata says nothing."""
    for entry in (
        commit(7),
        commit(30),
        OffsetAndMetadata(7, "somebody's own words", -1),
        OffsetAndMetadata(7, "", -1),
    ):
        row = figures(LogState(0, 30, 30), entry)
        assert (row.blocks, row.why, row.done, row.problem) == (None, "", 0, "")


def test_a_commit_beyond_the_end_is_said_and_not_negative() -> None:
    """A log that was cut leaves no negative lag."""
    row = figures(LogState(0, 5, 5), commit(7))
    assert (row.lag, row.problem) == (0, CUT)


def test_an_open_transaction_is_no_cut_log() -> None:
    """A commit between the last stable offset and the high watermark is right, and nothing is left to be read."""
    row = figures(LogState(0, 9, 5), commit(7))
    assert (row.lag, row.problem) == (0, "")


def test_a_commit_for_an_earlier_topic_is_said() -> None:
    """Ranges of a topic that was deleted and created again say nothing about this one."""
    row = figures(LogState(0, 30, 30), commit(7, topic_id="old", done=[(9, 12)]))
    assert (row.done, row.problem, row.topology_id) == (0, EARLIER, "shop-1")
    assert (row.lag, row.unread) == (None, 30)  # its offsets are none of this topic's


def test_a_partition_that_cannot_be_told_of_leaves_the_others_alone() -> None:
    """Without a leader, without a right, or gone: the row says so, its commit is shown, and sums hold the others."""
    gone, secret = TopicPartition("gone", 3), TopicPartition("secret", 0)
    states = {
        "orders": TopicState(ID, {0: LogState(0, 10, 10), 1: LogState(None, None, None, "has no leader")}),
        "gone": TopicState("", {}, "does not exist"),
        "secret": TopicState("", {}, "no permission to see it"),
        "shrunk": TopicState("x", {0: LogState(0, 1, 1)}),
    }
    commits = {
        TP: commit(7),
        TopicPartition("orders", 1): commit(5),
        gone: commit(1),
        TopicPartition("shrunk", 4): commit(1),
    }
    found = assemble("shop", GroupDescription("Empty", "here:1 (node 1)", []), commits, states)
    said = {(row.topic, row.partition): (row.committed, row.lag, row.problem) for row in found.partitions}
    assert said[("orders", 0)] == (7, 3, "")
    assert said[("orders", 1)] == (5, None, "has no leader")
    assert said[("gone", 3)] == (1, None, "does not exist")
    assert said[("shrunk", 4)] == (1, None, NO_PARTITION)
    assert {topic.topic: topic.problem for topic in found.topics}[secret.topic] == "no permission to see it"
    assert (found.total.lag, found.total.problems, found.total.without_commit) == (3, 4, 1)


def test_owners_are_those_of_the_assignment() -> None:
    members = [GroupMember("one", "c", "10.0.0.1", [TP]), GroupMember("two", "c", "10.0.0.2", [])]
    states = {"orders": TopicState(ID, {0: LogState(0, 1, 1), 1: LogState(0, 1, 1)})}
    found = assemble("shop", GroupDescription("Stable", "", members), {}, states)
    assert [(row.member, row.host) for row in found.partitions] == [("one", "10.0.0.1"), ("", "")]


# --- forms ---


def test_the_json_has_one_schema() -> None:
    """Its keys are these: whoever reads them can rely on it."""
    found = assemble(
        "shop",
        GroupDescription("Stable", "here:1 (node 1)", [GroupMember("one", "c", "h", [TP])]),
        {TP: commit(7)},
        {"orders": TopicState(ID, {0: LogState(0, 10, 10), 1: LogState(0, 2, 2)})},
    )
    told = json.loads(json.dumps(as_json([found], "2026-11-24T20:00:00+00:00")))
    (group,) = told["groups"]
    (topic,) = group["topics"]
    assert (told["schema"], told["at"]) == (SCHEMA, "2026-11-24T20:00:00+00:00")
    assert set(group) == {"group", "kind", "state", "coordinator", "problem", "members", "total", "topics"}
    assert set(topic) == {"topic", "problem", "total", "partitions"}
    assert group["members"] == [{"member": "one", "client_id": "c", "host": "h", "partitions": 1}]
    assert topic["partitions"][0] == {
        "partition": 0, "committed": 7, "position": None, "begin": 0, "end": 10, "high_watermark": 10, "lag": 3,
        "lag_s": None, "done": 0, "uncommitted": 0, "failed": 0, "blocks": None, "why": None, "topology_id": "shop-1",
        "task": 4, "member": "one", "host": "h", "problem": None,
    }  # fmt: skip
    assert topic["partitions"][1]["committed"] is None
    assert group["total"]["lag"] == topic["total"]["lag"] == 3


def test_the_table_shows_what_is_not_known_as_a_dash() -> None:
    """No figure is made up: a dash stands where there is none, and a column that no row knows is left out."""
    states = {
        "orders": TopicState(
            ID, {0: LogState(0, 1010, 1010), 1: LogState(4, 6, 6), 2: LogState(None, None, None, "broken")}
        )
    }
    shown = lines(assemble("shop", None, {TP: commit(7, done=[(9, 12)])}, states))
    assert shown[0] == "group shop: its state is not known"
    assert shown[1].split() == [
        "partition",
        "committed",
        "end",
        "lag",
        "age",
        "done",
        "beyond",
        "uncommitted",
        "failed",
        "owner",
    ]
    assert shown[2].split()[:8] == ["orders[0]", "7", "1,010", "1,003", "–", "3", "5", "0"]
    assert shown[3].split() == ["orders[1]", "–", "6", "–", "–", "–", "–", "–", "–"]
    assert shown[5].split() == ["orders", "1,003", "–", "3", "5", "0"]
    assert shown[6].strip().startswith("orders[0]@7 blocks: has no answer yet")
    assert [line.strip() for line in shown[7:]] == [
        "orders[1]: no commit; its log holds offsets 4 to 6",
        "orders[2]: broken",
    ]


# --- a fake Kafka is asked ---


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A Kafka in memory with ten records, one each second."""
    with FakeKafka("lag") as made:
        made.create_topic("orders", partitions=2)
        for _ in range(10):
            made.produce("orders", b"v", partition=0)
            made.clock.sleep(1)
        yield made


def put(kafka: FakeKafka, offset: int, metadata: str = "", tp: TopicPartition = TP) -> None:
    consumer = kafka.consumer(group="shop")
    consumer.commit({tp: OffsetAndMetadata(offset, metadata, -1)})
    consumer.close()


@pytest.mark.fake_only("the clock is virtual; tests/broker/test_lag_broker.py does it with a broker")
def test_lag_in_seconds_is_the_age_of_the_next_record(kafka: FakeKafka) -> None:
    """It is the time since the record at the commit was written; 0 at the end, unknown without a commit."""
    put(kafka, 7)
    (first, second) = collect(kafka, "shop", Question(clock=kafka.clock)).partitions
    assert first.lag == 3
    assert first.lag_s == pytest.approx(3.0, abs=0.5)
    assert (second.lag, second.lag_s) == (None, None)
    put(kafka, 10)
    assert collect(kafka, "shop", Question(clock=kafka.clock)).partitions[0].lag_s == 0.0


@pytest.mark.fake_only("a log whose start has moved is made at once")
def test_a_commit_below_the_log_is_as_old_as_what_is_left(kafka: FakeKafka) -> None:
    """Records that are gone have no time: the first that is left has."""
    put(kafka, 2)
    kafka.delete_records("orders", 0, 8)
    found = collect(kafka, "shop", Question(clock=kafka.clock))
    assert found.partitions[0].lag == 8
    assert found.partitions[0].lag_s == pytest.approx(2.0, abs=0.5)
    assert any("6 offsets of the lag are gone from Kafka" in line for line in lines(found))


@pytest.mark.fake_only("an aborted tail is made at once")
def test_only_invisible_records_are_no_age(kafka: FakeKafka) -> None:
    """Where all that is left was aborted, there is no next record, and the look ends before its time is up."""
    put(kafka, 10)
    transaction = kafka.transaction()
    transaction.send("orders", b"x", partition=0)
    transaction.abort()
    before = kafka.clock.monotonic()
    row = collect(kafka, "shop", Question(clock=kafka.clock)).partitions[0]
    assert (row.lag, row.lag_s) == (2, None)
    assert kafka.clock.monotonic() - before < 1


@pytest.mark.fake_only("the polls are counted")
def test_a_partition_that_cannot_be_read_is_not_asked_without_a_pause(kafka: FakeKafka) -> None:
    """Errors that come at once are no busy loop: the look ends after a bounded number of polls."""
    put(kafka, 7)
    kafka.faults.fail_next("poll", errors.KafkaTimeoutError, times=1_000)
    before = kafka.clock.monotonic()
    row = collect(kafka, "shop", Question(clock=kafka.clock)).partitions[0]
    assert (row.lag, row.lag_s) == (3, None)
    assert 4 < kafka.clock.monotonic() - before < 7


@pytest.mark.fake_only("a question is counted")
def test_without_age_no_record_is_read(kafka: FakeKafka) -> None:
    put(kafka, 7)
    kafka.faults.fail_next("poll", BrokerError("polled"))
    assert collect(kafka, "shop", Question(with_age=False)).partitions[0].lag == 3


@pytest.mark.fake_only("a partition without a leader is named")
def test_leaderless_and_missing_topics_are_said(kafka: FakeKafka) -> None:
    """One partition without a leader and a topic that does not exist leave the others as they are."""
    put(kafka, 7)
    kafka.leaderless.add(TopicPartition("orders", 1))
    found = collect(kafka, "shop", Question(["orders", "nowhere"], clock=kafka.clock))
    assert [(row.partition, row.lag, bool(row.problem)) for row in found.partitions] == [(0, 3, False), (1, None, True)]
    assert [topic.topic for topic in found.topics if topic.problem] == ["nowhere"]


@pytest.mark.fake_only("names of groups")
def test_a_group_that_never_was_is_said(kafka: FakeKafka) -> None:
    """Kafka knows no difference between a group that never was and one whose commits expired; neither do we."""
    found = collect(kafka, "misspelt")
    assert (found.problem, found.partitions) == (NO_GROUP, [])


@pytest.mark.fake_only("a member of the fake")
def test_live_members_own_their_partitions(kafka: FakeKafka) -> None:
    consumer = kafka.consumer(group="shop", instance_id="one")
    consumer.subscribe(["orders"], Facts())
    consumer.poll(0, 1)
    found = collect(kafka, "shop", Question(clock=kafka.clock))
    assert (found.state, [row.member for row in found.partitions]) == ("Stable", ["one", "one"])
    consumer.close()
