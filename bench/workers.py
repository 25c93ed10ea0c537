"""One process beside several (``downspout run --workers``): how much faster is a topic read by all cores?

    python -m bench.workers [--records 2000000] [--workers 1 2] [--runs 3] [--quick]

Here wall time counts, so this one wants a machine that does nothing else; the broker is on it too. Starting is taken
off (a run over four records). Every result is checked as in ``bench/race.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.contenders import downspout
from bench.flights import PARTITIONS
from bench.growth import measure
from bench.harness import Options, begin, load, machine, median, mib, save, spread, table
from bench.track import Measured, track


def report(measured: Sequence[Measured], described: str) -> str:
    """Return the Markdown report; the first crew is what others are compared with."""
    first, rows = measured[0], []
    for crew in measured:
        starting_s = median(crew.start_ups).wall_s
        rows.append([
            crew.contender.name, spread([cost.wall_s - starting_s for cost in crew.costs]),
            f"{crew.rate / first.rate:.2f}x", f"{starting_s:.1f}", f"{statistics.median(crew.each_us):.2f}",
            mib(crew.rss_bytes),
        ])  # fmt: skip
    columns = ("what", "wall, s", "rate against the first", "starting, s", "CPU-s per million", "peak memory")
    return "\n".join([
        "# One process beside several", "",
        f"{first.records:,} flights as JSON to typed Parquet, {PARTITIONS} partitions, {len(first.costs)} interleaved "
        "runs, median (min – max) without starting. `python -m bench.workers`", "", described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, measure, print and save."""
    options = Options(__doc__, runs=3)
    options.size("--records", 2_000_000, 50_000, type=int)
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given: Any = options.read(arguments)
    before = load()
    crews = [
        downspout(f"workers-{number}", f"--workers {number}", note="", options=("--workers", str(number)))
        for number in given.workers
    ]
    with track() as course:
        measured = measure(course, crews, [given.records], given.runs)
    save(given.results, "workers", report(measured, machine(before)), measured, course.notes)


if __name__ == "__main__":
    begin(main)
