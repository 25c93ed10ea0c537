"""`make storm-chaos`: `kill -9` of workers and components of a topology on a real Storm, under load.

A feeder writes numbers at a constant rate. Between two kills passes a random time; a victim is a worker's JVM or the
process of a spout, of a stock streamparse bolt, or of a sink. After the last kill the harness waits until all that was
written by then is committed, stops the feeder, and audits. It prints how long that took, the rows, the dead letters.
With ``--poison`` some records kill the process that handles them: those, and no others, must become dead letters.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset as ds

from downspout.audit.audit import audit
from downspout.broker import EmbeddedKafka
from downspout.dead_letters import read_dead_letters
from downspout.kafka import TopicPartition
from downspout.storm import StormNode
from downspout.system import birth
from downspout.system.process import send_signal
from downspout.testing import UNHURRIED
from tests.storm.support import ROOT, SHORT_LIVED, Place, children

TOPIC = "storm_chaos"
PARTITIONS = 4
WORKER = "org.apache.storm.daemon.worker.Worker"
VICTIMS = (WORKER, "spouts.kafka.KafkaSpout", "tools.storm_chaos_bolts.Number", "bolts.parquet.ParquetBolt")
NAMES = ("worker", "spout", "bolt", "sink")
RECOVERY_S_MAX = 60.0
WAIT_S_MAX = 1_500.0
STARTED_S_MAX = 240.0

TOPOLOGY = """\
from streamparse import Topology

from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout
from tools.storm_chaos_bolts import Number


class StormChaos(Topology):
    # Tuples on their way to a process that died come again after one to two message timeouts: 30 s, unless it is set.
    config = {{"topology.workers": 2, "topology.max.spout.pending": 4000, "topology.message.timeout.secs": 20}}
    spout = KafkaSpout.spec(topics=["storm_chaos"], par=2, fields=["origin", "value"], {spout})
    numbers = Number.spec(inputs=[spout], par=2)
    sink = ParquetBolt.spec(inputs=[numbers], par=2, directory="output/storm_chaos", schema={{"number": "int64"}})
