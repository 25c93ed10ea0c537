"""KafkaBolt: each tuple is one record, acked when written; one that cannot be written fails alone, with a reason."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import streamparse
from kafka import errors
from streamparse import Topology

from bolts.kafka import KafkaBolt
from downspout.dead_letters import read_dead_letters
from downspout.engine import from_class
from downspout.errors import BrokerError, ConfigError
from downspout.kafka import Sent, cluster_for, partition_of_key
from downspout.ledger import Origin
from downspout.origins import column_of
from downspout.producing import Outgoing, error_of_record
from downspout.run import findings, resolve
from downspout.testing import TopologyResult, run_bolt, run_topology
from spouts.kafka import KafkaSpout
from tests.producing.support import OUT, written
from tests.spout.spout_driver import Kafka

ORIGIN = Origin("in", "", 0, 7)


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    bare_kafka.create_topic(OUT, 3)
    return bare_kafka


def settings_of(kafka: Kafka, **more: Any) -> dict[str, Any]:
    return {"kafka.bootstrap": kafka.bootstrap, "topology.message.timeout.secs": 600, **more}


def write(kafka: Kafka, rows: Any, *, config: Any = None, **settings: Any) -> TopologyResult:
    given = {"topic": OUT, "auto_create": False, **settings}
    spec = KafkaBolt.spec(config={"topology.tick.tuple.freq.secs": 1, **settings_of(kafka, **(config or {}))}, **given)
    return run_bolt(spec, rows, config=settings_of(kafka), clock=kafka.clock)


def test_tuples_become_records(kafka: Kafka) -> None:
    """Key and message are the fields of that name; each tuple is acked, and each record is where its key says."""
    rows = [{"key": f"k{number}", "message": f"m{number}"} for number in range(100)]
    result = write(kafka, rows)
    assert len(result.acked("bolt")) == 100
    found = written(kafka)
    assert sorted((r.key, r.value) for r in found) == sorted((b"k%d" % n, b"m%d" % n) for n in range(100))
    assert {r.partition == partition_of_key(r.key or b"", 3) for r in found} == {True}


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous", "fire_and_forget"])
def test_each_mode_writes_all_and_acks_all(kafka: Kafka, mode: str) -> None:
    result = write(kafka, [{"message": str(n)} for n in range(150)], mode=mode)
    assert len(result.acked("bolt")) == 150
    assert sorted(int(r.value or b"") for r in written(kafka)) == list(range(150))


def test_all_parts_of_a_record_may_be_fields(kafka: Kafka) -> None:
    """Headers, time, partition, JSON, and a null message, which is a tombstone."""
    rows = [
        {"id": {"a": 1}, "body": None, "heads": {"trace": "7"}, "at": 17, "where": 2},
        {"id": None, "body": [1, "x"], "heads": None, "at": 18, "where": 0},
    ]
    fields = {"key": "id", "message": "body", "headers": "heads", "timestamp": "at", "partition": "where"}
    result = write(kafka, rows, fields=fields, key_format="json", message_format="json")
    assert len(result.acked("bolt")) == 2
    second, first = written(kafka)
    assert (first.partition, first.key, first.value, first.timestamp) == (2, b'{"a":1}', None, 17)
    assert list(first.headers) == [("trace", b"7")]
    assert (second.partition, second.key, second.value, second.timestamp) == (0, None, b'[1,"x"]', 18)


def test_topics_may_be_told_by_the_tuple(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """By a field; a tuple that names none is acked and not written, with one warning."""
    kafka.create_topic("other")
    rows = [{"kind": kind, "message": "m"} for kind in (OUT, "other", None, "", "other", None)]
    result = write(kafka, rows, topic=None, fields={"topic": "kind"})
    assert len(result.acked("bolt")) == 6
    assert (len(written(kafka)), len(written(kafka, "other"))) == (1, 2)
    assert sum("no topic is named for this tuple" in record.getMessage() for record in caplog.records) == 1


def reasons(result: TopologyResult) -> str:
    return "\n".join(result.errors)


@pytest.mark.parametrize(("bad", "match"), [
    ({"message": "x" * 3000}, r"in\[0\]@7: bolt: not written to out\[\d\]: .*MessageSizeTooLarge.*max.message.bytes"),
    ({"message": 7}, r"in\[0\]@7: bolt: the message cannot be written: its type is int"),
    ({"where": 3}, r"in\[0\]@7: bolt: out has no partition 3: it has 3, numbered from 0 to 2"),
    ({"where": -1}, r"out has no partition -1: it has 3"),
    ({"heads": 7}, r"the headers cannot be written"),
    ({"at": "now"}, r"the timestamp 'now' is not a time"),
    ({"kind": "no such topic"}, r"in\[0\]@7: bolt: Topic name .no such topic. is illegal"),
    ({"kind": "missing"}, r"not written to missing: .*Try: create the topic"),
    ({"kind": "__consumer_offsets"}, r"not written to __consumer_offsets.*InvalidTopic.*Try: name another topic"),
])  # fmt: skip
def test_a_bad_record_fails_its_tuple_alone(bare_kafka: Kafka, bad: dict[str, Any], match: str) -> None:
    """With its coordinates and a cure; those around it are written once and acked."""
    kafka = bare_kafka
    kafka.create_topic(OUT, 3, {"max.message.bytes": "2000"})
    kafka.group_offsets("any")  # with the first question for a group, a broker makes its own topic for offsets
    good = {"origin": ORIGIN, "message": "m", "heads": None, "at": None, "where": 1, "kind": OUT}
    rows = [good | {"message": str(n)} for n in range(10)]
    rows.insert(5, good | bad)
    fields = {"headers": "heads", "timestamp": "at", "partition": "where", "topic": "kind"}
    result = run(kafka, list(good), rows, for_s=10.0, fields=fields, auto_create=False)
    assert [r.value for r in written(kafka)] == [b"%d" % n for n in range(10)]
    assert len(result.acked("rows")) == 10
    assert match_of(match, result)


@pytest.mark.parametrize("how", ["asynchronous", "synchronous", "fire_and_forget"])
def test_a_fixed_topic_that_does_not_exist_stops_the_bolt(bare_kafka: Kafka, how: str) -> None:
    """Nothing fails or is tried again, since all records would fare the same; the error names the topic and a cure."""
    rows = [{"message": str(number)} for number in range(200)]
    expected = r"bolt: there is no topic missing, and the broker does not create it\. Try: create the topic"
    with pytest.raises(BrokerError, match=expected):
        write(bare_kafka, rows, topic="missing", mode=how)


def test_a_topic_that_is_described_is_created(bare_kafka: Kafka) -> None:
    """With as many partitions as the topology says; one that is there already stays as it is."""
    rows = [{"key": f"k{number}", "message": str(number)} for number in range(30)]
    for partitions in (3, 5):
        result = write(bare_kafka, rows, partitions=partitions, replication=1)
        assert len(result.acked("bolt")) == 30
        assert len(bare_kafka.describe_logs([OUT])[OUT].partitions) == 3
    assert len(written(bare_kafka)) == 60


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"replication": 3},
            "produce.replication applies to a topic that the bolt creates, but produce.partitions is not set",
        ),
        (
            {"partitions": 3, "topic": None, "fields": {"topic": "kind"}},
            "produce.partitions applies to produce.topic, which is not",
        ),
        ({"partitions": 0}, "produce.partitions = 0"),
    ],
)
def test_a_description_of_no_topic_is_refused(bare_kafka: Kafka, given: dict[str, Any], said: str) -> None:
    """The error names what is missing."""
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        write(bare_kafka, [{"message": "m", "kind": OUT}], **given)


ODD: dict[str, Any] = {
    "number": (b"k", 7),
    "text": ("k", b"v"),
    "float time": Outgoing(b"k", b"v", (), 1.5),
    "huge time": Outgoing(b"k", b"v", (), 1 << 70),
    "headers": Outgoing(b"k", b"v", 7),
    "partition": Outgoing(b"k", b"v", (), None, "1"),
    "topic": Outgoing(b"k", b"v", (), None, None, 7),
    "nothing": None,
}


def make_odd(values: Any) -> Any:
    """A user's mapper that returns odd things, and exits, as libraries do that parse arguments."""
    if values.message == "exit":
        raise SystemExit("no such argument")
    return ODD.get(values.message, (bytearray(b"k"), bytearray(values.message.encode())))


