"""The stages as Spark's operators: stage 0 as the function of a ``mapInArrow``, the others as stateful processors."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from downspout.component import Failure
from downspout.errors import TopologyError
from downspout.local.acker import Forest, Tree, attach, trees_of
from downspout.local.bolt_task import BoltTask
from downspout.local.spout_task import SpoutTask
from downspout.origins import rows_of
from downspout.spark.topology.chunked import Apart
from downspout.spark.topology.outbox import Outbox, Root
from downspout.spark.topology.records import EMITS, Feed, Inlet, Records
from downspout.spark.topology.rows import (
    FAILED,
    Figures,
    Item,
    Place,
    Span,
    from_wire,
    load,
    narrowed,
    places_of,
    to_batch,
)
from downspout.spark.topology.stage import Head, Pass, Shipment, arrive
from downspout.spark.topology.state import attributes, restore, save

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Front", "Packed", "Stateful"]

HELD_MAX = 100_000
"""Tuples held over the end of a batch that can still fail. A bolt that never acks shall not fill the state."""


class Packed:
    """A shipment on its way to an executor.

    It stays packed until the user's modules can be found there: unpickling it imports them.

    Args:
        shipment: what is sent.
        path: where Python looks for modules here.
        modules: those that hold components.

    Raises:
        TopologyError: a component's class cannot be found by its name.
    """

    def __init__(self, shipment: Shipment, path: Sequence[str], modules: Sequence[str]) -> None:
        for component in shipment.plan.graph.components.values():
            if (name := component.cls.__qualname__) != component.cls.__name__ or "__main__" in component.cls.__module__:
                raise TopologyError(
                    f"{component.name}: executors cannot find its class {component.cls.__module__}.{name}",
                    cure="a class of a module that can be imported: not of a function's or of the program itself",
                )
        self._bytes = pickle.dumps(shipment, pickle.HIGHEST_PROTOCOL)
        self._path, self._modules = tuple(path), tuple(modules)

    def open(self) -> Shipment:
        """Return the shipment, on an executor."""
        arrive(self._path, self._modules)
        shipment: Shipment = pickle.loads(self._bytes)
        return shipment


class Front:
    """Stage 0: from the source's columns to rows.

    Args:
        packed: the topology.
        skip: records that are given up: they are left out.
        apart: records that go with few others, or alone, and not in a large chunk.
    """

    def __init__(self, packed: Packed, skip: Collection[Place] = (), apart: Apart | None = None) -> None:
        self._packed, self._skip, self._apart = packed, tuple(skip), dict(apart or {})

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stage over the records of one task."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        shipment = self._packed.open()
        stage = shipment.plan.stages[0]
        outbox, figures = Outbox(), Figures()
        confs = {name: shipment.confs[name] for name in stage.heads}
        records = Records(itertools.chain([first], batches), confs, self._skip, outbox, figures, self._apart)
        for row in Pass(shipment, stage, records, outbox, figures).rows():
            yield to_batch([row])


class Delivery(Root):
    """A tuple of an earlier stage.

    Args:
        places: the records that it came from.
        origin: what the tuple says of its own record, where it was in a chunk.
        held: whether it is of an earlier batch, and the bolt has neither acked nor failed it.
    """

    __slots__ = ("_origin", "_places", "held")

    def __init__(self, places: tuple[Place | Span, ...], origin: Any = None, *, held: bool = False) -> None:
        super().__init__()
        self._places, self._origin, self.held = places, origin, held

    @property
    def places(self) -> tuple[Place | Span, ...]:
        """The records that it came from."""
        return self._places

    @property
    def own(self) -> tuple[Place | Span, ...]:
        """The record alone, where the tuple was one of a chunk's and says which; else those that it came from.

        In its own batch the whole chunk is to blame, and is taken apart. In a later one that cannot be.
        """
        return narrowed(self._places, self._origin)


class Tuples(Inlet):
    """The tuples of a batch for one task of a stateful bolt, in the order of the records that they came from.

    Spark does not promise an order after a shuffle. With this one, a batch that is computed again gives the same.
    """

    def __init__(self, items: list[Item], outbox: Outbox, skip: Collection[Place]) -> None:
        self._at = 0
        self._outbox = outbox
        self._skip = frozenset(skip)
        # Of this batch's records that are given up nothing gets here; of those that an earlier bolt has held, it may.
        wanted = [item for item in items if not self._is_given_up(item.places)] if skip else items
        self._items = sorted(wanted, key=lambda item: (item.places[:1], item.source, item.task, item.number))
        self.kinds: Mapping[tuple[str, str], Any] = {}
        """by component and stream, the type of a tuple's values"""
        self.head: BoltTask | None = None
        self.spout: SpoutTask | None = None
        self.failures: list[Failure] = []

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """Whether all were delivered."""
        return self._at >= len(self._items)

    def feed(self, feed: Feed) -> None:
        """Deliver some."""
        head, spout = self.head, feed.task
        assert head is not None
        now, emitted = spout.world.clock.monotonic(), 0
        while emitted < EMITS and not self.idle:
            item = self._items[self._at]
            self._at += 1
            for values, count in self._values(head, item):
                tree = Tree(spout.forest, Delivery(item.places, getattr(values, "origin", None)), now)
                head.deliver(tree, item.source, item.stream, item.task, values)
                spout.forest.planted(tree, count)
                emitted += count
        spout.emitted += emitted

    def _values(self, head: BoltTask, item: Item) -> Iterator[tuple[Any, int]]:
        """Yield what the bolt gets of a tuple, and how many records that is: a chunk only if it takes chunks."""
        make = self.kinds[item.source, item.stream]._make
        if not isinstance(item.values, bytes):
            yield make(item.values), 1
            return
        chunk = from_wire(item.values)
        if head.task_id in head.world.takes_chunks:
            head.has_chunks = True
            yield chunk, chunk.num_rows
        else:
            yield from ((make(values), 1) for values in rows_of(chunk))

    def restore(self, held: Mapping[str, tuple[Place | Span, ...]]) -> None:
        """Let the bolt ack and fail, and anchor to, what it has held since an earlier batch."""
        head = self.head
        assert head is not None
        for tuple_id, places in held.items():
            tree = Tree(self._forest, Delivery(places, held=True), 0.0)
            attach(head.held, tuple_id, tree)
            self._forest.planted(tree)

    def held(self) -> dict[str, tuple[Place | Span, ...]]:
        """Return what the bolt holds at the end, with the records behind it; the newest, if that is too much."""
        assert self.head is not None
        open_trees = self._forest.open
        found = {
            tuple_id: tree.msg_id.own
            for tuple_id, root in self.head.held.items()
            for tree in trees_of(root)
            if tree in open_trees
        }
        return dict(itertools.islice(found.items(), max(0, len(found) - HELD_MAX), None))

    @property
    def _forest(self) -> Forest:
        assert self.spout is not None
        return self.spout.forest

    def done(self, root: Delivery) -> None:
        """What came of a tuple here is done."""
        self._outbox.settle(root, complete=True)

    def failed(self, root: Delivery, failure: Failure) -> None:
        """It failed, and so does the batch: only a new start from the state before it leaves nothing half done.

        Unless the record was read in an earlier batch and is given up: then the bolt is rid of it, and that is all.
        """
        if root.held and self._is_given_up(root.places):
            self._outbox.settle(root, complete=True)  # so what came of it and of others goes
            return
        self._outbox.settle(root, complete=False)
        # A chunk of an earlier batch is not read again, in parts or otherwise: all of its records have failed.
        self.fail(tuple(places_of(root.places)) if root.held else root.places, failure)

    def _is_given_up(self, places: tuple[Place | Span, ...]) -> bool:
        return bool(places) and self._skip.issuperset(places_of(places))

    def fail(self, places: tuple[Place | Span, ...], failure: Failure) -> None:
        """Fail the batch."""
        assert self.head is not None
        self._outbox.put(FAILED, self.head.name, (places, failure))
        self.failures.append(failure)


