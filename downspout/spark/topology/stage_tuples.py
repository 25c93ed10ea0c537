"""The tuples that leave a stage: those of a record leave once all its tuples in the stage are done.

A tuple for a stateful bolt waits with its record. When the record's tree completes, the tuple is sent; if the tree
fails, it is dropped, because the retry emits it again. So a stateful bolt never sees tuples of a failed attempt.

A tuple from several records, as a BatchingBolt emits, ties them together: their waiting tuples are sent when all are
complete. If one fails, all are dropped, and the complete records are retried with it: otherwise parts would count twice
or not at all. If the attempt of one has failed before the tuple is emitted, its retry may be over; so the tuple is
dropped and its other records are retried.
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
CHUNK_BYTES_PER_ROW = 4 * 1024 * 1024  # Approximate limit of a row's chunks


class Root:
    """The root of a tree of this stage: a record, or a tuple of an earlier stage."""

    __slots__ = ("group", "left")

    def __init__(self) -> None:
        self.left = 0  # outstanding answers
        self.group: _Group | None = None  # the roots tied to this one, while tuples wait for it

    @property
    def places(self) -> tuple[RecordPlace | ChunkPlace, ...]:
        """The records that it came from."""
        raise NotImplementedError


class _Waiting:
    """Tuples that wait for the roots they came from."""

    __slots__ = ("items", "places", "roots")

    def __init__(self, roots: tuple[Root, ...]) -> None:
        self.roots = roots
        self.places = tuple(dict.fromkeys(place for root in roots for place in root.places))
        self.items: list[tuple[str, int, ShuffledTuple]] = []


class _Group:
    """Roots connected by common tuples, directly or indirectly, and the tuples that wait for all of them."""

    __slots__ = ("complete", "failed", "open", "waiting")

    def __init__(self) -> None:
        self.open: dict[Root, None] = {}  # unsettled ones
        self.complete: list[Root] = []
        self.failed = False
        self.waiting: list[_Waiting] = []

    @classmethod
    def of(cls, roots: tuple[Root, ...]) -> _Group:
        """Merge the groups of these roots."""
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
        """Hold a tuple for a task of a stateful bolt until its roots are settled; send one without roots at once."""
        waiting = self._last
        # Consecutive tuples with the same roots share an entry. A BatchingBolt anchors each tuple to its whole batch:
        # separately, a thousand tuples of a thousand records would need a million references.
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
        """Mark roots of a tuple that also came from a failed attempt: the tuples that wait for them are not sent."""
        _Group.of(roots).failed = True

    def settle(self, root: Root, *, complete: bool) -> list[Root]:
        """Record that a tree is complete or failed; return complete roots that must be retried."""
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
        """Return the rows that are ready; ``whole``: also those that are not full."""
        if whole:
            for (to, task), items in self._items.items():
                self._rows.append(Row.of(TUPLE, to, items, task))
            self._items.clear()
            self._bytes.clear()
        rows, self._rows = self._rows, []
        return rows


class OutputBolt(streamparse.Bolt):
    """A placeholder for a task of a later stage's stateful bolt; passes its tuples to the stage's output."""

    def stand_in(self, output: StageOutput, task: Any) -> None:
        """Set the output and the task."""
        self._output, self._task = output, task

    def process(self, tup: Any) -> None:
        """Pass the tuple to the output."""
        root = self._task.held.get(tup.id)
        trees = trees_of(root) if root is not None else ()
        # A bolt that holds tuples may emit after the trees of some have failed. Their records were retried or
        # exhausted: nothing will settle this tuple for them, and a retry emits their own tuples again.
        roots = tuple(tree.msg_id for tree in trees if not tree.closed)
        if 0 < len(roots) < len(trees) and any(tree.closed and tree.forest.replays for tree in trees):
            self._output.spoil(roots)
        elif roots or not trees:
            self._output.hold(self._task.name, self._task.index, tup, roots)

    def process_chunk(self, tup: Any) -> None:
        """Pass the chunk whole; the bolt's own task splits it if it takes records."""
        self.process(tup)


# --- the port of an input ---

EMITS = 256  # Tuples that one call of next_tuple emits


