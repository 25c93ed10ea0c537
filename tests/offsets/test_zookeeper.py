from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout.errors import BrokerError, ConfigError, MissingExtraError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.offsets import (
    Location,
    Nodes,
    Place,
    SpoutNode,
    TargetKind,
    location_of,
    open_nodes,
    read_state,
    zookeeper,
)
from downspout.offsets.stores.zookeeper_store import open_zookeeper_store
from downspout.offsets.zookeeper import places_of, read_node, refuse_changes
from downspout.spout import OffsetStoreError, StoreContext, StoredOffset
from downspout.testing import FakeKafka
from tests.offsets.fake_nodes import FakeNodes
from tests.offsets.store_contract import P0, P1
from tests.offsets.zookeeper_contract import OLD, OpenNodes, ZooKeeperContract, put
from tests.spark.handover_support import Command
from tests.spout.spout_driver import TOPIC, Driver, fill

NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)


class TestInMemory(ZooKeeperContract):
    @pytest.fixture
    def root(self) -> str:
        return "/test"

    @pytest.fixture
    def open_nodes(self) -> OpenNodes:
        first = FakeNodes()
        first.ensure("/test")
        return lambda: FakeNodes(first.tree)


@given(NAMES, st.integers(0, 10**6), st.integers(0, 2**62), st.text(max_size=20), st.text(max_size=20))
def test_a_node_is_read_as_it_was_written(topic: str, number: int, offset: int, name: str, host: str) -> None:
    node = SpoutNode(TopicPartition(topic, number), offset, name, name, (host, 9092))
    assert read_node(node.to_json(), number) == read_node(node.to_json(), number, topic) == node


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["topology", "offset", "partition", "topic", "id", "broker"]), inner, max_size=5
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_anything_else_is_no_node_and_no_crash(data: bytes) -> None:
    """Foreign content is a ValueError with a reason, never another error."""
    said = ""
    try:
        assert read_node(data, 0).tp.partition == 0
    except ValueError as error:
        said = str(error)
    assert not said or said.startswith("it")


@pytest.mark.parametrize("key", ["topology", "offset"])
def test_a_node_that_lacks_a_key_is_none(key: str) -> None:
    """The old spout would not go by it either; the topic may be in the path."""
    values = json.loads(OLD.to_json())
    del values[key]
    with pytest.raises(ValueError, match=r"it does not name a topology|its offset is"):
        read_node(json.dumps(values).encode(), 0)
    del values["topic"]
    values |= {"topology": {"id": "x"}, "offset": 1}
    assert read_node(json.dumps(values).encode(), 0, "orders").tp == P0
    with pytest.raises(ValueError, match="it does not name a topic"):
        read_node(json.dumps(values).encode(), 0)


@pytest.mark.parametrize(
    ("offset", "behind_max", "starts_anew"),
    [(7, None, False), (0, None, True), (-1, None, True), (50, 50, False), (49, 50, True), (120, 0, False)],
)
def test_the_rules_of_the_old_start(offset: int, behind_max: int | None, starts_anew: bool) -> None:
    """No more than maxOffsetBehind behind the start, and above 0: its offset; else the start, and a note says so."""
    places, notes = places_of({P0: offset}, Place(TargetKind.LATEST), {P0: 100}, behind_max)
    assert (places[P0].kind is TargetKind.LATEST, len(notes)) == (starts_anew, starts_anew)


@given(st.lists(st.booleans(), max_size=6), st.booleans())
def test_lost_answers_do_no_harm(lost: list[bool], progresses: bool) -> None:
    """Whether a transaction was done before its answer was lost or not: the owner stores again, and is no stale one."""
    nodes = FakeNodes()
    store = ZooKeeperContract.store(nodes, "/test")
    epoch = store.claim([P0])[P0].epoch
    store.store({P0: StoredOffset(1, "", epoch)})
    nodes.lost.extend(lost)
    offset = 1
    while nodes.lost:
        offset += progresses
        with suppress(OffsetStoreError):
            store.store({P0: StoredOffset(offset, "m", epoch)})
    store.store({P0: StoredOffset(offset + 1, "m", epoch)})
    assert store.list() == {P0: StoredOffset(offset + 1, "m", epoch)}


def test_after_a_lost_claim_the_next_one_is_higher() -> None:
    """Nobody knows of an epoch whose answer was lost, so it is not given again."""
    nodes = FakeNodes()
    store = ZooKeeperContract.store(nodes, "/test")
    nodes.lost.append(True)
    with pytest.raises(OffsetStoreError):
        store.claim([P0])
    assert store.claim([P0])[P0].epoch == 2


