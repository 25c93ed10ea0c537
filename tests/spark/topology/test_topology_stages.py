"""The stages of a topology on Spark, run in process: routing, and state."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from streamparse import Grouping

from downspout.errors import ComponentError, TopologyError
from downspout.testing import FakeKafka
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, chain, counted, rows_in, send

pytestmark = pytest.mark.fake_only("Spark itself runs the same stages over the real broker in test_topology_run.py")


def test_state_goes_on_from_batch_to_batch(kafka: FakeKafka, tmp_path: Path) -> None:
    """Counts of a stateful bolt go on over batches, each task's its own, and two sinks have all rows."""
    query = InProcess(b.counting(tmp_path), kafka)
    send(kafka, "a b a", "c a")
    query.run()
    send(kafka, "a", "b")
    query.run()
    assert rows_in(tmp_path / "words", "word") == sorted(["a", "b", "a", "c", "a", "a", "b"])
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*["a", "b", "a", "c", "a", "a", "b"])


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_has_one_order(kafka: FakeKafka, tmp_path: Path, seed: int) -> None:
    """However a shuffle mixes what tasks send, a stateful bolt is given it in the order of the records."""
    query = InProcess(b.counting(tmp_path), kafka, seed=seed)
    send(kafka, *["a a"] * 10)
    query.run()
    found = rows_in(tmp_path / "counts", "_partition", "_offset", "_path", "n")
    assert [row[-1] for row in found] == list(range(1, 21))


def test_a_bolt_may_hold_tuples_over_batches(kafka: FakeKafka, tmp_path: Path) -> None:
    """A stateful bolt that acks in a later batch what it was given in an earlier one loses nothing, doubles nothing."""
    query = InProcess(b.counting(tmp_path, count=b.Pairs), kafka)
    for line in ("a", "b", "c", "b", "a", "a c", "a"):
        send(kafka, line)
        query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 2), ("a", 2), ("b", 2), ("c", 2)]
    held = sum(len(pickle.loads(value[0])[1]) for value in query.store.values.values())
    assert held == 0


def two_ways(out: Path) -> Any:
    """Return a topology whose last bolt and sink are reached before the stateful bolt, and behind it."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    count = b.Count.spec(inputs={split: Grouping.fields("word")}, par=2)
    tag = b.Tag.spec(inputs={split["long"]: Grouping.SHUFFLE, count: Grouping.SHUFFLE})
    return b.graph_of(spout=spout, split=split, count=count, tag=tag, tags=b.sink({tag: Grouping.SHUFFLE}, out, b.WORD))


def test_a_bolt_and_a_sink_reached_in_two_stages(kafka: FakeKafka, tmp_path: Path) -> None:
    query = InProcess(two_ways(tmp_path), kafka)
    assert [stage.inside for stage in query.plan.stages] == [("split", "tag", "tags"), ("tag", "tags")]
    send(kafka, "short longer", "longest")
    query.run()
    send(kafka, "longer")
    query.run()
    assert Counter(rows_in(tmp_path, "word")) == {"SHORT": 2, "LONGER": 4, "LONGEST": 2}


def test_a_chain_of_stateful_bolts(kafka: FakeKafka, tmp_path: Path) -> None:
    """The second of two stateful bolts counts what the first one emits and what comes past it, over batches."""
    query = InProcess(chain(tmp_path), kafka)
    assert [stage.entries for stage in query.plan.stages] == [("spout",), ("first",), ("second",)]
    send(kafka, "a longer a", "longer")
    query.run()
    send(kafka, "a longer")
    query.run()
    assert rows_in(tmp_path, "word", "n") == counted(*["a"] * 3, *["longer"] * 3, *["LONGER"] * 3)


@pytest.mark.parametrize(("grouping", "times"), [(Grouping.ALL, 3), (Grouping.GLOBAL, 1)])
def test_all_and_global(kafka: FakeKafka, tmp_path: Path, grouping: Any, times: int) -> None:
    """An all grouping gives each tuple to each task of the bolt, a global one to one of them."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    ticker = b.Ticker.spec(inputs={split: grouping}, par=3, config={"topology.tick.tuple.freq.secs": 1})
    query = InProcess(b.graph_of(spout=spout, split=split, ticker=ticker, out=b.sink([ticker], tmp_path)), kafka)
    send(kafka, "a b", "a")
    query.run()
    query.now_ms += 1_000
    query.run()
    assert rows_in(tmp_path, "word", "n") == sorted([("a", 2), ("b", 1)] * times)