@pytest.mark.parametrize(("odd", "match"), [
    ("number", "the message cannot be written: its type is int"),
    ("text", "the key cannot be written: its type is str"),
    ("float time", "the timestamp 1.5 is not a time"), ("huge time", "the timestamp 1180591620717411303424 is not a"),
    ("headers", "the headers cannot be written: 7"), ("partition", "out has no partition '1': it has 3"),
    ("topic", "the topic 7 is not text"), ("nothing", "make_odd returned None"),
    ("exit", "SystemExit: no such argument"),
])  # fmt: skip
def test_what_a_mapper_returns_fails_its_tuple_alone(kafka: Kafka, odd: str, match: str) -> None:
    """Whatever that is: the bolt and the client's thread go on, and the others are written."""
    result = run(kafka, ["message"], [["1"], [odd], ["2"]], topic=OUT, mapper=f"{__name__}.make_odd")
    assert sorted(r.value or b"" for r in written(kafka)) == [b"1", b"2"]
    assert len(result.acked("rows")) == 2
    assert match_of(match, result)
    (bolt,) = result.components["bolt"]
    assert bolt.report()["in_flight"] == 0


def choose_oddly(topic: str, key: Any, value: bytes, partitions: Any) -> Any:
    """A user's partitioner that raises, or returns a number of numpy's."""
    if value == b"odd":
        raise KeyError("oh")
    return np.int64(value)


