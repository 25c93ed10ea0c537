"""Kafka through a real Storm into one bolt: stock pystorm, ours, and Storm's own Java KafkaSpout.

All peers use one Kafka, one Storm node and one topic, and take turns, each as its own topology in a new worker with its
own consumer group. After a warm-up, a peer is measured for at least ten seconds: records/s, and the CPU time of the
worker (its JVM and both components). The table also has the CPU time of the whole run, from the start of the worker to
the last ack. ``bench/storm_run.py`` defines a valid run.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.flights import PARTITIONS, flights, publish
from bench.harness import ROOT, Options, begin, by_turns, load, machine, save, say, spread, table
from bench.storm_flux import PENDING, TOPIC, Parts, make_jar
from bench.storm_run import PIECES, Run, Stage, measure
from downspout.broker.embedded import EmbeddedKafka
from downspout.formatting import counted
from downspout.storm import node_files
from downspout.storm.node import StormNode
from downspout.system import jars

COLUMNS = (
    "what", "acked records/s", "x stock", "CPU-s per million", "JVM + spout + bolt", "CPU of stock / CPU",
    "whole run: records", "whole run: CPU-s per million",
)  # fmt: skip


@dataclass
class Peer:
    """One contender, and its runs."""

    name: str
    parts: Parts
    runs: list[Run] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median of records/s."""
        return statistics.median(run.rate for run in self.runs)

    @property
    def cpu(self) -> float:
        """The median of CPU-seconds per million records."""
        return statistics.median(run.total for run in self.runs)


STOCK = "stock pystorm: hand-written spout, stock bolt"
PEERS = (
    (STOCK, Parts("StockSpout", "StockBolt")),
    ("the same, 100 emits per next", Parts("StockSpoutOf100", "StockBolt")),
    ("ours: KafkaSpout, bolt on our wire", Parts("ours", "WireBolt")),
    ("our KafkaSpout, stock bolt", Parts("ours", "StockBolt")),
    ("Java KafkaSpout, stock bolt", Parts("java", "StockBolt")),
    ("Java KafkaSpout, bolt on our wire", Parts("java", "WireBolt")),
    ("our KafkaSpout in chunks, bolt that takes chunks", Parts("chunks", "ChunkBolt")),
    ("our KafkaSpout in chunks, bolt on our wire that takes records", Parts("chunks", "WireBolt")),
    ("Java KafkaSpout, Java bolt that does not parse", Parts("java", "java")),
)


@contextmanager
def stage(scratch: Path, records: int, warm_s: float, window_s: float) -> Iterator[Stage]:
    """Yield a Storm, and a Kafka with the records."""
    os.environ["PYTHONPATH"] = node_files.python_path(str(ROOT), os.environ)  # of workers and components
    with EmbeddedKafka(scratch / "kafka") as kafka:
        publish(kafka.bootstrap, TOPIC, records, PARTITIONS)
        with StormNode(scratch / "storm", project=scratch) as node:
            yield Stage(node, make_jar(scratch / "bench.jar"), kafka.bootstrap, records, warm_s, window_s)


def compare(peers: list[Peer], runs: int, place: Stage) -> None:
    """Run all peers in turns."""
    for number, peer in by_turns(peers, runs):
        run = measure(peer.name, peer.parts, place)
        peer.runs.append(run)
        pieces = ", ".join(f"{piece} {seconds:.1f}" for piece, seconds in run.cpu.items())
        whole = f"{run.whole:.1f} with all of its {run.records:,} records"
        say(f"run {number + 1}: {peer.name}: {run.rate:,.0f}/s, {run.total:.1f} CPU-s per million ({pieces}); {whole}")


def row(peer: Peer, stock: Peer | None) -> list[str]:
    """Return the line of a peer in the table."""
    return [
        peer.name,
        spread([run.rate for run in peer.runs], 0),
        f"{peer.rate / stock.rate:.1f}" if stock else "–",
        spread([run.total for run in peer.runs], 1),
        " + ".join(f"{statistics.median(run.cpu[piece] for run in peer.runs):.0f}" for piece in PIECES),
        f"{stock.cpu / peer.cpu:.1f}" if stock else "–",
        f"{statistics.median(run.records for run in peer.runs):,.0f}",
        spread([run.whole for run in peer.runs], 1),
    ]


def report(peers: list[Peer], warm_s: float, window_s: float, described: str) -> str:
    """Return the Markdown report."""
    size = statistics.mean(len(value) for _, value in flights(1_000))
    stock = next((peer for peer in peers if peer.name == STOCK), None)
    return "\n".join([
        f"Flights as JSON of about {size:.0f} bytes in {PARTITIONS} partitions; one spout, one bolt that parses each "
        "record and adds up (the Java bolt is Storm's own `IdentityBolt`, which does not parse), one acker, one worker,"
        f" every tuple with an id. `topology.max.spout.pending` is {PENDING:,} records for all, in chunks too. "
        f"{counted(len(peers[0].runs), 'run')} of each, another peer first each time, each in a new worker: "
        f"{warm_s:g} s to warm up, then at least {window_s:g} s that are measured; "
        "median (min – max). The CPU time is that of the worker: "
        "its JVM, the process of the spout (none for a Java spout) and that of the bolt. The whole run is from the "
        "start of the worker to the last ack: the fewer records a peer did, the more weighs the start of the JVM. "
        "In each run every tuple was acked, and the bolt saw each record once (the Java bolt: as many as were read). "
        "The stock spout commits what it has polled, and tries nothing again. "
        f"Storm {jars.STORM_VERSION}. `python -m bench.storm`",
        "", described, "", table(COLUMNS, [row(peer, stock) for peer in peers]),
    ])  # fmt: skip


def main() -> None:
    options = Options(__doc__, runs=3)
    options.size("--records", 8_000_000, 2_500_000, type=int, help="in the topic: more than the fastest peer reads")
    options.size("--seconds", 10.0, 2.0, type=float, help="that are measured of each run, at least; default: 10")
    options.size("--warm", 8.0, 2.0, type=float, help="seconds before that; default: 8")
    options.add_argument("--only", default="", help="numbers of peers, as in 1,3; the report is printed only")
    options.add_argument("--directory", default=None, help="where logs and data go, and stay (a temporary one)")
    given, before = options.read(), load()
    chosen = [int(number) - 1 for number in given.only.split(",") if number] or range(len(PEERS))
    peers = [Peer(*PEERS[number]) for number in chosen]
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(given.directory or temporary).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        with stage(scratch, given.records, given.warm, given.seconds) as place:
            compare(peers, given.runs, place)
    text = report(peers, given.warm, given.seconds, machine(before))
    if given.only:
        print(text)
    else:
        save(given.results, "storm", text, {peer.name: peer.runs for peer in peers})


if __name__ == "__main__":
    begin(main)
