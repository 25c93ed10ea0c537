"""A stream's data in Spark's checkpoint besides offsets: ids of topics, and the end of a bounded run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from downspout.errors import ConfigError, DataLossError
from downspout.kafka import TopicPartition
from downspout.spark import EndPartition, KafkaStreamReader, RangePartition, from_json, parse_options
from downspout.spark.source_offsets import StreamOffset
from downspout.testing import FakeKafka

pytestmark = pytest.mark.fake_only("test_source_stream.py and test_topology_run.py do it on Spark and a broker")

_number = count()
RECREATED = r"t\[0\]@10: the topic was deleted and created again"


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(f"offsets-{next(_number)}") as fake:
        create(fake, 10)
        yield fake


def create(fake: FakeKafka, records: int, topic: str = "t") -> None:
    """Create a topic, again if it is there, and fill its one partition."""
    if topic in fake.topic_names():
        fake.delete_topic(topic)
    fake.create_topic(topic)
    for number in range(records):
        fake.produce(topic, b"v%d" % number)


class Spark:
    """What Spark does with a source: it asks, keeps the answers as text, and starts a new process for each query."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self.log: list[str] = []
        self.tasks: list[list[str]] = []

    def reader(self, **options: str) -> KafkaStreamReader:
        given = {"kafka.bootstrap.servers": self._kafka.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        return KafkaStreamReader(parse_options({**given, **options}, streaming=True))

    def run(self, **options: str) -> list[list[str]]:
        """Run a bounded query; return the tasks of its batches."""
        reader, first = self.reader(**options), len(self.tasks)
        reader.prepareForTriggerAvailableNow()
        while self.batch(reader):
            pass
        return self.tasks[first:]

    def batch(self, reader: KafkaStreamReader) -> bool:
        """Plan and do a batch; return whether there was anything."""
        start = self.log[-1] if self.log else json.dumps(reader.initialOffset())
        end = json.dumps(reader.latestOffset(json.loads(start), ReadMaxRows(1)))
        if self.log and end == start:
            return False
        self.log.append(end)
        self.tasks.append(self.replay(reader, start, end))
        return True

    def replay(self, reader: KafkaStreamReader, start: str, end: str) -> list[str]:
        """Return the tasks of a batch that is in the log."""
        found = reader.partitions(json.loads(start), json.loads(end))
        assert all(isinstance(part, RangePartition | EndPartition) for part in found)
        return [str(part.range) if isinstance(part, RangePartition) else "end" for part in found]


# --- ids ---


def test_a_checkpoint_has_the_ids_of_its_topics(kafka: FakeKafka) -> None:
    """Beside the offsets stands Kafka's id of the topic, in a form that the connector reads as no offset."""
    spark = Spark(kafka)
    spark.run()
    assert json.loads(spark.log[-1]) == {"t": {"0": 10}, f"t:{kafka.topic_id('t')}": {}}
    assert from_json(json.loads(spark.log[-1])) == {TopicPartition("t", 0): 10}


def test_a_longer_topic_of_the_same_name_is_noticed_after_a_restart(kafka: FakeKafka) -> None:
    """A longer topic that was created again while the query was stopped fails it, or is read from its beginning."""
    spark = Spark(kafka)
    spark.run()
    create(kafka, 30)
    for _ in range(2):
        with pytest.raises(DataLossError, match=RECREATED):
            spark.run()
    assert spark.run(failOnDataLoss="false") == [[], ["t[0]@0..30"]]
    assert spark.run() == []


def test_a_planned_batch_of_a_topic_that_is_gone_is_not_read_of_another(kafka: FakeKafka) -> None:
    """A batch that was planned before the topic was created again is lost: nothing of the new topic stands for it."""
    spark = Spark(kafka)
    spark.run()
    start, end = '{"t": {"0": 4}}', spark.log[-1]
    create(kafka, 30)
    with pytest.raises(DataLossError, match=r"t\[0\]@4: the topic was deleted and created again"):
        spark.replay(spark.reader(), start, end)
    lax = spark.reader(failOnDataLoss="false")
    assert spark.replay(lax, start, end) == []
    assert [spark.batch(lax), spark.batch(lax), spark.tasks[-1]] == [True, True, ["t[0]@0..30"]]


# --- the end of a bounded run ---


def test_the_end_marker_comes_with_the_last_records(kafka: FakeKafka) -> None:
    """The last batch of a bounded run has one task more, however many batches there are; the next run has none."""
    spark = Spark(kafka)
    assert spark.run(maxOffsetsPerTrigger="4", endMarker="true") == [
        ["t[0]@0..4"],
        ["t[0]@4..8"],
        ["t[0]@8..10", "end"],
    ]
    assert spark.run(endMarker="true") == []
    kafka.produce("t", b"more")
    assert spark.run(endMarker="true") == [["t[0]@10..11", "end"]]


def test_the_end_marker_comes_alone_where_the_records_are_done(kafka: FakeKafka) -> None:
    """A run without end before it, or one that was killed behind its records, leaves the marker to the next one."""
    spark = Spark(kafka)
    assert spark.batch(spark.reader(endMarker="true"))
    assert spark.tasks == [["t[0]@0..10"]]
    assert spark.run() == []
    assert spark.run(endMarker="true") == [["end"]]
    assert spark.run(endMarker="true") == []


def test_a_planned_end_is_repeated(kafka: FakeKafka) -> None:
    """A batch with the marker that a killed run has planned has it again, whatever the options are by then."""
    spark = Spark(kafka)
    spark.run(maxOffsetsPerTrigger="5", endMarker="true")
    start, end = spark.log[-2:]
    assert spark.replay(spark.reader(), start, end) == ["t[0]@5..10", "end"]
    kafka.produce("t", b"more")
    reader = spark.reader()
    assert spark.batch(reader)
    assert spark.tasks[-1] == ["t[0]@10..11"]
    assert ":end" not in spark.log[-1]


def test_the_marker_is_a_row_of_nulls(kafka: FakeKafka) -> None:
    """Its task yields one row in the columns that the options ask for, and nothing in it has a value."""
    reader = Spark(kafka).reader(includeHeaders="true", includeTopicId="true")
    (batch,) = reader.read(EndPartition())
    assert (batch.num_rows, batch.schema.names[-2:]) == (1, ["headers", "topicId"])
    assert all(column.null_count == 1 for column in batch.columns)


@pytest.mark.parametrize("value", [{"t:x": {"0": 5}}, {":end": 1}, {"t:x": None}])
def test_a_note_is_an_empty_object(value: object) -> None:
    """What looks like a note and holds something is not an offset of ours."""
    with pytest.raises(ConfigError, match="is not of the form"):
        StreamOffset.from_json(value)
