"""Changes to a real broker behind a test's back: topics, transactions, deleted records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from kafka import KafkaProducer, errors
from kafka.admin import KafkaAdminClient

from downspout.kafka import Cluster, Record, TopicPartition, cluster_for
from tests.kafka.stage import unique
from tests.waiting import eventually

T = TypeVar("T")
WAIT_S_MAX = 180.0
"""How long a busy machine may take for anything."""


class RealTransaction:
    """An open transaction of a producer of its own."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self._first: dict[TopicPartition, int] = {}
        """Partition → the offset of its first record here"""
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        self._producer.init_transactions()
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int) -> None:
        for sent in [self._producer.send(topic, value=value, partition=partition) for value in values]:
            offset = sent.get(timeout=WAIT_S_MAX).offset
            self._first.setdefault(TopicPartition(topic, partition), offset)

    def commit(self) -> None:
        self._producer.commit_transaction()
        self._close()

    def abort(self) -> None:
        self._producer.abort_transaction()
        self._close()

    def _close(self) -> None:
        """Wait until its marks are in the logs: the coordinator answers before, and what is written next may precede.

        Before that nothing from its first record on is stable, so a read_committed reader's log ends there.
        """
        self._producer.close()
        asker = cluster_for(self._bootstrap).consumer(group=None)
        try:
            wait_until(lambda: all(end > self._first[tp] for tp, end in asker.end_offsets(list(self._first)).items()))
        finally:
            asker.close()


class RealStage:
    """The admin client does what the port has no word for."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.cluster: Cluster = cluster_for(bootstrap)
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create(self, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has a leader."""
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": configs or {}}
        self.admin.create_topics({topic: wanted}, wait_for_metadata=True)

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until the metadata says so."""
        self.admin.delete_topics([topic])
        wait_until(lambda: all(found.get("error_code") for found in self.admin.describe_topics([topic])))

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions({topic: total})

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        self.admin.delete_records({partition: before})

    def open_transaction(self) -> RealTransaction:
        return RealTransaction(self.bootstrap, unique("transaction"))

    def transaction(self, partition: TopicPartition, values: Sequence[bytes]) -> RealTransaction:
        opened = self.open_transaction()
        opened.send(partition.topic, *values, partition=partition.partition)
        return opened

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self.admin.close()


def wait_until(done: Callable[[], Any], limit_s: float = WAIT_S_MAX) -> None:
    """Wait for what the broker does in its own time.

    Raises:
        AssertionError: it has not happened by then.
    """
    eventually(done, limit_s, every_s=0.01)


def read_whole(cluster: Cluster, partitions: Collection[TopicPartition]) -> list[Record]:
    """Return what a read_committed reader sees of these partitions, up to where they end by now."""
    reader, found = cluster.consumer(group=None), list[Record]()
    reader.assign(partitions)
    for tp, begin in patiently(lambda: reader.beginning_offsets(partitions)).items():
        reader.seek(tp, begin)
    ends = patiently(lambda: reader.end_offsets(partitions))

    def is_read() -> bool:  # by positions: the ends of transactions are no records
        if all(reader.position(tp) >= end for tp, end in ends.items()):
            return True
        found.extend(record for records in reader.poll(100, 10_000).values() for record in records)
        return False

    eventually(is_read, every_s=0, otherwise=lambda: f"{len(found)} records came, and not all up to {ends}")
    reader.close()
    return found


def patiently(question: Callable[[], T]) -> T:
    """Ask up to three times: a busy broker may not answer in the 4 s that a spout has."""
    for _ in range(2):
        with contextlib.suppress(errors.KafkaTimeoutError):
            return question()
    return question()
