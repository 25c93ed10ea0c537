"""What all peers share: the columns of a flight, and how a file of them is written so that it lasts.

Each peer runs in its own environment, beside this file and without the rest of the project. What a peer lacks
there (PyArrow in Spark's) is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

FLIGHT = {
    "year": "int32", "month": "int32", "day": "int32", "dep_time": "int32", "dep_delay": "int32",
    "arr_delay": "int32", "carrier": "string", "flight": "int32", "tailnum": "string", "from_airport": "string",
    "to_airport": "string", "distance": "int32",
}  # fmt: skip
"""The fields of a record, and the types of their columns."""

PLACE = {"_partition": "int32", "_offset": "int64"}
"""Where the record of a row was: with that a result can be checked."""

ROWS_PER_FILE = 100_000


def schema(columns: dict[str, str]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


def table_of(rows: Sequence[dict[str, Any]], partitions: Sequence[int], offsets: Sequence[int]) -> pa.Table:
    """Return parsed records as a table of typed columns."""
    import pyarrow as pa

    wanted = schema(FLIGHT | PLACE)
    columns = [[row.get(name) for row in rows] for name in FLIGHT]
    pairs = zip([*columns, partitions, offsets], wanted, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in pairs], schema=wanted)


def table_of_json(values: Sequence[bytes], partitions: Sequence[int], offsets: Sequence[int]) -> pa.Table:
    """Parse JSON records with Arrow's reader: fast, as long as each value is one object on one line."""
    import pyarrow as pa
    from pyarrow import json

    parsing = json.ParseOptions(explicit_schema=schema(FLIGHT), unexpected_field_behavior="ignore")
    reading = json.ReadOptions(use_threads=False)  # threads cost more CPU time here than they save
    table = json.read_json(pa.py_buffer(b"\n".join(values)), read_options=reading, parse_options=parsing)
    if table.num_rows != len(values):
        raise ValueError(f"{len(values)} records, {table.num_rows} rows")
    for name, column in zip(PLACE, (partitions, offsets), strict=True):
        table = table.append_column(pa.field(name, PLACE[name]), pa.array(column, PLACE[name]))
    return table


def write_durably(table: pa.Table, directory: str, name: str) -> None:
    """Write one file so that a power cut after the return takes nothing of it, and a reader sees it whole or not."""
    import pyarrow.parquet as pq

    Path(directory).mkdir(parents=True, exist_ok=True)
    hidden, shown = Path(directory, f".{name}"), Path(directory, f"{name}.parquet")
    pq.write_table(table, hidden, compression="zstd")
    _sync(hidden)
    hidden.rename(shown)
    _sync(Path(directory))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
