"""The topologies that `make soak` simulates: a row per record, several rows per record, and sums."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from streamparse import Bolt, Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.ledger.origin import Origin
from downspout.testing.simulation import Message, Scenario, Sent
from spouts.kafka import KafkaSpout

ORDERS = "orders"


class Orders(Topology):
    """A row per record: JSON parsed, in two sink tasks."""

    spout = KafkaSpout.spec(topics=[ORDERS], fields=["origin", "value"])
    parse = JsonParseBolt.spec(inputs=[spout], fields=["number", "name"])
    sink = ParquetBolt.spec(inputs=[parse], par=2, directory="orders", schema={"number": "int64!", "name": "string"})


def order(rng: random.Random, number: int) -> Message:
    """Return an order; some are damaged, and some are tombstones."""
    key = b"k%d" % rng.randrange(5)
    kind = rng.random()
    if kind < 0.03:
        return Message(b"{not json", key)
    if kind < 0.06:
        return Message(None, key)
    return Message(json.dumps({"number": number, "name": f"n{number}"}).encode(), key)


def order_rows(record: Sent) -> Sequence[dict[str, Any]] | None:
    """Return what an order becomes."""
    if record.value is None:
        return []
    try:
        return [json.loads(record.value)]
    except ValueError:
        return None


orders = Scenario(Orders, order, order_rows)


class Spread(Bolt):
    """Makes a row of each word, with an identity of its own; an empty text makes none."""

    outputs = ("origin", "word", "letters")

    def process(self, tup: Any) -> None:
        """Emit the words."""
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


def line_rows(record: Sent) -> Sequence[dict[str, Any]] | None:
    """Return a row for each word."""
    found = (record.value or b"").decode().split()
    return None if "damaged" in found else [{"word": word, "letters": len(word)} for word in found]


words = Scenario(Words, line, line_rows)


class Sums(Topology):
    """Partial aggregates, which readers finish."""

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
    """Return a record with one of a few keys."""
    return Message(b"%d" % number, b"k%d" % rng.randrange(5))


def check_sums(sent: Sequence[Sent], directory: Path) -> Iterator[str]:
    """Yield the keys that were not counted exactly once per record."""
    wanted = Counter(record.key.decode() for record in sent if record.key is not None)
    found: Counter[str] = Counter()
    for file in sorted(directory.glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found[row["key"]] += row["count"]
    if wanted != found:
        yield f"counted {dict(found)} instead of {dict(wanted)}"


sums = Scenario(Sums, keyed, check=check_sums, without=("killer",))
