"""The report on the flight delays, from the output of ``flight_delays.py``.

The bolts leave two directories of Parquet files: every flight (``flights/``), and partial sums of delays by route
and hour (``route_delays/``). This pipeline finishes the sums, joins the weather, and writes four small tables to
``report/``. (``flight_delays_spark.py`` does the bolts' own work in Spark.) It can be run alone, any number of times:

    python -m topologies.flight_delays_report --output output

A guide for those who come from bolts:

=======================================  ===============================================================================
in a topology                            in Spark
=======================================  ===============================================================================
a stream of tuples                       a DataFrame: rows with names and types, all of them at once
a bolt that maps tuples (parse, enrich)  ``select`` and ``withColumn``: expressions, not a function called per row
a bolt with a table in ``initialize``    a join; Spark sends a small table to every worker (``broadcast``)
fields grouping and a dict of counts     ``groupBy(...).agg(...)``: Spark moves rows by key (a *shuffle*), then adds up
ack, fail, replay                        nothing: a task that fails is computed again from its input files
parallelism of a component               partitions of the data, decided by Spark
=======================================  ===============================================================================

DataFrames are plans. None of the functions below reads a byte; ``write`` does, and then Spark runs the whole plan
in one optimised pass.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from downspout.spark.read import finish_aggregates, read_sink
from downspout.spark.session import spark_session
from topologies.flight_delays import DELAYS
from topologies.flight_enrich import weather_file

MEASURES = ("flights", "departed", "arrived", "dep_delay_sum", "dep_delay_max", "arr_delay_sum", "arr_delay_max")
"""What every table counts: flights; those that departed and arrived; minutes of delay."""

WEATHER_SCHEMA = (
    "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
    "wind_dir int, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
    "time_hour timestamp"
)


def route_hours(partials: DataFrame) -> DataFrame:
    """Return flights and delays by route and scheduled hour, finished.

    This is the second half of the AggregateBolt's work. The first half made a few partial sums of 336,776 rows,
    so what Spark still has to move between its tasks is small.
    """
    finished = finish_aggregates(partials, ["route", "hour"], DELAYS)
    return finished.select(
        "route",
        "hour",
        F.col("count").alias("flights"),
        F.col("count_dep_delay").alias("departed"),
        F.col("count_arr_delay").alias("arrived"),
        *(_delay(function, column) for column in ("dep_delay", "arr_delay") for function in ("sum", "max")),
    )


def _delay(function: str, column: str) -> Column:
    found = F.col(f"{function}_{column}")
    # The sum of no delays is null in SQL and 0 here, as in pandas; their maximum stays null in both.
    return (F.coalesce(found, F.lit(0)) if function == "sum" else found).alias(f"{column}_{function}")


def routes(hours: DataFrame) -> DataFrame:
    """Return flights, cancellations and mean delays by route.

    It groups what :func:`route_hours` grouped: sums of sums are sums. Means are divided last, because the mean of
    means would weigh an hour with one flight like an hour with fifty.
    """
    return with_means(add_up(hours, "route"))


def hours_of_day(hours: DataFrame) -> DataFrame:
    """Return flights, cancellations and mean delays by scheduled hour of the day (local time of New York)."""
    return with_means(add_up(hours, "hour"))


def add_up(totals: DataFrame, key: str) -> DataFrame:
    """Return coarser totals, by ``key`` alone."""
    return totals.groupBy(key).agg(
        *((F.max if name.endswith("_max") else F.sum)(name).alias(name) for name in MEASURES)
    )


def by_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Return flights, cancellations and mean delays by the weather where and when the flight was to leave.

    The join is a *left* join: a flight whose hour has no weather report stays, as "not recorded". It goes by the hour
    in UTC. By local year, month, day and hour it could double flights: on 3 November 2013 the local hour 1 came twice.
    """
    joined = flights.withColumn("time_hour", F.date_trunc("hour", "scheduled_at")).join(
        F.broadcast(weather), on=["from_airport", "time_hour"], how="left"
    )
    totals = joined.groupBy(condition().alias("weather")).agg(
        F.count("*").alias("flights"),
        # count(column) leaves nulls out, so it counts the flights that did depart and arrive.
        F.count("dep_delay").alias("departed"),
        F.count("arr_delay").alias("arrived"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("dep_delay_sum"),
        F.max("dep_delay").alias("dep_delay_max"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arr_delay_sum"),
        F.max("arr_delay").alias("arr_delay_max"),
    )
    return with_means(totals)


def condition() -> Column:
    """Return the weather as one word; the first case that holds decides. Units: inches, °F, miles, miles per hour."""
    return (
        F.when(F.col("precip").isNull(), "not recorded")
        .when((F.col("precip") > 0) & (F.col("temp") <= 34), "snow")
        .when(F.col("precip") > 0, "rain")
        .when(F.col("visib") < 3, "fog")
        .when(F.col("wind_speed") >= 20, "wind")
        .otherwise("fair")
    )


def with_means(totals: DataFrame) -> DataFrame:
    """Add cancellations and mean delays in minutes; a mean of no flights is null."""
    return totals.withColumns(
        {
            "cancelled": F.col("flights") - F.col("departed"),
            "dep_delay_mean": _quotient("dep_delay_sum", "departed"),
            "arr_delay_mean": _quotient("arr_delay_sum", "arrived"),
        }
    )


def _quotient(total: str, count: str) -> Column:
    # when() without otherwise() is null; in ANSI mode, Spark's default, dividing by zero would be an error.
    return F.when(F.col(count) > 0, F.col(total) / F.col(count))


def read_weather(spark: SparkSession, path: Path) -> DataFrame:
    """Return the hourly weather of New York's three airports.

    The schema is written down: guessing it would read the file twice and take "NA" for text.
    """
    frame = spark.read.csv(path.absolute().as_uri(), schema=WEATHER_SCHEMA, header=True, nullValue="NA")
    return frame.select(F.col("origin").alias("from_airport"), "time_hour", "temp", "wind_speed", "precip", "visib")


def build(spark: SparkSession, output: Path, weather: Path) -> dict[str, DataFrame]:
    """Return the report's tables by name, as plans."""
    flights = read_sink(spark, output / "flights")
    # cache(): three tables are made from these, and without it the sums would be finished three times.
    hours = route_hours(read_sink(spark, output / "route_delays")).cache()
    return {
        "route_hours": hours.orderBy("route", "hour"),
        "routes": routes(hours).orderBy("route"),
        "hours": hours_of_day(hours).orderBy("hour"),
        "weather": by_weather(flights, read_weather(spark, weather)).orderBy("weather"),
    }


def run(spark: SparkSession, output: Path, weather: Path | None = None) -> dict[str, pd.DataFrame]:
    """Write the report's tables to ``output/report`` and return them.

    Each table becomes one Parquet file (``coalesce(1)``: they are small, and one file is the easiest to take along).
    Run again, it replaces them.
    """
    tables = {}
    for name, frame in build(spark, output, weather or weather_file()).items():
        target = str((output / "report" / name).absolute())
        frame.coalesce(1).write.mode("overwrite").parquet(target)
        tables[name] = pd.read_parquet(target)
    return tables


def worst_routes(routes: pd.DataFrame, count: int = 10, flights_min: int = 365) -> pd.DataFrame:
    """Return the routes with the longest mean arrival delay, of those with at least one flight a day."""
    frequent = routes[routes["flights"] >= flights_min]
    return frequent.nlargest(count, "arr_delay_mean").reset_index(drop=True)


def main() -> None:
    """Run the pipeline alone, and print the worst routes."""
    parser = argparse.ArgumentParser(description="Finish the flight delays with PySpark.")
    parser.add_argument("--output", type=Path, default=Path("output"), help="where the topology wrote")
    options = parser.parse_args()
    with spark_session("flight_delays") as spark:
        tables = run(spark, options.output)
    print(worst_routes(tables["routes"]).to_string())
    print(tables["weather"].to_string())


if __name__ == "__main__":
    main()
