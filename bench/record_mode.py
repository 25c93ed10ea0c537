"""``make bench``: record mode beside a bare kafka-python loop, on one topic, in one run, interleaved.

Each run is a process of its own; what is compared is the CPU time (user + system) that the operating system counted for
it, because these figures hold on a busy machine where wall time does not. The result of every run is checked: all
offsets, each once.
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
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset as ds

from bench.flights import publish
from downspout.kafka.embedded import EmbeddedKafka

TOPIC = "bench-flights"


@dataclass
class Peer:
    """One contender and what was measured of it."""

    name: str
    command: list[str]
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


def measure(peer: Peer, directory: Path, records: int) -> None:
    """Run it once into an empty directory, and check what it wrote."""
    shutil.rmtree(directory, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run(peer.command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()})
    if done.returncode:
        sys.exit(f"{peer.name} failed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peer.wall_s.append(time.monotonic() - start)
    peer.cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    files = [str(path) for path in directory.rglob("*.parquet") if "_downspout" not in path.parts]
    table = ds.dataset(files).to_table(columns=["_partition", "_offset"])
    rows = table.num_rows
    distinct = table.group_by(["_partition", "_offset"]).aggregate([]).num_rows
    if rows != records or distinct != records:
        sys.exit(f"{peer.name} wrote {rows:,} rows, {distinct:,} of them distinct, of {records:,} records")


def report(peers: list[Peer], records: int) -> str:
    """Return the Markdown table."""
    million = records / 1e6
    base = statistics.median(peers[0].cpu_s)
    lines = [
        f"{records:,} flights as JSON, 4 partitions, one process each, {len(peers[0].cpu_s)} interleaved runs; "
        f"{os.cpu_count()} cores, Python {platform.python_version()}.",
        "",
        "| what | CPU-s per million (median) | min – max | records/s (wall) | CPU against the loop |",
        "| --- | --- | --- | --- | --- |",
    ]
    for peer in peers:
        cpu = [seconds / million for seconds in peer.cpu_s]
        lines.append(
            f"| {peer.name} | {statistics.median(cpu):.2f} | {min(cpu):.2f} – {max(cpu):.2f} "
            f"| {records / statistics.median(peer.wall_s):,.0f} | {statistics.median(peer.cpu_s) / base:.2f}x |"
        )
    return "\n".join(lines)


def main() -> None:
    """Publish, run each peer in turn, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, EmbeddedKafka(Path(scratch) / "kafka") as broker:
        print(f"publishing {options.records:,} flights", file=sys.stderr)
        publish(broker.bootstrap, TOPIC, options.records)
        out = Path(scratch) / "out"
        peers = [
            Peer(
                "bare kafka-python + orjson + pyarrow loop",
                [sys.executable, "-m", "bench.bare_loop", broker.bootstrap, TOPIC, "bare", str(out)],
            ),
            Peer("Downspout, record mode, acks, exactly once", []),
        ]
        for run in range(options.runs):
            for peer in peers:
                if peer is peers[1]:
                    peer.command = _downspout(broker.bootstrap, f"bench-{run}", out)
                measure(peer, out, options.records)
                print(f"run {run + 1}: {peer.name}: {peer.cpu_s[-1]:.1f} CPU-s", file=sys.stderr)
    table = report(peers, options.records)
    print(table)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "record-mode.md").write_text(table + "\n", encoding="utf-8")
    (results / "record-mode.json").write_text(json.dumps([vars(peer) for peer in peers], indent=1), encoding="utf-8")


def _downspout(bootstrap: str, group: str, out: Path) -> list[str]:
    return [
        sys.executable, "-m", "downspout", "run", "bench/flights_topology.py", "--until", "end", "--quiet",
        "--set", f"kafka.bootstrap={bootstrap}", "--set", f"kafka.group={group}", "--set", f"parquet.directory={out}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