def test_ticks_come_at_the_first_batch_after_their_time(kafka: FakeKafka, tmp_path: Path) -> None:
    """A stateful bolt ticks once its period is over, at the end of a batch, and again and again."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    conf = {"topology.tick.tuple.freq.secs": 2}
    ticker = b.Ticker.spec(inputs={split: Grouping.fields("word")}, par=1, config=conf)
    query = InProcess(b.graph_of(spout=spout, split=split, ticker=ticker, out=b.sink([ticker], tmp_path)), kafka)
    send(kafka, "a")
    query.run()
    query.now_ms += 1_999
    send(kafka, "a")
    query.run()
    assert rows_in(tmp_path, "word", "n") == []
    query.now_ms += 1
    send(kafka, "a b")
    query.run()
    assert rows_in(tmp_path, "word", "n") == [("a", 3), ("b", 1)]
    send(kafka, "a")
    query.run()
    query.now_ms += 2_000
    query.run()
    assert rows_in(tmp_path, "word", "n") == [("a", 1), ("a", 3), ("b", 1)]


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_a_bounded_run_ends_with_a_tick(kafka: FakeKafka, tmp_path: Path, emit: str) -> None:
    """The last batch ticks behind its tuples, one bolt behind another, though no timer is due, and sets none."""
    spout = b.lines()
    conf = {"topology.tick.tuple.freq.secs": 3600}
    split = b.Split.spec(inputs=[spout])
    first = b.Ticker.spec(inputs={split: Grouping.fields("word")}, par=2, config=conf)
    second = b.Ticker.spec(inputs={first: Grouping.GLOBAL}, config=conf)
    graph = b.graph_of(
        spout=spout, split=split, first=first, second=second,
        out=b.sink([first], tmp_path / "first"), words=b.sink([second], tmp_path / "second"),
    )  # fmt: skip
    query = InProcess(graph, kafka, {"kafka.emit": emit})
    send(kafka, "a b a", "a")
    query.run()
    assert rows_in(tmp_path / "first", "word", "n") == []
    send(kafka, "b")
    query.run(at_end=True)
    assert rows_in(tmp_path / "first", "word", "n") == [("a", 3), ("b", 2)]
    assert rows_in(tmp_path / "second", "word", "n") == [("a", 1), ("b", 1)]
    assert {len(due) for due in query.store.timers.values()} == {1}
    query.run(at_end=True)  # nothing new: the end of another run
    assert rows_in(tmp_path / "first", "word", "n") == [("a", 3), ("b", 2)]


def test_the_last_tick_takes_what_a_run_without_end_has_left(kafka: FakeKafka, tmp_path: Path) -> None:
    """A batch with the end marker alone ticks tasks that get no tuple in it, and counts no record."""
    spout = b.lines()
    conf = {"topology.tick.tuple.freq.secs": 3600}
    split = b.Split.spec(inputs=[spout])
    ticker = b.Ticker.spec(inputs={split: Grouping.fields("word")}, par=3, config=conf)
    count = b.Count.spec(inputs={split: Grouping.fields("word")})
    sinks = {"out": b.sink([ticker], tmp_path / "ticks"), "counts": b.sink([count], tmp_path / "counts")}
    query = InProcess(b.graph_of(spout=spout, split=split, ticker=ticker, count=count, **sinks), kafka)
    send(kafka, "a b c d e f a")
    query.run()
    query.start()  # it was killed
    query.run(at_end=True)
    assert rows_in(tmp_path / "ticks", "word", "n") == [("a", 2), *((word, 1) for word in "bcdef")]
    assert (query.done[-1].records, query.batches.totals.records) == (0, 0)


def test_a_bolt_that_dies_at_its_tick_keeps_its_state(kafka: FakeKafka, tmp_path: Path) -> None:
    """A stateful bolt that dies of no tuple fails the batch and in the end the run; its state stays what it was."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    conf = {"topology.tick.tuple.freq.secs": 1}
    ticker = b.BadTicker.spec(inputs={split: Grouping.fields("word")}, par=1, config=conf)
    query = InProcess(b.graph_of(spout=spout, split=split, ticker=ticker, out=b.sink([ticker], tmp_path)), kafka)
    send(kafka, "a b")
    query.run()
    before = query.store.values
    query.now_ms += 1_000
    with pytest.raises(ComponentError, match=r"ticker failed 3 times, but never on a tuple .*no time"):
        query.run()
    assert query.store.values == before
    assert query.letters() == []


def test_task_ids_are_those_of_the_whole_topology(kafka: FakeKafka, tmp_path: Path) -> None:
    """A bolt sees its task id, the tasks' names and where its tuples went as on the other engines."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    places = b.Places.spec(inputs={split: Grouping.fields("word")}, par=3)
    tag = b.Tag.spec(inputs=[places])
    schema = {"word": "string", "task": "int64", "targets": "string"}
    graph = b.graph_of(spout=spout, split=split, places=places, tag=tag, out=b.sink([places], tmp_path, schema))
    query = InProcess(graph, kafka)
    send(kafka, "a b c d e f g h i j k l m n o p q r s t u v w x y z")
    query.run()
    found = rows_in(tmp_path, "task", "targets")
    assert {task for task, _ in found} == {3, 4, 5}  # 1 is the acker, 2 the sink
    assert {targets for _, targets in found} == {"", "out,tag"}


def test_what_the_class_holds_is_each_tasks_own(kafka: FakeKafka, tmp_path: Path) -> None:
    """A counter in a class's body is kept per task and over batches, and counts no failed computation of a batch."""
    query = InProcess(b.counting(tmp_path, count=b.ClassCount), kafka)
    send(kafka, "a b", "a")
    query.run()
    send(kafka, "a")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*["a", "b", "a", "a"])
    assert b.ClassCount.totals == {}


def test_constants_of_a_class_are_not_kept(kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in a class's body that nobody changes is the new version's after a restart, not the old one's."""
    query = InProcess(b.counting(tmp_path, count=b.ClassCount), kafka)
    send(kafka, "a")
    query.run()
    monkeypatch.setattr(b.ClassCount, "factors", {"default": 10})
    send(kafka, "a")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 1), ("a", 11)]


def test_a_class_that_executors_cannot_find_is_refused(kafka: FakeKafka, tmp_path: Path) -> None:
    """A bolt whose class is no module's own is refused before anything is sent."""

    class Hidden(b.Tag):
        pass

    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    hidden = Hidden.spec(inputs=[split])
    graph = b.graph_of(spout=spout, split=split, hidden=hidden, out=b.sink([hidden], tmp_path, b.WORD))
    query = InProcess(graph, kafka)
    with pytest.raises(TopologyError, match=r"hidden: executors cannot find its class .*Hidden"):
        query.run()
