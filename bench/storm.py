"""Kafka through a real Storm into one Python bolt: stock pystorm, ours, and Storm's own Java KafkaSpout.

One Kafka, one Storm node and one topic for all; the peers take turns, each as its own topology with its own consumer
group: one spout, one bolt, one acker, one worker, every tuple with an id. What is measured begins when the
bolt has seen a third of the records (JVMs are warm then) and ends with the last one: records/s by the bolt's notes, and
the CPU time of the worker (its JVM and both components) by the operating system. A run counts only if the bolt saw
every record once and nimbus says that every tuple was acked.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import storm_parts
from bench.flights import flights, publish
from bench.harness import Options, begin, load, machine, save, say, spread, table
from downspout.broker.embedded import EmbeddedKafka
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import Cluster, TopicPartition
from downspout.storm import groups, nimbus, node_files, stats
from downspout.storm.node import StormNode
from downspout.system import jars
from downspout.wire.streams import CHUNKS

TOPIC, PARTITIONS = "bench-storm", 4
SPOUT = "org.apache.storm.kafka.spout."
STALLED_S_MAX = 600.0
"""Without a record for so long a run is given up; on a busy machine a start can take minutes."""
COUNTERS_S_MAX = 180.0
SAMPLE_S = 0.1
WARM = 3
"""The records are cut in this many parts, and the first is not measured."""
PENDING = 5_000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PARTS = ("jvm", "spout", "bolt")
CHUNKED = {"kafka.emit": "chunk", CHUNKS: {"spout": ["default"]}}
"""Flux knows nothing of what a class of a topology would say of itself."""


@dataclass
class Run:
    """What was measured of one run: records/s, and CPU-seconds per million records by part of the worker."""

    rate: float
    cpu: dict[str, float]

    @property
    def total(self) -> float:
        """CPU-seconds of the whole worker per million records."""
        return sum(self.cpu.values())


@dataclass
class Peer:
    """One contender: a class of ``storm_parts``, ours, ours in chunks, or ``java``; and its bolt."""

    name: str
    spout: str
    bolt: str
    runs: list[Run] = field(default_factory=list)


PEERS = (
    ("stock pystorm: hand-written spout, stock bolt", "StockSpout", "StockBolt"),
    ("the same, 100 emits per next", "StockSpoutOf100", "StockBolt"),
    ("ours: KafkaSpout, bolt on our wire", "ours", "WireBolt"),
    ("our KafkaSpout, stock bolt", "ours", "StockBolt"),
    ("Java KafkaSpout, stock bolt", "java", "StockBolt"),
    ("Java KafkaSpout, bolt on our wire", "java", "WireBolt"),
    ("our KafkaSpout in chunks, bolt that takes chunks", "chunks", "ChunkBolt"),
    ("our KafkaSpout in chunks, bolt on our wire that takes records", "chunks", "WireBolt"),
)


# --- topologies ---


def shell(kind: str, path: str, outputs: list[str]) -> dict[str, Any]:
    """Return a component of Flux that is a Python class."""
    return {
        "id": kind,
        "className": f"org.apache.storm.flux.wrappers.{kind}s.FluxShell{kind.title()}",
        "constructorArgs": [["streamparse_run", path], outputs],
        "parallelism": 1,
    }


def java_spout(bootstrap: str, group: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return Storm's own KafkaSpout for Flux: the components that it is made of, and itself."""
    text = "org.apache.kafka.common.serialization.StringDeserializer"
    builder = {
        "id": "builder",
        "className": f"{SPOUT}KafkaSpoutConfig$Builder",
        "constructorArgs": [bootstrap, [TOPIC]],
        "properties": [{"name": "firstPollOffsetStrategy", "value": "EARLIEST"}],
        "configMethods": [
            {"name": "setProp", "args": [{"group.id": group, "key.deserializer": text, "value.deserializer": text}]},
            {"name": "setOffsetCommitPeriodMs", "args": [1_000]},
        ],
    }
    made = {"id": "config", "className": f"{SPOUT}KafkaSpoutConfig", "constructorArgs": [{"ref": "builder"}]}
    spout = {"id": "spout", "className": f"{SPOUT}KafkaSpout", "constructorArgs": [{"ref": "config"}]}
    return [builder, made], spout | {"parallelism": 1}


