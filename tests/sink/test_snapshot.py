"""Readers that go through the log: snapshots and tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bolts.parquet import ParquetBolt
from downspout.errors import ConfigError, SinkError
from downspout.sink import CommitLog, Disk, Layout, read_table, take_snapshot, wherever
from downspout.sink.schema import hive_folder, hive_values
from downspout.sink.snapshot import snapshot
from downspout.testing import Killed, VirtualClock
from tests.disks import SteppedDisk
from tests.sink.readers_support import compact, delete_replaced, seen, start_anew
from tests.sink.support import sink, tup, write_rows


def write(directory: Path, *offsets: int, disk: Disk | None = None) -> None:
    write_rows(directory, [("t", "", 0, offset, "") for offset in offsets], writer=f"w{offsets[0]}", disk=disk)


def folders(directory: Path, *rows: tuple[Any, ...], schema: tuple[str, ...] = ("n:int64", "word:string")) -> None:
    """Flush rows into Hive folders of the last column; the first is the offset."""
    names = [column.partition(":")[0] for column in schema]
    conf = {"parquet.schema": list(schema), "parquet.partition_by": names[-1:]}
    bolt = sink(ParquetBolt, directory, fields=["origin", *names], **conf)
    for row in rows:
        bolt.process(tup(("t", "", 0, row[0], ""), *row))
    bolt.drain()


# --- the same rows at every moment --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_rows_at_every_step_of_a_compaction(tmp_path: Path) -> None:
    """Before, during and after a compaction, and wherever one was stopped, readers see the same rows."""
    source = tmp_path / "source"
    for offset in range(4):
        write(source, 2 * offset, 2 * offset + 1)
    looks = 0

    def look(_: int) -> None:
        nonlocal looks
        looks += 1
        assert seen(directory) == list(range(8))

    directory = shutil.copytree(source, tmp_path / "whole")
    compact(directory, SteppedDisk(look))
    assert seen(directory) == list(range(8))
    assert len(list(directory.glob("*.parquet"))) == 1
    assert looks > 10
    for stop in range(1, looks + 1):
        directory = shutil.copytree(source, tmp_path / f"stopped-{stop}")

        def halt(step: int, stop: int = stop) -> None:
            if step == stop:
                raise Killed

        with pytest.raises(Killed):
            compact(directory, SteppedDisk(halt))
        assert seen(directory) == list(range(8))


def test_rows_come_with_the_commit(tmp_path: Path) -> None:
    """At every step of a flush readers see all its rows or none: all from the log entry on, in sight or not."""
    write(tmp_path, 0, 1)
    found: list[list[int]] = []

    def look(_: int) -> None:
        committed = len(list(Layout(tmp_path).log.glob("*.json"))) == 2
        assert seen(tmp_path) == ([0, 1, 2, 3] if committed else [0, 1])
        if committed and list(Layout(tmp_path).staging.glob("*.hidden")):
            found.append(seen(tmp_path))

    write(tmp_path, 2, 3, disk=SteppedDisk(look))
    assert found[0] == [0, 1, 2, 3]  # committed, and hidden from plain readers
    assert seen(tmp_path) == [0, 1, 2, 3]


def test_files_that_move_on_while_they_are_linked(tmp_path: Path) -> None:
    """A compaction between any two links, and the deletion of what it replaced, costs a reader time and no row."""
    for stop in range(1, 6):
        directory = tmp_path / str(stop)
        for offset in range(4):
            write(directory, offset)

        def interfere(step: int, directory: Path = directory, stop: int = stop) -> None:
            if step == stop:
                compact(directory)
                delete_replaced(directory)

        path = take_snapshot(directory, disk=SteppedDisk(interfere))
        assert sorted(pq.read_table(path)["n"].to_pylist()) == [0, 1, 2, 3]
        assert len(list(Layout(directory).snapshots.iterdir())) == 1


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("second", range(6))
def test_a_file_is_found_wherever_it_moves(tmp_path: Path, first: int, second: int) -> None:
    """A file that moves into sight and away, before any of the looks, is found: looks follow the way of the files."""
    layout, name = Layout(tmp_path), "part-w-0.parquet"
    for folder in layout.places:
        folder.mkdir(parents=True, exist_ok=True)
    way = layout.way(name)
    path = way[0]
    path.touch()
    looks = 0

    def look(place: Path) -> Path:
        nonlocal path, looks
        for move in sorted((first, second)):
            if looks == move:
                path = path.rename(way[way.index(path) + 1])
        looks += 1
        place.stat()
        return place

    assert wherever(layout, name, look) == path


@pytest.mark.slow
def test_a_race_that_never_ends_is_given_up(tmp_path: Path) -> None:
    """Where files are replaced and deleted faster than they can be linked, that is an error and no endless loop."""
    write(tmp_path, 0)

    count = 0

    def interfere(_: int) -> None:
        nonlocal count
        count += 1
        write(tmp_path, count)
        compact(tmp_path)
        delete_replaced(tmp_path)

    with pytest.raises(SinkError, match=r"replaced and deleted 10 times.*Try: keep replaced files"):
        take_snapshot(tmp_path, disk=SteppedDisk(interfere))
    assert seen(tmp_path) == list(range(count + 1))


@pytest.mark.slow
def test_readers_beside_writers_and_compactions(tmp_path: Path) -> None:
    """While one thread flushes and another compacts and deletes, each read has all rows flushed before it, once."""
    write(tmp_path, 0)
    flushed, done = 1, threading.Event()
    errors: list[BaseException] = []

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            done.set()

    def flush() -> None:
        nonlocal flushed
        for offset in range(1, 40):
            write(tmp_path, offset)
            flushed = offset + 1
        done.set()

    def merge() -> None:
        is_last = False
        while not is_last:  # once more after the last flush: on a busy machine it may be the first time
            is_last = done.is_set()
            compact(tmp_path, most=5)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (flush, merge)]
    for thread in threads:
        thread.start()
    while not done.is_set():
        for read in (_by_table, _by_snapshot):
            before = flushed
            found = read(tmp_path)
            assert found == list(range(len(found)))
            assert len(found) >= before
    for thread in threads:
        thread.join()
    assert not errors
    assert _by_table(tmp_path) == _by_snapshot(tmp_path) == list(range(40))
    assert any(entry.removed for entry in CommitLog(tmp_path, checkpoints=False).refresh())


def _by_table(directory: Path) -> list[int]:
    return sorted(read_table(directory)["n"].to_pylist())


def _by_snapshot(directory: Path) -> list[int]:
    with snapshot(directory) as path:
        return sorted(pd.read_parquet(path)["n"])


# --- snapshots ----------------------------------------------------------------------------------------------


def by_pandas(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a snapshot as pandas sees them."""
    frame = pd.read_parquet(path)
    return sorted(zip(frame["n"], frame["word"].astype(str), strict=True))


