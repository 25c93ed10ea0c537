"""Tuple trees against a naive model that keeps the whole tree."""

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from streamparse import Bolt, Spout, Topology

from downspout.component import Failure
from downspout.engine import Bounds, Engine, PendingTrees, Tree, acker, from_class
from downspout.testing import VirtualClock
from tests.sampling import examples

REASON = Failure("fail", "bolt", 3)


class Trees(RuleBasedStateMachine):
    """Plants, anchors, acks, fails and expires, and asks the model after every step who is done."""

    delivered = Bundle("delivered")

    def __init__(self):
        super().__init__()
        self.forest, self.held, self.now, self.count = PendingTrees(), {}, 0.0, 0
        self.roots = {}  # tuple id → numbers of the trees it belongs to
        self.waiting = {}  # tree number → ids of its tuples that are not settled
        self.started, self.trees = {}, {}
        self.completed, self.failed = set(), set()

    def deliver(self, root, numbers):
        """Give a tuple to a bolt, here and in the model."""
        self.count += 1
        tuple_id = str(self.count)
        acker.attach(self.held, tuple_id, root)
        self.roots[tuple_id] = set(numbers)
        for number in numbers:
            if number in self.waiting:
                self.waiting[number].add(tuple_id)
        return tuple_id

    @rule(target=delivered, dt=st.floats(0.0, 2.0))
    def plant(self, dt):
        self.now += dt
        number = len(self.trees)
        tree = self.trees[number] = Tree(self.forest, number, self.now)
        self.started[number], self.waiting[number] = self.now, set()
        tuple_id = self.deliver(tree, [number])
        self.forest.planted(tree)
        return tuple_id

    @rule(target=delivered, anchors=st.lists(delivered, min_size=1, max_size=3))
    def anchor(self, anchors):
        """A bolt emits a tuple anchored to some that it holds."""
        live = [anchor for anchor in anchors if anchor in self.held]
        root = acker.join(self.held, anchors)
        numbers = set().union(*(self.roots[anchor] for anchor in live)) if live else set()
        if root is None:
            assert not numbers
            return "nobody's"
        assert {tree.msg_id for tree in acker.trees_of(root)} == numbers
        return self.deliver(root, numbers)

    @rule(tuple_id=delivered)
    def ack(self, tuple_id):
        """A bolt acks, maybe for the second time or too late."""
        root = self.held.pop(tuple_id, None)
        if root is None:
            return
        acker.settle_many(acker.trees_of(root))
        for number in self.roots[tuple_id] & set(self.waiting):
            self.waiting[number].discard(tuple_id)
            if not self.waiting[number]:
                del self.waiting[number]
                self.completed.add(number)

    @rule(tuple_id=consumes(delivered))
    def fail(self, tuple_id):
        """A bolt fails a tuple, and with it all of its trees."""
        was_held = tuple_id in self.held
        assert acker.fail(self.held, tuple_id, REASON) == was_held
        if was_held:
            self._close(self.roots[tuple_id] & set(self.waiting))

    @rule(age=st.floats(0.0, 5.0))
    def expire(self, age):
        late = {number for number in self.waiting if self.started[number] <= self.now - age}
        assert len(self.forest.expire(self.now - age)) == len(late)
        self._close(late)
        acker.sweep(self.held)
        assert all(self.roots[tuple_id] - self.failed for tuple_id in self.held)

    def _close(self, numbers):
        for number in numbers:
            del self.waiting[number]
            self.failed.add(number)

    @invariant()
    def agrees(self):
        """Complete, failed and open trees are those of the model, each told once, and the counts are exact."""
        done, lost = self.forest.completed, [tree for tree, _ in self.forest.failed]
        assert sorted(tree.msg_id for tree in done) == sorted(self.completed)
        assert sorted(tree.msg_id for tree in lost) == sorted(self.failed)
        assert {tree.msg_id: tree.pending for tree in self.forest.open} == {n: len(w) for n, w in self.waiting.items()}


Trees.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestTrees = Trees.TestCase


def test_a_tree_that_reaches_nobody_is_complete():
    """A spout tuple without any subscriber is acked."""
    forest = PendingTrees()
    forest.planted(Tree(forest, "a", 0.0))
    assert [tree.msg_id for tree in forest.completed] == ["a"]
    assert not forest.open


def test_two_anchors_of_one_tree_count_once():
    forest, held = PendingTrees(), {}
    tree = Tree(forest, "a", 0.0)
    acker.attach(held, "1", tree)
    acker.attach(held, "2", tree)
    forest.planted(tree)
    root = acker.join(held, ["1", "2"])
    assert root is tree
    acker.attach(held, "3", root)
    for tuple_id in ("1", "2", "3"):
        acker.settle_many(acker.trees_of(held.pop(tuple_id)))
    assert [tree.msg_id for tree in forest.completed] == ["a"]


def test_the_oldest_open_tree_is_known():
    forest, held = PendingTrees(), {}
    for number, started in enumerate((1.0, 2.0)):
        tree = Tree(forest, number, started)
        acker.attach(held, str(number), tree)
        forest.planted(tree)
    assert forest.oldest() == 1.0
    acker.settle_many(acker.trees_of(held.pop("0")))
    assert forest.oldest() == 2.0
    acker.settle_many(acker.trees_of(held.pop("1")))
    assert forest.oldest() is None


class Rows(Spout):
    """Emits rows 1 to 5, and notes which are acked and which fail."""

    outputs = ("number",)

    def initialize(self, conf, context):
        self.rows, self.acked, self.failed = iter(range(1, 6)), [], []

    def next_tuple(self):
        for row in self.rows:
            self.emit([row], tup_id=row)

    def ack(self, tup_id):
        self.acked.append(tup_id)

    def fail(self, tup_id):
        self.failed.append(tup_id)


def run_rows(process):
    """Run Rows before a bolt; return the rows that were acked and those that failed."""
    made = type("Made", (Bolt,), {"process": process, "exit_on_exception": False})

    class MultilangComponent(Topology):
        rows = Rows.spec()
        bolt = made.spec(inputs=[rows])

    graph = from_class(MultilangComponent, "rows")
    engine = Engine(graph, {"rows": {}, "bolt": {}}, bounds=Bounds(records=5, for_s=1), clock=VirtualClock())
    with contextlib.suppress(KeyboardInterrupt):
        engine.run()
    rows = engine.spouts[0].instance
    return rows.acked, rows.failed


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_acked_before_a_bolt_raises_is_complete(error):
    def process(self, tup):
        if tup.values.number == 4:
            raise error("the fourth")

    acked, failed = run_rows(process)
    assert (acked, failed) == (([1, 2, 3, 5], [4]) if error is ValueError else ([1, 2, 3], []))


def test_an_ack_holds_at_once():
    """A fail, or another ack, of a tuple that was acked by itself earlier in the same turn changes nothing."""
    earlier = []

    def process(self, tup):
        for before in earlier:
            self.fail(before)
            self.ack(before)
        earlier.append(tup)

    assert run_rows(process) == ([1, 2, 3, 4, 5], [])