class Kept(NamedTuple):
    """What is kept of a stateful bolt's task between two batches.

    Attributes:
        next_id: of the next tuple.
        held: what it has neither acked nor failed, and the records behind that.
        state: its attributes.
    """

    next_id: int = 1
    held: Mapping[str, tuple[Place | Span, ...]] = {}
    state: bytes | None = None


class _StatefulPass(Pass):
    """One batch of one task of a stateful bolt."""

    def __init__(
        self,
        shipment: Shipment,
        level: int,
        head: Head,
        items: list[Item],
        state: bytes | None,
        tick_s: float,
        skip: Collection[Place] = (),
    ) -> None:
        self._kept = Kept() if state is None else Kept(*pickle.loads(state))
        self._tick_s = tick_s
        outbox = Outbox()
        self._tuples = Tuples(items, outbox, skip)
        self._name = head.name
        super().__init__(shipment, shipment.plan.stages[level], self._tuples, outbox, Figures(), head)
        # Ids go on where the last batch ended: the bolt may still hold tuples of it.
        self.engine.world.next_id = map(str, itertools.count(self._kept.next_id)).__next__
        self._bolt = next(bolt for bolt in self.engine.bolts if bolt.name == head.name)
        self._tuples.head, self._tuples.spout = self._bolt, self.engine.spouts[0]
        self._tuples.kinds = self.kinds
        self.new_state = state

    def begin(self) -> None:
        """Give the bolt its state."""
        self._fresh = attributes(self._bolt.instance)
        if self._kept.state is not None:
            restore(self._bolt.instance, self._kept.state)
        self._tuples.restore(self._kept.held)

    def finish(self) -> None:
        """Process batches, tick if it is time, and let the bolts behind finish."""
        bolt = self._bolt
        self.engine.work()
        if bolt.is_batching:
            bolt.drain()
        if self._tick_s:
            bolt.tick_s, self._tick_s = self._tick_s, 0.0
            bolt.tick()
        self.engine.finish_batch(keep=[bolt])

    def end(self) -> None:
        """Keep the state; what the bolt holds on to is in it, so its records are done.

        Of a batch that failed there is nothing to keep. A bolt that was restarted has lost its state, so the batch
        fails too where that was not for a tuple: in a tick, or between batches.
        """
        tuples = self._tuples
        if self._bolt.restarts and all(failure.kind == "timeout" for failure in tuples.failures):
            why = self.engine.world.errors.summary()
            tuples.fail((), Failure("exception", self._name, error=why[-1] if why else ""))
        if not tuples.failures:
            held = tuples.held()
            for tree in list(self.engine.spouts[0].forest.open):
                tuples.done(tree.msg_id)
            state = save(self._name, self._bolt.instance, self._fresh)
            kept = Kept(int(self.engine.world.next_id()), held, state)
            self.new_state = pickle.dumps(tuple(kept), pickle.HIGHEST_PROTOCOL)
        super().end()


