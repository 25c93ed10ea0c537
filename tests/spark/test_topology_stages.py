"""The stages of a topology on Spark, run in process: what bolts do, and what becomes of what fails."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamparse import Grouping

from downspout.errors import ComponentError, RecordError, TopologyError
from downspout.testing import FakeKafka
from spouts.kafka import KafkaSpout
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, rows_in

pytestmark = pytest.mark.fake_only("Spark itself runs the same stages over the real broker in test_topology_run.py")


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A Kafka with the topic that all topologies here read."""
    with FakeKafka("stages") as made:
        made.create_topic("lines", 2)
        yield made


def send(kafka: FakeKafka, *values: str | None) -> None:
    """Write lines, in turns to both partitions."""
    for value in values:
        kafka.produce("lines", None if value is None else value.encode())


def counted(*words: str) -> list[tuple[str, int]]:
    """Return what Count makes of these words."""
    seen: Counter[str] = Counter()
    rows = []
    for word in words:
        seen[word] += 1
        rows.append((word, seen[word]))
    return sorted(rows)


def failure_of(letter: Any) -> str:
    """Return what a dead letter says of the failure."""
    return dict(letter.headers)["__downspout.errors.exception.message"].decode()


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


def test_a_failed_try_leaves_nothing(kafka: FakeKafka, tmp_path: Path) -> None:
    """Of lines that fail once after they have emitted, a stateful bolt sees each word once, and so does a sink."""
    query = InProcess(b.counting(tmp_path, split=b.FirstTimeLucky), kafka)
    send(kafka, "a b", "b", "a a")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*["a", "b", "b", "a", "a"])
    assert rows_in(tmp_path / "words", "word") == sorted(["a", "b", "b", "a", "a"])
    assert query.letters() == []


@pytest.mark.parametrize("split", [b.Split, b.Brittle])
@pytest.mark.parametrize("word", ["poison", "exit"])
def test_a_poison_record_is_dead_lettered(kafka: FakeKafka, tmp_path: Path, split: Any, word: str) -> None:
    """A record that a stateless bolt raises on or exits on is tried again, then dead-lettered; the others count."""
    query = InProcess(b.counting(tmp_path, split=split), kafka)
    send(kafka, "a b", f"c {word}", "a")
    query.run()
    (letter,) = query.letters()
    assert letter.value == f"c {word}".encode()
    assert dict(letter.headers)["__downspout.errors.attempts"] == b"3"
    assert rows_in(tmp_path / "counts", "word", "n") == counted("a", "b", "a")
    assert query.batches.totals.dead_lettered == {"spout": 1}


def test_a_bolt_that_dies_of_every_record_ends_the_run(kafka: FakeKafka, tmp_path: Path) -> None:
    """A bolt that is restarted for one tuple after the other is the run's error, and nothing is committed."""
    query = InProcess(b.counting(tmp_path, split=b.Brittle), kafka)
    send(kafka, *[f"poison {n}" for n in range(20)])
    with pytest.raises(ComponentError, match="different tuples in a row"):
        query.run()
    assert rows_in(tmp_path / "words", "word") == []
    assert query.letters() == []


def test_too_many_dead_letters_open_the_breaker(kafka: FakeKafka, tmp_path: Path) -> None:
    """Where most records fail for good the run ends instead, and nothing is written."""
    query = InProcess(b.counting(tmp_path), kafka, {"kafka.breaker_window": 10, "kafka.retries_max": 0})
    send(kafka, *["poison"] * 40)
    with pytest.raises(RecordError, match="failed for good, most often with ValueError"):
        query.run()
    assert query.letters() == []


@pytest.mark.parametrize("count", [b.Count, b.BrittleCount])
def test_a_record_that_fails_in_a_stateful_bolt_leaves_no_trace(kafka: FakeKafka, tmp_path: Path, count: Any) -> None:
    """A record that a stateful bolt fails on is given up: the batch is computed without it, all that it was in."""
    query = InProcess(b.counting(tmp_path, count=count), kafka)
    send(kafka, "a b", "a bad a", "b")
    query.run()
    send(kafka, "a")
    query.run()
    (letter,) = query.letters()
    assert letter.value == b"a bad a"
    assert failure_of(letter) == "'bad'"
    assert dict(letter.headers)["__downspout.errors.attempts"] == b"3"
    assert rows_in(tmp_path / "words", "word") == sorted(["a", "b", "b", "a"])
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*["a", "b", "b", "a"])
    assert query.batches.totals.again == 3


