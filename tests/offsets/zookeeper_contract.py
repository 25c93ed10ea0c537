"""The contract of ZooKeeper and of its content: for the tree in memory and for a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from downspout.kafka import TopicPartition
from downspout.offsets import Conflict, Location, Nodes, Operation, SpoutNode, read_state
from downspout.offsets.stores.zookeeper_store import ZooKeeperStore
from downspout.spout import StaleOwnerError, StoreContext, StoredOffset
from tests.offsets.store_contract import P0, P1, Open, StoreContract

OpenNodes = Callable[[], Nodes]
OLD = SpoutNode(P0, 918, "shop-7-1600000000", "shop", ("kafka1", 9092))


def put(nodes: Nodes, path: str, data: bytes) -> None:
    if nodes.get(path) is None:
        nodes.ensure(path)
    nodes.transact([Operation("set", path, data)])


class OldSpout:
    """What Storm's spout for Kafka 0.8 does with the nodes of one topic (``PartitionManager``, ``ZkState``).

    It reads ``path/partition_N`` as JSON, and of that the offset and the topology's id.
    """

    def __init__(self, nodes: Nodes, path: str, topic: str) -> None:
        self._nodes, self._path, self._topic = nodes, path, topic

    def read(self) -> dict[int, int]:
        """Return by partition where it would go on."""
        found = {}
        for name in self._nodes.children(self._path):
            node = self._nodes.get(f"{self._path}/{name}")
            assert node is not None
            values = json.loads(node.data)
            assert isinstance(values["topology"]["id"], str)
            found[int(name.removeprefix("partition_"))] = values["offset"]
        return found

    def write(self, number: int, offset: int) -> None:
        """Commit."""
        tp = TopicPartition(self._topic, number)
        put(self._nodes, f"{self._path}/partition_{number}", replace(OLD, tp=tp, offset=offset).to_json())


class ZooKeeperContract(StoreContract):
    """A module has the fixtures ``open_nodes`` and ``root``: a path of each test's own."""

    @pytest.fixture
    def open_bare(self, open_nodes: OpenNodes, root: str) -> Open:
        return lambda group: self.store(open_nodes(), root, group)

    @staticmethod
    def store(nodes: Nodes, root: str, group: str = "g", topic: str = "") -> ZooKeeperStore:
        """Return the store of a group in a topology of one id, whose spout reads ``topic`` by name."""
        return ZooKeeperStore(nodes, Location("zk:2181", root), StoreContext(group, "shop", "shop-1", topic=topic))

    # --- the tree ---

    def test_a_transaction_is_all_or_nothing(self, open_nodes: OpenNodes, root: str) -> None:
        """One step that does not hold undoes the others; each kind of step sees versions."""
        nodes = open_nodes()
        nodes.ensure(f"{root}/a")
        nodes.transact([Operation("create", f"{root}/b", b"1"), Operation("set", f"{root}/a", b"2", 0)])
        assert (nodes.get(f"{root}/a"), nodes.get(f"{root}/b")) == ((b"2", 1), (b"1", 0))
        for wrong in (
            Operation("set", f"{root}/a", b"3", 0),
            Operation("check", f"{root}/a", version=7),
            Operation("delete", f"{root}/nowhere"),
            Operation("create", f"{root}/b"),
            Operation("create", f"{root}/no/parent"),
        ):
            with pytest.raises(Conflict):
                nodes.transact([Operation("set", f"{root}/b", b"9"), wrong])
        assert nodes.get(f"{root}/b") == (b"1", 0)
        nodes.transact([Operation("delete", f"{root}/a", version=1), Operation("check", f"{root}/b", version=0)])
        assert nodes.children(root) == ["b"]
        assert (nodes.get(f"{root}/a"), nodes.children(f"{root}/a")) == (None, [])

    # --- the store ---

    def test_a_store_goes_on_where_the_old_spout_stood(self, open_nodes: OpenNodes, root: str) -> None:
        """Its node is read, claimed and written in its own form, at its own path."""
        nodes = open_nodes()
        put(nodes, f"{root}/g/partition_0", OLD.to_json())
        store = self.store(nodes, root)
        assert store.load([P0]) == {P0: StoredOffset(918, "", 0)}
        epoch = store.claim([P0])[P0].epoch
        store.store({P0: StoredOffset(1_000, "m", epoch)})
        node = nodes.get(f"{root}/g/partition_0")
        assert node is not None
        assert node.data == replace(OLD, offset=1_000, topology_id="shop-1", broker=("", 0)).to_json()
        assert store.list() == {P0: StoredOffset(1_000, "m", epoch)}
        assert [(tp, found) for tp, found in read_state(nodes, f"{root}/g").offsets.items()] == [(P0, 1_000)]

    def test_a_new_group_has_its_topics_in_the_path(self, open_nodes: OpenNodes, root: str) -> None:
        """So two topics never share a node, and what is there of another topic is left alone."""
        nodes, other = open_nodes(), TopicPartition("users", 0)
        put(nodes, f"{root}/g/partition_0", OLD.to_json())
        store = self.store(nodes, root)
        epoch = store.claim([other])[other].epoch
        store.store({other: StoredOffset(3, "", epoch)})
        assert nodes.children(f"{root}/g") == ["partition_0", "users"]
        assert {tp: found.offset for tp, found in store.list().items()} == {P0: 918, other: 3}

    def test_a_new_partition_is_put_where_the_old_spout_looks(self, open_nodes: OpenNodes, root: str) -> None:
        """Beside bare nodes of its topic a node is bare, also if an empty or foreign one has its name."""
        nodes, p2 = open_nodes(), TopicPartition(P0.topic, 2)
        old_spout = OldSpout(nodes, f"{root}/g", P0.topic)
        old_spout.write(P0.partition, 918)
        put(nodes, f"{root}/g/partition_2", b"foreign")
        store = self.store(nodes, root)
        taken = store.claim([P0, P1, p2])
        assert {tp: found.offset for tp, found in taken.items()} == {P0: 918, P1: None, p2: None}
        offsets = {P0: 1_000, P1: 11, p2: 22}
        store.store({tp: StoredOffset(offset, "", taken[tp].epoch) for tp, offset in offsets.items()})
        assert old_spout.read() == {tp.partition: offset for tp, offset in offsets.items()}
        assert nodes.children(f"{root}/g") == ["partition_0", "partition_1", "partition_2"]

    def test_the_old_spout_takes_over_and_is_taken_over_again(self, open_nodes: OpenNodes, root: str) -> None:
        """Each goes on where the other stopped, also in a partition that only one of them has seen."""
        nodes = open_nodes()
        old_spout = OldSpout(nodes, f"{root}/g", P0.topic)
        old_spout.write(P0.partition, 918)
        for turn in range(1, 4):
            store = self.store(open_nodes(), root)
            taken = store.claim([P0, P1])
            assert taken[P0].offset == (918 if turn == 1 else turn * 1_000)
            assert taken[P1].offset == (None if turn == 1 else turn * 100)
            store.store({tp: StoredOffset(turn * 10 + tp.partition, "", taken[tp].epoch) for tp in taken})
            assert old_spout.read() == {0: turn * 10, 1: turn * 10 + 1}
            old_spout.write(0, (turn + 1) * 1_000)
            old_spout.write(1, (turn + 1) * 100)

    @pytest.mark.parametrize(
        ("reads", "is_bare"), [("orders", True), ("", False)], ids=["one topic by name", "several topics"]
    )
    def test_a_new_group_has_the_form_of_its_spout(
        self, open_nodes: OpenNodes, root: str, reads: str, is_bare: bool
    ) -> None:
        """The old spout looks for bare nodes if it reads one topic by name, and below topics if it reads several."""
        nodes = open_nodes()
        store = self.store(nodes, root, topic=reads)
        taken = store.claim([P0, P1])
        store.store({tp: StoredOffset(7 + tp.partition, "", found.epoch) for tp, found in taken.items()})
        assert nodes.children(f"{root}/g") == (["partition_0", "partition_1"] if is_bare else [P0.topic])
        path = f"{root}/g" if is_bare else f"{root}/g/{P0.topic}"
        assert OldSpout(nodes, path, P0.topic).read() == {0: 7, 1: 8}
        # What was begun in one form goes on in it, whatever the settings say later.
        again = self.store(open_nodes(), root, topic="" if reads else P0.topic)
        p2 = TopicPartition(P0.topic, 2)
        again.store({p2: StoredOffset(9, "", again.claim([p2])[p2].epoch)})
        assert OldSpout(nodes, path, P0.topic).read() == {0: 7, 1: 8, 2: 9}

    def test_an_old_spout_that_still_writes_is_noticed(self, open_nodes: OpenNodes, root: str) -> None:
        """It knows nothing about epochs, so the node's version tells."""
        nodes = open_nodes()
        put(nodes, f"{root}/g/partition_0", OLD.to_json())
        store = self.store(nodes, root)
        epoch = store.claim([P0])[P0].epoch
        store.store({P0: StoredOffset(919, "", epoch)})
        store.store({P0: StoredOffset(920, "", epoch)})
        put(nodes, f"{root}/g/partition_0", replace(OLD, offset=925).to_json())
        with pytest.raises(StaleOwnerError, match="somebody else"):
            store.store({P0: StoredOffset(930, "", epoch)})
        assert store.load([P0])[P0].offset == 925

    def test_of_owners_that_claim_at_once_each_has_an_epoch_of_its_own(self, open_nodes: OpenNodes, root: str) -> None:
        """The one that meets another's transaction begins anew; only the last one may store."""
        stores = [self.store(open_nodes(), root) for _ in range(4)]
        with ThreadPoolExecutor(len(stores)) as pool:
            claimed = list(pool.map(lambda store: store.claim([P0, P1]), stores))
        epochs = [found[P0].epoch for found in claimed]
        assert sorted(epochs) == [1, 2, 3, 4]
        assert epochs == [found[P1].epoch for found in claimed]
        for store, epoch in zip(stores, epochs, strict=True):
            if epoch == max(epochs):
                store.store({P0: StoredOffset(5, "", epoch), P1: StoredOffset(6, "", epoch)})
            else:
                with pytest.raises(StaleOwnerError):
                    store.store({P0: StoredOffset(1, "", epoch), P1: StoredOffset(1, "", epoch)})
        assert {tp: found.offset for tp, found in stores[0].list().items()} == {P0: 5, P1: 6}

    # --- what the old spouts keep ---

    def test_both_forms_of_paths_are_read(self, open_nodes: OpenNodes, root: str) -> None:
        """partition_N, and with wildcard topics the topic above it; what is malformed is no node, and is named."""
        nodes = open_nodes()
        put(nodes, f"{root}/s/partition_0", OLD.to_json())
        put(nodes, f"{root}/s/partition_1", b"")
        put(nodes, f"{root}/s/partition_2", b"[7]")
        put(nodes, f"{root}/s/users/partition_3", replace(OLD, tp=TopicPartition("users", 3), offset=5).to_json())
        put(nodes, f"{root}/s/users/partition_4", OLD.to_json())
        found = read_state(nodes, f"{root}/s")
        assert found.offsets == {P0: 918, TopicPartition("users", 3): 5}
        assert [note.partition(" is ignored: ")[::2] for note in found.notes] == [
            (f"{root}/s/partition_1", "it is empty"),
            (f"{root}/s/partition_2", "it is not a JSON object: b'[7]'"),
            (f"{root}/s/users/partition_4", "it is of orders[0]"),
        ]

    def test_trident_goes_on_behind_what_is_committed(self, open_nodes: OpenNodes, root: str) -> None:
        """With transaction 6 the next to be committed, 5 is the last that is; both spouts' metadata are read."""
        nodes = open_nodes()
        put(nodes, f"{root}/t/coordinator/currtx", b"6")
        put(nodes, f"{root}/t/coordinator/currattempts", b'{"6":1}')
        put(nodes, f"{root}/t/coordinator/meta/6", b"{}")
        old = '{"offset":%d,"nextOffset":%d,"topic":"orders","partition":0,"broker":{"host":"h","port":1}}'
        for number, (start, end) in {4: (0, 10), 5: (10, 20), 6: (20, 30)}.items():
            put(nodes, f"{root}/t/user/partition_0/{number}", (old % (start, end)).encode())
        put(nodes, f"{root}/t/user/orders@1/5", b'{"firstOffset":3,"lastOffset":7,"topologyId":"x"}')
        put(nodes, f"{root}/t/user/orders@2/6", b'{"firstOffset":4,"lastOffset":9,"topologyId":"x"}')
        put(nodes, f"{root}/t/user/orders/4/5", b'{"firstOffset":3,"lastOffset":7,"topologyId":"x"}')  # Storm 1
        put(nodes, f"{root}/t/user/orders@3/5", b"null")
        found = read_state(nodes, f"{root}/t")
        assert found.offsets == {P0: 20, P1: 8, TopicPartition("orders", 2): 4, TopicPartition("orders", 4): 8}
        assert found.notes[0].startswith('transaction 6 is the next to be committed, {"6":1} attempts')
        assert found.notes[1].startswith(f"{root}/t/user/orders@3/5 is ignored")
