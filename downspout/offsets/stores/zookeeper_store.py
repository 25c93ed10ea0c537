"""Offsets in ZooKeeper, in the nodes of the spout for Kafka 0.8, so that it can be swapped for ours and back.

``zookeeper://hosts/root`` keeps a group at ``root/<group>``. A partition's node holds only the JSON of that spout; the
epoch and the metadata, for which it has no key, are in a node below, ``…/partition_N/downspout``. Both change in one
transaction, guarded by the lower node's version: of two owners that claim at once, one must retry.

The upper node's version shows writes by a client without epochs: the old spout still runs.

A node is placed where the old spout would look for it: at ``root/<group>/partition_N`` if it read one topic by name,
else at ``root/<group>/<topic>/partition_N``. The group's other nodes show which of the two it was; in a new group, the
topics of our spout decide.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping

from downspout.errors import ConfigError, coordinates
from downspout.kafka.port import TopicPartition
from downspout.offsets.zookeeper import (
    ANY,
    PARTITION,
    Conflict,
    Location,
    Node,
    Nodes,
    Operation,
    SpoutNode,
    location_of,
    open_nodes,
    read_node,
)
from downspout.spout.ports import OffsetStoreError, StaleOwnerError, StoreContext, StoredOffset

TRIES = 10
"""How often a transaction that meets another is begun anew."""
BELOW = "downspout"
LOG = logging.getLogger(__name__)


def open_zookeeper_store(location: str, context: StoreContext) -> ZooKeeperStore:
    """Open the store at a URL."""
    found = location_of(location, context.setting)
    if "/" in context.group or context.group in (".", ".."):
        raise ConfigError(f"kafka.group = {context.group!r} cannot be a node of ZooKeeper", cure="a name without slash")
    return ZooKeeperStore(open_nodes(found, context.password), found, context)


class ZooKeeperStore:
    """The offsets of one consumer group. See :class:`~downspout.spout.ports.OffsetStore`."""

    def __init__(self, nodes: Nodes, location: Location, context: StoreContext) -> None:
        self.location = location.shown
        self._nodes, self._context = nodes, context
        self._base = f"{location.path}/{context.group}"
        # The upper node's version as we know it, and what we have written last, or tried to
        self._mine: dict[TopicPartition, tuple[int, bytes]] = {}
        self._said: set[str] = set()

    def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Return the entries of these partitions."""
        found = {tp: self._read(tp, self._path(tp))[0] for tp in partitions}
        return {tp: stored for tp, stored in found.items() if stored.offset is not None}

    def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StoredOffset]:
        """Claim all or none."""
        for _ in range(TRIES if partitions else 0):
            claimed: dict[TopicPartition, StoredOffset] = {}
            known: dict[TopicPartition, tuple[int, bytes]] = {}
            operations = []
            for tp in sorted(partitions):
                path = self._path(tp)
                self._nodes.ensure(path)
                stored, upper, lower = self._read(tp, path)
                claimed[tp] = stored._replace(epoch=stored.epoch + 1)
                known[tp] = upper.version if upper else ANY, upper.data if upper else b""
                operations.append(_below(path, claimed[tp], lower))
            try:
                self._nodes.transact(operations)
            except Conflict:
                continue
            self._mine |= known
            return claimed
        if partitions:
            raise self._busy(sorted(partitions)[0])
        return {}

    def store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store all or none. If the answer is lost, the owner stores again: the epoch identifies it."""
        for _ in range(TRIES if offsets else 0):
            operations, written = [], {}
            for tp, stored in sorted(offsets.items()):
                path = self._path(tp)
                before, upper, lower = self._read(tp, path)
                if before.epoch > stored.epoch:
                    raise StaleOwnerError(
                        f"{self.location}: {coordinates(*tp)} of group {self._context.group} was since claimed by "
                        f"another process (epoch {stored.epoch} has ended); nothing was stored",
                        cure="one topology for each group",
                    )
                self._refuse_other_writer(tp, path, upper)
                content = self._content(tp, stored, path, upper)
                if upper is None:
                    self._nodes.ensure(path.rpartition("/")[0])
                    operations.append(Operation("create", path, content))
                else:
                    operations.append(Operation("set", path, content, upper.version))
                operations.append(_below(path, stored, lower))
                written[tp] = (upper.version + 1 if upper else 0), content
                # The answer may be lost: then the node holds this, or still what it holds now.
                self._mine[tp] = upper.version if upper else ANY, content
            try:
                self._nodes.transact(operations)
            except Conflict:
                continue
            self._mine |= written
            return
        if offsets:
            raise self._busy(min(offsets))

    def list(self) -> Mapping[TopicPartition, StoredOffset]:
        """Return all of the group."""
        found: dict[TopicPartition, StoredOffset] = {}
        for name in self._nodes.children(self._base):
            if (match := PARTITION.fullmatch(name)) is not None:
                path = f"{self._base}/{name}"
                if (node := self._nodes.get(path)) and (read := self._parse(path, node, int(match[1]))):
                    found[read.tp] = self._read(read.tp, path)[0]
                continue
            for below in self._nodes.children(f"{self._base}/{name}"):
                if (match := PARTITION.fullmatch(below)) is not None:
                    tp = TopicPartition(name, int(match[1]))
                    found.setdefault(tp, self._read(tp, f"{self._base}/{name}/{below}")[0])
        return {tp: stored for tp, stored in sorted(found.items()) if stored.offset is not None}

    def delete(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all or none."""
        for _ in range(TRIES if partitions else 0):
            operations = []
            for tp in sorted(partitions):
                path = self._path(tp)
                _, upper, lower = self._read(tp, path)
                if lower is not None:
                    operations.append(Operation("delete", f"{path}/{BELOW}", version=lower.version))
                if upper is not None:
                    operations.append(Operation("delete", path, version=upper.version))
            try:
                if operations:
                    self._nodes.transact(operations)
            except Conflict:
                continue
            return
        if partitions:
            raise self._busy(min(partitions))

    def close(self) -> None:
        """End the session."""
        self._nodes.close()

    # --- inside ---

    def _path(self, tp: TopicPartition) -> str:
        """Return a partition's node. O(1) if it exists, else O(nodes of the group)."""
        bare, below = f"{self._base}/partition_{tp.partition}", f"{self._base}/{tp.topic}/partition_{tp.partition}"
        if (found := self._topic_of(bare)) is not None:
            return bare if found == tp.topic else below
        if self._nodes.get(below) is not None:
            return below
        return bare if self._is_bare(tp.topic) else below

    def _is_bare(self, topic: str) -> bool:
        """Return whether new nodes of a topic have no topic in their path."""
        names = self._nodes.children(self._base)
        numbered = [name for name in names if PARTITION.fullmatch(name)]
        if topics := {found for name in numbered if (found := self._topic_of(f"{self._base}/{name}"))}:
            return topic in topics
        others = (self._nodes.children(f"{self._base}/{name}") for name in names if name not in numbered)
        has_topics = any(PARTITION.fullmatch(name) for below in others for name in below)
        return topic == self._context.topic and not has_topics

    def _topic_of(self, path: str) -> str | None:
        """Return the topic of a bare node; None: the node is ignored."""
        node = self._nodes.get(path)
        read = self._parse(path, node, int(path.rpartition("_")[2])) if node is not None else None
        return None if read is None else read.tp.topic

    def _read(self, tp: TopicPartition, path: str) -> tuple[StoredOffset, Node | None, Node | None]:
        """Return the stored entry, and both nodes."""
        # The lower one first: it changes with each store, so what follows is no older than what guards it.
        lower, upper = self._nodes.get(f"{path}/{BELOW}"), self._nodes.get(path)
        read = self._parse(path, upper, tp.partition, tp.topic) if upper is not None and upper.data else None
        epoch, metadata = _epoch_of(f"{self.location}: {path}/{BELOW}", lower)
        return StoredOffset(None if read is None else read.offset, metadata if read else "", epoch), upper, lower

    def _parse(self, path: str, node: Node, number: int, topic: str = "") -> SpoutNode | None:
        if not node.data:
            return None
        try:
            return read_node(node.data, number, topic)
        except ValueError as error:
            if path not in self._said:
                self._said.add(path)
                LOG.warning("%s: %s is ignored: %s", self.location, path, error)
            return None

    def _content(self, tp: TopicPartition, stored: StoredOffset, path: str, upper: Node | None) -> bytes:
        owner = self._context.topology_id, self._context.topology
        if not any(owner) and upper is not None and (found := self._parse(path, upper, tp.partition, tp.topic)):
            owner = found.topology_id, found.topology_name  # it is moved by a command, and stays theirs
        return SpoutNode(tp, stored.offset or 0, *owner).to_json()

    def _refuse_other_writer(self, tp: TopicPartition, path: str, upper: Node | None) -> None:
        if upper is None or tp not in self._mine:
            return
        version, content = self._mine[tp]
        if upper.version != version and upper.data != content and version != ANY:
            raise StaleOwnerError(
                f"{self.location}: {path} was written by somebody else since the last commit; nothing was stored",
                cure="stop the old topology, which keeps its offsets there too",
            )

    def _busy(self, tp: TopicPartition) -> OffsetStoreError:
        return OffsetStoreError(
            f"{self.location}: {coordinates(*tp)} of group {self._context.group} was changed by others at each attempt",
            cure="one topology for each group",
            passes=True,
        )


def _below(path: str, stored: StoredOffset, lower: Node | None) -> Operation:
    data = json.dumps({"epoch": stored.epoch, "metadata": stored.metadata}, ensure_ascii=False).encode()
    where = f"{path}/{BELOW}"
    return Operation("create", where, data) if lower is None else Operation("set", where, data, lower.version)


def _epoch_of(where: str, node: Node | None) -> tuple[int, str]:
    if node is None:
        return 0, ""
    try:
        values = json.loads(node.data)
        epoch, metadata = values["epoch"], values["metadata"]
        if type(epoch) is not int or epoch < 0 or not isinstance(metadata, str):
            raise ValueError(values)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OffsetStoreError(
            f"{where} is not in Downspout's form: {node.data[:60]!r}", cure="delete that node"
        ) from None
    return epoch, metadata