def test_what_a_restarted_bolt_held_is_not_to_blame(kafka: FakeKafka, tmp_path: Path) -> None:
    """Records that a stateful bolt holds when another one kills it are not given up with that one."""
    query = InProcess(b.counting(tmp_path, count=b.BrittlePairs, par=1), kafka, {"kafka.timeouts_max": 1})
    send(kafka, "a", "b", "bad", "a")
    query.run()
    send(kafka, "b")
    query.run()
    assert [letter.value for letter in query.letters()] == [b"bad"]
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 2), ("b", 2)]


def test_a_bolt_may_hold_tuples_over_batches(kafka: FakeKafka, tmp_path: Path) -> None:
    """A stateful bolt that acks in a later batch what it was given in an earlier one loses nothing, doubles nothing."""
    query = InProcess(b.counting(tmp_path, count=b.Pairs), kafka)
    for line in ("a", "b", "c", "b", "a", "a c", "a"):
        send(kafka, line)
        query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 2), ("a", 2), ("b", 2), ("c", 2)]
    held = sum(len(pickle.loads(value[0])[1]) for value in query.store.values.values())
    assert held == 0


def test_a_tuple_that_fails_in_a_later_batch_is_not_lost(kafka: FakeKafka, tmp_path: Path) -> None:
    """A tuple that a bolt fails after it has held it over the end of its batch goes to the dead letters."""
    query = InProcess(b.counting(tmp_path, count=b.Pairs), kafka)
    send(kafka, "refused first", "a")
    query.run()
    assert query.letters() == []
    send(kafka, "refused second", "a")
    query.run()
    assert [letter.value for letter in query.letters()] == [b"refused first"]
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 2)]


def test_tuples_that_nobody_acks_time_out_at_the_end_of_the_batch(kafka: FakeKafka, tmp_path: Path) -> None:
    """A stateless bolt that forgets its acks gets its records again, and then they are dead-lettered as timed out."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    lost = b.Forgetful.spec(inputs=[split])
    graph = b.graph_of(spout=spout, split=split, lost=lost, out=b.sink([lost], tmp_path, b.WORD))
    query = InProcess(graph, kafka, {"kafka.timeouts_max": 2, "kafka.breaker_ratio": 0})
    send(kafka, "a", "b")
    query.run()
    assert sorted(letter.value for letter in query.letters()) == [b"a", b"b"]


def test_null_and_unreadable_values(kafka: FakeKafka, tmp_path: Path) -> None:
    """A null value is left out and counted; one that cannot be read is dead-lettered at its first try."""
    query = InProcess(b.counting(tmp_path), kafka)
    send(kafka, "a", None, "b")
    kafka.produce("lines", b"\xff\xfe")
    query.run()
    assert rows_in(tmp_path / "words", "word") == ["a", "b"]
    assert query.batches.totals.reports["spout"]["filtered"] == 1
    (letter,) = query.letters()
    assert letter.value == b"\xff\xfe"
    assert dict(letter.headers)["__downspout.errors.attempts"] == b"1"


def test_no_dead_letter_topic_ends_the_run(kafka: FakeKafka, tmp_path: Path) -> None:
    """Without a topic for dead letters a record that fails for good ends the run, and nothing is committed."""
    query = InProcess(b.counting(tmp_path), kafka, {"kafka.dead_letter_topic": ""})
    send(kafka, "a", "poison")
    with pytest.raises(RecordError, match=r"lines\[1\]@0 failed for good, last by exception: ValueError: poison"):
        query.run()
    assert rows_in(tmp_path / "words", "word") == []


def two_ways(out: Path) -> Any:
    """Return a topology whose last bolt and sink are reached before the stateful bolt, and behind it."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    count = b.Count.spec(inputs={split: Grouping.fields("word")}, par=2)
    tag = b.Tag.spec(inputs={split["long"]: Grouping.SHUFFLE, count: Grouping.SHUFFLE})
    return b.graph_of(spout=spout, split=split, count=count, tag=tag, tags=b.sink({tag: Grouping.SHUFFLE}, out, b.WORD))


