"""From Kafka into SQLite and PostgreSQL, exactly once, while the processes are killed.

    python -m demos.drill sql            # or: make sql-demo

1. starts its own Kafka broker and publishes the flights;
2. runs ``topologies/flight_sql.py`` into SQLite, its offsets in the same database; kills it ten times with
   ``kill -9`` while it writes; then lets it run to the end;
3. does the same with PostgreSQL, where its programs are installed: a server that the demo starts.

After each, the rows are counted, sums are compared with pandas', and the offsets with the end of the topic. Each run
begins anew. ``FLIGHTS=20000`` takes fewer, ``KILLS=3`` kills less.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from demos.audit import Finding
from demos.drill import Drill, Step
from demos.flights_data import PARTITIONS
from demos.postgres import PostgresServer, find_programs, postgres_server
from downspout.kafka.clusters import cluster_for

TARGET = "topologies/flight_sql.py"
CREATE = """CREATE TABLE flights (
  carrier TEXT NOT NULL, flight INTEGER NOT NULL, from_airport TEXT NOT NULL, to_airport TEXT NOT NULL,
  distance INTEGER NOT NULL, dep_delay INTEGER, arr_delay INTEGER, made_up INTEGER,
  _partition INTEGER NOT NULL, _offset BIGINT NOT NULL)"""
SUMS = """SELECT carrier, count(*), sum(distance), sum(dep_delay), sum(arr_delay), sum(made_up)
FROM flights GROUP BY carrier ORDER BY carrier"""
COUNTS = "SELECT count(*), (SELECT count(*) FROM (SELECT DISTINCT _partition, _offset FROM flights) AS r) FROM flights"


@dataclass
class Target:
    """A database to write to."""

    name: str
    url: str
    connect: Callable[[], Any]
    settings: list[str] = field(default_factory=list)  # what the run needs beside the URL

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with closing(self.connect()) as connection:
            return list(connection.execute(statement).fetchall())

    def written(self) -> int:
        """Return the number of visible rows."""
        return int(self.query("SELECT count(*) FROM flights")[0][0])


class SqlDemo(Drill):
    """One run of the demo."""

    NAME = "sql"

    def steps(self) -> Iterator[Step]:
        """Yield a step for each database."""
        yield f"downspout run {TARGET} into SQLite, killed {self.kills} times", lambda: self.write(self.sqlite())
        yield f"downspout run {TARGET} into PostgreSQL, killed {self.kills} times", self.into_postgres

    def into_postgres(self) -> Iterator[Finding]:
        """Write to a server, where its programs are installed."""
        if (programs := find_programs()) is None:
            self.screen.say("left out: PostgreSQL is not installed (apt-get install postgresql)")
            return
        with postgres_server(programs) as server:
            yield from self.write(self.postgres(server))

    # --- databases ---

    def sqlite(self) -> Target:
        """Return a new file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = Path(self.folder / "flights.db").absolute()
        for suffix in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        target = Target("SQLite", f"sqlite:///{path}", lambda: sqlite3.connect(path, timeout=60))
        with closing(target.connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL").close()  # readers, such as we, do not stop the writer
            connection.execute(CREATE)
        return target

    def postgres(self, server: PostgresServer) -> Target:
        """Return a new database of a server."""
        url = server.new_database()
        name = url.rpartition("/")[2]
        with closing(server.connect(name)) as connection:
            connection.execute(CREATE)
        password = f"file:{server.password_file}"
        settings = [f"sql.password={password}", f"kafka.offset_store_password={password}"]
        return Target("PostgreSQL", url, lambda: server.connect(name), settings)

    # --- a run ---

    def write(self, target: Target) -> Iterator[Finding]:
        """Run the topology to the end, through all kills; yield what is found then."""
        group = f"sql-demo-{uuid.uuid4().hex[:8]}"
        step = max(len(self.flights) // (self.kills + 2), 50)
        settings = [
            f"kafka.bootstrap={self.kafka.bootstrap}", f"kafka.topics={self.topic}", f"kafka.group={group}",
            f"sql.flush_rows={min(step // 4, 5_000)}",  # of few flights too, several flushes for each kill
            f"kafka.offset_store={target.url}", f"sql.database={target.url}", *target.settings,
        ]  # fmt: skip
        yield from self.run_killed(
            TARGET, settings, target.written, "rows are in the table", step, log=target.name, pause_s=0.2
        )
        yield from self.audit(target, group)

    def audit(self, target: Target, group: str) -> Iterator[Finding]:
        """Yield the audit's findings."""
        flights = self.flights
        rows, distinct = target.query(COUNTS)[0]
        yield Finding(
            rows == distinct == len(flights),
            f"{rows:,} rows of {distinct:,} records are in {target.name}, for {len(flights):,} flights",
        )
        found = [tuple(row) for row in target.query(SUMS)]
        yield Finding(found == sums_of(self.frame), f"counts and sums of {len(found)} carriers equal pandas'")
        ends = {number: len(flights.rows[number]) for number in range(PARTITIONS) if flights.rows[number]}
        stored = dict(
            target.query(
                "SELECT kafka_partition, next_offset FROM downspout_offsets "
                f"WHERE consumer_group = '{group}' AND next_offset > 0"
            )
        )
        yield Finding(stored == ends, f"the offsets in {target.name} are the end of the flights")
        copies = cluster_for(self.kafka.bootstrap).group_offsets(group)
        copied = {tp.partition: entry.offset for tp, entry in copies.items() if entry.offset > 0}
        yield Finding(copied == ends, f"so are their copies in group {group}")


def sums_of(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the expected sums, by pandas."""
    frame = frame.assign(made_up=frame["dep_delay"] - frame["arr_delay"])
    names = ["distance", "dep_delay", "arr_delay", "made_up"]
    groups = frame.groupby("carrier")[names].sum(min_count=1)
    counts = frame.groupby("carrier").size()
    return [
        (carrier, int(counts[carrier]), *(None if pd.isna(value) else int(value) for value in groups.loc[carrier]))
        for carrier in sorted(groups.index)
    ]
