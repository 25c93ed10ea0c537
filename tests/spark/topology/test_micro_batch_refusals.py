"""Batch topologies that Spark cannot run are refused before anything runs, with names and hints."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest
from streamparse import Grouping, Topology

from bolts.state import StateBolt
from downspout.component import Bolt
from downspout.engine import from_class, resolve
from downspout.errors import TopologyError
from downspout.spark import ShuffledTuple, StagePlan, held_of, plan, without_effect
from spouts.batches import BatchCoordinator, KafkaBatchBolt, KafkaBatches
from topologies.batch_bolts import SplitBolt

STATE: dict[str, Any] = {"store": "sqlite:///counts.db", "key": "word", "update": "count"}


class Later(BatchCoordinator):
    def is_ready(self, txid: int) -> bool:
        return txid > 2


class Loud(KafkaBatchBolt):
    pass


class Listener(Bolt):
    outputs: ClassVar[list[str]] = []

    def process(self, tup: Any) -> None:
        pass


class Selective(StateBolt):
    def process(self, tup: Any) -> None:
        if len(tup.values) < 5:
            super().process(tup)


class Timed(StateBolt):
    def process_tick(self, tup: Any) -> None:
        pass


class Doubling(StateBolt):
    """Applies batches in its own way, which is what subclasses are for."""

    def apply(self, state: Any, batch: Any) -> Any:
        for key, held in batch.items():
            state.update(key, lambda value, held=held: (value or 0) + 2 * held)
        return []


class Homemade(Bolt):
    """Keeps values as a StateBolt does, and is none."""

    settings_scopes: ClassVar[tuple[str, ...]] = ("state", "batch")
    outputs: ClassVar[list[str]] = []

    def process(self, tup: Any) -> None:
        pass


def planned(*, state: type[StateBolt] = StateBolt, coordinator: Any = BatchCoordinator, emitter: Any = KafkaBatchBolt,
            more: Any = None) -> StagePlan:  # fmt: skip
    """Return the plan of a word count; ``more`` makes further components of the coordinator and the state."""
    head, body = KafkaBatches.spec(topics=["lines"], fields=["value"], coordinator=coordinator, emitter=emitter)
    middle = SplitBolt.spec(inputs=[body])
    last = state.spec(coordinator=head, inputs={middle: Grouping.fields("word")}, **STATE)
    parts = {"head": head, "body": body, "middle": middle, "last": last, **(more(head, middle, last) if more else {})}
    graph = from_class(type("Counted", (Topology,), parts), "counted")
    return plan(graph, resolve(graph, environ={}, file=Path("/nonexistent")).confs())


def refusal(**given: Any) -> str:
    with pytest.raises(TopologyError) as caught:
        planned(**given)
    assert "`downspout run` runs it in one process, `sparse submit` on Storm" in str(caught.value)
    return str(caught.value)


def test_a_word_count_has_a_source_and_a_state() -> None:
    """The emitter stands for the source, the coordinator is not there, and the plan travels to executors."""
    made = planned()
    assert [(stage.entries, stage.inside, stage.exits) for stage in made.stages] == [
        (("body",), ("middle",), ("last",)),
        (("last",), (), ()),
    ]
    assert made.states == ["last"]
    assert pickle.loads(pickle.dumps(made)).states == ["last"]


def test_a_state_may_apply_batches_in_its_own_way() -> None:
    assert planned(state=Doubling).states == ["last"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"coordinator": Later}, "head (Later) makes its own batches, but on Spark the batches are Spark's"),
        ({"emitter": Loud}, "body (Loud) makes its own batches, but on Spark the batches are Spark's"),
    ],
    ids=["coordinator", "emitter"],
)
def test_what_makes_batches_in_its_own_way_is_refused(given: dict[str, Any], what: str) -> None:
    """What a subclass of coordinator or emitter does, nothing on Spark would do."""
    assert what in refusal(**given)


def test_a_bolt_that_hears_of_commits_is_refused() -> None:
    """Spark has no tuples of the coordinator's streams."""
    said = refusal(more=lambda head, middle, last: {"ear": Listener.spec(inputs={head["$commit"]: Grouping.ALL})})
    assert "ear reads '$commit' of head, and Spark sends no such tuples" in said


def test_a_bolt_that_reads_from_a_state_is_refused() -> None:
    """The driver applies batches, and from there no tuple goes on."""
    said = refusal(more=lambda head, middle, last: {"top": Listener.spec(inputs=[last])})
    assert "top reads from the state last, which emits nothing on Spark" in said


@pytest.mark.parametrize(("state", "method"), [(Selective, "process"), (Timed, "process_tick")])
def test_a_state_that_takes_tuples_in_its_own_way_is_refused(state: Any, method: str) -> None:
    """Tasks add up tuples by the state's update, and would never call the method."""
    assert f"last ({state.__name__}) has a method {method} of its own, which Spark would not call" in refusal(
        state=state
    )


def test_a_state_that_is_no_state_bolt_is_refused() -> None:
    """The driver would not know how to apply a batch."""

    def more(head: Any, middle: Any, last: Any) -> dict[str, Any]:
        return {"own": Homemade.spec(inputs={middle: Grouping.fields("word")}, config={"state.key": ["word"]})}

    assert "own (Homemade) is not a StateBolt: it has no method apply_attempt" in refusal(more=more)


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = refusal(
        coordinator=Later, state=Timed, more=lambda head, middle, last: {"top": Listener.spec(inputs=[last])}
    )
    assert all(words in said for words in ("head (Later)", "last (Timed)", "top reads from the state last"))


def test_a_chunk_that_comes_to_a_state_is_an_error() -> None:
    made = planned()
    chunk = ShuffledTuple((), "middle", 1, "default", b"")
    said = r"last: a chunk came from middle. Try: emit tuples that hand the attempt on"
    with pytest.raises(TopologyError, match=said):
        held_of(made.graph, made.confs["last"], "last", [chunk])


def test_settings_of_batches_that_are_sparks_are_named() -> None:
    """Spark says how large a batch is and what it holds: settings that say otherwise on the command line are named."""
    head, body = KafkaBatches.spec(topics=["lines"], fields=["value"])
    graph = from_class(type("Counted", (Topology,), {"head": head, "body": body}), "counted")
    assert without_effect(resolve(graph, ["batch.records_max=5", "batch.kind=opaque"], environ={})) == [
        "batch.kind",
        "batch.records_max",
    ]
    assert without_effect(resolve(graph, environ={})) == []