def test_a_bolt_and_a_sink_reached_in_two_stages(kafka: FakeKafka, tmp_path: Path) -> None:
    """A stateless bolt and a sink that are reached before and behind a stateful bolt have the rows of both ways."""
    query = InProcess(two_ways(tmp_path), kafka)
    assert [stage.inside for stage in query.plan.stages] == [("split", "tag", "tags"), ("tag", "tags")]
    send(kafka, "short longer", "longest")
    query.run()
    send(kafka, "longer")
    query.run()
    assert Counter(rows_in(tmp_path, "word")) == {"SHORT": 2, "LONGER": 4, "LONGEST": 2}


def chain(out: Path) -> Any:
    """Return a topology with two stateful bolts, one behind the other, and two inputs on the second."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    tag = b.Tag.spec(inputs=[split["long"]])
    first = b.Count.spec(inputs={split: Grouping.fields("word")}, par=3)
    second = b.Count.spec(inputs={first: Grouping.fields("word"), tag: Grouping.fields("word")}, par=2)
    return b.graph_of(spout=spout, split=split, tag=tag, first=first, second=second, out=b.sink([second], out))


def test_a_chain_of_stateful_bolts(kafka: FakeKafka, tmp_path: Path) -> None:
    """The second of two stateful bolts counts what the first one emits and what comes past it, over batches."""
    query = InProcess(chain(tmp_path), kafka)
    assert [stage.heads for stage in query.plan.stages] == [("spout",), ("first",), ("second",)]
    send(kafka, "a longer a", "longer")
    query.run()
    send(kafka, "a longer")
    query.run()
    assert rows_in(tmp_path, "word", "n") == counted(*["a"] * 3, *["longer"] * 3, *["LONGER"] * 3)


def test_a_failure_in_the_second_of_two_stateful_bolts(kafka: FakeKafka, tmp_path: Path) -> None:
    """A record that the second stateful bolt fails on leaves no trace in the state of the first one either."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    first = b.Count.spec(inputs={split: Grouping.fields("word")}, par=2)
    second = b.Second.spec(inputs={first: Grouping.fields("word")}, par=2)
    graph = b.graph_of(spout=spout, split=split, first=first, second=second, out=b.sink([first], tmp_path))
    query = InProcess(graph, kafka)
    send(kafka, "a worse a", "a", "b")
    query.run()
    send(kafka, "a")
    query.run()
    assert [letter.value for letter in query.letters()] == [b"a worse a"]
    assert rows_in(tmp_path, "word", "n") == [("a", 1), ("a", 2), ("b", 1)]


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
    with pytest.raises(ComponentError, match=r"ticker failed 3 times, and not on a tuple .*no time"):
        query.run()
    assert query.store.values == before
    assert query.letters() == []