def test_a_command_that_moves_a_node_leaves_it_to_its_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spout of old starts anew at a node of another topology."""
    nodes = FakeNodes()
    monkeypatch.setattr("downspout.offsets.stores.zookeeper_store.open_nodes", lambda location, password=None: nodes)
    for context in (StoreContext("g", "shop", "shop-7"), StoreContext("g")):
        store = open_zookeeper_store("zookeeper://zk:1/x", context)
        epoch = store.claim([P0])[P0].epoch
        store.store({P0: StoredOffset(epoch, "", epoch)})
    (path,) = [path for path in nodes.tree if path.endswith("partition_0")]
    found = read_node(nodes.tree[path].data, 0)
    assert (found.offset, found.topology_id, found.topology_name) == (2, "shop-7", "shop")


@pytest.mark.fake_only("nodes in memory; tests/storm/test_zookeeper.py has a spout on a real ZooKeeper")
@pytest.mark.parametrize("topics", [[TOPIC], [TOPIC, "users"]], ids=["one", "two"])
def test_a_spout_of_one_topic_begins_where_the_old_one_would_look(
    bare_kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, topics: list[str]
) -> None:
    """With several topics they are in the path, as that spout's wildcard topics are."""
    nodes = FakeNodes()
    monkeypatch.setattr("downspout.offsets.stores.zookeeper_store.open_nodes", lambda location, password=None: nodes)
    for topic in topics:
        bare_kafka.create_topic(topic, 2)
    fill(bare_kafka, 3, 0)
    driver = Driver(bare_kafka, topics=topics, offset_store="zookeeper://zk:1/x")
    try:
        driver.ack(driver.run())
        driver.commit()
    finally:
        driver.spout.close()
    path = "/x/readers/partition_0" if len(topics) == 1 else f"/x/readers/{TOPIC}/partition_0"
    assert read_node(nodes.tree[path].data, 0).offset == 3


# --- bad input ---


@pytest.mark.parametrize("text", ["", "zk:1/../x", "zk1:2181,,zk2/x", "http://zk/x", "user:secret@zk:1/x"])
def test_a_location_that_is_none_is_refused(text: str) -> None:
    """The error names the option, and no password comes back."""
    with pytest.raises(ConfigError, match="--from-zookeeper") as caught:
        location_of(text, "--from-zookeeper")
    assert "secret" not in str(caught.value)


def test_a_missing_path_is_named() -> None:
    """So is what stands there instead of a spout's nodes."""
    nodes = FakeNodes()
    with pytest.raises(ConfigError, match="no node /kafka/orders"):
        read_state(nodes, "/kafka/orders")
    put(nodes, "/kafka/orders/config", b"")
    with pytest.raises(ConfigError, match=r"holds no partition_N.*: config"):
        read_state(nodes, "/kafka/orders")


def test_no_rights_and_no_answer_are_errors_of_their_own() -> None:
    nodes = FakeNodes()
    put(nodes, "/s/partition_0", OLD.to_json())
    nodes.forbidden.add("/s/partition_0")
    with pytest.raises(OffsetStoreError, match="no permission to use /s/partition_0"):
        read_state(nodes, "/s")
    nodes.down = True
    with pytest.raises(OffsetStoreError, match="no ZooKeeper answers"):
        read_state(nodes, "/s")


def test_a_port_at_which_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the address, and says that it may work later."""
    monkeypatch.setattr(zookeeper, "ANSWER_S", 0.3)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with pytest.raises(OffsetStoreError, match=f"127.0.0.1:{port}/x: no ZooKeeper answers") as caught:
            open_nodes(Location(f"127.0.0.1:{port}", "/x"))
    assert caught.value.passes


def test_without_kazoo_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kazoo.client", None)
    with pytest.raises(MissingExtraError, match="kazoo") as caught:
        open_nodes(Location("zk:1", ""))
    assert "downspout[zookeeper]" in str(caught.value)


def test_a_group_that_cannot_be_a_node_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.group = 'a/b'"):
        open_zookeeper_store("zookeeper://zk:1/x", StoreContext("a/b"))


# --- Trident's ---


def test_batches_count_for_the_topic_and_partition_that_they_name() -> None:
    """A ``partition_N`` of Kafka 0.8's spout may hold several topics; what contradicts its path is ignored."""
    nodes = FakeNodes()
    put(nodes, "/t/coordinator/currtx", b"3")
    for path, text in {
        "partition_0/1": '{"topic":"a","partition":0,"offset":0,"nextOffset":5}',
        "partition_0/2": '{"topic":"b","partition":0,"offset":0,"nextOffset":9}',
        "c@1/2": '{"topic":"a","firstOffset":3,"lastOffset":7}',
        "d@1/2": '{"partition":0,"firstOffset":3,"lastOffset":7}',
        "e@0/2": '{"firstOffset":9,"lastOffset":3}',
    }.items():
        put(nodes, f"/t/user/{path}", text.encode())
    found = read_state(nodes, "/t")
    assert found.offsets == {TopicPartition("a", 0): 5, TopicPartition("b", 0): 9}
    notes = " ".join(found.notes)
    assert "/t/user/c@1/2 is ignored: it is of a[1]" in notes
    assert "/t/user/d@1/2 is ignored: it is of d[0]" in notes
    assert "/t/user/e@0/2 is ignored: it holds no first and last offset" in notes


# --- a topology that still runs ---


