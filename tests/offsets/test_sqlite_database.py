"""Specifics of SQLite: locks and their holders, invalid files, network file systems."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from downspout.errors import ConfigError
from downspout.offsets import DatabaseError, SqliteDatabase
from downspout.offsets.stores import sqlite
from downspout.offsets.stores.database import LockedError
from downspout.settings.folders import of_project_url

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA journal_mode = {sys.argv[2]}").close()
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE held (x)")
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(path: Path, mode: str) -> Iterator[int]:
    command = [sys.executable, "-c", HOLDER, str(path), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        try:
            yield process.pid
        finally:
            process.kill()


def opened(path: Path, wait_s: float = 0.05) -> SqliteDatabase:
    return SqliteDatabase(f"sqlite:///{path}", "sql.database", wait_s)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_lock_is_waited_for_and_its_holder_named(tmp_path: Path, mode: str) -> None:
    """Who holds the file is named by process id and command; once it has died, the lock is free."""
    path = tmp_path / "x.db"
    with holding(path, mode) as pid:
        with pytest.raises(LockedError) as raised:
            opened(path).begin()
        assert f"process {pid} ({sys.executable} -c" in raised.value.message
    database = opened(path, 30)
    database.begin()
    database.commit()
    database.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("carrier,delay\n" * 100)
    with pytest.raises(DatabaseError, match="file is not a database") as raised:
        opened(path).begin()
    assert str(path) in raised.value.cure
    assert path.read_text() == "carrier,delay\n" * 100


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"the folder .* does not exist") as raised:
        opened(tmp_path / "no" / "x.db").begin()
    assert raised.value.cure == f"mkdir -p {tmp_path}/no"


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_is_replaced_while_it_is_open_is_noticed(tmp_path: Path, is_replaced: bool) -> None:
    path, backup = tmp_path / "x.db", tmp_path / "backup.db"
    database = opened(path)
    for _ in range(2):
        database.begin()
        database.run("CREATE TABLE IF NOT EXISTS kept (x)")
        database.commit()
    if is_replaced:
        backup.write_bytes(b"")
        backup.rename(path)
    else:
        path.unlink()
    with pytest.raises(DatabaseError, match=f"{path} was removed, or replaced by another file"):
        database.begin()
    database.close()


def test_a_file_on_a_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    monkeypatch.setattr(sqlite, "NETWORK", frozenset(kinds))
    with pytest.raises(DatabaseError, match="is on a network file system"):
        opened(tmp_path / "x.db").begin()
    assert not (tmp_path / "x.db").exists()


def test_a_relative_path_on_storm_needs_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's folder is deleted with the topology, and a file of offsets in it would be too."""
    conf = {"storm.cluster.mode": "distributed"}
    with pytest.raises(ConfigError, match="a Storm worker's folder is deleted"):
        of_project_url("sqlite:///x.db", "kafka.offset_store", conf)
    monkeypatch.setenv("DOWNSPOUT_PROJECT", str(tmp_path))
    assert of_project_url("sqlite:///x.db", "kafka.offset_store", conf) == f"sqlite:///{tmp_path}/x.db"
    assert of_project_url("postgresql://me@db/x", "kafka.offset_store", conf) == "postgresql://me@db/x"