@pytest.mark.parametrize("bolt", [b.Lots, b.TimedLots])
@pytest.mark.parametrize("grouping", [Grouping.SHUFFLE, Grouping.fields("word")])
def test_batching_bolts_finish_with_the_batch(kafka: FakeKafka, tmp_path: Path, bolt: Any, grouping: Any) -> None:
    """A BatchingBolt, stateless or not, ticking or not, has processed all it was given when a batch ends."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    lots = bolt.spec(inputs={split: grouping}, par=2)
    query = InProcess(b.graph_of(spout=spout, split=split, lots=lots, out=b.sink([lots], tmp_path)), kafka)
    send(kafka, "a b a", "c")
    query.run()
    assert rows_in(tmp_path, "word") == ["a", "a", "b", "c"]
    send(kafka, "a")
    query.run()
    assert rows_in(tmp_path, "word") == ["a", "a", "a", "b", "c"]


def lots_of(out: Path, *bolts: Any, split: Any = b.Split) -> Any:
    """Return words, BatchingBolts one behind the other, and what a stateful bolt counts of their rows."""
    spout = b.lines()
    specs = {"spout": spout, "split": split.spec(inputs=[spout])}
    last = specs["split"]
    for number, bolt in enumerate(bolts):
        last = specs[f"lots{number}"] = bolt.spec(inputs=[last])
    specs["count"] = b.Count.spec(inputs={last: Grouping.fields("word")}, par=2)
    return b.graph_of(
        **specs, words=b.sink([last], out / "words", b.WORD), out=b.sink([specs["count"]], out / "counts")
    )


@pytest.mark.parametrize("emit", ["record", "chunk"])
@pytest.mark.parametrize("bolts", [[b.Lots], [b.TimedLots], [b.Lots, b.Lots, b.Lots]], ids=["one", "timed", "three"])
def test_what_a_lot_holds_of_a_failed_try_is_not_counted(
    kafka: FakeKafka, tmp_path: Path, bolts: list[Any], emit: str
) -> None:
    """Of lines that fail once after they have emitted, and of a culprit's neighbours, each word is counted once."""
    query = InProcess(lots_of(tmp_path, *bolts, split=b.FirstTimeLucky), kafka, {"kafka.emit": emit})
    query.batch_rows = 10
    send(kafka, "a b", "b", "a poison", "a a", "c", "poison")
    query.run()
    assert rows_in(tmp_path / "words", "word") == ["a", "a", "a", "b", "b", "c"]
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*["a", "a", "a", "b", "b", "c"])
    assert sorted(letter.value for letter in query.letters()) == [b"a poison", b"poison"]
    assert query.batches.totals.again == 0


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_a_lot_that_raises_leaves_the_others_alone(kafka: FakeKafka, tmp_path: Path, emit: str) -> None:
    """Where a BatchingBolt raises on one of its lots, the others are processed in the same try, each record once."""
    settings = {"kafka.emit": emit, "kafka.breaker_ratio": 0, "kafka.timeouts_max": 1}
    query = InProcess(lots_of(tmp_path, b.StubbornLots), kafka, settings)
    send(kafka, "a", "b", "c", "b", "d", "a")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == counted("a", "c", "d", "a")
    assert [letter.value for letter in query.letters()] == [b"b", b"b"]
    assert query.batches.totals.again == 0


