"""Topologies on real Spark over a real broker: what nothing but the whole can show.

Runs as processes, which are killed and stopped, are in ``test_topology_processes.py``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession, functions

from downspout.audit.audit import audit
from downspout.engine.load import load
from downspout.errors import BrokerError, ConfigError, DownspoutError
from downspout.kafka import CUT_BYTES, TopicPartition
from downspout.sink import HIDDEN
from downspout.spark.topology.query import NO_NULL_HEADERS
from tests.spark.topology.scene import CASE, PLAIN, Scene, lines_of

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.mark.parametrize("emit", [pytest.param("record", marks=pytest.mark.sweep), "chunk"])
def test_the_tables_are_those_of_the_local_engine(scene: Scene, emit: str) -> None:
    """With two inputs, a named stream, stateful, batching and ticking bolts, all sinks have the local engine's rows.

    So they have where the spout emits chunks on Spark; the local engine's are made by record. What ticks are to tell is
    there at the end of each bounded run, and a run with nothing new tells nothing twice.
    """
    how = f"kafka.emit={emit}"
    scene.send(*lines_of(120), "poison pill")
    first = scene.run(CASE, how, records_per_batch=50)
    scene.send(*lines_of(40, seed=1))
    scene.run(CASE, how)
    assert first.batches >= 3
    assert scene.run(CASE, how).batches == 0
    scene.run_locally(CASE, into=scene.path / "local")
    for sink, columns in (("words", ("word",)), ("counts", ("word", "n")), ("batches", ("word",))):
        assert scene.out(sink, *columns) == scene.out(sink, *columns, below=scene.path / "local"), sink
    ticked: Counter[str] = Counter()
    for word, count in scene.out("ticks", "word", "n"):
        ticked[word] += count
    assert ticked == Counter(scene.out("counts", "word"))
    assert {letter.record.value for letter in scene.letters()} == {b"poison pill"}
    committed = scene.cluster.group_offsets(f"{scene.topic}-spark")
    assert {tp.partition: at.offset for tp, at in committed.items()} == {0: 81, 1: 80}
    assert scene.cluster.group_offsets(scene.topic) == {}


@pytest.mark.sweep
@pytest.mark.parametrize(("emit", "again"), [pytest.param("record", 2, marks=pytest.mark.sweep), ("chunk", 3)])
def test_a_record_that_fails_in_a_stateful_bolt(scene: Scene, emit: str, again: int) -> None:
    """It is given up after its tries: its letter is there, and neither state nor any sink knows of it.

    In a chunk it is not alone: once more the batch is computed, in which it is.
    """
    scene.send(*lines_of(20), "a bad apple", *lines_of(20, seed=1))
    first = scene.run(PLAIN, f"kafka.emit={emit}", records_per_batch=30)
    assert (first.computed_again, first.result.reports["spout"]["dead_lettered"]) == (again, 1)
    scene.send(*lines_of(10, seed=2))
    assert scene.run().computed_again == 0
    scene.check("a bad apple")
    (letter,) = scene.letters()
    assert (letter.record.value, letter.attempts, letter.component) == (b"a bad apple", 2, "count")
    assert not list(scene.path.rglob(f"staging/**/*{HIDDEN}"))


def test_a_checkpoint_of_something_else(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of another topology, or of other stateful bolts, is an error before anything runs."""
    scene.send("a")
    scene.run()
    with pytest.raises(ConfigError, match="is the checkpoint of topology topology_case-Plain, not topology_case-Case"):
        scene.run(CASE)
    graph = load(PLAIN)
    more = replace(graph.components["count"], par=3)
    changed = replace(graph, components={**graph.components, "count": more})
    with pytest.raises(ConfigError, match=r"keeps the state of count \(2\), and the topology now has count \(3\)"):
        scene.run(changed)
    scene.check()


def test_what_cannot_be_read(scene: Scene) -> None:
    """A topic that is missing, and a setting that nobody knows, are errors that name them."""
    with pytest.raises(BrokerError, match="nowhere"):
        scene.run(PLAIN, "kafka.topics=nowhere")
    with pytest.raises(ConfigError, match=r"kafka\.topic"):
        scene.run(PLAIN, "kafka.topic=x")


@pytest.mark.sweep
def test_a_record_that_is_too_large_is_a_dead_letter(scene: Scene) -> None:
    """Through Spark it comes as its beginning with its size, so one letter is written, and the others are counted."""
    scene.send("a", "b", "c")
    producer = KafkaProducer(bootstrap_servers=scene.cluster.bootstrap, compression_type="gzip")
    producer.send(scene.topic, b"x " * 100_000, partition=0)
    producer.close()
    done = scene.run(PLAIN, "kafka.record_bytes_max=100000")
    assert done.result.reports["spout"]["unreadable"] == 1
    (letter,) = scene.letters()
    assert letter.record_bytes is not None
    assert letter.record_bytes > 200_000
    kept = letter.record.value or b""
    assert (b"x " * 100_000).startswith(kept)
    assert CUT_BYTES // 2 < len(kept) <= CUT_BYTES
    scene.check()


@pytest.mark.sweep
def test_records_that_are_gone(scene: Scene) -> None:
    """Records that retention took fail the run; with on_data_loss=earliest it goes on behind them."""
    scene.send("a", "b", "c", "d")
    scene.run()
    scene.send("e", "f", "g", "h")
    scene.cluster.delete_records(scene.topic, 0, 3)
    with pytest.raises(DownspoutError, match=r"\[0\].*offset.* 2"):
        scene.run()
    scene.run(PLAIN, "kafka.on_data_loss=earliest")
    scene.check("e")


@pytest.mark.sweep
def test_two_engines_on_one_directory(scene: Scene) -> None:
    """Rows that the local engine wrote first are not written again by Spark, nor the other way round; audits agree."""
    scene.send(*lines_of(60))
    scene.run_locally()
    scene.send(*lines_of(60, seed=1))
    scene.run(records_per_batch=50)
    scene.send(*lines_of(60, seed=2))
    scene.run_locally()
    scene.run_locally(group="another")
    words = [word for line in scene.sent for word in line.split()]
    assert scene.out("words", "word") == sorted(words)
    report = audit(scene.path / "out" / "words", cluster=scene.cluster, several=True)
    assert report.found.row_count == len(words)
    assert TopicPartition(scene.topic, 0).partition in {part.partition for part in report.partitions}


def test_no_record_goes_into_python_with_null_headers(spark: SparkSession) -> None:
    """Records without headers have empty ones, of the same type, on their way to the first stage; others keep theirs.

    Spark looks at each batch's size after each row, and walks through the nulls at the end of a list column for that.
    """
    given = spark.createDataFrame(
        [(None,), ([("h", bytearray(b"1"))],)], "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    made = given.withColumn("headers", functions.expr(NO_NULL_HEADERS))
    assert made.schema["headers"].dataType == given.schema["headers"].dataType
    assert [[tuple(each) for each in row.headers] for row in made.collect()] == [[], [("h", bytearray(b"1"))]]
