"""The lag of a group on a real broker: the same figures as Kafka's own tool, and those the tool lacks."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, KafkaConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.offsets import Question, collect
from downspout.system import resolve
from downspout.system.java import java
from tests.kafka.broker_stage import RealStage
from tests.kafka.stage import Facts, fill, poll_until, unique

pytestmark = pytest.mark.broker

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
UNCOMMITTED = Question(committed_only=False)


@pytest.fixture
def stage(kafka_broker: EmbeddedKafka) -> RealStage:
    """The session's broker, and what is done behind the port's back."""
    return RealStage(kafka_broker.bootstrap)


def described_by_kafka(bootstrap: str, group: str) -> dict[tuple[str, int], tuple[str, str, str, str]]:
    """Return committed, end, lag and host as Kafka's own tool prints them, by topic and partition."""
    jars = os.pathsep.join(map(str, resolve("kafka-tools") + resolve("kafka")))
    command = [str(java()), "-cp", jars, TOOL, "--bootstrap-server", bootstrap, "--describe", "--group", group]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(f"{group} ")]
    return {(row[1], int(row[2])): (row[3], row[4], row[5], row[7].lstrip("/")) for row in rows}


def dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def test_the_figures_are_those_of_kafkas_own_tool(
    kafka_broker: EmbeddedKafka, cluster: KafkaCluster, stage: RealStage, consumers: list[KafkaConsumerPort]
) -> None:
    """Committed, end, lag and host agree: behind, at the end, in a transaction, without a commit, with a member."""
    topic, other, group = unique(), unique(), unique("g")
    stage.create(topic, 4)
    stage.create(other, 1)
    for partition, count in ((0, 10), (1, 5), (3, 4)):
        fill(stage, topic, count, partition)
    fill(stage, other, 2)
    transaction = stage.transaction(TopicPartition(topic, 1), [b"open", b"too"])
    consumer = cluster.consumer(group=group)
    consumers.append(consumer)
    consumer.subscribe([topic], Facts())
    poll_until(consumer, lambda _: len(consumer.assignment()) == 4)
    places = {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 5, TopicPartition(topic, 2): 0}
    consumer.commit({tp: OffsetAndMetadata(offset, "", -1) for tp, offset in places.items()})
    outside = cluster.consumer(group=None)
    consumers.append(outside)

    theirs = described_by_kafka(kafka_broker.bootstrap, group)
    ours = collect(cluster, group, UNCOMMITTED)
    assert theirs == {
        (row.topic, row.partition): (dash(row.committed), dash(row.end), dash(row.lag), row.host)
        for row in ours.partitions
    }
    assert [row.lag for row in ours.partitions] == [3, 2, 0, None]
    assert [row.lag for row in collect(cluster, group).partitions] == [3, 0, 0, None]
    assert {row.member for row in ours.partitions} == {consumer.membership().member}
    assert (ours.state, kafka_broker.bootstrap in ours.coordinator) == ("Stable", True)
    transaction.commit()


def test_the_age_is_that_of_the_record_at_the_commit(
    cluster: KafkaCluster, stage: RealStage, consumers: list[KafkaConsumerPort]
) -> None:
    """Each partition's age is by the timestamp of its next record, also where some were aborted or are large."""
    topic, group = unique(), unique("g")
    stage.create(topic, 3, {"max.message.bytes": "4000000"})
    now_ms = int(time.time() * 1000)
    producer = cluster.producer(client={"max_request_size": 4_000_000})
    for partition, ages_s in ((0, (900, 600, 300)), (1, (800, 500)), (2, (70,))):
        for age_s in ages_s:
            value = b"x" * (1_000_000 if partition == 1 else 10)
            producer.send(topic, key=None, value=value, partition=partition, timestamp_ms=now_ms - age_s * 1000)
            producer.flush()
    producer.close()
    aborted = stage.transaction(TopicPartition(topic, 2), [b"a", b"b"])
    aborted.abort()
    consumer = cluster.consumer(group=group)
    consumers.append(consumer)
    places = {TopicPartition(topic, number): offset for number, offset in ((0, 1), (1, 1), (2, 1))}
    consumer.assign(list(places))
    consumer.commit({tp: OffsetAndMetadata(offset, "", -1) for tp, offset in places.items()})
    rows = collect(cluster, group).partitions
    passed = time.time() - now_ms / 1000
    for row, age_s in zip(rows, (600, 500), strict=False):
        assert row.lag_s is not None
        assert age_s <= row.lag_s <= age_s + passed + 1
    assert (rows[2].lag, rows[2].lag_s) == (3, None)


def test_a_topic_that_is_gone_is_one_row(
    cluster: KafkaCluster, stage: RealStage, consumers: list[KafkaConsumerPort]
) -> None:
    topic, gone, group = unique(), unique("gone"), unique("g")
    for name in (topic, gone):
        stage.create(name, 1)
    fill(stage, topic, 4)
    consumer = cluster.consumer(group=group)
    consumers.append(consumer)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
    stage.delete(gone)
    found = collect(cluster, group, Question([topic, gone, "no good name!"]))
    assert [(row.topic, row.lag) for row in found.partitions] == [(topic, 3)]
    problems = {each.topic: each.problem for each in found.topics}
    assert "does not exist" in problems[gone]
    assert "not a valid topic name" in problems["no good name!"]