def judged(out: Path) -> Any:
    """Return lots that a picky bolt and a stateful one read."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    lots = b.Lots.spec(inputs=[split])
    picky = b.Picky.spec(inputs=[lots])
    again = b.Lots.spec(inputs=[lots])
    count = b.Count.spec(inputs={lots: Grouping.fields("word")}, par=2)
    second = b.Count.spec(inputs={again: Grouping.fields("word")}, par=2)
    bolts = {"spout": spout, "split": split, "lots": lots, "picky": picky, "again": again}
    counts, seconds = b.sink([count], out / "counts"), b.sink([second], out / "seconds")
    return b.graph_of(**bolts, count=count, second=second, counts=counts, seconds=seconds)


@pytest.mark.parametrize("emit", ["record", "chunk"])
@pytest.mark.parametrize(
    "lines", [("abad", "b", "bb", "c"), ("abad b", "bb", "b c", "c"), ("b", "c abad", "c b", "bb")]
)
def test_who_shares_a_lot_with_one_that_fails_counts_once(
    kafka: FakeKafka, tmp_path: Path, lines: tuple[str, ...], emit: str
) -> None:
    """What a bolt behind a lot fails leaves nothing in other lots, and takes nobody along who is in another lot."""
    query = InProcess(judged(tmp_path), kafka, {"kafka.emit": emit, "kafka.chunk_records_max": 2})
    query.batch_rows = 2
    for line in lines:
        kafka.produce("lines", line.encode(), partition=0)
    query.run()
    good = [line for line in lines if "abad" not in line]
    assert [letter.value.decode() for letter in query.letters()] == [line for line in lines if "abad" in line]
    expected = counted(*" ".join(good).split())
    assert rows_in(tmp_path / "counts", "word", "n") == expected
    assert rows_in(tmp_path / "seconds", "word", "n") == expected
    assert query.batches.totals.again == 0


def test_a_lot_that_stays_behind_is_not_processed_with_the_next_try(kafka: FakeKafka, tmp_path: Path) -> None:
    """What a BatchingBolt still holds when a batch ends has timed out: its records come again, and count once."""
    query = InProcess(lots_of(tmp_path, b.UnluckyLots), kafka)
    send(kafka, "a a", "a")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == counted("a", "a", "a")
    assert query.letters() == []
    assert query.batches.totals.again == 0


def test_a_lot_of_good_and_given_up_records_goes_once(kafka: FakeKafka, tmp_path: Path) -> None:
    """What a BatchingBolt makes of a good record and of one that another bolt gave up reaches the stateful bolt."""
    spout = b.lines(retries_max=0)
    split = b.Split.spec(inputs=[spout])
    picky = b.Picky.spec(inputs=[split])
    lots = b.Lots.spec(inputs=[split])
    count = b.Count.spec(inputs={lots: Grouping.fields("word")})
    graph = b.graph_of(spout=spout, split=split, picky=picky, lots=lots, count=count, out=b.sink([count], tmp_path))
    query = InProcess(graph, kafka, {"kafka.retries_max": 0, "kafka.breaker_ratio": 0})
    kafka.produce("lines", b"abad", partition=0)
    kafka.produce("lines", b"a", partition=0)
    query.run()
    assert [letter.value for letter in query.letters()] == [b"abad"]
    assert ("a", 1) in rows_in(tmp_path, "word", "n")


def test_rows_that_do_not_fit_their_sink(kafka: FakeKafka, tmp_path: Path) -> None:
    """A row that does not fit the columns fails its record, in the first stage and in a later one."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    count = b.Count.spec(inputs={split: Grouping.fields("word")})
    early = b.sink([split], tmp_path / "early", {"word": "int64"})
    graph = b.graph_of(spout=spout, split=split, count=count, early=early, late=b.sink([count], tmp_path / "late"))
    query = InProcess(graph, kafka, {"kafka.breaker_ratio": 0})
    send(kafka, "a")
    query.run()
    (letter,) = query.letters()
    assert "early" in failure_of(letter)
    late = b.sink([count], tmp_path / "late2", {"word": "int64", "n": "int64"})
    query = InProcess(b.graph_of("Late", spout=spout, split=split, count=count, late=late), kafka)
    query.run()
    (letter,) = query.letters()
    assert "late" in failure_of(letter)


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


def test_another_writer_in_the_directory(kafka: FakeKafka, tmp_path: Path) -> None:
    """Rows that another engine has written meanwhile are not written again, and letters are not either."""
    graph = b.counting(tmp_path)
    query, other = InProcess(graph, kafka), InProcess(graph, kafka)
    other.batches._query = "other"
    send(kafka, "a b", "poison", "a")
    commit, done = query.batches._writers["words"].commit, []

    def late(batch: str, parts: Any) -> Any:
        if not done:
            done.append(other.run())
        return commit(batch, parts)

    query.batches._writers["words"].commit = late  # type: ignore[method-assign]
    query.run()
    assert rows_in(tmp_path / "words", "word") == ["a", "a", "b"]
    assert rows_in(tmp_path / "counts", "word", "n") == counted("a", "b", "a")
    assert len(query.letters()) == 2  # each engine's own


def kill_before_commit(query: InProcess, commits: int) -> None:
    """Let the driver die before that commit to a sink, from 0."""
    left = [commits]
    for writer in query.batches._writers.values():

        def commit(*given: Any, real: Any = writer.commit) -> Any:
            if not left[0]:
                raise KilledError
            left[0] -= 1
            return real(*given)

        writer.commit = commit  # type: ignore[method-assign]


class KilledError(BaseException):
    """The driver is dead."""