def test_a_partitioner_that_raises_fails_its_tuple_alone(kafka: Kafka) -> None:
    """The error names what it raised; a number of numpy's is a partition, from a function or from a field."""
    rows = [["1", np.int64(2)], ["odd", None], ["2", None]]
    settings: dict[str, Any] = {"partitioner": f"{__name__}.choose_oddly", "fields": {"partition": "where"}}
    result = run(kafka, ["message", "where"], rows, topic=OUT, **settings)
    assert [(r.value, r.partition) for r in written(kafka)] == [(b"1", 2), (b"2", 2)]
    assert match_of("the partitioner raised KeyError: 'oh'", result)


def match_of(match: str, result: TopologyResult) -> bool:
    """Return whether an error is as expected; show them if not."""
    assert re.search(match, reasons(result)), reasons(result)
    return True


def run(kafka: Kafka, fields: list[str], rows: list[Any], /, *, for_s: float = 3.0, **settings: Any) -> TopologyResult:
    """Give rows to a spout before a KafkaBolt; those that fail come again, for so long."""

    class Rows(streamparse.Spout):
        outputs: ClassVar = fields

        def next_tuple(self) -> None:
            pass

    class Flow(Topology):
        rows = Rows.spec()
        bolt = KafkaBolt.spec(inputs=[rows], **settings)

    given: dict[str, Any] = {"spouts": {"rows": rows}, "config": settings_of(kafka), "clock": kafka.clock}
    return run_topology(Flow, until=None, for_s=for_s, **given)


CHUNK = ["origin", "key", "message"]


