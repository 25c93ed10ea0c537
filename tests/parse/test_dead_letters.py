"""DeadLetterBolt: rejects of other bolts become the same dead letters as the spout's."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from kafka import errors
from streamparse import Topology

from bolts.dead_letter import DeadLetterBolt
from bolts.parse import JsonParseBolt
from downspout.cli import main
from downspout.dead_letters import DeadLetter, DeadLetters, read_dead_letters, rejected
from downspout.dead_letters.rejected import DeadLetterWriter, RejectedRow
from downspout.kafka import Rereader, cluster_for
from downspout.ledger import Origin
from downspout.origins import column_of
from downspout.testing import run_topology
from spouts.kafka import KafkaSpout
from tests.kafka.broker_stage import wait_until
from tests.parse.support import run_chunks
from tests.spout.spout_driver import Kafka

TOPIC = "orders"
HEADERS = [("trace", b"\x00\xff"), ("trace", b"2"), ("none", b"")]
TYPES = {"a": "int16"}


PATIENCE_S = 60.0


@pytest.fixture
def kafka(bare_kafka: Kafka, cluster_kind: str, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """Three partitions with good records, and in each some that are none."""
    if cluster_kind == "broker":  # what a busy machine's broker answers late would be written twice, or not be read
        flush = DeadLetters.flush
        monkeypatch.setattr(DeadLetters, "flush", lambda letters, timeout_s=None: flush(letters, PATIENCE_S))
        monkeypatch.setattr(rejected, "DRAIN_S_MAX", PATIENCE_S)
        monkeypatch.setattr(rejected, "READ_S_MAX", PATIENCE_S)
    bare_kafka.create_topic(TOPIC, 3)
    for number in range(30):
        bad = number % 10 >= 7
        value = [b"\xff{", b"{", b'{"a": "no number"}'][number % 3] if bad else b'{"a": %d}' % number
        key = None if number % 2 else b"\xfe%d" % number
        bare_kafka.produce(
            TOPIC, value, key=key, headers=HEADERS if bad else (), partition=number % 3, timestamp_ms=1_000 + number
        )
    return bare_kafka


WHOLE = ["origin", "key", "value", "timestamp", "headers"]


def topology(group: str, *, aside: bool, **spout: Any) -> Any:
    """Return a topology; ``aside``: its rejects are read, and their letters written by the bolt."""
    given = {"fields": ["origin", "value"], "value_format": "bytes", "key_format": "bytes", "retries_max": 0, **spout}

    class Direct(Topology):
        spout = KafkaSpout.spec(topics=[TOPIC], group=group, **given)
        parse = JsonParseBolt.spec(inputs=[spout], fields=["a"], types=TYPES)

    class Aside(Topology):
        spout = KafkaSpout.spec(topics=[TOPIC], group=group, **given)
        parse = JsonParseBolt.spec(inputs=[spout], fields=["a"], types=TYPES)
        letters = DeadLetterBolt.spec(inputs=[parse["rejects"]], group=group)

    return Aside if aside else Direct


def letters_of(kafka: Kafka, topic: str) -> dict[tuple[str, str, int, int], DeadLetter]:
    """Return the letters of a topic by origin; no origin has two."""
    letters = list(read_dead_letters(cluster_for(kafka.bootstrap), topic))
    found = {letter.origin: letter for letter in letters if letter.origin is not None}
    assert len(found) == len(letters)
    return found


def content(letter: DeadLetter) -> tuple[Any, ...]:
    """Return what a letter tells of its record and of the error."""
    record = letter.record
    return (
        record.key, record.value, letter.headers, record.timestamp, letter.attempts, letter.component,
        letter.error_class, letter.error, letter.incomplete,
    )  # fmt: skip


def run(topology: Any, kafka: Kafka) -> Any:
    settings: Mapping[str, Any] = getattr(kafka, "settings", {})
    return run_topology(topology, config={**settings, "kafka.bootstrap": kafka.bootstrap, "kafka.breaker_ratio": 0})


@pytest.mark.parametrize("emit", ["record", "chunk"])
@pytest.mark.parametrize(
    ("fields", "remembers"), [(["origin", "value"], True), (["origin", "value"], False), (WHOLE, False)]
)
def test_the_letters_are_the_spouts(
    kafka: Kafka, emit: str, fields: list[str], remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rejected record has one letter, with the key, value, headers, time, attempts and error of the spout's.

    Whatever the spout's fields are: what they lack the spout still has, or it is read again; else nothing is.
    """
    if not remembers:
        monkeypatch.setattr(KafkaSpout, "record_at", lambda spout, origin: None)
    reads: list[int] = []
    read = Rereader.read
    monkeypatch.setattr(Rereader, "read", lambda *given: (reads.append(1), read(*given))[1])
    direct = run(topology("direct", aside=False), kafka)
    aside = run(topology("aside", aside=True, emit=emit, fields=fields), kafka)
    own, ours = letters_of(kafka, "direct.dead-letters"), letters_of(kafka, "aside.dead-letters")
    assert len(own) == 9
    assert {origin: content(letter) for origin, letter in ours.items()} == {
        origin: content(letter) for origin, letter in own.items()
    }
    assert {letter.kind for letter in ours.values()} == {"reject"}
    assert all(letter.last_failure_ms == letter.first_failure_ms is not None for letter in ours.values())
    assert direct.counts("parse").failed == 9
    assert aside.counts("parse").failed == 0
    assert aside.run.reports["letters"] == {"dead_lettered": 9, "held": 0, "incomplete": 0}
    assert bool(reads) == (fields != WHOLE and not remembers)