@pytest.mark.parametrize("bad", ["bad", "poison"])
def test_what_a_batch_is_committed_without_is_known_after_a_crash(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """A record that was given up, and after a crash between two sinks fails no more, is in neither sink nor state."""
    query = InProcess(b.counting(tmp_path), kafka)
    send(kafka, f"{bad} b", "a b")
    kill_before_commit(query, 1)
    with pytest.raises(KilledError):
        query.run()
    monkeypatch.setattr(b.Split, "process", b.Harmless.process)
    monkeypatch.setattr(b.Count, "process", b.HarmlessCount.process)
    query.start()
    query.run()
    assert rows_in(tmp_path / "words", "word") == ["a", "b"]
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 1), ("b", 1)]
    send(kafka, f"{bad} b")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 1), ("b", 1), ("b", 2), (bad, 1)]
    assert {letter.value for letter in query.letters()} == {f"{bad} b".encode()}


@pytest.mark.parametrize("committed", [0, 1, 2])
def test_a_driver_killed_between_sinks(kafka: FakeKafka, tmp_path: Path, committed: int) -> None:
    """Killed after none, one or all of the sinks have their entry, the batch computed again gives the same rows."""
    query = InProcess(b.counting(tmp_path), kafka)
    send(kafka, "a b", "a")
    query.run()
    send(kafka, "b", "a c")
    kill_before_commit(query, committed)
    if committed < 2:
        with pytest.raises(KilledError):
            query.run()
    else:
        ranges = query._read.copy()
        store, number = query.store, query.number
        query.run()
        query._read, query.store, query.number = ranges, store, number
    query.start()
    query.run()
    assert rows_in(tmp_path / "words", "word") == sorted(["a", "b", "a", "b", "a", "c"])
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*["a", "b", "a", "b", "a", "c"])
    staged = [path for sink in ("words", "counts") for path in (tmp_path / sink / "_staging").rglob("*.parquet")]
    assert len(staged) <= 2  # what the killed driver could not delete


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


def test_a_record_of_several_tuples(kafka: FakeKafka, tmp_path: Path) -> None:
    """A record that a translator makes several tuples of is done when all are, and is tried again as a whole."""
    entry = "tests.spark.topology_bolts.words_of(origin word)@words"
    spout = KafkaSpout.spec(topics=["lines"], translator=[entry])
    tag = b.UnluckyOnce.spec(inputs=[spout["words"]])
    count = b.Count.spec(inputs={spout["words"]: Grouping.fields("word")}, par=2)
    tags, counts = b.sink([tag], tmp_path / "tags", b.WORD), b.sink([count], tmp_path / "counts")
    query = InProcess(b.graph_of(spout=spout, tag=tag, count=count, tags=tags, counts=counts), kafka)
    send(kafka, "a last", "", None, "a never", "a")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == [("a", 1), ("a", 2), ("last", 1)]
    assert Counter(rows_in(tmp_path / "tags", "word")) == {"A": 3, "LAST": 1}
    assert [letter.value for letter in query.letters()] == [b"a never"]
    assert query.batches.totals.reports["spout"]["filtered"] == 2


def test_what_comes_of_a_held_tuple_and_fails_in_the_next_stateful_bolt(kafka: FakeKafka, tmp_path: Path) -> None:
    """A tuple that is anchored to an earlier batch's record alone, and fails behind, costs that record and no other."""
    spout = b.lines()
    split = b.Split.spec(inputs=[spout])
    pairs = b.LatePairs.spec(inputs={split: Grouping.fields("word")}, par=2)
    second = b.Second.spec(inputs={pairs: Grouping.fields("word")}, par=2)
    words, out = b.sink([split], tmp_path / "words", b.WORD), b.sink([second], tmp_path / "out")
    query = InProcess(b.graph_of(spout=spout, split=split, pairs=pairs, second=second, words=words, out=out), kafka)
    send(kafka, "worse one", "a")
    query.run()
    send(kafka, "worse two", "a")
    query.run()
    assert [letter.value for letter in query.letters()] == [b"worse one"]
    assert rows_in(tmp_path / "words", "word") == sorted(["worse", "one", "worse", "two", "a", "a"])
    assert rows_in(tmp_path / "out", "word", "n") == [("a", 1)]
    send(kafka, "one two")
    query.run()
    assert rows_in(tmp_path / "out", "word", "n") == [("a", 1), ("one", 1), ("two", 1)]
