"""From JSON in Kafka to typed Parquet: Downspout beside its peers, on one topic, in one run, by turns.

    python -m bench.race [--records 1000000] [--runs 3] [--only record,loop] [--shapes all] [--quick]

Each run is a separate process that reads the topic from start to end, writes typed Parquet compressed with zstd, and
commits. The cost of the start is measured with a topic of four records, and has its own column. Every result is
checked: each record in one row, each value in the right place, offsets committed.

With ``--shapes`` (``all``, or keys such as ``missing-5,nested``), the loops and Downspout race over each shape of
``bench/shapes.py``, and the report has a row per shape.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench import chart
from bench.contenders import LOOP, Contender, available, chosen
from bench.flights import PARTITIONS, flights, publish
from bench.harness import BenchError, Options, begin, by_turns, load, machine, mib, save, say, spread, table
from bench.shapes import Shape, shapes_of
from bench.track import Measured, Track, track

SHAPED = ("record", "chunk", "loop", "loop-arrow", "confluent", "confluent-orjson", "confluent-polars")
"""The contenders in the race over shapes: ours, and the peers whose parsers take the columns as an argument."""


def race(
    course: Track, contenders: Sequence[Contender], records: int, runs: int, shape: Shape | None = None
) -> tuple[list[Measured], list[str]]:
    """Run all by turns, over few and many records; return the measurements, and the failures with reasons.

    Raises:
        BenchError: one of ours failed. A peer that fails is dropped.
    """
    few, many = ("bench-few", "bench-flights") if shape is None else (f"few-{shape.key}", f"many-{shape.key}")
    for topic, count in ((few, PARTITIONS), (many, records)):
        made = None if shape is None else [(b"", value) for value, _ in shape.made(count)]
        publish(course.bootstrap, topic, count, records=made)
    measured, failed = {contender.key: Measured(contender, records) for contender in contenders}, []
    for number, contender in by_turns(contenders, runs):
        if (found := measured.get(contender.key)) is None:
            continue
        try:
            started, _ = course.run(contender, few, PARTITIONS, shape=shape)
            cost, found.files = course.run(contender, many, records, shape=shape)
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


def by_shape(races: Mapping[str, Sequence[Measured]], keys: Sequence[str], described: str) -> str:
    """Return the Markdown report of races over several shapes: CPU-seconds per million, and the ratio to the loop."""
    names = {one.contender.key: one.contender.name for race in races.values() for one in race}
    rows = []
    for shape, race in races.items():
        costs = {one.contender.key: statistics.median(one.each_us) for one in race}
        loop = costs.get(LOOP.key)
        cells = [
            "–" if key not in costs else f"{costs[key]:.2f}" + (f" {costs[key] / loop:.2f}x" if loop else "")
            for key in keys
        ]
        rows.append([shape, f"{race[0].records:,}", *cells])
    runs = max(len(one.costs) for race in races.values() for one in race)
    return "\n".join([
        "# Shapes of JSON, beside the peers", "",
        f"CPU-seconds per million records from Kafka to typed Parquet, without starting; {runs} interleaved runs, "
        "median; behind it, against the loop of the row. `python -m bench.race --shapes all`", "", described, "",
        table(("shape", "records", *(names.get(key, key) for key in keys)), rows), "",
        "Every result was checked against the rows that the records were made of. –: the peer cannot read the shape, "
        "or its result was wrong.",
    ])  # fmt: skip


def race_shapes(given: Any) -> None:
    """Race over each shape, print and save."""
    before, keys = load(), [key for key in given.only.split(",") if key] or list(SHAPED)
    races: dict[str, list[Measured]] = {}
    contenders, missing = available(chosen(keys))
    with track() as course:
        for shape in shapes_of(given.shapes):
            records = max(PARTITIONS, int(given.records * shape.share))
            races[shape.name], failed = race(course, contenders, records, given.runs, shape)
            missing += [f"{shape.name}: {why}" for why in failed]
    text = "\n".join([by_shape(races, keys, machine(before)), "", *(f"* {line}" for line in missing)])
    figures = {name: {one.contender.key: one.costs for one in found} for name, found in races.items()}
    save(given.results, "shapes", text, {"records": given.records, "shapes": figures})


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, race, print and save."""
    options = Options(__doc__, runs=3)
    options.size("--records", 1_000_000, 50_000, type=int)
    options.add_argument("--only", default="", help="keys of contenders, as in record,loop; default: all")
    options.add_argument("--shapes", default="", help="keys of shapes, as in missing-5,nested, or all")
    given: Any = options.read(arguments)
    if given.shapes:
        race_shapes(given)
        return
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
