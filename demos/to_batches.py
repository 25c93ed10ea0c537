"""Batches of text and of flights into states, both kinds, while the processes are killed.

    python -m demos.to_batches            # or: make batch-demo

1. starts its own Kafka broker, and publishes the project's own pages as lines, and the flights;
2. counts words (``topologies/batch_word_count.py``) and adds up flights (``topologies/batch_flights.py``) on the local
   engine, in opaque and in transactional batches; kills each ten times with ``kill -9`` while batches are under way;
   then lets it run to the end;
3. prints what the states hold beside a plain count.

``FLIGHTS=20000`` takes fewer, ``KILLS=3`` kills less.
"""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from demos.audit import Finding, say_all
from demos.flights_data import Flights, load_flights
from demos.killed import KilledRun, count_of, kill_again_and_again
from demos.screen import Screen
from demos.shared import flights_topic, run_killed, started
from downspout.batches.backends.sql_state import read_state
from downspout.broker.embedded import EmbeddedKafka
from downspout.errors import BrokerError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.settings import folders

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("opaque", "transactional")
BATCHES_PER_KILL = 6
TEXT_PARTITIONS = 3
REPEATS = 5
SHOWN = 6
HITS_SHARE = 0.95
"""So much of the kills must have hit an active batch, or they show nothing."""


@dataclass(frozen=True)
class Job:
    """What is counted."""

    name: str
    target: str
    topic: str
    state: str
    records: int
    wanted: Mapping[str, Any]  # by a plain count

    def show(self, value: Any) -> str:
        """Return a value for a column."""
        return " / ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Counted:
    """What a job has stored in batches of one kind."""

    kind: str
    kills: int
    hits: int  # kills while an attempt was active
    batches: int
    seconds: float
    found: Mapping[str, Any]


class BatchDemo:
    """One run of the demo."""

    def __init__(self, flights: int, kills: int, screen: Screen, seed: int | None = None) -> None:
        self.count, self.kills, self.screen = flights, kills, screen
        self.kafka = EmbeddedKafka(folders.home() / "demo" / "kafka-to-kafka")  # that of `make kafka-demo`
        self.folder = folders.home() / "demo" / "batches"
        self.random = random.Random(seed)

    def run(self) -> int:
        """Do all steps; return the exit code."""
        self.screen.step(1, "Start Kafka and publish lines and flights")
        right = True
        with started(self.screen, self.kafka):
            for number, job in enumerate((self.words(), self.flights()), 2):
                self.screen.step(number, f"downspout run {job.target}, each kind killed {self.kills} times")
                counted = [self.write(job, kind) for kind in KINDS]
                self.screen.table(beside(job, counted))
                right = say_all(self.screen, (self.audit(job, each) for each in counted)) and right
        self.screen.end_step()
        return 0 if right else 1

    # --- what is published ---

    def words(self) -> Job:
        """Publish the lines of the project's pages, several times over, and count their words."""
        lines = project_lines() * REPEATS
        name = f"lines-{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:12]}"
        publish(self.kafka.bootstrap, name, lines)
        self.screen.say(f"{len(lines):,} lines are in {name}")
        wanted = Counter(word for line in lines for word in line.split())
        return Job("words", "topologies/batch_word_count.py", name, "counts", len(lines), wanted)

    def flights(self) -> Job:
        """Publish the flights, and add them up with pandas."""
        frame = load_flights(self.count)
        topic = flights_topic(self.screen, self.kafka.bootstrap, Flights(frame))
        return Job("flights", "topologies/batch_flights.py", topic, "carriers", len(frame), carriers_of(frame))

    # --- a run ---

    def write(self, job: Job, kind: str) -> Counted:
        """Run a topology to the end, through all kills."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = Path(self.folder / f"{job.name}-{kind}-{uuid.uuid4().hex[:8]}.db").absolute()
        settings = [
            f"kafka.bootstrap={self.kafka.bootstrap}", f"kafka.topics={job.topic}", f"batch.kind={kind}",
            f"state.kind={kind}", f"batch.store=sqlite:///{path}", f"state.store=sqlite:///{path}",
            "batch.emit_interval_ms=0", "batch.max_active=2",
            f"batch.records_max={max(job.records // (BATCHES_PER_KILL * (self.kills + 2)), 2)}",
        ]  # fmt: skip
        log = self.folder / f"{job.name}-{kind}.log"
        log.unlink(missing_ok=True)
        run = KilledRun(job.target, settings, log, lambda: committed(path), self.screen)
        hits: list[bool] = []
        began = time.monotonic()
        kills = kill_again_and_again(
            run, self.kills, lambda: self.random.randint(1, BATCHES_PER_KILL - 1),
            lambda pid: hits.append(is_active(path)), lambda: self.random.uniform(0.0, 0.1),
        )  # fmt: skip
        found = {key[0]: value for key, value in read_state(f"sqlite:///{path}", job.state).items()}
        counted = Counted(kind, kills, sum(hits), committed(path), time.monotonic() - began, found)
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return counted

    def audit(self, job: Job, counted: Counted) -> Finding:
        """Return whether a state is equal to the plain count."""
        wrong = [key for key in {*job.wanted, *counted.found} if job.wanted.get(key) != counted.found.get(key)]
        is_right = not wrong and counted.hits >= self.kills * HITS_SHARE
        what = "equal a plain count" if not wrong else f"differ from a plain count in {len(wrong)} keys"
        return Finding(
            is_right,
            f"{counted.kind}: {count_of(counted.kills, self.kills)}, {counted.hits} of them in a batch, "
            f"{counted.batches} batches, {counted.seconds:.0f} s: "
            f"{len(counted.found):,} keys of {job.records:,} records {what}",
        )


def project_lines() -> list[str]:
    """Return the lines of the project's pages that have words."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if line.strip()]


