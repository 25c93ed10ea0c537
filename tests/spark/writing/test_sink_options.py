"""Options and columns of the Kafka sink for PySpark, without Spark and without Kafka."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructType

from downspout.errors import ConfigError, MissingExtraError
from downspout.kafka import client_values
from downspout.spark import parse_sink_options
from downspout.spark.kafka_sink import KafkaStreamWriter, SinkOptions, check_columns, checked

NEEDED = {"kafka.bootstrap.servers": "localhost:9092"}


def parse(streaming: bool = False, **options: str) -> SinkOptions:
    return parse_sink_options(NEEDED | {name.replace("__", "."): o for name, o in options.items()}, streaming=streaming)


def test_names_are_known_in_any_case() -> None:
    """Spark hands options over in lower case; properties of the client have the connector's names."""
    found = parse(TOPIC="orders", kafka__acks="all", kafka__Linger__ms="20", INCLUDERECORDIDS="false")
    assert (found.topic, found.has_ids, found.client) == ("orders", False, {"acks": "all", "linger_ms": 20})
    assert parse(streaming=True, checkpointLocation="c", queryName="q").topic is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": "t"}, "topics is not an option of the sink. Try: topic"),
        ({"path": "t"}, 'Kafka has no path. Try: .option("topic", "orders")'),
        ({"subscribe": "t"}, "subscribe is not an option of the sink"),
        ({"partitioner": "stcky"}, "partitioner = stcky is not a partitioner. Try: one of sticky"),
        ({"includeRecordIds": "yes"}, "includeRecordIds = yes is neither true nor false"),
        ({"kafka__acks": "2"}, "acks = '2' is not one of all, 1, 0"),
        (
            {"kafka__acks": "1", "kafka__enable__idempotence": "true"},
            "enable_idempotence cannot be combined with acks=1",
        ),
        ({"kafka__compression__type": "zip"}, "compression_type = 'zip' is not one of none, gzip"),
        ({"kafka__linger__ms": "5s"}, "kafka.linger.ms is not a whole number"),
        ({"kafka__lingr__ms": "5"}, "kafka.lingr.ms is not a property of the client. Try: kafka.linger.ms"),
        (
            {"kafka__transactional__id": "me"},
            "kafka.transactional.id cannot be set. Try: a batch of Spark's is written",
        ),
        ({"kafka__value__serializer": "x"}, "kafka.value.serializer cannot be set"),
        ({"kafka__sasl__plain__password": "env:NOT_SET"}, "NOT_SET is not in the environment"),
    ],
)
def test_an_option_that_is_wrong(options: dict[str, Any], said: str) -> None:
    """An unknown, malformed or contradictory option is an error that says what to write, before anything runs."""
    with pytest.raises(ConfigError) as caught:
        parse(**options)
    assert said in str(caught.value)


def test_what_is_for_one_use() -> None:
    """Brokers must be named; a stream's batches have Spark's numbers."""
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_sink_options({"topic": "t"}, streaming=False)
    assert parse(batchId="nightly/7").batch == "nightly/7"
    with pytest.raises(ConfigError, match="batchId is for batch queries"):
        parse(streaming=True, batchId="nightly/7")


def test_a_missing_codec_is_an_error_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(client_values.CODECS, "lz4", lambda: False)
    with pytest.raises(MissingExtraError, match="compresses with lz4 is not installed"):
        parse(kafka__compression__type="lz4")


def test_secrets_are_in_no_text() -> None:
    """What travels to executors shows no property of the client."""
    assert "hush" not in repr(parse(kafka__sasl__plain__password="hush"))


TEXT, BYTES, WHOLE, LONG = StringType(), BinaryType(), IntegerType(), LongType()


def headers_of(value: DataType) -> ArrayType:
    return ArrayType(StructType().add("key", TEXT).add("value", value))


def frame(*columns: tuple[str, DataType]) -> StructType:
    made = StructType()
    for name, kind in columns:
        made = made.add(name, kind)
    return made


VALUE = ("value", TEXT)


@pytest.mark.parametrize(
    ("schema", "topic", "said"),
    [
        (frame(("key", TEXT), ("topic", TEXT)), None, "there is no column value. Try: to_json(struct(*)) AS value"),
        (frame(VALUE), None, "neither the option topic nor a column topic is given"),
        (
            frame(VALUE, ("offset", LONG)),
            "t",
            "the column offset cannot be written to Kafka. Try: select only topic, key",
        ),
        (frame(("Value", TEXT)), "t", "the column Value cannot be written to Kafka. Try: rename it to value"),
        (frame(VALUE, VALUE), "t", "the column value appears twice"),
        (frame(("value", LONG)), "t", "of type bigint, not string or binary. Try: string(value) AS value"),
        (frame(("value", frame(("a", WHOLE)))), "t", "or to_json(struct(*)) AS value"),
        (frame(VALUE, ("partition", LONG)), "t", "the column partition is of type bigint, not int"),
        (frame(VALUE, ("topic", BYTES)), None, "the column topic is of type binary, not string"),
        (frame(VALUE, ("headers", MapType(TEXT, BYTES))), "t", "map<string,binary>, not array<struct<key: string"),
        (frame(VALUE, ("headers", headers_of(TEXT))), "t", "the column headers is of type"),
    ],
)
def test_a_frame_that_cannot_be_written(schema: StructType, topic: str | None, said: str) -> None:
    """A missing, unknown or mistyped column is an error with the expression that helps."""
    with pytest.raises(ConfigError) as caught:
        check_columns(schema, topic)
    assert said in str(caught.value)


def test_frames_that_can_be_written() -> None:
    """Keys and values may be text or bytes; all but the value may be missing."""
    check_columns(frame(VALUE), "t")
    more = [("topic", TEXT), ("key", BYTES), ("headers", headers_of(BYTES)), ("partition", WHOLE)]
    check_columns(frame(("value", BYTES), *more), None)


@pytest.mark.parametrize(("streaming", "said"), [(False, "the mode overwrite would"), (True, "output mode complete")])
def test_nothing_is_replaced(streaming: bool, said: str) -> None:
    """Records can only be appended, and another mode is refused."""
    with pytest.raises(ConfigError, match=said):
        checked(NEEDED | {"topic": "t"}, frame(VALUE), overwrite=True, streaming=streaming)


class Context:
    """What Spark tells a task, as far as writers ask."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name.rpartition(".")[2])


def test_batches_never_share_an_id() -> None:
    """A micro-batch is named after query and number; where Spark names neither, each task has a batch of its own."""
    stream: Any = KafkaStreamWriter(parse(streaming=True))
    assert stream.ids(Context(queryId="q", batchId="7", id="run")) == ("q/7", "run")
    batches = {stream.ids(Context())[0] for _ in range(3)}
    assert len(batches) == 3
