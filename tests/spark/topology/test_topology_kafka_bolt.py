"""KafkaBolt in the stages of a topology on Spark, run in process: a batch ends when all of its records are answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka import errors
from streamparse import Grouping

from bolts.kafka import KafkaBolt
from downspout.errors import BrokerError, TopologyError
from downspout.spark.topology.batch_commit import Totals
from downspout.spark.topology.stage_rows import StageMetrics
from downspout.testing import FakeKafka
from tests.spark import topology_bolts as b
from tests.spark.topology_support import InProcess, failure_of, letters_of, rows_in, send

pytestmark = pytest.mark.fake_only("Spark itself runs a KafkaBolt over the real broker in test_topology_processes.py")

OUT = "out"


@pytest.fixture
def kafka(kafka: FakeKafka) -> FakeKafka:
    """A Kafka with a topic to write to, which answers nothing before it is asked to flush."""
    kafka.create_topic(OUT, 3)
    kafka.acks_after_s = 5.0
    return kafka


def words_to(out: Any, *, split: Any = b.Harmless, grouping: Any = Grouping.SHUFFLE, **settings: Any) -> Any:
    """Return a topology that writes words to Kafka, and to files."""
    spout = b.lines()
    splitter = split.spec(inputs=[spout])
    to_kafka = KafkaBolt.spec(inputs={splitter: grouping}, topic=OUT, fields={"message": "word"}, **settings)
    return b.graph_of(spout=spout, split=splitter, kafka=to_kafka, words=b.sink([splitter], out / "words", b.WORD))


def written(kafka: FakeKafka) -> list[str]:
    return sorted(record.value.decode() for record in kafka.records(OUT))


@pytest.mark.parametrize("emit", ["record", "chunk"])
@pytest.mark.parametrize("grouping", [Grouping.SHUFFLE, Grouping.fields("word")])
def test_a_batch_waits_for_the_brokers_answers(kafka: FakeKafka, tmp_path: Path, emit: str, grouping: Any) -> None:
    """No tuple times out at the end of a batch because its answer is still on its way: each record is there once.

    The bolt is never stateful, whatever the grouping: it runs beside the sinks.
    """
    query = InProcess(words_to(tmp_path, grouping=grouping), kafka, {"kafka.emit": emit})
    assert query.plan.stateful == {}
    send(kafka, "a b", "c", "a")
    query.run()
    send(kafka, "d")
    query.run()
    assert written(kafka) == rows_in(tmp_path / "words", "word") == ["a", "a", "b", "c", "d"]
    totals = query.batches.totals
    assert (totals.counts["kafka"].failed, totals.counts["kafka"].acked) == (0, 5)
    assert (totals.reports["kafka"]["sent"], totals.reports["kafka"]["in_flight"]) == (5, 0)


def test_a_record_that_brokers_refuse_is_dead_lettered(kafka: FakeKafka, tmp_path: Path) -> None:
    """Its tuple fails, so its record is tried again and then dead-lettered with the broker's reason; the others count.

    What came of that record beside the refused tuple was written with each try: at least once.
    """
    kafka.refuses = lambda record: errors.MessageSizeTooLargeError() if record.value == b"huge" else None
    query = InProcess(words_to(tmp_path), kafka)
    send(kafka, "a b", "c huge", "d")
    query.run()
    assert set(written(kafka)) == {"a", "b", "c", "d"}
    assert written(kafka).count("a") == 1
    (letter,) = query.letters()
    assert letter.value == b"c huge"
    assert "lines[1]@0: kafka: not written to out[" in failure_of(letter)


def test_a_batch_that_is_computed_again_is_written_again(kafka: FakeKafka, tmp_path: Path) -> None:
    """Where a stateful bolt fails, the files have each row once, and Kafka each record at least once."""
    spout = b.lines()
    split = b.Harmless.spec(inputs=[spout])
    count = b.Count.spec(inputs={split: Grouping.fields("word")})
    out = KafkaBolt.spec(inputs=[split, count], topic=OUT, fields={"message": "word"})
    graph = b.graph_of(spout=spout, split=split, count=count, kafka=out, counts=b.sink([count], tmp_path, b.COUNT))
    query = InProcess(graph, kafka)
    send(kafka, "a b", "bad", "a")
    query.run()
    assert rows_in(tmp_path, "word", "n") == [("a", 1), ("a", 2), ("b", 1)]
    assert set(written(kafka)) == {"a", "b", "bad"}  # the word itself was written before it was counted
    assert written(kafka).count("a") == 4 * (query.batches.totals.again + 1)
    assert [letter.record.value for letter in letters_of(query)] == [b"bad"]


def test_an_error_of_all_records_ends_the_run(kafka: FakeKafka, tmp_path: Path) -> None:
    """A right that is missing fails no tuple: the run ends with the bolt's own error, and nothing is in the files."""
    kafka.refuses = lambda record: errors.TopicAuthorizationFailedError() if record.topic == OUT else None
    query = InProcess(words_to(tmp_path), kafka)
    send(kafka, "a b")
    with pytest.raises(BrokerError, match="kafka: nothing can be written to out"):
        query.run()
    assert rows_in(tmp_path / "words", "word") == []
    assert query.letters() == []


def test_transactions_are_refused(kafka: FakeKafka, tmp_path: Path) -> None:
    """produce.transactional is refused before anything runs, by the bolt's name, with what is promised without it."""
    with pytest.raises(TopologyError, match=r"kafka has produce\.transactional = true.*at least once"):
        InProcess(words_to(tmp_path, transactional=True), kafka)
    assert InProcess(words_to(tmp_path), kafka).plan.kafka_bolts == ["kafka"]


def test_a_gauge_of_many_batches_is_the_last_one() -> None:
    """Counters of tasks add up; a gauge, as the time to an answer, is what the last task reported."""
    totals = Totals()
    for sent, answer_s in ((3, 0.5), (4, 0.25)):
        metrics = StageMetrics()
        metrics.reports = {"kafka": {"sent": sent, "answer_s": answer_s}}
        totals.add(metrics)
    assert totals.reports["kafka"] == {"sent": 7, "answer_s": 0.25}
