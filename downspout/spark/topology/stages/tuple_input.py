"""The input of a later stage: the tuples of a batch for one task of a stateful bolt."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from downspout.component import Failure
from downspout.engine.acker import PendingTrees, Tree, attach, trees_of
from downspout.engine.bolt_task import BoltTask
from downspout.engine.spout_task import SpoutTask
from downspout.origins import rows_of
from downspout.spark.topology.rows import FAILED, ChunkPlace, Place, ShuffledTuple, from_wire, narrowed, places_of
from downspout.spark.topology.stages.stage_output import Root, StageOutput
from downspout.spark.topology.stages.task_input import EMITS, InputSpout, TaskInput

HELD_MAX = 100_000
"""Tuples held over the end of a batch that can still fail. A bolt that never acks must not fill the state."""


class InputTuple(Root):
    """A tuple of an earlier stage, or (``held``) of an earlier batch, which the bolt has neither acked nor failed."""

    __slots__ = ("_origin", "_places", "held")

    def __init__(self, places: tuple[Place | ChunkPlace, ...], origin: Any = None, *, held: bool = False) -> None:
        super().__init__()
        self._places, self._origin, self.held = places, origin, held

    @property
    def places(self) -> tuple[Place | ChunkPlace, ...]:
        """The records that it came from."""
        return self._places

    @property
    def own(self) -> tuple[Place | ChunkPlace, ...]:
        """The record alone, where the tuple was one of a chunk's and its origin says which; else the places."""
        # In its own batch the whole chunk is to blame, and is split. In a later one that cannot be.
        return narrowed(self._places, self._origin)


class TupleInput(TaskInput):
    """The tuples of a batch for one task of a stateful bolt, in the order of the records that they came from."""

    def __init__(self, items: list[ShuffledTuple], output: StageOutput, skip: Collection[Place]) -> None:
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

    def restore(self, held: Mapping[str, tuple[Place | ChunkPlace, ...]]) -> None:
        """Let the bolt ack and fail, and anchor to, what it has held since an earlier batch."""
        bolt = self.bolt
        assert bolt is not None
        for tuple_id, places in held.items():
            tree = Tree(self._forest, InputTuple(places, held=True), 0.0)
            attach(bolt.held, tuple_id, tree)
            self._forest.planted(tree)

    def held(self) -> dict[str, tuple[Place | ChunkPlace, ...]]:
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

    def _is_exhausted(self, places: tuple[Place | ChunkPlace, ...]) -> bool:
        return bool(places) and self._skip.issuperset(places_of(places))

    def fail(self, places: tuple[Place | ChunkPlace, ...], failure: Failure) -> None:
        """Fail the batch."""
        assert self.bolt is not None
        self._output.put(FAILED, self.bolt.name, (places, failure))
        self.failures.append(failure)
