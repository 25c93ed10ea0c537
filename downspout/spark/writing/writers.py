"""What Spark calls to write a frame to Kafka: on the driver the writers are made, on executors they write."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from downspout.errors import ConfigError
from downspout.spark.writing.columns import check_columns
from downspout.spark.writing.options import SinkOptions, parse_sink_options
from downspout.spark.writing.write import Task, write_rows

# Local properties that Spark sets for the jobs of a streaming query.
QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass
class Written(WriterCommitMessage):
    """What a task says when brokers have all of its records: how many there were."""

    records: int


def checked(given: Any, schema: StructType, *, overwrite: bool, streaming: bool) -> SinkOptions:
    """Check the mode, options and columns, on the driver."""
    if overwrite:
        mode = "the output mode complete" if streaming else "the mode overwrite"
        cure = "the output mode append or update" if streaming else '.mode("append")'
        raise ConfigError(f"records in Kafka cannot be replaced, as {mode} would", cure=cure)
    options = parse_sink_options(given, streaming=streaming)
    check_columns(schema, options.topic)
    return options


class _Writes:
    """What both writers do in a task. Each write, or each start of a query, makes one on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task, on an executor; brokers have them when this returns."""
        context = TaskContext.get()
        assert context is not None
        batch, run = self.ids(context)
        task = Task(batch, f"{run}/{context.taskAttemptId()}", context.partitionId())
        return Written(write_rows(self._options, task, iterator))

    def ids(self, context: TaskContext) -> tuple[str, str]:
        """Return the ids of the batch, and of the run that writes it."""
        return self._options.batch or self._id, self._id


class BatchWriter(_Writes, DataSourceArrowWriter):
    """``df.write``."""


class StreamWriter(_Writes, DataSourceStreamArrowWriter):
    """``df.writeStream``: one micro-batch after the other."""

    def ids(self, context: TaskContext) -> tuple[str, str]:
        """Return the ids of the query's batch, and of the run."""
        query, number, run = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
        if query is None or number is None:
            # Two batches with one id would have repeats where there are none; with an id for each task, none is found.
            return str(uuid.uuid4()), run or self._id
        return f"{query}/{number}", run or self._id
