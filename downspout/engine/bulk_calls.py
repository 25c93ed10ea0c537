"""Bulk calls between the engine and our own components: many tuples in one call, and chunks.

**Many tuples.** Each tuple keeps its id, tree, ack and timeout; only calls are saved, which in Python cost more than
the work done in them. The engine calls ``process_many`` of a bolt and ``ack_many`` of a spout; a component calls
``emit_many`` and ``ack_many`` of its engine (:mod:`downspout.protocols`). If a component has changed the single-tuple
method (a subclass overrides ``process`` but not ``process_many``, a test replaces ``emit``), that is called for each
tuple.

**Chunks.** A chunk is a ``pyarrow.RecordBatch`` with the fields of its stream as columns. It is passed on without a
copy; only a fields grouping with several tasks splits it, by the hash used for records. A bolt takes chunks if its
class has ``process_chunk(tup)`` and does not override pystorm's reading; ``tup.values`` is the RecordBatch. For any
other bolt, each record becomes a tuple, anchored like the chunk: the chunk is done when all its records are.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pystorm.component import Tuple

from downspout.engine import acker
from downspout.engine.acker import Held, PendingTrees, Tree, new_tree, settle_many
from downspout.engine.groupings import Route
from downspout.engine.runtime import Runtime
from downspout.engine.task import Spread, StreamTargets, Target, Task
from downspout.errors import USER_ERRORS, TopologyError, UserError
from downspout.origins import rows_of, values_of

MANY_MAX = 512  # Tuples per call of a bolt
_new = tuple.__new__


class Many(Protocol):
    """A task, as used here."""

    instance: Any
    name: str
    task_id: int
    emitted: int

    @property
    def world(self) -> Runtime:
        """The context that all tasks share."""

    @property
    def outlets(self) -> Mapping[str | None, StreamTargets]:
        """Its streams; the default one is also under None."""


class ManyBolt(Many, Protocol):
    """A bolt's task, as used here."""

    acked: int
    executed: int
    has_chunks: bool

    @property
    def held(self) -> Held:
        """The trees of its unsettled tuples."""

    @property
    def queue(self) -> deque[Any]:
        """Its waiting tuples."""

    def settle_one(self, tuple_id: str, root: Any) -> None:
        """Count an ack."""

    def crashed(self, error: UserError, tup: Any, *, in_batch: bool = True) -> None:
        """Handle an exception of the bolt."""


class ManySpout(Many, Protocol):
    """A spout's task, as used here."""

    stamp: float | None

    @property
    def forest(self) -> PendingTrees:
        """Its open trees."""

    def stamped(self) -> float:
        """Read the clock."""


def for_many(component: Any, many: str, one: str) -> Any:
    """Return a component's method for many tuples; None if it has none, or a subclass overrides only the single one.

    >>> class Old:
    ...     def ack(self, tup_id): ...
    ...     def ack_many(self, tup_ids): ...
    >>> class New(Old):
    ...     def ack(self, tup_id): ...
    >>> for_many(Old(), "ack_many", "ack") is None, for_many(New(), "ack_many", "ack") is None
    (False, True)
    """
    for place in (vars(component), *map(vars, type(component).__mro__)):
        if many in place:
            return getattr(component, many)
        if one in place:
            return None
    return None


def run_many(task: ManyBolt, process_many: Callable[[list[Any]], int], count: int) -> int:
    """Pass a bolt its next ``count`` tuples; return how many of them it took."""
    bolt, queue = task.instance, task.queue
    bolt._current_tups = tups = [queue.popleft() for _ in range(count)]
    try:
        taken = process_many(tups)
        if taken < count:
            queue.extendleft(reversed(tups[taken:]))
            del tups[taken:]
        if bolt.auto_ack:
            bolt.ack_many(tups)
        bolt._current_tups = []
    except USER_ERRORS as error:
        # If the bolt raises, all these tuples have failed, as in a BatchingBolt.
        task.executed += len(tups)
        task.crashed(error, None, in_batch=False)
    else:
        task.executed += len(tups)
    return len(tups)


