"""Bolts that are kept by key: in process, and on real Spark beside the local engine."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from streamparse import Grouping

from downspout.engine import Graph, resolve
from downspout.engine.load import load
from downspout.errors import ConfigError, TopologyError
from downspout.run import findings
from downspout.spark import claim
from downspout.testing import FakeKafka
from tests.spark import topology_bolts as b
from tests.spark.topology.scene import PLAIN, Scene, last_batch, lines_of, lines_until
from tests.spark.topology.test_topology_plan import planned
from tests.spark.topology_support import InProcess, MapState, counted, letters_of, rows_in, send

KEYED = "tests.spark.topology_case:Keyed"


def telling(out: Path) -> Graph:
    """Return a topology in which a bolt that is kept by key tells at ticks."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    every = {"topology.tick.tuple.freq.secs": 60}
    ticker = b.KeyedTicker.spec(inputs={split: Grouping.GLOBAL}, config=every)
    return b.graph_of(spout=spout, split=split, ticker=ticker, out=b.sink([ticker], out))


@pytest.mark.fake_only("the tests below run the same stages on Spark")
def test_a_batch_reads_and_writes_its_own_keys(kafka: FakeKafka, tmp_path: Path) -> None:
    """Counts go on from batch to batch, and a batch asks for the words that it holds, not for all."""
    query = InProcess(b.counting(tmp_path, count=b.KeyedCount), kafka)
    words = [f"w{number}" for number in range(200)]
    send(kafka, " ".join(words))
    query.run()
    send(kafka, "w1 w2", "w1 new")
    MapState.calls.clear()
    query.run()
    assert MapState.calls == {"get": 3, "update": 3}
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*words, "w1", "w2", "w1", "new")


@pytest.mark.fake_only("the tests below run the same stages on Spark")
def test_a_record_that_fails_leaves_no_trace(kafka: FakeKafka, tmp_path: Path) -> None:
    """A batch in which a tuple fails is computed again from the entries before it, and at last without the record."""
    query = InProcess(b.counting(tmp_path, count=b.KeyedCount), kafka)
    send(kafka, "a b", "a bad a", "b")
    query.run()
    send(kafka, "a bad")
    query.run()
    send(kafka, "a")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == counted("a", "b", "b", "a")
    assert [letter.record.value for letter in letters_of(query)] == [b"a bad a", b"a bad"]


@pytest.mark.fake_only("the tests below run the same stages on Spark")
def test_ticks_see_all_keys(kafka: FakeKafka, tmp_path: Path) -> None:
    """A tick tells of what earlier batches have changed in place, and what it puts in the dict's place is all."""
    query = InProcess(telling(tmp_path / "out"), kafka)
    send(kafka, "apple bee", "ant")
    query.run()
    send(kafka, "bat", "axe cat")
    query.run()
    assert rows_in(tmp_path / "out", "word", "n") == []
    query.now_ms += 60_000
    query.run()
    assert rows_in(tmp_path / "out", "word", "n") == [("a", 3), ("b", 2), ("c", 1)]
    send(kafka, "ape bear", "drop")
    query.run()
    query.now_ms += 60_000
    query.run()
    assert rows_in(tmp_path / "out", "word", "n") == [("a", 3), ("b", 1), ("b", 2), ("c", 1)]


class Unnamed(b.Count):
    stateful_keys: ClassVar[Any] = ["counts"]


class Shuffled(b.KeyedCount):
    pass


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    """`check` names the bolt whose ``stateful_keys`` is no name, and Spark refuses it."""
    graph = b.counting(tmp_path, count=Unnamed)
    said = "stateful_keys = ['counts'], which is not the name of an attribute"
    found = [(each.where, each.what) for each in findings(graph, resolve(graph)) if "stateful_keys" in each.what]
    assert found == [("count", said)]
    with pytest.raises(TopologyError, match="count has stateful_keys"):
        planned(graph)
    split = b.Split.spec(inputs=[spout := b.lines()])
    shuffled = b.graph_of(spout=spout, split=split, count=Shuffled.spec(inputs=[split]))
    assert planned(shuffled).stateful_keys == {"count": "counts"}


def test_a_checkpoint_is_by_key_or_whole(tmp_path: Path) -> None:
    """A bolt that is kept otherwise than its checkpoint says is refused, both ways."""
    whole, by_key = (planned(b.counting(tmp_path, count=each)) for each in (b.Count, b.KeyedCount))
    claim(tmp_path / "c", whole)
    said = r"keeps by key, as stateful_keys says, nothing, and the topology now has count\.counts\. Try: another"
    with pytest.raises(ConfigError, match=said):
        claim(tmp_path / "c", by_key)
    claim(tmp_path / "d", by_key)
    with pytest.raises(ConfigError, match=r"says, count\.counts, and the topology now has nothing"):
        claim(tmp_path / "d", whole)


@pytest.mark.sweep
@pytest.mark.spark
@pytest.mark.broker
def test_on_spark_as_on_the_local_engine(scene: Scene) -> None:
    """Over some batches and a restart, with two tasks: the local engine's rows; a record that fails leaves nothing.

    It fails twice in the third run, when entries have been written; each try begins from these.
    """
    scene.send(*lines_of(80))
    scene.run(KEYED, records_per_batch=40)
    scene.send(*lines_of(30, seed=1))
    scene.run(KEYED)
    scene.run_locally(KEYED, into=scene.path / "local")
    assert scene.out("counts", "word", "n") == scene.out("counts", "word", "n", below=scene.path / "local")
    scene.send(*lines_of(20, seed=2), "a bad apple", *lines_of(20, seed=3))
    third = scene.run(KEYED, records_per_batch=30)
    assert (third.computed_again, third.result.reports["spout"]["dead_lettered"]) == (2, 1)
    scene.check("a bad apple")
    told: Counter[str] = Counter()
    for letter, count in scene.out("ticks", "word", "n"):
        told[letter] += count
    assert told == Counter(word[0] for word in scene.out("words", "word"))


@pytest.mark.sweep
@pytest.mark.spark
@pytest.mark.broker
def test_a_killed_run_resumes_by_key(scene: Scene) -> None:
    """Killed within a batch, whatever of it was written, the next run counts each tuple once."""
    scene.send(*lines_of(60), "gate", *lines_of(60, seed=1))
    driver = scene.start("--records-per-batch", "20", target=KEYED)
    try:
        lines_until(driver, "batch 1:")
        scene.wait_at_the_gate(driver)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    log = scene.path / "checkpoint"
    assert last_batch(log / "offsets") > last_batch(log / "commits") >= 1
    scene.gate.touch()
    scene.run(KEYED)
    scene.check()


@pytest.mark.sweep
@pytest.mark.spark
@pytest.mark.broker
def test_a_checkpoint_by_key_is_its_own(scene: Scene) -> None:
    """A topology whose bolt was made to be kept by key begins anew, and says so."""
    scene.send("a")
    scene.run(PLAIN)
    graph = load(PLAIN)
    count = replace(graph.components["count"], cls=b.KeyedCount)
    changed = replace(graph, components={**graph.components, "count": count})
    with pytest.raises(ConfigError, match=r"the topology now has count\.counts"):
        scene.run(changed)
