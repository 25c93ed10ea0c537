"""The environment of a race: a broker, topics of flights, and an empty folder for each run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.check import check
from bench.contenders import TYPES, Contender, types
from bench.flights import PARTITIONS, spoiled
from bench.harness import ROOT, BenchError, Cost, HungError, median, run, say
from bench.shapes import Shape
from downspout.broker.embedded import EmbeddedKafka
from downspout.dead_letters.dead_letter import read_dead_letters
from downspout.kafka.clusters import cluster_for

START_S_MAX, RECORD_S_MAX = 180.0, 0.0005
"""A run that takes longer (at least eight minutes for a million records) hangs."""


@dataclass
class Measured:
    """The measurements of a contender with some records, and with four for the cost of its start.

    Attributes:
        contender: the contender.
        records: number of records.
        costs: of each run.
        start_ups: of each run over few records.
        files: how many the last run wrote.
    """

    contender: Contender
    records: int
    costs: list[Cost] = field(default_factory=list)
    start_ups: list[Cost] = field(default_factory=list)
    files: int = 0

    @property
    def start_s(self) -> float:
        """CPU-seconds of starting."""
        return median(self.start_ups).cpu_s

    @property
    def each_us(self) -> list[float]:
        """CPU-microseconds per record (CPU-seconds per million) in each run, without starting."""
        return [(cost.cpu_s - self.start_s) / self.records * 1e6 for cost in self.costs]

    @property
    def rate(self) -> float:
        """Records per second of wall time, without starting."""
        return self.records / (median(self.costs).wall_s - median(self.start_ups).wall_s)

    @property
    def rss_bytes(self) -> int:
        """The largest resident size of a run."""
        return median(self.costs).rss_bytes


class Track:
    """A broker with topics, and an empty folder for each run.

    Args:
        bootstrap: of the broker.
        scratch: where runs write.
    """

    def __init__(self, bootstrap: str, scratch: Path) -> None:
        self.bootstrap, self.scratch = bootstrap, scratch
        self.notes: list[str] = []
        """what a reader of the report must know"""
        self._runs = 0

    def run(
        self, contender: Contender, topic: str, records: int, share: float = 0.0, shape: Shape | None = None
    ) -> tuple[Cost, int]:
        """Run a contender over a topic; return its cost and how many files it made.

        One that hangs (kafka-python's consumer does, rarely: it counts itself as a member of a group that has none) is
        started once more, and that is noted.

        Raises:
            BenchError: it failed, or its result is wrong.
        """
        try:
            try:
                return self._attempt(contender, topic, records, share, shape)
            except HungError:
                self.notes.append(f"{contender.name} hung once and was started again; that is in no figure.")
                say(self.notes[-1])
                return self._attempt(contender, topic, records, share, shape)
        except BenchError as error:
            raise type(error)(f"{contender.name} on {topic}: {error}") from None

    def _attempt(
        self, contender: Contender, topic: str, records: int, share: float, shape: Shape | None
    ) -> tuple[Cost, int]:
        self._runs += 1
        place = self.scratch / f"run-{self._runs}"
        place.mkdir()
        group, out = f"{topic}-{contender.key}-{self._runs}", place / "out"
        environment = {
            "PYTHONPATH": str(ROOT) if contender.ours else "",
            "POLARS_MAX_THREADS": "1",
            "DOWNSPOUT_HOME": str(place / "home"),
        }
        try:
            command = contender.line(self.bootstrap, topic, group, out, records)
            if shape is not None:
                environment |= shape.environment
                command = [types(shape.types) if part == TYPES else part for part in command]
            cost = run(command, START_S_MAX + records * RECORD_S_MAX, environment=environment, cwd=place)
            files = check(out, records, share, shape)
            if contender.group:
                self._check_committed(group, records)
            if share:
                self._check_letters(group, records, share)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return cost, files

    def _check_letters(self, group: str, records: int, share: float) -> None:
        letters = [
            letter.partition + PARTITIONS * letter.offset
            for letter in read_dead_letters(cluster_for(self.bootstrap), f"{group}.dead-letters")
        ]
        wanted = np.flatnonzero(spoiled(np.arange(records), share))
        if sorted(letters) != wanted.tolist():
            raise BenchError(f"{len(letters):,} dead letters, and {len(wanted):,} records were spoiled, or others")

    def _check_committed(self, group: str, records: int) -> None:
        found = {tp.partition: kept.offset for tp, kept in cluster_for(self.bootstrap).group_offsets(group).items()}
        ends = {p: (records - p + PARTITIONS - 1) // PARTITIONS for p in range(PARTITIONS)}
        if found != ends:
            raise BenchError(f"committed is {found}, and the ends are {ends}")


@contextmanager
def track() -> Iterator[Track]:
    """Start a broker in a temporary directory, and stop it at the end."""
    folder = tempfile.TemporaryDirectory(prefix="downspout-bench-")
    with folder as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        yield Track(broker.bootstrap, Path(scratch))
