"""Flights in windows of time, by PySpark, while the topology of ``flight_delays.py`` is writing them.

    python -m demos.flight_windows --output output             # process the current files, then end
    python -m demos.flight_windows --output output --follow    # continue with new files until Ctrl-C

Two streaming queries read the directory ``flights/`` and append to their own directories below ``windows/``:

* ``carrier_hours``: each hour, by carrier. A *tumbling* window: each flight is in one.
* ``airport_days``: 24 hours, starting each hour, by airport. A *sliding* window: each flight is in 24.

Both use the scheduled departure, ``scheduled_at``: *event time*. So a backlog of a year gives the same windows as a
year of live data, and :func:`batch`, over all rows at once, gives the same as the queries. The *watermark* determines
when a window is final (see :func:`downspout.spark.event_time.event_time`), and in append mode each window is then
written once. The last windows stay open until later flights arrive.

If it is killed and restarted at any time, it still writes each window once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from demos.flights_data import PARTITIONS
from downspout.formatting import counted
from downspout.spark.event_time import event_time
from downspout.spark.parquet_output import check_output, parquet_stream
from downspout.spark.query_progress import LateRows, wait_until_stopped, watermark_of
from downspout.spark.read import read_sink, stream_sink
from downspout.spark.session import spark_session
from topologies.flight_delays import FlightDelays

DELAY = "1 hour"
"""Longest delay of a flight behind a later one of its partition. ``flights_data.py`` writes them in order, but retries
by the topology change it."""


@dataclass(frozen=True)
class Windows:
    """Windows of time by a key.

    Attributes:
        by: the key.
        size: length of a window.
        slide: distance between starts of windows; None: the size.
    """

    by: str
    size: str
    slide: str | None = None

    def of(self, flights: DataFrame) -> DataFrame:
        """Aggregate the flights by window and key, in a batch or a stream."""
        window = F.window("scheduled_at", self.size, self.slide) if self.slide else F.window("scheduled_at", self.size)
        totals = flights.groupBy(window, self.by).agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("dep_delay_sum"),
            F.max("dep_delay").alias("dep_delay_max"),
        )
        return totals.select(F.col("window.start").alias("begins"), F.col("window.end").alias("ends"), "*").drop(
            "window"
        )


TABLES: Mapping[str, Windows] = {
    "carrier_hours": Windows("carrier", "1 hour"),
    "airport_days": Windows("from_airport", "24 hours", "1 hour"),
}


def batch(spark: SparkSession, output: Path, name: str) -> DataFrame:
    """Return all windows of the current flights, including those that a stream would keep open."""
    return TABLES[name].of(read_sink(spark, output / "flights"))


def start(
    spark: SparkSession, output: Path, name: str, *, delay: str = DELAY, partitions: int | None = PARTITIONS,
    max_files: int = 100, follow: bool = False,
) -> Any:  # fmt: skip
    """Start the query of one table; the topology need not have started yet.

    Args:
        spark: the session.
        output: where the topology writes.
        name: one of TABLES.
        delay: longest delay of a flight.
        partitions: of the topic; each has its own watermark.
        max_files: most files per micro-batch.
        follow: whether to continue after the current files.

    Returns:
        The ``StreamingQuery``.
    """
    flights = stream_sink(
        spark, output / "flights", sink=FlightDelays.flights, origins=True, maxFilesPerTrigger=max_files
    )
    checkpoint = directory(output, f"{name}.checkpoint")
    timed = event_time(flights, "scheduled_at", delay, partitions=partitions, checkpoint=checkpoint)
    writer = parquet_stream(TABLES[name].of(timed), directory(output, name), checkpoint).queryName(name)
    return writer.trigger(**({"processingTime": "2 seconds"} if follow else {"availableNow": True})).start()


def directory(output: Path, name: str) -> Path:
    """Return the directory of a table."""
    return output / "windows" / name


def written(spark: SparkSession, output: Path, name: str) -> DataFrame:
    """Return the windows that the query has written."""
    return spark.read.parquet(str(directory(output, name).absolute()))


def closed(spark: SparkSession, output: Path, name: str) -> DataFrame:
    """Return the windows that the query must have written by its last batch, computed as a batch.

    They equal the query's if no flight was too late and the query has read all files.
    """
    watermark = watermark_of(directory(output, f"{name}.checkpoint"))
    windows = batch(spark, output, name)
    return windows.where(F.col("ends") <= F.lit(watermark)) if watermark else windows.limit(0)


def differences(one: DataFrame, other: DataFrame) -> int:
    """Return the number of rows in which two tables (as multisets) differ."""
    return one.exceptAll(other).count() + other.exceptAll(one).count()


def main() -> None:
    """Run both queries; compare them with the batch if they end."""
    parser = argparse.ArgumentParser(description="Flights in windows of time, by PySpark's structured streaming.")
    parser.add_argument("--output", type=Path, default=Path("output"), help="where the topology writes")
    parser.add_argument("--delay", default=DELAY, help=f"how late a flight may be (default: {DELAY})")
    parser.add_argument("--max-files", type=int, default=100, help="files of a micro-batch, at most")
    parser.add_argument("--table", action="append", choices=list(TABLES), help="this one alone (default: each)")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    options = parser.parse_args()
    names = options.table or list(TABLES)
    for name in names:
        check_output(directory(options.output, name))
    with spark_session("flight_windows") as spark:
        late = LateRows(spark)
        settings = {"delay": options.delay, "max_files": options.max_files, "follow": options.follow}
        queries = {name: start(spark, options.output, name, **settings) for name in names}
        stopped = wait_until_stopped(*queries.values())
        for name, query in queries.items():
            _tell(spark, options.output, name, late.of(query), compare=not stopped)


def _tell(spark: SparkSession, output: Path, name: str, late: int, *, compare: bool) -> None:
    watermark = watermark_of(directory(output, f"{name}.checkpoint"))
    if watermark is None:
        print(f"{name}: nothing is finished yet", flush=True)
        return
    rows = written(spark, output, name)
    count = counted(rows.count(), "window")
    told = f"{name}: {count}, ended by {watermark:%Y-%m-%d %H:%M} UTC; {late:,} dropped as late"
    if compare:
        different = differences(rows, closed(spark, output, name))
        told += f"; {'equal to the batch' if not different else f'{different:,} differ from the batch'}"
    print(told, flush=True)


if __name__ == "__main__":
    main()
