"""The cost of bad records: topics with a share of truncated values, by turns with a topic without any.

    python -m bench.failures [--records 1000000] [--shares 0 0.0001 0.01 0.1] [--runs 3] [--quick]

CPU time excludes the start (a run over four records). Every result is checked: each good record in one row with its
values, each bad one in the dead-letter topic once (after deduplication by origin), the group at the end. Peers do not
take part: they stop at the first bad record, or drop it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.contenders import DOWNSPOUT, Contender
from bench.flights import PARTITIONS, publish
from bench.harness import Options, begin, by_turns, load, machine, mib, save, say, spread, table
from bench.track import Measured, Track, track


def measure(course: Track, contenders: Sequence[Contender], shares: Sequence[float], records: int,
            runs: int) -> dict[tuple[str, float], Measured]:  # fmt: skip
    """Measure each contender with each share of bad records; return results by key and share."""
    publish(course.bootstrap, "bench-few", PARTITIONS)
    for share in shares:
        publish(course.bootstrap, f"bench-{share:g}", records, share=share)
    measured = {(contender.key, share): Measured(contender, records) for contender in contenders for share in shares}
    for number, contender in by_turns(contenders, runs):
        started, _ = course.run(contender, "bench-few", PARTITIONS)
        for share in shares:
            cost, _ = course.run(contender, f"bench-{share:g}", records, share)
            measured[contender.key, share].costs.append(cost)
            measured[contender.key, share].start_ups.append(started)
            say(f"run {number + 1}: {share:g}: {contender.name}: {cost.cpu_s:.2f} CPU-s, {cost.wall_s:.2f} s")
    return measured


def report(measured: Mapping[tuple[str, float], Measured], described: str) -> str:
    """Return the Markdown report; for each contender, the smallest share comes first."""
    base: dict[str, float] = {}
    rows = []
    for (key, share), one in measured.items():
        middle = statistics.median(one.each_us)
        times = middle / base.setdefault(key, middle)
        rows.append([one.contender.name, f"{share:.2%}", spread(one.each_us), f"{times:.2f}x", f"{one.rate:,.0f}",
                     mib(one.rss_bytes)])  # fmt: skip
    first = next(iter(measured.values()))
    columns = ("what", "bad records", "CPU-s per million", "against the fewest", "records/s", "peak memory")
    return "\n".join([
        "# What bad records cost", "",
        f"{first.records:,} flights as JSON to typed Parquet, {PARTITIONS} partitions, a share of the values cut "
        f"short; {len(first.costs)} interleaved runs, median (min – max), without what starting costs. Each bad one "
        "ended in the dead-letter topic, once. `python -m bench.failures`", "", described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, measure, print and save."""
    options = Options(__doc__, runs=3)
    options.size("--records", 1_000_000, 20_000, type=int)
    options.size("--shares", [0.0, 0.0001, 0.01, 0.1], [0.0, 0.01, 0.1], type=float, nargs="+")
    given: Any = options.read(arguments)
    before = load()
    with track() as course:
        measured = measure(course, DOWNSPOUT, sorted(given.shares), given.records, given.runs)
    figures = [[*key, one] for key, one in measured.items()]
    save(given.results, "failures", report(measured, machine(before)), figures, course.notes)


if __name__ == "__main__":
    begin(main)
