"""Kafka for PySpark without the JVM connector: ``format("downspout")``, in batch and in streaming queries.

Spark pickles these classes by name: the package must be installed on the executors. Nothing connects before it must.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as once
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from downspout.errors import ConfigError
from downspout.spark.source.columns import nulls
from downspout.spark.source.fetch import read_range
from downspout.spark.source.options import SourceOptions, parse_options
from downspout.spark.source.planning import BatchPlan, StreamPlan
from downspout.spark.source.ranges import OffsetRange, Offsets, StreamOffset, to_json
from downspout.spark.source.skips import Skipped

if TYPE_CHECKING:
    import pyarrow as pa

    from downspout.spark.writing.writers import BatchWriter, StreamWriter

NAME, SINK_NAME = "downspout", "downspout-kafka"
COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
UNREADABLE = ", unreadable STRUCT<end: BIGINT, size: BIGINT, reason: STRING>"
TOPIC_ID = ", topicId STRING"


@dataclass
class RangePartition(InputPartition):
    """One task's work. It carries no options: Spark logs partitions, and options may hold secrets."""

    range: OffsetRange  # what is read
    skipped: Skipped = ()  # what of it is left out; the driver says so, who knows whether the topic is still the same
    topic_id: str = ""  # Kafka's, where it is asked for


class EndPartition(InputPartition):
    """The task of the end marker: one row, null in every column."""

    def __init__(self) -> None:
        super().__init__(None)


class KafkaSource(DataSource):
    """The source. ``downspout.spark.register`` makes it known to a session."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return NAME

    def schema(self) -> str:
        """Return the connector's columns."""
        wanted = [COLUMNS]
        more = (("includeHeaders", HEADERS), ("includeUnreadable", UNREADABLE), ("includeTopicId", TOPIC_ID))
        for option, column in more:
            if self.options.get(option, "false").lower() != "false":
                wanted.append(column)
        return "".join(wanted)

    def reader(self, schema: StructType) -> Reader:
        """Return the reader of a batch query."""
        return Reader(self._checked(schema, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a streaming query."""
        _end_quickly()
        return StreamReader(self._checked(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch query."""
        from downspout.spark.writing.writers import BatchWriter, checked

        return BatchWriter(checked(self.options, schema, overwrite=overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a streaming query."""
        from downspout.spark.writing.writers import StreamWriter, checked

        return StreamWriter(checked(self.options, schema, overwrite=overwrite, streaming=True))

    def _checked(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        options = parse_options(self.options, streaming=streaming)
        found = [field.name for field in schema.fields]
        wanted = [column.split()[0] for column in COLUMNS.split(", ")] + ["headers"] * options.include_headers
        wanted += ["unreadable"] * options.include_unreadable + ["topicId"] * options.include_topic_id
        if found != wanted:
            raise ConfigError(f"the columns are fixed: {', '.join(wanted)}", cure="leave .schema(...) out; use select")
        return options


class KafkaSink(KafkaSource):
    """The same by the name that says where a frame is written to."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return SINK_NAME


@once
def _end_quickly() -> None:
    """Let the process that plans a streaming query end without looking for garbage first: it is one for each query."""
    # A quarter of what such a process costs that plans one batch: there are half a million objects of modules.
    atexit.register(gc.freeze)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # A batch query without anything to read has one partition all the same, PySpark's own.
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


class Reader(DataSourceReader):
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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: one of these plans on the driver, copies of another read on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._plan = StreamPlan(options)

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without checkpoint starts."""
        return self._json(self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options. PySpark has no limit of two numbers: ``latestOffset`` looks at both."""
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends."""
        limited, before = not isinstance(limit, ReadAllAvailable), StreamOffset.from_json(start)
        end = self._plan.latest(before.offsets, limited=limited, ids=before.topic_ids)
        # The marker comes with the last records, or alone where these were done before: by a run that was stopped, or
        # killed before its end. It stays until something new is read, so it comes once.
        is_old = before.is_end and end == before.offsets
        return self._json(end, is_end=is_old or (self._options.end_marker and self._plan.is_at_end(end)))

    def prepareForTriggerAvailableNow(self) -> None:
        """End at what is there now."""
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
        """Do nothing: Spark's call trails a batch; ``downspout.spark.commits`` is exact."""

    def stop(self) -> None:
        """Release the driver's connection."""
        self._plan.close()

    def _json(self, offsets: Offsets, *, is_end: bool = False) -> dict[str, Any]:
        return StreamOffset(offsets, self._plan.ids_of(offsets), is_end).to_json()
