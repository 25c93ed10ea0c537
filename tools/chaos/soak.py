"""`make soak-real`: the main job on a real broker, at a constant rate for half an hour: does it grow or fall behind?

One process runs ``topologies/flight_delays.py``; real flights are written at ``--rate``. Every few seconds its resident
memory and the group's lag are looked at. It is good if, after a warm-up, memory grows by less than 5 % and the lag
stays within what flushes and commits explain; and if every flight is in the files exactly once at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demos.constant_rate import Publisher
from demos.flights_data import PARTITIONS, TOPIC, TOPIC_CONFIG
from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, TopicPartition
from tools.chaos.members import ROOT, Members

MINUTES = 30.0
RATE = 1_000
GROWTH_MAX = 0.05
WARM_UP_S = 300.0
LAG_S_MAX = 45.0
"""The lag may be what arrives in so long: the sinks hold rows for 8 s, a commit follows within 5 s, and a busy machine
does its part."""
SAMPLES_MIN = 8
DRAIN_S = 120.0
GROUP = "soak"
TOPOLOGY = "topologies/flight_delays.py"


@dataclass(frozen=True)
class Sample:
    """One look.

    Attributes:
        at_s: seconds since the start.
        memory: resident bytes.
        lag: records that the group has not committed.
    """

    at_s: float
    memory: int
    lag: int


@dataclass(frozen=True)
class Verdict:
    """What the samples after the warm-up show; means of their first and last quarter.

    Attributes:
        growth: of the memory, as a share.
        lag_max: the highest.
        lag_growth: records.
        problems: what is not good; empty: all is.
    """

    growth: float
    lag_max: int
    lag_growth: float
    problems: Sequence[str]


def judge(samples: Sequence[Sample], rate: float, warm_up_s: float) -> Verdict:
    """Judge a run.

    >>> flat = [Sample(second, 100_000_000, 5_000) for second in range(0, 600, 10)]
    >>> judge(flat, rate=1000, warm_up_s=60).problems
    []
    """
    warm = [sample for sample in samples if sample.at_s >= warm_up_s]
    if len(warm) < SAMPLES_MIN:
        return Verdict(0.0, 0, 0.0, [f"{len(warm)} looks after the warm-up are too few to say anything"])
    quarter = len(warm) // 4
    first, last = warm[:quarter], warm[-quarter:]
    growth = statistics.fmean(s.memory for s in last) / statistics.fmean(s.memory for s in first) - 1
    lag_growth = statistics.fmean(s.lag for s in last) - statistics.fmean(s.lag for s in first)
    lag_max = max(sample.lag for sample in warm)
    problems = []
    if growth >= GROWTH_MAX:
        problems.append(f"memory grew by {growth:.1%} after the warm-up, {GROWTH_MAX:.0%} are allowed")
    if lag_max > rate * LAG_S_MAX:
        problems.append(f"the lag was {lag_max:,} records, more than arrive in {LAG_S_MAX:g} s")
    if lag_growth > rate * LAG_S_MAX / 3:
        problems.append(f"the lag grew by {lag_growth:,.0f} records")
    return Verdict(growth, lag_max, lag_growth, problems)


def brief(samples: Sequence[Sample], lines: int = 12) -> str:
    """Return the series as a table of so many lines."""
    step = max(1, len(samples) // lines)
    rows = [f"{s.at_s:7.0f} s  {s.memory / 2**20:8.1f} MiB  {s.lag:>9,} lag" for s in samples[::step]]
    return "\n".join(rows)


def memory_of(pid: int) -> int:
    """Return a process's resident bytes."""
    text = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return int(text.strip() or 0) * 1024


def lag_of(cluster: KafkaCluster) -> int:
    """Return how many records the group has not committed."""
    consumer = cluster.consumer(group=None)
    try:
        ends = consumer.end_offsets([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)])
    finally:
        consumer.close()
    commits = cluster.group_offsets(GROUP)
    return sum(end - (commits[tp].offset if tp in commits else 0) for tp, end in ends.items())


def soak(folder: Path, minutes: float, rate: float) -> tuple[list[Sample], list[str]]:
    """Run; return the samples and what went wrong at the end."""
    with EmbeddedKafka(folder / "kafka") as kafka:
        cluster = KafkaCluster(kafka.bootstrap)
        cluster.ensure_topic(TOPIC, PARTITIONS, TOPIC_CONFIG)
        outputs = {name: folder / name for name in ("flights", "route_delays")}
        settings: dict[str, object] = {"kafka.bootstrap": kafka.bootstrap, "kafka.group": GROUP}
        settings |= {f"{name}:parquet.directory": path for name, path in outputs.items()}
        members = Members(folder, TOPOLOGY, settings, {})
        publisher = Publisher(cluster, rate)
        try:
            publisher.start()
            samples = _watch(members, cluster, minutes * 60)
            publisher.end()
            problems = _finish(members, cluster)
        finally:
            members.kill()
            publisher.end()
        if not problems:
            problems = [text for path in outputs.values() if (text := _audit(path, kafka.bootstrap, members))]
        return samples, problems


def _watch(members: Members, cluster: KafkaCluster, seconds: float) -> list[Sample]:
    member = members.start(1)
    began = time.monotonic()
    every = min(10.0, seconds / 60)
    samples: list[Sample] = []
    while (now := time.monotonic() - began) < seconds and member.exit_code is None:
        samples.append(Sample(now, memory_of(member.pid), lag_of(cluster)))
        if len(samples) % 12 == 1:
            print(brief(samples[-1:]), file=sys.stderr, flush=True)
        time.sleep(every)
    return samples


def _finish(members: Members, cluster: KafkaCluster) -> list[str]:
    end = time.monotonic() + DRAIN_S
    while (lag := lag_of(cluster)) and time.monotonic() < end:
        time.sleep(1.0)
    members.end()
    return [*members.fallen, *([f"{lag:,} records were not committed at the end"] if lag else [])]


def _audit(directory: Path, bootstrap: str, members: Members) -> str:
    """Return what is wrong with a directory; empty: nothing."""
    command = [sys.executable, "-m", "downspout", "audit", str(directory), "--topic", TOPIC, "--bootstrap", bootstrap]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, env=members.environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        print(f"{directory.name}: {json.loads(done.stdout)['verdict']}")
        return ""
    return f"{directory.name}: audit ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}"


def main() -> int:
    """Parse, run, judge."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long (default: {MINUTES:g})")
    parser.add_argument("--rate", type=float, default=RATE, help=f"records per second (default: {RATE:,})")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="downspout-soak-"))
    try:
        samples, problems = soak(folder, arguments.minutes, arguments.rate)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    verdict = judge(samples, arguments.rate, min(WARM_UP_S, arguments.minutes * 60 / 3))
    problems = [*problems, *verdict.problems]
    print(brief(samples))
    print(f"memory grew by {verdict.growth:+.1%}, the lag was at most {verdict.lag_max:,} records")
    print(f"NOT good: {'; '.join(problems)}" if problems else "Good.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
