"""From Kafka into SQLite and PostgreSQL, exactly once, while the processes are killed.

    python -m demos.to_sql            # or: make sql-demo

1. starts its own Kafka broker and publishes the flights;
2. runs ``topologies/flight_sql.py`` into SQLite, its offsets in the same database; kills it ten times with
   ``kill -9`` while it writes; then lets it run to the end;
3. does the same with PostgreSQL, where its programs are installed: a server that the demo starts.

After each, the rows are counted, sums are compared with pandas', and the offsets with the end of the topic. Each run
begins anew. ``FLIGHTS=20000`` takes fewer, ``KILLS=3`` kills less.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from demos.audit import Finding, say_all
from demos.flights_data import PARTITIONS, Flights, load_flights
from demos.killed import KilledRun, count_of, kill_again_and_again
from demos.postgres import PostgresServer, find_programs, postgres_server
from demos.screen import Screen
from demos.shared import flights_topic, run_killed, started
from downspout.broker.embedded import EmbeddedKafka
from downspout.kafka.clusters import cluster_for
from downspout.settings import folders

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
        """Return how many rows any reader sees."""
        return int(self.query("SELECT count(*) FROM flights")[0][0])


class SqlDemo:
    """One run of the demo."""

    def __init__(self, flights: int, kills: int, screen: Screen) -> None:
        self.count, self.kills, self.screen = flights, kills, screen
        self.kafka = EmbeddedKafka(folders.home() / "demo" / "kafka-to-kafka")  # that of `make kafka-demo`
        self.folder = folders.home() / "demo" / "sql"
        self.random = random.Random()

    def run(self) -> int:
        """Do all steps; return the exit code."""
        self.screen.step(1, "Start Kafka and publish the flights")
        with started(self.screen, self.kafka):
            frame = load_flights(self.count)
            flights = Flights(frame)
            self.topic = flights_topic(self.screen, self.kafka.bootstrap, flights)
            self.screen.step(2, f"downspout run {TARGET} into SQLite, killed {self.kills} times")
            right = self.write(self.sqlite(), frame, flights)
            self.screen.step(3, f"downspout run {TARGET} into PostgreSQL, killed {self.kills} times")
            programs = find_programs()
            if programs is None:
                self.screen.say("left out: PostgreSQL is not installed (apt-get install postgresql)")
            with postgres_server(programs) if programs else nullcontext() as server:
                if server is not None:
                    right = self.write(self.postgres(server), frame, flights) and right
        self.screen.end_step()
        return 0 if right else 1

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

    def write(self, target: Target, frame: pd.DataFrame, flights: Flights) -> bool:
        """Run the topology to the end, through all kills; return whether all is right then."""
        group = f"sql-demo-{uuid.uuid4().hex[:8]}"
        step = max(len(flights) // (self.kills + 2), 50)
        settings = [
            f"kafka.bootstrap={self.kafka.bootstrap}", f"kafka.topics={self.topic}", f"kafka.group={group}",
            f"sql.flush_rows={min(step // 4, 5_000)}",  # of few flights too, several flushes for each kill
            f"kafka.offset_store={target.url}", f"sql.database={target.url}", *target.settings,
        ]  # fmt: skip
        run = KilledRun(TARGET, settings, self.folder / f"{target.name}.log", target.written, self.screen)

        def say(pid: int) -> None:
            self.screen.say(f"kill -9 of process {pid}: {target.written():,} rows are in the table")

        began = time.monotonic()
        kills = kill_again_and_again(
            run, self.kills, lambda: self.random.randint(1, step), say, lambda: self.random.uniform(0.0, 0.2)
        )
        seconds = time.monotonic() - began
        return say_all(self.screen, self.audit(target, group, kills, seconds, frame, flights))

    def audit(
        self, target: Target, group: str, kills: int, seconds: float, frame: pd.DataFrame, flights: Flights
    ) -> Iterator[Finding]:
        """Yield the answers to the audit's questions."""
        yield Finding(kills > 0 or not self.kills, f"{count_of(kills, self.kills)}, {seconds:.0f} s")
        rows, distinct = target.query(COUNTS)[0]
        yield Finding(
            rows == distinct == len(flights),
            f"{rows:,} rows of {distinct:,} records are in {target.name}, for {len(flights):,} flights",
        )
        found = [tuple(row) for row in target.query(SUMS)]
        yield Finding(found == sums_of(frame), f"counts and sums of {len(found)} carriers equal pandas'")
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
    """Return what the database should say, by pandas."""
    frame = frame.assign(made_up=frame["dep_delay"] - frame["arr_delay"])
    names = ["distance", "dep_delay", "arr_delay", "made_up"]
    groups = frame.groupby("carrier")[names].sum(min_count=1)
    counts = frame.groupby("carrier").size()
    return [
        (carrier, int(counts[carrier]), *(None if pd.isna(value) else int(value) for value in groups.loc[carrier]))
        for carrier in sorted(groups.index)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 right, 1 something is wrong, 130 interrupted."""
    return run_killed("demos.to_sql", (__doc__ or "").split("\n")[0], SqlDemo, arguments)


if __name__ == "__main__":
    sys.exit(main())
