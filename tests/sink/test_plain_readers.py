"""Readers that know nothing about the commit log: by the directory, or by the globs that their manuals recommend.

Each in the form that ``docs/how-to/read-a-directory.md`` gives.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from downspout.sink import Layout, View, read_entries, wherever
from downspout.sink.snapshot import snapshot
from downspout.testing import Killed
from tests.disks import SteppedDisk
from tests.sink.compaction_support import compact, flush, opened, write

Values = Counter[int]
Read = Callable[[Path], list[int]]


def _duckdb(pattern: str) -> list[int]:
    return [value for (value,) in duckdb.sql(f"select value from read_parquet('{pattern}')").fetchall()]


READERS: dict[str, Read] = {
    "duckdb **": lambda path: _duckdb(f"{path}/**/*.parquet"),
    "duckdb hive": lambda path: _duckdb(f"{path}/*/*.parquet"),
    "polars **": lambda path: pl.scan_parquet(f"{path}/**/*.parquet").collect()["value"].to_list(),
    "polars hive": lambda path: (
        pl.scan_parquet(f"{path}/*/*.parquet", hive_partitioning=True).collect()["value"].to_list()
    ),
    "pandas": lambda path: pd.read_parquet(path)["value"].tolist(),
    "pyarrow": lambda path: ds.dataset(path, partitioning="hive").to_table()["value"].to_pylist(),
    "pathlib": lambda path: pd.concat(map(pd.read_parquet, path.rglob("*.parquet")))["value"].tolist(),
}

ABOVE: dict[str, Read] = {"duckdb above": lambda path: _duckdb(f"{path.parent}/**/*.parquet")}
"""Readers that count what snapshots hold, for these are below ``output`` too."""


def values(directory: Path, *, above: bool = True) -> Values:
    """Return what all readers see, which must be the same."""
    readers = READERS | (ABOVE if above else {})
    found = {name: Counter(read(directory)) for name, read in readers.items()}
    assert len({tuple(sorted(seen.items())) for seen in found.values()}) == 1, found
    return found["pandas"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with two flushes of ten rows, in two Hive folders."""
    for number in range(2):
        flush(tmp_path / "output" / "rows", range(number * 10, number * 10 + 10), f"w{number}")
    return tmp_path / "output" / "rows"


def test_nothing_but_committed_rows_is_in_the_directory(directory: Path) -> None:
    """The directory holds data files, and one folder of ours with nothing that ends in .parquet."""
    compact(directory)
    data = {path.relative_to(directory).as_posix() for path in directory.rglob("*.parquet")}
    assert data == {file.path for file in View.of(directory).files}
    others = [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    assert all(path.is_relative_to(directory / "_downspout") for path in others)


def test_a_snapshot_counts_nothing_twice(directory: Path) -> None:
    """While somebody has a snapshot open, all readers see each row once; and the snapshot itself is read by all."""
    with snapshot(directory) as frozen:
        assert values(directory, above=False) == values(frozen, above=False) == Counter(range(20))
        flush(directory, range(20, 30), "later")
        compact(directory)
        assert values(directory, above=False) == Counter(range(30))
        assert values(frozen, above=False) == Counter(range(20))
    assert values(directory) == Counter(range(30))


def test_a_flush_shows_committed_rows_alone(directory: Path) -> None:
    """At each step of a flush every reader sees the rows of before, some of the new ones once they are committed, and
    none twice."""
    seen: list[int] = []

    def look(_: int) -> None:
        now = values(directory)
        assert Counter(range(20)) <= now <= Counter(range(30))
        assert max(now.values()) == 1
        assert len(now) == 20 or writer.log.refresh() or writer.log.length == 3
        seen.append(len(now))

    writer = opened(directory, "w2")
    disk = writer.disk = writer.log.disk = SteppedDisk(look)
    assert disk
    write(writer, range(20, 30))
    assert seen[0] == 20
    assert values(directory) == Counter(range(30))


@pytest.mark.sweep
@pytest.mark.slow
def test_wherever_a_flush_is_stopped_all_readers_agree(directory: Path, tmp_path: Path) -> None:
    """A flush that is stopped at any step leaves nothing that a reader would count; the next one makes it whole."""
    for stop in range(1, 100):
        copy = shutil.copytree(directory, tmp_path / f"stopped-{stop}" / "rows")
        with suppress(Killed):
            flush(copy, range(20, 30), "w2", SteppedDisk(_stop_at(stop)))
            break
        now = values(copy)
        assert Counter(range(20)) <= now <= Counter(range(30))
        flush(copy, range(20, 30), "w3")
        assert values(copy) == Counter(range(30))
    assert stop > 10


@pytest.mark.slow
@pytest.mark.parametrize("following", ["a start", "a compaction"])
def test_wherever_a_compaction_is_stopped_the_next_start_makes_all_readers_agree(
    directory: Path, tmp_path: Path, following: str
) -> None:
    """A compaction stopped at any step hides no row. Those of the one folder whose files it was replacing just then may
    be there twice, and no others; the next start of the sink, or the next compaction, ends that."""
    twice: list[Values] = []
    for stop in range(1, 200):
        copy = shutil.copytree(directory, tmp_path / f"stopped-{stop}" / "rows")
        with suppress(Killed):
            compact(copy, SteppedDisk(_stop_at(stop)))
            break
        twice.append(values(copy) - Counter(range(20)))
        assert values(copy) - twice[-1] == Counter(range(20))
        assert twice[-1] <= _replaced_last(copy)
        opened(copy, "next") if following == "a start" else compact(copy)
        assert values(copy) == Counter(range(20))
    # In each of two folders: before the new name is made durable, and before each of two old files is moved away.
    assert sum(map(bool, twice)) == 2 * 3
    assert len(list(copy.rglob("*.parquet"))) == 2


def _replaced_last(directory: Path) -> Values:
    """Return the rows of the files that the log's last entry has replaced."""
    layout = Layout(directory)
    removed = (wherever(layout, path, Path.read_bytes) for path in read_entries(directory)[-1].removed)
    return Counter(chain.from_iterable(pq.read_table(pa.BufferReader(c))["value"].to_pylist() for c in removed))


def _stop_at(stop: int) -> Callable[[int], None]:
    def before(step: int) -> None:
        if step == stop:
            raise Killed

    return before
