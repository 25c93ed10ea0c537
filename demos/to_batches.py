"""Batches of text and of flights into states, on three engines and of both kinds, while the processes are killed.

    python -m demos.drill batches            # or: make batch-demo

1. starts its own Kafka broker, and publishes the project's own pages as lines, and the flights;
2. counts words (``topologies/batch_word_count.py``) and adds up flights (``topologies/batch_flights.py``), in opaque
   and in transactional batches, with ``downspout run``, with ``sparse submit`` on a real Storm, and with ``downspout
   spark run``. On the local engine each of these four is killed ten times with ``kill -9`` while batches are under way;
   on the others, where a start or a timeout takes ten seconds, the ten kills are shared between the four. On each
   engine the broker is stopped and started again once meanwhile;
3. prints what the states hold beside a plain count.

``FLIGHTS=20000`` takes fewer, ``KILLS=3`` kills less, ``ENGINES="local spark"`` leaves one out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pandas as pd
from rich.table import Table

from demos.audit import Finding
from demos.batch_engines import ENGINES, Counted, Engine, Job
from demos.drill import Drill, Step
from demos.killed import count_of
from demos.screen import Screen
from downspout.errors import BrokerError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("opaque", "transactional")
TEXT_PARTITIONS = 3
REPEATS = 5
SHOWN = 6
HITS_SHARE = 0.5
"""At least this share of the kills must hit an active batch, or the demo shows little. Some may hit its very end."""
SPLIT = """\
    made = batch_word_count.SplitBolt.spec(inputs=[records], par=2)
    counts = StateBolt.spec(
        coordinator=coordinator, inputs={{made: Grouping.fields("word")}}, par=2, store="{store}", key="word",
        update="count", kind="{kind}",
    )
"""
PARSE = """\
    made = batch_flights.ParseBolt.spec(inputs=[records], par=2)
    carriers = StateBolt.spec(
        coordinator=coordinator, inputs={{made: Grouping.fields("carrier")}}, par=2, store="{store}", key="carrier",
        update=batch_flights.arrivals, kind="{kind}",
    )
"""


class BatchDemo(Drill):
    """One run of the demo."""

    NAME, PUBLISHES = "batches", "Start Kafka and publish lines and flights"

    def __init__(
        self, flights: int, kills: int, screen: Screen, seed: int | None = None, engines: Sequence[str] = tuple(ENGINES)
    ) -> None:
        super().__init__(flights, kills, screen, seed)
        self.engines = engines
        self.jars = ["storm"] if "storm" in engines else []
        self.counted: dict[str, list[Counted]] = {}

    def publish(self) -> None:
        """Bring lines and flights into their topics."""
        super().publish()
        flights = Job(
            "flights", "batch_flights", self.topic, "carriers", len(self.frame), carriers_of(self.frame), PARSE,
            'value_format="json",',
        )  # fmt: skip
        self.jobs = [self.words(), flights]

    def steps(self) -> Iterator[Step]:
        """Yield a step for each engine, and their results side by side."""
        for name in self.engines:
            engine = ENGINES[name](self.kafka, self.folder, self.screen, self.random)
            yield f"{engine.name}: {engine.does}", partial(self.count_on, engine)
        yield "The states, side by side", self.show

    def count_on(self, engine: Engine) -> Iterator[Finding]:
        """Run all jobs on an engine."""
        with engine.running():
            for job, kind, kills in self.runs(engine, self.jobs):
                found = engine.count(job, kind, kills)
                self.counted.setdefault(job.name, []).append(found)
                yield self.audit(job, found)

    def show(self) -> Iterator[Finding]:
        """Print the tables; nothing is found."""
        for job in self.jobs:
            self.screen.table(beside(job, self.counted[job.name]))
        return iter(())

    def runs(self, engine: Engine, jobs: Sequence[Job]) -> list[tuple[Job, str, int]]:
        """Return what an engine runs, and how often each is killed."""
        each = [(job, kind) for job in jobs for kind in KINDS]
        if engine.is_quick:
            return [(job, kind, self.kills) for job, kind in each]
        share, left = divmod(self.kills, len(each))
        return [(job, kind, share + (number < left)) for number, (job, kind) in enumerate(each)]

    # --- what is published ---

    def words(self) -> Job:
        """Publish the lines of the project's pages, several times over, and count their words."""
        lines = project_lines() * REPEATS
        name = f"lines-{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:12]}"
        publish(self.kafka.bootstrap, name, lines)
        self.screen.say(f"{len(lines):,} lines are in {name}")
        wanted = dict(Counter(word for line in lines for word in line.split()))
        return Job("words", "batch_word_count", name, "counts", len(lines), wanted, SPLIT)

    # --- what is found ---

    def audit(self, job: Job, counted: Counted) -> Finding:
        """Return whether a state is equal to the plain count."""
        wrong = [key for key in {*job.wanted, *counted.found} if job.wanted.get(key) != counted.found.get(key)]
        is_right = not wrong and counted.hits >= counted.kills * HITS_SHARE
        what = "equal a plain count" if not wrong else f"differ from a plain count in {len(wrong)} keys"
        restarted = ", the broker restarted" if counted.restarts else ""
        return Finding(
            is_right,
            f"{counted.name}, {job.name}: {count_of(counted.kills, counted.wanted_kills)}, {counted.hits} of them in a "
            f"batch{restarted}, {counted.batches} batches, {counted.seconds:.0f} s: "
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


def beside(job: Job, counted: Sequence[Counted]) -> Table:
    """Return the largest values, each engine's and kind's beside the plain count's."""
    table = Table(box=None)
    for name in (job.name, "plain count", *(each.name for each in counted)):
        table.add_column(name, justify="left" if name == job.name else "right")
    for key in sorted(job.wanted, key=lambda key: job.wanted[key], reverse=True)[:SHOWN]:
        values = (each.found.get(key, "none") for each in counted)
        table.add_row(key, job.show(job.wanted[key]), *(job.show(value) for value in values))
    return table
