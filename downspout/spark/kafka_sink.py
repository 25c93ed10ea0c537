"""Write the rows of a task to Kafka, on an executor.

A task writes all its rows and waits for the brokers' answers before it reports success. Records of a failed task, or of
a batch that is computed again, stay in Kafka: a record is written *at least once*. Three headers let a reader drop
repeats:

=======================  ============================================================================================
``__downspout.batch``    the batch: id of the query and number of the batch; for a batch query, an id of this write
``__downspout.record``   the row in the batch: Spark's partition, the row's number in it, and a hash of the record
``__downspout.run``      the writer: the run of the query, and Spark's number of the attempt
=======================  ============================================================================================

Two records with the same first two headers are repeats. If a batch that is computed again has its rows in another
order, as after a shuffle, the hashes differ: such repeats are kept, and no other record is ever dropped.

Spark's Python workers serve many tasks, so a producer is kept from one to the next unless a task fails.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from kafka.errors import KafkaError
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from downspout.errors import BrokerError, ConfigError, DownspoutError, RecordError
from downspout.formatting import nearest
from downspout.kafka.client_values import producer_properties
from downspout.kafka.clusters import cluster_for
from downspout.kafka.partitioners import PARTITIONERS
from downspout.kafka.port import ProducerPort
from downspout.producing.sending import concerns_all, error_of_all, error_of_record
from downspout.spark.kafka_options import PRODUCER, Option, client_properties, connection_of, flag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH, RECORD, RUN = "__downspout.batch", "__downspout.record", "__downspout.run"
NAME = "downspout-kafka"
LOOK_EVERY = 256  # rows between two checks of the answers and the buffer
BUFFER_BYTES = 32 * 1024 * 1024  # a task waits while more bytes are unanswered
FULL_LOOK_S = 0.002
DELIVERY_MS, TOPIC_WAIT_MS, GRACE_S = 120_000, 10_000, 5.0
# The options for KafkaBolt's settings, for cures.
SETTINGS = {
    "produce.request_bytes_max": "kafka.max.request.size",
    "produce.batch_bytes": "kafka.batch.size",
    "produce.idempotence=false": "kafka.enable.idempotence=false",
}

# Producers between two tasks, by their options. One process runs one task at a time.
idle: dict[str, ProducerPort] = {}


@dataclass(frozen=True)
class WriteTask:
    """The ids of a task, for the headers."""

    batch: str
    run: str  # and the attempt
    partition: int  # Spark's number within the batch


def write_rows(options: SinkOptions, task: WriteTask, batches: Iterable[pa.RecordBatch]) -> int:
    """Write all rows, wait until brokers have them, and return their number.

    Raises:
        RecordError: a record cannot be written; the error names Spark's partition and the row in it.
        BrokerError: brokers do not answer, or reject all records of this client.
    """
    key = f"{options.bootstrap} {sorted(options.client.items())} {options.partitioner}"
    producer = idle.pop(key, None) or _connect(options)
    is_sound = False
    try:
        count = _Writing(options, task, producer).write(batches)
        is_sound = True
    finally:
        if is_sound and key not in idle:
            idle[key] = producer
        else:
            producer.close()  # takes at most 5 s and leaves no thread
    return count


def hash_of(
    topic: str,
    partition: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> str:
    """Return a hash of a record; lengths precede the parts, which makes them unambiguous.

    >>> hash_of("t", None, b"a", b"bc", ()) == hash_of("t", None, b"ab", b"c", ())
    False
    >>> hash_of("t", None, None, b"x", ()) == hash_of("t", None, b"x", None, ())
    False
    """
    parts = [topic.encode(), None if partition is None else b"%d" % partition, key, value]
    for name, content in headers:
        parts += [name.encode(), content]
    framed = [b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts]
    return blake2b(b"".join(framed), digest_size=8).hexdigest()


def _connect(options: SinkOptions) -> ProducerPort:
    client = {"delivery_timeout_ms": DELIVERY_MS, "max_block_ms": TOPIC_WAIT_MS, **options.client}
    return cluster_for(options.bootstrap, options.client).producer(client=client, partitioner=options.partitioner)


class _Writing:
    """The writing of one task's rows; a record's token is its row number."""

    def __init__(self, options: SinkOptions, task: WriteTask, producer: ProducerPort) -> None:
        self._options, self._task, self._producer = options, task, producer
        given = options.client
        delivery_ms, wait_ms = given.get("delivery_timeout_ms", DELIVERY_MS), given.get("max_block_ms", TOPIC_WAIT_MS)
        self._patience_s = (delivery_ms + wait_ms) / 1000 + GRACE_S  # longer than the client itself retries

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Write the rows and wait for the answers; return the number of rows."""
        send, topic, has_ids, number = self._producer.send, self._options.topic, self._options.has_ids, 0
        batch = (BATCH, self._task.batch.encode())
        run, prefix = (RUN, self._task.run.encode()), f"{self._task.partition}/"
        for rows in batches:
            for row_topic, key, value, given, partition in rows_of(rows):
                to = topic or row_topic
                if not to:
                    raise self._wrong(number, "its topic is null", "a topic for each row, or the option topic")
                headers: Any = self._headers(number, given) if given else ()
                if has_ids:
                    record = (RECORD, f"{prefix}{number}/{hash_of(to, partition, key, value, headers)}".encode())
                    headers = [*headers, batch, record, run]
                send(to, key=key, value=value, headers=headers, partition=partition, token=number)
                number += 1
                if not number % LOOK_EVERY:
                    self._look()
        self._finish()
        return number

    def _headers(self, number: int, given: list[dict[str, Any]]) -> list[tuple[str, bytes | None]]:
        found = []
        for header in given:
            if header is None or header["key"] is None:
                raise self._wrong(number, "a header has no key", "a key for each header; its value may be null")
            found.append((header["key"], header["value"]))
        return found

    def _look(self) -> None:
        """Process answers; if the buffer is full, wait for some."""
        producer = self._producer
        self._collect()
        while producer.buffered_bytes >= BUFFER_BYTES:
            if producer.oldest_s() > self._patience_s:
                raise self._silent()
            time.sleep(FULL_LOOK_S)
            self._collect()

    def _finish(self) -> None:
        late = False
        try:
            self._producer.flush(self._patience_s)
        except KafkaError:
            late = True
        self._collect()
        if late:
            raise self._silent()

    def _silent(self) -> BrokerError:
        return BrokerError(
            f"partition {self._task.partition}: Kafka at {self._options.bootstrap} has not answered for "
            f"{self._producer.oldest_s():.0f} s",
            cure="look at the brokers; kafka.delivery.timeout.ms says how long a record may take",
        )

    def _collect(self) -> None:
        """Process answers; raise if a record was rejected."""
        for sent in self._producer.results():
            if sent.error is None:
                continue
            if concerns_all(sent.error, one_topic=self._options.topic is not None):
                raise _in_our_words(error_of_all(NAME, sent.topic, sent.error))
            where = sent.topic if sent.partition < 0 else f"{sent.topic}[{sent.partition}]"
            raise _in_our_words(error_of_record(NAME, self._place(min(sent.tokens)), where, sent.error))

    def _place(self, number: int) -> str:
        return f"partition {self._task.partition}, row {number}: "

    def _wrong(self, number: int, what: str, cure: str) -> RecordError:
        return RecordError(f"{self._place(number)}{what}", cure=cure)


