"""The native Spark version of ``flight_delays.py``: the same work on the same topic, with DataFrames alone.

    records ──▶ parse ──▶ enrich ──▶ flights         every flight, one row each
       └──────▶ parse ──▶ enrich ──▶ route_delays    delays added up by route and hour

It has no spouts and bolts, and uses Downspout only as its Kafka source: code as one would write it for Spark alone. Its
tables equal the topology's bit by bit, as ``downspout compare topologies/flight_delays.py`` proves. A guide for those
who come from bolts (the long one is docs/concepts/from-storm-to-spark.md):

=======================================  ===============================================================================
in the topology                          here
=======================================  ===============================================================================
KafkaSpout                               ``spark.read.format("downspout")``, or ``readStream``: the rest is the same
a stream of tuples                       a DataFrame: rows with names and types, all of them at once
a bolt that maps tuples (parse, enrich)  ``select`` and ``where``: expressions, not a function called per row
a bolt with a table in ``initialize``    a join; Spark sends a small table to every worker (``broadcast``)
fields grouping and a dict of counts     ``groupBy(...).agg(...)``: Spark moves rows by key (a *shuffle*), then adds up
two bolts that read one stream           two DataFrames made of one; each is computed from the source by itself
a tuple that fails, the dead letters     ``where``: nobody retries a row, and one that is left out is gone
ack, replay, the commit                  nothing in a batch; in a stream, the query's checkpoint
parallelism of a component               partitions of the data, decided by Spark
=======================================  ===============================================================================

DataFrames are plans. No function below reads a record; ``write`` does, and then Spark runs the whole plan in one
optimised pass.

**Bad records.** The topology dead-letters records that are not JSON objects, or have a value that does not fit its
declared type or a sink's column; the native version omits the same rows, table by table, and keeps no copy. Two rare
kinds of records differ: a ``time_hour`` in another ISO form; and a record that ``downspout dlq replay`` wrote, which
sinks recognise and Spark counts again.

Run it as a batch over the current topic, or as a continuous stream::

    python -m topologies.flight_delays_spark
    python -m topologies.flight_delays_spark --stream
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from downspout.spark import register
from downspout.spark.session import spark_session
from topologies.flight_delays import FLIGHT, KEYS
from topologies.flight_enrich import FLIGHT_FIELDS, package_directory

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

WHOLE: Mapping[str, tuple[str, int]] = {"int8": ("tinyint", 7), "int16": ("smallint", 15)}
"""Integer types of columns: Spark's names, and their bits without the sign."""

STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
"""By default, ``from_json`` accepts 'a' for "a", and NaN, which JSON and the bolts do not."""

AIRLINES = "carrier string, airline string"
AIRPORTS = "airport string, name string, lat double, lon double, alt int, tz int, dst string, zone string"
PLANES = (
    "tailnum string, plane_year smallint, type string, manufacturer string, model string, engines int, seats int, "
    "speed int, engine string"
)


