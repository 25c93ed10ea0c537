"""The state of a stateful bolt that is kept between two batches."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import Counter, namedtuple
from typing import Any, ClassVar

import pytest
from pystorm.component import Tuple
from streamparse import BatchingBolt, Bolt, TicklessBatchingBolt

from downspout.component import Bolt as OurBolt
from downspout.engine import Component, Engine, Graph, Input, OutputStream
from downspout.errors import ComponentError
from downspout.spark import ShuffledTuple, held_of, load
from downspout.spark.topology.bolt_state import attributes, restore, save, separate
from downspout.spark.topology.stage_rows import STATE, Row
from downspout.testing.harness import StubSpout


class Plain(Bolt):
    table: ClassVar[dict[str, int]] = {"a": 1}

    def process(self, tup: Any) -> None:
        pass


class Ours(OurBolt):
    def process(self, tup: Any) -> None:
        pass


class Lots(BatchingBolt):
    pass


class Timed(TicklessBatchingBolt):
    secs_between_batches = 1


def built(cls: Any) -> Any:
    spout = Component("spout", StubSpout, streams={"default": OutputStream("default", ("x",))})
    graph = Graph("t", {"spout": spout, "bolt": Component("bolt", cls, inputs=(Input("spout", "default"),))})
    engine = Engine(graph, {"spout": {}, "bolt": {}})
    (task,) = engine.bolts
    task.build()
    return task.instance


@pytest.mark.parametrize("cls", [Plain, Ours, Lots, Timed])
def test_what_libraries_set_is_not_state(cls: Any) -> None:
    """Of a bolt that sets nothing there is nothing to keep, whatever pystorm and the engine have set."""
    assert attributes(built(cls)) == {}


def test_what_the_bolt_sets_is_kept() -> None:
    """Attributes come back, what shared an object shares it still, and what initialize has made besides stays."""
    bolt, again = built(Plain), built(Plain)
    bolt.counts = Counter("abba")
    bolt.alias = bolt.counts
    again.other = 1
    restore(again, save("bolt", bolt, {}))
    again.counts["z"] += 1
    assert (again.alias, again.other) == (Counter("abbaz"), 1)


def test_what_initialize_makes_again_need_not_be_kept() -> None:
    """A lock or a logger that is still the one of initialize is left out; a new one is an error that names it."""
    bolt = built(Plain)
    bolt.lock, bolt.log, bolt.n = threading.Lock(), logging.getLogger("x"), 3
    state = save("bolt", bolt, attributes(bolt))
    again = built(Plain)
    restore(again, state)
    assert (again.n, hasattr(again, "lock")) == (3, False)
    fresh = attributes(bolt)
    bolt.lock = threading.Lock()
    with pytest.raises(ComponentError, match=r"bolt: its attribute lock \(lock\) cannot be kept") as caught:
        save("bolt", bolt, fresh)
    assert "make it in initialize" in str(caught.value)
    bolt.lock, bolt.late = fresh["lock"], (x for x in ())
    with pytest.raises(ComponentError, match="its attribute late"):
        save("bolt", bolt, fresh)


def test_tuples_can_be_kept() -> None:
    """A tuple that a bolt holds comes back with its fields, though the class of its values is in no module."""
    bolt = built(Plain)
    kind = namedtuple("SplitDefaultTuple", "origin word")  # type: ignore[name-match]
    kind.__module__ = "downspout.engine.lifecycle"
    bolt.waiting = {"a": Tuple("7", "split", "default", 3, kind(("t", "", 0, 1, ""), "a"))}
    state = save("bolt", bolt, {})
    restore(bolt, state)
    tup = bolt.waiting["a"]
    assert (tup.id, tup.values.word, tup.values._fields) == ("7", "a", ("origin", "word"))
    restore(bolt, save("bolt", bolt, {}))  # and again: what came back can be kept too
    assert bolt.waiting["a"].values.origin == ("t", "", 0, 1, "")


def test_rows_of_a_state_may_hold_tuples() -> None:
    """What a task holds for a reducer, the values of tuples, comes to the driver as it was."""
    fields = {"split": Component("split", Bolt, streams={"default": OutputStream("default", ("attempt", "word"))})}
    conf = {
        "state.key": ["word"],
        "state.update": "tests.batches.test_state_bolt.longest",
        "state.store": "sqlite:///x",
    }
    items = [ShuffledTuple((), "split", 1, "default", (None, word), number) for number, word in enumerate("aab")]
    held = held_of(Graph("g", fields), conf, "state", items)
    found = load(Row.of(STATE, "state", held).payload)
    assert found == held
    assert [row.word for row in found["a",]] == ["a", "a"]


def test_the_class_s_own_values() -> None:
    """What a class's body holds is the instance's own, is kept if it was changed, and is the class's if it was not."""
    bolt = built(Plain)
    separate(bolt)
    assert bolt.table == {"a": 1}
    assert pickle.loads(save("bolt", bolt, {})) == {}
    bolt.table["b"] = 2
    assert Plain.table == {"a": 1}
    assert pickle.loads(save("bolt", bolt, {})) == {"table": {"a": 1, "b": 2}}
