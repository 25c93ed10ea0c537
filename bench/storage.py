"""What an object store costs beside a disk: requests by flush, and CPU-seconds of our own process per million rows.

    python -m bench.storage [--rows 1000000] [--runs 5] [--quick]

``ParquetBolt`` writes the same rows, with twelve columns and in flushes of two sizes, to a local directory and to an S3
server on this machine. Each run is a new process. Its CPU time counts, and the server's does not. A proxy counts
the requests, in runs that are not timed. The places take turns; the median of the runs counts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter

from bench.harness import BenchError, Options, begin, by_turns, load, machine, save, say, spread, table
from demos.s3 import KEYS, FaultProxy, s3_server

CASE = "ParquetBolt"
FLUSH_ROWS = (30_000, 100_000)
DEAR = ("PUT", "POST")
"""Methods whose requests cost a dozen times as much as the others at most stores; a server-side copy is a PUT."""
_CHILD = """
import json, sys
from bench.sink import write
place, rows, flush_rows = sys.argv[1:]
print(json.dumps(write({case!r}, int(rows), place, **{{"parquet.flush_rows": int(flush_rows)}})))
"""


def run(place: str, rows: int, flush_rows: int, endpoint: str = "") -> tuple[float, int]:
    """Return CPU-seconds per million rows, and the number of flushes."""
    options = {"DOWNSPOUT_PARQUET_STORAGE_OPTIONS": f"endpoint={endpoint}"} if endpoint else {}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.format(case=CASE), place, str(rows), str(flush_rows)],
        env={**os.environ, **KEYS, **options}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"{place}: {done.stderr[-2000:]}")
    cpu_s, flushes = json.loads(done.stdout)
    return cpu_s, flushes


def requests(url: str, rows: int, flush_rows: int) -> tuple[Counter[str], int]:
    """Return the requests of one run by their methods, and its flushes."""
    with FaultProxy(url, lambda line: None) as proxy:
        _, flushes = run(f"s3://bucket/counted-{flush_rows}", rows, flush_rows, proxy.url)
        return Counter(line.partition(" ")[0] for line in proxy.requests), flushes


def main() -> None:
    options = Options(__doc__, runs=5)
    options.size("--rows", 1_000_000, 200_000, type=int)
    given = options.read()
    before, figures, lines = load(), {}, []
    with s3_server() as url:
        for flush_rows in FLUSH_ROWS:
            counted, flushes = requests(url, given.rows, flush_rows)
            cpu: dict[str, list[float]] = {"disk": [], "S3": []}
            for number, where in by_turns(list(cpu), given.runs):
                with tempfile.TemporaryDirectory() as folder:
                    place = f"{folder}/out" if where == "disk" else f"s3://bucket/{flush_rows}-{number}"
                    cpu[where].append(run(place, given.rows, flush_rows, url if where == "S3" else "")[0])
                say(f"{flush_rows:,} rows to a flush: run {number + 1}, {where}")
            figures[flush_rows] = {"cpu": cpu, "requests": counted, "flushes": flushes}
            dear, total = sum(counted[method] for method in DEAR), counted.total()
            ratio = statistics.median(cpu["S3"]) / statistics.median(cpu["disk"])
            lines.append([
                f"{flush_rows:,}", str(flushes), f"{total / flushes:.1f}", f"{dear / flushes:.1f}",
                f"{total / given.rows * 1e6:.0f}", spread(cpu["disk"]), spread(cpu["S3"]), f"{ratio:.2f}x",
            ])  # fmt: skip
    text = (
        f"{given.rows:,} rows of 12 columns, record by record, {given.runs} interleaved runs; median (min – max). "
        f"{machine(before)}"
    )
    columns = ["rows to a flush", "flushes", "requests to a flush", "of them PUT and COPY", "requests per million rows",
               "CPU-s per million rows, disk", "the same, S3", "S3 of disk"]  # fmt: skip
    save(given.results, "storage", f"{text}\n\n{table(columns, lines)}", figures)


if __name__ == "__main__":
    begin(main)
