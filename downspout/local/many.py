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
from itertools import repeat
from typing import TYPE_CHECKING, Any

from pystorm.component import Tuple

from downspout.errors import USER_ERRORS
from downspout.local.acker import Tree, new_tree

if TYPE_CHECKING:
    from downspout.local.bolt_task import BoltTask
    from downspout.local.spout_task import SpoutTask

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
    bolt, own, outlet = task.instance, task.instance.emit, task.outlets.get(None)
    held, name, task_id, next_id, observer = (
        task.held, task.name, task.task_id, task.world.next_id, task.world.observer,
    )  # fmt: skip
    is_plain = outlet is not None and outlet.has_one_reader

    def emit_many(rows: Sequence[Sequence[Any]], anchors: Sequence[Any]) -> None:
        """Emit new tuples to the default stream."""
        if not is_plain or bolt.emit is not own or outlet is None:
            for row, anchor in zip(rows, anchors, strict=True):
                bolt.emit(row, anchors=[anchor])
            return
        stream, kind, size = outlet.stream, outlet.kind, outlet.size
        ((_, target_held, put),) = outlet.fixed
        root: Any
        for row, anchor in zip(rows, anchors, strict=True):
            if type(root := held.get(anchor[0])) is not Tree or len(row) != size:
                bolt.emit(row, anchors=[anchor])
                continue
            tuple_id = next_id()
            target_held[tuple_id] = root
            root.pending += 1
            task.emitted += 1
            values = _new(kind, row)
            put(_new(Tuple, (tuple_id, name, stream, task_id, values)))
            if observer is not None:
                observer.on_emit(task, stream, values, [tuple_id])

    return emit_many


def spout_emits_many(task: SpoutTask) -> Callable[[Iterable[Sequence[Any]], Iterable[Any]], None]:
    """Return the function that emits many tuples to the default stream for a spout, each under its message id."""
    spout, own, outlet, forest = task.instance, task.instance.emit, task.outlets.get(None), task.forest
    name, task_id, next_id, observer = task.name, task.task_id, task.world.next_id, task.world.observer
    is_plain = outlet is not None and outlet.has_one_reader and task.world.ackers

    def emit_many(rows: Iterable[Sequence[Any]], tup_ids: Iterable[Any]) -> None:
        """Emit spout tuples."""
        if not is_plain or spout.emit is not own or outlet is None:
            for row, tup_id in zip(rows, tup_ids, strict=True):
                spout.emit(row, tup_id=tup_id)
            return
        stream, kind, size, roots = outlet.stream, outlet.kind, outlet.size, forest.open
        ((_, target_held, put),) = outlet.fixed
        started = task.stamp or task.stamped()
        for row, tup_id in zip(rows, tup_ids, strict=True):
            if len(row) != size:
                raise task.wrong_emit(outlet, None, row)
            tree = new_tree(Tree)
            tree.forest, tree.msg_id, tree.started, tree.pending = forest, tup_id, started, 1
            tuple_id = next_id()
            target_held[tuple_id] = tree
            roots[tree] = None
            task.emitted += 1
            values = _new(kind, row)
            put(_new(Tuple, (tuple_id, name, stream, task_id, values)))
            if observer is not None:
                observer.on_emit(task, stream, values, [tuple_id])

    return emit_many
