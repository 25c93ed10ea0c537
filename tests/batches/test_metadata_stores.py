from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from demos.postgres import PASSWORD, PostgresServer
from downspout.batches import (
    BatchIdInUseError,
    BatchRange,
    BatchStoreContext,
    BatchStoreError,
    CoordinatorState,
    open_batch_store,
    open_sql_metadata,
)
from downspout.testing import MemoryBatches
from tests.batches.metadata_contract import MINE, P0, MetadataContract, Open
from tests.batches.zookeeper_metadata import OpenNodes, ZooKeeperMetadataContract
from tests.offsets.fake_nodes import FakeNodes


class TestMemory(MetadataContract):
    """The one for tests, which holds one id."""

    @pytest.fixture
    def open_bare(self) -> Iterator[Open]:
        with MemoryBatches("wc"), MemoryBatches("other"):
            yield lambda context: open_batch_store(f"memory://{context.id}", context)


class TestSqlite(MetadataContract):
    @pytest.fixture
    def open_bare(self, tmp_path: Path) -> Open:
        return lambda context: open_sql_metadata(f"sqlite:///{tmp_path}/batches.db", context)


class TestPostgres(MetadataContract):
    @pytest.fixture
    def open_bare(self, postgres: PostgresServer) -> Open:
        url = postgres.new_database()
        return lambda context: open_sql_metadata(url, replace(context, password=PASSWORD))


class TestZooKeeper(ZooKeeperMetadataContract):
    """The tree in memory; a real one is in ``tests/storm/test_zookeeper_batches.py``."""

    @pytest.fixture
    def open_nodes(self) -> OpenNodes:
        first = FakeNodes()
        return lambda: FakeNodes(first.tree)


HOLDER = """
import sys
from downspout.batches.stores import BatchStoreContext, open_batch_store
store = open_batch_store(sys.argv[1], BatchStoreContext("wc", "first", "first-1-1"))
print(store.claim("first-1-1"), flush=True)
sys.stdin.read()
"""


def test_a_claim_is_over_when_its_process_is_killed(tmp_path: Path) -> None:
    """Another process holds the id until ``kill -9``; then the next topology has it at once."""
    url = f"sqlite:///{tmp_path}/batches.db"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        epoch = int(process.stdout.readline())
        with closing(open_batch_store(url, BatchStoreContext("wc", "second"))) as store:
            with pytest.raises(BatchIdInUseError, match=r"in use by topology first \(first-1-1\), which is running"):
                store.claim("second-1-1")
            process.kill()
            process.wait()
            assert store.claim("second-1-1") == epoch + 1
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize(
    ("table", "column", "text", "said"),
    [
        ("downspout_batches", "attempts", "[1]", "its coordinator: currattempts is"),
        ("downspout_batch_partitions", "partitions", "x", "the partitions of transaction 1"),
        ("downspout_batch_ranges", "metadata", '{"firstOffset":3}', "lines/0 in transaction 1"),
    ],
)
def test_foreign_content_is_named(tmp_path: Path, table: str, column: str, text: str, said: str) -> None:
    """A row that is out of form is an error with its coordinates, and nothing is taken from it."""
    path = tmp_path / "batches.db"
    with closing(open_batch_store(f"sqlite:///{path}", BatchStoreContext("wc"))) as store:
        epoch = store.claim(MINE)
        store.save_coordinator(epoch, CoordinatorState(1, {1: 0}))
        store.save_partitions(epoch, 1, [["lines", 0]])
        store.save_ranges(epoch, 1, {P0: BatchRange(0, 1)})
        with closing(sqlite3.connect(path)) as other, other:
            other.execute(f"UPDATE {table} SET {column} = ?", (text,))
        with pytest.raises(BatchStoreError, match=f"batch.id wc, {said}"):
            print(store.load_coordinator(), store.load_partitions(1), store.load_ranges([P0]))


def test_a_locked_file_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the file, nothing is stored, and the error says that it may pass."""
    monkeypatch.setattr("downspout.batches.sql_metadata.WAIT_S", 0.05)
    path = tmp_path / "batches.db"
    with closing(open_batch_store(f"sqlite:///{path}", BatchStoreContext("wc"))) as store:
        epoch = store.claim(MINE)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(BatchStoreError, match="has been locked") as raised:
                store.save_coordinator(epoch, CoordinatorState(2, {}))
            other.execute("ROLLBACK")
        assert raised.value.passes
        store.save_coordinator(epoch, CoordinatorState(2, {}))
        assert store.load_coordinator() == CoordinatorState(2, {})
