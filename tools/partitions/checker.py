"""A program without our code: reads results like any reader, and compares them with the acknowledged records.

While it runs it prints a line of JSON every half second: how many records are acknowledged, how many are in the output,
and since when the one that waits longest has been acknowledged. After a line on its standard input, ``end SENT``, it
reads everything anew, lets DuckDB compare, prints that, and ends.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

LOOK_S = 0.5


def visible(names: Iterable[str]) -> list[str]:
    """Return the Parquet files among these, without folders and files that begin with ``_`` or ``.``.

    >>> visible(["a.parquet", "_downspout/a.parquet", "day=1/b.parquet", ".c.parquet", "d.tmp"])
    ['a.parquet', 'day=1/b.parquet']
    """
    return sorted(
        name for name in names if name.endswith(".parquet") and not any(part[0] in "._" for part in name.split("/"))
    )


class Files:
    """Parquet files in a folder."""

    def __init__(self, where: str) -> None:
        self.folder = Path(where)
        self._known: set[str] = set()

    def names(self) -> list[str]:
        """Return the files that a reader sees."""
        found = (path for path in self.folder.rglob("*.parquet") if path.is_file())
        return visible(path.relative_to(self.folder).as_posix() for path in found)

    def path(self, name: str) -> str:
        """Return where to read a file."""
        return str(self.folder / name)

    def new(self) -> list[int]:
        """Return the numbers in files that were not there before."""
        found: list[int] = []
        for name in self.names():
            if name not in self._known:
                found += [row[0] for row in duckdb.read_parquet(self.path(name)).project("id").fetchall()]
                self._known.add(name)
        return found

    def rows(self) -> list[tuple[int, str]]:
        """Return all rows."""
        found: list[tuple[int, str]] = []
        for name in self.names():
            found += duckdb.read_parquet(self.path(name)).project("id, text").fetchall()
        return found


class Objects(Files):
    """Parquet files in a bucket."""

    def __init__(self, where: str) -> None:
        from obstore.store import S3Store

        super().__init__(tempfile.mkdtemp())
        self._store = S3Store(
            "bucket", prefix="out", endpoint=where, access_key_id="test", secret_access_key="test", region="us-east-1",
            client_options={"allow_http": True, "timeout": "10s"},
        )  # fmt: skip

    def names(self) -> list[str]:
        """Return the objects that a reader sees."""
        return visible(item["path"] for page in self._store.list() for item in page)

    def path(self, name: str) -> str:
        """Fetch an object."""
        path = self.folder / name.replace("/", "-")
        path.write_bytes(bytes(self._store.get(name).bytes()))
        return str(path)


class Topic:
    """Records of committed transactions."""

    def __init__(self, where: str, topic: str = "copies") -> None:
        from kafka import KafkaConsumer, TopicPartition

        self._consumer = KafkaConsumer(
            bootstrap_servers=where.split(","), isolation_level="read_committed", auto_offset_reset="earliest",
            enable_auto_commit=False, request_timeout_ms=10_000,
        )  # fmt: skip
        numbers = self._consumer.partitions_for_topic(topic) or ()
        self._partitions = [TopicPartition(topic, number) for number in numbers]
        self._consumer.assign(self._partitions)

    def _read(self) -> list[bytes]:
        polled = self._consumer.poll(timeout_ms=200, max_records=20_000)
        return [record.value for records in polled.values() for record in records]

    def new(self) -> list[int]:
        """Return the numbers that have come."""
        return [json.loads(value)["id"] for value in self._read()]

    def values(self) -> list[bytes]:
        """Return all records up to the end of the committed ones, anew."""
        if not self._partitions:
            return []
        self._consumer.seek_to_beginning(*self._partitions)
        ends, found = self._consumer.end_offsets(self._partitions), []
        while any(self._consumer.position(partition) < ends[partition] for partition in self._partitions):
            found += self._read()
        return found

    def rows(self) -> list[tuple[int, str]]:
        """Return all records as rows."""
        return [(row["id"], row["text"]) for row in map(json.loads, self.values())]


class Table:
    """A table of PostgreSQL."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._low = -1
        self._seen: set[int] = set()

    def _select(self, query: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self._where, autocommit=True, connect_timeout=5) as connection:
            return connection.execute(query).fetchall()

    def new(self) -> list[int]:
        """Return the numbers that were not there before."""
        above = [row[0] for row in self._select(f"SELECT id FROM numbers WHERE id > {self._low}")]
        found = [number for number in above if number not in self._seen]
        self._seen.update(found)
        while self._low + 1 in self._seen:
            self._low += 1
            self._seen.discard(self._low)
        return found

    def rows(self) -> list[tuple[int, str]]:
        """Return all rows."""
        return self._select("SELECT id, text FROM numbers")


