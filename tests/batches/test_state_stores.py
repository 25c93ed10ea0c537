from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demos.postgres import PASSWORD, PostgresServer
from downspout.batches import Attempt, BatchStoreError, StateKind, open_state_store, read_state
from downspout.batches.sql_state import open_sql_state
from downspout.batches.stores import check_batch_store, check_state_store
from downspout.errors import ConfigError
from downspout.testing import MemoryBatches
from tests.batches.state_contract import MINE, OF, THE, Open, StateContract, put


class TestMemory(StateContract):
    @pytest.fixture
    def open_bare(self) -> Iterator[Open]:
        with MemoryBatches("state") as memory:
            yield lambda context: open_state_store(memory.location, context)


class TestSqlite(StateContract):
    @pytest.fixture
    def open_bare(self, tmp_path: Path) -> Open:
        return lambda context: open_sql_state(f"sqlite:///{tmp_path}/state.db", context)


class TestPostgres(StateContract):
    @pytest.fixture
    def open_bare(self, postgres: PostgresServer) -> Open:
        url = postgres.new_database()
        return lambda context: open_sql_state(url, replace(context, password=PASSWORD))


def test_a_locked_file_is_named_and_may_pass(tmp_path: Path) -> None:
    """While another process holds the file, nothing is stored, and the error says that it may pass; then it goes on."""
    path = tmp_path / "state.db"
    store = open_state_store(f"sqlite:///{path}", replace(MINE, wait_s=0.05))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BatchStoreError, match="has been locked") as raised:
            put(store, Attempt(1, 0), {THE: [1, 1, None]})
        other.execute("ROLLBACK")
    assert raised.value.passes
    put(store, Attempt(1, 0), {THE: [1, 1, None]})
    assert store.read_all() == {THE: [1, 1, None]}
    store.close()


def test_a_full_disk_stores_nothing(tmp_path: Path) -> None:
    """Where the disk is full the whole transaction is undone, and the error says what to do; with room it goes on."""
    store: Any = open_state_store(f"sqlite:///{tmp_path}/state.db", MINE)
    put(store, Attempt(1, 0), {THE: [1, 1, None]})
    (pages,) = store.database.run("PRAGMA page_count")[0]
    store.database.run(f"PRAGMA max_page_count = {pages}")
    many = {(f"{'x' * 400}{number}",): [2, number, None] for number in range(200)}
    with pytest.raises(BatchStoreError, match=r"full.*free the disk"):
        put(store, Attempt(2, 0), {THE: [2, 2, 1], **many})
    assert store.read_all() == {THE: [1, 1, None]}
    store.database.run("PRAGMA max_page_count = 100000")
    put(store, Attempt(2, 1), {THE: [2, 2, 1], **many})
    assert len(store.read_all()) == 201
    store.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A store in a folder that does not exist is an error with the command that makes it."""
    with pytest.raises(BatchStoreError, match=rf"the folder {tmp_path}/nowhere does not exist.*mkdir -p"):
        open_state_store(f"sqlite:///{tmp_path}/nowhere/state.db", MINE)


def test_readers_need_only_the_name(tmp_path: Path) -> None:
    """A reader sees each key's value, whatever the kind, and not those that went back to none."""
    url = f"sqlite:///{tmp_path}/state.db"
    put(open_state_store(url, MINE), Attempt(1, 0), {THE: [1, 3, None], OF: [1, None, None]})
    put(open_state_store(url, replace(MINE, name="plain", kind=StateKind.NON_TRANSACTIONAL)), Attempt(1, 0), {THE: 4})
    assert (read_state(url, "counts"), read_state(url, "plain")) == ({THE: 3}, {THE: 4})
    with pytest.raises(BatchStoreError, match="state other does not exist"):
        read_state(url, "other")


def test_foreign_content_is_named(tmp_path: Path) -> None:
    """A row that is not JSON is an error with state and key; so is a file that is no database."""
    path = tmp_path / "state.db"
    store = open_state_store(f"sqlite:///{path}", MINE)
    put(store, Attempt(1, 0), {THE: [1, 1, None]})
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE downspout_state SET value = 'x'")
    with pytest.raises(BatchStoreError, match=r"state counts, key \[\"the\"\]: 'x' is not JSON"):
        store.read_all()
    store.close()
    (tmp_path / "other").write_bytes(b"no database" * 200)
    with pytest.raises(BatchStoreError, match="not a database"):
        open_state_store(f"sqlite:///{tmp_path}/other", MINE)


@pytest.mark.parametrize(("check", "more"), [(check_batch_store, ", zookeeper://…"), (check_state_store, "$")])
def test_an_unknown_store_is_answered_by_all(check: Callable[[str], None], more: str) -> None:
    """Only a misspelt scheme has one cure; another database is answered by all that can be used."""
    with pytest.raises(ConfigError, match=rf"Try: one of .*postgresql://…, sqlite:///…{more}"):
        check("mysql://x")
    with pytest.raises(ConfigError, match=r"Try: postgresql://…$"):
        check("postgresq://x")


def test_zookeeper_holds_no_state() -> None:
    """A URL of ZooKeeper is refused where keyed state is asked for."""
    with pytest.raises(ConfigError, match=r"is not a store for this. Try: one of .*postgresql://….*, sqlite:///…"):
        open_state_store("zookeeper://127.0.0.1:2181/x", MINE)


def test_a_file_that_is_not_there_is_not_made_by_a_reader(tmp_path: Path) -> None:
    """The error names the state, and no empty database is left."""
    with pytest.raises(BatchStoreError, match="state counts does not exist: there is no such file"):
        read_state(f"sqlite:///{tmp_path}/nowhere.db", "counts")
    assert list(tmp_path.iterdir()) == []
