from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bolts.parquet import ParquetBolt
from downspout.errors import SinkError
from downspout.sink import read_table
from downspout.tables import Export
from downspout.tables.export import Overtaken
from tests.sink.readers_support import compact, delete_replaced, start_anew
from tests.sink.support import sink, tup
from tests.tables.tables_support import NAME, export, numbers, open_catalog, table, target, write

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path / "flights", 0, 1, 2)
    write(tmp_path / "flights", 3, 4)
    return tmp_path / "flights"


def test_each_row_goes_over_once(kind: str, directory: Path, tmp_path: Path) -> None:
    """An export takes what is new since the one before, and a compaction in between brings nothing again."""
    place = tmp_path / "table"
    first = export(kind, directory, place).step()
    assert first is not None
    assert (first.rows, first.files) == (5, 2)
    assert export(kind, directory, place).step() is None
    compact(directory)
    assert export(kind, directory, place).step() is None
    write(directory, 5)
    write(directory, 6, 7)
    compact(directory, most=2)
    second = export(kind, directory, place).step()
    assert second is not None
    assert second.rows == 3
    assert numbers(kind, place) == list(range(8))


def test_all_types_go_over(kind: str, tmp_path: Path) -> None:
    """Values of every type, nulls, and columns that are folders, are in the table as they are in the directory."""
    row: dict[str, Any] = {
        "a:string": "ä", "b:binary": b"\0", "c:bool": True, "d:int8": -8, "e:int16": 16, "f:int32": 32,
        "g:int64": 2**60,
        "h:float32": 0.5, "i:float64": 0.1,
        "j:date": date(2013, 1, 31), "k:timestamp": datetime(2013, 1, 1, tzinfo=UTC),
        "l:decimal(18,2)": Decimal("1.25"), "m:list<int8>": [1, 2], "n:struct<x:int16,y:string>": {"x": 1, "y": "z"},
        "o:map<string,int64>": [("k", 1)], "p:int32": 7,
    }  # fmt: skip
    names = [column.partition(":")[0] for column in row]
    conf = {"parquet.schema": list(row), "parquet.partition_by": ["p"]}
    bolt = sink(ParquetBolt, tmp_path / "all", fields=["origin", *names], **conf)
    bolt.process(tup(("t", "", 0, 0, ""), *row.values()))
    bolt.process(tup(("t", "", 0, 1, ""), *[None] * (len(row) - 1), 8))
    bolt.drain()

    export(kind, tmp_path / "all", tmp_path / "table").step()
    wanted = sorted(read_table(tmp_path / "all", origins=True).to_pylist(), key=lambda one: one["_offset"])
    found = sorted(table(kind, tmp_path / "table").to_pylist(), key=lambda one: one["_offset"])
    assert found == wanted
    assert found[0]["n"] == {"x": 1, "y": "z"}


def test_origins_can_stay_behind(kind: str, directory: Path, tmp_path: Path) -> None:
    """Without origins the table has the declared columns alone, and each row once all the same."""
    export(kind, directory, tmp_path / "table", origins=False).step()
    write(directory, 5)
    export(kind, directory, tmp_path / "table", origins=False).step()
    assert table(kind, tmp_path / "table").column_names == ["n"]
    assert numbers(kind, tmp_path / "table") == list(range(6))


def test_a_late_commit_is_refused_by_the_table(kind: str, directory: Path, tmp_path: Path) -> None:
    """An export that was paused between its look and its commit adds nothing once another one was faster."""
    place = tmp_path / "table"
    export(kind, directory, place).step()
    write(directory, 5)
    slow = target(kind, place)
    source = f"downspout:{'w0'}/0"
    held = slow.look(source)
    assert held.entries == 2
    assert export(kind, directory, place).step() is not None
    rows = read_table(directory, origins=True)
    with pytest.raises(Overtaken):
        slow.append(source, 3, rows.to_reader())
    assert numbers(kind, place) == list(range(6))


def test_of_two_first_exports_one_makes_the_table(kind: str, directory: Path, tmp_path: Path) -> None:
    """Exports that begin at once, before there is a table, bring each row once."""
    place = tmp_path / "table"
    found: list[Any] = []
    barrier = threading.Barrier(4, timeout=60)

    def run() -> None:
        try:
            one = export(kind, directory, place)
            barrier.wait()
            while one.step() is not None:
                pass
        except Exception as error:  # the assertion below shows it
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found
    assert numbers(kind, place) == list(range(5))