def by_duckdb(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a snapshot as DuckDB sees them."""
    query = f"SELECT n, word FROM read_parquet('{path}/**/*.parquet', hive_partitioning = true) ORDER BY n"
    return duckdb.sql(query).fetchall()


def by_polars(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a snapshot as Polars sees them."""
    return pl.scan_parquet(path, hive_partitioning=True).select("n", "word").sort("n").collect().rows()


@pytest.mark.parametrize("read", [by_pandas, by_duckdb, by_polars])
def test_a_snapshot_stays_as_it_is(tmp_path: Path, read: Any) -> None:
    """Flushes, a compaction, the deletion of what it replaced and a rebuild change nothing in a snapshot."""
    folders(tmp_path, (0, "a"), (1, "b/c"), (2, "d e"))
    folders(tmp_path, (3, "a"))
    wanted = [(0, "a"), (1, "b/c"), (2, "d e"), (3, "a")]
    with snapshot(tmp_path) as path:
        assert read(path) == wanted
        folders(tmp_path, (4, "a"), (5, "f"))
        compact(tmp_path)
        delete_replaced(tmp_path)
        assert read(path) == wanted
        start_anew(tmp_path)
        delete_replaced(tmp_path)
        assert read(path) == wanted
    assert not path.exists()
    with snapshot(tmp_path) as path:
        assert read(path) == []


def test_a_snapshot_is_removed_after_an_error(tmp_path: Path) -> None:
    """A block that ends in an error leaves no snapshot behind."""
    write(tmp_path, 0)
    with pytest.raises(ZeroDivisionError), snapshot(tmp_path):
        assert 1 / 0
    assert list(Layout(tmp_path).snapshots.iterdir()) == []


def test_what_a_killed_reader_leaves_harms_nobody(tmp_path: Path) -> None:
    """A snapshot whose process died keeps its rows, under a name that tells the time, and no reader sees it."""
    write(tmp_path, 0)
    program = "import os, sys, downspout.sink.snapshot as s; s.take_snapshot(sys.argv[1]); os._exit(9)"
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == 9
    (left,) = Layout(tmp_path).snapshots.iterdir()
    write(tmp_path, 1)
    compact(tmp_path)
    delete_replaced(tmp_path)
    assert pq.read_table(left)["n"].to_pylist() == [0]
    assert seen(tmp_path) == [0, 1]
    clock = VirtualClock()
    assert take_snapshot(tmp_path, clock=clock).name.startswith("20231114T221320Z-")


def test_where_no_links_can_be_made(tmp_path: Path) -> None:
    """Without the right to write a snapshot is refused with a cure, and leaves nothing; a table can be read."""
    write(tmp_path, 0, 1)

    class ReadOnly(Disk):
        def link(self, source: Path, target: Path) -> None:
            raise PermissionError(1, "Operation not permitted", str(target))

    with pytest.raises(SinkError, match=r"snapshots: Operation not permitted.*Try: read_table, which needs no links"):
        take_snapshot(tmp_path, disk=ReadOnly())
    assert list(Layout(tmp_path).snapshots.iterdir()) == []
    Layout(tmp_path).snapshots.rmdir()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert sorted(read_table(tmp_path)["n"].to_pylist()) == [0, 1]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# --- tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["a/b", "007", None, "__HIVE_DEFAULT_PARTITION__", "ü=%2F"]),
        ("bool", [True, False, None]),
        ("int8", [-128, 7, None]),
        ("int64", [2**62, None]),
        ("date", [date(2013, 1, 31), None]),
    ],
)
def test_folders_come_back_as_what_they_were(tmp_path: Path, kind: str, values: list[Any]) -> None:
    """The values of Hive columns of every type, null among them, are those that were written."""
    folders(tmp_path, *enumerate(values), schema=("n:int64", f"x:{kind}"))
    table = read_table(tmp_path)
    assert dict(zip(table["n"].to_pylist(), table["x"].to_pylist(), strict=True)) == dict(enumerate(values))
    assert table.schema.names == ["n", "x"]


