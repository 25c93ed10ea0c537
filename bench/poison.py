"""What poison costs: 1 % of 100,000 records always fail, against the same run without poison, interleaved.

Each run is a process of its own. From its wall time that of a run on an empty topic is subtracted (start-up, joining
the group), and what is left counts the healthy records per second. Every result is checked: each healthy record is
in the files once, each poison record in the dead-letter topic once (after de-duplication by origin).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds

from bench.poison_topology import POISON
from downspout.kafka.deadletter import read_dead_letters
from downspout.kafka.embedded import EmbeddedKafka
from downspout.kafka.port import Cluster, cluster_for

PARTITIONS = 4


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


def measure(bootstrap: str, topic: str, group: str, out: Path, healthy: int, poison: int) -> float:
    """Run once, check what came out, and return the wall time in s."""
    shutil.rmtree(out, ignore_errors=True)
    start = time.monotonic()
    done = subprocess.run(
        command(bootstrap, topic, group, out), capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    wall = time.monotonic() - start
    if done.returncode:
        sys.exit(f"{topic} failed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    found, letters = numbers(out), lettered(cluster_for(bootstrap), group)
    if (len(found), found.total(), letters) != (healthy, healthy, poison):
        sys.exit(f"{topic}: {found.total():,} rows, {len(found):,} distinct, {letters:,} dead letters")
    return wall


def main() -> None:
    """Publish, run, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=100, help="one record of so many is poison")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    count, poison = options.records, options.records // options.every
    with tempfile.TemporaryDirectory() as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        cluster = cluster_for(broker.bootstrap)
        peers = {"empty": (0, 0), "clean": (count, 0), "poison": (count - poison, poison)}
        publish(cluster, "empty", 0, None)
        publish(cluster, "clean", count, None)
        publish(cluster, "poison", count, options.every)
        walls: dict[str, list[float]] = {name: [] for name in peers}
        for run in range(options.runs):
            for name, (healthy, sick) in peers.items():
                out = Path(scratch) / "out"
                walls[name].append(measure(broker.bootstrap, name, f"{name}-{run}", out, healthy, sick))
                print(f"run {run + 1}: {name}: {walls[name][-1]:.2f} s", file=sys.stderr)
    median = {name: statistics.median(values) for name, values in walls.items()}
    rate = {name: peers[name][0] / (median[name] - median["empty"]) for name in ("clean", "poison")}
    table = "\n".join([
        f"{count:,} records, 4 partitions, ceiling 3, {options.runs} interleaved runs; {os.cpu_count()} cores, "
        f"Python {platform.python_version()}.",
        "",
        "| what | wall, s (median) | healthy records/s, without start-up | of clean |",
        "| --- | --- | --- | --- |",
        *(
            f"| {label} | {median[name]:.2f} | {rate[name]:,.0f} | {rate[name] / rate['clean']:.0%} |"
            for name, label in (("clean", "no poison"), ("poison", f"{poison:,} records always fail"))
        ),
    ])  # fmt: skip
    print(table)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "poison.md").write_text(table + "\n", encoding="utf-8")
    (results / "poison.json").write_text(json.dumps(walls, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
