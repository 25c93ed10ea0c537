"""Storm's pipe: stock pystorm beside our wire, over real pipes, interleaved.

A parent plays Storm. As ShellSpout it asks for ``next`` and acks what came, one command at a time, each answered by a
sync. As ShellBolt it writes tuples while another thread reads what comes back. The CPU time is the component's
alone (user + system, counted by the operating system). The same class bodies run on both wires, and every tuple is
checked for its answer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson
import streamparse

from bench.harness import Options, begin, by_turns, load, machine, save, say, spread, table
from downspout.wire import Wired

FIELDS = ["origin", "carrier", "flight", "delay", "value"]
ROW = [
    "UA",
    1545,
    2.5,
    '{"year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "tailnum": "N14228"}',
]
ORIGIN = ["flights", "6jPMvg1sQ2uJmzGz1yRHQw", 0]


class StockSpout(streamparse.Spout):
    outputs: ClassVar = FIELDS
    each = 1

    def initialize(self, conf: Any, context: Any) -> None:
        self.number = 0
        self.each = conf["bench.each"]

    def next_tuple(self) -> None:
        for _ in range(self.each):
            self.number += 1
            self.emit([[*ORIGIN, self.number, ""], *ROW], tup_id=f"1/{self.number}")

    def ack(self, tup_id: str) -> None:
        pass


class WireSpout(Wired, StockSpout):
    pass


class StockBolt(streamparse.Bolt):
    outputs: ClassVar = FIELDS

    def process(self, tup: Any) -> None:
        self.emit(list(tup.values))


class WireBolt(Wired, StockBolt):
    pass


def frame(message: Any) -> bytes:
    return orjson.dumps(message) + b"\nend\n"


def frames(stream: Any) -> Iterator[bytes]:
    """Yield what a component says, message by message."""
    rest = b""
    while piece := os.read(stream.fileno(), 1 << 18):
        *whole, rest = (rest + piece).split(b"\nend\n")
        yield from whole


@dataclass
class Peer:
    """One contender and what was measured of it."""

    name: str
    component: str
    each: int
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


def start(peer: Peer, scratch: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "streamparse.run", f"bench.wire.{peer.component}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    context = {
        "taskid": 3,
        "componentid": "bench",
        "stream->outputfields": {"default": FIELDS},
        "source->stream->fields": {"spout": {"default": FIELDS}},
    }
    conf = {"topology.name": "bench", "bench.each": peer.each, "pystorm.log.level": "error"}
    process.stdin.write(frame({"pidDir": scratch, "conf": conf, "context": context}))
    return process


def drive_spout(process: Any, records: int) -> None:
    """Be ShellSpout: next, then an ack for each tuple that came, until ``records`` are acked."""
    said = frames(process.stdout)
    done = 0

    def ask(message: Any) -> list[str]:
        process.stdin.write(frame(message))
        ids = []
        for raw in said:
            message = json.loads(raw) if b'"emit"' not in raw else orjson.loads(raw)
            if message.get("command") == "sync":
                return ids
            if message.get("command") == "emit":
                ids.append(message["id"])
        sys.exit("the spout ended early")

    ask({"command": "activate", "id": ""})
    while done < records:
        for tup_id in ask({"command": "next", "id": ""}):
            ask({"command": "ack", "id": tup_id})
            done += 1


def drive_bolt(process: Any, records: int) -> None:
    """Be ShellBolt: one thread writes, another reads."""
    emits: set[str] = set()
    acks: set[str] = set()

    def listen() -> None:
        for raw in frames(process.stdout):
            message = orjson.loads(raw)
            if message.get("command") == "emit":
                emits.update(message["anchors"])
            elif message.get("command") == "ack":
                acks.add(message["id"])
                if len(acks) == records:
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    block = bytearray()
    for number in range(records):
        tup = [[*ORIGIN, number, ""], *ROW]
        block += frame({"comp": "spout", "tuple": tup, "task": 2, "stream": "default", "id": str(number)})
        if len(block) > 8192:  # as much as Storm's BufferedWriter would
            process.stdin.write(block)
            block.clear()
    process.stdin.write(block)
    thread.join()
    if len(emits) != records or len(acks) != records:
        sys.exit(f"{len(emits)} tuples came back and {len(acks)} were acked, of {records}")


def measure(peer: Peer, records: int, scratch: str) -> None:
    process = start(peer, scratch)
    began = time.monotonic()
    (drive_spout if "Spout" in peer.component else drive_bolt)(process, records)
    peer.wall_s.append(time.monotonic() - began)
    process.stdin.close()
    process.stdout.close()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    peer.cpu_s.append(usage.ru_utime + usage.ru_stime)


def report(peers: list[Peer], base: dict[str, float], records: int, described: str) -> str:
    rows, million = [], records / 1e6
    for peer in peers:
        cpu = [(seconds - base[peer.component]) / million for seconds in peer.cpu_s]
        first = next(p for p in peers if p.component.endswith(peer.component[-4:]) and p.component.startswith("Stock"))
        stock = statistics.median((seconds - base[first.component]) / million for seconds in first.cpu_s)
        rate = f"{records / statistics.median(peer.wall_s):,.0f}"
        rows.append([peer.name, rate, spread(cpu, 1), f"{stock / statistics.median(cpu):.1f}"])
    columns = ("what", "records/s (median)", "component's CPU-s per million", "CPU of stock / CPU")
    return "\n".join([
        f"{records:,} tuples of about 240 bytes, {len(peers[0].cpu_s)} interleaved runs, median (min – max). The "
        "parent that plays Storm is Python too, so records/s is a floor. `python -m bench.wire`", "", described, "",
        table(columns, rows),
    ])  # fmt: skip


def main() -> None:
    options = Options(__doc__, runs=3)
    options.size("--records", 100_000, 5_000, type=int)
    given, before = options.read(), load()
    peers = [
        Peer("spout, stock pystorm, 1 emit per next", "StockSpout", 1),
        Peer("spout, stock pystorm, 100 emits per next", "StockSpout", 100),
        Peer("spout, our wire, 1 emit per next", "WireSpout", 1),
        Peer("spout, our wire, 100 emits per next", "WireSpout", 100),
        Peer("bolt, stock pystorm", "StockBolt", 1),
        Peer("bolt, our wire", "WireBolt", 1),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        base: dict[str, float] = {}
        for component in dict.fromkeys(peer.component for peer in peers):  # interpreter and imports
            idle = Peer("", component, 1)
            measure(idle, 1, scratch)
            base[component] = idle.cpu_s[0]
        for number, peer in by_turns(peers, given.runs):
            measure(peer, given.records, scratch)
            say(f"run {number + 1}: {peer.name}: {peer.cpu_s[-1]:.1f} CPU-s, {peer.wall_s[-1]:.1f} s")
    save(given.results, "wire", report(peers, base, given.records, machine(before)))


if __name__ == "__main__":
    begin(main)
