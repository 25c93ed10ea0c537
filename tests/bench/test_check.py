"""A wrong result has no figure: bench/check.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bench.check import check
from bench.flights import PARTITIONS, flights, flights_table, spoiled
from bench.harness import BenchError
from bench.peers import flights_parquet
from bench.peers.flights_parquet import PLACE, schema, table_of, table_of_json, write_durably
from bench.shapes import SHAPES, Shape

RECORDS = 1_000
ZERO = pa.scalar(0)


def right(share: float = 0.0) -> pa.Table:
    numbers = np.arange(RECORDS)
    numbers = numbers[~spoiled(numbers, share)]
    table = flights_table(numbers)
    for name, column in zip(PLACE, (numbers % PARTITIONS, numbers // PARTITIONS), strict=True):
        table = table.append_column(pa.field(name, schema(PLACE).field(name).type), pa.array(column).cast(PLACE[name]))
    return table


def write(table: pa.Table, out: Path, name: str = "part-0.parquet", compression: Any = "zstd") -> None:
    out.mkdir(exist_ok=True)
    pq.write_table(table, out / name, compression=compression)


def replaced(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def test_rows_in_any_order_and_file_are_right(tmp_path: Path) -> None:
    """Neither the order of rows nor how they are shared out among files matters; hidden files do not count."""
    table = right()
    turned = table.take(np.arange(RECORDS)[::-1])
    write(turned.slice(0, 300), tmp_path)
    write(turned.slice(300), tmp_path, "part-1.parquet")
    write(table, tmp_path, ".part-2.parquet")
    assert check(tmp_path, RECORDS) == 2


def swapped(table: pa.Table) -> pa.Table:
    """Exchange two values of a column, as a shifted offset does."""
    order = np.arange(RECORDS)
    order[[10, 11]] = [11, 10]
    return replaced(table, "tailnum", table["tailnum"].take(order))


def renumbered(table: pa.Table) -> pa.Table:
    third = pc.equal(table["_offset"], 3)
    return replaced(table, "distance", pc.if_else(third, pa.scalar(1, pa.int32()), table["distance"]))


WRONG: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "a row is missing": (lambda table: table.slice(1), r"the first is 0@0 with 0"),
    "a row is there twice": (lambda table: pa.concat_tables([table, table.slice(4, 1)]), r"the first is 0@1 with 2"),
    "values are exchanged": (swapped, "tailnum"),
    "a number is another": (renumbered, "distance"),
    "a null became 0": (
        lambda table: replaced(table, "dep_time", table["dep_time"].fill_null(pa.scalar(0))),
        "dep_time",
    ),
    "a column is untyped": (lambda table: replaced(table, "year", table["year"].cast("int64")), "not there as int32"),
    "a column is missing": (lambda table: table.drop_columns("month"), "month is not there"),
    "a record is foreign": (
        lambda table: replaced(table, "_offset", pc.add(table["_offset"], RECORDS)),
        "records that there are not",
    ),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_result_is_refused(case: str, tmp_path: Path) -> None:
    """Each way to be wrong is found, and the message says what it is."""
    spoil, message = WRONG[case]
    table = right()
    if case == "a null became 0":
        assert table["dep_time"].null_count
    write(spoil(table), tmp_path)
    with pytest.raises(BenchError, match=message):
        check(tmp_path, RECORDS)


def test_another_compression_is_refused(tmp_path: Path) -> None:
    """Nobody saves the time that zstd takes."""
    write(right(), tmp_path, compression="snappy")
    with pytest.raises(BenchError, match="SNAPPY"):
        check(tmp_path, RECORDS)


def test_spoiled_records_have_no_rows(tmp_path: Path) -> None:
    """With a share of bad records the others must be there, and they alone."""
    write(right(0.1), tmp_path)
    assert check(tmp_path, RECORDS, 0.1) == 1
    with pytest.raises(BenchError, match="rows for 1,000 records"):
        check(tmp_path, RECORDS)


def test_a_share_is_spoiled_in_every_partition() -> None:
    """Bad records are as many as were asked for, and not all in one partition."""
    numbers = np.arange(100_000)
    bad = numbers[spoiled(numbers, 0.01)]
    assert abs(len(bad) - 1_000) <= 10
    assert min(np.bincount(bad % PARTITIONS, minlength=PARTITIONS)) > 200
    assert not spoiled(numbers, 0.0).any()


def test_what_peers_share_is_right(tmp_path: Path) -> None:
    """Both ways in which peers turn records into a table yield the right result."""
    import orjson

    values = [value for _, value in flights(RECORDS)]
    partitions = [number % PARTITIONS for number in range(RECORDS)]
    offsets = [number // PARTITIONS for number in range(RECORDS)]
    write_durably(table_of([orjson.loads(value) for value in values], partitions, offsets), str(tmp_path / "rows"), "a")
    write_durably(table_of_json(values, partitions, offsets), str(tmp_path / "json"), "a")
    assert check(tmp_path / "rows", RECORDS) == check(tmp_path / "json", RECORDS) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.key)
def test_what_peers_share_is_right_for_each_shape(
    shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each shape of JSON both ways yield the rows that the records were made of; another value is found."""
    import orjson

    environment = shape.environment
    monkeypatch.setattr(flights_parquet, "COLUMNS", orjson.loads(environment["BENCH_COLUMNS"]))
    monkeypatch.setattr(flights_parquet, "PATHS", orjson.loads(environment["BENCH_PATHS"]))
    values = [value for value, _ in shape.made(100)]
    partitions = [number % PARTITIONS for number in range(100)]
    offsets = [number // PARTITIONS for number in range(100)]
    table = table_of([orjson.loads(value) for value in values], partitions, offsets)
    write_durably(table, str(tmp_path / "rows"), "a")
    write_durably(table_of_json(values, partitions, offsets), str(tmp_path / "json"), "a")
    assert check(tmp_path / "rows", 100, shape=shape) == check(tmp_path / "json", 100, shape=shape) == 1
    write(replaced(table, "flight", pc.add(table["flight"], pa.scalar(1, pa.int32()))), tmp_path / "wrong")
    with pytest.raises(BenchError, match="flight"):
        check(tmp_path / "wrong", 100, shape=shape)


def test_arrows_reader_loses_no_record_unnoticed() -> None:
    """A value of two objects, which Arrow's reader makes two rows of, ends the peers' run."""
    values = [value for _, value in flights(2)]
    with pytest.raises(ValueError, match="2 records, 3 rows"):
        table_of_json([values[0], values[1] + values[0]], [0, 1], [0, 0])
