"""The cost of parsing: CPU-seconds per million records from JSON to typed columns, without Kafka or an engine.

    python -m bench.parse [--records 400000] [--runs 5] [--chunk 4000] [--shapes all] [--quick]

The table has a row for each shape of ``bench/shapes.py``, and for flights with some corrupt values: in turn invalid
JSON, a number out of range, and a text instead of a number; exactly these must be rejected. Arrow's reader stops at the
first. ``orjson alone`` makes dicts and drops them, as a baseline. Parsers take turns; the median of the runs counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import orjson
import pyarrow as pa
import pyarrow.json as pj

from bench.flights import FIELDS, SCHEMA, flights
from bench.harness import BenchError, Options, begin, load, machine, save, say
from bench.peers.flights_parquet import document
from bench.shapes import Shape, shapes_of
from bolts.parse import split_fields
from downspout.parse.json import JsonParser, Paths, parse_path
from downspout.sink.schema import Columns

CORRUPT = (b"not JSON", b'"dep_delay":9999999999', b'"dep_delay":"late"')
SHARES = (10_000, 100, 10)
Outcome = tuple[int, int] | None  # rows and rejects; None: not counted


def corrupted(count: int, one_in: int) -> list[bytes]:
    values = [value for _, value in flights(count)]
    for number, place in enumerate(range(one_in // 2, count, one_in)):
        bad = CORRUPT[number % 3]
        row = orjson.loads(values[place])
        values[place] = orjson.dumps(row | orjson.loads(b"{" + bad + b"}")) if bad.startswith(b'"') else bad
    return values


class Case:
    """Values and their columns."""

    def __init__(self, values: Sequence[bytes], fields: Sequence[str], types: dict[str, str], step: int) -> None:
        self.values = values
        self.chunks = [pa.array(values[at : at + step], pa.binary()) for at in range(0, len(values), step)]
        self.paths = split_fields(fields)[1]
        self.columns = Columns.parse([f"{name}:{kind}" for name, kind in types.items()])
        steps = {name: list(parse_path(path)) for name, path in zip(types, self.paths, strict=True)}
        self.schema = document(types, steps)

    def parser(self) -> JsonParser:
        return JsonParser(Paths(self.paths), self.columns)


def in_columns(case: Case) -> Outcome:
    parser, rows, rejected = case.parser(), 0, 0
    for chunk in case.chunks:
        found = parser.parse(chunk)
        rows += len(found.rows)
        rejected += len(found.rejected)
    return rows, rejected


def by_record(case: Case) -> Outcome:
    parser, rows, rejected = case.parser(), 0, 0
    for value in case.values:
        try:
            parser.parse_one(value)
            rows += 1
        except ValueError:
            rejected += 1
    return rows, rejected


def arrow_alone(case: Case) -> Outcome:
    parsing = pj.ParseOptions(explicit_schema=case.schema, unexpected_field_behavior="ignore")
    for chunk in case.chunks:
        text = b"\n".join(chunk.to_pylist())
        reading = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        pj.read_json(pa.py_buffer(text), read_options=reading, parse_options=parsing)
    return None


def orjson_alone(case: Case) -> Outcome:
    for value in case.values:
        try:
            orjson.loads(value)
        except ValueError:
            continue
    return None


WAYS: dict[str, Callable[[Case], Outcome]] = {
    "in columns": in_columns, "by record": by_record, "Arrow's reader alone": arrow_alone, "orjson alone": orjson_alone,
}  # fmt: skip


def measure(case: Case, bad: int, runs: int) -> dict[str, list[float]]:
    """Return CPU-seconds per million by parser, for each run."""
    ways = {name: way for name, way in WAYS.items() if not bad or way is not arrow_alone}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            before = time.process_time()
            found = way(case)
            seconds[name].append((time.process_time() - before) / len(case.values) * 1e6)
            if found is not None and found != (len(case.values) - bad, bad):
                raise BenchError(f"{name}: {found} rows and rejects instead of {len(case.values) - bad, bad}")
    return seconds


def case_of(shape: Shape, records: int, step: int) -> Case:
    return Case([value for value, _ in shape.made(max(1, int(records * shape.share)))], shape.fields, shape.types, step)


def main() -> None:
    options = Options(__doc__, runs=5)
    options.size("--records", 400_000, 20_000, type=int)
    options.add_argument("--chunk", type=int, default=4_000, help="records in a chunk")
    options.add_argument("--shapes", default="all", help="keys of shapes, as in missing-5,nested")
    given = options.read()
    before = load()
    seconds: dict[str, dict[str, list[float]]] = {}
    for shape in shapes_of(given.shapes):
        seconds[shape.name] = measure(case_of(shape, given.records, given.chunk), 0, given.runs)
        say(shape.name)
    for one_in in SHARES:
        bad = len(range(one_in // 2, given.records, one_in))
        case = Case(corrupted(given.records, one_in), FIELDS, SCHEMA, given.chunk)
        seconds[f"one shape, 1 in {one_in:,} corrupt"] = measure(case, bad, given.runs)
        say(f"1 in {one_in:,}")
    lines = [
        f"{given.records:,} records as JSON in chunks of {given.chunk:,}, {given.runs} interleaved runs; CPU-seconds "
        f"per million, median (min – max); pyarrow {pa.__version__}. {machine(before)}",
        "",
        "| shape | " + " | ".join(WAYS) + " |",
        "| --- |" + " --- |" * len(WAYS),
    ]
    for name, found in seconds.items():
        cells = [found.get(way, []) for way in WAYS]
        shown = [
            f"{statistics.median(cell):.2f} ({min(cell):.2f} – {max(cell):.2f})" if cell else "–" for cell in cells
        ]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    save(given.results, "parse", "\n".join(lines), seconds)


if __name__ == "__main__":
    begin(main)
