"""Spark with its own Kafka connector, on the JVM: ``from_json`` into typed columns, Parquet with zstd, ``local[2]``.

MODE is ``batch`` (a read to the end of the topic as of now; nothing is kept about progress) or ``stream``
(Structured Streaming until what is there has been read; a checkpoint and the sink's own log make it exactly once).
"""

from __future__ import annotations

import sys

from flights_parquet import FLIGHT
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

bootstrap, topic, group, directory, records, mode, jars = sys.argv[1:]

spark = (
    SparkSession.builder.master("local[2]")
    .appName(group)
    .config("spark.jars", jars)
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "2g")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.sql.parquet.compression.codec", "zstd")
    .getOrCreate()
)
flight = ", ".join(f"{name} {'INT' if kind == 'int32' else 'STRING'}" for name, kind in FLIGHT.items())
reader = spark.read if mode == "batch" else spark.readStream
source = reader.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
parsed = from_json(col("value").cast("string"), flight, {"mode": "FAILFAST"})
rows = (
    source.option("startingOffsets", "earliest")
    .load()
    .select(parsed.alias("flight"), col("partition").alias("_partition"), col("offset").alias("_offset"))
    .select("flight.*", "_partition", "_offset")
)
if mode == "batch":
    rows.write.parquet(directory)
else:
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{directory}.checkpoint")
    writer.trigger(availableNow=True).start(directory).awaitTermination()
spark.stop()