def bolt_acks_many(task: ManyBolt) -> Callable[[Iterable[Any]], None]:
    """Return the function that acks many tuples, or ids, for a bolt."""
    pop, bolt, own, observer = task.held.pop, task.instance, task.instance.ack, task.world.observer

    def ack_many(tups: Iterable[Any]) -> None:
        """Indicate that processing of these tuples has succeeded."""
        if bolt.ack is not own or task.has_chunks:
            for tup in tups:
                bolt.ack(tup)
            return
        ids = [tup[0] if isinstance(tup, Tuple) else tup for tup in tups]
        roots: list[Any] = list(map(pop, ids, repeat(None)))
        if observer is None and set(map(type, roots)) == {Tree}:
            task.acked += settle_many(roots)
            return
        for tuple_id, root in zip(ids, roots, strict=True):
            task.settle_one(tuple_id, root)

    return ack_many


def bolt_emits_many(task: ManyBolt) -> Callable[[Sequence[Sequence[Any]], Sequence[Any]], None]:
    """Return the function that emits many tuples to the default stream for a bolt, each anchored to one tuple."""
    bolt, own, outlet, held = task.instance, task.instance.emit, task.outlets.get(None), task.held
    is_plain = outlet is not None and outlet.has_one_reader

    def emit_many(rows: Sequence[Sequence[Any]], anchors: Sequence[Any]) -> None:
        """Emit new tuples to the default stream."""
        trees = list(map(held.get, [anchor[0] for anchor in anchors])) if is_plain and bolt.emit is own else []
        if outlet is None or set(map(type, trees)) != {Tree} or not _fit(rows, outlet.size):
            for row, anchor in zip(rows, anchors, strict=True):
                bolt.emit(row, anchors=[anchor])
            return
        for tree in trees:
            tree.pending += 1  # type: ignore[union-attr]
        _deliver(task, outlet, rows, trees)

    return emit_many


def spout_emits_many(task: ManySpout) -> Callable[[Iterable[Sequence[Any]], Iterable[Any]], None]:
    """Return the function that emits many tuples to the default stream for a spout, each under its message id."""
    spout, own, outlet, forest = task.instance, task.instance.emit, task.outlets.get(None), task.forest
    is_plain = outlet is not None and outlet.has_one_reader and task.world.ackers

    def emit_many(rows: Iterable[Sequence[Any]], tup_ids: Iterable[Any]) -> None:
        """Emit spout tuples."""
        rows = list(rows)
        if outlet is None or not is_plain or spout.emit is not own or not _fit(rows, outlet.size):
            for row, tup_id in zip(rows, tup_ids, strict=True):
                spout.emit(row, tup_id=tup_id)
            return
        started = task.stamp or task.stamped()
        trees = []
        for tup_id in tup_ids:
            tree = new_tree(Tree)
            tree.forest, tree.msg_id, tree.started, tree.pending = forest, tup_id, started, 1
            trees.append(tree)
        forest.open.update(dict.fromkeys(trees))
        _deliver(task, outlet, rows, trees)

    return emit_many


def _fit(rows: Sequence[Sequence[Any]], size: int) -> bool:
    """Return whether all rows have as many fields as their stream; False without rows."""
    return set(map(len, rows)) == {size}


def _deliver(task: Many, outlet: StreamTargets, rows: Sequence[Sequence[Any]], trees: Sequence[Any]) -> None:
    """Enqueue one tuple per row, each in its tree, at a stream's only reader; the loops run in C."""
    name, task_id, observer, count = task.name, task.task_id, task.world.observer, len(rows)
    ((_, held, _, put_many),) = outlet.fixed
    ids = list(islice(iter(task.world.next_id, ""), count))
    held.update(zip(ids, trees, strict=True))
    task.emitted += count
    values: Iterable[Any] = map(_new, repeat(outlet.kind), rows)
    if observer is not None:
        values = list(values)
    tuples = zip(ids, repeat(name), repeat(outlet.stream), repeat(task_id), values, strict=False)
    put_many(map(_new, repeat(Tuple), tuples))
    if observer is not None:
        for tuple_id, value in zip(ids, values, strict=True):
            observer.on_emit(task, outlet.stream, value, [tuple_id])


