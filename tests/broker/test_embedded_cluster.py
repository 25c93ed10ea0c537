"""A cluster of embedded brokers: leaders, deaths, and durability."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaError

from downspout.broker import OFFSETS_TOPIC, EmbeddedCluster, partition_of_group
from downspout.clock import SYSTEM_CLOCK
from downspout.errors import BrokerError, ConfigError
from downspout.kafka import KafkaCluster, OffsetAndMetadata, TopicPartition, cluster_for
from downspout.system import loopback
from tests.kafka.broker_stage import read_whole

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = 3
GROUP = "readers"


@pytest.fixture
def kafka(three_brokers: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    """Three brokers with a topic; those that a test has killed are started again after it, also when it fails."""
    cluster_for(three_brokers.bootstrap).ensure_topic("kept", PARTITIONS)
    yield three_brokers
    three_brokers.start()


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; what raises meanwhile does not hold."""
    end = SYSTEM_CLOCK.monotonic() + 120
    while True:
        try:
            if holds():
                return
        except (BrokerError, KafkaError):
            pass
        assert SYSTEM_CLOCK.monotonic() < end, "it does not happen"
        SYSTEM_CLOCK.sleep(0.2)


def write(kafka: EmbeddedCluster, values: list[bytes], partition: int) -> None:
    producer = cluster_for(kafka.bootstrap).producer()
    for value in values:
        producer.send("kept", key=None, value=value, partition=partition)
    producer.flush(60)
    producer.close()


def read(kafka: EmbeddedCluster, partition: int, count: int) -> list[bytes | None]:
    """Return all values of a partition once its log holds so many."""
    found: list[bytes | None] = []

    def is_there() -> bool:
        found[:] = [
            record.value for record in read_whole(cluster_for(kafka.bootstrap), [TopicPartition("kept", partition)])
        ]
        return len(found) >= count

    wait_until(is_there)
    return found


def agreed_leader(kafka: EmbeddedCluster) -> int | None:
    """Return the node that leads the first partition, by the word of every node that lives; None: they do not agree.

    A node that has had no time to run for some seconds may have been replaced as leader without knowing it. It names
    itself, and answers for a log that ends where it ended then. So the word of one node is not enough.
    """
    named = {KafkaCluster(kafka.node(number).bootstrap).leaders("kept").get(0) for number in kafka.alive}
    return named.pop() if len(named) == 1 else None


@pytest.mark.sweep
def test_what_was_acknowledged_outlives_its_leader(kafka: EmbeddedCluster) -> None:
    """After kill -9 of a partition's leader another node leads it, has all records, and takes new ones."""
    before = [b"%d" % number for number in range(500)]
    write(kafka, before, 0)
    wait_until(lambda: agreed_leader(kafka) in (1, 2, 3))
    leader = kafka.leader("kept", 0)
    assert leader is not None
    assert kafka.node(leader).kill()
    assert sorted(kafka.alive) == sorted({1, 2, 3} - {leader})
    wait_until(lambda: agreed_leader(kafka) in {1, 2, 3} - {leader})
    assert read(kafka, 0, 500) == before
    write(kafka, [b"more"], 0)
    kafka.start()
    assert kafka.alive == [1, 2, 3]
    assert read(kafka, 0, 501) == [*before, b"more"]


@pytest.mark.sweep
def test_the_node_that_keeps_a_group_s_commits_is_its_coordinator(kafka: EmbeddedCluster) -> None:
    """The coordinator is the one that Kafka names, and when it is killed another one has the commits."""
    cluster = KafkaCluster(kafka.bootstrap)
    consumer = cluster.consumer(group=GROUP)
    tp = TopicPartition("kept", 1)
    consumer.assign([tp])
    consumer.commit({tp: OffsetAndMetadata(7, "told", -1)})
    consumer.close()
    with cluster._admin() as admin:

        def named() -> dict[str, int]:
            groups = (GROUP, "a", "ü𐀀", "flights")
            return {group: admin._manager.run(admin._find_coordinator_id, group) for group in groups}

        def agree() -> bool:
            told = named()
            return {group: kafka.coordinator(group) for group in told} == told

        wait_until(agree)  # nodes hear of a new leader one after the other, and one may have come back a moment ago
        victim = named()[GROUP]
    kafka.node(victim).kill()
    found = cluster.group_offsets(GROUP)  # asked before anybody has noticed
    while tp not in found:  # a coordinator may answer before it knows that others have the last commit
        found = cluster.group_offsets(GROUP)
    assert found[tp].offset == 7
    wait_until(lambda: kafka.coordinator(GROUP) not in (None, victim))


