"""Processes that run a topology from Kafka into SQLite, and die at a statement."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from streamparse import Topology

from bolts.sql import SqlBolt
from downspout.kafka import TopicPartition
from spouts.kafka import KafkaSpout
from tests.killing import DatabaseWorld
from tests.producing.killing import IN, RECORDS, Split, fill

GROUP = "into-sql"
MODES = ("wal", "delete")
"""How SQLite keeps what is not committed: beside the file, or in it, with a journal to undo it."""


class IntoSql(Topology):
    """Each record gives two rows; one record fails for good."""

    lines = KafkaSpout.spec(
        topics=[IN], group=GROUP, fields=["origin", "value"], poll_records_max=4, retries_max=1, commit_period_ms=100
    )
    split = Split.spec(inputs=[lines])
    store = SqlBolt.spec(inputs=[split], database="sqlite:///set-later.db", table="results", flush_rows=6)


class World(DatabaseWorld):
    openers = ("bolts.sql.open_database", "downspout.offsets.stores.sql.open_database")
    urls = ("sql.database", "kafka.offset_store")

    def __init__(self, folder: Path, mode: str = "wal", **settings: Any) -> None:
        super().__init__(IntoSql, folder, **settings)
        fill(self.kafka)
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute(f"PRAGMA journal_mode = {mode}").close()
            connection.execute("CREATE TABLE results (message TEXT NOT NULL, key TEXT)")
            connection.commit()

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
        dead = self.committed(f"{GROUP}.dead-letters")
        return wrong + ([] if dead["bad"] >= 1 and len(dead) == 1 else [f"dead letters: {dict(dead)}"])