def _in_our_words(error: DownspoutError) -> DownspoutError:
    cure = error.cure or ""
    for theirs, ours in SETTINGS.items():
        cure = cure.replace(theirs, ours)
    return type(error)(error.message, cure=cure or None)


# --- options ---

# Every option, by the connector's name.
SINK_OPTIONS: Mapping[str, Option] = {
    "kafka.bootstrap.servers": Option("Brokers, as `host:port,host:port`.", default="required"),
    "topic": Option("Topic of all rows; it overrides a column `topic`."),
    "partitioner": Option(
        "Which partition gets a row that names none: `sticky`, `round_robin` or an import path.",
        "Like `produce.partitioner` of KafkaBolt. Not in the connector.",
        default="`sticky`",
    ),
    "includeRecordIds": Option(
        "Whether each record gets the three headers by which readers drop repeats.",
        "Not in the connector.",
        default="`true`",
    ),
    "batchId": Option(
        "Name of this batch in these headers.",
        "In `foreachBatch`, combine the query's name and the batch's number, so that a repeated batch has the"
        " same id. By default, each write has its own id. Not in the connector.",
        use="batch",
    ),
    "includeHeaders": Option("No effect: a column `headers` is always written."),
}

_BY_LOWER = {name.lower(): name for name in SINK_OPTIONS}
_OF_SPARK = {"checkpointlocation", "outputmode", "queryname"}  # used by Spark itself