def topology(peer: Peer, name: str, bootstrap: str, records: int, notes: Path) -> dict[str, Any]:
    """Return the topology of a peer as Flux reads it."""
    components: list[dict[str, Any]] = []
    if peer.spout == "java":
        components, spout = java_spout(bootstrap, name)
    else:
        ours = peer.spout in ("ours", "chunks")
        path = "spouts.kafka.KafkaSpout" if ours else f"bench.storm_parts.{peer.spout}"
        spout = shell("spout", path, storm_parts.FIELDS)
    return {
        "name": name,
        "config": {
            "topology.workers": 1,
            "topology.acker.executors": 1,
            "topology.eventlogger.executors": 0,
            "topology.max.spout.pending": PENDING,
            "topology.message.timeout.secs": 120,
            "kafka.bootstrap": bootstrap,
            "kafka.topics": [TOPIC],
            "kafka.group": name,
            "kafka.fields": storm_parts.FIELDS,
            "kafka.commit_period_ms": 1_000,
            **(CHUNKED if peer.spout == "chunks" else {}),
            "bench.records": records,
            "bench.notes": str(notes),
        },
        "components": components,
        "spouts": [spout],
        "bolts": [shell("bolt", f"bench.storm_parts.{peer.bolt}", storm_parts.StockBolt.outputs)],
        "streams": [{"from": "spout", "to": "bolt", "grouping": {"type": "SHUFFLE"}}],
    }


def make_jar(path: Path) -> Path:
    """Make the jar that all peers are submitted with: Storm's Kafka client, and a folder to start components in."""
    seen: set[str] = set()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("resources/README", "Components start here.\n")
        for source in jars.resolve("storm-kafka"):
            with zipfile.ZipFile(source) as parts:
                for name in parts.namelist():
                    if name not in seen and not name.startswith(("META-INF/", "resources/")) and name[-1] != "/":
                        seen.add(name)
                        archive.writestr(name, parts.read(name))
    return path


def submit(node: StormNode, jar: Path, definition: Mapping[str, Any]) -> None:
    """Submit by Flux, as ``storm jar JAR org.apache.storm.flux.Flux --remote FILE`` does."""
    file = jar.with_name(f"{definition['name']}.yaml")
    file.write_text(json.dumps(definition), encoding="utf-8")  # JSON is YAML, too
    home, library = node.directory / "home", jars.resolve("storm")[0].parent
    command = [str(jars.java()), *node_files.JVM_FLAGS, f"-Dstorm.home={home}", f"-Dstorm.jar={jar}"]
    command += [f"-Dstorm.log.dir={node.directory / 'logs'}", "-Dlogfile.name=client.log", "-Dstorm.conf.file="]
    command += [f"-Dlog4j.configurationFile={home / 'log4j2' / 'cluster.xml'}"]
    command += ["-cp", os.pathsep.join([f"{library}/*", str(jar), str(home / "conf")])]
    command += ["org.apache.storm.flux.Flux", "--remote", "--no-splash", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"Flux failed with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")


# --- one run ---


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Return what the bolt has noted so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]