@pytest.mark.parametrize("change", ["set", "new", "trident"])
def test_nodes_that_change_are_refused(change: str) -> None:
    """A node that is written, made or goes while they are watched names itself."""
    nodes = FakeNodes()
    put(nodes, "/s/partition_0", OLD.to_json())
    put(nodes, "/t/coordinator/currtx", b"5")
    put(nodes, "/t/user/orders@0/4", b'{"firstOffset":3,"lastOffset":7}')
    root, path = ("/t", "/t/coordinator/currtx") if change == "trident" else ("/s", "/s/partition_1")
    if change == "set":
        path = "/s/partition_0"
    found = read_state(nodes, root)
    refuse_changes(nodes, found, 5, lambda _: None)
    with pytest.raises(BrokerError, match=f"{path} changed within 5 s: the old topology still runs"):
        refuse_changes(nodes, found, 5, lambda _: put(nodes, path, OLD.to_json()))


# --- the command ---


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> FakeNodes:
    """The tree that the command finds, with an old spout's two nodes."""
    made = FakeNodes()
    put(made, "/root/old/partition_0", OLD.to_json().replace(b"918", b"7"))
    put(made, "/root/old/partition_1", OLD.to_json().replace(b"918", b"4").replace(b'"partition":0', b'"partition":1'))
    monkeypatch.setattr(zookeeper, "open_nodes", lambda location, password=None: made)
    return made


@pytest.fixture
def command(bare_kafka: FakeKafka, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, on a Kafka with two partitions of ten records."""
    bare_kafka.create_topic(TOPIC, 2)
    fill(bare_kafka, 10, 0)
    fill(bare_kafka, 10, 1)
    return Command(bare_kafka.bootstrap, capsys)


IMPORT = ("import", "readers", "--from-zookeeper", "zk:2181/root/old", "--watch", "0s")


def test_a_preview_writes_nothing_and_yes_does_it(bare_kafka: FakeKafka, nodes: Nodes, command: Command) -> None:
    """The new group stands where the old spout stood; twice is nothing to do."""
    code, out, err = command.run(*IMPORT)
    assert (code, err, dict(bare_kafka.committed("readers"))) == (0, "", {})
    assert "2 partitions would be moved" in out
    assert "nothing was changed: add --yes to do it" in out
    assert command.run(*IMPORT, "--yes")[0] == 0
    assert {tp: found.offset for tp, found in bare_kafka.committed("readers").items()} == {P0: 7, P1: 4}
    assert "nothing to do" in command.run(*IMPORT, "--yes")[1]


def test_a_partition_that_kafka_does_not_have_is_named(bare_kafka: FakeKafka, nodes: Nodes, command: Command) -> None:
    put(nodes, "/root/old/partition_5", OLD.to_json().replace(b'"partition":0', b'"partition":5'))
    assert f"{TOPIC}[5] does not exist" in command.refused(*IMPORT, "--yes")
    assert dict(bare_kafka.committed("readers")) == {}
    assert command.run(*IMPORT, "--yes", "--topic", f"{TOPIC}:0,1")[0] == 0


def test_what_is_no_node_is_left_alone_and_said(nodes: Nodes, command: Command) -> None:
    put(nodes, "/root/old/partition_1", b"not ours")
    facts = command.facts(*IMPORT)
    assert [move["partition"] for move in facts["moves"]] == [0]
    assert any("partition_1 is ignored" in note for note in facts["notes"])
    assert f"no node for {TOPIC}[1]: left unchanged, kafka.start decides" in facts["notes"]


def test_the_old_start_rules_hold(nodes: Nodes, command: Command) -> None:
    """5 behind the end is allowed: partition 0, at 7, stays; partition 1, at 4, goes to the end."""
    facts = command.facts(*IMPORT, "--old-start", "latest", "--behind-max", "5")
    assert [(move["partition"], move["to"]) for move in facts["moves"]] == [(0, 7), (1, 10)]


def test_a_group_that_is_further_is_moved_back_by_force_alone(
    bare_kafka: FakeKafka, nodes: Nodes, command: Command
) -> None:
    """As with a checkpoint: nodes that the old spout left long ago must not undo what was done since."""
    consumer = bare_kafka.consumer(group="readers")
    consumer.commit({P0: OffsetAndMetadata(9, "", -1), P1: OffsetAndMetadata(1, "", -1)})
    consumer.close()
    assert f"would be moved back: {TOPIC}[0] from 9 to 7" in command.refused(*IMPORT, "--yes")
    assert {tp: found.offset for tp, found in bare_kafka.committed("readers").items()} == {P0: 9, P1: 1}
    assert command.run(*IMPORT, "--yes", "--force")[0] == 0
    assert {tp: found.offset for tp, found in bare_kafka.committed("readers").items()} == {P0: 7, P1: 4}


def test_one_source_and_only_one(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint and ZooKeeper at once are an error."""
    with pytest.raises(SystemExit):
        command.run(*IMPORT, "--from-checkpoint", str(tmp_path))
    assert "not allowed with" in capsys.readouterr().err
