"""Three brokers behind a test's back: a partition loses its leader, and finds it again."""

from __future__ import annotations

from downspout.broker import EmbeddedCluster
from downspout.kafka import TopicPartition
from tests.broker.replicas import WAIT_S, Replicas
from tests.kafka.broker_stage import RealStage, wait_until

STAYS, GOES = 1, 2


class ThreeStage(RealStage):
    """Partition 0 of a topic is on a node that stays, partition 1 on one that goes."""

    def __init__(self, brokers: EmbeddedCluster) -> None:
        super().__init__(brokers.bootstrap)
        self._brokers, self._replicas = brokers, Replicas(brokers)

    def create_apart(self, topic: str) -> None:
        self.admin.create_topics({topic: {"assignments": {0: [STAYS], 1: [GOES]}}})
        for partition, node in enumerate((STAYS, GOES)):
            self._replicas.await_leader(topic, node, partition=partition)

    def lose_leader(self, partition: TopicPartition) -> None:
        self._brokers.node(GOES).kill()
        self._replicas.await_leader(partition.topic, -1, partition=partition.partition)

    def find_leader(self, partition: TopicPartition) -> None:
        self._brokers.start()
        wait_until(lambda: self._replicas.state(*partition)[0] == GOES, WAIT_S)