class TaskInput:
    """The source of a stage's tuples: Kafka's records, or tuples of earlier stages."""

    idle: bool  # Whether nothing is left to emit, retries included

    def emit_next(self, spout: InputSpout) -> None:
        """Emit some tuples, if any are this spout's."""
        raise NotImplementedError

    def done(self, root: Any) -> None:
        """Process the completion of a tree."""
        raise NotImplementedError

    def failed(self, root: Any, failure: Failure) -> None:
        """Process the failure of a tree."""
        raise NotImplementedError


class InputSpout(streamparse.Spout):
    """A placeholder for the spout or stateful bolt that feeds a stage."""

    task_input: TaskInput
    task: Any  # The engine's view of it

    def next_tuple(self) -> None:
        """Emit some tuples of the input."""
        self.task_input.emit_next(self)

    def ack(self, tup_id: Any) -> None:
        """Report the completion of a tree to the input."""
        self.task_input.done(tup_id)

    def fail_with(self, tup_id: Any, failure: Failure) -> None:
        """Report the failure of a tree to the input."""
        self.task_input.failed(tup_id, failure)


# --- the input of a later stage ---

HELD_MAX = 100_000
"""Tuples held beyond the end of a batch that can still fail; limits the state of a bolt that never acks."""


class InputTuple(Root):
    """A tuple of an earlier stage or, if ``held``, one of an earlier batch that the bolt has neither acked nor
    failed."""

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
        """The single record of a chunk's tuple, if its origin names it; otherwise the places."""
        # In its own batch the whole chunk fails and is split; in a later batch that is impossible.
        return narrowed(self._places, self._origin)


class TupleInput(TaskInput):
    """The tuples of a batch for one task of a stateful bolt, in the order of the records that they came from."""

    def __init__(self, items: list[ShuffledTuple], output: StageOutput, skip: Collection[RecordPlace]) -> None:
        self._at = 0
        self._output = output
        self._skip = frozenset(skip)
        # Stage 0 skips this batch's exhausted records, but an earlier bolt may have held tuples of exhausted records.
        wanted = [item for item in items if not self._is_exhausted(item.places)] if skip else items
        # A shuffle has no guaranteed order. A fixed one makes the recomputation of a batch give the same results.
        self._items = sorted(wanted, key=lambda item: (item.places[:1], item.source, item.task, item.number))
        self.kinds: Mapping[tuple[str, str], Any] = {}  # types of tuples' values by component and stream
        self.bolt: BoltTask | None = None
        self.spout: SpoutTask | None = None
        self.failures: list[Failure] = []

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """Whether all tuples were delivered."""
        return self._at >= len(self._items)

    def emit_next(self, stage_spout: InputSpout) -> None:
        """Deliver some tuples."""
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
        """Yield the values of a tuple and their number of records; a chunk's rows if the bolt takes records."""
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
        """Register tuples held since an earlier batch, so that the bolt can ack, fail and anchor to them."""
        bolt = self.bolt
        assert bolt is not None
        for tuple_id, places in held.items():
            tree = Tree(self._forest, InputTuple(places, held=True), 0.0)
            attach(bolt.held, tuple_id, tree)
            self._forest.planted(tree)

    def held(self) -> dict[str, tuple[RecordPlace | ChunkPlace, ...]]:
        """Return the tuples that the bolt holds, with their records; only the newest :data:`HELD_MAX`."""
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
        """Process the completion of an input tuple's tree."""
        self._output.settle(root, complete=True)

    def failed(self, root: InputTuple, failure: Failure) -> None:
        """Fail the batch with the tuple: only a restart from the previous state leaves nothing half done."""
        if root.held and self._is_exhausted(root.places):
            # Of an earlier batch, and exhausted: the bolt has released it, and tuples it shares with others are sent.
            self._output.settle(root, complete=True)
            return
        self._output.settle(root, complete=False)
        # A chunk of an earlier batch is not read again, so all its records have failed.
        self.fail(tuple(places_of(root.places)) if root.held else root.places, failure)

    def _is_exhausted(self, places: tuple[RecordPlace | ChunkPlace, ...]) -> bool:
        return bool(places) and self._skip.issuperset(places_of(places))

    def fail(self, places: tuple[RecordPlace | ChunkPlace, ...], failure: Failure) -> None:
        """Fail the batch."""
        assert self.bolt is not None
        self._output.put(FAILED, self.bolt.name, (places, failure))
        self.failures.append(failure)