def chunk_of(kafka: Kafka, partition: int) -> pa.RecordBatch:
    """Return the records of a partition as a chunk, without keys."""
    topic_id = kafka.topic_id(TOPIC)
    records = kafka.records(TOPIC, partition)
    places = column_of([Origin(TOPIC, topic_id, partition, record.offset) for record in records])
    values = pa.array([record.value for record in records], pa.binary())
    return pa.RecordBatch.from_arrays([places, pa.nulls(len(records)), values], names=["origin", "key", "value"])


def test_rejects_of_chunks_become_whole_letters(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a chunk without headers, times and keys the letters have them all, and `downspout dlq` reads them."""
    result = run_chunks(
        JsonParseBolt.spec(fields=["a"], types=TYPES),
        [chunk_of(kafka, partition) for partition in range(3)],
        readers=[DeadLetterBolt.spec(group="g", bootstrap=kafka.bootstrap)],
    )
    letters = letters_of(kafka, "g.dead-letters")
    bad = [record for part in range(3) for record in kafka.records(TOPIC, part) if record.headers]
    assert {(place[2], place[3]): (found.record.key, found.record.value, found.headers, found.record.timestamp)
            for place, found in letters.items()} == {
        (record.partition, record.offset): (record.key, record.value, list(record.headers), record.timestamp)
        for record in bad
    }  # fmt: skip
    (source,) = result.components["source"]
    assert len(source.acked) == 30
    assert main(["dlq", "ls", "g.dead-letters", "--json", "--bootstrap", kafka.bootstrap]) == 0
    assert json.loads(capsys.readouterr().out)["letters"] == 9


class Box:
    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.done: list[str] = []
        self.refused: list[tuple[str, str]] = []
        cluster = cluster_for(kafka.bootstrap)
        self.box = DeadLetterWriter(
            DeadLetters(cluster, "dead"),
            Rereader(cluster, kafka.clock),
            kafka.clock,
            logging.getLogger("tests.letters"),
            self.done.append,
            lambda tup, error: self.refused.append((tup, str(error))),
        )

    def row(self, offset: int, topic_id: str | None = None) -> RejectedRow:
        known = self.kafka.topic_id(TOPIC) if topic_id is None else topic_id
        origin = Origin(TOPIC, known, 0, offset)
        return RejectedRow(origin, "ValueError: bad", "parse", 4, 1_234, "key", "välue")

    def letters(self) -> list[DeadLetter]:
        return list(read_dead_letters(cluster_for(self.kafka.bootstrap), "dead"))

    def work(self, seconds: float = 1.0, turns: int = 12) -> None:
        for _ in range(turns):
            self.kafka.clock.sleep(seconds)
            self.box.work()


@pytest.fixture
def box(kafka: Kafka) -> Any:
    made = Box(kafka)
    yield made
    made.box.close()


def test_a_tuple_waits_for_all_its_letters(box: Box) -> None:
    """A tuple is done when the last of its letters is durable, and one without rows at once."""
    box.box.add("none", [])
    assert box.done == ["none"]
    box.box.add("two", [box.row(2), box.row(4)])
    box.box.add("one", [box.row(5)])
    assert box.done == ["none"]
    box.box.drain()
    assert sorted(box.done) == ["none", "one", "two"]
    assert sorted(letter.offset or 0 for letter in box.letters()) == [2, 4, 5]
    assert len(box.box) == 0


@pytest.mark.slow
def test_a_call_that_comes_late_finds_the_letters_written(box: Box) -> None:
    box.box.add("one", [box.row(2)])
    box.box.work()
    wait_until(box.letters)  # the real producer's thread takes real time
    box.kafka.clock.sleep(60)  # later than an answer may come
    wait_until(lambda: (box.box.work(), box.done)[1])
    assert box.done == ["one"]


def test_a_record_that_is_gone_leaves_what_is_known(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    """A letter of a deleted record holds the key and value of the row, says so in a header, and `dlq show` tells."""
    cluster_for(box.kafka.bootstrap).delete_records(TOPIC, 0, 3)
    box.box.add("gone", [box.row(2)])
    box.box.add("there", [box.row(4)])
    box.box.drain()
    gone, there = sorted(box.letters(), key=lambda letter: letter.offset or 0)
    assert (gone.record.key, gone.record.value, gone.headers) == (b"key", "välue".encode(), [])
    assert gone.incomplete == "the record is gone from Kafka: key and value as a bolt was given them"
    assert (there.record.value, there.incomplete) == (b'{"a": 12}', None)
    assert sorted(box.done) == ["gone", "there"]
    assert main(["dlq", "show", "dead", "orders[0]@2", "--bootstrap", box.kafka.bootstrap]) == 0
    assert "not whole: the record is gone from Kafka" in capsys.readouterr().out


@pytest.mark.parametrize("place", [("orders", 0, 99), ("orders", 7, 0), ("nowhere", 0, 0)])
def test_a_place_that_is_nowhere(box: Box, place: tuple[str, int, int]) -> None:
    """An offset beyond the log, a partition or a topic that does not exist: the letter holds what is known."""
    row = box.row(0, topic_id="")
    row.origin = Origin(place[0], "", place[1], place[2])
    box.box.add("odd", [row])
    box.box.drain()
    (letter,) = box.letters()
    assert (letter.topic, letter.partition, letter.offset) == place
    assert letter.incomplete
    assert box.done == ["odd"]


def test_a_topic_made_anew_has_other_records(box: Box) -> None:
    box.box.add("old", [box.row(1, topic_id="AAAAAAAAAAAAAAAAAAAAAA")])
    box.box.drain()
    (letter,) = box.letters()
    assert (letter.record.value, letter.topic_id) == ("välue".encode(), "AAAAAAAAAAAAAAAAAAAAAA")
    assert letter.incomplete


@pytest.mark.parametrize("operation", ["ensure_topic", "send", "flush", "poll", "topic_id"])
def test_an_error_is_tried_again(box: Box, operation: str) -> None:
    """Whatever step fails for a while, nothing is acked before the letter is durable, and then it is."""
    box.kafka.faults.fail_next(operation, errors.KafkaTimeoutError("gone"))
    box.box.add("one", [box.row(2)])
    box.box.add("two", [box.row(4)])
    box.work()
    box.box.drain()
    assert sorted(box.done) == ["one", "two"]
    assert {letter.offset for letter in box.letters()} == {2, 4}
    assert box.refused == []


@pytest.mark.parametrize(
    "error", [errors.UnknownProducerIdError(), errors.KafkaError(errors.InvalidProducerIdMappingError())]
)
def test_an_error_of_the_producer_is_no_letters(box: Box, error: errors.KafkaError) -> None:
    """Brokers have forgotten it: that is tried again with another one, and fails no tuple."""
    box.kafka.faults.fail_next("send", error, times=3)
    box.box.add("one", [box.row(2)])
    box.work()
    box.box.drain()
    assert (box.done, box.refused, [letter.offset for letter in box.letters()]) == (["one"], [], [2])


def test_a_letter_that_can_never_be_written_fails_its_tuple_alone(box: Box) -> None:
    """An error that does not pass is blamed on one letter, whose tuple fails with the topic's name; others pass."""
    box.kafka.faults.fail_next("send", errors.MessageSizeTooLargeError("too large"), times=2)
    box.box.add("bad", [box.row(2)])
    box.box.add("good", [box.row(4)])
    box.work()
    box.box.drain()
    ((refused, said),) = box.refused
    assert refused == "bad"
    assert "orders[0]@2: rejected by parse, and its dead letter cannot be written to topic dead: " in said
    assert box.done == ["good"]
    assert len(box.box) == 0


def test_a_tuple_that_comes_again_waits_for_the_same_letter(box: Box) -> None:
    """A tuple that timed out while its letter was on its way gets no second one."""
    box.box.add("first", [box.row(2)])
    box.box.add("again", [box.row(2)])
    box.box.drain()
    assert sorted(box.done) == ["again", "first"]
    assert len(box.letters()) == 1


def test_few_letters_wait_for_others(box: Box) -> None:
    """Without a tick a few letters are not sent at once, and after a moment they are."""
    box.box.add("one", [box.row(2)])
    box.box.work(eager=False)
    assert len(box.box) == 1
    box.kafka.clock.sleep(0.3)
    box.box.work(eager=False)
    assert box.box.is_sending or box.done
    box.box.drain()
    assert box.done == ["one"]


def test_without_a_topic_the_tuple_fails(kafka: Kafka) -> None:
    """With kafka.dead_letter_topic empty nothing is written and the chunk fails with the record's error."""
    result = run_chunks(
        JsonParseBolt.spec(fields=["a"], types=TYPES),
        [chunk_of(kafka, 1)],
        readers=[DeadLetterBolt.spec(dead_letter_topic="", bootstrap=kafka.bootstrap)],
    )
    assert result.counts("reader0").failed > 0
    (source,) = result.components["source"]
    assert len(source.given_up) == sum(bool(record.headers) for record in kafka.records(TOPIC, 1))
    # The class that the rejected value was given is not said twice.
    assert "RecordError: orders[1]@" in result.run.errors[0]
