"""Kafka for PySpark without the JVM connector: ``format("downspout")``, in batch and in streaming queries.

Spark pickles these classes by name, so the package must be installed on the executors. Connections are opened lazily.

**In an executor**, a task reads one range of offsets as Arrow record batches. Spark's Python workers serve many tasks
(``spark.python.worker.reuse``), so a consumer is kept between ranges; its prefetched records are used if the next range
begins where the last one ended.

A range is complete when the *position* reaches its end. Counting records would wait for ever: offsets of transaction
markers, aborted transactions and compacted records hold no record.
"""

from __future__ import annotations

import atexit
import gc
import logging
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache as once
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from kafka import errors
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from downspout.errors import BrokerError, ConfigError, UnreadableError
from downspout.kafka.columns import ColumnRecord, RecordColumns
from downspout.kafka.port import ConsumerPort
from downspout.kafka.unreadable import Unreadable, UnreadableBatchError, UnreadableRecordError
from downspout.spark.kafka_options import SourceOptions, parse_options
from downspout.spark.planning import BatchPlan, StreamPlan, connect, report_loss
from downspout.spark.source_offsets import OffsetRange, Offsets, Sieve, Skipped, StreamOffset, to_json

if TYPE_CHECKING:
    from downspout.spark.kafka_sink import KafkaBatchWriter, KafkaStreamWriter

NAME, SINK_NAME = "downspout", "downspout-kafka"
COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS_DDL = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
UNREADABLE_DDL = ", unreadable STRUCT<end: BIGINT, size: BIGINT, reason: STRING>"
TOPIC_ID = ", topicId STRING"


@dataclass
class RangePartition(InputPartition):
    """A task's range. It has no options, because Spark logs partitions and options may contain secrets."""

    range: OffsetRange
    skipped: Skipped = ()  # determined by the driver, which knows whether the topic is still the same
    topic_id: str = ""  # with ``includeTopicId``


class EndPartition(InputPartition):
    """The task of the end marker: one row, null in every column."""

    def __init__(self) -> None:
        super().__init__(None)


