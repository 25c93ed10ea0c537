"""Shared code of all peers: the columns of a record, and a durable write of a file.

Each peer runs in its own environment, with this file but without the rest of the project. Packages that a peer lacks
(PyArrow in Spark's) are imported where they are used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

FLIGHT = {
    "year": "int32", "month": "int32", "day": "int32", "dep_time": "int32", "dep_delay": "int32",
    "arr_delay": "int32", "carrier": "string", "flight": "int32", "tailnum": "string", "from_airport": "string",
    "to_airport": "string", "distance": "int32",
}  # fmt: skip
"""The fields of a flight, and the types of their columns."""

COLUMNS: dict[str, str] = json.loads(os.environ.get("BENCH_COLUMNS", "null")) or FLIGHT
"""The columns of this run."""

PATHS: dict[str, list[str | int]] = json.loads(os.environ.get("BENCH_PATHS", "{}"))
"""Paths of columns whose name is not their key."""

PLACE = {"_partition": "int32", "_offset": "int64"}
"""The coordinates of a row's record, for checks of the result."""

ROWS_PER_FILE = 100_000


def schema(columns: dict[str, str]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    import pyarrow as pa

    return pa.schema([(name, _type(kind)) for name, kind in columns.items()])


def _type(kind: str) -> pa.DataType:
    import pyarrow as pa

    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        return pa.decimal128(precision, scale)
    others: dict[str, pa.DataType] = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC")}
    return others.get(kind) or pa.type_for_alias(kind)


def table_of(rows: Sequence[dict[str, Any]], partitions: Sequence[int], offsets: Sequence[int]) -> pa.Table:
    """Return parsed records as a table of typed columns."""
    import pyarrow as pa

    arrays: list[Any] = []
    for name, kind in COLUMNS.items():
        steps = PATHS.get(name, [name])
        values = [row.get(name) for row in rows] if len(steps) == 1 else [_value(row, steps) for row in rows]
        if kind.startswith("decimal"):
            values = [None if value is None else Decimal(str(value)) for value in values]
        are_texts = kind in ("date", "timestamp")
        arrays.append(pa.array(values).cast(_type(kind)) if are_texts else pa.array(values, _type(kind)))
    return pa.table([*arrays, pa.array(partitions, PLACE["_partition"]), pa.array(offsets, PLACE["_offset"])],
                    schema=schema(COLUMNS | PLACE))  # fmt: skip


def _value(row: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        row = row[step] if isinstance(step, int) else row.get(step)
    return row


def document(columns: dict[str, str] | None = None, places: dict[str, list[str | int]] | None = None) -> pa.Schema:
    """Return the Arrow schema of documents with these columns, by default those of this run."""
    import pyarrow as pa

    columns, places = (COLUMNS, PATHS) if columns is None or places is None else (columns, places)

    def merged(paths: Sequence[tuple[list[str | int], pa.DataType]]) -> pa.DataType:
        if not paths[0][0]:
            return paths[0][1]
        inside: dict[str | int, list[tuple[list[str | int], pa.DataType]]] = {}
        for steps, kind in paths:
            inside.setdefault(steps[0], []).append((steps[1:], kind))
        if isinstance(paths[0][0][0], int):
            return pa.list_(merged(inside[0]))
        return pa.struct([(str(step), merged(more)) for step, more in inside.items()])

    kinds = {name: pa.string() if kind == "date" else _type(kind) for name, kind in columns.items()}  # what it takes
    return pa.schema(list(merged([(places.get(name, [name]), kind) for name, kind in kinds.items()])))


def table_of_json(values: Sequence[bytes], partitions: Sequence[int], offsets: Sequence[int]) -> pa.Table:
    """Parse JSON records with Arrow's reader, which needs one object per line."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    parsing = arrow_json.ParseOptions(explicit_schema=document(), unexpected_field_behavior="ignore",
                                newlines_in_values=bool(values) and b"\n" in values[0])  # fmt: skip
    reading = arrow_json.ReadOptions(use_threads=False)  # threads cost more CPU time here than they save
    table = arrow_json.read_json(pa.py_buffer(b"\n".join(values)), read_options=reading, parse_options=parsing)
    if table.num_rows != len(values):
        raise ValueError(f"{len(values)} records, {table.num_rows} rows")
    return _placed(table, partitions, offsets)


def table_of_polars(values: Sequence[bytes], partitions: Sequence[int], offsets: Sequence[int]) -> pa.Table:
    """Parse JSON records with Polars' reader of NDJSON, on one thread."""
    import polars

    empty: Any = polars.from_arrow(document().empty_table())
    frame: Any = polars.read_ndjson(BytesIO(b"\n".join(values)), schema=empty.schema)
    if len(frame) != len(values):
        raise ValueError(f"{len(values)} records, {len(frame)} rows")
    return _placed(frame.to_arrow(), partitions, offsets)


def _placed(table: pa.Table, partitions: Sequence[int], offsets: Sequence[int]) -> pa.Table:
    """Return the columns of this run from documents, with their coordinates."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays: list[Any] = []
    for name, kind in COLUMNS.items():
        first, *steps = PATHS.get(name, [name])
        found: Any = table.column(first)
        for step in steps:
            found = pc.list_element(found, step) if isinstance(step, int) else pc.struct_field(found, step)
        arrays.append(found.cast(_type(kind)))
    arrays += [pa.array(partitions, PLACE["_partition"]), pa.array(offsets, PLACE["_offset"])]
    return pa.table(arrays, schema=schema(COLUMNS | PLACE))


def write_durably(table: pa.Table, directory: str, name: str) -> None:
    """Write one file atomically and durably."""
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
