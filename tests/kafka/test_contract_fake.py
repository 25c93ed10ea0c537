"""The contract of the consumer port, on the fake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from downspout.kafka import TopicPartition
from downspout.testing import FakeKafka
from downspout.testing.fake_log import Transaction
from tests.kafka import contract


class FakeStage:
    """The fake needs no backstage: its own methods do it."""

    def __init__(self, cluster: FakeKafka) -> None:
        self.cluster = cluster

    def create(self, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        self.cluster.create_topic(topic, partitions, configs)

    def delete(self, topic: str) -> None:
        self.cluster.delete_topic(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        self.cluster.add_partitions(topic, total)

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        self.cluster.delete_records(partition.topic, partition.partition, before)

    def transaction(self, partition: TopicPartition, values: Sequence[bytes]) -> Transaction:
        opened = self.cluster.transaction()
        for value in values:
            opened.send(partition.topic, value, partition=partition.partition)
        return opened

    def create_apart(self, topic: str) -> None:
        self.cluster.create_topic(topic, 2)

    def lose_leader(self, partition: TopicPartition) -> None:
        self.cluster.leaderless.add(partition)

    def find_leader(self, partition: TopicPartition) -> None:
        self.cluster.leaderless.discard(partition)

    def wait(self, seconds: float) -> None:
        self.cluster.clock.sleep(seconds)


@pytest.fixture
def stage() -> Iterator[FakeStage]:
    with FakeKafka("contract") as cluster:
        yield FakeStage(cluster)


class TestReading(contract.ReadingContract):
    pass


class TestPositions(contract.PositionContract):
    pass


class TestLeaderless(contract.LeaderlessContract):
    pass


class TestTopics(contract.TopicContract):
    pass


class TestCommits(contract.CommitContract):
    pass


class TestGroups(contract.GroupContract):
    pass


class TestDeadLetters(contract.DeadLetterContract):
    pass


class TestProducing(contract.ProducerContract):
    pass


class TestTransactions(contract.TransactionContract):
    pass


class TestReadingInColumns(contract.ReadingContract):
    columns = True


class TestPositionsInColumns(contract.PositionContract):
    columns = True


class TestLeaderlessInColumns(contract.LeaderlessContract):
    columns = True


class TestTopicsInColumns(contract.TopicContract):
    columns = True


class TestCommitsInColumns(contract.CommitContract):
    columns = True


class TestGroupsInColumns(contract.GroupContract):
    columns = True


class TestDeadLettersInColumns(contract.DeadLetterContract):
    columns = True
