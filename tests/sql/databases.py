"""Databases for tests of the SqlBolt: each test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pystorm.component import Tuple

from bolts.sql import SqlBolt
from demos.postgres import PostgresServer
from downspout.ledger import Origin
from downspout.testing import VirtualClock

FIELDS = ["origin", "word", "size", "day"]
CREATE = "CREATE TABLE words (word TEXT NOT NULL, size SMALLINT CHECK (size < 1000), day DATE)"
KEYED = "CREATE TABLE words (word TEXT PRIMARY KEY, size SMALLINT, day DATE)"


@dataclass
class TestDatabase:
    __test__ = False

    url: str
    settings: dict[str, Any] = field(default_factory=dict)  # what a SqlBolt needs beside it
    server: PostgresServer | None = None

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Give a connection of the test's own, in which each statement is committed."""
        if self.server is not None:
            with closing(self.server.connect(self.url.rpartition("/")[2])) as connection:
                yield connection
            return
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            yield connection

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connected() as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def words(self) -> list[tuple[Any, ...]]:
        rows = self.execute("SELECT word, size, day FROM words ORDER BY word, size")
        return [(word, size, None if day is None else str(day)) for word, size, day in rows]


def sqlite_database(folder: Path) -> TestDatabase:
    return TestDatabase(f"sqlite:///{folder}/test.db")


def postgres_database(server: PostgresServer) -> TestDatabase:
    return TestDatabase(server.new_database(), {"sql.password": f"file:{server.password_file}"}, server)


def make(
    database: TestDatabase,
    *,
    fields: Sequence[str] = FIELDS,
    inputs: Sequence[str] = ("parse",),
    name: str = "sink",
    task_id: int = 3,
    cls: type[SqlBolt] = SqlBolt,
    clock: VirtualClock | None = None,
    **conf: Any,
) -> Any:
    """Return a SqlBolt as an engine would build it, with acks and fails collected."""
    bolt: Any = cls(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.clock = clock or VirtualClock()
    bolt.component_name, bolt.task_id = name, task_id
    bolt.acked, bolt.failed = [], {}
    bolt.ack = lambda given: bolt.acked.append(getattr(given, "id", given))
    bolt.fail_because = lambda tup, error: bolt.failed.__setitem__(getattr(tup, "id", tup), str(error))
    settings = {"topology.name": "t", "sql.database": database.url, "sql.table": "words", **database.settings}
    settings |= {key.replace("__", "."): value for key, value in conf.items()}
    bolt.initialize(settings, {"source->stream->fields": {one: {"default": list(fields)} for one in inputs}})
    return bolt


def tup(
    offset: int, word: Any = "a", size: Any = 1, day: Any = "2013-01-31", path: str = "", of: str = "parse"
) -> Tuple:
    """Return a tuple as a parse bolt would emit it."""
    values = (Origin("t", "id", 0, offset, path), word, size, day)
    return Tuple(f"{offset}{path}", of, "default", 2, values)


def process(bolt: Any, *tuples: Tuple) -> None:
    for one in tuples:
        bolt.process(one)
    bolt.drain()


def wait(bolt: Any, seconds: float) -> None:
    """Let time pass as an engine does: the bolt is drained when it says so."""
    end = bolt.clock.monotonic() + seconds
    while (due := bolt.drain_at()) is not None and due < end:
        bolt.clock.sleep(max(0.0, due - bolt.clock.monotonic()))
        bolt.drain()
    bolt.clock.sleep(max(0.0, end - bolt.clock.monotonic()))
