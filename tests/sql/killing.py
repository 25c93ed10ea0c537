"""Processes that run a topology from Kafka into SQLite, and die at a statement.

What a ``kill -9`` leaves is what is in the files at that moment, as the system has them, with the lock gone and the
transaction open. So the files are copied there and then, and whoever comes next gets the copy.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from streamparse import Topology

from bolts.sql import SqlBolt
from downspout.kafka import TopicPartition
from downspout.offsets.stores.sql import open_database
from downspout.testing import Killed
from spouts.kafka import KafkaSpout
from tests.producing import killing
from tests.producing.killing import IN, Split

GROUP = "into-sql"
RECORDS = 16
OPENERS = ("bolts.sql.open_database", "downspout.offsets.stores.sql.open_database")
MODES = ("wal", "delete")
"""How SQLite keeps what is not committed: beside the file, or in it, with a journal to undo it."""
Killer = Callable[[int, str], bool]
"""Is told of each moment (number, statement): one before each statement and one after it; True kills there."""


class IntoSql(Topology):
    """Each record gives two rows; one record fails for good."""

    lines = KafkaSpout.spec(
        topics=[IN], group=GROUP, fields=["origin", "value"], poll_records_max=4, retries_max=1, commit_period_ms=100
    )
    split = Split.spec(inputs=[lines])
    store = SqlBolt.spec(inputs=[split], database="sqlite:///set-later.db", table="results", flush_rows=6)


class Life(killing.Life):
    """One process, whose statements are moments at which it may die."""

    openers: ClassVar[tuple[str, ...]] = OPENERS

    def __init__(self, world: World, kill: Killer) -> None:
        super().__init__(world, lambda number, name: None)  # what it needs of a world is there
        self._kill, self.moments = kill, 0

    def step(self, name: str) -> Callable[[], None]:
        """A call of Kafka: no moment, and nothing for the dead."""
        self.check()
        return self.check

    def moment(self, statement: str) -> None:
        self.check()
        self.moments += 1
        if self._kill(self.moments, " ".join(statement.split())[:60]):
            self.is_dead = True
            self.world.take_copy()
            raise Killed

    def run(self) -> bool:
        """Run to the end of the log; return whether it got there."""

        def stepped(*args: Any, **options: Any) -> Any:
            return Stepped(self, open_database(*args, **options))

        with ExitStack() as stack:
            for opener in self.openers:
                stack.enter_context(patch(opener, stepped))
            ended = super().run()
        assert ended or self.is_dead, "it ended with an error"
        return ended


class Stepped:
    """A database, of which each statement is two moments."""

    def __init__(self, life: Life, real: Any) -> None:
        self._life, self._real = life, real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in ("begin", "commit", "run", "run_many"):
            return found

        def call(*args: Any) -> Any:
            statement = str(args[0]) if args else name
            self._life.moment(statement)
            answer = found(*args)
            self._life.moment(statement)
            return answer

        return call

    def rollback(self) -> None:
        self._life.check()
        self._real.rollback()

    def close(self) -> None:
        """Close; of the dead the files are not looked at any more."""
        self._real.close()


class World(killing.World):
    """Kafka and a file, and what must be in it in the end."""

    def __init__(self, folder: Path, mode: str = "wal", **settings: Any) -> None:
        super().__init__(IntoSql, **settings)
        self.folder, self.copies = folder, 0
        folder.mkdir(parents=True)
        self.file = folder / "0.db"
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute(f"PRAGMA journal_mode = {mode}").close()
            connection.execute("CREATE TABLE results (message TEXT NOT NULL, key TEXT)")
            connection.commit()
        self._point_at_it()

    def _point_at_it(self) -> None:
        url = f"sqlite:///{self.file}"
        self.settings |= {"sql.database": url, "kafka.offset_store": url}

    def take_copy(self) -> None:
        """Let what comes next find the files as they are now."""
        self.copies += 1
        copy = self.folder / f"{self.copies}.db"
        for suffix in ("", "-wal", "-journal"):
            if (found := Path(f"{self.file}{suffix}")).exists():
                shutil.copyfile(found, f"{copy}{suffix}")
        self.file = copy
        self._point_at_it()

    def lives(self, kill: Any = lambda number, statement: False, **settings: Any) -> bool:
        """Let a process run; return whether it got to the end."""
        before, self.settings = self.settings, {**self.settings, **settings}
        life = Life(self, kill)
        try:
            return life.run()
        finally:
            if not life.is_dead:
                self.settings = before
            else:
                self.settings = {
                    **before,
                    **{key: self.settings[key] for key in ("sql.database", "kafka.offset_store")},
                }

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(statement).fetchall()

    def violations(self) -> list[str]:
        """Return what is wrong in the end: rows that are there twice or not at all, offsets that are not the end."""
        found = Counter(message for (message,) in self.query("SELECT message FROM results"))
        wanted = Counter(f"{n}.{half}" for n in range(RECORDS) if n != 9 for half in range(2))
        wanted["bad.0"] = min(found["bad.0"], 1)  # what its bolt emitted before it failed: once, or not at all
        wrong = [f"{key}: {found[key]} times" for key in sorted(found | wanted) if found[key] != wanted[key]]
        ends = {number: self.kafka.log(TopicPartition(IN, number)).end for number in range(2)}
        stored = dict(self.query("SELECT kafka_partition, next_offset FROM downspout_offsets"))
        copies = {tp.partition: found.offset for tp, found in self.kafka.committed(GROUP).items()}
        if not stored == copies == ends:
            wrong.append(f"the ends are {ends}, the store has {stored}, the group {copies}")
        dead = self._committed(f"{GROUP}.dead-letters")
        return wrong + ([] if dead["bad"] >= 1 and len(dead) == 1 else [f"dead letters: {dict(dead)}"])
