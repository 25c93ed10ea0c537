"""The connector's columns, made of those that the consumer has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.broker import EmbeddedKafka
from downspout.kafka import ColumnRecord, KafkaCluster, Record, RecordColumns, TopicPartition
from downspout.spark import SCHEMA, SCHEMA_WITH_HEADERS, parse_options
from downspout.spark.data_source import portions, to_batch
from downspout.spark.planning import connect
from tests.kafka.broker_stage import wait_until

BYTES = st.none() | st.binary(max_size=4)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@st.composite
def columns(draw: st.DrawFn) -> RecordColumns:
    """Return columns of some records; of a slice, so that they do not begin where their memory does."""
    records = [
        ColumnRecord("t", 3, at, draw(st.integers(-1, 2**41)), draw(BYTES), draw(BYTES), draw(HEADERS), at % 2)
        for at in range(5, 5 + draw(st.integers(2, 8)))
    ]
    return RecordColumns.of(records)[1:]


@settings(deadline=None)
@given(columns(), st.booleans())
def test_a_batch_has_what_the_records_have(records: RecordColumns, headers: bool) -> None:
    """Keys, values, places, moments and headers are the records'; a record without headers has null there."""
    batch = to_batch(records, headers)
    batch.validate(full=True)
    assert batch.schema == (SCHEMA_WITH_HEADERS if headers else SCHEMA)
    expected: list[dict[str, Any]] = []
    for record in records:
        assert isinstance(record, ColumnRecord)
        row = {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": record.timestamp_type,
        }
        pairs = [{"key": name, "value": value} for name, value in record.headers]
        expected.append(row | ({"headers": pairs or None} if headers else {}))
    assert batch.to_pylist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 100))
def test_portions_are_small_and_lose_nothing(sizes: list[int], bytes_max: int) -> None:
    """Portions follow each other, and only a record that is larger alone makes a larger one."""
    records = [ColumnRecord("t", 0, at, 0, None, b"x" * size, []) for at, size in enumerate(sizes)]
    found = list(portions(RecordColumns.of(records), bytes_max))
    assert [record for portion in found for record in portion] == records
    assert all(len(portion) == 1 or portion.nbytes <= bytes_max for portion in found)
    assert all(len(portion) for portion in found)


def test_no_records_are_no_portion() -> None:
    none = RecordColumns.of([ColumnRecord("t", 0, 0, 0, None, None, [])])[:0]
    assert list(portions(none, 10)) == []


def test_a_batch_shares_the_values() -> None:
    """Keys and values go to Spark as they were gathered, not copied once more."""
    records = RecordColumns.of([ColumnRecord("t", 0, at, 0, b"k", b"value", []) for at in range(5)])
    ours, theirs = records.values.buffers()[2], to_batch(records[1:], False).column("value").buffers()[2]
    assert isinstance(ours, pa.Buffer)
    assert isinstance(theirs, pa.Buffer)
    assert ours.address == theirs.address


@pytest.mark.broker
def test_executors_read_columns(kafka_broker: EmbeddedKafka, topic_name: str) -> None:
    """What ranges are read with gives columns; what the driver looks records up with gives records."""
    cluster = KafkaCluster(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 1)
    with closing(cluster.producer()) as producer:
        producer.send(topic_name, key=None, value=b"v", partition=0)
        producer.flush()
    options = parse_options(
        {"kafka.bootstrap.servers": kafka_broker.bootstrap, "subscribe": topic_name}, streaming=True
    )
    partition = TopicPartition(topic_name, 0)

    def read(columns: bool) -> Sequence[Record]:
        with closing(connect(options, columns=columns)) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            found: dict[TopicPartition, Sequence[Record]] = {}
            wait_until(lambda: found or found.update(consumer.poll(100, 10)))
            return found[partition]

    assert isinstance(read(columns=True), RecordColumns)
    assert isinstance(read(columns=False), list)
