"""The contract of the consumer port, on a real broker: what keeps the fake honest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

for _module in ("contract", "contract_reading", "contract_groups", "stage"):
    pytest.register_assert_rewrite(f"tests.kafka.{_module}")

from kafka import KafkaProducer  # noqa: E402
from kafka.admin import KafkaAdminClient  # noqa: E402

from downspout.kafka.port import Cluster, TopicPartition, cluster_for  # noqa: E402
from tests.kafka import contract  # noqa: E402

pytestmark = pytest.mark.broker


class RealTransaction:
    """An open transaction of a producer of its own."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        self._producer.init_transactions()
        self._producer.begin_transaction()

    def send(self, partition: TopicPartition, value: bytes) -> None:
        """Write one record and wait for it."""
        self._producer.send(partition.topic, value=value, partition=partition.partition).get(timeout=30)

    def commit(self) -> None:
        """End it; its records become visible."""
        self._producer.commit_transaction()
        self._producer.close()

    def abort(self) -> None:
        """End it; its records stay hidden."""
        self._producer.abort_transaction()
        self._producer.close()


class RealStage:
    """The admin client does what the port has no word for."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.cluster: Cluster = cluster_for(bootstrap)
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        self._transactions = 0

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic and wait until every partition has a leader."""
        self._admin.create_topics(
            {topic: {"num_partitions": partitions, "replication_factor": 1}}, wait_for_metadata=True
        )

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until the metadata says so."""
        self._admin.delete_topics([topic])
        _wait_until(lambda: all(found.get("error_code") for found in self._admin.describe_topics([topic])))

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have more partitions."""
        self._admin.create_partitions({topic: total})

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Move the start of a log."""
        self._admin.delete_records({partition: before})

    def transaction(self, partition: TopicPartition, values: Sequence[bytes]) -> RealTransaction:
        """Begin a transaction and write these."""
        self._transactions += 1
        opened = RealTransaction(self.bootstrap, f"{partition.topic}-{self._transactions}")
        for value in values:
            opened.send(partition, value)
        return opened

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def close(self) -> None:
        """Release the admin client."""
        self._admin.close()


def _wait_until(done: Callable[[], Any], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


@pytest.fixture
def stage(kafka_broker: Any) -> Iterator[RealStage]:
    """The broker of the session; each test uses topics and groups of its own."""
    made = RealStage(kafka_broker.bootstrap)
    yield made
    made.close()


class TestReading(contract.ReadingContract):
    """On a real broker."""


class TestTopics(contract.TopicContract):
    """On a real broker."""


class TestCommits(contract.CommitContract):
    """On a real broker."""


class TestGroups(contract.GroupContract):
    """On a real broker."""


class TestDeadLetters(contract.DeadLetterContract):
    """On a real broker."""
