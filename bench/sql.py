"""What it costs to write rows to a database: SqlBolt with records and with chunks, beside a loop of ``executemany``.

    python -m bench.sql --rows 200000

Each contender writes the same rows (a text, three whole numbers, a float) to a new table, by turns with the others in
one run, in transactions of 20,000 rows, after which the database is asked to have them on the disk. The loop has tuples
of Python's and does nothing else. SqlBolt gets tuples as a bolt before it emits them, or chunks of 10,000 rows with
their origins; it checks each value, leaves out what the table has, and writes its log in the same transaction. What is
counted is one process: time, and CPU-seconds of it, which of PostgreSQL are those of the client alone.
"""

from __future__ import annotations

import gc
import io
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pystorm.component import Tuple

from bench.harness import Options, begin, by_turns, load, machine, save, say, table
from bolts.sql import SqlBolt
from demos.postgres import PostgresServer, find_programs, postgres_server
from downspout.ledger.origin import Origin
from downspout.origins import origins

COLUMNS = ["carrier", "flight", "distance", "delay", "speed"]
CREATE = "CREATE TABLE flights (carrier TEXT, flight INTEGER, distance INTEGER, delay INTEGER, speed DOUBLE PRECISION)"
FLUSH, CHUNK, PER_CALL = 20_000, 10_000, 500
KINDS = ("executemany, bare loop", "SqlBolt, records", "SqlBolt, chunks")
numbers = count()


def rows(number: int) -> list[tuple[Any, ...]]:
    return [(("UA", "AA", "DL", "B6")[n % 4], n % 8000, n % 5000, n % 300 - 30, n / 7) for n in range(number)]


def bolt_of(url: str, settings: dict[str, Any]) -> Any:
    bolt: Any = SqlBolt(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    bolt.component_name, bolt.task_id = "sink", 1
    bolt.acked = 0
    bolt.ack_many = lambda tups: setattr(bolt, "acked", bolt.acked + len(list(tups)))
    conf = {"topology.name": "bench", "sql.database": url, "sql.table": "flights", "sql.flush_rows": FLUSH, **settings}
    bolt.initialize(conf, {"source->stream->fields": {"parse": {"default": ["origin", *COLUMNS]}}})
    return bolt


def records(data: list[tuple[Any, ...]]) -> list[Tuple]:
    return [
        Tuple(str(n), "parse", "default", 2, (Origin("flights", "id", 0, n, ""), *row)) for n, row in enumerate(data)
    ]


def chunks(data: list[tuple[Any, ...]]) -> list[Tuple]:
    columns = [pa.array(values) for values in zip(*data, strict=True)]
    whole = pa.RecordBatch.from_arrays(
        [origins("flights", "id", 0, range(len(data))), *columns], names=["origin", *COLUMNS]
    )
    return [Tuple(str(start), "parse", "default", 2, whole.slice(start, CHUNK)) for start in range(0, len(data), CHUNK)]


def timed(work: Callable[[], None]) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def bare(connection: Any, mark: str, data: list[tuple[Any, ...]]) -> None:
    statement = f"INSERT INTO flights VALUES ({', '.join([mark] * len(COLUMNS))})"
    cursor = connection.cursor()
    for start in range(0, len(data), FLUSH):
        cursor.execute("BEGIN")
        cursor.executemany(statement, data[start : start + FLUSH])
        cursor.execute("COMMIT")


def give(bolt: Any, tuples: list[Tuple]) -> None:
    """Do as the local engine does with what is in a queue."""
    while tuples:
        taken = bolt.process_many(tuples)
        if taken < len(tuples):
            bolt.process(tuples[taken])
        tuples = tuples[taken + 1 :]


def one(kind: str, url: str, connection: Any, mark: str, settings: dict[str, Any], data: Any) -> tuple[float, float]:
    connection.execute(CREATE)
    if kind == KINDS[0]:
        return timed(lambda: bare(connection, mark, data))
    bolt = bolt_of(url, settings)
    tuples = records(data) if kind == KINDS[1] else chunks(data)

    def work() -> None:
        if kind == KINDS[1]:
            for start in range(0, len(tuples), PER_CALL):
                give(bolt, tuples[start : start + PER_CALL])
        else:
            for chunk in tuples:
                bolt.process_chunk(chunk)
        bolt.drain()

    found = timed(work)
    assert bolt.acked == len(tuples)
    bolt.close()
    return found


class Database:
    """Where to write; each contender gets a new one."""

    def __init__(self, folder: Path, server: PostgresServer | None) -> None:
        self.folder, self.server = folder, server

    def new(self) -> Iterator[tuple[str, Any, str, dict[str, Any]]]:
        if self.server is not None:
            url = self.server.new_database()
            with closing(self.server.connect(url.rpartition("/")[2])) as connection:
                yield url, connection, "%s", {"sql.password": f"file:{self.server.password_file}"}
            return
        path = self.folder / f"{next(numbers)}.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL").close()
            connection.execute("PRAGMA synchronous = FULL").close()
            yield f"sqlite:///{path}", connection, "?", {}
        for each in self.folder.glob(f"{path.name}*"):
            each.unlink()


def main() -> None:
    options = Options(__doc__, runs=3)
    options.size("--rows", 200_000, 40_000, type=int)
    given, before = options.read(), load()
    data, lines, notes, figures = rows(given.rows), [], [], {}
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        databases = {"SQLite": Database(Path(scratch), None)}
        if programs := find_programs():
            # As a server is run: fsync too.
            server = stack.enter_context(postgres_server(programs, {"fsync": "on"}))
            databases["PostgreSQL"] = Database(Path(scratch), server)
        else:
            notes.append("PostgreSQL is not installed")
        for name, database in databases.items():
            found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            for _, kind in by_turns(KINDS, given.runs):
                for place in database.new():
                    found[kind].append(one(kind, *place, data))
                wall, cpu = found[kind][-1]
                say(f"{name}, {kind}: {given.rows / wall:,.0f} rows/s, {cpu / given.rows * 1e6:.2f} CPU-s/M")
            middle = {
                kind: [sorted(part)[given.runs // 2] for part in zip(*values, strict=True)]
                for kind, values in found.items()
            }
            base = middle[KINDS[0]]
            for kind, (wall, cpu) in middle.items():
                lines.append([
                    name, kind, f"{given.rows / wall:,.0f}", f"{wall / base[0]:.2f}",
                    f"{cpu / given.rows * 1e6:.2f}", f"{cpu / base[1]:.2f}",
                ])  # fmt: skip
            figures[name] = found
    text = table(
        ["database", "what", "rows/s", "× time of the loop", "CPU-s per million rows", "× CPU of the loop"], lines
    )
    head = f"# Writing to a database\n\n{given.rows:,} rows, the median of {given.runs} runs. {machine(before)}"
    save(given.results, "sql", f"{head}\n\n{text}", figures, notes)


if __name__ == "__main__":
    begin(main)
