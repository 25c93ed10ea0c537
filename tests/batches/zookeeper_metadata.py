"""The contract of batches' metadata in ZooKeeper: for the tree in memory and for a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from downspout.batches import BatchRange, BatchStoreContext, BatchStoreError, CoordinatorState, ZooKeeperMetadata
from downspout.kafka import TopicPartition
from downspout.offsets import Location, Nodes, Operation, read_state
from tests.batches.metadata_contract import MINE, P0, P1, MetadataContract, Open
from tests.offsets.zookeeper_contract import put

OpenNodes = Callable[[], Nodes]
CONTEXT = BatchStoreContext("wc", "wc", MINE)
OLD = {"offset": 20, "nextOffset": 30, "instanceId": "i", "partition": 0, "topic": "lines",
       "broker": {"host": "kafka1", "port": 9092}, "topology": {"name": "wc", "id": "old-1"}}  # fmt: skip


class ZooKeeperMetadataContract(MetadataContract):
    """A module has the fixture ``open_nodes``; ``root`` may be overridden: a path of each test's own."""

    @pytest.fixture
    def root(self) -> str:
        return ""

    @pytest.fixture
    def base(self, root: str) -> str:
        return f"{root or '/transactional'}/wc"

    @pytest.fixture
    def open_bare(self, open_nodes: OpenNodes, root: str) -> Open:
        return lambda context: self.store(open_nodes(), root, context)

    @staticmethod
    def store(nodes: Nodes, root: str, context: BatchStoreContext = CONTEXT) -> ZooKeeperMetadata:
        return ZooKeeperMetadata(nodes, Location("zk:2181", root), context)

    def test_it_is_written_as_trident_does(self, open_nodes: OpenNodes, root: str, base: str) -> None:
        """Paths and JSON are those of Storm's Trident, key by key, and the reader for imports understands them."""
        nodes = open_nodes()
        store = self.store(nodes, root)
        epoch = store.claim(MINE)
        store.save_coordinator(epoch, CoordinatorState(4, {4: 1, 5: 0}))
        store.save_partitions(epoch, 4, [["lines", 0]])
        store.save_ranges(epoch, 3, {P0: BatchRange(5, 9, MINE)})
        written = {
            path: (nodes.get(f"{base}/{path}") or (b"", 0))[0]
            for path in ("coordinator/currtx", "coordinator/currattempts", "coordinator/meta/4", "user/lines@0/3")
        }
        assert {path: data.decode() for path, data in written.items()} == {
            "coordinator/currtx": "4",
            "coordinator/currattempts": '{"4":1,"5":0}',
            "coordinator/meta/4": '[{"topic":"lines","partition":0}]',
            "user/lines@0/3": '{"firstOffset":5,"lastOffset":9,"topologyId":"' + MINE + '"}',
        }
        assert read_state(nodes, base).offsets == {TopicPartition("lines", 0): 10}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("lines@0", {"firstOffset": 20, "lastOffset": 29, "topologyId": "old-1"}),  # Storm 2
            ("lines/0", {"firstOffset": 20, "lastOffset": 29, "topologyId": "old-1"}),  # Storm 1
            ("partition_0", OLD),  # Kafka 0.8
            ("lines/partition_0", OLD),  # the same, with wildcard topics
        ],
    )
    def test_what_trident_has_left_is_taken_over(
        self, open_nodes: OpenNodes, root: str, base: str, name: str, value: dict[str, Any]
    ) -> None:
        """Each form is read and gone on from; what is stored next is today's form, and the old one goes in time."""
        nodes = open_nodes()
        put(nodes, f"{base}/coordinator/currtx", b"3")
        put(nodes, f"{base}/coordinator/currattempts", b'{"3":2}')
        put(nodes, f"{base}/user/{name}/2", json.dumps(value).encode())
        store = self.store(nodes, root)
        epoch = store.claim(MINE)
        assert store.load_coordinator() == CoordinatorState(3, {3: 2})
        assert store.load_ranges([P0, P1]) == {P0: {2: BatchRange(20, 29, "old-1")}}
        store.save_ranges(epoch, 3, {P0: BatchRange(30, 34, MINE)})
        assert store.load_ranges([P0]) == {P0: {2: BatchRange(20, 29, "old-1"), 3: BatchRange(30, 34, MINE)}}
        store.delete_below(epoch, 3, [P0])
        assert store.load_ranges([P0]) == {P0: {3: BatchRange(30, 34, MINE)}}
        assert nodes.children(f"{base}/user/{name}") == (["3"] if name == "lines@0" else [])

    def test_a_node_of_kafka_0_8_counts_for_the_topic_that_it_names(
        self, open_nodes: OpenNodes, root: str, base: str
    ) -> None:
        """Its path has no topic. So the state of one is none of another, and is not deleted with another's."""
        nodes = open_nodes()
        for number, txid, change in ((0, 2, {}), (0, 3, {"topic": "other"}), (1, 2, {"partition": 7})):
            put(nodes, f"{base}/user/partition_{number}/{txid}", json.dumps({**OLD, **change}).encode())
        store = self.store(nodes, root)
        assert store.load_ranges([P0, P1]) == {P0: {2: BatchRange(20, 29, "old-1")}}
        store.delete_below(store.claim(MINE), 9, [P0, P1])
        assert nodes.children(f"{base}/user/partition_0") == ["3"]
        assert nodes.children(f"{base}/user/partition_1") == ["2"]

    def test_a_transaction_s_partitions_in_javas_words_are_none(
        self, open_nodes: OpenNodes, root: str, base: str
    ) -> None:
        """The spout of 0.8 stored what Java makes of its object as a text: they are asked for again."""
        nodes = open_nodes()
        words = b"GlobalPartitionInformation{topic=lines, partitionMap={0=kafka1:9092}}"
        put(nodes, f"{base}/coordinator/meta/3", words)
        assert self.store(nodes, root).load_partitions(3) is None

    def test_an_empty_batch_of_tridents_holds_no_record(self, open_nodes: OpenNodes, root: str, base: str) -> None:
        """Trident writes a batch without records as one whose first and last offset are the last one before it."""
        nodes = open_nodes()
        for txid, first, last in ((1, 5, 9), (2, 9, 9), (3, 9, 9), (4, 10, 10)):
            value = {"firstOffset": first, "lastOffset": last, "topologyId": "old-1"}
            put(nodes, f"{base}/user/lines@0/{txid}", json.dumps(value).encode())
        found = self.store(nodes, root).load_ranges([P0])[P0]
        assert [found[txid][:2] for txid in sorted(found)] == [(5, 9), (10, 9), (10, 9), (10, 10)]

    @pytest.mark.parametrize(
        ("path", "data"),
        [("user/lines@0/3", b"{}"), ("coordinator", b'"x"'), ("coordinator/downspout", b"7")],
    )
    def test_foreign_content_is_named(
        self, open_nodes: OpenNodes, root: str, base: str, path: str, data: bytes
    ) -> None:
        """A node that is out of form is an error with its path."""
        nodes = open_nodes()
        put(nodes, f"{base}/{path}" if path != "coordinator" else f"{base}/{path}/currtx", data)
        store = self.store(nodes, root)
        with pytest.raises(BatchStoreError, match=path):
            print(store.load_ranges([P0]), store.load_coordinator(), store.claim(MINE))

    def test_a_lost_session_gives_no_other_topology_the_id(self, open_nodes: OpenNodes, root: str, base: str) -> None:
        """A coordinator whose session was over holds the id again with its next write."""
        nodes, others = open_nodes(), open_nodes()
        other = self.store(others, root, BatchStoreContext("wc", "other"))
        store = self.store(nodes, root)
        epoch = store.claim(MINE)
        lease = f"{base}/coordinator/downspout/lease"
        others.transact([Operation("delete", lease)])
        store.save_coordinator(epoch, CoordinatorState(2, {}))
        with pytest.raises(BatchStoreError, match="is in use by topology wc"):
            other.claim("other-1-1")
