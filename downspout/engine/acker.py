"""Tuple trees: when a spout tuple and everything emitted from it is done, and how long that took.

Storm's acker XORs random numbers because the parts of a tree live on many machines. In one process, counting suffices:
a tree's ``pending`` is the number of its tuples that were delivered and not yet acked. At zero the tree is complete. A
bolt emits before it acks, so the count reaches zero only once.

The invariant: for every open tree, ``pending`` equals the number of entries in all ``Held`` maps that lead to it.
A tree that failed or timed out is *closed*: its count is so far below zero that late acks cannot complete it. The hot
path therefore needs no test for closed trees.

A task's ``Held`` map has the tuples that its bolt has not settled: id → the tree, or a tuple of trees if the tuple was
anchored to several. Settling removes the entry, so a second ack, or an ack after a fail, has no effect.

**BatchingBolts.** A BatchingBolt holds tuples until its batch is due. If a chunk fails meanwhile, all its records are
emitted again; processing the tuples of both attempts would count its good records twice. So if the spout is known to
retry (``PendingTrees.replays``), tuples of failed attempts are removed right before ``process_batch``. Any other spout
may drop a failed tuple; its tuples are processed, as on Storm. So are timed-out tuples of all spouts: otherwise a bolt
whose batches take longer than the message timeout would make no progress. A tuple anchored to several trees stays while
one of them is open: the source tuple that it was made from is unknown here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from downspout.protocols import Failure

CLOSED = -(1 << 60)  # The count of a tree that failed or timed out


class Tree:
    """A spout tuple with an id, and the tuples emitted from it."""

    __slots__ = ("forest", "msg_id", "pending", "started")

    def __init__(self, forest: PendingTrees, msg_id: Any, started: float) -> None:
        self.forest = forest
        self.msg_id = msg_id
        self.started = started
        self.pending = 0

    @property
    def closed(self) -> bool:
        """Whether it failed or timed out."""
        return self.pending < 0


new_tree: Callable[[type[Tree]], Tree] = object.__new__
"""Makes a tree whose attributes the caller sets: ``__init__`` would cost a tenth of a hop."""
Root = Tree | tuple[Tree, ...]
Held = dict[str, Root]


class PendingTrees:
    """The trees of one spout task."""

    __slots__ = ("completed", "failed", "open", "replays", "retries", "sizes", "tried")

    def __init__(self) -> None:
        self.open: dict[Tree, None] = {}  # oldest first
        self.completed: list[Tree] = []  # complete, but their spout has not been told
        self.failed: list[tuple[Tree, Failure]] = []  # failed or timed out, but their spout has not been told
        self.sizes: dict[Tree, int] = {}  # records per tree, for chunks
        # replays: the spout is known to retry failed tuples until it gives up, so bolts need not finish them
        # retries: the spout declares that it does; applies only to tuples that no bolt has started to process
        self.replays = self.retries = False
        # asks the spout whether an earlier run failed on a tuple and processed later ones
        self.tried: Callable[[Any], bool] | None = None

    def planted(self, tree: Tree, size: int = 1) -> None:
        """Register a tree after its first deliveries; without any, it is complete."""
        if size != 1:
            self.sizes[tree] = size
        if tree.pending:
            self.open[tree] = None
        else:
            self.completed.append(tree)

    def fail(self, tree: Tree, failure: Failure) -> None:
        """Close ``tree``, unless it is closed or complete already."""
        if tree in self.open:
            del self.open[tree]
            tree.pending = CLOSED
            self.failed.append((tree, failure))

    def expire(self, before: float) -> list[Tree]:
        """Time out all trees that started at or before ``before``, and return them. O(expired)."""
        late = []
        for tree in self.open:  # oldest first
            if tree.started > before:
                break
            late.append(tree)
        for tree in late:
            self.fail(tree, TIMEOUT)
        return late

    def records(self, trees: Sequence[Tree]) -> int:
        """Return how many records these finished trees held, and forget their sizes. O(1) without chunks."""
        if not self.sizes:
            return len(trees)
        return sum(self.sizes.pop(tree, 1) for tree in trees)

    def was_tried(self, msg_id: Any) -> bool:
        """Return whether an earlier run failed on this tuple and processed later ones."""
        return self.tried is not None and bool(self.tried(msg_id))

    def oldest(self) -> float | None:
        """Return when the oldest open tree started."""
        return next(iter(self.open)).started if self.open else None


TIMEOUT = Failure("timeout")


def trees_of(root: Root) -> tuple[Tree, ...]:
    """Return the trees behind an entry of a Held map."""
    return (root,) if isinstance(root, Tree) else root


def will_be_retried(root: Root) -> bool:
    """Return whether the spouts of all trees behind an entry retry failed tuples until they give up by themselves."""
    return all(tree.forest.replays or tree.forest.retries for tree in trees_of(root))


def is_retried(root: Root) -> bool:
    """Return whether all trees behind an entry have failed, and all will be emitted again."""
    return all(tree.closed for tree in trees_of(root)) and will_be_retried(root)


def attach(held: Held, tuple_id: str, root: Root) -> None:
    """Record a delivery: one more tuple of ``root`` waits for its ack."""
    held[tuple_id] = root
    for tree in trees_of(root):
        tree.pending += 1


def settle_many(trees: Sequence[Tree]) -> int:
    """Count an ack for each of these trees, whose tuples were just removed from a Held map; return how many."""
    # The only place where acks are counted. Callers gather trees and call it once for many: a call per ack would cost
    # a tenth of a hop, and so would a method call per complete tree.
    for tree in trees:
        tree.pending -= 1
        if not tree.pending:
            forest = tree.forest
            del forest.open[tree]
            forest.completed.append(tree)
    return len(trees)


def fail(held: Held, tuple_id: str, failure: Failure) -> bool:
    """Fail all trees of a tuple; return whether it was unsettled."""
    root = held.pop(tuple_id, None)
    if root is None:
        return False
    for tree in trees_of(root):
        tree.forest.fail(tree, failure)
    return True


def join(held: Held, anchors: Iterable[str]) -> Root | None:
    """Return the root of a tuple anchored to these ids: each tree once, in order; None if all are settled."""
    trees: dict[Tree, None] = {}
    for anchor in anchors:
        if (root := held.get(anchor)) is not None:
            trees.update(dict.fromkeys(trees_of(root)))
    if len(trees) == 1:
        return next(iter(trees))
    return tuple(trees) or None


def sweep(held: Held) -> int:
    """Drop entries whose trees are all closed (a bolt may never ack them); return how many. O(held)."""
    dead = [tuple_id for tuple_id, root in held.items() if all(tree.closed for tree in trees_of(root))]
    for tuple_id in dead:
        del held[tuple_id]
    return len(dead)


class Batching(Protocol):
    """A BatchingBolt's task, as used here."""

    instance: Any
    is_batching: bool

    @property
    def held(self) -> Held:
        """The trees of the tuples that it has neither acked nor failed."""


