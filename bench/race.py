"""From JSON in Kafka to typed Parquet: Downspout beside its peers, on one topic, in one run, by turns.

    python -m bench.race [--records 1000000] [--runs 3] [--only record,loop] [--quick]

Each run is a separate process that reads the topic from its start to its end, writes typed Parquet compressed with
zstd, and commits. What starting costs is measured by a run over a topic of four records, and has its own column.
Every result is checked: each record in one row, each value where it belongs, offsets committed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench import chart
from bench.contenders import LOOP, Contender, available, chosen
from bench.flights import PARTITIONS, flights, publish
from bench.harness import BenchError, Options, begin, by_turns, load, machine, mib, save, say, spread, table
from bench.track import Measured, Track, track


def race(course: Track, contenders: Sequence[Contender], records: int, runs: int) -> tuple[list[Measured], list[str]]:
    """Run all by turns, over few records and over many; return what was measured, and who failed and why.

    Raises:
        BenchError: one of ours failed. A peer that fails is left out from then on.
    """
    publish(course.bootstrap, "bench-few", PARTITIONS)
    publish(course.bootstrap, "bench-flights", records)
    measured, failed = {contender.key: Measured(contender, records) for contender in contenders}, []
    for number, contender in by_turns(contenders, runs):
        if (found := measured.get(contender.key)) is None:
            continue
        try:
            started, _ = course.run(contender, "bench-few", PARTITIONS)
            cost, found.files = course.run(contender, "bench-flights", records)
        except BenchError as error:
            if contender.ours:
                raise
            say(f"left out: {error}")
            failed.append(f"left out: {str(error).splitlines()[0].rstrip(':')}")
            del measured[contender.key]
            continue
        found.start_ups.append(started)
        found.costs.append(cost)
        say(f"run {number + 1}: {contender.name}: {cost.cpu_s:.2f} CPU-s, {cost.wall_s:.2f} s, {mib(cost.rss_bytes)}")
    return list(measured.values()), failed


def report(measured: Sequence[Measured], records: int, missing: Sequence[str], described: str) -> str:
    """Return the Markdown report."""
    loop = next((statistics.median(one.each_us) for one in measured if one.contender is LOOP), None)
    rows = [
        [
            one.contender.name,
            spread(one.each_us),
            f"{statistics.median(one.each_us) / loop:.2f}x" if loop else "–",
            f"{one.start_s:.2f}",
            f"{one.rate:,.0f}",
            mib(one.rss_bytes),
            f"{one.files:,}",
        ]
        for one in measured
    ]
    size = statistics.mean(len(value) for _, value in flights(min(records, 10_000)))
    columns = ("what", "CPU-s per million", "against the loop", "CPU-s of starting", "records/s",
               "peak memory", "files")  # fmt: skip
    notes = [f"* **{one.contender.name}**: {one.contender.note}." for one in measured]
    return "\n".join([
        "# JSON in Kafka to typed Parquet, beside the peers", "",
        f"{records:,} flights as JSON of {size:.0f} bytes, {PARTITIONS} partitions, from the start of the topic to its "
        f"end; {len(measured[0].costs)} interleaved runs, median (min – max). `python -m bench.race`", "",
        described, "", table(columns, rows), "", "![CPU-seconds per million records](peers.svg)", "",
        "CPU time is that of all processes and threads that were started. Starting (interpreter, imports, JVM, joining "
        "the group: a run over four records) is counted apart and is in no other figure but memory. Every result was "
        "checked: each record in one row, typed columns, every value in its record's row, and the group's "
        "offsets at the end. What each one promises:", "", *notes, *(f"* {line}" for line in missing),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, race, print and save."""
    options = Options(__doc__, runs=3)
    options.size("--records", 1_000_000, 50_000, type=int)
    options.add_argument("--only", default="", help="keys of contenders, as in record,loop; default: all")
    given: Any = options.read(arguments)
    before = load()
    contenders, missing = available(chosen([key for key in given.only.split(",") if key]))
    with track() as course:
        measured, failed = race(course, contenders, given.records, given.runs)
    text = report(measured, given.records, [*missing, *failed, *course.notes], machine(before))
    figures = {one.contender.key: {"costs": one.costs, "start_ups": one.start_ups} for one in measured}
    save(given.results, "peers", text, {"records": given.records, "contenders": figures})
    bars = {one.contender.name: one.each_us for one in measured}
    chart.bars(given.results / "peers.svg", bars, [one.contender.name for one in measured if one.contender.ours])


if __name__ == "__main__":
    begin(main)
