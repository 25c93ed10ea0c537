"""Checks a result: each record in exactly one row, columns typed, and each value in the row of its record.

Each column has a fingerprint: the sum over all rows of (a hash of the value) times (a hash of the record's partition
and offset), modulo 2^64. It ignores the order of rows and files, but detects a value in a wrong row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.flights import PARTITIONS, flights_table, spoiled
from bench.harness import BenchError
from bench.peers.flights_parquet import FLIGHT, PLACE, schema
from bench.shapes import Shape

_NULL = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1_000_000

Fingerprint = dict[str, int]


def check(out: Path, records: int, share: float = 0.0, shape: Shape | None = None) -> int:
    """Check the rows of ``records`` flights, some of them spoiled or in another shape; return the number of files.

    Raises:
        BenchError: rows are missing, duplicate or wrong, or a column has another type.
    """
    columns = shape.types if shape is not None else FLIGHT
    wanted, seen = _expected(records, share, shape), np.zeros(records, np.uint8)
    found, rows, files = dict.fromkeys(columns, 0), 0, 0
    for path, table in _tables(out, columns):
        numbers = table["_offset"].to_numpy() * PARTITIONS + table["_partition"].to_numpy()
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < records):
            raise BenchError(f"{path.name} has rows of records that there are not")
        np.add.at(seen, numbers, 1)
        _add(found, fingerprint(table.select(list(columns)), numbers))
        rows, files = rows + len(numbers), files + 1
    good = ~spoiled(np.arange(records), share)
    if (wrong := np.flatnonzero(seen != good)).size:
        first = int(wrong[0])
        raise BenchError(
            f"{rows:,} rows for {int(good.sum()):,} records; of {wrong.size:,} records there are not as many rows as "
            f"there should be, the first is {first % PARTITIONS}@{first // PARTITIONS} with {int(seen[first])}"
        )
    if different := [name for name in columns if found[name] != wanted[name]]:
        raise BenchError(f"values are not those of the records in the column(s) {', '.join(different)}")
    return files


def fingerprint(table: pa.Table, numbers: np.ndarray) -> Fingerprint:
    """Return the fingerprint of each column; ``numbers`` are the record numbers of the rows."""
    weight = _mixed(numbers.astype(np.uint64))
    return {name: int((_hashes(table[name]) * weight).sum()) for name in table.column_names}


def _tables(out: Path, columns: dict[str, str]) -> Iterator[tuple[Path, pa.Table]]:
    """Yield each file visible to a reader such as Spark, with its typed columns."""
    wanted = schema(columns | PLACE)
    for path in sorted(out.rglob("*.parquet")):
        if any(part.startswith((".", "_")) for part in path.relative_to(out).parts):
            continue
        with pq.ParquetFile(path) as file:
            table = file.read(columns=wanted.names)
            codec = file.metadata.row_group(0).column(0).compression if file.metadata.num_row_groups else "ZSTD"
        if untyped := [f for f in wanted if f.name not in table.column_names or table[f.name].type != f.type]:
            raise BenchError(f"{path.name}: {untyped[0].name} is not there as {untyped[0].type}")
        if codec != "ZSTD":
            raise BenchError(f"{path.name} is compressed with {codec} and not with zstd")
        yield path, table


def _expected(records: int, share: float, shape: Shape | None) -> Fingerprint:
    total: Fingerprint = {}
    for start in range(0, records, _BLOCK):
        numbers = np.arange(start, min(start + _BLOCK, records))
        numbers = numbers[~spoiled(numbers, share)]
        table = flights_table(numbers) if shape is None else shape.table(numbers, records)
        _add(total, fingerprint(table, numbers))
    return total


def _add(total: Fingerprint, more: Fingerprint) -> None:
    for name, value in more.items():
        total[name] = (total.get(name, 0) + value) % 2**64


def _hashes(column: Any) -> np.ndarray:
    """Hash each value."""
    if pa.types.is_floating(column.type):
        column = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    if pa.types.is_string(column.type):
        encoded = pc.dictionary_encode(column).combine_chunks()
        words = np.array([zlib.crc32(word.encode()) for word in encoded.dictionary.to_pylist()] or [0], np.uint64)
        hashes = words[encoded.indices.fill_null(0).to_numpy()]
    else:
        hashes = column.fill_null(0).to_numpy().astype(np.int64).astype(np.uint64)
    return np.where(column.is_null().to_numpy(), _NULL, _mixed(hashes))


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Scatter numbers over 64 bits (the finalizer of splitmix64), so that equal sums by chance are unlikely."""
    mixed = numbers + _NULL
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
