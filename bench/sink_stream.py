"""What it costs PySpark to read a sink's directory as a stream: through the commit log, and by the names of its files.

    python -m bench.sink_stream --rows 1000000 --files 100

Both queries count and add up all columns, so that both must read them. CPU-seconds are those of the JVM and of its
Python workers, without what starting cost.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bolts.parquet import with_origins
from downspout.sink.identity.rows import Identities
from downspout.sink.writer import SinkWriter
from downspout.spark.read import ORIGIN_COLUMNS, sink_schema, stream_sink
from downspout.spark.session import spark_session

COLUMNS = ["carrier:string", "flight:int32", "at:timestamp", "delay:float64", "distance:int64"]


def write(directory: Path, rows: int, files: int) -> None:
    sink = SinkWriter(directory, topology="t", component="sink", columns=COLUMNS, writer="bench")
    sink.open()
    random = np.random.default_rng(7)
    for first in range(0, rows, rows // files):
        count = min(rows // files, rows - first)
        identities = Identities.of([("t", "id", 0, first + row, "") for row in range(count)])
        table = pa.table(
            {
                "carrier": pa.array(np.array(["UA", "AA", "DL", "B6"])[random.integers(0, 4, count)]),
                "flight": pa.array(random.integers(0, 9_999, count), pa.int32()),
                "at": pa.array(random.integers(0, 2**50, count), pa.timestamp("us", "UTC")),
                "delay": pa.array(random.normal(size=count)),
                "distance": pa.array(random.integers(0, 5_000, count)),
            }
        )
        made = with_origins(table, identities)
        sink.flush(identities, lambda mask, _, made=made: made.filter(pa.array(mask)))


def cpu_seconds() -> float:
    """Of all that this process has started, and that they have."""
    tick = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if entry.name.isdecimal():
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15])) / tick
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours)


def run(spark: Any, frame: Any, checkpoint: Path) -> int:
    from pyspark.sql import functions as F

    sums = frame.agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum("flight"),
        F.max("carrier"),
        F.max("at"),
        F.sum("delay"),
        F.sum("distance"),
    )
    writer = sums.writeStream.outputMode("complete").format("memory").queryName("bench")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return int(spark.table("bench").first()["rows"])


def measured(name: str, work: Callable[[], int], rows: int) -> float:
    cpu, wall = cpu_seconds(), time.monotonic()
    assert work() == rows
    cpu, wall = cpu_seconds() - cpu, time.monotonic() - wall
    print(f"{name}: {cpu:.2f} CPU-s, {wall:.1f} s, {rows / cpu:,.0f} rows per CPU-s", flush=True)
    return cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, spark_session("bench") as spark:
        directory = Path(folder) / "sink"
        write(directory, options.rows, options.files)
        schema = sink_schema(directory)
        best: dict[str, float] = {}
        for number in range(options.times + 1):  # the first time warms up
            for name, make in {
                "names": lambda: spark.readStream.schema(schema).parquet(str(directory)).drop(*ORIGIN_COLUMNS),
                "log": lambda: stream_sink(spark, directory),
            }.items():
                place = Path(folder) / f"{name}-{number}"
                cpu = measured(name, lambda make=make, place=place: run(spark, make(), place), options.rows)
                if number:
                    best[name] = min(cpu, best.get(name, cpu))
        print(f"through the log: {best['log'] / best['names']:.2f} times the CPU of Spark's file source")


if __name__ == "__main__":
    main()