def native(spark: SparkSession, records: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Return the finished tables by the names of the topology's sinks, as plans.

    Args:
        spark: the session.
        records: the Kafka records of ``spout`` from the source, as a batch or a stream.
    """
    parsed = parse(records["spout"], FLIGHT_FIELDS)
    return {"flights": flights(parsed, *lookups(spark)), "route_delays": route_delays(parsed)}


# --- the bolt parse ---


def parse(records: DataFrame, fields: Sequence[str], keep: Sequence[str] = ()) -> DataFrame:
    """Return the named fields of the records' JSON, after the columns to keep; omits records that do not fit.

    For a trusted producer, one line would do::

        records.select(F.from_json(F.col("value").cast("string"), "carrier STRING, dep_delay SMALLINT").alias("flight"))

    Alone, ``from_json`` is more lenient than the bolts, and sometimes stricter. A value that is not JSON becomes a row
    of nulls; text after the object is ignored; invalid UTF-8 is repaired; 200 in a TINYINT is -56; the number 5 in a
    STRING is "5"; but 2.0 in a SMALLINT is an error. So:

    * the value is put into an envelope, ``{"flight": …, "end": 0}``, in which text after the object is an error;
    * the column ``_corrupt_record`` is null only for valid values;
    * a text is read as a *variant*, which keeps its type, and a number as a double, which keeps its fraction and range;
      then :func:`fits` checks them.
    """
    value = F.try_validate_utf8(F.col("value").cast("string"))  # null, like a tombstone, if it is not UTF-8
    envelope = F.concat(F.lit('{"flight":'), value, F.lit(',"end":0}'))
    columns = ", ".join(f"`{KEYS.get(field, field)}`: {_json_type(field)}" for field in fields)
    schema = f"flight struct<{columns}>, end int, _corrupt_record string"
    # Spark moves a `where` to before the `select` that makes its columns. The plan would then parse the JSON at each
    # mention of a field, 108 times, unless the code generator notices. It moves none to before an `explode`.
    found = records.select(*keep, F.explode(F.array(F.from_json(envelope, schema, STRICT))).alias("json")).where(
        "json.end = 0 AND json._corrupt_record IS NULL AND json.flight IS NOT NULL"
    )
    # In the JSON, `origin` is an airport; in the table it is called from_airport, as in the topology.
    named = found.select(*keep, *(F.col(f"json.flight.{KEYS.get(field, field)}").alias(field) for field in fields))
    types = {field: WHOLE[FLIGHT[field]][0] if _is_number(field) else "string" for field in fields}
    wanted = (F.col(field).cast(types[field]).alias(field) for field in fields)
    return named.where(reduce(and_, map(fits, fields))).select(*keep, *wanted)


def _is_number(field: str) -> bool:
    return FLIGHT.get(field) in WHOLE  # time_hour is not a column of the table; it is a text


def _json_type(field: str) -> str:
    return "double" if _is_number(field) else "variant"


def fits(field: str) -> Column:
    """Return whether the value fits the column: a text or an integer in range, null, or missing."""
    found = F.col(field)
    if not _is_number(field):
        return found.isNull() | F.schema_of_variant(found).isin("STRING", "VOID")
    bits = WHOLE[FLIGHT[field]][1]
    return found.isNull() | ((found == F.floor(found)) & found.between(-(2**bits), 2**bits - 1))


# --- the bolt enrich ---


def lookups(spark: SparkSession, folder: Path | None = None) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return airlines, airports and planes from the bolt's CSV files.

    The schemas are explicit: to infer them, Spark would read each file twice, and treat "NA" as text.
    """
    place = folder or package_directory()

    def table(name: str, schema: str) -> DataFrame:
        path = (place / f"{name}.csv").absolute().as_uri()
        # By default, Spark treats \\ before a quote as an escape; CSV doubles the quote.
        return spark.read.csv(path, schema=schema, header=True, nullValue="NA", escape='"')

    return table("airlines", AIRLINES), table("airports", AIRPORTS), table("planes", PLANES)


def flights(parsed: DataFrame, airlines: DataFrame, airports: DataFrame, planes: DataFrame) -> DataFrame:
    """Return every flight with the names for its codes, in the topology's columns.

    The joins are *left* joins, so flights with an unknown plane stay, with nulls. ``broadcast`` marks a table as small:
    each worker gets all of it, like each task of the bolt, and flights need no shuffle. The codes are unique in the
    files; a repeated code would double its flights in a join, but not in a dict.
    """
    origins = airports.select(F.col("airport").alias("from_airport"), F.col("name").alias("from_name"))
    targets = airports.select(
        F.col("airport").alias("to_airport"), F.col("name").alias("to_name"), F.col("lat").alias("to_lat"),
        F.col("lon").alias("to_lon"), F.col("zone").alias("to_zone"),
    )  # fmt: skip
    known = planes.select("tailnum", "manufacturer", "model", "plane_year")
    scheduled = parsed.withColumns({"scheduled_at": scheduled_at(), "route": route()}).where(
        "scheduled_at IS NOT NULL OR time_hour IS NULL OR minute IS NULL"
    )
    joined = (
        scheduled.join(F.broadcast(airlines), "carrier", "left")
        .join(F.broadcast(origins), "from_airport", "left")
        .join(F.broadcast(targets), "to_airport", "left")
        .join(F.broadcast(known), "tailnum", "left")
    )
    return joined.select(*FLIGHT)


def scheduled_at() -> Column:
    """Return the time of the scheduled departure; null if the text is not a valid time.

    The pattern is that of the data. Without it, Spark would also accept "2013-1-1T5:00".
    """
    moment = F.concat(F.substring("time_hour", 1, 14), F.format_string("%02d:00Z", "minute"))
    return F.when(moment.rlike(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:00Z$"), F.try_to_timestamp(moment))


def route() -> Column:
    """Return the two airports as one text, null without both."""
    both = (F.col("from_airport") != "") & (F.col("to_airport") != "")
    return F.when(both, F.concat_ws("-", "from_airport", "to_airport"))


# --- the bolt route_delays ---


def route_delays(parsed: DataFrame) -> DataFrame:
    """Return flights and delays by route and scheduled hour.

    ``groupBy`` combines the fields grouping and the bolt's dict. Spark also aggregates in two steps, before and after
    the shuffle, but its output is already finished.
    """
    return (
        parsed.withColumn("route", route())
        .groupBy("route", "hour")
        .agg(
            F.count("*").alias("count"),
            # count(column) omits nulls, so it counts the flights that did depart and arrive.
            F.count("dep_delay").alias("count_dep_delay"),
            F.count("arr_delay").alias("count_arr_delay"),
            F.sum("dep_delay").alias("sum_dep_delay"),
            F.max("dep_delay").alias("max_dep_delay"),
            F.sum("arr_delay").alias("sum_arr_delay"),
            F.max("arr_delay").alias("max_arr_delay"),
        )
    )


# --- running it ---


def batch(spark: SparkSession, source: Mapping[str, str], output: Path) -> None:
    """Write both tables from the current topic. A second run reads all again and replaces them."""
    # persist(): otherwise each of the two tables would read the topic.
    records = spark.read.format("downspout").options(**source).load().persist()
    tables = native(spark, {"spout": records})
    tables["flights"].write.mode("overwrite").partitionBy("month").parquet(str(output / "flights"))
    tables["route_delays"].coalesce(1).write.mode("overwrite").parquet(str(output / "route_delays"))
    records.unpersist()


def stream(spark: SparkSession, source: Mapping[str, str], output: Path, **trigger: Any) -> list[StreamingQuery]:
    """Start a query for each table; each has a checkpoint, resumes from it, and writes each flight once.

    * ``flights`` is *append*: its rows never change. Spark's file sink keeps its own log in the directory, so a batch
      written again after a crash replaces itself.
    * ``route_delays`` changes with each batch. *Complete* outputs the whole table each time, and ``foreachBatch``
      replaces the previous one; Spark keeps all sums as state, here a few thousand keys. If the number of keys is
      unbounded (users, days), use event time: ``withWatermark`` and a window, which Spark closes, emits once and drops.
    """
    records = spark.readStream.format("downspout").options(**source, startingOffsets="earliest").load()
    tables = native(spark, {"spout": records})

    def replace(table: DataFrame, _: int) -> None:
        table.coalesce(1).write.mode("overwrite").parquet(str(output / "route_delays"))

    writers = [
        tables["flights"].writeStream.format("parquet").partitionBy("month").option("path", str(output / "flights")),
        tables["route_delays"].writeStream.outputMode("complete").foreachBatch(replace),
    ]
    return [
        writer.queryName(name)
        .option("checkpointLocation", str(output / "checkpoints" / name))
        .trigger(**trigger)
        .start()
        for name, writer in zip(tables, writers, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the native version alone."""
    parser = argparse.ArgumentParser(description="The flight delays with PySpark alone, from Kafka to Parquet.")
    parser.add_argument("--bootstrap", help="brokers as host:port (default: the one of `downspout kafka start`)")
    parser.add_argument("--topic", default="flights", help="where the flights are (flights)")
    parser.add_argument("--output", type=Path, default=Path("output/spark"), help="where the files go (output/spark)")
    parser.add_argument("--stream", action="store_true", help="go on until Ctrl-C, in batches of 5 s")
    options = parser.parse_args(arguments)
    if options.bootstrap is None:
        from downspout.broker.embedded import find_bootstrap

        options.bootstrap = find_bootstrap()
    source = {"kafka.bootstrap.servers": options.bootstrap, "subscribe": options.topic}
    # A batch and a stream must not share a directory.
    output = options.output.absolute() / ("stream" if options.stream else "batch")
    with spark_session("flight_delays_spark") as spark:
        register(spark)
        if options.stream:
            stream(spark, source, output, processingTime="5 seconds")
            spark.streams.awaitAnyTermination()
        else:
            batch(spark, source, output)
    print(f"{output}: flights, route_delays")


if __name__ == "__main__":
    main()
