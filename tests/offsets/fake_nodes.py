"""ZooKeeper's tree in memory: the answers of one server to any number of sessions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from downspout.offsets import Conflict, Operation
from downspout.offsets.zookeeper import ANY, Node
from downspout.spout import OffsetStoreError

LOCK = threading.Lock()


@dataclass
class FakeNodes:
    """One session; sessions of one tree share ``tree``."""

    tree: dict[str, Node] = field(default_factory=lambda: {"/": Node(b"", 0)})
    down: bool = False
    forbidden: set[str] = field(default_factory=set)
    mine: set[str] = field(default_factory=set)  # what ends with this session
    lost: list[bool] = field(default_factory=list)  # answers to the next transactions: True if it was done before

    def get(self, path: str) -> Node | None:
        self._ask(path)
        with LOCK:
            return self.tree.get(path)

    def children(self, path: str) -> list[str]:
        self._ask(path)
        start = path.rstrip("/") + "/"
        with LOCK:
            paths = list(self.tree)
        return sorted(
            each.removeprefix(start) for each in paths if each != "/" and each.rpartition("/")[0] + "/" == start
        )

    def ensure(self, path: str) -> None:
        self._ask(path)
        parts = path.strip("/").split("/")
        with LOCK:
            for count in range(1, len(parts) + 1):
                self.tree.setdefault("/" + "/".join(parts[:count]), Node(b"", 0))

    def transact(self, operations: Sequence[Operation]) -> None:
        with LOCK:
            self._transact(operations)

    def _transact(self, operations: Sequence[Operation]) -> None:
        if self.lost and not self.lost[0]:
            del self.lost[0]
            raise OffsetStoreError("zookeeper://fake: ConnectionLoss", passes=True)
        tree, made = dict(self.tree), list[str]()
        for kind, path, data, version in ((each.kind, each.path, each.data, each.version) for each in operations):
            self._ask(path)
            node = tree.get(path)
            if kind in ("create", "ephemeral"):
                if node is not None or (path.rpartition("/")[0] or "/") not in tree:
                    raise Conflict(path)
                tree[path] = Node(data, 0)
                made += [path] if kind == "ephemeral" else []
                continue
            if node is None or version not in (ANY, node.version):
                raise Conflict(path)
            if kind == "set":
                tree[path] = Node(data, node.version + 1)
            elif kind == "delete":
                if any(each.startswith(f"{path}/") for each in tree):
                    raise Conflict(path)
                del tree[path]
        self.tree.clear()
        self.tree.update(tree)
        self.mine.update(made)
        if self.lost:
            del self.lost[0]
            raise OffsetStoreError("zookeeper://fake: ConnectionLoss", passes=True)

    def close(self) -> None:
        with LOCK:
            for path in self.mine:
                self.tree.pop(path, None)
            self.mine.clear()

    def _ask(self, path: str) -> None:
        if self.down:
            raise OffsetStoreError("zookeeper://fake: no ZooKeeper answers", passes=True)
        if path in self.forbidden:
            raise OffsetStoreError(f"zookeeper://fake: no permission to use {path}")
