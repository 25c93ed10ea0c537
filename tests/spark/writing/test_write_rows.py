"""Writes of a task of the Kafka sink, and rows that cannot be written, on the fake Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka import errors

from downspout.errors import BrokerError, RecordError
from downspout.spark import kafka_sink, parse_sink_options
from downspout.spark.kafka_sink import WriteTask, write_rows
from downspout.testing import FakeKafka

pytestmark = pytest.mark.fake_only("test_kafka_sink.py writes to the real broker by way of Spark")

TASK = WriteTask("query/7", "run/3", 2)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A Kafka with a topic of two partitions; no producer is left from before."""
    kafka_sink.idle.clear()
    with FakeKafka("sink") as made:
        made.create_topic("t", 2)
        yield made


def put(kafka: FakeKafka, *batches: dict[str, Any], task: Any = TASK, **options: str) -> int:
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "t", **options}
    found = parse_sink_options({name: text for name, text in given.items() if text}, streaming=False)
    return write_rows(found, task, [pa.RecordBatch.from_pydict(batch) for batch in batches])


def test_rows_become_records(kafka: FakeKafka) -> None:
    """Key, value, partition and headers arrive, texts as UTF-8 and nulls as nulls; numbers go on over batches."""
    kafka.create_topic("u", 1)
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None]
    done = put(
        kafka,
        {"topic": ["t", "u"], "key": ["ä", None], "value": [b"x", None], "headers": headers, "partition": [1, None]},
        {"topic": ["t"], "value": ["z"], "partition": pa.array([1], pa.int32())},
        topic="",
    )
    assert done == 3
    first, third = kafka.records("t", 1)
    (second,) = kafka.records("u")
    assert (first.key, first.value, first.headers[:2]) == ("ä".encode(), b"x", [("h", b"1"), ("h", None)])
    assert (second.key, second.value, third.value) == (None, None, b"z")
    ids = [dict(record.headers)["__downspout.record"].decode() for record in (first, second, third)]
    assert [text.rpartition("/")[0] for text in ids] == ["2/0", "2/1", "2/2"]
    assert [dict(second.headers)[f"__downspout.{name}"] for name in ("batch", "run")] == [b"query/7", b"run/3"]


def test_ids_can_be_left_out(kafka: FakeKafka) -> None:
    """Without includeRecordIds a record has the headers of its row alone."""
    put(kafka, {"value": ["x"], "partition": [0]}, includeRecordIds="false")
    assert list(kafka.records("t", 0)[0].headers) == []


def test_a_repeat_has_the_id_of_its_record_and_nothing_else_has(kafka: FakeKafka) -> None:
    """Rows that come again in the same order have the same ids in another try; in another order, other ids."""
    put(kafka, {"value": ["a", "b"], "partition": [0, 0]})
    put(kafka, {"value": ["a", "b"], "partition": [0, 0]}, task=WriteTask("query/7", "run/4", 2))
    put(kafka, {"value": ["b", "a"], "partition": [0, 0]}, task=WriteTask("query/7", "run/5", 2))
    ids = [(r.value, dict(r.headers)["__downspout.record"]) for r in kafka.records("t", 0)]
    assert ids[:2] == ids[2:4]
    assert len({name for _, name in ids}) == 4
    runs = [dict(r.headers)["__downspout.run"] for r in kafka.records("t", 0)]
    assert runs == [b"run/3"] * 2 + [b"run/4"] * 2 + [b"run/5"] * 2


