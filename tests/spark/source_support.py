"""Shared code for tests of the source: a registered session, topics on the real broker, and queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from pyspark.errors import StreamingQueryException

from downspout.kafka import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

STARTS_MAX = 5
TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a source's process ten seconds to start, which no setting changes: on a busy machine they are too few."""


@dataclass
class Bench:
    """One topic of a test, and queries over it."""

    spark: SparkSession
    cluster: KafkaCluster
    topic: str
    path: Path

    def create(self, partitions: int = 2, topic: str | None = None, **config: str) -> None:
        named = {name.replace("_", "."): value for name, value in config.items()}
        self.cluster.ensure_topic(topic or self.topic, partitions, named)

    def send(self, values: Sequence[object], partition: int = 0, topic: str | None = None, **more: Any) -> None:
        """Write one record per value, whose key is the value too."""
        producer = self.cluster.producer()
        for value in values:
            text = str(value).encode()
            producer.send(topic or self.topic, key=text, value=text, partition=partition, **more)
        producer.flush()
        producer.close()

    def transaction(self, values: Sequence[object], *, commit: bool) -> None:
        producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap, transactional_id=self.topic)
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(self.topic, key=str(value).encode(), value=str(value).encode(), partition=0)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()
        producer.close()

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)

    def read(self, **options: str) -> DataFrame:
        return self._with_options(self.spark.read, options).load()

    def values(self, **options: str) -> list[str]:
        """Return the values of a batch query, in the order of partition and offset."""
        return values_of(self.read(**options))

    def stream(self, **options: str) -> DataFrame:
        return self._with_options(self.spark.readStream, options).load()

    def _with_options(self, reader: Any, options: dict[str, str]) -> Any:
        given = {name.replace("__", "."): value for name, value in options.items()}
        if not {"subscribe", "subscribePattern", "assign"} & given.keys():
            given["subscribe"] = self.topic
        given.setdefault("kafka.bootstrap.servers", self.cluster.bootstrap)
        return reader.format("downspout").options(**given)

    def start(self, frame: DataFrame, name: str = "out", **trigger: Any) -> StreamingQuery:
        """Start a query that writes Parquet; by default one that ends at what is there now."""
        columns = frame.selectExpr("string(value) AS value", "topic", "partition", "offset")
        writer = columns.writeStream.format("parquet").option("path", str(self.path / name))
        writer = writer.option("checkpointLocation", str(self.path / f"{name}.checkpoint"))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, name: str = "out", **options: str) -> list[dict[str, Any]]:
        """Run a bounded streaming query to its end and return the progress of its batches."""
        for left in reversed(range(STARTS_MAX)):
            query = self.start(self.stream(**options), name)
            try:
                query.awaitTermination()
                break
            except StreamingQueryException as error:
                if not left or TOO_SLOW not in str(error) or query.recentProgress:
                    raise
        return [report_of(progress) for progress in query.recentProgress]

    def written(self, name: str = "out") -> list[str]:
        """Return the values that a streaming query has written, in the order of partition and offset."""
        return values_of(self.spark.read.parquet(str(self.path / name)))


def values_of(frame: DataFrame) -> list[str]:
    """Return the column value as text, in the order of topic, partition and offset."""
    rows = frame.orderBy("topic", "partition", "offset").selectExpr("string(value) AS value").collect()
    return [row.value for row in rows]


def report_of(progress: Any) -> dict[str, Any]:
    import json

    return dict(json.loads(progress.json))


def texts(*numbers: int) -> list[str]:
    """Return numbers from one to the other as the broker's values read back.

    >>> texts(0, 3)
    ['0', '1', '2']
    """
    return [str(number) for number in range(*numbers)]
