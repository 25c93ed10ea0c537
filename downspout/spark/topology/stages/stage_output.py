"""What leaves a stage: nothing of a record before all that came of it here is done.

A tuple for a stateful bolt waits with its record. Once the record's tree is complete, it goes; if the tree failed, it
is dropped, because the next try makes it again. So a stateful bolt never sees what a failed try has made.

A tuple that came of several records, as a BatchingBolt makes them, ties these together: what waits for them goes when
all are complete. If one has failed all is dropped, and those that were complete are tried again with it: half of a lot
would be counted twice or not at all. Where the failed try is over before the tuple is emitted it is no other; there is
nothing to wait for, and those that the tuple came of besides are tried again.
"""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import streamparse

from downspout.engine.acker import trees_of
from downspout.spark.topology.rows import TUPLE, ChunkPlace, Place, Row, ShuffledTuple, to_wire

ITEMS_PER_ROW = 512  # Tuples that travel in one row
CHUNK_BYTES_PER_ROW = 4 * 1024 * 1024  # About how much of chunks travels in one row


class Root:
    """What a tree of this stage came from: a record, or a tuple of an earlier stage."""

    __slots__ = ("group", "left")

    def __init__(self) -> None:
        self.left = 0  # answers that are outstanding
        self.group: _Group | None = None  # those with which this is tied together, while anything waits for it

    @property
    def places(self) -> tuple[Place | ChunkPlace, ...]:
        """The records behind it."""
        raise NotImplementedError


class _Waiting:
    """Tuples that came of one set of roots, and wait for these."""

    __slots__ = ("items", "places", "roots")

    def __init__(self, roots: tuple[Root, ...]) -> None:
        self.roots = roots
        self.places = tuple(dict.fromkeys(place for root in roots for place in root.places))
        self.items: list[tuple[str, int, ShuffledTuple]] = []


class _Group:
    """Roots that have tuples in common, straight or by way of others, and what waits for all of them."""

    __slots__ = ("complete", "failed", "open", "waiting")

    def __init__(self) -> None:
        self.open: dict[Root, None] = {}  # those that are not settled
        self.complete: list[Root] = []
        self.failed = False
        self.waiting: list[_Waiting] = []

    @classmethod
    def of(cls, roots: tuple[Root, ...]) -> _Group:
        """Tie these together, and the groups that they are in."""
        groups = {id(root.group): root.group for root in roots if root.group is not None}
        group = (
            max(groups.values(), key=lambda each: len(each.open)) if groups else cls()
        )  # small ones join the largest
        for other in groups.values():
            if other is not group:
                group._take(other)
        for root in roots:
            if root.group is None:
                root.group = group
                group.open[root] = None
        return group

    def _take(self, other: _Group) -> None:
        for root in other.open:
            root.group = self
        self.open.update(other.open)
        self.complete += other.complete
        self.failed |= other.failed
        self.waiting += other.waiting


class StageOutput:
    """Collects rows."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._items: dict[tuple[str, int], list[ShuffledTuple]] = {}
        self._bytes: dict[tuple[str, int], int] = {}  # of chunks among them
        self._number = itertools.count()
        self._last: _Waiting | None = None

    def put(self, kind: str, component: str, what: Any) -> None:
        """Add a row of another kind than tuples."""
        self._rows.append(Row.of(kind, component, what))

    def hold(self, to: str, task: int, tup: Any, roots: tuple[Root, ...]) -> None:
        """Take a tuple for a task of a stateful bolt, until its roots are settled; one without roots goes at once."""
        waiting = self._last
        # Tuples in a row that came of the same roots wait together. A batching bolt anchors each tuple that it emits to
        # its whole batch: apart, a thousand tuples of a thousand records would be a million things to keep.
        if waiting is None or waiting.roots != roots:
            self._last = waiting = _Waiting(roots)
            if roots:
                _Group.of(roots).waiting.append(waiting)
        values = to_wire(tup.values) if isinstance(tup.values, pa.RecordBatch) else tuple(tup.values)
        item = ShuffledTuple(waiting.places, tup.component, tup.task, tup.stream, values, next(self._number))
        if roots:
            waiting.items.append((to, task, item))
        else:
            self._send(to, task, item)

    def spoil(self, roots: tuple[Root, ...]) -> None:
        """Take note that a tuple that came of these came of a failed try too: what waits for them will not go."""
        _Group.of(roots).failed = True

    def settle(self, root: Root, *, complete: bool) -> list[Root]:
        """Take note that a tree is complete, or failed; return roots that are tried again though they were complete."""
        if (group := root.group) is None:
            return []
        root.group = self._last = None
        del group.open[root]
        if complete:
            group.complete.append(root)
        else:
            group.failed = True
        if group.open:
            return []
        if group.failed:
            return group.complete
        for waiting in group.waiting:
            for to, task, item in waiting.items:
                self._send(to, task, item)
        return []

    def _send(self, to: str, task: int, item: ShuffledTuple) -> None:
        items = self._items.setdefault((to, task), [])
        items.append(item)
        size = self._bytes.get((to, task), 0)
        if isinstance(item.values, bytes):
            size = self._bytes[to, task] = size + len(item.values)
        if len(items) >= ITEMS_PER_ROW or size >= CHUNK_BYTES_PER_ROW:
            del self._items[to, task]
            self._bytes.pop((to, task), None)
            self._rows.append(Row.of(TUPLE, to, items, task))

    def take(self, *, whole: bool = False) -> list[Row]:
        """Return what can go now; ``whole``: also tuples that do not fill a row."""
        if whole:
            for (to, task), items in self._items.items():
                self._rows.append(Row.of(TUPLE, to, items, task))
            self._items.clear()
            self._bytes.clear()
        rows, self._rows = self._rows, []
        return rows


class OutputBolt(streamparse.Bolt):
    """Stands in a stage for a task of a stateful bolt of a later one, and sends on what that would get."""

    def stand_in(self, output: StageOutput, task: Any) -> None:
        """Say where to, and for which task."""
        self._output, self._task = output, task

    def process(self, tup: Any) -> None:
        """Hand the tuple on."""
        root = self._task.held.get(tup.id)
        trees = trees_of(root) if root is not None else ()
        # A bolt that holds tuples may emit when the trees of some have failed already. Their records were tried again
        # or exhausted: nothing will settle this tuple for them, and what came of them alone comes again.
        roots = tuple(tree.msg_id for tree in trees if not tree.closed)
        if 0 < len(roots) < len(trees) and any(tree.closed and tree.forest.replays for tree in trees):
            self._output.spoil(roots)
        elif roots or not trees:
            self._output.hold(self._task.name, self._task.index, tup, roots)

    def process_chunk(self, tup: Any) -> None:
        """Hand the chunk on whole; the bolt's own task splits it, if it takes none."""
        self.process(tup)
