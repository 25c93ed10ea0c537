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

from bench.harness import Options, begin, load, machine, mib, save, say, table
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


def report(rows: list[list[str]], compacted: str, described: str) -> str:
    """Return the Markdown report."""
    columns = ["all rows by", "before: wall, s", "CPU-s", "after: wall, s", "CPU-s", "times as fast"]
    return "\n".join(["# Compaction", "", described, "", table(columns, rows), "", compacted])


def main() -> None:
    """Measure, print and save the report."""
    options = Options(__doc__, runs=3)
    options.size("--files", 2_000, 100, type=int)
    options.size("--rows", 500, 500, type=int)
    given, load_before = options.read(), load()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "out"
        fill(directory, given.files, given.rows)
        before = {name: timed(read, given.runs) for name, read in readers(directory).items()}
        size = sum(path.stat().st_size for path in visible_files(directory))
        done: list[Any] = []
        wall, cpu = timed(lambda: done.append(Compactor(directory, say=say).run()))
        size_after = sum(path.stat().st_size for path in visible_files(directory))
        rows = []
        for name, read in readers(directory).items():
            (old, old_cpu), (new, new_cpu) = before[name], timed(read, given.runs)
            rows.append([name, f"{old:.2f}", f"{old_cpu:.2f}", f"{new:.2f}", f"{new_cpu:.2f}", f"{old / new:.0f}"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        took, rate = f"{wall:.1f} s and {cpu:.1f} CPU-s", f"{given.files * given.rows / cpu:,.0f} rows"
        text = (
            f"To compact {given.files:,} files ({size / 1e6:,.0f} MB) into {size_after / 1e6:,.0f} MB took {took}: "
            f"{done[0].merged / cpu:,.0f} files or {rate} for a CPU-second. The process had {mib(peak)} at most."
        )
    described = (
        f"{given.files:,} files of {given.rows:,} rows, 14 columns (five of them the origin), zstd; best of "
        f"{given.runs} readings. `python -m bench.compaction`\n\n{machine(load_before)}"
    )
    save(given.results, "compaction", report(rows, text, described))


if __name__ == "__main__":
    begin(main)
