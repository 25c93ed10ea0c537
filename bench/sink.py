"""What a sink costs: CPU-seconds per million rows from ``process`` to the file, without Kafka and without an engine.

    python -m bench.sink [--rows 1000000] [--runs 3]

Twelve columns as in a flight's row (four texts, eight numbers), four partitions, each tuple acked. The rows are made in
batches outside the clock. Of the figures, user + system CPU time of this process counts.
"""

from __future__ import annotations

import argparse
import gc
import io
import resource
import statistics
import tempfile
from collections import namedtuple
from typing import Any

from pystorm.component import Tuple

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.ledger.origin import Origin

FIELDS = ("year", "month", "day", "dep_time", "dep_delay", "arr_delay", "carrier", "flight", "tailnum", "from_airport",
          "to_airport", "distance")  # fmt: skip
SCHEMA = [f"{f}:{'string' if f in ('carrier', 'tailnum', 'from_airport', 'to_airport') else 'int32'}" for f in FIELDS]
BATCH = 2_000
Values = namedtuple("Values", ("origin", *FIELDS))  # type: ignore[misc]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ParquetBolt": (ParquetBolt, {}),
    "ParquetBolt, month= folders": (ParquetBolt, {"parquet.partition_by": ["month"]}),
    "AggregateBolt": (
        AggregateBolt,
        {"parquet.keys": ["from_airport", "to_airport"], "parquet.aggregates": ["count", "sum:dep_delay"]},
    ),
}


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make(cls: Any, directory: str, **settings: Any) -> Any:
    bolt = cls(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.component_name, bolt.task_id = "sink", 1
    bolt.ack = lambda tup: None
    conf = {"topology.name": "bench", "parquet.directory": directory, "parquet.schema": SCHEMA, **settings}
    bolt.initialize(conf, {"source->stream->fields": {"parse": {"default": ["origin", *FIELDS]}}})
    return bolt


def batch(start: int) -> list[Tuple]:
    rows = []
    for n in range(start, start + BATCH):
        origin = Origin("flights", "6jPMvg1sQ2uJmzGz1yRHQw", n % 4, n // 4, "")
        values = Values(origin, 2013, n // 27_000 % 12 + 1, n % 28 + 1, n % 2400, n % 300 - 20, n % 180 - 40, "UA",
                        n % 9000, f"N{n % 3322}", "EWR", f"A{n % 105}", n % 2500)  # fmt: skip
        rows.append(Tuple(str(n), "parse", "default", 2, values))
    return rows


def run(case: str, rows: int) -> float:
    """Return CPU-seconds per million rows on a disk."""
    with tempfile.TemporaryDirectory() as folder:
        return write(case, rows, folder)[0]


def write(case: str, rows: int, directory: str, **settings: Any) -> tuple[float, int]:
    """Write rows; return CPU-seconds per million of them, and the number of flushes."""
    cls, own = CASES[case]
    bolt = make(cls, directory, **own, **settings)
    process, spent = bolt.process, 0.0
    for start in range(0, rows, BATCH):
        tuples = batch(start)
        before = cpu()
        for tup in tuples:
            process(tup)
        spent += cpu() - before
        del tuples
    before = cpu()
    bolt.drain()
    spent += cpu() - before
    written = bolt.report()
    if written["rows"] + written["covered"] != rows:
        raise SystemExit(f"{case}: {written} of {rows:,} rows")
    return spent / rows * 1e6, written["flushes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    gc.set_threshold(100_000, 20, 50)  # as the engine does
    print("| sink | CPU-s per million rows (median) | min – max |\n| --- | --- | --- |")
    for case in CASES:
        found = [run(case, options.rows) for _ in range(options.runs)]
        print(f"| {case} | {statistics.median(found):.2f} | {min(found):.2f} – {max(found):.2f} |", flush=True)


if __name__ == "__main__":
    main()