class KafkaDataSource(DataSource):
    """The source; ``downspout.spark.register`` registers it."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> str:
        """Return the connector's columns."""
        wanted = [COLUMNS]
        more = (("includeHeaders", HEADERS_DDL), ("includeUnreadable", UNREADABLE_DDL), ("includeTopicId", TOPIC_ID))
        for option, column in more:
            if self.options.get(option, "false").lower() != "false":
                wanted.append(column)
        return "".join(wanted)

    def reader(self, schema: StructType) -> KafkaBatchReader:
        """Return the reader of a batch query."""
        return KafkaBatchReader(self._checked(schema, streaming=False))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        """Return the reader of a streaming query."""
        _end_quickly()
        return KafkaStreamReader(self._checked(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        """Return the writer of a batch query."""
        from downspout.spark.kafka_sink import KafkaBatchWriter, checked

        return KafkaBatchWriter(checked(self.options, schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        """Return the writer of a streaming query."""
        from downspout.spark.kafka_sink import KafkaStreamWriter, checked

        return KafkaStreamWriter(checked(self.options, schema, overwrite=overwrite, streaming=True))

    def _checked(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        options = parse_options(self.options, streaming=streaming)
        found = [field.name for field in schema.fields]
        wanted = [column.split()[0] for column in COLUMNS.split(", ")] + ["headers"] * options.include_headers
        wanted += ["unreadable"] * options.include_unreadable + ["topicId"] * options.include_topic_id
        if found != wanted:
            raise ConfigError(f"the columns are fixed: {', '.join(wanted)}", cure="leave .schema(...) out; use select")
        return options


class KafkaSink(KafkaDataSource):
    """The same class under the name for writing."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return SINK_NAME


@once
def _end_quickly() -> None:
    """Skip the garbage collection at the exit of the process that plans a streaming query, which is one per query."""
    # It would scan half a million objects of modules: a quarter of the cost of a process that plans one batch.
    atexit.register(gc.freeze)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # For a batch query without partitions, PySpark passes a default one.
    if isinstance(partition, RangePartition):
        for batch in read_range(options, partition.range, partition.skipped):
            yield _with_topic_id(batch, partition.topic_id) if options.include_topic_id else batch
    elif isinstance(partition, EndPartition):
        marker = nulls(options.include_headers, options.include_unreadable)
        yield _with_topic_id(marker, "") if options.include_topic_id else marker


def _with_topic_id(batch: pa.RecordBatch, topic_id: str) -> pa.RecordBatch:
    import pyarrow as pa

    return batch.append_column("topicId", pa.repeat(pa.scalar(topic_id or None, pa.string()), batch.num_rows))


def _partitions(plan: BatchPlan | StreamPlan, pieces: list[OffsetRange]) -> list[InputPartition]:
    return [
        RangePartition(piece, skipped, plan.topic_id(piece.topic))
        for piece, skipped in zip(pieces, plan.skips(pieces), strict=True)
    ]


class KafkaBatchReader(DataSourceReader):
    """A batch query: planned on the driver, once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range."""
        plan = BatchPlan(self._options)
        return _partitions(plan, plan.ranges())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range, on an executor."""
        return _read(self._options, partition)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: one instance plans on the driver, copies of another read on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._plan = StreamPlan(options)

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without checkpoint starts."""
        return self._json(self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options. PySpark has no combined limit; ``latestOffset`` applies both numbers."""
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends."""
        limited, before = not isinstance(limit, ReadAllAvailable), StreamOffset.from_json(start)
        end = self._plan.latest(before.offsets, limited=limited, ids=before.topic_ids)
        # The marker comes with the last records, or alone if an earlier run, stopped or killed before its end, has
        # processed them. It stays in the offset until something new is read, so it comes once.
        is_old = before.is_end and end == before.offsets
        return self._json(end, is_end=is_old or (self._options.end_marker and self._plan.is_at_end(end)))

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the current ends of the logs."""
        self._plan.freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all logs, for the progress report."""
        seen = self._plan.seen()
        return None if seen is None else to_json(seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each range of a batch."""
        before, after = StreamOffset.from_json(start), StreamOffset.from_json(end)
        pieces = self._plan.ranges(before.offsets, after.offsets, after.topic_ids)
        is_marked = after.is_end and not (before.is_end and before.offsets == after.offsets)
        return [*_partitions(self._plan, pieces), *([EndPartition()] if is_marked else [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range, on an executor."""
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's call trails a batch; ``downspout.spark.query_progress`` is exact."""

    def stop(self) -> None:
        """Release the driver's connection."""
        self._plan.close()

    def _json(self, offsets: Offsets, *, is_end: bool = False) -> dict[str, Any]:
        return StreamOffset(offsets, self._plan.ids_of(offsets), is_end).to_json()


# --- columns ---

HEADERS: Any = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MICROSECONDS: Any = pa.timestamp("us", tz="UTC")
_COLUMNS: Any = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _MICROSECONDS),
    ("timestampType", pa.int32()),
]
SCHEMA = pa.schema(_COLUMNS)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))
"""The connector's columns, as Spark's Arrow types have them."""
UNREADABLE: Any = pa.struct([("end", pa.int64()), ("size", pa.int64()), ("reason", pa.string())])
"""The column ``unreadable``, set in rows that replace records which cannot be read whole; null in all others."""


def to_batch(records: RecordColumns, headers: bool) -> pa.RecordBatch:
    """Return records in the connector's columns; a record without headers has null."""
    count = len(records)
    columns: list[Any] = [
        records.keys,
        records.values,
        pa.repeat(pa.scalar(records.topic), count),
        pa.repeat(pa.scalar(records.partition, pa.int32()), count),
        pa.array(records.offsets),
        pa.array(records.timestamps * 1000).cast(_MICROSECONDS),
        pa.array(records.timestamp_types.astype(np.int32)),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    if records.has_headers:
        import pyarrow.compute as pc  # takes 0.25 s of CPU and is rarely needed

        found: Any = records.headers()
        are_none: Any = pc.equal(pc.list_value_length(found), pa.scalar(0, pa.int32()))
        columns.append(pc.if_else(are_none, pa.scalar(None, HEADERS), found))
    else:
        columns.append(pa.nulls(count, HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


def nulls(headers: bool, unreadable: bool = False) -> pa.RecordBatch:
    """Return a batch with one row of nulls."""
    schema = SCHEMA_WITH_HEADERS if headers else SCHEMA
    marker = pa.RecordBatch.from_pylist([{}], schema=schema)
    return with_note(marker, None) if unreadable else marker


def with_note(batch: pa.RecordBatch, note: Unreadable | None) -> pa.RecordBatch:
    """Return a batch with the column ``unreadable``: nulls, or the note if the batch is the row of unreadable data."""
    notes: Any = pa.nulls(batch.num_rows, UNREADABLE)
    if note is not None:
        notes = pa.array([{"end": note.end, "size": note.size, "reason": note.why}], UNREADABLE)
    return batch.append_column("unreadable", notes)


def portions(records: RecordColumns, bytes_max: int) -> Iterator[RecordColumns]:
    """Yield the records in portions of about ``bytes_max`` bytes, at least one record each."""
    while len(records) > 1 and records.nbytes > bytes_max:
        count = max(len(records) * bytes_max // records.nbytes, 1)
        while count > 1 and records[:count].nbytes > bytes_max:
            count //= 2
        yield records[:count]
        records = records[count:]
    if len(records):
        yield records


# --- reading on an executor ---

PER_POLL_MAX = 100_000  # Records; a poll returns the fetched ones, some megabytes

BATCH_BYTES = 4 * 1024 * 1024  # Approximate size of an Arrow batch

POLL_MS = 500
RETRY_S = 0.1  # Between two attempts to fetch an offset that the broker wrongly reports as out of range

TOO_LARGE_CURE = "raise recordBytesMax; or includeUnreadable=records, which gives a row with its beginning in its place"
DAMAGED_CURE = (
    "includeUnreadable=true, which gives a row in its place; of a topology kafka.on_corrupt_batch=dead_letter, which "
    "notes its offsets in the dead-letter topic. Another replica may have it whole"
)

log = logging.getLogger("downspout.spark")

idle: dict[str, ConsumerPort] = {}
"""Consumers between two ranges, by their options. One process runs one task at a time."""


def read_range(options: SourceOptions, wanted: OffsetRange, skipped: Skipped = ()) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in order.

    Raises:
        DataLossError: part of it is gone and ``failOnDataLoss`` is set.
        UnreadableError: a record is too large or a batch damaged, and ``includeUnreadable`` does not cover it.
        BrokerError: brokers do not answer, or no record arrives in time.
    """
    # Skipped offsets may be gone from Kafka, so those at the ends of the range are not even fetched.
    sieve = Sieve(skipped)
    if not (parts := list(sieve.wanted(wanted.start, wanted.end))):
        return
    wanted = OffsetRange.of(wanted.where, parts[0][0], parts[-1][1])
    key = f"{options.bootstrap} {sorted(options.client.items())} {options.limits} {options.unreadable}"
    consumer = idle.pop(key, None) or _connect(options)
    is_sound = False
    try:
        yield from _Reading(options, consumer, wanted, sieve).batches()
        is_sound = True
    except GeneratorExit:  # a LIMIT is reached; the next range seeks
        is_sound = True
        raise
    except errors.KafkaError as error:
        if isinstance(error, UnreadableBatchError):
            is_large = isinstance(error, UnreadableRecordError)
            raise UnreadableError(str(error.args[0]), cure=TOO_LARGE_CURE if is_large else DAMAGED_CURE) from error
        raise BrokerError(f"{wanted}: {type(error).__name__}: {error}", cure="check the broker's log") from error
    finally:
        if is_sound and key not in idle:
            idle[key] = consumer
        else:
            consumer.close()


def _connect(options: SourceOptions) -> ConsumerPort:
    consumer = connect(options, columns=True)
    consumer.tolerate(options.limits, large=options.include_unreadable, corrupt=options.unreadable == "true")
    return consumer


class _Reading:
    """The reading of one range."""

    def __init__(self, options: SourceOptions, consumer: ConsumerPort, wanted: OffsetRange, sieve: Sieve) -> None:
        self._options = options
        self._consumer = consumer
        self._wanted = wanted
        self._sieve = sieve
        self._at = wanted.start

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches until the position reaches the end."""
        where, end = self._wanted.where, self._wanted.end
        self._consumer.take_unreadable()  # of an earlier range, behind its end
        self._go_to_start()
        waiting_since = time.monotonic()
        while self._at < end:
            try:
                records = self._consumer.poll(POLL_MS, PER_POLL_MAX).get(where)
                at = self._consumer.position(where)
            except (errors.OffsetOutOfRangeError, errors.LogTruncationError) as error:
                before = self._at
                self._skip_what_is_gone(may_pass=isinstance(error, errors.OffsetOutOfRangeError))
                if self._at > before:
                    waiting_since = time.monotonic()
                elif (time.monotonic() - waiting_since) * 1000 > self._options.poll_ms_max:
                    raise
                continue
            for batch in self._to_batches(RecordColumns.of(records)) if records else ():
                if (kept := self._sieve.keep(batch)).num_rows:
                    yield kept
            if at > self._at:
                self._at, waiting_since = at, time.monotonic()
            elif is_cancelled() or self._is_cut_off():
                return
            elif (time.monotonic() - waiting_since) * 1000 > self._options.poll_ms_max:
                raise BrokerError(
                    f"{self._wanted}: nothing arrived after {self._at} for {self._options.poll_ms_max} ms",
                    cure="look at the broker, or raise kafkaConsumer.pollTimeoutMs",
                )

    def _to_batches(self, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        """Yield the records within the range, some megabytes at a time; rows for unreadable data separately."""
        wanted, row = records[: int(records.offsets.searchsorted(self._wanted.end))], 0
        for note in self._consumer.take_unreadable():
            at = int(wanted.offsets.searchsorted(note.offset))
            if at < len(wanted) and int(wanted.offsets[at]) == note.offset:
                yield from self._whole(wanted[row:at])
                yield from self._stand_in(wanted[at], note)
                row = at + 1
        yield from self._whole(wanted[row:])

    def _whole(self, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        for portion in portions(records, BATCH_BYTES):
            batch = to_batch(portion, self._options.include_headers)
            yield with_note(batch, None) if self._options.include_unreadable else batch

    def _stand_in(self, record: Any, note: Unreadable) -> Iterator[pa.RecordBatch]:
        """Yield a row for the unreadable offsets that lie in the range and are not skipped."""
        if parts := list(self._sieve.wanted(note.offset, min(note.end, self._wanted.end))):
            first, end = parts[0][0], parts[-1][1]
            topic, partition = self._wanted.where
            record = ColumnRecord(topic, partition, first, record.timestamp, record.key, record.value, ())
            batch = to_batch(RecordColumns.of([record]), self._options.include_headers)
            yield with_note(batch, replace(note, offset=first, end=end))

    def _go_to_start(self) -> None:
        """Seek, unless the consumer is at the start, which keeps its prefetched records."""
        where, start = self._wanted.where, self._wanted.start
        if self._consumer.assignment() != {where}:
            self._consumer.assign([where])
        elif self._consumer.position(where) == start:
            return
        self._consumer.seek(where, start)

    def _skip_what_is_gone(self, *, may_pass: bool) -> None:
        """Handle a position outside the log: fail, or continue at the log's beginning.

        A new leader may not know the end of its log yet, or the answer may be outdated. So an offset that now lies in
        the log is not lost; it is retried until ``kafkaConsumer.pollTimeoutMs`` has passed.
        """
        where = self._wanted.where
        begin = self._consumer.beginning_offsets([where])[where]
        if may_pass and begin <= self._at < self._consumer.end_offsets([where])[where]:
            self._consumer.seek(where, self._at)
            time.sleep(RETRY_S)
            return
        left = min(max(begin, self._at), self._wanted.end) if begin > self._at else self._wanted.end
        if lost := list(self._sieve.wanted(self._at, left)):
            report_loss(self._options, f"{self._wanted}: offsets {lost[0][0]} to {lost[-1][1] - 1} are gone from Kafka")
        self._at = left
        if left < self._wanted.end:
            self._consumer.seek(where, left)

    def _is_cut_off(self) -> bool:
        """Return whether the log ends below the range, so that no more records will arrive."""
        where = self._wanted.where
        try:
            end = self._consumer.end_offsets([where])[where]
        except errors.KafkaError as error:  # asked only because nothing arrived; the timeout decides
            log.warning("%s: %s", self._wanted, error)
            return False
        if end >= self._wanted.end or end > self._at:
            return False
        report_loss(self._options, f"{self._wanted}: the log ends at {end}")
        return True


def is_cancelled() -> bool:
    """Return whether the JVM has closed its end of this worker's connection; False if unknown."""
    # A worker notices this when it writes its next batch. One that waits for records writes nothing, and would wait for
    # kafkaConsumer.pollTimeoutMs beside the task that replaces it. PySpark 4.2 has no API for this; the stream from the
    # JVM is a local variable of the worker's main function, further down the stack.
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if (stream := frame.f_locals.get("infile")) is not None and hasattr(stream, "fileno"):
            return _is_closed(stream.fileno())
        frame = frame.f_back
    return False


def _is_closed(descriptor: int) -> bool:
    """Return whether the other end of a socket is closed, even if unread data remain."""
    gone = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
    poll = select.poll()
    poll.register(descriptor, gone)
    return any(event & gone for _, event in poll.poll(0))