def publish(bootstrap: str, topic: str, lines: Sequence[str]) -> None:
    """Bring the topic to hold exactly these lines; one that holds a part of them is gone on with."""
    cluster = cluster_for(bootstrap)
    cluster.ensure_topic(topic, TEXT_PARTITIONS, {})
    consumer = cluster.consumer(group=None)
    with closing(consumer):
        partitions = [TopicPartition(topic, number) for number in range(TEXT_PARTITIONS)]
        ends = consumer.end_offsets(partitions)
    producer = cluster.producer()
    with closing(producer):
        for tp in partitions:
            own = lines[tp.partition :: TEXT_PARTITIONS]
            if ends[tp] > len(own):
                raise BrokerError(f"topic {topic} holds more than was published", cure="delete that topic")
            for line in own[ends[tp] :]:
                producer.send(topic, key=None, value=line.encode(), partition=tp.partition)
        producer.flush(60.0)


def carriers_of(frame: pd.DataFrame) -> dict[str, list[int]]:
    """Return what the state should hold, by pandas."""
    groups = frame.groupby("carrier")["arr_delay"]
    sizes, arrived, delays = groups.size(), groups.count(), groups.sum()
    return {str(carrier): [int(sizes[carrier]), int(arrived[carrier]), int(delays[carrier])] for carrier in sizes.index}


def committed(path: Path) -> int:
    """Return how many transactions are committed."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=60)) as connection:
        for (current,) in connection.execute("SELECT current_txid FROM downspout_batches"):
            return int(current or 1) - 1
    return 0


def is_active(path: Path) -> bool:
    """Return whether an attempt has begun and is not committed."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        found = connection.execute("SELECT attempts FROM downspout_batches").fetchall()
    return any(json.loads(attempts) for (attempts,) in found)


def beside(job: Job, counted: Sequence[Counted]) -> Table:
    """Return the largest values, each kind's beside the plain count's."""
    table = Table(box=None)
    for name in (job.name, "plain count", *(each.kind for each in counted)):
        table.add_column(name, justify="left" if name == job.name else "right")
    for key in sorted(job.wanted, key=lambda key: job.wanted[key], reverse=True)[:SHOWN]:
        values = (each.found.get(key, "none") for each in counted)
        table.add_row(key, job.show(job.wanted[key]), *(job.show(value) for value in values))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code: 0 right, 1 something is wrong, 130 interrupted."""
    return run_killed("demos.to_batches", (__doc__ or "").split("\n")[0], BatchDemo, arguments)


if __name__ == "__main__":
    sys.exit(main())
