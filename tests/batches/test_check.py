from __future__ import annotations

from typing import Any

import pytest
from streamparse import Grouping, Topology

from bolts.kafka import KafkaBolt
from bolts.state import StateBolt
from downspout.engine import from_class
from downspout.errors import ConfigError, TopologyError
from downspout.run import topology_check as check
from downspout.testing import FakeKafka, MemoryBatches, run_topology
from spouts.batches import KafkaBatches
from tests.batches.counting import Split

pytestmark = pytest.mark.fake_only("no record is read")


def found(batches: dict[str, Any] | None = None, state: dict[str, Any] | None = None, **config: Any) -> list[str]:
    """Return what `downspout check` says of a word count, changed as asked; Storm's keys with ``__`` for the dot."""
    source = KafkaBatches.spec(topics=["lines"], fields=["value"], **(batches or {}))
    given = {"store": "sqlite:///counts.db", "key": ["word"], "update": "count", **(state or {})}

    class Counted(Topology):
        coordinator, lines = source
        split = Split.spec(inputs=[lines])
        counts = StateBolt.spec(coordinator=coordinator, inputs={split: Grouping.fields("word")}, **given)

    Counted.config = {key.replace("__", "."): value for key, value in config.items()}
    graph = from_class(Counted, "counted")
    return [str(finding) for finding in check.findings(graph, check.resolve(graph, environ={}))]


def test_a_word_count_in_batches_has_nothing_wrong() -> None:
    """Opaque batches with an opaque state, and transactional ones with either kind that knows them."""
    assert found() == []
    assert found({"kind": "transactional"}) == []
    assert found({"kind": "transactional"}, {"kind": "transactional"}) == []


@pytest.mark.parametrize(
    ("batches", "state", "config", "what"),
    [
        ({}, {"kind": "transactional"}, {}, "error: counts: batch.kind = opaque with state.kind = transactional"),
        ({}, {"kind": "non_transactional"}, {}, "error: counts: batch.kind = opaque with state.kind = non_trans"),
        (
            {"kind": "transactional"},
            {"kind": "non_transactional"},
            {},
            "error: counts: batch.kind = transactional with",
        ),
        ({}, {}, {"topology__acker__executors": 0}, "error: coordinator: coordinator: topology.acker.executors = 0"),
        ({}, {}, {"topology__workers": 2}, "error: coordinator: batch.store is a file on one machine"),
        ({}, {}, {"topology__workers": 2}, "error: counts: state.store is a file on one machine"),
        ({"store": "mongo://x"}, {}, {}, "error: coordinator: batch.store = 'mongo://x' is not a store for this"),
        ({}, {}, {"topology__message__timeout__secs": 1}, "warning: coordinator: batches of 10000 records may take"),
        ({}, {"key": ["wrd"]}, {}, "error: counts: stream 'default' of 'split' has no field 'wrd'. Try: word"),
        ({}, {"update": "sum:sise"}, {}, "error: counts: stream 'default' of 'split' has no field 'sise'"),
        ({"records_max": 10**6}, {}, {}, "warning: coordinator: batches of 1000000 records may take longer than"),
    ],
)
def test_what_is_wrong_is_found(
    batches: dict[str, Any], state: dict[str, Any], config: dict[str, Any], what: str
) -> None:
    """Pairs, ackers, machines, stores, and a message timeout that is shorter than a batch."""
    assert [line for line in found(batches, state, **config) if line.startswith(what)]


def test_tasks_that_would_share_a_key_are_found() -> None:
    """With several tasks a state needs its tuples grouped by its key."""
    source = KafkaBatches.spec(topics=["lines"], fields=["value"])

    class Counted(Topology):
        coordinator, lines = source
        split = Split.spec(inputs=[lines])
        counts = StateBolt.spec(
            coordinator=coordinator, inputs=[split], par=2, store="sqlite:///x.db", key="word", update="count"
        )

    graph = from_class(Counted, "counted")
    said = [str(finding) for finding in check.findings(graph, check.resolve(graph, environ={}))]
    assert any("counts: tuples of one key from 'split' may reach several of its tasks" in line for line in said)


def test_a_pair_that_is_allowed_is_not_named() -> None:
    """``state.exactly_once=False`` says that counts may be wrong."""
    assert found({}, {"kind": "non_transactional", "exactly_once": False}) == []


def test_a_state_without_coordinator_or_behind_another_state_is_found() -> None:
    """The one would wait for ever; the other would get tuples after its batch is committed."""
    source = KafkaBatches.spec(topics=["lines"], fields=["value"])
    given: dict[str, Any] = {"store": "sqlite:///counts.db", "update": "count"}

    class Chained(Topology):
        coordinator, lines = source
        split = Split.spec(inputs=[lines])
        deaf = StateBolt.spec(inputs=[split], key="word", **given)
        counts = StateBolt.spec(coordinator=coordinator, inputs=[split], key="word", **given)
        again = Split.spec(inputs=[counts])
        totals = StateBolt.spec(coordinator=coordinator, inputs=[again], key="word", **given)

    graph = from_class(Chained, "chained")
    lines = [str(each) for each in check.findings(graph, check.resolve(graph, environ={}))]
    assert [line for line in lines if line.startswith("error: deaf: no input has the stream $batch")]
    assert [line for line in lines if line.startswith("error: totals: its tuples come from counts, which emits when")]
    assert len(lines) == 2, lines


def test_two_coordinators_with_one_id_are_found() -> None:
    class Two(Topology):
        one, lines = KafkaBatches.spec(topics=["lines"], fields=["value"])
        two, others = KafkaBatches.spec(topics=["others"], fields=["value"])
        split = Split.spec(inputs=[lines, others])

    graph = from_class(Two, "two")
    lines = [str(each) for each in check.findings(graph, check.resolve(graph, environ={}))]
    assert [line for line in lines if "batch.id = two is also that of" in line]


def test_a_transactional_kafka_bolt_is_refused() -> None:
    """No spout would tell it when its transactions end: by `check`, and at the start."""

    class Out(Topology):
        coordinator, lines = KafkaBatches.spec(topics=["lines"], fields=["value", "origin"])
        out = KafkaBolt.spec(inputs=[lines], topic="out", fields={"message": "value"}, transactional=True)

    graph = from_class(Out, "out")
    lines = [str(each) for each in check.findings(graph, check.resolve(graph, environ={}))]
    assert [
        line
        for line in lines
        if line.startswith("error: out: it is transactional, but coordinator is not a KafkaSpout")
    ]
    with FakeKafka("batches") as kafka, MemoryBatches("test"):
        kafka.create_topic("lines", 1)
        config = {"kafka.bootstrap": kafka.bootstrap, "batch.store": "memory://test"}
        with pytest.raises(ConfigError, match="out: transactional, but not connected with a KafkaSpout"):
            run_topology(Out, config=config)


def test_several_processes_are_refused() -> None:
    class Counted(Topology):
        coordinator, lines = KafkaBatches.spec(topics=["lines"], fields=["value"])
        split = Split.spec(inputs=[lines])

    with pytest.raises(TopologyError, match=r"run.workers = 2: coordinator"):
        check.refuse_spouts(from_class(Counted, "counted"), 2)


def test_a_dead_letter_topic_of_batches_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a batch writes no dead letters.*DeadLetterBolt"):
        KafkaBatches.spec(topics=["lines"], fields=["value"], dead_letter_topic="letters")