OUTPUTS: dict[str, Any] = {"disk": Files, "s3": Objects, "kafka": Topic, "sql": Table}


def compare(acknowledged: list[int], sent: int, rows: list[tuple[int, str]]) -> dict[str, int]:
    """Return what is wrong in the output, in numbers.

    >>> def text(number):
    ...     return duckdb.sql(f"SELECT md5('{number}')").fetchall()[0][0]
    >>> compare([0, 1, 3], 4, [(0, text(0)), (1, text(1)), (1, text(1)), (2, text(2)), (3, "?"), (9, text(9))])
    {'rows': 6, 'lost': 1, 'doubled': 1, 'alien': 2}
    """
    import pyarrow as pa

    answered = pa.table({"id": pa.array(acknowledged, pa.int64())})  # noqa: F841 - DuckDB finds it by its name
    output = pa.table(  # noqa: F841
        {"id": pa.array([row[0] for row in rows], pa.int64()), "text": pa.array([row[1] for row in rows], pa.string())}
    )
    figures = duckdb.connect().execute(
        f"""
        WITH good AS (SELECT id FROM output WHERE id BETWEEN 0 AND {sent - 1} AND text = md5(id::VARCHAR))
        SELECT (SELECT count(*) FROM output),
               (SELECT count(*) FROM answered WHERE id NOT IN (SELECT id FROM good)),
               (SELECT count(*) - count(DISTINCT id) FROM good),
               (SELECT count(*) FROM output) - (SELECT count(*) FROM good)
        """
    )
    return dict(zip(("rows", "lost", "doubled", "alien"), figures.fetchall()[0], strict=True))


class Answers:
    """The numbers that the brokers have acknowledged, as ``feed.py`` notes them."""

    def __init__(self, path: str) -> None:
        self._path, self._at, self._rest = path, 0, ""

    def new(self) -> list[int]:
        """Return those that were noted meanwhile."""
        if not os.path.exists(self._path):
            return []
        with open(self._path, encoding="ascii") as file:
            file.seek(self._at)
            text = file.read()
        self._at += len(text)
        *lines, self._rest = (self._rest + text).split("\n")
        return [int(line) for line in lines]


def main(kind: str, where: str, acknowledged: str, bootstrap: str) -> int:
    """Follow the output until a line comes, then compare; what is wrong is for the caller to judge."""
    output, answers = OUTPUTS[kind](where), Answers(acknowledged)
    told: list[str] = []
    threading.Thread(target=lambda: told.append(sys.stdin.readline()), daemon=True).start()
    waiting: dict[int, float] = {}
    every: list[int] = []
    seen: set[int] = set()
    while not told:
        now = time.monotonic()
        every += (noted := answers.new())
        waiting |= {number: now for number in noted if number not in seen}
        try:
            found = output.new()
        except Exception as error:  # what is away comes back; the end counts
            print(json.dumps({"trouble": f"{type(error).__name__}: {error}"}), flush=True)
            found = []
        seen.update(found)
        for number in found:
            waiting.pop(number, None)
        oldest = next(iter(waiting.values()), None)
        print(
            json.dumps({"at": now, "acknowledged": len(every), "waiting": len(waiting), "oldest": oldest}), flush=True
        )
        time.sleep(LOOK_S)
    if told[0].startswith("end"):
        every += answers.new()
        verdict = compare(every, int(told[0].split()[1]), output.rows())
        dead = Topic(bootstrap, "partitions.dead-letters").values()
        print(json.dumps({"acknowledged": len(every), **verdict, "dead-lettered": len(dead)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
