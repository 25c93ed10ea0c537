"""What poison costs: 1 % of all records always fail, against the same run without poison, interleaved.

    python -m bench.poison [--records 100000 1000000] [--runs 5]

Each run is a process of its own. From its wall time and its CPU time those of a run on an empty topic are subtracted
(start-up, joining the group), and what is left counts the healthy records per second. The subtraction is in nobody's
favour: what only the poison run does once (it creates the dead-letter topic and connects a producer, some 0.1 s) is
charged to its records, and so are its last back-offs. In a small run both weigh more, so there are two sizes. Every
result is checked: each healthy record is in the files once, each poison record in the dead-letter topic once (after
de-duplication by origin).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow.dataset as ds

from bench.poison_topology import POISON
from downspout.kafka.deadletter import read_dead_letters
from downspout.kafka.embedded import EmbeddedKafka
from downspout.kafka.port import Cluster, cluster_for

PARTITIONS = 4
COLUMNS = ("records", "what", "wall, s", "healthy records/s of wall, without start-up", "of clean", "CPU-s",
           "healthy records/s of CPU, without start-up", "of clean")  # fmt: skip


class Cost(NamedTuple):
    """What a run took.

    Attributes:
        wall: seconds from start to exit.
        cpu: user and system time of the process, all its threads, in seconds.
    """

    wall: float
    cpu: float


def cpu_of_children() -> float:
    """Return the CPU-seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def publish(cluster: Cluster, topic: str, count: int, every: int | None) -> None:
    """Fill a new topic with numbers; one record of ``every`` is poison."""
    cluster.ensure_topic(topic, PARTITIONS)
    producer = cluster.producer(client={"linger_ms": 20})
    for number in range(count):
        value = POISON if every and number % every == every // 2 else str(number).encode()
        # Not round robin: with a divisor of `every` all the poison would be in one partition.
        producer.send(topic, key=None, value=value, partition=(number // 7) % PARTITIONS)
    producer.flush(120)
    producer.close()


def command(bootstrap: str, topic: str, group: str, out: Path, *settings: str) -> list[str]:
    """Return the command line of a run to the end of the log."""
    given = [f"kafka.bootstrap={bootstrap}", f"kafka.topics={topic}", f"kafka.group={group}",
             f"parquet.directory={out}", *settings]  # fmt: skip
    options = [part for setting in given for part in ("--set", setting)]
    return [sys.executable, "-m", "downspout", "run", "bench/poison_topology.py", "--until", "end", "--quiet", *options]


def numbers(out: Path) -> Counter[int]:
    """Return the numbers in the files."""
    files = [str(path) for path in out.glob("*.parquet")]
    return Counter(ds.dataset(files).to_table(columns=["number"])["number"].to_pylist()) if files else Counter()


def lettered(cluster: Cluster, group: str) -> int:
    """Return how many records are dead letters, and fail where one is no poison."""
    letters = list(read_dead_letters(cluster, f"{group}.dead-letters"))
    assert all(letter.letter.value == POISON for letter in letters), "a healthy record was dead-lettered"
    return len({letter.origin for letter in letters})


def measure(bootstrap: str, topic: str, group: str, out: Path, healthy: int, poison: int) -> Cost:
    """Run once, check what came out, and return what it took."""
    shutil.rmtree(out, ignore_errors=True)
    start, before = time.monotonic(), cpu_of_children()
    done = subprocess.run(
        command(bootstrap, topic, group, out), capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    cost = Cost(time.monotonic() - start, cpu_of_children() - before)
    if done.returncode:
        sys.exit(f"{topic} failed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    found, letters = numbers(out), lettered(cluster_for(bootstrap), group)
    if (len(found), found.total(), letters) != (healthy, healthy, poison):
        sys.exit(f"{topic}: {found.total():,} rows, {len(found):,} distinct, {letters:,} dead letters")
    return cost


def compare(count: int, every: int, runs: int) -> dict[str, list[Cost]]:
    """Run on an empty topic, on healthy records, and on records with poison, by turns; return what each run took."""
    poison = count // every
    with tempfile.TemporaryDirectory() as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        cluster = cluster_for(broker.bootstrap)
        expected = {"empty": (0, 0), "clean": (count, 0), "poison": (count - poison, poison)}
        for name, kept in (("empty", 0), ("clean", count), ("poison", count)):
            publish(cluster, name, kept, every if name == "poison" else None)
        costs: dict[str, list[Cost]] = {name: [] for name in expected}
        for run in range(runs):
            for name, (healthy, sick) in expected.items():
                cost = measure(broker.bootstrap, name, f"{name}-{run}", Path(scratch) / "out", healthy, sick)
                costs[name].append(cost)
                print(f"{count:,}, run {run + 1}: {name}: {cost.wall:.2f} s, {cost.cpu:.2f} CPU-s", file=sys.stderr)
    return costs


def rows(count: int, every: int, costs: dict[str, list[Cost]]) -> list[str]:
    """Return the table's rows of one size."""
    median = {name: Cost(*map(statistics.median, zip(*taken, strict=True))) for name, taken in costs.items()}
    empty, clean, sick = median["empty"], median["clean"], median["poison"]
    healthy = count - count // every
    wall, cpu = count / (clean.wall - empty.wall), count / (clean.cpu - empty.cpu)
    wall_sick, cpu_sick = healthy / (sick.wall - empty.wall), healthy / (sick.cpu - empty.cpu)
    return [
        f"| {count:,} | no poison | {clean.wall:.2f} | {wall:,.0f} | 100% | {clean.cpu:.2f} | {cpu:,.0f} | 100% |",
        f"| {count:,} | {count // every:,} always fail | {sick.wall:.2f} | {wall_sick:,.0f} | {wall_sick / wall:.0%} | "
        f"{sick.cpu:.2f} | {cpu_sick:,.0f} | {cpu_sick / cpu:.0%} |",
    ]


def main() -> None:
    """Publish, run, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--every", type=int, default=100, help="one record of so many is poison")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    load = os.getloadavg()
    taken = {count: compare(count, options.every, options.runs) for count in options.records}
    table = "\n".join([
        f"{PARTITIONS} partitions, ceiling 3; medians of {options.runs} interleaved runs; {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load {load[0]:.0f} before and {os.getloadavg()[0]:.0f} after. "
        "`python -m bench.poison`",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"| {' | '.join('---' for _ in COLUMNS)} |",
        *(row for count, costs in taken.items() for row in rows(count, options.every, costs)),
    ])  # fmt: skip
    print(table)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "poison.md").write_text(table + "\n", encoding="utf-8")
    saved = {count: {name: [cost._asdict() for cost in runs] for name, runs in costs.items()}
             for count, costs in taken.items()}  # fmt: skip
    (results / "poison.json").write_text(json.dumps(saved, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