def make_process_batch(task: Batching) -> Callable[[Any, Any], Any]:
    """Return a BatchingBolt's ``process_batch`` that first drops failed tuples; pystorm calls it on the instance."""
    process_batch: Callable[[Any, Any], Any] = task.instance.process_batch

    def process_live(key: Any, tups: Any) -> Any:
        """Process a batch without its failed tuples, unless that leaves none."""
        # In place: pystorm anchors emits to the tuples of this list, and acks them afterwards.
        if isinstance(tups, list) and _forget_in(task, tups) and not tups:
            return None
        return process_batch(key, tups)

    return process_live


def forget_failed(task: Batching) -> None:
    """Remove failed tuples from a BatchingBolt's batches, before the engine forgets which tuples failed."""
    if task.is_batching:
        for tups in task.instance._batches.values():
            _forget_in(task, tups)


def _forget_in(task: Batching, tups: list[Any]) -> bool:
    """Remove failed tuples from a batch; return whether it had any."""
    held = task.held
    # Tuples that were acked already, or belong to no tree, are not in ``held``; they stay.
    failed = {tup[0] for tup in tups if (root := held.get(tup[0])) is not None and _is_over(root)}
    if failed:
        tups[:] = [tup for tup in tups if tup[0] not in failed]
        for tuple_id in failed:
            del held[tuple_id]
    return bool(failed)


def _is_over(root: Root) -> bool:
    """Return whether all trees of a tuple have failed and will be replayed."""
    if type(root) is Tree:
        return root.pending < 0 and root.forest.replays
    return all(tree.closed and tree.forest.replays for tree in trees_of(root))


SAMPLES_MAX = 20_000


GROWTH = 1.02  # Ratio between the widths of neighbouring buckets of a histogram
_PER_E_FOLD = 1 / math.log(GROWTH)
SHORTEST_S = 1e-6


def bucket_of(seconds: float) -> int:
    """Return the number of a latency's histogram bucket."""
    return int(math.log(max(seconds, SHORTEST_S)) * _PER_E_FOLD // 1)


def quantile_ms(histogram: Mapping[int, float], q: float) -> float | None:
    """Return a quantile of a histogram in milliseconds, accurate to 1 %; None if it is empty. O(buckets · log).

    >>> [round(quantile_ms({bucket_of(0.010): 98.0, bucket_of(2.0): 2.0}, q)) for q in (0.5, 0.99)]
    [10, 2020]
    """
    reached, total = 0.0, sum(histogram.values())
    for bucket in sorted(histogram):
        reached += histogram[bucket]
        if reached > q * total:
            return float(GROWTH ** (bucket + 0.5) * 1000)
    return None


class Latencies:
    """How long complete trees took: of the first SAMPLES_MAX each is measured, then every second, fourth, …"""

    def __init__(self) -> None:
        self._samples = 0
        self._stride = 1
        self.histogram: dict[int, float] = {}
        """Number of trees per bucket since the start; subtract two copies to get an interval."""

    def add(self, completed: Sequence[Tree], now: Callable[[], float]) -> None:
        """Record the latency of trees that are complete now."""
        if not completed:
            return
        end, histogram = now(), self.histogram
        samples = completed[:: self._stride]
        weight = len(completed) / len(samples)
        for tree in samples:
            bucket = bucket_of(end - tree.started)
            histogram[bucket] = histogram.get(bucket, 0.0) + weight
        self._samples += len(samples)
        while self._samples > SAMPLES_MAX:
            self._samples //= 2
            self._stride *= 2
