"""Offsets in a real ZooKeeper: the one that a Storm node brings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from downspout.cli import main
from downspout.kafka import TopicPartition
from downspout.offsets import Location, Operation, SpoutNode, location_of, open_nodes, read_state
from downspout.spout import OffsetStoreError
from downspout.storm import HOST
from downspout.testing import FakeKafka
from tests.offsets.store_contract import P0, P1
from tests.offsets.zookeeper_contract import OLD, OldSpout, OpenNodes, ZooKeeperContract, put
from tests.spout.spout_driver import TOPIC, Driver, fill
from tests.storm.support import Place

pytestmark = pytest.mark.storm


@pytest.fixture
def hosts(storm: Place) -> str:
    return f"{HOST}:{storm.node.ports().zookeeper}"


@pytest.fixture
def root() -> str:
    return f"/downspout-tests/{uuid.uuid4().hex}"


@pytest.fixture
def open_nodes_(hosts: str, root: str) -> Iterator[OpenNodes]:
    with ExitStack() as stack:
        made = [stack.enter_context(closing(open_nodes(Location(hosts, ""))))]
        made[0].ensure(root)
        yield lambda: stack.enter_context(closing(open_nodes(Location(hosts, ""))))


class TestReal(ZooKeeperContract):
    """All that holds of the tree in memory holds here."""

    @pytest.fixture
    def open_nodes(self, open_nodes_: OpenNodes) -> OpenNodes:
        return open_nodes_


def test_without_the_right_nothing_is_read_or_written(open_nodes_: OpenNodes, hosts: str, root: str) -> None:
    """A node with an ACL is an error that names it, also in a transaction; its user reads and writes it."""
    owner = open_nodes(location_of(f"zookeeper://shop@{hosts}{root}", "test"), "s3cret")
    with closing(owner):
        owner.ensure(f"{root}/s/users")
        owner.transact([Operation("create", f"{root}/s/users/partition_0", OLD.to_json())])
        nodes = open_nodes_()
        for ask in (
            lambda: nodes.get(f"{root}/s/users/partition_0"),
            lambda: nodes.transact([Operation("set", f"{root}/s/users/partition_0", b"")]),
            lambda: nodes.children(f"{root}/s/users"),
        ):
            with pytest.raises(OffsetStoreError, match=f"no permission to use {root}/s/users") as caught:
                ask()
            assert not caught.value.passes
            assert "s3cret" not in str(caught.value)
        node = owner.get(f"{root}/s/users/partition_0")
        assert node is not None
        assert node.data == OLD.to_json()


@pytest.mark.fake_only("the ZooKeeper is real here; the spout on a real broker has tests of its own")
def test_a_spout_goes_on_behind_the_old_one_and_hands_back(open_nodes_: OpenNodes, hosts: str, root: str) -> None:
    """It starts at the old spout's node, commits to it in the old form, and the group in Kafka has a copy."""
    kafka = FakeKafka()
    kafka.create_topic(TOPIC, 2)
    fill(kafka, 10)
    nodes = open_nodes_()
    put(nodes, f"{root}/readers/partition_0", SpoutNode(TopicPartition(TOPIC, 0), 6, "old-1", "old").to_json())
    driver = Driver(kafka, offset_store=f"zookeeper://{hosts}{root}")
    try:
        assert driver.run() == [6, 7, 8, 9]
        driver.ack([6, 7, 9])
        driver.commit()
        assert read_state(nodes, f"{root}/readers").offsets == {P0: 8, P1: 0}
        driver.ack([8])
        driver.commit()
        assert read_state(nodes, f"{root}/readers").offsets == {P0: 10, P1: 0}
        assert kafka.committed("readers")[P0].offset == 10
        fill(kafka, 3, 1)
        assert driver.run() == [0, 1, 2]
        driver.ack_all()
        driver.commit()
        assert OldSpout(nodes, f"{root}/readers", TOPIC).read() == {0: 10, 1: 3}
    finally:
        driver.spout.close()


def test_offsets_are_imported(
    storm: Place, open_nodes_: OpenNodes, hosts: str, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command reads the nodes, and the group in a real Kafka stands there afterwards."""
    topic = f"old-{uuid.uuid4().hex[:8]}"
    cluster = storm.cluster
    cluster.ensure_topic(topic, 1)
    put(open_nodes_(), f"{root}/{topic}/partition_0", SpoutNode(TopicPartition(topic, 0), 0, "old-1").to_json())
    options = ["--bootstrap", storm.kafka.bootstrap, "--watch", "1s", "--old-start", "latest", "--yes"]
    assert main(["offsets", "import", topic, "--from-zookeeper", f"{hosts}{root}/{topic}", *options]) == 0
    assert "1 partition moved" in capsys.readouterr().out
    assert {tp: found.offset for tp, found in cluster.group_offsets(topic).items()} == {TopicPartition(topic, 0): 0}