def worker(node: StormNode) -> dict[int, str]:
    """Return the processes of the only worker: id, and which part of it they are."""
    daemons = node_files.read_daemons(node.directory)
    supervisor = daemons.processes["supervisor"].pid if daemons else 0
    found = {}
    for member in groups.members(supervisor):
        try:
            command = Path(f"/proc/{member.pid}/cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if b"storm_parts" in command and b"Bolt" in command:
            found[member.pid] = "bolt"
        elif b"streamparse_run" in command:
            found[member.pid] = "spout"
        elif b"org.apache.storm.daemon.worker.Worker" in command and b"LogWriter" not in command:
            found[member.pid] = "jvm"
    return found


def cpu_s(processes: Mapping[int, str]) -> dict[str, float]:
    """Return the CPU time that each part has used so far, user and system."""
    used = dict.fromkeys(PARTS, 0.0)
    for pid, part in processes.items():
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        used[part] += sum(map(int, fields[11:15])) * TICK_S
    return used


def follow(node: StormNode, notes: Path, records: int) -> Run:
    """Wait until the bolt has seen all records; return what was measured."""
    processes: dict[int, str] = {}
    samples: list[tuple[float, dict[str, float]]] = []
    moved_at, last = time.monotonic(), 0
    while True:
        time.sleep(SAMPLE_S)
        noted = read_notes(notes)
        count = noted[-1]["count"] if noted else 0
        if count != last:
            last, moved_at = count, time.monotonic()
        elif time.monotonic() - moved_at > STALLED_S_MAX:
            sys.exit(f"the bolt has seen {count:,} of {records:,} records; see {node.directory}/logs")
        if noted and not processes:
            processes = worker(node)
        if processes:
            try:
                samples.append((time.time(), cpu_s(processes)))
            except OSError:
                sys.exit(f"a process of the worker has ended; see {node.directory}/logs")
        if count >= records:
            break
    begin = next(note for note in noted if note["count"] >= records // WARM)
    end = next(note for note in noted if note["count"] >= records)
    measured = end["count"] - begin["count"]
    used = {part: at(samples, end["time"], part) - at(samples, begin["time"], part) for part in PARTS}
    cpu = {part: seconds / measured * 1e6 for part, seconds in used.items()}
    return Run(measured / (end["time"] - begin["time"]), cpu)


def at(samples: list[tuple[float, dict[str, float]]], moment: float, part: str) -> float:
    """Return a part's CPU time at a moment, between two samples in proportion."""
    before = [sample for sample in samples if sample[0] <= moment] or samples[:1]
    after = [sample for sample in samples if sample[0] > moment] or samples[-1:]
    (t0, used0), (t1, used1) = before[-1], after[0]
    share = (moment - t0) / (t1 - t0) if t1 > t0 else 0.0
    return used0[part] + (used1[part] - used0[part]) * share


def measure(peer: Peer, node: StormNode, jar: Path, bootstrap: str, truth: Mapping[str, int]) -> None:
    """Run a peer once, and check that it did all of the work."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    notes, records = jar.with_name(f"{name}.notes"), truth["count"]
    submit(node, jar, topology(peer, name, bootstrap, records, notes))
    run = follow(node, notes, records)
    await_acks(node, name, records, cluster_for(bootstrap), chunks=peer.spout == "chunks")
    last = read_notes(notes)[-1]  # a record that came twice makes one more note
    if any(last[key] != value for key, value in truth.items()):
        sys.exit(f"{peer.name}: the bolt's figures are {last}, and should be {truth}")
    nimbus.kill(*node.address, name, 0)
    while name in stats.names(*node.address) or worker(node):
        time.sleep(SAMPLE_S)
    peer.runs.append(run)


def await_acks(node: StormNode, name: str, records: int, cluster: Cluster, chunks: bool) -> None:
    """Wait until nimbus has counted an ack of every tuple, and the group has committed the end of the topic."""
    deadline = time.monotonic() + COUNTERS_S_MAX
    acked = committed = 0
    wanted = records
    while acked != wanted or committed != records:
        if time.monotonic() > deadline:
            sys.exit(f"{acked:,} tuples were acked and {committed:,} offsets committed, of {records:,}")
        time.sleep(0.5)
        spout = stats.collect(*node.address, name, with_lag=False).component("spout")
        acked, wanted = spout.acked, spout.emitted if chunks else records
        if spout.failed:
            sys.exit(f"{spout.failed:,} tuples failed")
        committed = committed_offsets(cluster, name)


def committed_offsets(cluster: Cluster, group: str) -> int:
    """Return the sum of a group's offsets."""
    consumer = cluster.consumer(group=group)
    try:
        commits = consumer.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        return sum(commit.offset for commit in commits.values() if commit)
    finally:
        consumer.close()


# --- the whole ---


def expected(records: int) -> dict[str, int]:
    """Return what the bolt must have counted: records, where they lay, and a number from inside them."""
    places = sum(((number // PARTITIONS) << 2) + number % PARTITIONS for number in range(records))
    delay = sum(json.loads(value)["dep_delay"] or 0 for _, value in flights(records))
    return {"count": records, "places": places, "delay": delay}


def report(peers: list[Peer], records: int, described: str) -> str:
    """Return the Markdown report."""
    size = statistics.mean(len(value) for _, value in flights(1_000))
    stock_rate, stock_cpu = middle(peers[0])
    rows = []
    for peer in peers:
        rate, cpu = middle(peer)
        parts = " + ".join(f"{statistics.median(run.cpu[part] for run in peer.runs):.0f}" for part in PARTS)
        rows.append([
            peer.name, spread([run.rate for run in peer.runs], 0), f"{rate / stock_rate:.1f}",
            spread([run.total for run in peer.runs], 1), parts, f"{stock_cpu / cpu:.1f}",
        ])  # fmt: skip
    columns = ("what", "acked records/s", "x stock", "CPU-s per million", "JVM + spout + bolt", "CPU of stock / CPU")
    return "\n".join([
        f"{records:,} flights as JSON of about {size:.0f} bytes, {PARTITIONS} partitions; one spout, one bolt that "
        f"parses and counts, one acker, one worker, max.spout.pending {PENDING:,}, every tuple with an id; "
        f"{len(peers[0].runs)} interleaved runs of each, measured over the last {records - records // WARM:,} records, "
        f"median (min – max). Storm {jars.STORM_VERSION}. The CPU time is that of the worker: its JVM, the spout's "
        "process (none for the Java spout), the bolt's. `python -m bench.storm`", "", described, "",
        table(columns, rows),
    ])  # fmt: skip


def middle(peer: Peer) -> tuple[float, float]:
    """Return the medians of records/s and of CPU-seconds per million."""
    return statistics.median(run.rate for run in peer.runs), statistics.median(run.total for run in peer.runs)


@contextmanager
def cluster(scratch: Path, records: int) -> Iterator[tuple[StormNode, str]]:
    """Give a Storm, and the address of a Kafka that holds the records."""
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = node_files.python_path(root, os.environ)  # of workers and components
    with EmbeddedKafka(scratch / "kafka") as kafka:
        publish(kafka.bootstrap, TOPIC, records, PARTITIONS)
        with StormNode(scratch / "storm", project=scratch) as node:
            yield node, kafka.bootstrap


def compare(peers: list[Peer], runs: int, scratch: Path, truth: Mapping[str, int]) -> None:
    """Run all peers in turns."""
    with cluster(scratch, truth["count"]) as (node, bootstrap):
        jar = make_jar(scratch / "bench.jar")
        for number in range(runs):
            for peer in peers:
                measure(peer, node, jar, bootstrap, truth)
                run = peer.runs[-1]
                parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in run.cpu.items())
                say(f"run {number + 1}: {peer.name}: {run.rate:,.0f}/s, {run.total:.1f} CPU-s per million ({parts})")


def main() -> None:
    options = Options(__doc__, runs=3)
    options.size("--records", 150_000, 15_000, type=int)
    options.add_argument("--only", default="", help="numbers of peers, as in 1,3; there is no report then")
    options.add_argument("--directory", default=None, help="where logs and data go, and stay (a temporary one)")
    given, before = options.read(), load()
    chosen = [int(number) - 1 for number in given.only.split(",") if number] or range(len(PEERS))
    peers = [Peer(*PEERS[number]) for number in chosen]
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(given.directory or temporary).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        compare(peers, given.runs, scratch, expected(given.records))
    if not given.only:
        save(given.results, "storm", report(peers, given.records, machine(before)))


if __name__ == "__main__":
    begin(main)