def test_nobody_leads_what_is_not_there(kafka: EmbeddedCluster) -> None:
    """A topic or a partition that does not exist has no leader."""
    assert KafkaCluster(kafka.bootstrap).leaders("nothing") == {}
    assert kafka.leader("nothing", 0) is None
    assert kafka.leader("kept", PARTITIONS) is None


@pytest.mark.sweep
def test_the_how_to_runs(kafka: EmbeddedCluster, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "test-a-topology.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), names)
    assert names["EmbeddedCluster"] is EmbeddedCluster
    names["EmbeddedCluster"] = lambda directory, nodes: nullcontext(kafka) if nodes == len(kafka.nodes) else None
    names["test_my_topology_outlives_a_leader"](tmp_path)


def test_internal_topics_are_replicated(kafka: EmbeddedCluster) -> None:
    """Topics, and Kafka's own of commits, have a replica on each node, and writes need two of them."""
    with KafkaCluster(kafka.bootstrap)._admin() as admin:
        found = admin.describe_topics(["kept", OFFSETS_TOPIC])
    replicas = {tuple(sorted(part["replica_nodes"])) for topic in found for part in topic["partitions"]}
    assert replicas == {(1, 2, 3)}
    properties = (kafka.node(1).directory / "server.properties").read_text(encoding="latin-1")
    assert "min.insync.replicas=2" in properties


def test_a_second_cluster_on_the_directory_is_refused(kafka: EmbeddedCluster) -> None:
    """A directory has one cluster: another start says who has it, and disturbs nobody."""
    with pytest.raises(BrokerError, match="in use"):
        EmbeddedCluster(kafka.directory).start()
    assert kafka.alive == [1, 2, 3]
    assert kafka.leader("kept", 0) is not None


@pytest.mark.sweep
def test_a_cluster_goes_on_where_it_was(tmp_path: Path) -> None:
    """After kill -9 of all nodes, with a port taken meanwhile, the same cluster comes back with its records."""
    kafka = EmbeddedCluster(tmp_path / "kafka", nodes=2)
    try:
        kafka.start()
        cluster_for(kafka.bootstrap).ensure_topic("kept", 1)
        write(kafka, [b"x"], 0)
        ids = {node.broker.cluster_id for node in kafka.nodes.values()}
        port = kafka.node(2).port
        assert port is not None
        kafka.kill()
        assert kafka.alive == []
        kafka.stop()
        with socket.socket() as rival:
            rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rival.bind((loopback.HOST, port))
            rival.listen()
            again = EmbeddedCluster(tmp_path / "kafka", nodes=2)
            again.start()
            assert again.node(2).port != port
            assert {node.broker.cluster_id for node in again.nodes.values()} == ids
            assert len(ids) == 1
            assert read(again, 0, 1) == [b"x"]
            again.stop()
            assert again.alive == []
    finally:
        kafka.stop()


def test_a_node_that_cannot_start_takes_the_others_with_it(tmp_path: Path) -> None:
    """A start that fails leaves no process behind."""
    kafka = EmbeddedCluster(tmp_path / "kafka", nodes=2, properties={"num.io.threads": "none"})
    with pytest.raises(BrokerError, match=r"num\.io\.threads"):
        kafka.start()
    assert kafka.alive == []


def test_a_cluster_has_a_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one node, not 0"):
        EmbeddedCluster(tmp_path, nodes=0)
    with pytest.raises(BrokerError, match="no node 1"):
        EmbeddedCluster(tmp_path).node(1)


def test_a_group_falls_to_the_partition_that_kafka_computes() -> None:
    """Java's hash, with its sign taken away, also for the name whose hash has no positive twin."""
    assert partition_of_group("polygenelubricants", 50) == 0  # its hash is -2^31
    assert partition_of_group("", 50) == 0
