"""A custom bolt for chunks: it also accepts records, and rejects rows."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from streamparse import Stream, Topology

from downspout.errors import RecordError
from downspout.ledger import Origin
from downspout.parse import REJECT_FIELDS, ChunkBolt
from downspout.parse.chunk_bolt import Rejects
from downspout.sink.schema import Rejected
from downspout.testing import run_bolt, run_topology
from tests.parse.support import chunk, rows_of, run_chunks
from tests.parse.test_parse_bolt import Records, Source


class Short(ChunkBolt):
    """Lets values of fewer than four letters pass, and rejects question marks."""

    outputs: ClassVar[list[Stream]] = [
        Stream(fields=["origin", "value"]),
        Stream(fields=list(REJECT_FIELDS), name="rejects"),
    ]

    def process_chunk(self, tup: Any) -> None:
        values = tup.values
        odd = pc.equal(values.column("value"), "?").to_pylist()
        rows = [row for row, is_odd in enumerate(odd) if is_odd]
        self.reject(values, rows, ["a question"] * len(rows))
        word = values.column("value")
        short = pc.and_(pc.less(pc.utf8_length(word), 4), pc.not_equal(word, "?"))
        self.emit(values.filter(short).select(["origin", "value"]))


WORDS = ["a", "bbbb", "?", "cc", "long", "ddd"]


class Taken(Topology):
    """Records, the bolt, and a reader of its rejects."""

    source = Source.spec()
    bolt = Short.spec(inputs=[source])
    reader = Records.spec(inputs=[bolt["rejects"]])


def test_records_and_chunks_give_the_same() -> None:
    """What the bolt makes of a chunk it makes of its records, rejects included."""
    in_chunks = run_chunks(Short.spec(), [chunk(WORDS, kind=pa.string())], rejects=True)
    places = [Origin("orders", "id", 2, number) for number in range(len(WORDS))]
    rows = [[place, f"k{place.offset}", word] for place, word in zip(places, WORDS, strict=True)]
    records = run_topology(Taken, spouts={"source": rows})
    passed = rows_of(in_chunks.emitted("bolt"))
    assert passed == [{"offset": found.origin.offset, "value": found.value} for found in records.emitted("bolt")]
    assert [row["value"] for row in passed] == ["a", "cc", "ddd"]
    (aside,) = rows_of(in_chunks.emitted("bolt", "rejects"))
    (one,) = records.emitted("bolt", "rejects")
    rest = {"timestamp": None, "headers": None}
    assert aside == {"offset": 2, "key": one.key, "value": one.value, "error": one.error, **rest}
    assert one.error.startswith("RecordError: orders[2]@2: bolt: a question")


def test_a_record_that_nobody_takes_aside_fails() -> None:
    """Without a reader of rejects a rejected record fails with its reason, and others pass."""
    place = Origin("orders", "id", 2, 7)
    tuples = [{"origin": place, "value": "?"}, {"origin": place, "value": "ok"}]
    result = run_bolt(Short.spec(), tuples)
    assert {found.value for found in result.failed("bolt")} == {"?"}
    assert [found.value for found in result.emitted("bolt")] == ["ok"]
    assert "orders[2]@7: bolt: a question" in result.errors[0]


class Rare(ChunkBolt):
    """Calls ``reject`` only for chunks that have something to reject."""

    outputs = Short.outputs

    def process_chunk(self, tup: Any) -> None:
        if rows := pc.indices_nonzero(pc.equal(tup.values.column("value"), "?")).to_pylist():
            self.reject(tup.values, rows, ["a question"] * len(rows))


def test_rejected_rows_that_nobody_reads_take_no_memory() -> None:
    """Without a reader the tuple fails, again and again with each retry; nothing is remembered of it."""
    rejects = Rejects(SimpleNamespace(component_name="bolt"), {}, {})
    rows = [Rejected(row, "a question") for row in range(1_000)]
    batch = chunk(["?"] * 1_000, kind=pa.string())

    def reject() -> None:
        rejects.seen += batch.num_rows
        with pytest.raises(RecordError):
            rejects.of_chunk(batch, rows)

    reject()
    tracemalloc.start()
    try:
        for _ in range(50):
            reject()
        assert tracemalloc.get_traced_memory()[0] < 200_000  # 50,000 numbers would be more than a million bytes
    finally:
        tracemalloc.stop()


def test_good_chunks_count_where_too_many_are_rejected() -> None:
    """Rows are put aside as long as they are few among all, and not only among chunks that have some."""
    good, bad = [chunk(["a"] * 20, kind=pa.string()) for _ in range(30)], chunk(["?"] * 4, kind=pa.string())
    found = run_chunks(Rare.spec(), [one for many in good for one in (many, bad)], rejects=True)
    assert sum(batch.num_rows for batch in found.emitted("bolt", "rejects")) == 120
