"""The stages as Spark's operators: stage 0 as the function of a ``mapInArrow``, the others as stateful processors."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from downspout.component import Failure
from downspout.local.acker import Tree
from downspout.local.bolt_task import BoltTask
from downspout.spark.topology.outbox import Outbox, Root
from downspout.spark.topology.records import Feed, Inlet, Records
from downspout.spark.topology.rows import FAILED, Figures, Item, Place, load, to_batch
from downspout.spark.topology.stage import Head, Pass, Shipment, arrive, whole_topology
from downspout.spark.topology.state import attributes, restore, save

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Front", "Packed", "Stateful"]

BATCH = "streaming.sql.batchId"
"""Spark's own."""
EMITS = 256


class Packed:
    """A shipment on its way to an executor.

    It stays packed until the user's modules can be found there: unpickling it imports them.

    Args:
        shipment: what is sent.
        path: where Python looks for modules here.
        modules: those that hold components.
    """

    def __init__(self, shipment: Shipment, path: Sequence[str], modules: Sequence[str]) -> None:
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
    """

    def __init__(self, packed: Packed, skip: Collection[Place] = ()) -> None:
        self._packed, self._skip = packed, tuple(skip)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stage over the records of one task."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        shipment = self._packed.open()
        stage = shipment.plan.stages[0]
        outbox, figures = Outbox(), Figures()
        confs = {name: shipment.confs[name] for name in stage.heads}
        records = Records(_chain(first, batches), confs, self._skip, outbox, figures)
        for row in Pass(shipment, stage, records, outbox, figures).rows():
            yield to_batch([row])


def _chain(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


class Delivery(Root):
    """A tuple of an earlier stage."""

    __slots__ = ("_places",)

    def __init__(self, places: tuple[Place, ...]) -> None:
        super().__init__()
        self._places = places

    @property
    def places(self) -> tuple[Place, ...]:
        """The records that it came from."""
        return self._places


class Tuples(Inlet):
    """The tuples of a batch for one task of a stateful bolt, in the order of the records that they came from.

    Spark does not promise an order after a shuffle. With this one, a batch that is computed again gives the same.
    """

    def __init__(self, items: list[Item], outbox: Outbox, shipment: Shipment) -> None:
        self._items = sorted(items, key=lambda item: item.places[:1])
        self._at = 0
        self._outbox = outbox
        tasks = whole_topology(shipment.plan.graph, shipment.confs).values()
        self._kinds = {(task.name, outlet.stream): outlet.kind for task in tasks for outlet in task.outlets.values()}
        self.head: BoltTask | None = None
        self.failures = 0

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """Whether all were delivered."""
        return self._at >= len(self._items)

    def feed(self, feed: Feed) -> None:
        """Deliver some."""
        head, spout = self.head, feed.task
        assert head is not None
        now = spout.world.clock.monotonic()
        items = self._items[self._at : self._at + EMITS]
        self._at += len(items)
        spout.emitted += len(items)
        for item in items:
            tree = Tree(spout.forest, Delivery(item.places), now)
            head.deliver(tree, item.source, item.stream, item.task, self._kinds[item.source, item.stream](*item.values))
            spout.forest.planted(tree)

    def done(self, root: Delivery) -> None:
        """What came of a tuple here is done."""
        self._outbox.settle(root, complete=True)

    def failed(self, root: Delivery, failure: Failure) -> None:
        """It failed, and so does the batch: only a new start from the state before it leaves nothing half done."""
        self._outbox.settle(root, complete=False)
        self._outbox.put(FAILED, self.head.name if self.head is not None else "", (root.places, failure))
        self.failures += 1


class _StatefulPass(Pass):
    """One batch of one task of a stateful bolt."""

    def __init__(
        self, shipment: Shipment, level: int, head: Head, items: list[Item], state: bytes | None, tick_s: float
    ) -> None:
        self._shipment, self._state, self._tick_s = shipment, state, tick_s
        outbox = Outbox()
        self._tuples = Tuples(items, outbox, shipment)
        self._name = head.name
        context = TaskContext.get()
        batch = (context.getLocalProperty(BATCH) if context is not None else None) or "0"
        super().__init__(shipment, shipment.plan.stages[level], self._tuples, outbox, Figures(), head, batch)
        self._bolt = next(bolt for bolt in self.engine.bolts if bolt.name == head.name)
        self._tuples.head = self._bolt
        self.new_state = state

    def begin(self) -> None:
        """Give the bolt its state."""
        self._fresh = attributes(self._bolt.instance)
        if self._state is not None:
            restore(self._bolt.instance, self._state)

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
        """Keep the state; what the bolt holds on to is in it, so its records are done."""
        for tree in list(self.engine.spouts[0].forest.open):
            self._tuples.done(tree.msg_id)
        self.new_state = save(self._name, self._bolt.instance, self._fresh)
        super().end()


class Stateful(StatefulProcessor):
    """A later stage: one state key for each task of its stateful bolts. Other rows pass through.

    Args:
        packed: the topology.
        level: which stage.
    """

    def __init__(self, packed: Packed, level: int) -> None:
        self._packed, self._level = packed, level

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
        work = _StatefulPass(self._shipment, self._level, head, items, state, period if is_tick else 0.0)
        rows = list(work.rows())
        if work.new_state is not None:
            self._state.update((work.new_state,))
        if period and (is_tick or held is None):
            self._handle.registerTimer(timers.getCurrentProcessingTimeInMs() + int(period * 1000))
        return to_batch(rows).to_pandas()

    def close(self) -> None:
        """Nothing is open."""
