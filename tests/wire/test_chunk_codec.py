"""A chunk on Storm's pipe: it arrives unchanged, and no other value arrives as a chunk."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downspout.origins import ORIGIN, column_of, origins
from downspout.wire import Encoder, is_packed, pack, parse, slow, unpack
from downspout.wire.chunks import COMPRESSED_BYTES
from tests.sampling import examples
from tests.wire.storm_pipe import received, through_java

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
LARGE = 10 * 1024 * 1024

COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), st.binary(max_size=12)),
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "truth": (pa.bool_(), st.booleans()),
    "moment": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "day": (pa.date32(), st.dates()),
    "price": (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    "headers": (pa.map_(pa.string(), pa.binary()), st.lists(st.tuples(TEXTS, st.binary(max_size=3)), max_size=3)),
    "code": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["AA", "UA", ""])),
    "nothing": (pa.null(), st.none()),
}
ORIGINS = st.tuples(TEXTS, TEXTS, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), TEXTS)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Return chunks of any columns that a stream can have, also of none of their rows, also slices of others."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, max_size=5))
    rows = draw(st.integers(0, 9))
    made = {"origin": column_of(draw(st.lists(ORIGINS, min_size=rows, max_size=rows)))} if draw(st.booleans()) else {}
    for name in names if made else [*names, "last"]:
        kind, values = COLUMNS.get(name, COLUMNS["text"])
        made[name] = pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
    batch = pa.RecordBatch.from_pydict(made)
    return batch.slice(draw(st.integers(0, rows))) if draw(st.booleans()) else batch


def over(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = parse(through_java(Encoder().encode({"tuple": pack(batch)})))["tuple"]
    assert len(values) == batch.num_columns
    assert is_packed(values)
    return unpack(values)


@settings(deadline=None, max_examples=examples(100))
@given(batches())
def test_a_chunk_arrives_as_it_left(batch: pa.RecordBatch) -> None:
    """Columns, types, nulls, dictionaries and origins are the same behind Storm's Java."""
    got = over(batch)
    assert got.schema == batch.schema
    assert got.equals(batch)
    got.validate(full=True)


@pytest.mark.parametrize("rows", [1, 3_000])
def test_a_spouts_own_chunk_arrives_as_it_left(rows: int) -> None:
    """Origins share one dictionary that is longer than the chunk's rows; bytes that are no text stay what they are."""
    values = [b"\xff\x00" * 10 if row % 3 else None for row in range(rows)]
    columns = [origins("orders", "id", 3, np.arange(rows)), pa.array(values, pa.binary())]
    batch = pa.RecordBatch.from_arrays(columns, names=["origin", "value"])
    assert (batch.nbytes > COMPRESSED_BYTES) is (rows > 1)
    got = over(batch)
    assert got.schema.field("origin").type == ORIGIN
    assert got.equals(batch)


def test_a_record_of_ten_mebibytes_arrives() -> None:
    """The largest record that Kafka is mostly set to take is one chunk, and whole, though it does not compress."""
    value = np.random.default_rng(1).bytes(LARGE)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.binary())})
    sent = Encoder().encode({"tuple": pack(batch)})
    assert unpack(parse(sent)["tuple"]).column(0)[0].as_py() == value


def test_a_compressed_chunk_is_small() -> None:
    """Records that resemble each other take a fraction of their bytes on the pipe."""
    batch = pa.RecordBatch.from_pydict({"value": [f'{{"carrier": "AA", "flight": {n}}}' for n in range(5_000)]})
    assert len(pack(batch)[0].text) < batch.nbytes / 2


@given(st.text(max_size=5).map(lambda rest: f"\0chunk:{rest}") | st.just(Decimal(1)))
def test_no_value_looks_like_a_chunk(value: Any) -> None:
    """A text that begins as a chunk does is marked as a text, by both encoders, and arrives as that text."""
    message = {"tuple": [value, None]}
    for data in (Encoder().encode(message), slow(message)):
        assert not is_packed(parse(through_java(data))["tuple"])
        assert received(through_java(data)) == message
