"""What compaction is good for, and what it costs: reading many small files before and after, and the way there.

    python -m bench.compaction [--files 2000] [--rows 500]

A writer makes a sink's directory with that many flushes, without Kafka and without an engine. Then all of it is read
with PyArrow, and with DuckDB where that is installed; compacted; and read again. Wall and CPU seconds, best of three.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from bench.harness import Options
from bolts.parquet import with_origins
from downspout.audit.files import visible_files
from downspout.sink.compaction.compactor import Compactor
from downspout.sink.identity.rows import Identities
from downspout.sink.storage.disk import Disk
from downspout.sink.writer import SinkWriter


class Unforced(Disk):
    """Forces nothing to the disk: making the files is no part of the figure."""

    def sync(self, path: Path) -> None:
        """Do nothing."""


def fill(directory: Path, files: int, rows: int) -> None:
    """Write many small files, as a sink does whose flushes are small."""
    sink = SinkWriter(
        directory, topology="bench", component="sink", columns=["carrier:string"], writer="bench", disk=Unforced()
    )
    sink.open()
    random = np.random.default_rng(7)
    for number in range(files):
        offsets = range(number * rows, (number + 1) * rows)
        identities = Identities.of([("flights", "6jPMvg1sQ2uJmzGz1yRHQw", o % 4, o, "") for o in offsets])
        columns = {f"n{c}": pa.array(random.integers(0, 3000, rows), pa.int32()) for c in range(8)}
        carriers = pa.array(np.array(["UA", "AA", "B6", "DL"])[random.integers(0, 4, rows)])
        table = with_origins(pa.table({"carrier": carriers, **columns}), identities)
        sink.flush(identities, lambda mask, _, table=table: table.filter(pa.array(mask)))


def timed(work: Callable[[], Any], runs: int = 1) -> tuple[float, float]:
    """Return wall and CPU seconds, the best of some runs."""
    best = (float("inf"), float("inf"))
    for _ in range(runs):
        used, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        work()
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        best = min(best, (wall, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime))
    return best


def readers(directory: Path) -> dict[str, Callable[[], Any]]:
    """Return what reads all rows of the directory's visible files."""
    names = [str(path) for path in visible_files(directory)]
    found: dict[str, Callable[[], Any]] = {"PyArrow": lambda: ds.dataset(names).to_table().num_rows}
    try:
        import duckdb
    except ImportError:
        return found
    query = f"select count(*), sum(n1), max(_offset) from read_parquet('{directory}/*.parquet')"
    return {**found, "DuckDB": lambda: duckdb.sql(query).fetchall()}


def main() -> None:
    """Measure and print."""
    options = Options(__doc__, runs=3)
    options.size("--files", 2_000, 100, type=int)
    options.size("--rows", 500, 500, type=int)
    arguments = options.read()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "out"
        fill(directory, arguments.files, arguments.rows)
        print(f"{arguments.files:,} files of {arguments.rows:,} rows")
        before = {name: timed(read, arguments.runs) for name, read in readers(directory).items()}
        size = sum(path.stat().st_size for path in visible_files(directory))
        done: list[Any] = []
        wall, cpu = timed(lambda: done.append(Compactor(directory, say=print).run()))
        rows = arguments.files * arguments.rows
        print(f"compacted in {wall:.1f} s ({cpu:.1f} CPU-s); in a CPU-s {size / cpu / 1e6:.1f} MB of small files, "
              f"{rows / cpu:,.0f} rows, {done[0].merged / cpu:,.0f} files")  # fmt: skip
        for name, read in readers(directory).items():
            (wall, cpu), (wall_after, cpu_after) = before[name], timed(read, arguments.runs)
            print(f"{name}: {wall:.3f} s ({cpu:.3f} CPU-s) before, {wall_after:.3f} s ({cpu_after:.3f} CPU-s) after: "
                  f"{wall / wall_after:.0f} times as fast")  # fmt: skip
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"largest resident size of this process: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