@dataclass(frozen=True)
class SinkOptions:
    """All options, checked and typed. Sent to the executors; its repr contains no property of the client."""

    bootstrap: str
    client: Mapping[str, Any] = field(repr=False)
    topic: str | None = None
    partitioner: str = "sticky"
    has_ids: bool = True
    batch: str = ""


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check Spark's options and return them typed.

    Raises:
        ConfigError: an option is unknown (the error suggests the nearest name) or malformed.
        MissingExtraError: the package of the compression is not installed.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name in _BY_LOWER or name in _OF_SPARK or name.startswith("kafka."):
            continue
        if name == "path":
            raise ConfigError("Kafka has no path", cure='.option("topic", "orders"), and save() or start() without one')
        near = nearest(name, _BY_LOWER, "", 0.5)
        raise ConfigError(f"{name} is not an option of the sink", cure=_BY_LOWER.get(near, "leave it out"))
    if streaming and "batchid" in options:
        raise ConfigError("batchId is for batch queries: Spark numbers the batches of a stream", cure="leave it out")
    bootstrap, properties = connection_of(options)
    partitioner = options.get("partitioner", "sticky")
    if partitioner not in PARTITIONERS and "." not in partitioner:
        raise ConfigError(
            f"partitioner = {partitioner} is not a partitioner",
            cure=f"one of {', '.join(PARTITIONERS)}, or module.function",
        )
    client = client_properties(properties, PRODUCER)
    producer_properties(client)
    return SinkOptions(
        bootstrap=bootstrap,
        client=client,
        topic=options.get("topic", "").strip() or None,
        partitioner=partitioner,
        has_ids=flag(options, "includeRecordIds", True),
        batch=options.get("batchid", ""),
    )


# --- columns and rows ---

COLUMNS = ("topic", "key", "value", "headers", "partition")
TEXT_OR_BYTES = "string or binary"
TYPES = {
    "topic": "string",
    "key": TEXT_OR_BYTES,
    "value": TEXT_OR_BYTES,
    "headers": "array<struct<key: string, value: binary>>",
    "partition": "int",
}
CASTS = {
    "topic": "string(topic) AS topic",
    "key": "string(key) AS key",
    "value": "string(value) AS value, or to_json(struct(*)) AS value",
    "headers": "array(struct('name' AS key, binary('text') AS value)) AS headers",
    "partition": "int(partition) AS partition",
}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise a ConfigError if a column is missing, unknown, duplicated or of another type."""
    names = schema.fieldNames()
    for name in names:
        if name not in COLUMNS:
            near = nearest(name.lower(), COLUMNS, "")
            cure = f"rename it to {near}" if near else f"select only {', '.join(COLUMNS)}; value may hold all others"
            raise ConfigError(f"the column {name} cannot be written to Kafka", cure=cure)
        if names.count(name) > 1:
            raise ConfigError(f"the column {name} appears twice", cure="select it once")
    if "value" not in names:
        raise ConfigError("there is no column value", cure="to_json(struct(*)) AS value")
    if topic is None and "topic" not in names:
        raise ConfigError("neither the option topic nor a column topic is given", cure='.option("topic", "orders")')
    for column in schema.fields:
        if not _fits(column.name, column.dataType):
            found = column.dataType.simpleString()
            raise ConfigError(
                f"the column {column.name} is of type {found}, not {TYPES[column.name]}", cure=CASTS[column.name]
            )


def _fits(name: str, found: DataType) -> bool:
    if name == "topic":
        return isinstance(found, StringType)
    if name == "partition":
        return isinstance(found, IntegerType)
    if name in ("key", "value"):
        return isinstance(found, (StringType, BinaryType))
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = {each.name: each.dataType for each in found.elementType.fields}
    return (
        list(fields) == ["key", "value"]
        and isinstance(fields["key"], StringType)
        and isinstance(fields["value"], BinaryType)
    )


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield topic, key, value, headers and partition of each row as Python values; key and value are bytes.

    >>> list(rows_of(pa.RecordBatch.from_pydict({"value": ["x", None], "partition": [1, None]})))
    [(None, None, b'x', None, 1), (None, None, None, None, None)]
    """
    return zip(*[_column(batch, name) for name in COLUMNS], strict=True)


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if column.null_count == len(column):
        return [None] * batch.num_rows
    if name in ("key", "value"):
        is_large = column.type in (pa.large_string(), pa.large_binary())  # spark.sql.execution.arrow.useLargeVarTypes
        column = column.cast(pa.large_binary() if is_large else pa.binary())
    found: list[Any] = column.to_pylist()
    return found


