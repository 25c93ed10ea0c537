"""The cost per record with a hundred thousand to ten million records: Downspout and a bare loop, by turns.

    python -m bench.growth [--records 100000 1000000 10000000] [--runs 3] [--quick]

CPU time excludes the start (a run over four records). Every result is checked as in ``bench/race.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.contenders import DOWNSPOUT, LOOP, Contender, available
from bench.flights import PARTITIONS, publish
from bench.harness import Options, begin, by_turns, load, machine, mib, save, say, spread, table
from bench.track import Measured, Track, track


def measure(course: Track, contenders: Sequence[Contender], sizes: Sequence[int], runs: int) -> list[Measured]:
    """Measure each contender with each number of records."""
    for size in (PARTITIONS, *sizes):
        publish(course.bootstrap, f"bench-{size}", size)
    measured = {(c.key, size): Measured(c, size) for c in contenders for size in sizes}
    for number, (contender, size) in by_turns([(c, size) for size in (PARTITIONS, *sizes) for c in contenders], runs):
        cost, _ = course.run(contender, f"bench-{size}", size)
        for found in [measured[contender.key, one] for one in sizes] if size == PARTITIONS else []:
            found.start_ups.append(cost)
        if size != PARTITIONS:
            measured[contender.key, size].costs.append(cost)
        say(f"run {number + 1}: {size:,}: {contender.name}: {cost.cpu_s:.2f} CPU-s, {mib(cost.rss_bytes)}")
    return list(measured.values())


def report(measured: Sequence[Measured], described: str) -> str:
    """Return the Markdown report; for each contender, the fewest records come first."""
    fewest: dict[str, float] = {}
    rows = []
    for one in measured:
        middle = statistics.median(one.each_us)
        change = middle / fewest.setdefault(one.contender.key, middle) - 1
        rows.append([one.contender.name, f"{one.records:,}", spread(one.each_us), f"{change:+.0%}", f"{one.rate:,.0f}",
                     mib(one.rss_bytes)])  # fmt: skip
    columns = ("what", "records", "CPU-s per million", "against the fewest", "records/s", "peak memory")
    return "\n".join([
        "# The cost of a record, and memory, as topics grow", "",
        f"Flights as JSON to typed Parquet, {PARTITIONS} partitions, {len(measured[0].costs)} interleaved runs, median "
        "(min – max), without what starting costs. `python -m bench.growth`", "", described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, measure, print and save."""
    options = Options(__doc__, runs=3)
    options.size("--records", [10**5, 10**6, 10**7], [20_000, 100_000], type=int, nargs="+")
    given: Any = options.read(arguments)
    before = load()
    contenders, missing = available([*DOWNSPOUT, LOOP])
    with track() as course:
        measured = measure(course, contenders, sorted(given.records), given.runs)
    save(given.results, "growth", report(measured, machine(before)), measured, [*missing, *course.notes])


if __name__ == "__main__":
    begin(main)
