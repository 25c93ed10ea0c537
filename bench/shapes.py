"""Shapes of JSON from real producers: flights in each shape, with its columns and the row of every record.

A shape is a function of a flight that returns a document and its expected row, so results are checked without a parser.
The benchmarks run over each shape (``bench.parse``, ``bench.race --shapes all``), and a test asserts that a chunk gives
the same rows as its records.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from bench.flights import flight_rows
from bench.peers.flights_parquet import FLIGHT, schema
from downspout.parse.json import parse_path

Row = dict[str, Any]
Made = tuple[bytes, Row]  # the value of a record, and its expected row
DISTINCT_MAX = 50_000  # Distinct records of a shape, which then repeat
_WORDS = (
    "gate,", "crew;", "the", "aircraft", "was", "held", "for", "weather", "and", "de-icing", "—", "see", "“remarks”,",
    "then", "departed", "from", "runway",
)  # fmt: skip
_PLACES = ("Zürich", "São Paulo", "東京", "Kraków", 'the "Hub"', "A\\B", "line\nfeed", "tab\there", "Newark", "O'Hare")
_EAST = timezone(timedelta(hours=-5))


@dataclass(frozen=True, eq=False)
class Shape:
    """One shape of JSON."""

    key: str  # its name on the command line
    name: str  # its name in tables
    make: Callable[[Row, Random], Made]
    types: dict[str, str] = field(default_factory=lambda: dict(FLIGHT))  # the types of the columns
    paths: dict[str, str] = field(default_factory=dict)  # of columns whose name is not their path
    share: float = 1.0  # of a run's usual number of records, less for large ones

    @property
    def fields(self) -> list[str]:
        """The columns in the format of ``parse.fields``."""
        return [f"{name}={self.paths[name]}" if name in self.paths else name for name in self.types]

    @property
    def environment(self) -> dict[str, str]:
        """Variables that describe the shape to contenders: see ``flights_topology`` and ``peers/flights_parquet``."""
        steps = {name: list(parse_path(path)) for name, path in self.paths.items()}
        return {"BENCH_SHAPE": self.key, "BENCH_COLUMNS": json.dumps(self.types), "BENCH_PATHS": json.dumps(steps)}

    def table(self, numbers: np.ndarray, count: int) -> pa.Table:
        """Return the expected rows of some of ``count`` records."""
        records = _made(self, min(count, DISTINCT_MAX))
        rows = pa.Table.from_pylist([{name: row[name] for name in self.types} for _, row in records],
                                    schema(self.types))  # fmt: skip
        return rows.take(pa.array(numbers % len(records)))

    def made(self, count: int) -> list[Made]:
        """Return ``count`` records with their rows; only ``DISTINCT_MAX`` are distinct."""
        records = _made(self, min(count, DISTINCT_MAX))
        return [records[number % len(records)] for number in range(count)]


@lru_cache(maxsize=2)
def _made(shape: Shape, count: int) -> list[Made]:
    random = Random(count)
    return [shape.make(dict(row), random) for row in flight_rows(count)]


def _plain(row: Row, random: Random) -> Made:
    return orjson.dumps(row), row


def _missing(share: float) -> Callable[[Row, Random], Made]:
    def make(row: Row, random: Random) -> Made:
        kept = {name: value for name, value in row.items() if value is not None and random.random() >= share}
        return orjson.dumps(kept), {name: kept.get(name) for name in row}

    return make


def _shuffled(row: Row, random: Random) -> Made:
    there = [(name, value) for name, value in row.items() if value is not None]
    random.shuffle(there)
    return orjson.dumps(dict(there)), row


def _nested(row: Row, random: Random) -> Made:
    document = {
        "date": {"year": row["year"], "month": row["month"], "day": row["day"]},
        "times": {"departure": row["dep_time"], "delay": {"departure": row["dep_delay"], "arrival": row["arr_delay"]}},
        "plane": {"carrier": row["carrier"], "flight": row["flight"], "tailnum": row["tailnum"]},
        "route": {"airports": [row["from_airport"], row["to_airport"]], "distance": row["distance"]},
    }
    return orjson.dumps(document), row


_NESTED_PATHS = {
    "year": "date.year", "month": "date.month", "day": "date.day", "dep_time": "times.departure",
    "dep_delay": "times.delay.departure", "arr_delay": "times.delay.arrival", "carrier": "plane.carrier",
    "flight": "plane.flight", "tailnum": "plane.tailnum", "from_airport": "route.airports[0]",
    "to_airport": "route.airports[1]", "distance": "route.distance",
}  # fmt: skip


def _events(row: Row, random: Random) -> Made:
    """Two types of events in one topic: a departure and an arrival have other keys, and some in common."""
    if random.random() < 0.5:
        names = ("year", "month", "day", "carrier", "flight", "tailnum", "from_airport", "dep_time", "dep_delay")
        kept = {"event": "departure"} | {name: row[name] for name in names}
    else:
        names = ("carrier", "flight", "to_airport", "distance", "arr_delay", "year", "month", "day")
        kept = {"event": "arrival", "gate": random.randrange(40)} | {name: row[name] for name in names}
    return orjson.dumps(kept), {name: kept.get(name) for name in row}


_WIDE = ("year", "carrier", "flight", "tailnum", "dep_delay", "arr_delay", "to_airport", "distance")


def _wide(row: Row, random: Random) -> Made:
    document: Row = {}
    for number in range(52):
        more = (random.randrange(10**6), random.random(), random.random() < 0.5, f"note {random.randrange(1000)}", None)
        document[f"field_{number:02}"] = more[number % 5]
        if number % 6 == 5 and number // 6 < len(_WIDE):
            document[_WIDE[number // 6]] = row[_WIDE[number // 6]]
    return orjson.dumps(document), {name: row[name] for name in _WIDE}


def _long(row: Row, random: Random) -> Made:
    text = " ".join(random.choices(_WORDS, k=300))
    document = {"carrier": row["carrier"], "flight": row["flight"], "remarks": text, "distance": row["distance"]}
    return orjson.dumps(document), document


def _numbers_as_text(row: Row, random: Random) -> Made:
    fare = Decimal(random.randrange(10_000, 10**7)).scaleb(-2)
    seats = random.randrange(10, 400)
    kept = {name: row[name] for name in ("carrier", "flight", "dep_delay", "distance")}
    document = kept | {"fare": str(fare), "seats": str(seats), "ticket": str(10**15 + random.randrange(10**15))}
    return orjson.dumps(document), document | {"fare": fare, "seats": Decimal(seats)}


def _decimals(row: Row, random: Random) -> Made:
    cents = random.randrange(10_000, 10**7)
    local = datetime(row["year"], row["month"], row["day"], random.randrange(24), random.randrange(60), tzinfo=_EAST)
    booked = local.astimezone(UTC) - timedelta(seconds=random.randrange(10**7), milliseconds=random.randrange(1000))
    kept = {name: row[name] for name in ("carrier", "flight", "dep_delay", "distance")}
    texts = {"departs": local.isoformat(), "booked": booked.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
    day = date(row["year"], row["month"], row["day"])
    document = kept | {"fare": cents / 100, "day": day.isoformat(), **texts, "rate": random.random()}
    more = {"fare": Decimal(cents).scaleb(-2), "day": day, "departs": local.astimezone(UTC), "booked": booked}
    return orjson.dumps(document), document | more


def _escapes(row: Row, random: Random) -> Made:
    found = row | {"from_airport": random.choice(_PLACES), "to_airport": random.choice(_PLACES)}
    return json.dumps(found, ensure_ascii=random.random() < 0.5, separators=(",", ":")).encode(), found


def _pretty(row: Row, random: Random) -> Made:
    return json.dumps(row, indent=2).encode(), row


_OTHERS = {"carrier": "string", "flight": "int32", "dep_delay": "int32", "distance": "int32"}

SHAPES = (
    Shape("one", "one shape", _plain),
    Shape("missing-5", "5 % of values null, null keys left out", _missing(0.05)),
    Shape("missing-30", "30 % of values null, null keys left out", _missing(0.3)),
    Shape("shuffled", "keys in random order, null keys left out", _shuffled),
    Shape("nested", "nested objects and lists, paths", _nested, paths=_NESTED_PATHS),
    Shape("events", "two types of events", _events),
    Shape("wide", "60 fields, 8 wanted", _wide, {name: FLIGHT[name] for name in _WIDE}, share=0.3),
    Shape("long", "a text of 2 KB", _long, {"carrier": "string", "flight": "int32", "remarks": "string",
                                             "distance": "int32"}, share=0.2),
    Shape("numbers", "numbers as text", _numbers_as_text,
          _OTHERS | {"fare": "decimal(9,2)", "seats": "decimal(5,0)", "ticket": "string"}),
    Shape("typed", "decimals, dates and time zones", _decimals,
          _OTHERS | {"fare": "decimal(9,2)", "day": "date", "departs": "timestamp", "booked": "timestamp",
                     "rate": "float64"}),
    Shape("escapes", "escapes, and texts beyond ASCII", _escapes),
    Shape("pretty", "pretty-printed", _pretty),
)  # fmt: skip


def shapes_of(keys: str) -> list[Shape]:
    """Return the shapes with these keys, separated by commas, or ``all``.

    Raises:
        ValueError: a key is unknown.
    """
    known = {shape.key: shape for shape in SHAPES}
    if keys == "all":
        return list(SHAPES)
    wanted = keys.split(",")
    if unknown := [key for key in wanted if key not in known]:
        raise ValueError(f"no shape is called {unknown[0]!r}: they are {', '.join(known)}")
    return [known[key] for key in wanted]
