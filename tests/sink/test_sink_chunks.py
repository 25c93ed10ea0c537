"""Sinks and chunks: a chunk leaves the rows that its records would, and is acked when all of them are durable."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pystorm.component import Tuple

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.ledger import Origin
from downspout.origins import column_of, origins
from downspout.sink import Columns, IdentityBuilder
from tests.sink.test_sink_bolts import make, rows, tup

ORIGINS = st.builds(
    Origin,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "id"]),
    st.integers(-1, 3),
    st.integers(-1, 40),
    st.sampled_from(["", "split.0", "split.1", "damaged@"]),
)


def chunk(first: int, words: list[Any], sizes: Any = None, days: Any = None, path: str = "") -> Tuple:
    """Return a chunk as the parse bolt would emit it."""
    offsets = range(first, first + len(words))
    columns = [
        origins("t", "id", 0, list(offsets), path),
        pa.array(words, pa.string()),
        sizes if sizes is not None else pa.array([1] * len(words), pa.int16()),
        days if days is not None else pa.array([date(2013, 1, 31)] * len(words), pa.date32()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=["origin", "word", "size", "day"])
    return Tuple(f"{first}-{first + len(words)}{path}", "parse", "default", 2, batch)


def test_a_chunk_leaves_the_rows_of_its_records(tmp_path: Path) -> None:
    """The files of a chunk are those of its records; it is acked once, by the flush that makes them durable."""
    chunks, records = make(ParquetBolt, tmp_path / "chunks"), make(ParquetBolt, tmp_path / "records")
    chunks.process_chunk(chunk(0, ["a", "b", "c"]))
    assert (chunks.acked, rows(tmp_path / "chunks")) == ([], [])
    for offset, word in enumerate("abc"):
        records.process(tup(offset, word))
    chunks.drain()
    records.drain()
    assert chunks.acked == ["0-3"]
    assert rows(tmp_path / "chunks") == rows(tmp_path / "records")


def test_what_is_there_is_left_out(tmp_path: Path) -> None:
    """Of a chunk that comes again, in other pieces and beside records, each row is written once, and all are acked."""
    bolt = make(ParquetBolt, tmp_path)
    bolt.process_chunk(chunk(0, ["a", "b", "c"]))
    bolt.drain()
    bolt.process_chunk(chunk(2, ["c", "d"]))
    bolt.process(tup(3, "d"))
    bolt.process_chunk(chunk(0, ["a"]))
    bolt.process_chunk(chunk(0, ["a"], path="split.1"))
    bolt.drain()
    assert sorted((row["_offset"], row["_path"], row["word"]) for row in rows(tmp_path)) == [
        (0, "", "a"), (0, "split.1", "a"), (1, "", "b"), (2, "", "c"), (3, "", "d"),
    ]  # fmt: skip
    assert sorted(bolt.acked) == ["0-1", "0-1split.1", "0-3", "2-4", "3"]


def test_a_row_that_does_not_fit_fails_its_chunk(tmp_path: Path) -> None:
    """A chunk with such a row fails at once, with the row's place and the reason of record mode; others are written."""
    bolt = make(ParquetBolt, tmp_path)
    bolt.process_chunk(chunk(0, ["a", "b"]))
    bolt.process_chunk(chunk(2, ["c", "d", None], pa.array([1, 99_999, 1])))
    bolt.process(tup(9, "e", 99_999))
    bolt.drain()
    assert bolt.acked == ["0-2"]
    assert bolt.failed.keys() == {"2-5", "9"}
    assert bolt.failed["2-5"].startswith("t[0]@3: sink: size = 99999 does not fit int16")
    assert bolt.failed["2-5"].replace("@3", "@9") == bolt.failed["9"]
    assert [row["_offset"] for row in rows(tmp_path)] == [0, 1]


def test_two_rows_with_one_identity_fail_the_chunk(tmp_path: Path) -> None:
    """Once, whatever the number of bad rows: Storm ends a worker that answers twice for one tuple."""
    bolt = make(ParquetBolt, tmp_path)
    answers: list[str] = []
    note = bolt.fail_because
    bolt.fail_because = lambda one, error: (answers.append(one), note(one, error))
    bolt.process_chunk(chunk(0, ["a", "b"]))
    bolt.process_chunk(chunk(1, ["another", "c"]))
    bolt.process_chunk(chunk(0, ["all", "different"])._replace(id="twice"))
    bolt.drain()
    assert bolt.acked == ["0-2"]
    assert sorted(answers) == ["1-3", "twice"]
    assert "two different rows have the same identity" in bolt.failed["1-3"]
    assert [row["word"] for row in rows(tmp_path)] == ["a", "b"]


def test_chunks_are_flushed_by_their_bytes(tmp_path: Path) -> None:
    """What chunks hold counts: the one that reaches flush_bytes is written with those before it, and it begins anew."""
    bolt = make(ParquetBolt, tmp_path, **{"parquet.flush_bytes": 100_000})
    for first in range(0, 8, 2):
        bolt.process_chunk(chunk(first, ["x" * 20_000] * 2))
    assert (bolt.acked, len(rows(tmp_path))) == (["0-2", "2-4", "4-6"], 6)


def test_chunks_of_two_inputs_are_told_apart(tmp_path: Path) -> None:
    """Chunks with the same origins that come through two inputs are different rows, and all of them are kept."""
    bolt = make(ParquetBolt, tmp_path, inputs=("parse", "route"))
    first = chunk(0, ["a", "b"])
    second = Tuple("again", "route", "default", 3, first.values)
    for one in (first, second):
        bolt.process_chunk(one)
    bolt.drain()
    assert (bolt.acked, bolt.failed) == (["0-2", "again"], {})
    assert sorted(row["word"] for row in rows(tmp_path)) == ["a", "a", "b", "b"]


