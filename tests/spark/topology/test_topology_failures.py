"""The stages of a topology on Spark, run in process: failed records, and a driver that dies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from streamparse import Grouping

from downspout.errors import ComponentError, RecordError, UnavailableError, UnreadableError
from downspout.ledger import Breaker
from downspout.sink import HIDDEN, Layout
from downspout.testing import FakeKafka, Killed
from spouts.kafka import KafkaSpout
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, counted, failure_of, letters_of, rows_in, send

pytestmark = pytest.mark.fake_only("Spark itself runs the same stages over the real broker in test_topology_run.py")


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
    send(kafka, *[f"poison {n}" for n in range(400)])
    with pytest.raises(ComponentError, match="on 101 different tuples in a row"):
        query.run()
    assert rows_in(tmp_path / "words", "word") == []
    assert query.letters() == []


def test_a_batch_with_nothing_but_bad_records_goes_on(kafka: FakeKafka, tmp_path: Path) -> None:
    """A few bad records, and nothing else to read, have their dead letters, though the bolt dies of each."""
    query = InProcess(b.counting(tmp_path, split=b.Brittle), kafka)
    send(kafka, *[f"poison {n}" for n in range(20)])
    query.run()
    assert len(query.letters()) == 20


def test_too_many_dead_letters_open_the_breaker(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where most records fail for good the run ends instead, and nothing is written."""
    monkeypatch.setattr(Breaker, "WINDOW", 10)
    query = InProcess(b.counting(tmp_path), kafka, {"kafka.retries_max": 0})
    send(kafka, *["poison"] * 40)
    with pytest.raises(RecordError, match="failed for good, most often with ValueError"):
        query.run()
    assert query.letters() == []


@pytest.mark.parametrize("count", [b.Count, b.BrittleCount])
def test_a_record_that_fails_in_a_stateful_bolt_leaves_no_trace(kafka: FakeKafka, tmp_path: Path, count: Any) -> None:
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


class Away(b.Split):
    """Splits once a service has answered: not before the 30th try."""

    tries: ClassVar[Counter[str]] = Counter()

    def process(self, tup: Any) -> None:
        self.tries[tup.values.value] += 1
        if self.tries[tup.values.value] < 30:
            raise UnavailableError("the service does not answer")
        super().process(tup)


class AwayCount(b.Count):
    tries: ClassVar[list[int]] = []

    def process(self, tup: Any) -> None:
        AwayCount.tries.append(1)
        if len(AwayCount.tries) < 30:
            raise UnavailableError("the service does not answer")
        super().process(tup)


@pytest.mark.parametrize("bolts", [{"split": Away}, {"count": AwayCount}])
def test_an_outage_costs_no_record(kafka: FakeKafka, tmp_path: Path, bolts: dict[str, Any]) -> None:
    """What a bolt needs and cannot reach is waited for, longer than retries and time-outs last; in each stage."""
    Away.tries.clear()
    AwayCount.tries.clear()
    query = InProcess(b.counting(tmp_path, **bolts), kafka, {"kafka.timeouts_max": 3, "kafka.retries_max": 2})
    send(kafka, "a b", "b")
    query.run()
    assert rows_in(tmp_path / "counts", "word", "n") == counted("a", "b", "b")
    assert query.letters() == []


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
    """A null value is a tuple like any other; one that cannot be read is dead-lettered at its first try."""
    query = InProcess(b.counting(tmp_path), kafka)
    send(kafka, "a", None, "b")
    kafka.produce("lines", b"\xff\xfe")
    query.run()
    assert rows_in(tmp_path / "words", "word") == ["a", "b"]
    (letter,) = query.letters()
    assert letter.value == b"\xff\xfe"
    assert dict(letter.headers)["__downspout.errors.attempts"] == b"1"


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_what_kafka_cannot_give_whole_is_dead_lettered_as_by_the_other_engines(
    kafka: FakeKafka, tmp_path: Path, emit: str
) -> None:
    """A record that is too large and a damaged batch cost one letter each, with all offsets; what is around counts."""
    kafka.damage("lines", 0, 2, 5)
    kafka.damage("lines", 0, 6, 7, size=400_000_000)
    for number in range(9):
        kafka.produce("lines", b"w%d" % number, partition=0)
    query = InProcess(b.counting(tmp_path), kafka, {"kafka.on_corrupt_batch": "dead_letter", "kafka.emit": emit})
    query.run()
    assert rows_in(tmp_path / "words", "word") == ["w0", "w1", "w5", "w7", "w8"]
    damaged, large = sorted(letters_of(query), key=lambda letter: letter.offsets[0])
    assert (damaged.offsets, damaged.is_cut, damaged.record.value) == (range(2, 5), True, None)
    assert (large.offsets, large.record_bytes, large.record.value) == (range(6, 7), 400_000_000, b"w6")
    assert query.batches.totals.dead_lettered == {"spout": 2}
    assert query.batches.totals.reports["spout"]["unreadable"] == 4


