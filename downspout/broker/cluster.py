"""A cluster of several embedded brokers, for tests in which a leader dies.

Each node is an :class:`~downspout.broker.embedded.EmbeddedKafka` in a directory of its own (``node-1``, ``node-2`` …),
with broker and controller in one process. Topics have up to three replicas, and a write with ``acks=all`` needs two of
them: of three nodes any one may be killed, and no acknowledged record is lost.

The nodes find each other by their ports, which stay the same while the cluster runs. If another process has taken one
between two runs, all get new ports. The controllers elect a leader by majority: one node of three, started alone, waits
for a second one. So two of three must not be paused either, unless the controller is apart: a process of its own
(``controller``), which works without any broker.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Self

from downspout.broker import broker_files
from downspout.broker.broker_files import ClusterFile
from downspout.broker.embedded import START_S_MAX, EmbeddedKafka
from downspout.errors import BrokerError, ConfigError
from downspout.kafka.client import KafkaCluster
from downspout.kafka.describing import partition_of_group
from downspout.system import files
from downspout.system.files import FileLock
from downspout.system.loopback import HOST, free_port, is_free
from downspout.system.service import LocalService

REPLICAS_MAX = 3
OFFSETS_TOPIC = "__consumer_offsets"
CONTROLLER, CONTROLLER_ID = "controller", 100  # Folder and node id of a separate controller


class EmbeddedCluster(LocalService):
    """A cluster of brokers on this machine; a ``with`` block starts and stops it.

    ::

        with EmbeddedCluster(tmp_path / "kafka") as kafka:
            cluster_for(kafka.bootstrap).ensure_topic("orders", 4)
            kafka.node(kafka.leader("orders", 0)).kill()      # kill -9
            ...
            kafka.start()                                     # starts those that do not run

    Raises:
        ConfigError: fewer than one node.
    """

    NAME = "Kafka"
    ERROR = BrokerError

    def __init__(
        self,
        directory: str | Path,  # parent of the nodes' directories; made if missing
        nodes: int = 3,
        *,
        properties: dict[str, str] | None = None,  # Kafka's settings for each node; they override ours
        start_s_max: float = START_S_MAX,  # time limit of a start in seconds; all nodes start at the same time
        controller_apart: bool = False,  # run the controller in a separate process
    ) -> None:
        if nodes < 1:
            raise ConfigError(f"a cluster has at least one node, not {nodes}", cure="nodes=3")
        super().__init__(directory)
        self._count = nodes
        self._properties = dict(properties or {})
        self._start_s_max = start_s_max
        self._lock: FileLock | None = None
        self._nodes: dict[int, EmbeddedKafka] = {}
        self._apart = controller_apart
        self._controller: EmbeddedKafka | None = None

    # --- what there is ---

    @property
    def nodes(self) -> dict[int, EmbeddedKafka]:
        """The nodes by id, from 1; empty before the first start."""
        return dict(self._nodes)

    def node(self, number: int) -> EmbeddedKafka:
        """Return one node, for ``kill()``, ``stop()`` and ``start()``."""
        try:
            return self._nodes[number]
        except KeyError:
            known = ", ".join(map(str, self._nodes)) or "none, before the first start"
            raise BrokerError(f"There is no node {number} in {self.directory}", cure=f"one of: {known}") from None

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, running or not."""
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes.values())

    @property
    def alive(self) -> list[int]:
        """The ids of running nodes."""
        return [number for number, node in self._nodes.items() if _runs(node)]

    @property
    def _all(self) -> list[EmbeddedKafka]:
        return [*self._nodes.values(), *([self._controller] if self._controller else [])]

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the id of a partition's leader; None: no leader now."""
        number = KafkaCluster(self.bootstrap).leaders(topic).get(partition, -1)
        return number if number in self._nodes else None

    def coordinator(self, group: str) -> int | None:
        """Return the id of a consumer group's coordinator; None: no coordinator now."""
        # The coordinator leads the partition of the group's commits.
        leaders = KafkaCluster(self.bootstrap).leaders(OFFSETS_TOPIC)
        number = leaders.get(partition_of_group(group, len(leaders)), -1) if leaders else -1
        return number if number in self._nodes else None

    # --- starting and ending ---

    def start(self) -> Self:
        """Start the nodes that do not run, in parallel, and wait until they answer.

        Raises:
            BrokerError: the directory is in use, or a node does not start; the others are stopped again.
        """
        if self._lock is None:  # before writing: two clusters here would overwrite each other's ports
            homes = map(self._home_name, range(1, self._count + 1))
            self._lock = self._take({"lock", "ports.json", CONTROLLER, *homes})
        waiting: list[EmbeddedKafka] = []
        try:
            if not any(map(_runs, self._all)):
                self._settle()
            waiting = [node for node in self._all if not _runs(node)]
            self._each(waiting, lambda node: node.start())
        except BaseException:
            for node in waiting:  # also ends starts that still wait, after Ctrl-C
                node.abandon()
            if not self.alive:
                self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down all nodes, and unlock the directory."""
        self._each(list(self._nodes.values()), lambda node: node.stop())  # brokers first: they tell the controller
        self._each(self._all, lambda node: node.stop())
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def kill(self) -> None:
        """Kill all nodes with ``kill -9``."""
        for node in self._all:
            node.kill()

    # --- inside ---

    def _in_use(self) -> BrokerError:
        return BrokerError(
            f"{self.directory} is in use by another cluster", cure="stop that one, or choose another directory"
        )

    def _settle(self) -> None:
        """Give each node its directory, and its previous ports unless one of them is taken."""
        numbers = range(1, self._count + 1)
        count = self._count + (1 if self._apart else self._count)
        known = broker_files.read_ports(self.directory, count)
        ports = known if known and all(map(is_free, known)) else _free_ports(count)
        files.replace_json(self.directory / "ports.json", {"ports": ports}, 0o600)
        clients, controllers = ports[: self._count], ports[self._count :]
        voting = [CONTROLLER_ID] if self._apart else numbers
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in zip(voting, controllers, strict=True))
        found = [broker_files.read_cluster(self._home(number)) for number in numbers]
        cluster_id = next((cluster.cluster_id for cluster in found if cluster), broker_files.new_cluster_id())

        def node(home: Path, number: int, port: int, controller_port: int, roles: str) -> EmbeddedKafka:
            home.mkdir(mode=0o700, exist_ok=True)
            cluster = broker_files.read_cluster(home) or ClusterFile(cluster_id)
            broker_files.write(home, replace(cluster, port=port))
            return EmbeddedKafka(
                home,
                port,
                properties=self._settings(number, voters),
                start_s_max=self._start_s_max,
                controller_port=controller_port,
                roles=roles,
            )

        if self._apart:
            (port,) = controllers
            self._controller = node(self.directory / CONTROLLER, CONTROLLER_ID, port, port, broker_files.CONTROLLER)
            controllers, roles = [port] * self._count, broker_files.BROKER
        else:
            roles = broker_files.BOTH
        for number, port, controller_port in zip(numbers, clients, controllers, strict=True):
            self._nodes[number] = node(self._home(number), number, port, controller_port, roles)

    def _home(self, number: int) -> Path:
        return self.directory / self._home_name(number)

    @staticmethod
    def _home_name(number: int) -> str:
        return f"node-{number}"

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
            # A dead follower delays writes for this long, by default 30 s.
            "replica.lag.time.max.ms": "5000",
            **self._properties,
        }

    @staticmethod
    def _each(nodes: list[EmbeddedKafka], action: Callable[[EmbeddedKafka], object]) -> None:
        """Call ``action`` for all nodes in parallel; raise the first error."""
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


def _runs(node: EmbeddedKafka) -> bool:
    return broker_files.read_broker(node.directory) is not None


def _free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)