"""


@dataclass(frozen=True)
class Kill:
    """One kill: when, in seconds from the first moment, and of what."""

    at: float
    victim: str
    choice: float


def make_plan(kills: int, minutes: float, seed: int) -> list[Kill]:
    """Return the kills in their order, each kind of victim in turn, at random moments.

    >>> plan = make_plan(20, 5, seed=1)
    >>> len(plan), sorted({kill.victim for kill in plan}), plan == make_plan(20, 5, seed=1)
    (20, ['bolt', 'sink', 'spout', 'worker'], True)
    >>> all(0 <= kill.at <= 300 for kill in plan)
    True
    """
    chance = random.Random(seed)
    names = [NAMES[number % len(NAMES)] for number in range(kills)]
    chance.shuffle(names)
    moments = sorted(chance.uniform(0, 60 * minutes) for _ in range(kills))
    return [Kill(at, name, chance.random()) for at, name in zip(moments, names, strict=True)]


class Feeder(threading.Thread):
    """Writes numbers at a constant rate, to each partition in turn; every so many may be poison.

    Args:
        place: where the broker is.
        rate: records per second.
        poison: numbers of records that kill.
    """

    def __init__(self, place: Place, rate: int, poison: frozenset[int]) -> None:
        super().__init__(name="feeder", daemon=True)
        self._cluster, self._rate, self._poison = place.cluster, rate, poison
        self._end = threading.Event()
        self.written = 0

    def run(self) -> None:
        """Write until :meth:`end`."""
        producer = self._cluster.producer(client={"linger_ms": 20})
        began = time.monotonic()
        while not self._end.wait(0.1):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(self.written, due):
                value = b"kill %d" % number if number in self._poison else b"%d" % number
                producer.send(TOPIC, key=None, value=value, partition=number % PARTITIONS)
            producer.flush()
            self.written = max(self.written, due)
        producer.close()

    def end(self) -> None:
        """Stop, and wait until that is so."""
        self._end.set()
        self.join(60.0)


@dataclass
class Outcome:
    """What was seen."""

    killed: list[str] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    """The lag at each kill."""
    recovery_s: float | None = None
    records: int = 0
    rows: int = 0
    letters: dict[int, str] = field(default_factory=dict)
    """By number of the record: the kind of its failure."""
    verdict: str = ""
    exact: bool = False


class StormChaos:
    """One run.

    Args:
        place: a project, a Kafka, and a Storm that runs.
        told: is told what happens.
    """

    def __init__(self, place: Place, told: Callable[[str], None]) -> None:
        self._place, self._told = place, told
        self._consumer = place.cluster.consumer(group=TOPIC)
        self._parts = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]

    def play(self, plan: list[Kill], rate: int, poison: frozenset[int], spout: str) -> Outcome:
        """Submit, kill, wait, audit."""
        place, outcome = self._place, Outcome()
        place.publish(0, TOPIC, PARTITIONS)
        (place.project / "topologies" / f"{TOPIC}.py").write_text(TOPOLOGY.format(spout=spout), encoding="utf-8")
        code, said = place.sparse("submit", "-n", TOPIC)
        if code != 0:
            raise RuntimeError(said)
        feeder = Feeder(place, rate, poison)
        feeder.start()
        try:
            self._wait(lambda: sum(self._committed()) > 0, STARTED_S_MAX, "the first commit")
            self._kill_all(plan, outcome)
            self._recover(outcome)
        finally:
            feeder.end()
        if outcome.recovery_s is not None:
            ends = self._ends()
            self._wait(lambda: self._are_there(ends), WAIT_S_MAX, "the end")
        outcome.records = sum(self._ends())
        outcome.letters = {
            int(bytes(letter.record.value or b"0").removeprefix(b"kill ")): letter.kind
            for letter in read_dead_letters(place.cluster, f"{TOPIC}.dead-letters")
            if letter.record is not None
        }
        output = place.project / "output" / TOPIC
        report = audit(output, cluster=place.cluster, topics=[TOPIC], dead_letters=f"{TOPIC}.dead-letters")
        outcome.verdict, outcome.exact = report.verdict, report.exit_code == 0
        outcome.rows = ds.dataset(output, format="parquet").count_rows()
        return outcome

    def _kill_all(self, plan: list[Kill], outcome: Outcome) -> None:
        began = time.monotonic()
        for number, kill in enumerate(plan, 1):
            time.sleep(max(0.0, began + kill.at - time.monotonic()))
            lag = sum(self._ends()) - sum(self._committed())
            hit = self._kill(kill)
            outcome.behind.append(lag)
            outcome.killed.append(hit)
            self._told(f"{number}/{len(plan)} kill -9 of a {hit or 'process that is not there'}, lag {lag:,}")

    def _kill(self, kill: Kill) -> str:
        """Kill one process of the kind, or of another where none of it runs; return of which."""
        group = self._place.workers_group()
        first = NAMES.index(kill.victim)
        kinds = [*zip(NAMES, VICTIMS, strict=True)]
        for name, program in kinds[first:] + kinds[:first]:
            if found := sorted(children(group, program)):
                pid = found[int(kill.choice * len(found))]
                if (born := birth(pid)) and send_signal(pid, born, signal.SIGKILL):
                    return name
        return ""

    def _recover(self, outcome: Outcome) -> None:
        began, ends = time.monotonic(), self._ends()
        told = began
        while time.monotonic() - began < WAIT_S_MAX:
            if self._are_there(ends):
                outcome.recovery_s = time.monotonic() - began
                return
            if time.monotonic() - told > 15:
                told = time.monotonic()
                left = [max(0, end - at) for at, end in zip(self._committed(), ends, strict=True)]
                self._told(f"{told - began:.0f} s after the last kill: {left} not committed")
            time.sleep(0.5)

    def _are_there(self, ends: list[int]) -> bool:
        return all(at >= end for at, end in zip(self._committed(), ends, strict=True))

    def _committed(self) -> list[int]:
        commits = self._consumer.committed(self._parts)
        return [commit.offset if (commit := commits[part]) else 0 for part in self._parts]

    def _ends(self) -> list[int]:
        ends = self._consumer.end_offsets(self._parts)
        return [ends[part] for part in self._parts]

    def _wait(self, over: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not over():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come within {seconds:g} s")
            time.sleep(0.5)


def text(outcome: Outcome, poison: frozenset[int]) -> tuple[str, int]:
    """Return the report, and the exit code.

    >>> seen = Outcome(killed=["worker"], recovery_s=9.0, records=5, rows=5, verdict="exact", exact=True)
    >>> text(seen, frozenset())[1], text(Outcome(recovery_s=9.0, exact=True, letters={7: "crash"}), frozenset())[1]
    (0, 1)
    """
    healthy = sorted(set(outcome.letters) - poison)
    missed = sorted(number for number in poison - set(outcome.letters) if number < outcome.records)
    recovery = "never" if outcome.recovery_s is None else f"{outcome.recovery_s:.1f} s"
    problems = [f"healthy records are dead letters: {healthy}"] if healthy else []
    problems += [f"records that kill are no dead letters: {missed}"] if missed else []
    problems += [] if outcome.exact else [outcome.verdict]
    if outcome.recovery_s is None or outcome.recovery_s > RECOVERY_S_MAX:
        problems.append(f"caught up after {recovery}, not within {RECOVERY_S_MAX:g} s")
    of = {name: outcome.killed.count(name) for name in NAMES}
    lines = [
        f"kills      {sum(of.values())}: " + ", ".join(f"{count} {name}" for name, count in of.items()),
        f"recovery   {recovery} after the last kill until all that was written by then is committed",
        f"lag        {max(outcome.behind, default=0):,} records at most when a kill came",
        f"records    {outcome.records:,}",
        f"rows       {outcome.rows:,}",
        f"letters    {len(outcome.letters)}: {len(healthy)} healthy, {len(outcome.letters) - len(healthy)} that kill",
        f"audit      {outcome.verdict}",
        "Good." if not problems else "NOT good: " + "; ".join(problems),
    ]
    return "\n".join(lines), 1 if problems else 0


def main() -> int:
    """Parse, start, run, report, stop."""
    parser = argparse.ArgumentParser(prog="python -m tools.storm_chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=500, help="records per second (default: 500)")
    parser.add_argument("--poison", type=int, default=0, help="how many records kill their process (default: 0)")
    parser.add_argument("--spout", default="", help="more settings of the spout, in Python: retries_max=2")
    parser.add_argument("--folder", type=Path, help="where all data go, and stay; otherwise a temporary folder")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="downspout-storm-chaos-"))
    began = time.monotonic()

    def told(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {what}", file=sys.stderr, flush=True)

    home, project = folder / "home", folder / "project"
    (project / "topologies").mkdir(parents=True)
    home.mkdir()
    for name in ("config.json", "project.clj", "src"):
        (project / name).symlink_to(ROOT / name)
    chance = random.Random(given.seed)
    poison = frozenset(chance.sample(range(given.rate, int(given.rate * 60 * given.minutes)), given.poison))
    code = 2
    with EmbeddedKafka(home / "kafka", properties=UNHURRIED) as kafka:
        place = Place(home, project, kafka)
        with place.inside():
            node = StormNode(place.node.directory, project=project, settings=SHORT_LIVED).start()
            try:
                told("Storm runs")
                plan = make_plan(given.kills, given.minutes, given.seed)
                outcome = StormChaos(place, told).play(plan, given.rate, poison, given.spout)
                report, code = text(outcome, poison)
                print(report)
            finally:
                node.stop(wait_s=0)
    if code:
        print(f"the data are in {folder}", file=sys.stderr)
    elif not given.folder:
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
