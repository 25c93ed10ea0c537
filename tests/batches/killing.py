"""Processes that count words in batches into SQLite, and die at a statement.

Metadata and state are in one file, two tasks emit, two tasks count, and two batches are active at once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from streamparse import Grouping, Topology

from bolts.state import StateBolt
from downspout.batches import read_state
from spouts.batches import KafkaBatches
from tests.batches.counting import Split, counted
from tests.killing import DatabaseWorld

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


class World(DatabaseWorld):
    openers = ("downspout.batches.sql_metadata.open_database", "downspout.batches.sql_state.open_database")
    urls = ("batch.store", "state.store")

    def __init__(self, folder: Path, kind: str) -> None:
        """Args: where the files are, and the kind of batches and state."""
        super().__init__(WordCount, folder, **{"batch.kind": kind, "state.kind": kind})
        self.kafka.create_topic("lines", 2)
        for number, line in enumerate(LINES):
            self.kafka.produce("lines", line.encode(), partition=number % 2)

    def violations(self) -> list[str]:
        """Return which counts are wrong in the end, and whether the metadata is that of the end."""
        found = Counter({key[0]: value for key, value in read_state(f"sqlite:///{self.file}", "counts").items()})
        wanted = counted(LINES)
        wrong = [f"{word}: {found[word]}, not {wanted[word]}" for word in found | wanted if found[word] != wanted[word]]
        rows = self.query("SELECT kafka_partition, max(txid), metadata FROM downspout_batch_ranges GROUP BY 1")
        last = f'"lastOffset":{len(LINES) // 2 - 1},'
        return wrong + [f"{name}: {text}" for name, _, text in rows if last not in text]
