"""Files as readers find them: the offset in differences, everything else as pyarrow writes it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from downspout.sink import ORIGIN_SCHEMA, encode

OFFSETS = {
    "in a row": list(range(10**12, 10**12 + 5_000)),
    "backwards, with gaps": list(range(50_000, 0, -7)),
    "the extremes": [0, 2**63 - 1, 1, 2**63 - 2] * 100,
    "one": [17],
    "none": [],
}


def table(offsets: list[int]) -> pa.Table:
    origin = {"_topic": "t", "_topic_id": "", "_partition": 1, "_path": ""}
    rows: list[dict[str, Any]] = [
        {"tags": ["a", str(at % 3)], "inner": {"_offset": at, "x": None}, "_offset": offset, **origin}
        for at, offset in enumerate(offsets)
    ]
    inner = pa.struct([pa.field("_offset", pa.int64()), pa.field("x", pa.string())])
    fields = [pa.field("tags", pa.list_(pa.string())), pa.field("inner", inner)]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields + list(ORIGIN_SCHEMA)))


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_every_reader_reads_what_was_written(tmp_path: Path, offsets: list[int]) -> None:
    """Offsets of any order and size come back from pyarrow, pandas, DuckDB and Polars as they were."""
    written = table(offsets)
    path = tmp_path / "part.parquet"
    path.write_bytes(encode([written], written.schema, "zstd"))
    assert pq.read_table(path).equals(written)
    assert pd.read_parquet(path)["_offset"].tolist() == offsets
    assert pl.read_parquet(path)["_offset"].to_list() == offsets
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT _offset FROM '{path}'").fetchall() == [(offset,) for offset in offsets]


def test_the_offset_alone_is_in_differences() -> None:
    """All other columns keep their dictionaries, a column of that name within another one too."""
    written = table(list(range(1_000)))
    group = pq.ParquetFile(io.BytesIO(encode([written], written.schema, "zstd"))).metadata.row_group(0)
    found = {group.column(at).path_in_schema: group.column(at).encodings for at in range(group.num_columns)}
    assert [path for path, encodings in found.items() if "DELTA_BINARY_PACKED" in encodings] == ["_offset"]
    assert all("RLE_DICTIONARY" in encodings for path, encodings in found.items() if path != "_offset")
    assert "tags.list.element" in found


@pytest.mark.parametrize(
    "columns", [{"n": [1, 2]}, {"_offset": ["a", "b"]}], ids=["no offset", "an offset of another type"]
)
def test_other_tables_are_written_as_pyarrow_does(columns: dict[str, list[Any]]) -> None:
    """What has no such column is what pq.write_table makes of it."""
    made, plain = pa.table(columns), io.BytesIO()
    pq.write_table(made, plain, compression="zstd", coerce_timestamps="us", write_page_checksum=True)
    assert encode([made], made.schema, "zstd") == plain.getvalue()
