"""A driver for the tests on clusters: it reads a topic by ``format("downspout")``, in batch and as a stream.

Arguments: the broker, the topic, a folder. It prints one line of JSON: what it read, and where executors found what
they imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from downspout.errors import DownspoutError
from downspout.spark import check_executors, register


def witness(_: Iterator[int]) -> Iterator[dict[str, str]]:
    import kafka
    import pyarrow

    import downspout

    yield {each.__name__: str(each.__file__) for each in (downspout, kafka, pyarrow)} | {"python": sys.executable}


def main(bootstrap: str, topic: str, folder: Path) -> int:
    spark = SparkSession.builder.getOrCreate()
    try:
        return report(spark, bootstrap, topic, folder)
    finally:
        spark.stop()


def report(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> int:
    try:
        executors = check_executors(spark, ["kafka", "pyarrow"])
    except DownspoutError as error:
        print(json.dumps({"error": str(error)}))
        return error.exit_code
    seen = spark.sparkContext.parallelize(range(4), 4).mapPartitions(witness).collect()
    register(spark)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    columns = ["string(value) AS value", "partition", "offset"]
    batch = spark.read.format("downspout").options(**options).load().selectExpr(*columns).collect()
    stream = spark.readStream.format("downspout").options(
        **options, startingOffsets="earliest", maxOffsetsPerTrigger="100"
    )
    writer = stream.load().selectExpr(*columns).writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    streamed = spark.read.parquet(str(folder / "out")).collect()
    print(
        json.dumps(
            {
                "executors": executors,
                "seen": seen,
                "batch": sorted([row.partition, row.offset, row.value] for row in batch),
                "stream": sorted([row.partition, row.offset, row.value] for row in streamed),
                "batches": len(query.recentProgress),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
