"""Tuple trees: when is everything done that came of a spout's tuple?

Storm's acker XORs random numbers because the parts of a tree live on many machines. In one process it is enough to
count: a tree's ``pending`` is the number of its tuples that were delivered and not yet acked. A delivery adds one, an
ack takes one away, and at zero the tree is complete. A bolt emits before it acks, so the count touches zero only once.

The invariant: for every open tree, ``pending`` equals the number of entries in all ``Held`` maps that lead to it.
A tree that failed or timed out is *closed*: its count is so far below zero that no late ack brings it to zero again, so
the hot path needs no test for it.

What a bolt was given and has not settled is in its task's ``Held`` map: id → the tree, or a tuple of trees where the
tuple was anchored to several. Settling takes the entry out, so a second ack, or an ack after a fail, finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from downspout.protocols import Failure

CLOSED = -(1 << 60)  # The count of a tree that failed or timed out


class Tree:
    """What came of one spout tuple with an id."""

    __slots__ = ("forest", "msg_id", "pending", "started")

    def __init__(self, forest: Forest, msg_id: Any, started: float) -> None:
        self.forest = forest
        self.msg_id = msg_id
        self.started = started
        self.pending = 0

    @property
    def closed(self) -> bool:
        """Whether it failed or timed out."""
        return self.pending < 0


new_tree: Callable[[type[Tree]], Tree] = object.__new__
"""Makes a tree whose attributes the hot path sets itself: a call of ``__init__`` would be a tenth of a hop."""

Root = Tree | tuple[Tree, ...]
Held = dict[str, Root]


class Forest:
    """The trees of one spout task."""

    __slots__ = ("completed", "failed", "open", "replays", "retries", "sizes", "tried")

    def __init__(self) -> None:
        self.open: dict[Tree, None] = {}  # trees that are not done, oldest first
        self.completed: list[Tree] = []  # trees that are complete; their spout has not had the ack yet
        self.failed: list[tuple[Tree, Failure]] = []  # the same for failed and timed-out ones, with the reason
        self.sizes: dict[Tree, int] = {}  # how many records a tree's spout tuple held, where it was a chunk
        # whether the spout is known to emit again what failed, until it gives up: bolts need not finish it
        # whether the spout says so itself; this counts only for tuples that no bolt has begun with
        self.replays = self.retries = False
        # asks the spout whether an earlier run has left a tuple behind while later ones got through
        self.tried: Callable[[Any], bool] | None = None

    def planted(self, tree: Tree, size: int = 1) -> None:
        """Take in a tree after its first deliveries; one that reached no task is complete."""
        if size != 1:
            self.sizes[tree] = size
        if tree.pending:
            self.open[tree] = None
        else:
            self.completed.append(tree)

    def fail(self, tree: Tree, failure: Failure) -> None:
        """Close ``tree``; nothing happens where it is closed or complete already."""
        if tree in self.open:
            del self.open[tree]
            tree.pending = CLOSED
            self.failed.append((tree, failure))

    def expire(self, before: float) -> list[Tree]:
        """Time out all trees that started at or before that moment, and return them. O(expired)."""
        late = []
        for tree in self.open:  # oldest first, because trees are planted in the order of time
            if tree.started > before:
                break
            late.append(tree)
        for tree in late:
            self.fail(tree, TIMEOUT)
        return late

    def records(self, trees: Sequence[Tree]) -> int:
        """Return how many records these trees held, and forget it: they are done. O(1) without chunks."""
        if not self.sizes:
            return len(trees)
        return sum(self.sizes.pop(tree, 1) for tree in trees)

    def was_tried(self, msg_id: Any) -> bool:
        """Return whether an earlier run has left this tuple behind while later ones got through."""
        return self.tried is not None and bool(self.tried(msg_id))

    def oldest(self) -> float | None:
        """Return when the oldest open tree started."""
        return next(iter(self.open)).started if self.open else None


TIMEOUT = Failure("timeout")


def trees_of(root: Root) -> tuple[Tree, ...]:
    """Return the trees behind an entry of a Held map."""
    return (root,) if isinstance(root, Tree) else root


def will_be_retried(root: Root) -> bool:
    """Return whether the spouts of all trees behind an entry retry what fails, until they give up by themselves."""
    return all(tree.forest.replays or tree.forest.retries for tree in trees_of(root))


def is_retried(root: Root) -> bool:
    """Return whether all trees behind an entry have failed, and all will be emitted again."""
    return all(tree.closed for tree in trees_of(root)) and will_be_retried(root)


def attach(held: Held, tuple_id: str, root: Root) -> None:
    """Note a delivery: one more tuple of ``root`` waits for its ack."""
    held[tuple_id] = root
    for tree in trees_of(root):
        tree.pending += 1


def settle_many(trees: Sequence[Tree]) -> int:
    """Count an ack for each of these trees, whose tuples were just taken out of a Held map; return how many."""
    # The only place where acks are counted. Callers gather trees and call it once for many: a call per ack would be a
    # tenth of a hop, and so would a call of a method for a tree that is complete.
    for tree in trees:
        tree.pending -= 1
        if not tree.pending:
            forest = tree.forest
            del forest.open[tree]
            forest.completed.append(tree)
    return len(trees)


def fail(held: Held, tuple_id: str, failure: Failure) -> bool:
    """Fail all trees of a tuple; return whether it was there to settle."""
    root = held.pop(tuple_id, None)
    if root is None:
        return False
    for tree in trees_of(root):
        tree.forest.fail(tree, failure)
    return True


def join(held: Held, anchors: Iterable[str]) -> Root | None:
    """Return the root of a tuple anchored to these ids: each tree once, in order; None where all are settled."""
    trees: dict[Tree, None] = {}
    for anchor in anchors:
        if (root := held.get(anchor)) is not None:
            trees.update(dict.fromkeys(trees_of(root)))
    if len(trees) == 1:
        return next(iter(trees))
    return tuple(trees) or None


def sweep(held: Held) -> int:
    """Drop entries whose trees are all closed (a bolt may never ack them), and return how many. O(held)."""
    dead = [tuple_id for tuple_id, root in held.items() if all(tree.closed for tree in trees_of(root))]
    for tuple_id in dead:
        del held[tuple_id]
    return len(dead)