RecordBatch: Any = pa.RecordBatch


def deliver(
    task: Task, outlet: StreamTargets, batch: Any, root: acker.Root | None, direct_task: int | None
) -> list[int]:
    """Enqueue a chunk at the stream's readers; return the ids of the tasks that received part of it."""
    fields = outlet.kind._fields
    if tuple(batch.schema.names) != fields:
        raise TopologyError(
            f"{task.place} emits a chunk with the columns {', '.join(batch.schema.names)} to stream {outlet.stream!r}, "
            f"whose fields are {', '.join(fields)}",
            cure="batch.select([…]) with the stream's fields, in their order",
        )
    world = task.world
    task.emitted += batch.num_rows
    observed, reached = [], []
    for target, part in _parts(task, outlet, batch, direct_task):
        if not part.num_rows:
            continue
        task_id, held, put, _ = target
        reached.append(task_id)
        if (taker := world.takes_chunks.get(task_id)) is not None:
            taker.has_chunks = True
        for values in (part,) if taker is not None else map(outlet.kind._make, rows_of(part)):
            if root is None:
                tuple_id = world.next_untracked()
            else:
                tuple_id = world.next_id()
                acker.attach(held, tuple_id, root)
            observed.append(tuple_id)
            put(_new(Tuple, (tuple_id, task.name, outlet.stream, task.task_id, values)))
    if world.observer is not None:
        world.observer.on_emit(task, outlet.stream, batch, observed)
    return reached


def _parts(task: Task, outlet: StreamTargets, batch: Any, direct_task: int | None) -> Iterable[tuple[Target, Any]]:
    if direct_task is not None:
        return [(target, batch) for target in task.direct_targets(outlet, direct_task)]
    if outlet.is_direct:
        raise task.wrong_emit(outlet, outlet.stream, ())
    return [item for spread in outlet.spreads for item in spread(batch)]


def make_spread(grouping: str, targets: Sequence[Target], indexes: Sequence[int], route: Route[Target]) -> Spread:
    """Return the function that routes a chunk: a fields grouping splits it by record, others pass it whole."""
    if grouping != "fields" or len(targets) == 1:
        return lambda batch: [(target, batch) for target in route(())]
    numbers = {target[0]: number for number, target in enumerate(targets)}

    def spread(batch: Any) -> Iterable[tuple[Target, Any]]:
        wanted = _task_numbers(batch, indexes, lambda values: numbers[route(values)[0][0]])
        return [(target, batch.filter(pa.array(wanted == number))) for number, target in enumerate(targets)]

    return spread


def _task_numbers(batch: Any, indexes: Sequence[int], number_of: Callable[[tuple[Any, ...]], int]) -> NDArray[np.int64]:
    """Return the number of each record's task. If the key is one column, each distinct value is looked up once."""
    column = batch.column(indexes[0])
    if (encoded := _encoded(column) if len(indexes) == 1 else None) is None:
        columns = [
            values_of(column) if index in indexes else itertools.repeat(None)
            for index, column in enumerate(batch.columns)
        ]
        return np.array([number_of(values) for values in zip(*columns, strict=False)])
    before = (None,) * indexes[0]
    found = np.array([number_of((*before, value)) for value in values_of(encoded.dictionary)])
    picked: NDArray[np.int64] = found[encoded.indices.to_numpy()]
    return picked


def _encoded(column: Any) -> Any:
    """Return a column dictionary-encoded; None if Arrow cannot encode its type, such as UUIDs."""
    if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        return None
    try:
        return column.dictionary_encode(null_encoding="encode")
    except pa.ArrowNotImplementedError:
        return None