def chunk_of(count: int, **columns: Any) -> pa.RecordBatch:
    origins = column_of([Origin("in", "", 0, 100 + n) for n in range(count)])
    return pa.RecordBatch.from_arrays(
        [origins, *(pa.array(values) for values in columns.values())], names=["origin", *columns]
    )


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous", "fire_and_forget"])
def test_a_chunk_is_written_whole(kafka: Kafka, mode: str) -> None:
    """Each of its rows is a record, and it is acked as one, in each mode."""
    chunk = chunk_of(500, key=[b"k%d" % n for n in range(500)], message=[f"m{n}" for n in range(500)])
    result = run(kafka, CHUNK, [chunk], topic=OUT, mode=mode)
    assert len(result.acked("rows")) == 1
    found = written(kafka)
    assert sorted((r.key, r.value) for r in found) == sorted((b"k%d" % n, b"m%d" % n) for n in range(500))
    assert {r.partition == partition_of_key(r.key or b"", 3) for r in found} == {True}


def test_a_chunk_with_refused_records_fails_and_names_them(bare_kafka: Kafka) -> None:
    """The others of it are written; the error has the coordinates of the first, and of some more."""
    bare_kafka.create_topic(OUT, 1, {"max.message.bytes": "2000"})
    values = ["x" * 3000 if n in (3, 7) else "m" for n in range(10)]
    result = run(bare_kafka, CHUNK, [chunk_of(10, key=[None] * 10, message=values)], topic=OUT)
    assert not result.acked("rows")
    assert match_of(r"in\[0\]@103: bolt: not written to out\[0\]: .*\(and 1 more of this chunk: in\[0\]@107\)", result)


def test_a_chunk_with_a_row_that_is_no_record_fails_whole(kafka: Kafka) -> None:
    result = run(kafka, CHUNK, [chunk_of(3, key=[None] * 3, message=[1, 2, 3])], topic=OUT)
    assert not result.acked("rows")
    assert match_of(r"in\[0\]@100: bolt: the message cannot be written: its type is int", result)
    assert written(kafka) == []