@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.none() | st.text(min_size=1))
def test_folders_are_read_as_they_are_written(column: str, value: str | None) -> None:
    """Whatever a column and its value are called, the folder's name tells both."""
    assert hive_values(f"{hive_folder(column, value)}/part-a-1.parquet") == {column: value}


def test_columns_and_filters(tmp_path: Path) -> None:
    """Only the columns and rows asked for come, and a file that its folder rules out is not even opened."""
    folders(tmp_path, (0, "a"), (1, "b"), (2, "b"), (3, None))
    (ruled_out,) = tmp_path.glob("word=a/*.parquet")
    ruled_out.write_bytes(b"no Parquet at all")
    table = read_table(tmp_path, ["word", "n"], [("word", "==", "b"), ("n", ">", 1)])
    assert table.to_pylist() == [{"word": "b", "n": 2}]
    assert read_table(tmp_path, ["n"], ds.field("word").is_null()).to_pylist() == [{"n": 3}]
    assert read_table(tmp_path, filters=ds.field("word") == "b", origins=True).column_names[1:3] == [
        "_topic",
        "_topic_id",
    ]
    with pytest.raises(SinkError, match=r"word=a/part.*cannot be read"):
        read_table(tmp_path)
    with pytest.raises(ConfigError, match=r"has no column wort.*Try: one of n, "):
        read_table(tmp_path, ["wort"])


def test_a_table_goes_everywhere(tmp_path: Path) -> None:
    """pandas, DuckDB and Polars take the table, nulls in folders included."""
    folders(tmp_path, (0, "a"), (1, None))
    made = read_table(tmp_path)
    assert made.to_pandas()["word"].isna().sum() == 1
    assert duckdb.sql("SELECT n FROM made WHERE word IS NULL").fetchall() == [(1,)]
    assert pl.from_arrow(made).sort("n").rows() == [(0, "a"), (1, None)]  # type: ignore[arg-type]


def test_no_rows_have_columns_too(tmp_path: Path) -> None:
    """A directory that was started anew is an empty table, and an empty snapshot, of the declared columns."""
    schema = ("n:int64", "at:timestamp", "word:string")
    folders(tmp_path, (0, datetime(2013, 1, 1, tzinfo=UTC), "a"), schema=schema)
    types = read_table(tmp_path, origins=True).schema
    start_anew(tmp_path)
    assert read_table(tmp_path, origins=True).schema == types
    assert read_table(tmp_path, ["word"]).num_rows == 0
    with snapshot(tmp_path) as path:
        assert pq.read_table(path).schema == types
        assert pd.read_parquet(path).empty


# --- what cannot be read ------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """No directory, no log, a log with a hole and one that was edited are errors with the path and a cure."""
    for read in (read_table, take_snapshot):
        with pytest.raises(SinkError, match=r"none does not exist\. Try: run the topology"):
            read(tmp_path / "none")
        (tmp_path / "plain").mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [1]}), tmp_path / "plain" / "a.parquet")
        with pytest.raises(SinkError, match=r"plain has no commit log.*Try: run the topology"):
            read(tmp_path / "plain")
    assert not (tmp_path / "plain" / "_downspout").exists()
    directory = tmp_path / "sink"
    for offset in range(3):
        write(directory, offset)
    entry = CommitLog(directory).path(1)
    content = entry.read_bytes()
    entry.unlink()
    with pytest.raises(SinkError, match=r"0001\.json is missing, although later entries exist"):
        read_table(directory)
    entry.write_bytes(content.replace(b"parquet", b"parquer"))
    with pytest.raises(SinkError, match=r"0001\.json is damaged: the checksum"):
        take_snapshot(directory)


def test_a_file_that_was_deleted_by_hand(tmp_path: Path) -> None:
    """A file that the log names and that is nowhere is an error that names it: no reader leaves rows out."""
    for offset in range(3):
        write(tmp_path, offset)
    (gone,) = tmp_path.glob("part-w1-*.parquet")
    os.unlink(gone)
    for read in (read_table, take_snapshot):
        with pytest.raises(SinkError, match=rf"{gone.name} is gone, although the commit log names it"):
            read(tmp_path)
