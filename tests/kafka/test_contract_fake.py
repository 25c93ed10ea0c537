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
        """Create a topic."""
        self.cluster.create_topic(topic, partitions, configs)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.cluster.delete_topic(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have more partitions."""
        self.cluster.add_partitions(topic, total)

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Move the start of a log."""
        self.cluster.delete_records(partition.topic, partition.partition, before)

    def transaction(self, partition: TopicPartition, values: Sequence[bytes]) -> Transaction:
        """Begin a transaction and write these."""
        opened = self.cluster.transaction()
        for value in values:
            opened.send(partition.topic, value, partition=partition.partition)
        return opened

    def create_apart(self, topic: str) -> None:
        """Create a topic of two partitions."""
        self.cluster.create_topic(topic, 2)

    def lose_leader(self, partition: TopicPartition) -> None:
        """Take the leader away."""
        self.cluster.leaderless.add(partition)

    def find_leader(self, partition: TopicPartition) -> None:
        """Give it back."""
        self.cluster.leaderless.discard(partition)

    def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.cluster.clock.sleep(seconds)


@pytest.fixture
def stage() -> Iterator[FakeStage]:
    """A fresh cluster for each test."""
    with FakeKafka("contract") as cluster:
        yield FakeStage(cluster)


class TestReading(contract.ReadingContract):
    """On the fake."""


class TestPositions(contract.PositionContract):
    """On the fake."""


class TestLeaderless(contract.LeaderlessContract):
    """On the fake."""


class TestTopics(contract.TopicContract):
    """On the fake."""


class TestCommits(contract.CommitContract):
    """On the fake."""


class TestGroups(contract.GroupContract):
    """On the fake."""


class TestDeadLetters(contract.DeadLetterContract):
    """On the fake."""


class TestProducing(contract.ProducerContract):
    """On the fake."""


class TestTransactions(contract.TransactionContract):
    """On the fake."""


class TestReadingInColumns(contract.ReadingContract):
    """On the fake, read as columns."""

    columns = True


class TestPositionsInColumns(contract.PositionContract):
    """On the fake, read as columns."""

    columns = True


class TestLeaderlessInColumns(contract.LeaderlessContract):
    """On the fake, read as columns."""

    columns = True


class TestTopicsInColumns(contract.TopicContract):
    """On the fake, read as columns."""

    columns = True


class TestCommitsInColumns(contract.CommitContract):
    """On the fake, read as columns."""

    columns = True


class TestGroupsInColumns(contract.GroupContract):
    """On the fake, read as columns."""

    columns = True


class TestDeadLettersInColumns(contract.DeadLetterContract):
    """On the fake, read as columns."""

    columns = True
