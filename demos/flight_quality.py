"""Are the flights what they should be? Checks of the table that ``flight_delays.py`` writes, with PySpark.

    python -m demos.flight_quality --output output
    python -m demos.flight_quality --output output --report quality.md --report quality.json
    python -m demos.flight_quality --output output --follow     # batch by batch, as they are written

The data is real, and so are the findings. Of the 336,776 flights of 2013, one in seven was flown by a plane that the
register does not know; 7,602 went to four airports that the table of airports lacks; 717 arrived, says the arrival
time, and were never in the air; 375 have a tail number that no plane can have; 2,512 have none, which is within what is
allowed here. What must hold (``error``) holds, so the exit code is 0; an error would make it 14.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from downspout.spark.listening import wait_until_stopped
from downspout.spark.output import parquet_stream
from downspout.spark.quality import check, condition, in_range, matches, not_null, one_of, references, row_count, unique
from downspout.spark.quality_report import Check, Report
from downspout.spark.quality_stream import StreamQuality
from downspout.spark.read import ORIGIN_COLUMNS, read_sink, stream_sink
from downspout.spark.session import spark_session
from topologies.flight_delays import FlightDelays
from topologies.flight_enrich import package_directory

AIRPORTS = ("EWR", "JFK", "LGA")


def row_checks(spark: SparkSession) -> list[Check]:
    """Return what can be said of each flight alone; these can be observed in a stream."""
    return [
        not_null("scheduled_at", "carrier", "flight", "route"),
        one_of("from_airport", AIRPORTS),
        references("carrier", _table(spark, "airlines"), name="airlines"),
        in_range("hour", 0, 23),
        in_range("distance", 1, 5_100),  # to Honolulu it is 4,983 miles
        condition(
            "dep_time IS NULL OR (dep_time BETWEEN 1 AND 2400 AND dep_time % 100 < 60)",
            name="dep_time is a time of day",
            columns=["dep_time"],
        ),
        # The weather and the airlines cause these: they are reported, and stop nothing.
        not_null("tailnum", severity="warn", share=0.99),
        matches("tailnum", "N[1-9][0-9A-Z]{0,4}", severity="warn"),
        references("tailnum", _table(spark, "planes"), severity="warn", share=0.9, name="planes"),
        references("to_airport", _table(spark, "airports"), "faa", severity="warn", name="airports"),
        in_range("dep_delay", -60, 24 * 60, severity="warn"),
        condition(
            "arr_time IS NULL OR air_time IS NOT NULL",
            name="who arrived was in the air",
            columns=["arr_time", "air_time", "arr_delay"],
            severity="warn",
        ),
    ]


def table_checks() -> list[Check]:
    """Return what needs the whole table."""
    return [
        row_count(1),
        unique(*ORIGIN_COLUMNS, name="each record is there once"),  # the sink's promise
        unique("scheduled_at", "carrier", "flight", "route"),  # the airlines'
    ]


def _table(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.csv(str(package_directory() / f"{name}.csv"), header=True)


def run(spark: SparkSession, output: Path) -> Report:
    """Return the report on all flights that are there now."""
    flights = read_sink(spark, output / "flights", origins=True)
    return check(flights, [*row_checks(spark), *table_checks()], name="flights")


def follow(spark: SparkSession, output: Path) -> Report:
    """Copy the flights that are there and those that come, and say of each batch what it held; until Ctrl-C."""
    quality = StreamQuality(spark, row_checks(spark), name="flights", on_batch=lambda _, report: print(report.verdict))
    flights = stream_sink(spark, output / "flights", sink=FlightDelays.flights, origins=True, maxFilesPerTrigger=100)
    query = parquet_stream(quality.observe(flights), output / "checked_flights").queryName("checked_flights").start()
    wait_until_stopped(query)
    return quality.report(query)


def main() -> int:
    """Check, tell, and return the exit code."""
    parser = argparse.ArgumentParser(description="Check the flights that the topology wrote, with PySpark.")
    parser.add_argument("--output", type=Path, default=Path("output"), help="where the topology wrote")
    parser.add_argument("--report", type=Path, action="append", default=[], help="write it: a .md or .json file")
    parser.add_argument("--follow", action="store_true", help="check what comes, batch by batch, until Ctrl-C")
    options = parser.parse_args()
    with spark_session("flight_quality") as spark:
        report = follow(spark, options.output) if options.follow else run(spark, options.output)
    report.show()
    for path in options.report:
        report.write(path)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
