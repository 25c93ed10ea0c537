"""Processes that count words in batches into SQLite, and die at a statement.

The machinery is that of ``tests/sql/killing.py``: the files are copied at the moment of death. Metadata and state are
in one file, two tasks emit, two tasks count, and two batches are active at once.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from streamparse import Grouping, Topology

from bolts.state import StateBolt
from downspout.batches import read_state
from downspout.testing import FakeKafka
from spouts.batches import KafkaBatches
from tests.batches.counting import Split, counted
from tests.producing.killing import HastyClock, _worlds
from tests.sql import killing

LINES = [f"a {'b ' * (number % 3)}word-{number % 5}" for number in range(14)]


class WordCount(Topology):
    coordinator, lines = KafkaBatches.spec(
        topics=["lines"], fields=["value"], emit_interval_ms=0, records_max=4, max_active=2, par=2
    )
    split = Split.spec(inputs=[lines])
    counts = StateBolt.spec(
        coordinator=coordinator, inputs={split: Grouping.fields("word")}, par=2,
        store="sqlite:///set-later.db", key="word", update="count",
    )  # fmt: skip


class Life(killing.Life):
    openers: ClassVar[tuple[str, ...]] = (
        "downspout.batches.sql_metadata.open_database",
        "downspout.batches.sql_state.open_database",
    )


class World(killing.World):
    """Kafka and a file, and what must be in it in the end.

    Args:
        folder: where the files are.
        kind: of batches and state.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.topology, self.settings = WordCount, dict[str, Any]()
        self.clock, self.folder, self.copies = HastyClock(), folder, 0
        self.kafka = FakeKafka(f"killing-{next(_worlds)}", self.clock)
        self.kafka.create_topic("lines", 2)
        for number, line in enumerate(LINES):
            self.kafka.produce("lines", line.encode(), partition=number % 2)
        folder.mkdir(parents=True)
        self.file = folder / "0.db"
        self.settings = {"batch.kind": kind, "state.kind": kind}
        self._point_at_it()

    def _point_at_it(self) -> None:
        url = f"sqlite:///{self.file}"
        self.settings = {**self.settings, "batch.store": url, "state.store": url}

    def lives(self, kill: Any = lambda number, statement: False, **settings: Any) -> bool:
        """Let a process run; return whether it got to the end."""
        self.settings = {**self.settings, **settings}
        return Life(self, kill).run()

    def violations(self) -> list[str]:
        """Return which counts are wrong in the end, and whether the metadata is that of the end."""
        found = Counter({key[0]: value for key, value in read_state(f"sqlite:///{self.file}", "counts").items()})
        wanted = counted(LINES)
        wrong = [f"{word}: {found[word]}, not {wanted[word]}" for word in found | wanted if found[word] != wanted[word]]
        with closing(sqlite3.connect(self.file)) as connection:
            rows = connection.execute(
                "SELECT kafka_partition, max(txid), metadata FROM downspout_batch_ranges GROUP BY 1"
            )
            ends = {name: text for name, _, text in rows.fetchall()}
        last = f'"lastOffset":{len(LINES) // 2 - 1},'
        return wrong + [f"{name}: {text}" for name, text in ends.items() if last not in text]
