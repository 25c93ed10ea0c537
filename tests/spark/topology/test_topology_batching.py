"""The stages of a topology on Spark, run in process: bolts that process many records at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamparse import Grouping

from downspout.testing import FakeKafka
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, counted, rows_in, send

pytestmark = pytest.mark.fake_only("Spark itself runs the same stages over the real broker in test_topology_run.py")


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
