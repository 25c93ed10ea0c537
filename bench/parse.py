"""What parsing costs: CPU-seconds per million flights from JSON to typed columns, without Kafka and without an engine.

    python -m bench.parse [--records 400000] [--runs 5] [--chunk 4000] [--quick]

All ways see the same values: 12 fields, 180 bytes each, four texts and eight int32. What is corrupt is in turn no
JSON, a number out of range, and a text where a number should be; each way must reject just those. ``orjson alone``
makes dicts and keeps nothing; it is there for scale. The ways take turns; the median of the runs counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa

from bench.flights import FIELDS, SCHEMA, flights
from bench.harness import BenchError, Options, begin, load, machine, save, say
from downspout.parse.json import JsonParser
from downspout.parse.paths import Paths
from downspout.sink.schema import Columns

COLUMNS = Columns.parse([f"{name}:{kind}" for name, kind in SCHEMA.items()])
CORRUPT = (b"not JSON", b'"dep_delay":9999999999', b'"dep_delay":"late"')
SHARES = (("clean", 0), ("1 in 10,000 corrupt", 10_000), ("1 in 100 corrupt", 100))


def values_of(count: int, one_in: int) -> list[bytes]:
    values = [value for _, value in flights(count)]
    if one_in:
        for number, place in enumerate(range(one_in // 2, count, one_in)):
            bad = CORRUPT[number % 3]
            if not bad.startswith(b'"'):
                values[place] = bad
            else:
                row = orjson.loads(values[place]) | orjson.loads(b"{" + bad + b"}")
                values[place] = orjson.dumps(row)
    return values


def in_columns(parser: JsonParser, chunks: list[Any]) -> tuple[int, int]:
    rows = rejected = 0
    for chunk in chunks:
        found = parser.parse(chunk)
        rows += len(found.rows)
        rejected += len(found.rejected)
    return rows, rejected


def by_shape(chunks: list[Any]) -> tuple[int, int]:
    return in_columns(JsonParser(Paths(FIELDS), COLUMNS), chunks)


def by_arrow(chunks: list[Any]) -> tuple[int, int]:
    parser = JsonParser(Paths(FIELDS), COLUMNS)
    parser._has_plain_keys = False
    return in_columns(parser, chunks)


def exactly(chunks: list[Any]) -> tuple[int, int]:
    parser = JsonParser(Paths(FIELDS), COLUMNS)
    parser._has_plain_keys = parser._reader.is_able = False
    return in_columns(parser, chunks)


def orjson_alone(chunks: list[Any]) -> tuple[int, int]:
    rows = rejected = 0
    for chunk in chunks:
        for value in chunk.to_pylist():
            try:
                orjson.loads(value)
                rows += 1
            except ValueError:
                rejected += 1
    return rows, rejected


WAYS: dict[str, Callable[[list[Any]], tuple[int, int]]] = {
    "in columns (what a chunk gets)": by_shape,
    "Arrow's reader, guarded (values of no common shape)": by_arrow,
    "exactly, value by value (what is odd)": exactly,
    "orjson alone, no columns": orjson_alone,
}


def measure(options: Any, one_in: int) -> dict[str, list[float]]:
    """Return CPU-seconds per million of each way and run."""
    values = values_of(options.records, one_in)
    step = options.chunk
    chunks = [pa.array(values[at : at + step], pa.binary()) for at in range(0, len(values), step)]
    bad = len(range(one_in // 2, options.records, one_in)) if one_in else 0
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for run in range(options.runs):
        for name, way in WAYS.items():
            before = time.process_time()
            found = way(chunks)
            seconds[name].append((time.process_time() - before) / options.records * 1e6)
            if way is not orjson_alone and found != (options.records - bad, bad):
                raise BenchError(f"{name}: {found} rows and rejects instead of {options.records - bad, bad}")
        say(f"1 in {one_in or 'none'}: run {run + 1}")
    return seconds


def main() -> None:
    options = Options(__doc__, runs=5)
    options.size("--records", 400_000, 20_000, type=int)
    options.add_argument("--chunk", type=int, default=4_000, help="records in a chunk")
    given = options.read()
    before = load()
    seconds = {name: measure(given, one_in) for name, one_in in SHARES}
    lines = [
        f"{given.records:,} flights as JSON in chunks of {given.chunk:,}, {given.runs} interleaved runs; CPU-seconds "
        f"per million, median (min – max); pyarrow {pa.__version__}. {machine(before)}",
        "",
        "| what | " + " | ".join(seconds) + " |",
        "| --- |" + " --- |" * len(seconds),
    ]
    for name in WAYS:
        cells = [found[name] for found in seconds.values()]
        shown = [f"{statistics.median(cell):.2f} ({min(cell):.2f} – {max(cell):.2f})" for cell in cells]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    save(given.results, "parse", "\n".join(lines), seconds)


if __name__ == "__main__":
    begin(main)
