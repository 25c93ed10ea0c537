"""Pipelines on PySpark: Kafka as a source, topologies as queries, and readers of what the sinks wrote.

The modules here are what programs import; the packages are what stands behind them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from downspout.errors import MissingExtraError
from downspout.exports import offered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OLDEST = (4, 2)
"""Since then a source in Python can be limited, end at what is there, and report the latest offset (SPARK-55304)."""


def register(spark: SparkSession) -> None:
    """Let a session read Kafka by ``format("downspout")`` and write to it by ``format("downspout-kafka")``.

    Both work in batch and in streaming queries. The options are those of Spark's own connector:
    docs/reference/spark-source.md and docs/reference/spark-sink.md.

    Raises:
        MissingExtraError: PySpark is older than 4.2.
    """
    check_pyspark()
    from downspout.spark.source.kafka_source import KafkaSink, KafkaSource

    spark.dataSource.register(KafkaSource)
    spark.dataSource.register(KafkaSink)


def check_pyspark(version: str | None = None) -> None:
    """Check that PySpark (the installed one) has what the source needs.

    Raises:
        MissingExtraError: it is too old, or not installed.

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
        MissingExtraError: there is none.
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
        "cluster.preflight": "check_executors",
        "commits": "ends_of lag_of",
        "failures": "PassingError explain retried",
        "listening": "LateRows watermark_of",
        "output": "parquet_stream",
        "read": "ORIGIN_COLUMNS read_sink sink_schema stream_sink",
        "session": "spark_session",
        "source.columns": "SCHEMA SCHEMA_WITH_HEADERS",
        "source.kafka_source": "EndPartition RangePartition StreamReader",
        "source.options": "SourceOptions parse_options",
        "source.ranges": "OffsetRange Offsets from_json to_json",
        "topology": "run",
        "topology.driver.batches": "CommittedBatch",
        "topology.driver.checkpoint": "claim",
        "topology.driver.query": "Query",
        "topology.driver.run": "without_effect",
        "topology.driver.signals": "Signals",
        "topology.driver.source_options": "source_options",
        "topology.micro_batches": "held_of",
        "topology.plan": "Plan plan",
        "topology.rows": "ChunkPlace Place ShuffledTuple load",
        "writing.options": "parse_sink_options",
    },
)
__all__ = ["register", *_offered]
