"""Three brokers and a controller of its own: who is in sync, what each has in its log, and who is paused or killed."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka.record import MemoryRecords

from downspout.broker import EmbeddedCluster
from downspout.kafka import KafkaCluster, NotKafkaError, ProducerPort, Sent, TopicPartition
from downspout.kafka.address import AnswerReader, exchange, text
from tests.kafka.broker_stage import read_whole, wait_until
from tests.kafka.stage import unique

ALL = (1, 2, 3)
METADATA, METADATA_VERSION = 3, 2
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 2
WAIT_S = 240.0


class Replicas:
    """What the tests ask of the brokers and do to them."""

    def __init__(self, brokers: EmbeddedCluster) -> None:
        self.brokers = brokers
        self.cluster = KafkaCluster(brokers.bootstrap)
        self._producers: list[ProducerPort] = []
        self.away: set[int] = set()

    def create(self, replicas: Mapping[int, Sequence[int]] | None = None, **configs: Any) -> str:
        """Create a topic, by default of one partition that node 1 leads; return its name when all are in sync."""
        topic, replicas = unique(), replicas or {0: ALL}
        settings = {name.replace("_", "."): str(value).lower() for name, value in configs.items()}
        assignments = {partition: list(nodes) for partition, nodes in replicas.items()}
        with self.cluster._admin() as admin:
            admin.create_topics({topic: {"assignments": assignments, "configs": settings}})
        for partition, nodes in replicas.items():
            self.await_isr(topic, set(nodes), partition)
        return topic

    def _ask(self, node: int, key: int, version: int, body: bytes) -> AnswerReader | None:
        """Ask one node, which is not paused, without a client: that would ask others too. None: no answer."""
        broker = self.brokers.node(node).broker
        try:
            with socket.create_connection((broker.host, broker.port), timeout=60) as connection:
                return exchange(connection, key, version, body)
        except (OSError, NotKafkaError):
            return None

    def state(self, topic: str, partition: int = 0) -> tuple[int, set[int]]:
        """Return leader and ISR as the first node says that runs; -1 and none: they are not known at the moment."""
        node = next(node for node in self.brokers.alive if node not in self.away)
        answer = self._ask(node, METADATA, METADATA_VERSION, struct.pack(">i", 1) + text(topic))
        if answer is None:
            return -1, set()
        for _ in range(answer.number(">i")):  # brokers
            answer.number(">i"), answer.text(), answer.number(">i"), answer.text()
        answer.text(), answer.number(">i"), answer.number(">i"), answer.number(">h"), answer.text(), answer.number(">b")
        found = {}
        for _ in range(answer.number(">i")):
            _, number, leader = answer.number(">h"), answer.number(">i"), answer.number(">i")
            _, isr = ([answer.number(">i") for _ in range(answer.number(">i"))] for _ in range(2))
            found[number] = leader, set(isr)
        return found.get(partition, (-1, set()))

    def end(self, node: int, topic: str, *, committed: bool = False) -> int:
        """Return the high watermark, by the word of the leader; of committed transactions, the last stable offset."""
        body = struct.pack(">ibi", -1, committed, 1) + text(topic) + struct.pack(">iiq", 1, 0, -1)
        answer = self._ask(node, LIST_OFFSETS, LIST_OFFSETS_VERSION, body)
        assert answer is not None
        answer.number(">i"), answer.number(">i"), answer.text(), answer.number(">i"), answer.number(">i")
        assert answer.number(">h") == 0
        answer.number(">q")
        return answer.number(">q")

    def await_isr(self, topic: str, nodes: set[int], partition: int = 0) -> None:
        wait_until(lambda: self.state(topic, partition)[1] == nodes, WAIT_S)

    def await_leader(self, topic: str, *nodes: int, partition: int = 0) -> int:
        """Wait until one of these leads the partition (-1: none does); return which."""
        wait_until(lambda: self.state(topic, partition)[0] in nodes, WAIT_S)
        return self.state(topic, partition)[0]

    def on_disk(self, node: int, topic: str, partition: int = 0) -> list[bytes | None]:
        """Return what a node has in its log, up to its LEO, as it is on its disk: it need not run."""
        folder = self.brokers.node(node).directory / "data" / f"{topic}-{partition}"
        found = []
        for segment in sorted(folder.glob("*.log")):
            batches = MemoryRecords(segment.read_bytes())
            while batches.has_next():
                batch = batches.next_batch()
                found += [] if batch.is_control_batch else [record.value for record in batch]
        return found

    def readable(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Return what a consumer reads: the records below the high watermark."""
        return [record.value for record in read_whole(self.cluster, [TopicPartition(topic, partition)])]

    def producer(self, **client: Any) -> ProducerPort:
        made = self.cluster.producer(client={"linger_ms": 0, "delivery_timeout_ms": 240_000, **client})
        self._producers.append(made)
        return made

    # --- faults ---

    @contextmanager
    def paused(self, *nodes: int) -> Iterator[None]:
        """Let these nodes have no time to run (SIGSTOP); they go on afterwards."""
        try:
            self.away.update(nodes)
            for node in nodes:
                self.brokers.node(node).broker.process.signal(signal.SIGSTOP)
            yield
        finally:
            self.resume(*nodes)

    def resume(self, *nodes: int) -> None:
        self.away.difference_update(nodes)
        for node in set(nodes) & set(self.brokers.alive):
            self.brokers.node(node).broker.process.signal(signal.SIGCONT)

    def kill(self, node: int) -> None:
        assert self.brokers.node(node).kill()

    def close(self) -> None:
        for producer in self._producers:
            producer.close()
        self.brokers.start()


def send(producer: ProducerPort, topic: str, values: Sequence[bytes], **more: Any) -> None:
    for value in values:
        producer.send(topic, **{"key": None, "value": value, "token": value, "partition": 0, **more})
    producer.acknowledged()


def answers(producer: ProducerPort, count: int) -> list[Sent]:
    """Wait for the answers of so many records; those of refused ones too."""
    found: list[Sent] = []

    def are_there() -> bool:
        found.extend(producer.results())
        return sum(len(sent.tokens) for sent in found) >= count

    wait_until(are_there, WAIT_S)
    return found


def acknowledged(producer: ProducerPort, count: int) -> list[bytes]:
    """Wait for so many records to be acknowledged; return their values."""
    found = answers(producer, count)
    assert [sent.error for sent in found if sent.error] == []
    return [value for sent in found for value in sent.tokens]
