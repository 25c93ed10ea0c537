"""The native Spark version of ``flight_topics.py``: flights from Kafka to two Kafka topics, with DataFrames alone.

    records ──▶ parse ──▶ results ──▶ route-delays, flight-rejects

=======================================  ===============================================================================
in the topology                          here
=======================================  ===============================================================================
KafkaSpout                               ``spark.read.format("downspout")``, or ``readStream``: the rest is the same
a bolt with an ``if`` (decide)           ``when(…).otherwise(…)``: both topics are made in one pass
KafkaBolt with a topic field             ``write.format("downspout-kafka")``, with a column ``topic``
``transactional=True``                   nothing: **each result is written at least once**
=======================================  ===============================================================================

Spark has no transaction for the results and the offsets of a batch: a task that fails after it has written some results
writes them again. So headers identify each record by batch and row, and readers drop repeats by them
(:func:`downspout.spark.kafka_sink.without_repeats`).

Keys, messages, and the header ``flight`` equal the topology's, byte by byte. The topology dead-letters records that are
not JSON objects, and accepts flights with a value of another type than usual (a number as a carrier); this version
omits both.

Run it as a batch over the current topic, or as a continuous stream::

    python -m topologies.flight_topics_spark
    python -m topologies.flight_topics_spark --stream
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from downspout.spark import register
from downspout.spark.session import spark_session
from topologies.flight_delays_spark import parse
from topologies.flight_topics import DELAYS, REJECTS

FIELDS = ("carrier", "flight", "from_airport", "to_airport", "arr_delay")


def native(spark: SparkSession, records: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Return the records of the topology's sink, as a plan, in the columns of a Kafka sink.

    Args:
        spark: the session.
        records: the Kafka records of ``spout`` from the source, as a batch or a stream.
    """
    return {"out": results(parse(records["spout"], FIELDS, keep=("partition", "offset")))}


def results(flights: DataFrame) -> DataFrame:
    """Return a record for each flight: its delay with the route as key, or a reject if it did not arrive."""
    route = F.concat_ws("-", *(F.coalesce(F.col(field), F.lit("None")) for field in ("from_airport", "to_airport")))
    delay = message(route.alias("route"), F.col("carrier"), F.col("arr_delay"))
    reject = message(F.col("flight"), F.lit("it did not arrive").alias("reason"))
    place = F.concat_ws("@", "partition", "offset").cast("binary")
    arrived = F.col("arr_delay").isNotNull()
    return flights.select(
        F.when(arrived, DELAYS).otherwise(REJECTS).alias("topic"),
        F.when(arrived, route).otherwise(F.col("carrier")).alias("key"),
        F.when(arrived, delay).otherwise(reject).alias("value"),
        F.array(F.struct(F.lit("flight").alias("key"), place.alias("value"))).alias("headers"),
    )


def message(*parts: Column) -> Column:
    """Return JSON as the topology writes it; Spark's own function would omit nulls."""
    return F.to_json(F.struct(*parts), {"ignoreNullFields": "false"})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the native version alone."""
    parser = argparse.ArgumentParser(description="Flights with PySpark alone, from Kafka to two Kafka topics.")
    parser.add_argument("--bootstrap", help="brokers as host:port (default: the one of `downspout kafka start`)")
    parser.add_argument("--topic", default="flights", help="where the flights are (flights)")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("output/spark/flight_topics"), help="of the stream (output/spark/…)"
    )
    parser.add_argument("--stream", action="store_true", help="go on until Ctrl-C, in batches of 5 s")
    options = parser.parse_args(arguments)
    if options.bootstrap is None:
        from downspout.broker.embedded import find_bootstrap

        options.bootstrap = find_bootstrap()
    brokers = {"kafka.bootstrap.servers": options.bootstrap}
    source = {**brokers, "subscribe": options.topic}
    with spark_session("flight_topics_spark") as spark:
        register(spark)
        if not options.stream:
            out = native(spark, {"spout": spark.read.format("downspout").options(**source).load()})["out"]
            out.write.format("downspout-kafka").options(**brokers).mode("append").save()
            return
        records = spark.readStream.format("downspout").options(**source, startingOffsets="earliest").load()
        writer = native(spark, {"spout": records})["out"].writeStream.format("downspout-kafka").options(**brokers)
        checkpoint = str(options.checkpoint.absolute())
        writer.option("checkpointLocation", checkpoint).trigger(processingTime="5 seconds").start().awaitTermination()


if __name__ == "__main__":
    main()