def test_a_damaged_batch_that_two_batches_of_spark_share_is_named_by_both(kafka: FakeKafka, tmp_path: Path) -> None:
    """Each letter has the offsets of its own batch, so that together they name all, and none is named twice."""
    kafka.damage("lines", 0, 2, 7)
    for number in range(9):
        kafka.produce("lines", b"w%d" % number, partition=0)
    query = InProcess(b.counting(tmp_path), kafka, {"kafka.on_corrupt_batch": "dead_letter"})
    query.run(4)
    query.drain(4)
    letters = letters_of(query)
    assert [letter.offsets for letter in letters] == [range(2, 4), range(4, 7)]
    assert rows_in(tmp_path / "words", "word") == ["w0", "w1", "w7", "w8"]


def test_by_default_a_damaged_batch_is_an_error_with_its_place_and_the_cure(kafka: FakeKafka, tmp_path: Path) -> None:
    """By default none of the batch is committed; a record that is too large is a letter all the same."""
    kafka.damage("lines", 0, 1, 2, size=400_000_000)
    kafka.damage("lines", 0, 3, 7)
    for number in range(9):
        kafka.produce("lines", b"w%d" % number, partition=0)
    query = InProcess(b.counting(tmp_path), kafka)
    query.run(3)
    assert [letter.record_bytes for letter in letters_of(query)] == [400_000_000]
    with pytest.raises(UnreadableError, match=r"lines\[0\]@3: .*checksum.*kafka.on_corrupt_batch=dead_letter"):
        query.run()
    assert rows_in(tmp_path / "words", "word") == ["w0", "w2"]


@pytest.mark.parametrize("bad", ["large", "damaged"])
def test_what_a_batch_is_committed_without_may_be_unreadable(kafka: FakeKafka, tmp_path: Path, bad: str) -> None:
    """A driver that dies after the letters are durable goes on with them, as with those of other records."""
    kafka.damage("lines", 0, 1, 2 if bad == "large" else 3, size=400_000_000 if bad == "large" else None)
    for number in range(4):
        kafka.produce("lines", b"w%d" % number, partition=0)
    query = InProcess(b.counting(tmp_path), kafka, {"kafka.on_corrupt_batch": "dead_letter"})
    kill_before_commit(query, 0)
    with pytest.raises(Killed):
        query.run()
    query.start()
    query.run()
    kept = {letter.offsets for letter in letters_of(query)}
    assert kept == {range(1, 2 if bad == "large" else 3)}
    assert rows_in(tmp_path / "words", "word") == (["w0", "w2", "w3"] if bad == "large" else ["w0", "w3"])


def test_no_dead_letter_topic_ends_the_run(kafka: FakeKafka, tmp_path: Path) -> None:
    query = InProcess(b.counting(tmp_path), kafka, {"kafka.dead_letter_topic": ""})
    send(kafka, "a", "poison")
    with pytest.raises(RecordError, match=r"lines\[1\]@0 failed for good, last by exception: ValueError: poison"):
        query.run()
    assert rows_in(tmp_path / "words", "word") == []


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

    query.batches._writers["words"].commit = late
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
                raise Killed
            left[0] -= 1
            return real(*given)

        writer.commit = commit  # type: ignore[assignment]


@pytest.mark.parametrize("bad", ["bad", "poison"])
def test_what_a_batch_is_committed_without_is_known_after_a_crash(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """A record that was given up, and after a crash between two sinks fails no more, is in neither sink nor state."""
    query = InProcess(b.counting(tmp_path), kafka)
    send(kafka, f"{bad} b", "a b")
    kill_before_commit(query, 1)
    with pytest.raises(Killed):
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
        with pytest.raises(Killed):
            query.run()
    else:
        ranges = query._read.copy()
        store, number = query.store, query.number
        query.run()
        query._read, query.store, query.number = ranges, store, number
    left = staged_in(tmp_path / "words", tmp_path / "counts")
    query.start()
    query.run()
    assert rows_in(tmp_path / "words", "word") == sorted(["a", "b", "a", "b", "a", "c"])
    assert rows_in(tmp_path / "counts", "word", "n") == counted(*["a", "b", "a", "b", "a", "c"])
    assert staged_in(tmp_path / "words", tmp_path / "counts") <= left  # what the killed driver could not delete


def staged_in(*directories: Path) -> set[Path]:
    """Return the data files that sinks have staged, and not brought into sight or deleted."""
    return {path for each in directories for path in Layout(each).staging.rglob(f"*{HIDDEN}")}


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
    assert repr(query.batches.totals.reports["spout"]["filtered"]) == "2"  # and not 2.0: it is shown so


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