def test_a_chunk_without_origins_is_taken(tmp_path: Path) -> None:
    """An input need not hand origins on: its rows are written without, at least once."""
    bolt = make(ParquetBolt, tmp_path, fields=["word", "size", "day"])
    batch = chunk(0, ["a", "b"]).values
    bolt.process_chunk(Tuple("0-2", "parse", "default", 2, batch.select(["word", "size", "day"])))
    bolt.drain()
    assert (bolt.acked, bolt.failed) == (["0-2"], {})
    files = [str(file) for file in tmp_path.rglob("*.parquet")]
    assert pa.concat_tables(map(pq.read_table, files)).column("word").to_pylist() == ["a", "b"]


def test_an_empty_chunk_is_acked(tmp_path: Path) -> None:
    bolt = make(ParquetBolt, tmp_path)
    bolt.process_chunk(chunk(0, []))
    assert bolt.acked == ["0-0"]


def test_aggregates_add_up_chunks(tmp_path: Path) -> None:
    """A chunk's rows are added up as records are, those that are in the directory left out."""
    bolt = make(AggregateBolt, tmp_path, **{"parquet.keys": ["word"], "parquet.aggregates": ["count", "sum:size"]})
    bolt.process_chunk(chunk(0, ["a", "b", "a"]))
    bolt.drain()
    bolt.process_chunk(chunk(2, ["a", "b"], pa.array([5, 7], pa.int64())))
    bolt.drain()
    found = {(row["word"], row["count"], row["sum_size"]) for row in _all(tmp_path)}
    assert found == {("a", 2, 2), ("b", 1, 1), ("b", 1, 7)}


def _all(directory: Path) -> list[dict[str, Any]]:
    files = [path for path in directory.rglob("*.parquet") if "_downspout" not in path.parts]
    return [row for path in files for row in pa.parquet.read_table(path, partitioning=None).to_pylist()]


VALUES: dict[str, tuple[str, Any]] = {
    "the same": ("int16", pa.array([1, None, 3], pa.int16())),
    "narrower": ("int8", pa.array([1, 200, None], pa.int64())),
    "wider": ("int64", pa.array([1, 2, None], pa.uint8())),
    "fractions": ("int32", pa.array([1.0, 1.5, None])),
    "whole into float": ("float64", pa.array([1, 2, None])),
    "double into float": ("float32", pa.array([1.5, 1e300, None])),
    "text into number": ("int32", pa.array(["1", "x", None])),
    "number into text": ("string", pa.array([1, 2, None])),
    "dictionary": ("string", pa.array(["a", None, "a"]).dictionary_encode()),
    "large text": ("string", pa.array(["a", None, "b"], pa.large_string())),
    "text of a day": ("date", pa.array(["2013-01-31", "x", None])),
    "moments": ("timestamp", pa.array([datetime(2013, 1, 31, 5, 17), None, datetime(2014, 1, 1)])),
    "moments for seconds": ("timestamp_s", pa.array([datetime(2013, 1, 31), None, None], pa.timestamp("us", "UTC"))),
    "seconds": ("timestamp_s", pa.array([1_359_590_400, None, -1])),
    "null": ("int16", pa.nulls(3)),
    "null where a value must be": ("int16!", pa.array([1, None, 3], pa.int16())),
    "bool into number": ("int16", pa.array([True, False, None])),
    "decimals": ("decimal(5,2)", pa.array([Decimal("1.50"), Decimal("123.45"), None])),
    "lists": ("list<int64>", pa.array([[1], [], None])),
    "invalid text": ("string", pa.array([b"a", b"\xff", None])),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_column_takes_what_single_values_would(name: str) -> None:
    kind, array = VALUES[name]
    columns = Columns.parse([f"column:{kind}"])
    table, rejected = columns.of_chunk([array])
    expected, invalid = columns.table([array.to_pylist()])
    assert table.equals(expected)
    assert rejected == invalid


@given(st.lists(ORIGINS, max_size=30), st.booleans())
def test_identities_of_a_column_are_those_of_its_rows(found: list[Origin], plain: bool) -> None:
    """Streams, offsets and bad rows of a column of origins are those that its origins tell one by one."""
    column: Any = column_of(found)
    if plain:
        kinds = [pa.string(), pa.string(), pa.int32(), pa.int64(), pa.string()]
        fields = [pa.field(field.name, kind) for field, kind in zip(column.type, kinds, strict=True)]
        column = pa.array(column.to_pylist(), pa.struct(fields))
    by_column, by_row = IdentityBuilder(), IdentityBuilder()
    numbers, offsets, bad = by_column.encode_column(column, "parse")
    expected, expected_offsets, expected_bad = by_row.encode(found, "parse")
    assert bad == expected_bad
    good = np.array([row not in bad for row in range(len(found))], dtype=bool)
    by_column.add(numbers[good], offsets[good])
    by_row.add(expected[good], expected_offsets[good])
    assert [column.to_pylist() for column in by_column.build().columns()] == [
        column.to_pylist() for column in by_row.build().columns()
    ]


def test_a_column_with_nulls_names_the_rows() -> None:
    """A row whose origin lacks a part is named, and the others are taken."""
    column: Any = pa.array([Origin("t", "", 0, 1)._asdict(), Origin("t", "", 0, 2)._asdict() | {"offset": None}, None])
    _, _, bad = IdentityBuilder().encode_column(column)
    assert sorted(bad) == [1, 2]
