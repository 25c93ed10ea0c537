"""Pipelines on PySpark: Kafka as a source and a sink, topologies as queries, and readers of the sinks' files.

Programs import the modules of this folder; its packages are internal.

To change how a topology is cut into stages (Spark planning): topology/stages.py
To change how the source plans a micro-batch: planning.py
To change how the source reads: data_source.py
To change when a batch is computed again, and in which order its sinks commit: topology/batch_commit.py
To change how Spark commits a sink's batch: ../sink/writer.py
To change how a bolt's state is kept: topology/bolt_state.py
To change how rows are written to Kafka: kafka_sink.py
To change how finished batches are committed for lag tools: query_progress.py
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from downspout.errors import MissingExtraError
from downspout.exports import offered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OLDEST = (4, 2)
"""The first version whose Python sources support limits, ``availableNow`` and latest offsets (SPARK-55304)."""


def register(spark: SparkSession) -> None:
    """Register ``format("downspout")``, which reads Kafka, and ``format("downspout-kafka")``, which writes to it.

    Both work in batch and in streaming queries. The options are those of Spark's own connector:
    docs/reference/spark-source.md and docs/reference/spark-sink.md.

    Raises:
        MissingExtraError: PySpark is older than 4.2.
    """
    check_pyspark()
    from downspout.spark.data_source import KafkaDataSource, KafkaSink

    spark.dataSource.register(KafkaDataSource)
    spark.dataSource.register(KafkaSink)


def check_pyspark(version: str | None = None) -> None:
    """Check the version of PySpark, by default the installed one.

    Raises:
        MissingExtraError: it is too old or not installed.

    >>> check_pyspark("4.2.0")
    >>> check_pyspark("5.0.0.dev1")
    """
    version = version or pyspark_version()
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingExtraError(
            f"PySpark {version} is too old: a source in Python can be limited, end at what is there, and report its "
            f"lag only since PySpark {oldest}",
            cure=f"pip install 'pyspark>={oldest}', on the cluster too",
        )


def pyspark_version() -> str:
    """Return the version of the installed PySpark.

    Raises:
        MissingExtraError: PySpark is not installed.
    """
    try:
        from pyspark import __version__
    except ImportError:
        raise MissingExtraError("PySpark is not installed", cure="pip install 'downspout[spark]'") from None
    return str(__version__)


__getattr__, _offered = offered(
    __name__,
    {
        "checkpoint": "read_checkpoint",
        "data_source": "EndPartition KafkaStreamReader RangePartition SCHEMA SCHEMA_WITH_HEADERS",
        "executors": "check_executors",
        "failures": "PassingError explain retried",
        "kafka_options": "SourceOptions parse_options",
        "kafka_sink": "parse_sink_options",
        "parquet_output": "parquet_stream",
        "query_progress": "LateRows ends_of lag_of watermark_of",
        "read": "ORIGIN_COLUMNS read_sink sink_schema stream_sink",
        "session": "Signals spark_session",
        "source_offsets": "OffsetRange Offsets from_json to_json",
        "topology.batch_commit": "CommittedBatch",
        "topology.checkpoint_claim": "claim",
        "topology.driver": "run without_effect",
        "topology.query": "Query",
        "topology.spout_options": "source_options",
        "topology.stage_rows": "ChunkPlace RecordPlace ShuffledTuple load",
        "topology.stages": "StagePlan held_of plan",
    },
)
__all__ = ["register", *_offered]