# --- the writers that Spark calls ---

# Local properties that Spark sets for the jobs of a streaming query.
QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass
class RecordsWritten(WriterCommitMessage):
    """A task's report that brokers have all its records."""

    records: int


def checked(given: Any, schema: StructType, *, overwrite: bool, streaming: bool) -> SinkOptions:
    """Check mode, options and columns, on the driver."""
    if overwrite:
        mode = "the output mode complete" if streaming else "the mode overwrite"
        cure = "the output mode append or update" if streaming else '.mode("append")'
        raise ConfigError(f"records in Kafka cannot be replaced, as {mode} would", cure=cure)
    options = parse_sink_options(given, streaming=streaming)
    check_columns(schema, options.topic)
    return options


class _Writes:
    """The common part of both writers. Each write, or each start of a query, creates one on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RecordsWritten:
        """Write the rows of one task, on an executor; when this returns, brokers have them."""
        context = TaskContext.get()
        assert context is not None
        batch, run = self.ids(context)
        task = WriteTask(batch, f"{run}/{context.taskAttemptId()}", context.partitionId())
        return RecordsWritten(write_rows(self._options, task, iterator))

    def ids(self, context: TaskContext) -> tuple[str, str]:
        """Return the ids of the batch, and of the run that writes it."""
        return self._options.batch or self._id, self._id


class KafkaBatchWriter(_Writes, DataSourceArrowWriter):
    """``df.write``."""


class KafkaStreamWriter(_Writes, DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    def ids(self, context: TaskContext) -> tuple[str, str]:
        """Return the ids of the query's batch, and of the run."""
        query, number, run = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
        if query is None or number is None:
            # With one id for two batches, readers would drop records; with one for each task, they only keep repeats.
            return str(uuid.uuid4()), run or self._id
        return f"{query}/{number}", run or self._id


# --- dropping repeats ---

NEEDED = ("topic", "partition", "offset", "headers")
ID = "__downspout_id"


def without_repeats(frame: DataFrame) -> DataFrame:
    """Drop repeated records of ``format("downspout-kafka")`` from a frame.

    Repeats are records of one topic whose headers name the same row of the same batch. Records without these headers
    are kept. A streaming query remembers every record that it has seen, unless its frame has a watermark.

    Args:
        frame: read by ``format("downspout")`` with ``includeHeaders``.

    Raises:
        ConfigError: it lacks a column.
    """
    from pyspark.sql import functions as F

    if missing := [name for name in NEEDED if name not in frame.columns]:
        raise ConfigError(
            f"repeats cannot be found without the column {missing[0]}",
            cure='.option("includeHeaders", "true"), and this before any select',
        )

    def of(name: str) -> str:
        return f"element_at(filter(headers, header -> header.key = '{name}'), -1).value"

    # dropDuplicates treats nulls as equal, so a record without ids gets its partition and offset as one.
    row = f"concat(decode({of(BATCH)}, 'utf-8'), '/', decode({of(RECORD)}, 'utf-8'))"
    marked = frame.withColumn(ID, F.expr(f"coalesce({row}, concat('at ', partition, '@', offset))"))
    return marked.dropDuplicates(["topic", ID]).drop(ID)