class Stateful(StatefulProcessor):
    """A later stage: one state key for each task of its stateful bolts. Other rows pass through.

    Args:
        packed: the topology.
        level: which stage.
        skip: records that are given up.
    """

    def __init__(self, packed: Packed, level: int, skip: Collection[Place] = ()) -> None:
        self._packed, self._level, self._skip = packed, level, tuple(skip)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._handle = handle
        self._state = handle.getValueState("component", "data binary")
        self._shipment = self._packed.open()
        self._heads = self._shipment.plan.stages[self._level].heads

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Run the bolt over its tuples of this batch."""
        name, index = key
        if name not in self._heads:
            yield from rows
            return
        items = [item for frame in rows for payload in frame["payload"] for item in load(payload)]
        yield self._run(Head(name, int(index)), items, timerValues, is_tick=False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Tick."""
        yield self._run(Head(key[0], int(key[1])), [], timerValues, is_tick=True)

    def _run(self, head: Head, items: list[Item], timers: Any, *, is_tick: bool) -> pd.DataFrame:
        held = self._state.get()
        period = float(self._shipment.confs[head.name].get("topology.tick.tuple.freq.secs") or 0)
        state = bytes(held[0]) if held is not None else None
        tick_s = period if is_tick else 0.0
        work = _StatefulPass(self._shipment, self._level, head, items, state, tick_s, self._skip)
        rows = list(work.rows())
        if work.new_state is not None:
            self._state.update((work.new_state,))
        if period and (is_tick or not any(self._handle.listTimers())):
            self._handle.registerTimer(timers.getCurrentProcessingTimeInMs() + int(period * 1000))
        return to_batch(rows).to_pandas()

    def close(self) -> None:
        """Nothing is open."""