def test_rows_of_a_chunk_may_tell_their_topics(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """Those that name none are not written: with one warning, which names the first, and counted."""
    chunk = chunk_of(4, kind=[OUT, None, "", OUT], message=["a", "b", "c", "d"])
    result = run(kafka, ["origin", "kind", "message"], [chunk, chunk], fields={"topic": "kind"})
    assert len(result.acked("rows")) == 2
    assert sorted(record.value or b"" for record in written(kafka)) == [b"a", b"a", b"d", b"d"]
    (warned,) = [each for each in caplog.messages if "no topic is named" in each]
    assert warned.startswith("in[0]@101: bolt: no topic is named for this tuple")
    assert result.components["bolt"][0].report()["untopiced"] == 4


class Upper(streamparse.Bolt):
    outputs: ClassVar = ["key", "message"]

    def process(self, tup: Any) -> None:
        self.emit([tup.values.key, tup.values.value.upper()])


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_from_kafka_to_kafka(kafka: Kafka, emit: Any) -> None:
    """A stock bolt between the spout and this one; with chunks too; the spout commits what is written."""
    kafka.create_topic("in", 2)
    for number in range(200):
        kafka.produce("in", b"m%d" % number, key=b"k%d" % number, partition=number % 2)

    class Flow(Topology):
        spout = KafkaSpout.spec(topics=["in"], group="g", fields=["key", "value"], emit=emit)
        upper = Upper.spec(inputs=[spout])
        out = KafkaBolt.spec(inputs=[upper], topic=OUT)

    config = {**getattr(kafka, "settings", {}), **settings_of(kafka)}
    run_topology(Flow, config=config, clock=kafka.clock)
    assert sorted(r.value or b"" for r in written(kafka)) == sorted(b"M%d" % n for n in range(200))
    assert {tp.partition: entry.offset for tp, entry in kafka.group_offsets("g").items()} == {0: 100, 1: 100}


@pytest.mark.parametrize("emit", ["record", "chunk"])
def test_a_record_that_is_refused_becomes_a_dead_letter(kafka: Kafka, emit: Any) -> None:
    """Its spout gives it up after its retries; all others are written, and all is committed."""
    kafka.create_topic("in", 2, {"max.message.bytes": "8000"})
    kafka.create_topic("small", 1, {"max.message.bytes": "2000"})
    for number in range(60):
        kafka.produce("in", b"x" * 3000 if number == 31 else b"m%d" % number, partition=number % 2)

    class Flow(Topology):
        spout = KafkaSpout.spec(
            topics=["in"], group="g", fields=["origin", "value"], value_format="bytes", emit=emit, retries_max=2
        )
        out = KafkaBolt.spec(inputs=[spout], topic="small", fields={"message": "value"}, message_format="bytes")

    config = {**getattr(kafka, "settings", {}), **settings_of(kafka)}
    run_topology(Flow, config=config, clock=kafka.clock)
    found = {r.value for r in written(kafka, "small")}
    assert found == {b"m%d" % n for n in range(60) if n != 31}
    assert {tp.partition: entry.offset for tp, entry in kafka.group_offsets("g").items()} == {0: 30, 1: 30}
    (letter,) = read_dead_letters(cluster_for(kafka.bootstrap), "g.dead-letters")
    assert letter.origin is not None
    assert letter.origin[2:] == (1, 15)
    assert letter.component == "out"
    assert "MessageSizeTooLargeError" in str(letter.error)


@pytest.mark.fake_only("how long it takes is the clock of the fake")
def test_records_linger_for_others(fake: Any) -> None:
    """With ``linger_ms`` records that come one by one wait for it, also where the topology is idle meanwhile."""
    fake.create_topic(OUT, 1)
    result = run(fake, ["message"], [["1"]], topic=OUT, linger_ms=700)
    assert result.run.reports["bolt"]["answer_s"] == pytest.approx(0.7, abs=0.1)


def test_an_answer_that_is_lost_fails_the_tuple(kafka: Kafka) -> None:
    """It is written, and comes again: at least once."""
    kafka.faults.fail_next("produce", errors.KafkaTimeoutError("no answer"), applied=True)
    result = write(kafka, [{"message": "1"}])
    assert len(result.failed("bolt")) == 1
    assert [r.value for r in written(kafka)] == [b"1", b"1"]


def test_a_time_out_names_the_last_answer_and_its_cure() -> None:
    """The producer gives up after many tries: what the broker answered to them is the reason."""
    error = errors.KafkaTimeoutError("no answer")
    assert "the last answer" not in str(error_of_record("bolt", "", "out[0]", error))
    error.__cause__ = errors.NotEnoughReplicasError()
    found = error_of_record("bolt", "in[0]@7: ", "out[0]", error)
    assert found.message.startswith("in[0]@7: bolt: out[0] has fewer replicas in sync (ISR)")
    error.__cause__ = errors.NotLeaderForPartitionError()
    found = error_of_record("bolt", "", "out[0]", error)
    assert re.search(r"KafkaTimeoutError.*; the last answer was NotLeaderForPartitionError", found.message)


@pytest.mark.parametrize(("text", "cure"), [
    ("Timestamp 4102444800000 of message with offset 0 is out of range", "message.timestamp.after.max.ms"),
    ("Compacted topic cannot accept message without key in topic partition out-0", "give it a key"),
    ("", "make it one that the topic takes"),
])  # fmt: skip
def test_one_of_several_bad_records_has_the_cure_of_its_own(text: str, cure: str) -> None:
    """For several bad records in a batch, brokers have one error; its text alone says what is wrong with each."""
    assert cure in str(error_of_record("bolt", "", "out[0]", errors.InvalidRecordError(text)).cure)


@pytest.mark.fake_only("a single broker has all the replicas that a topic of its can have")
def test_too_few_replicas_name_topic_isr_and_cure(fake: Any) -> None:
    """The tuple fails, is tried again, and is written when they are back."""
    fake.create_topic(OUT, 1)
    fake.faults.fail_next("produce", errors.NotEnoughReplicasError(), times=2)
    result = run(fake, ["message"], [["1"]], topic=OUT)
    assert match_of(r"bolt: out\[0\] has fewer replicas in sync \(ISR\) than its min.insync.*Try: start", result)
    assert [r.value for r in written(fake)] == [b"1"]


@pytest.mark.fake_only("no broker of the tests takes rights away")
@pytest.mark.parametrize(("error", "cure"), [
    (errors.TopicAuthorizationFailedError("out"), "grant this client WRITE and DESCRIBE on the topic"),
    (errors.ClusterAuthorizationFailedError(), "grant this client IDEMPOTENT_WRITE on the cluster"),
])  # fmt: skip
def test_errors_of_all_stop_the_component(fake: Any, error: Exception, cure: str) -> None:
    fake.create_topic(OUT)
    fake.faults.fail_next("produce", error)
    with pytest.raises(BrokerError) as raised:
        write(fake, [{"message": "1"}])
    assert cure in str(raised.value)


@pytest.fixture
def fake() -> Any:
    from downspout.testing import FakeKafka

    with FakeKafka("bolt") as made:
        yield made


HEARD: list[Any] = []


def heard(tup: Any, sent: Sent) -> None:
    HEARD.append((tup.values.message, sent.topic, sent.offset, sent.error))
    if tup.values.message == "3":
        raise ValueError("oh")


def test_a_callback_hears_of_each_record(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """One that raises is logged, and nothing else happens."""
    del HEARD[:]
    rows = [{"key": "same", "message": str(n)} for n in range(6)]
    result = write(kafka, rows, callback=f"{__name__}.heard")
    assert len(result.acked("bolt")) == 6
    assert [(str(n), OUT, n, None) for n in range(6)] == HEARD
    assert sum("produce.callback raised" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.fake_only("how much is buffered goes by when the fake answers")
def test_a_full_buffer_slows_down_and_times_nothing_out(fake: Any) -> None:
    """A broker that takes a second for each batch: all is written once, no tuple times out."""
    fake.create_topic(OUT)
    fake.acks_after_s = 1.0
    rows = [{"message": "x" * 100} for _ in range(2_000)]
    result = write(fake, rows, buffer_bytes=10_000, config={"topology.message.timeout.secs": 30})
    assert len(result.acked("bolt")) == 2_000
    assert not result.failed("bolt")
    assert len(written(fake)) == 2_000


@pytest.mark.parametrize(("settings", "match"), [
    ({"topic": "t", "fields": {"head": "a"}}, "produce.fields: 'head=a' is not part=field"),
    ({"topic": "t", "acks": 1, "idempotence": True}, "enable_idempotence cannot be combined with acks=1"),
    ({"topic": "t", "partitioner": "stcky"}, "produce.partitioner = 'stcky' is not a partitioner"),
    ({"topic": "t", "compression": "zip"}, "produce.compression = 'zip'"),
    ({"topc": "t"}, "produce.topc .*Try: produce.topic"),
])  # fmt: skip
def test_settings_that_cannot_be_are_errors(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        KafkaBolt.spec(**settings)


def test_an_input_without_the_message_is_found_by_check() -> None:
    """No field ``message``, and none named in its place."""

    class Flow(Topology):
        spout = KafkaSpout.spec(topics=["in"], fields=["origin", "value"])
        out = KafkaBolt.spec(inputs=[spout], topic=OUT)

    graph = from_class(Flow, "flow")
    found = [str(finding) for finding in findings(graph, resolve(graph))]
    assert any("lacks 'message', which KafkaBolt needs" in each for each in found), found
    assert not any("dead letters" in each for each in found), found


def test_no_topic_at_all_is_an_error_at_start(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match=r"bolt: no topic to write to is set. Try: topic="):
        write(kafka, [{"message": "1"}], topic=None)

    class Flow(Topology):
        spout = KafkaSpout.spec(topics=["in"], fields=["origin", "value"])
        out = KafkaBolt.spec(inputs=[spout], fields={"message": "value"})

    graph = from_class(Flow, "flow")
    assert "error: out: no topic to write to" in str(findings(graph, resolve(graph))[0])
