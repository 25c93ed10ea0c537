"""BatchingBolts in the engine: what a failed attempt left in a batch is not processed with the next attempt.

A BatchingBolt holds tuples until its batch is due. A chunk that fails meanwhile comes again, and good records with it:
their tuples of the failed try would be processed beside those of the next one, and count twice in whatever is behind.
So a batch is rid of them at the last moment, before ``process_batch``.

That is so where the spout is known to try again (``Forest.replays``). Any other spout may leave a failed tuple be, and
then its tuples are processed, as on Storm. So are those that have timed out: a bolt whose batches take longer than the
message timeout would never get on otherwise. A tuple that is anchored to several trees stays while one of them is open:
which of them it came from is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from downspout.engine.acker import Held, Root, Tree, trees_of


class Batching(Protocol):
    """What is needed of a BatchingBolt's task."""

    instance: Any
    is_batching: bool

    @property
    def held(self) -> Held:
        """The trees of the tuples that it has neither acked nor failed."""


def make_process_batch(task: Batching) -> Callable[[Any, Any], Any]:
    """Return the ``process_batch`` of a BatchingBolt without what has failed; pystorm calls that of the instance."""
    process_batch: Callable[[Any, Any], Any] = task.instance.process_batch

    def process_live(key: Any, tups: Any) -> Any:
        """Process what is left of a batch, if anything is."""
        # In place: it is pystorm's own list, whose tuples it acks afterwards, and to which emits are anchored.
        if isinstance(tups, list) and _forget_in(task, tups) and not tups:
            return None
        return process_batch(key, tups)

    return process_live


def forget_failed(task: Batching) -> None:
    """Take what has failed out of all that a BatchingBolt holds, before the engine forgets which tuples those were."""
    if task.is_batching:
        for tups in task.instance._batches.values():
            _forget_in(task, tups)


def _forget_in(task: Batching, tups: list[Any]) -> bool:
    """Take what has failed out of a batch; return whether anything had."""
    held = task.held
    # A tuple that the bolt has acked already, or that belongs to no tree, is not in there, and stays.
    failed = {tup[0] for tup in tups if (root := held.get(tup[0])) is not None and _is_over(root)}
    if failed:
        tups[:] = [tup for tup in tups if tup[0] not in failed]
        for tuple_id in failed:
            del held[tuple_id]
    return bool(failed)


def _is_over(root: Root) -> bool:
    """Return whether a tuple is of failed tries alone, all of which come again."""
    if type(root) is Tree:
        return root.pending < 0 and root.forest.replays
    return all(tree.closed and tree.forest.replays for tree in trees_of(root))
