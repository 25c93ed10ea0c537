"""Many tuples by one call: what our own components hand over and take together.

Nothing is coarser for it. Each tuple has its id, its tree, its ack, its timeout; what is saved are calls, which in
Python cost more than all that is done in them. A component is free not to know of it:

=============================  =====================================================================================
``process_many(tups)``         bolt: process the first of these, as many as are plain; return how many those were. The
                               next one goes to ``process``, which says what is odd about it
``emit_many(rows, anchors)``   bolt: the engine's own; one tuple per row, each anchored to one tuple
``emit_many(rows, tup_ids)``   spout: the engine's own; one tuple per row, each under its message id
``ack_many(tups)``             bolt: the engine's own; acks tuples, or ids of tuples
``ack_many(tup_ids)``          spout: called instead of ``ack``
=============================  =====================================================================================

Whoever has changed the method for one is called for each one: a subclass that overrides ``process`` and not
``process_many``, a test that puts its own ``emit`` into the component.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

from pystorm.component import Tuple

from downspout.errors import USER_ERRORS
from downspout.local.acker import Tree, new_tree

if TYPE_CHECKING:
    from downspout.local.bolt_task import BoltTask
    from downspout.local.spout_task import SpoutTask
    from downspout.local.task import Outlet, Task

__all__ = ["MANY_MAX", "bolt_acks_many", "bolt_emits_many", "for_many", "run_many", "spout_emits_many"]

MANY_MAX = 256
"""Tuples that a bolt gets at once."""
_new = tuple.__new__


def for_many(component: Any, many: str, one: str) -> Any:
    """Return a component's method for many; None where it has none, or the one for one is newer.

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


def run_many(task: BoltTask, process_many: Callable[[list[Any]], int], count: int) -> int:
    """Let a bolt process as many of its next tuples as it takes together; return how many those were.

    If it raises, all that it was given has failed, as in a BatchingBolt.
    """
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
        task.crashed(error, None)
    finally:
        task.executed += len(tups)
    return len(tups)


def bolt_acks_many(task: BoltTask) -> Callable[[Iterable[Any]], None]:
    """Return the function that acks many tuples, or ids, for a bolt."""
    pop, bolt, own, observer = task.held.pop, task.instance, task.instance.ack, task.world.observer

    def ack_many(tups: Iterable[Any]) -> None:
        """Indicate that processing of these tuples has succeeded."""
        if bolt.ack is not own or task.has_chunks:
            for tup in tups:
                bolt.ack(tup)
            return
        ids = [tup[0] if isinstance(tup, Tuple) else tup for tup in tups]
        acked = 0
        root: Any
        for tuple_id, root in zip(ids, map(pop, ids, repeat(None)), strict=True):
            if type(root) is Tree:  # acker.settle, without the calls
                acked += 1
                root.pending -= 1
                if not root.pending:
                    forest = root.forest
                    del forest.open[root]
                    forest.completed.append(root)
                if observer is not None:
                    observer.on_ack(task, tuple_id)
            else:
                task.settle_one(tuple_id, root)
        task.acked += acked

    return ack_many


def bolt_emits_many(task: BoltTask) -> Callable[[Sequence[Sequence[Any]], Sequence[Any]], None]:
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


def spout_emits_many(task: SpoutTask) -> Callable[[Iterable[Sequence[Any]], Iterable[Any]], None]:
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
    """Return whether there are rows, and all have as many fields as their stream."""
    return set(map(len, rows)) == {size}


def _deliver(task: Task, outlet: Outlet, rows: Sequence[Sequence[Any]], trees: Sequence[Any]) -> None:
    """Put a tuple per row, each of its tree, into the queue of a stream's only reader, by whole columns in C."""
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
