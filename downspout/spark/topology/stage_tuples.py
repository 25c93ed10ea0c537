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
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import streamparse

from downspout.component import Failure
from downspout.engine.acker import PendingTrees, Tree, attach, trees_of
from downspout.engine.bolt_task import BoltTask
from downspout.engine.spout_task import SpoutTask
from downspout.origins import rows_of
from downspout.spark.topology.stage_rows import (
    FAILED,
    TUPLE,
    ChunkPlace,
    RecordPlace,
    Row,
    ShuffledTuple,
    from_wire,
    narrowed,
    places_of,
    to_wire,
)

ITEMS_PER_ROW = 512  # Tuples that travel in one row
CHUNK_BYTES_PER_ROW = 4 * 1024 * 1024  # About how much of chunks travels in one row


class Root:
    """What a tree of this stage came from: a record, or a tuple of an earlier stage."""

    __slots__ = ("group", "left")

    def __init__(self) -> None:
        self.left = 0  # answers that are outstanding
        self.group: _Group | None = None  # those with which this is tied together, while anything waits for it

    @property
    def places(self) -> tuple[RecordPlace | ChunkPlace, ...]:
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


# --- the port of an input ---

EMITS = 256  # Tuples that one call of next_tuple emits


class TaskInput:
    """Where a stage's tuples come from: Kafka's records, or tuples of earlier stages."""

    idle: bool  # Whether nothing is left to emit, retries included

    def emit_next(self, spout: InputSpout) -> None:
        """Emit some tuples, if any are this spout's."""
        raise NotImplementedError

    def done(self, root: Any) -> None:
        """A tree is complete."""
        raise NotImplementedError

    def failed(self, root: Any, failure: Failure) -> None:
        """A tree failed."""
        raise NotImplementedError


class InputSpout(streamparse.Spout):
    """Stands in a stage for what feeds it."""

    task_input: TaskInput
    task: Any  # The engine's view of it

    def next_tuple(self) -> None:
        """Emit what there is."""
        self.task_input.emit_next(self)

    def ack(self, tup_id: Any) -> None:
        """A tree is complete."""
        self.task_input.done(tup_id)

    def fail_with(self, tup_id: Any, failure: Failure) -> None:
        """A tree failed."""
        self.task_input.failed(tup_id, failure)


# --- the input of a later stage ---

HELD_MAX = 100_000
"""Tuples held over the end of a batch that can still fail. A bolt that never acks must not fill the state."""


class InputTuple(Root):
    """A tuple of an earlier stage, or (``held``) of an earlier batch, which the bolt has neither acked nor failed."""

    __slots__ = ("_origin", "_places", "held")

    def __init__(self, places: tuple[RecordPlace | ChunkPlace, ...], origin: Any = None, *, held: bool = False) -> None:
        super().__init__()
        self._places, self._origin, self.held = places, origin, held

    @property
    def places(self) -> tuple[RecordPlace | ChunkPlace, ...]:
        """The records that it came from."""
        return self._places

    @property
    def own(self) -> tuple[RecordPlace | ChunkPlace, ...]:
        """The record alone, where the tuple was one of a chunk's and its origin says which; else the places."""
        # In its own batch the whole chunk is to blame, and is split. In a later one that cannot be.
        return narrowed(self._places, self._origin)


class TupleInput(TaskInput):
    """The tuples of a batch for one task of a stateful bolt, in the order of the records that they came from."""

    def __init__(self, items: list[ShuffledTuple], output: StageOutput, skip: Collection[RecordPlace]) -> None:
        self._at = 0
        self._output = output
        self._skip = frozenset(skip)
        # Of this batch's exhausted records nothing gets here; of those that an earlier bolt has held, something may.
        wanted = [item for item in items if not self._is_exhausted(item.places)] if skip else items
        # Spark does not promise an order after a shuffle. With this one, a batch that is computed again gives the same.
        self._items = sorted(wanted, key=lambda item: (item.places[:1], item.source, item.task, item.number))
        self.kinds: Mapping[tuple[str, str], Any] = {}  # by component and stream, the type of a tuple's values
        self.bolt: BoltTask | None = None
        self.spout: SpoutTask | None = None
        self.failures: list[Failure] = []

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """Whether all were delivered."""
        return self._at >= len(self._items)

    def emit_next(self, stage_spout: InputSpout) -> None:
        """Deliver some."""
        bolt, spout = self.bolt, stage_spout.task
        assert bolt is not None
        now, emitted = spout.world.clock.monotonic(), 0
        while emitted < EMITS and not self.idle:
            item = self._items[self._at]
            self._at += 1
            for values, count in self._values(bolt, item):
                tree = Tree(spout.forest, InputTuple(item.places, getattr(values, "origin", None)), now)
                bolt.deliver(tree, item.source, item.stream, item.task, values)
                spout.forest.planted(tree, count)
                emitted += count
        spout.emitted += emitted

    def _values(self, bolt: BoltTask, item: ShuffledTuple) -> Iterator[tuple[Any, int]]:
        """Yield what the bolt gets of a tuple, and how many records that is: a chunk only if it takes chunks."""
        make = self.kinds[item.source, item.stream]._make
        if not isinstance(item.values, bytes):
            yield make(item.values), 1
            return
        chunk = from_wire(item.values)
        if bolt.task_id in bolt.world.takes_chunks:
            bolt.has_chunks = True
            yield chunk, chunk.num_rows
        else:
            yield from ((make(values), 1) for values in rows_of(chunk))

    def restore(self, held: Mapping[str, tuple[RecordPlace | ChunkPlace, ...]]) -> None:
        """Let the bolt ack and fail, and anchor to, what it has held since an earlier batch."""
        bolt = self.bolt
        assert bolt is not None
        for tuple_id, places in held.items():
            tree = Tree(self._forest, InputTuple(places, held=True), 0.0)
            attach(bolt.held, tuple_id, tree)
            self._forest.planted(tree)

    def held(self) -> dict[str, tuple[RecordPlace | ChunkPlace, ...]]:
        """Return what the bolt holds at the end, with the records behind it; the newest, if that is too much."""
        assert self.bolt is not None
        open_trees = self._forest.open
        found = {
            tuple_id: tree.msg_id.own
            for tuple_id, root in self.bolt.held.items()
            for tree in trees_of(root)
            if tree in open_trees
        }
        return dict(itertools.islice(found.items(), max(0, len(found) - HELD_MAX), None))

    @property
    def _forest(self) -> PendingTrees:
        assert self.spout is not None
        return self.spout.forest

    def done(self, root: InputTuple) -> None:
        """What came of a tuple here is done."""
        self._output.settle(root, complete=True)

    def failed(self, root: InputTuple, failure: Failure) -> None:
        """It failed, and so does the batch: only a new start from the state before it leaves nothing half done."""
        if root.held and self._is_exhausted(root.places):
            # Read in an earlier batch, and exhausted: the bolt is rid of it, and what came of it and of others goes.
            self._output.settle(root, complete=True)
            return
        self._output.settle(root, complete=False)
        # A chunk of an earlier batch is not read again, in parts or otherwise: all of its records have failed.
        self.fail(tuple(places_of(root.places)) if root.held else root.places, failure)

    def _is_exhausted(self, places: tuple[RecordPlace | ChunkPlace, ...]) -> bool:
        return bool(places) and self._skip.issuperset(places_of(places))

    def fail(self, places: tuple[RecordPlace | ChunkPlace, ...], failure: Failure) -> None:
        """Fail the batch."""
        assert self.bolt is not None
        self._output.put(FAILED, self.bolt.name, (places, failure))
        self.failures.append(failure)
