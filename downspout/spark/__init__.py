"""Pipelines on PySpark: Kafka as a source, and what the sinks wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Let a session read Kafka by ``format("downspout")``, with ``read`` and ``readStream``.

    The options are those of Spark's own connector: docs/reference/spark-source.md.

    Raises:
        MissingExtraError: PySpark is older than 4.2.
    """
    from downspout.spark.versions import check_pyspark

    check_pyspark()
    from downspout.spark.source.kafka_source import KafkaSource

    spark.dataSource.register(KafkaSource)
