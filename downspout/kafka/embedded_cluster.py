"""Several embedded brokers that make one cluster: what happens when a leader dies is seen only there.

Each node is an :class:`~downspout.kafka.embedded.EmbeddedKafka` with a directory of its own (``node-1``, ``node-2`` …),
and broker and controller in one process. Topics have a replica on up to three nodes, and a write with ``acks=all``
needs two of them: so with three nodes any one may be killed, and nothing that was acknowledged is lost.

The nodes find each other by their ports, which therefore stay the same while the cluster runs. Where another process
has taken one of them between two runs, all move to new ones. The controllers elect one of them by majority: a single
node of three, started alone, waits for a second one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from downspout.errors import BrokerError, ConfigError
from downspout.kafka import broker_files
from downspout.kafka.broker_files import HOST, Cluster
from downspout.kafka.client import KafkaCluster
from downspout.kafka.embedded import START_S_MAX, EmbeddedKafka
from downspout.locks import FileLock

REPLICAS_MAX = 3
OFFSETS_TOPIC = "__consumer_offsets"


class EmbeddedCluster:
    """A cluster of brokers on this machine; as a context manager it is started and stopped.

    ::

        with EmbeddedCluster(tmp_path / "kafka") as kafka:
            cluster_for(kafka.bootstrap).ensure_topic("orders", 4)
            kafka.node(kafka.leader("orders", 0)).kill()      # kill -9
            ...
            kafka.start()                                     # starts those that do not run

    Args:
        directory: where the nodes' directories are; made where it is missing.
        nodes: how many.
        properties: Kafka's own settings for each node, in addition to ours or instead of them.
        start_s_max: how long a start may take, in seconds; all nodes start at the same time.

    Raises:
        ConfigError: fewer than one node.
    """

    def __init__(
        self,
        directory: str | Path,
        nodes: int = 3,
        *,
        properties: dict[str, str] | None = None,
        start_s_max: float = 2 * START_S_MAX,
    ) -> None:
        if nodes < 1:
            raise ConfigError(f"a cluster of {nodes} nodes is none", cure="nodes=3")
        self.directory = Path(directory).absolute()
        self._count = nodes
        self._properties = dict(properties or {})
        self._start_s_max = start_s_max
        self._lock: FileLock | None = None
        self._nodes: dict[int, EmbeddedKafka] = {}

    # --- what there is ---

    @property
    def nodes(self) -> dict[int, EmbeddedKafka]:
        """The nodes by their ids, which count from 1; empty before the first start."""
        return dict(self._nodes)

    def node(self, number: int) -> EmbeddedKafka:
        """Return one node: ``kill()``, ``stop()`` and ``start()`` are about it alone.

        Raises:
            BrokerError: there is no such node.
        """
        try:
            return self._nodes[number]
        except KeyError:
            known = ", ".join(map(str, self._nodes)) or "none, before the first start"
            raise BrokerError(f"There is no node {number} in {self.directory}", cure=f"one of: {known}") from None

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, those that do not run at the moment too."""
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes.values())

    @property
    def alive(self) -> list[int]:
        """The ids of the nodes whose processes run."""
        return [number for number, node in self._nodes.items() if broker_files.read_broker(node.directory) is not None]

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the id of the node that leads a partition; None: nobody does at the moment."""
        number = KafkaCluster(self.bootstrap).leaders(topic).get(partition, -1)
        return number if number in self._nodes else None

    def coordinator(self, group: str) -> int | None:
        """Return the id of the node that coordinates a consumer group; None: nobody does at the moment.

        It is the leader of that partition of Kafka's own topic of commits which the group's name falls to.
        """
        leaders = KafkaCluster(self.bootstrap).leaders(OFFSETS_TOPIC)
        number = leaders.get(partition_of_group(group, len(leaders)), -1) if leaders else -1
        return number if number in self._nodes else None

    # --- starting and ending ---

    def start(self) -> Self:
        """Start the nodes that do not run, at the same time, and wait until they answer.

        Raises:
            BrokerError: the directory is in use, or a node does not start; those that did are stopped again.
        """
        if not self.alive:
            self._take()
            self._settle()
        waiting = [node for number, node in self._nodes.items() if number not in self.alive]
        try:
            self._each(waiting, lambda node: node.start())
        except BaseException:
            for node in waiting:  # also ends starts that still wait, after Ctrl-C
                node.abandon()
            if not self.alive:
                self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all nodes in order, and let others have the directory."""
        self._each(list(self._nodes.values()), lambda node: node.stop())
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def kill(self) -> None:
        """End all nodes by ``kill -9``."""
        for node in self._nodes.values():
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- inside ---

    def _take(self) -> None:
        """Take the directory, before anything is written there; two clusters on it would move each other's ports."""
        if self._lock is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.directory / "lock")
        if not lock.acquire():
            raise BrokerError(
                f"{self.directory} is in use by another cluster", cure="stop that one, or choose another directory"
            )
        self._lock = lock

    def _settle(self) -> None:
        """Give each node its directory and ports: those it had, unless one of them is taken."""
        numbers = range(1, self._count + 1)
        known = broker_files.read_ports(self.directory, self._count)
        ports = known if known and all(map(broker_files.is_free, known)) else _free_ports(2 * self._count)
        broker_files.replace_json(self.directory / "ports.json", {"ports": ports})
        voters = ",".join(f"{number}@{HOST}:{ports[self._count + number - 1]}" for number in numbers)
        found = [broker_files.read_cluster(self._home(number)) for number in numbers]
        cluster_id = next((cluster.cluster_id for cluster in found if cluster), broker_files.new_cluster_id())
        for number, cluster in zip(numbers, found, strict=True):
            self._home(number).mkdir(exist_ok=True)
            cluster = replace(cluster or Cluster(cluster_id), port=ports[number - 1])
            broker_files.write(self._home(number), cluster)
            self._nodes[number] = EmbeddedKafka(
                self._home(number),
                ports[number - 1],
                properties=self._settings(number, voters),
                start_s_max=self._start_s_max,
                controller_port=ports[self._count + number - 1],
            )

    def _home(self, number: int) -> Path:
        return self.directory / f"node-{number}"

    def _settings(self, number: int, voters: str) -> dict[str, str]:
        replicas = str(min(self._count, REPLICAS_MAX))
        needed = str(int(replicas) // 2 + 1)
        return {
            "node.id": str(number),
            "controller.quorum.voters": voters,
            **dict.fromkeys(
                (
                    "default.replication.factor",
                    "offsets.topic.replication.factor",
                    "transaction.state.log.replication.factor",
                    "share.coordinator.state.topic.replication.factor",
                ),
                replicas,
            ),
            **dict.fromkeys(
                ("min.insync.replicas", "transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr"),
                needed,
            ),
            # A dead follower keeps writes waiting for so long, 30 s by default.
            "replica.lag.time.max.ms": "5000",
            **self._properties,
        }

    @staticmethod
    def _each(nodes: list[EmbeddedKafka], action: Callable[[EmbeddedKafka], object]) -> None:
        """Do it with all of them at once; raise the first error."""
        if not nodes:
            return
        pool = ThreadPoolExecutor(len(nodes), thread_name_prefix="embedded-kafka")
        try:
            futures = [pool.submit(action, node) for node in nodes]
            wait(futures)
            for future in futures:
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(broker_files.free_port())
    return sorted(ports)


def partition_of_group(group: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` that a group's commits are in.

    Kafka takes Java's hash of the name without its sign (``GroupCoordinator.partitionFor``).

    >>> partition_of_group("chaos", 50), partition_of_group("flight-delays", 4)
    (16, 3)
    """
    value = 0
    for unit in memoryview(group.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    value = value - (1 << 32) if value >> 31 else value
    return (0 if value == -(1 << 31) else abs(value)) % partitions