_LOOP = """
import sys, time
from pathlib import Path
from tests.tables.tables_support import export
kind, directory, place = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
one = export(kind, directory, place)
print("ready", flush=True)
while True:
    if one.step() is None:
        time.sleep(0.005)
"""


@pytest.mark.sweep
@pytest.mark.slow
def test_each_row_once_through_kills(kind: str, directory: Path, tmp_path: Path) -> None:
    """Two exports at a time, killed again and again while a topology writes, leave each row in the table once."""
    place, chance, rows, kills = tmp_path / "table", random.Random(7), 5, 6
    command = [sys.executable, "-c", _LOOP, kind, str(directory), str(place)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(kills):
            pair = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
            started += pair
            for process in pair:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
            for _ in range(chance.randrange(2, 12)):
                write(directory, rows, rows + 1)
                rows += 2
            assert all(process.poll() is None for process in pair)
            for process in pair:
                os.kill(process.pid, signal.SIGKILL)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    while export(kind, directory, place).step() is not None:
        pass
    assert numbers(kind, place) == list(range(rows))


def test_changes_of_others_are_said(kind: str, directory: Path, tmp_path: Path) -> None:
    """A table whose rows others have changed is left alone, unless these changes are accepted."""
    place = tmp_path / "table"
    export(kind, directory, place).step()
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable(str(place)).delete("n = 1")
    else:
        open_catalog(None, place).load_table(NAME).delete("n = 1")
    write(directory, 5)
    with pytest.raises(SinkError, match=r"(?i)was changed by others since the last export: \w+ in .*--accept-changes"):
        export(kind, directory, place).step()
    assert numbers(kind, place) == [0, 2, 3, 4]
    export(kind, directory, place, accept_changes=True).step()
    write(directory, 6)
    export(kind, directory, place).step()
    assert numbers(kind, place) == [0, 2, 3, 4, 5, 6]


def test_a_table_of_others_is_left_alone(kind: str, directory: Path, tmp_path: Path) -> None:
    """What is another directory's table, or was one before a rebuild, gets no row."""
    place = tmp_path / "table"
    write(tmp_path / "other", 100)
    export(kind, tmp_path / "other", place).step()
    with pytest.raises(SinkError, match=r"holds no rows of .*flights as it is now.*another --to"):
        export(kind, directory, place).step()
    start_anew(tmp_path / "other")
    write(tmp_path / "other", 101)
    with pytest.raises(SinkError, match="or this one was rebuilt since"):
        export(kind, tmp_path / "other", place).step()
    assert numbers(kind, place) == [100]


def test_an_older_copy_of_the_directory_is_noticed(kind: str, directory: Path, tmp_path: Path) -> None:
    """A directory that knows less than the table has taken is an older copy, and is refused."""
    shutil.copytree(directory, tmp_path / "copy" / "flights")
    write(directory, 5)
    export(kind, directory, tmp_path / "table").step()
    with pytest.raises(SinkError, match=r"has taken 3 entries of the log of .*, which has only 2: .*older copy"):
        export(kind, tmp_path / "copy" / "flights", tmp_path / "table").step()


def test_rows_that_were_compacted_away_long_ago_are_missed(kind: str, directory: Path, tmp_path: Path) -> None:
    """An export that was behind for longer than replaced files are kept says so, and takes nothing."""
    place = tmp_path / "table"
    export(kind, directory, place).step()
    write(directory, 5)
    write(directory, 6)
    compact(directory)
    delete_replaced(directory)
    with pytest.raises(SinkError, match="was deleted before the stream read it"):
        export(kind, directory, place).step()
    assert numbers(kind, place) == list(range(5))


def test_a_directory_without_a_log_is_refused(kind: str, tmp_path: Path) -> None:
    """A folder that no sink has written to is named, and no table is made."""
    with pytest.raises(SinkError, match="does not exist"):
        Export(tmp_path / "none", target(kind, tmp_path / "table")).step()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SinkError, match="has no commit log"):
        Export(tmp_path / "empty", target(kind, tmp_path / "table")).step()


def test_a_column_that_comes_later_is_added(kind: str, directory: Path, tmp_path: Path) -> None:
    """Rows with a column that the table lacks add it, with nulls in older rows."""
    place = tmp_path / "table"
    export(kind, directory, place).step()
    source, one = "downspout:w0/0", target(kind, place)
    one.look(source)
    later = read_table(directory, origins=True).slice(0, 1)
    one.append(source, 3, later.append_column("more", [["x"]]).to_reader())
    assert sorted(table(kind, place)["more"].to_pylist(), key=str) == [None] * 5 + ["x"]