def test_records_that_differ_in_anything_have_other_ids(kafka: FakeKafka) -> None:
    """One that comes in the place of another is no repeat of it: parts are not joined, and null is not empty."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows: list[tuple[bytes | None, bytes | None, list[dict[str, Any]] | None, int]] = [
        (b"a", b"bc", None, 0), (b"ab", b"c", None, 0), (None, b"x", None, 0), (b"x", None, None, 0),
        (b"", b"x", None, 0), (b"a", b"bc", None, 1), (b"a", b"bc", [{"key": "id", "value": b"A"}], 0),
        (b"a", b"bc", [{"key": "id", "value": b"B"}], 0), (b"a", b"bc", [{"key": "id", "value": None}], 0),
        (b"a", b"bc", [{"key": "id", "value": b"A"}] * 2, 0), (b"a", b"bc", [{"key": "idA", "value": b""}], 0),
    ]  # fmt: skip
    for key, value, headers, partition in rows:
        columns = {"key": [key], "value": [value], "headers": pa.array([headers], header), "partition": [partition]}
        put(kafka, columns)
    found = [record for number in (0, 1) for record in kafka.records("t", number)]
    assert len({dict(record.headers)["__downspout.record"] for record in found}) == len(rows)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (
            {"value": ["a", "x" * 99]},
            {},
            r"partition 2, row 1: .*t\[\d\]: MessageSizeTooLargeError.*kafka.max.request.size",
        ),
        ({"value": ["a", "b"], "partition": [0, 2]}, {}, "partition 2, row 1: .*t has no partition 2: it has 2"),
        ({"value": ["a"], "topic": ["nowhere"]}, {"topic": ""}, "row 0: .*no topic nowhere.*create the topic"),
        ({"value": ["a", "b"], "topic": ["t", None]}, {"topic": ""}, "partition 2, row 1: its topic is null"),
        ({"value": ["a"], "headers": [[{"key": None, "value": b""}]]}, {}, "row 0: a header has no key"),
    ],
)
def test_a_row_that_cannot_be_written(kafka: FakeKafka, columns: Any, options: dict[str, Any], said: str) -> None:
    """It fails the task with Spark's partition, the row's number and a cure; the task's producer is closed."""
    kafka.refuses = lambda r: errors.MessageSizeTooLargeError() if len(r.value or b"") > 50 else None
    closed = closing(kafka)
    with pytest.raises(RecordError, match=said):
        put(kafka, columns, **options)
    assert len(closed) == 1
    assert not kafka_sink.idle


def closing(kafka: FakeKafka) -> list[Any]:
    """Return a list that grows with each producer that is closed."""
    closed: list[Any] = []
    make = kafka.producer

    def producer(**given: Any) -> Any:
        made = make(**given)
        close = made.close
        made.close = lambda: closed.append(made) or close()
        return made

    kafka.producer = producer
    return closed


def test_a_right_that_is_missing(kafka: FakeKafka) -> None:
    """It is an error of all rows, and says what to grant."""
    kafka.refuses = lambda record: errors.TopicAuthorizationFailedError()
    with pytest.raises(BrokerError, match=r"nothing can be written to t: .*grant this client WRITE"):
        put(kafka, {"value": ["a"]})


def test_brokers_that_do_not_answer(kafka: FakeKafka) -> None:
    """A task that has no answer in the client's time fails with an error that names the brokers, and closes."""
    kafka.acks_after_s = 1e6
    closed = closing(kafka)
    with pytest.raises(BrokerError, match="partition 2: Kafka at fake://sink has not answered for"):
        put(kafka, {"value": ["a"]}, **{"kafka.delivery.timeout.ms": "1000"})
    assert len(closed) == 1


def test_a_full_buffer_is_waited_for(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with more than the buffer holds waits for answers on the way, and writes all."""
    monkeypatch.setattr(kafka_sink, "BUFFER_BYTES", 1000)
    monkeypatch.setattr(kafka_sink, "LOOK_EVERY", 1)
    waits: list[float] = []
    monkeypatch.setattr(kafka_sink.time, "sleep", lambda s: (waits.append(s), kafka.clock.sleep(s)))
    kafka.acks_after_s = 0.05
    assert put(kafka, {"value": ["x" * 100] * 50}) == 50
    assert waits
    assert len(list(kafka.records("t"))) == 50


def test_a_producer_is_kept_for_the_next_task(kafka: FakeKafka) -> None:
    """Tasks of one process that write with the same properties share a producer; others have their own."""
    closed = closing(kafka)
    for _ in range(3):
        put(kafka, {"value": ["a"]})
    put(kafka, {"value": ["a"]}, **{"kafka.acks": "1"})
    assert len(kafka_sink.idle) == 2
    assert closed == []
