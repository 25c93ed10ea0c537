"""Flights in windows of event time, through kills: final windows never change.

    python -m demos.drill windows        # or: make windows-demo

1. starts its own Kafka broker and publishes the flights;
2. runs ``topologies/flight_hours.py``, and kills it five times with ``kill -9`` while it writes. After each kill the
   final windows are read, and those that were final at the kill before are compared;
3. compares the final windows with DuckDB's, which adds up the flights themselves.

The run is slowed down, since nothing is final before it has lasted for ``parquet.idle_s``, and it reads the partitions
in small pieces, as if they came in just now. ``FLIGHTS=60000`` takes fewer, ``KILLS=3`` kills less.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa

from demos.audit import Finding
from demos.drill import Drill, Step
from demos.flights_data import Flights, publish
from downspout.formatting import counted
from downspout.kafka.clusters import cluster_for
from downspout.sink.log import CommitLog
from downspout.sink.snapshot import read_table, read_windows

TARGET = "topologies/flight_hours.py"
FLUSH_S, IDLE_S = 0.2, 5.0
FLUSHES = 150  # As many tuples are in flight as make about so many flushes
BATCH_BYTES = 8_192  # Of the topic, and of a fetch: so each partition has its turn within IDLE_S, slow as the run is
SINKS = {"carrier_hours": ("carrier", 1), "airport_days": ("airport", 24)}
"""Each sink's key, and the hours of its windows; one begins each hour."""
FINISHED = """SELECT {key}, epoch_us(window_start), epoch_us(window_end), sum(count)::BIGINT,
  sum(count_dep_delay)::BIGINT, sum(sum_dep_delay)::BIGINT, max(max_dep_delay)::BIGINT FROM partials GROUP BY ALL"""
SOURCE = """WITH ours AS (SELECT {column} AS key, dep_delay, epoch_us(time_hour) AS hour FROM flights)
SELECT key, hour - back * 3600000000 AS start, start + {hours} * 3600000000 AS until, count(*), count(dep_delay),
  sum(dep_delay)::BIGINT, max(dep_delay)::BIGINT FROM ours, range({hours}) AS slides(back) GROUP BY ALL"""
Windows = dict[tuple[str, int, int], tuple[int | None, ...]]


class WindowsDemo(Drill):
    """One run of the demo."""

    NAME = "windows"
    KILLS = 5

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.final: dict[str, Windows] = {name: {} for name in SINKS}  # as read last
        self.changed = 0
        self.looks: list[int] = []  # number of final windows at each read

    def publish(self) -> None:
        """Bring the flights into a topic of small batches."""
        self.flights, self.topic = Flights(self.frame), f"flights-{len(self.frame)}-small"
        with self.screen.counting("flights") as progress:
            sent = publish(
                cluster_for(self.kafka.bootstrap), self.flights, self.topic, progress,
                "rm -r .downspout/demo/kafka-to-kafka", BATCH_BYTES,
            )  # fmt: skip
        self.screen.say(f"{sent.sent:,} flights published, {sent.before:,} were there, at {self.kafka.bootstrap}")

    def steps(self) -> Iterator[Step]:
        """Yield the run, and the comparison."""
        yield f"downspout run {TARGET}, killed {self.kills} times", self.write
        yield "Compare the final windows with DuckDB's", self.compare

    def write(self) -> Iterator[Finding]:
        """Run the topology to the end, through all kills; yield whether final windows have changed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        settings = [
            f"kafka.bootstrap={self.kafka.bootstrap}", f"kafka.topics={self.topic}", "kafka.emit=record",
            f"kafka.group=windows-demo-{uuid.uuid4().hex[:8]}", "kafka.commit_period_ms=500",
            f"kafka.client.max_partition_fetch_bytes={BATCH_BYTES}",
            f"topology.max.spout.pending={max(len(self.flights) // FLUSHES, 20)}",
            f"parquet.flush_age_s={FLUSH_S}", f"parquet.idle_s={IDLE_S}", "parquet.lateness_s=0",
            *(f"{name}:parquet.directory={self.folder / name}" for name in SINKS),
        ]  # fmt: skip
        step = max(len(self.flights) // (self.kills + 2), 10)
        yield from self.run_killed(
            TARGET, settings, self.written, "flights are in windows", step, pause_s=0.2, after_kill=self.look
        )
        self.look()
        looks = ", ".join(f"{count:,}" for count in self.looks)
        yield Finding(
            not self.changed, f"windows final after each kill and at the end: {looks}; {self.changed} changed"
        )

    def written(self) -> int:
        """Return how many flights are in the windows of the first sink."""
        return log_of(self.folder / next(iter(SINKS))).coverage.total

    def look(self) -> None:
        """Read the final windows; count those that have changed since the previous read."""
        for name, (key, _) in SINKS.items():
            found = finished(self.folder / name, key)
            self.changed += sum(found.get(window) != row for window, row in self.final[name].items())
            self.final[name] = found
        self.looks.append(sum(map(len, self.final.values())))

    def compare(self) -> Iterator[Finding]:
        """Yield how the final windows compare with DuckDB's over the flights."""
        for name, (key, hours) in SINKS.items():
            report, found = read_windows(self.folder / name), self.final[name]
            until = 0 if report.watermark is None else int(report.watermark.timestamp()) * 1_000_000
            wanted = {each: row for each, row in from_source(self.frame, key, hours).items() if each[2] <= until}
            late = sum(row.late_rows for row in report.windows)
            yield Finding(late == 0, f"{name}: no row was late" if not late else f"{name}: {late:,} rows were late")
            said = f"{name}: {counted(len(found), 'final window')} until {report.watermark} "
            yield Finding(
                bool(found) and found == wanted,
                f"{said}equal DuckDB's over the flights" if found == wanted else f"{said}differ from DuckDB's",
            )


def log_of(directory: Path) -> CommitLog:
    """Return the log of a directory, which may be empty."""
    log = CommitLog(directory)
    log.refresh()
    return log


def finished(directory: Path, key: str) -> Windows:
    """Return the final windows by key, start and end, each with its count, delays, their sum and the largest."""
    if not log_of(directory).length:
        return {}
    partials = read_table(directory, closed=True)  # noqa: F841 - DuckDB finds it by its name
    return by_window(duckdb.sql(FINISHED.format(key=key)).arrow())


def from_source(frame: pd.DataFrame, key: str, hours: int) -> Windows:
    """Return all windows of the flights, computed by DuckDB."""
    flights = frame.assign(time_hour=pd.to_datetime(frame["time_hour"], utc=True))  # noqa: F841 - for DuckDB, too
    return by_window(duckdb.sql(SOURCE.format(column={"airport": "origin"}.get(key, key), hours=hours)).arrow())


def by_window(table: pa.Table | pa.RecordBatchReader) -> Windows:
    """Return rows of a key, a start, an end and values as a dict."""
    rows = table.read_all() if isinstance(table, pa.RecordBatchReader) else table
    return {row[:3]: row[3:] for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)}
