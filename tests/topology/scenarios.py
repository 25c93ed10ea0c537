"""The topologies that `make soak` simulates: a row per record, several rows per record, sums, and chunks.

In a third of the worlds of each tuples are chunks. The bolts of the first three take records, and their sinks both;
those of the last are written for chunks, with a bolt for records among them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from streamparse import Bolt, Grouping, Stream, Topology

from bolts.aggregate import AggregateBolt
from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.ledger import Origin
from downspout.parse import ChunkBolt
from downspout.testing import Message, ProducedRecord, Scenario
from spouts.kafka import KafkaSpout

ORDERS = "orders"


class Orders(Topology):
    """A row per record, also of tombstones: JSON parsed, in two sink tasks."""

    spout = KafkaSpout.spec(topics=[ORDERS], fields=["origin", "value"])
    parse = JsonParseBolt.spec(inputs=[spout], fields=["number", "name"])
    sink = ParquetBolt.spec(inputs=[parse], par=2, directory="orders", schema={"number": "int64", "name": "string"})


def order(rng: random.Random, number: int) -> Message:
    """Return an order; some are damaged, and some are tombstones."""
    key = b"k%d" % rng.randrange(5)
    kind = rng.random()
    if kind < 0.03:
        return Message(b"{not json", key)
    if kind < 0.06:
        return Message(None, key)
    return Message(json.dumps({"number": number, "name": f"n{number}"}).encode(), key)


def order_rows(record: ProducedRecord) -> Sequence[dict[str, Any]] | None:
    if record.value is None:
        return [{"number": None, "name": None}]
    try:
        return [json.loads(record.value)]
    except ValueError:
        return None


orders = Scenario(Orders, order, order_rows)


class Spread(Bolt):
    """Makes a row of each word, with an identity of its own; an empty text makes none."""

    outputs = ("origin", "word", "letters")

    def process(self, tup: Any) -> None:
        line = Origin.of(tup.values.origin)
        for index, word in enumerate((tup.values.value or "").split()):
            if word == "damaged":
                raise ValueError("this word is damaged")
            self.emit([line.child("spread", index), word, len(word)])


class Words(Topology):
    """Several rows per record, from two tasks, into folders."""

    spout = KafkaSpout.spec(topics=["lines", "letters"], fields=["origin", "value"], par=2)
    spread = Spread.spec(inputs=[spout], par=2)
    sink = ParquetBolt.spec(
        inputs={spread: Grouping.fields("word")},
        par=2,
        directory="words",
        schema={"word": "string!", "letters": "int16"},
        partition_by=["letters"],
    )


def line(rng: random.Random, number: int) -> bytes:
    """Return a line of a few words, some of them twice."""
    if rng.random() < 0.03:
        return b"damaged"
    return " ".join(rng.choice(["a", "dog", "cat", "horse", f"n{number}"]) for _ in range(rng.randrange(5))).encode()


def line_rows(record: ProducedRecord) -> Sequence[dict[str, Any]] | None:
    found = (record.value or b"").decode().split()
    return None if "damaged" in found else [{"word": word, "letters": len(word)} for word in found]


words = Scenario(Words, line, line_rows)
"""``Spread`` raises on a damaged word, and so is restarted."""


class Sums(Topology):
    spout = KafkaSpout.spec(topics=[ORDERS], fields=["origin", "key"])
    sums = AggregateBolt.spec(
        inputs={spout: Grouping.fields("key")},
        par=2,
        directory="sums",
        schema={"key": "string!"},
        keys=["key"],
        aggregates=["count"],
    )


def keyed(rng: random.Random, number: int) -> Message:
    return Message(b"%d" % number, b"k%d" % rng.randrange(5))


def check_sums(sent: Sequence[ProducedRecord], directory: Path) -> Iterator[str]:
    """Yield the keys that were not counted exactly once per record."""
    wanted = Counter(record.key.decode() for record in sent if record.key is not None)
    found: Counter[str] = Counter()
    for file in sorted(directory.glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found[row["key"]] += row["count"]
    if wanted != found:
        yield f"counted {dict(found)} instead of {dict(wanted)}"


sums = Scenario(Sums, keyed, check=check_sums)


HEAVY = 50


class Weigh(ChunkBolt):
    """Sorts parcels by weight, a chunk at a time: some are dropped, some rejected, and some break it."""

    outputs = (
        Stream(fields=["origin", "number", "weight", "city"]),
        Stream(fields=["origin", "number", "weight", "city"], name="heavy"),
        Stream(fields=["origin", "key", "value", "error"], name="rejects"),
    )
    exit_on_exception = False

    def process_chunk(self, tup: Any) -> None:
        parcels = tup.values
        weights, cities = parcels.column("weight"), parcels.column("city")
        if (lost := pc.index(cities, "Atlantis").as_py()) >= 0:
            raise ValueError(f"parcel {parcels.column('number')[lost]} cannot be delivered")
        wrong = pc.less(weights, 0)
        rows = pc.indices_nonzero(wrong).to_pylist()
        self.reject(parcels, rows, ["weighs less than nothing"] * len(rows))
        kept = pc.and_(pc.invert(wrong), pc.not_equal(cities, "Nowhere"))
        heavy = pc.greater(weights, HEAVY)
        self.emit(parcels.filter(pc.and_(kept, pc.invert(heavy))))
        self.emit(parcels.filter(pc.and_(kept, heavy)), stream="heavy")


class Lift(Bolt):
    outputs = ("origin", "number", "weight", "city")

    def process(self, tup: Any) -> None:
        self.emit([*tup.values])


class Parcels(Topology):
    """A row per record by bolts for chunks, with rejects; a bolt for records takes some of them on another way."""

    spout = KafkaSpout.spec(topics=["parcels"], fields=["origin", "value"])
    parse = JsonParseBolt.spec(
        inputs=[spout],
        fields=["number", "weight", "city"],
        types={"number": "int64", "weight": "int16", "city": "string"},
        on_null="filter",
    )
    weigh = Weigh.spec(inputs={parse: Grouping.fields("city")}, par=2)
    lift = Lift.spec(inputs={weigh["heavy"]: Grouping.fields("city")}, par=2)
    letters = DeadLetterBolt.spec(inputs=[parse["rejects"], weigh["rejects"]])
    sink = ParquetBolt.spec(
        inputs={weigh["default"]: Grouping.fields("number"), lift: Grouping.SHUFFLE},
        par=2,
        directory="parcels",
        schema={"number": "int64!", "weight": "int16", "city": "string"},
    )


def parcel(rng: random.Random, number: int) -> Message:
    """Return a parcel; some are damaged, of the wrong type, or tombstones."""
    kind = rng.random()
    if kind < 0.03:
        return Message(None)
    if kind < 0.06:
        return Message(rng.choice([b"", b"{}{}", b"not json", b"\xff", b"[1]"]))
    weight = rng.choice([1, 7, HEAVY, HEAVY + 1, 900]) if kind < 0.9 else rng.choice([-1, "heavy", 1 << 20, 2.5])
    city = rng.choice(["Ulm", "Trier", "Bonn", "Nowhere"]) if kind < 0.97 else "Atlantis"
    return Message(json.dumps({"number": number, "weight": weight, "city": city}).encode(), b"k%d" % number)


def parcel_rows(record: ProducedRecord) -> Sequence[dict[str, Any]] | None:
    if record.value is None:
        return []
    try:
        found = json.loads(record.value)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found["weight"], int) or not 0 <= found["weight"] < 1 << 15:
        return None
    if found["city"] == "Atlantis":
        return None
    return [] if found["city"] == "Nowhere" else [found]


parcels = Scenario(Parcels, parcel, parcel_rows)
