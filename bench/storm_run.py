"""One run of a peer of ``bench/storm.py``: submit, warm up, measure a window of time, let it drain, and check the work.

A peer's progress comes from its Python bolt, once a second, or for a Java bolt, from its group's commits. The CPU time
of the worker's processes comes from the operating system.

A run counts only if, after its spout was deactivated, nimbus says that every tuple was acked, and the bolt saw each
record of a prefix of each partition once: it adds up where the records lay and a number from inside them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from bench.flights import PARTITIONS, flights_table
from bench.harness import BenchError, process_of
from bench.storm_flux import PENDING, TOPIC, Parts, submit, topology
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import TopicPartition
from downspout.storm import groups, nimbus, node_files, stats
from downspout.storm.node import StormNode

PIECES = ("jvm", "spout", "bolt")
"""The pieces of a worker."""
SAMPLE_S = 0.1
STALLED_S_MAX = 300.0
"""A run is aborted after this time without a record; on a busy machine, a start can take minutes."""
DRAIN_S_MAX = 180.0

Cpu = dict[str, float]
"""Seconds by piece."""


class Mark(NamedTuple):
    """How many records the bolt had seen at a time, by the wall clock."""

    time: float
    count: int


@dataclass
class Run:
    """The measurements of a run, in its window and as a whole.

    Attributes:
        rate: records per second in the window.
        cpu: CPU-seconds per million records in the window.
        records: of the whole run.
        whole_cpu_s: CPU-seconds from the start of the worker to the last ack.
    """

    rate: float
    cpu: Cpu
    records: int
    whole_cpu_s: float

    @property
    def total(self) -> float:
        """CPU-seconds of the whole worker per million records in the window."""
        return sum(self.cpu.values())

    @property
    def whole(self) -> float:
        """CPU-seconds per million records of the whole run, the start of the worker included."""
        return self.whole_cpu_s / self.records * 1e6


@dataclass(frozen=True)
class Stage:
    """The environment of runs, and their durations.

    Attributes:
        warm_s: warm-up of a peer, in seconds.
        window_s: shortest measurement, in seconds.
        records: number of records in the topic.
    """

    node: StormNode
    jar: Path
    bootstrap: str
    records: int
    warm_s: float
    window_s: float


@dataclass
class Watch:
    """The observations of a running worker.

    Attributes:
        look: returns how far the bolt is.
        marks: how far it was, each time that it had moved on.
        samples: when the pieces of the worker had used how much CPU time.
    """

    node: StormNode
    look: Callable[[], Mark | None]
    marks: list[Mark] = field(default_factory=list)
    samples: list[tuple[float, Cpu]] = field(default_factory=list)
    _pids: Mapping[int, str] = field(default_factory=dict)

    def sample(self) -> None:
        """Take a sample. Raises BenchError: a process of the worker has ended."""
        time.sleep(SAMPLE_S)
        mark = self.look()
        if mark is not None and mark.count > (self.marks[-1].count if self.marks else 0):
            self.marks.append(mark)
        if self.marks:
            self._pids = self._pids or worker(self.node)
            self.samples.append((time.time(), self._cpu()))

    def _cpu(self) -> Cpu:
        used = dict.fromkeys(PIECES, 0.0)
        for pid, piece in self._pids.items():
            if (process := process_of(pid)) is None:
                raise BenchError(f"the worker's {piece} has ended; see {self.node.directory}/logs")
            used[piece] += process.cpu_s
        return used

    def at(self, moment: float) -> Cpu:
        """Return the CPU time at a moment, interpolated between samples."""
        times = [sample[0] for sample in self.samples]
        return {piece: float(np.interp(moment, times, [used[piece] for _, used in self.samples])) for piece in PIECES}


def worker(node: StormNode) -> dict[int, str]:
    """Return the processes of the only worker: id → piece."""
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


# --- progress ---


def last_note(path: Path) -> dict[str, Any] | None:
    """Return the last complete note of a Python bolt."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line[-1] == "\n"]
    return json.loads(whole[-1]) if whole else None


def mark_of(notes: Path) -> Mark | None:
    """Return the progress of a Python bolt."""
    note = last_note(notes)
    return Mark(note["time"], note["count"]) if note else None


def committed(bootstrap: str, group: str) -> list[int]:
    """Return a group's commit for each partition."""
    found = cluster_for(bootstrap).group_offsets(group)
    offsets = [found.get(TopicPartition(TOPIC, number)) for number in range(PARTITIONS)]
    return [each.offset if each else 0 for each in offsets]


# --- one run ---


def measure(name: str, parts: Parts, stage: Stage) -> Run:
    """Run a peer once.

    Raises:
        BenchError: it did not process all records, or the topic is too small.
    """
    group = f"bench-{uuid.uuid4().hex[:8]}"
    notes = stage.jar.with_name(f"{group}.notes")
    if parts.bolt == "java":
        watch = Watch(stage.node, lambda: Mark(time.time(), sum(committed(stage.bootstrap, group))))
    else:
        watch = Watch(stage.node, lambda: mark_of(notes))
    submit(stage.node, stage.jar, topology(parts, group, stage.bootstrap, notes))
    try:
        begin, end = window(watch, stage)
        if end.count >= stage.records:
            raise BenchError(f"{name} has read all of {stage.records:,} records too soon; publish more (--records)")
        with nimbus.connect(*stage.node.address) as client:
            client.deactivate(group)
        check(name, parts, stage, group, notes, watch)
    finally:
        nimbus.kill(*stage.node.address, group, 0)
        while group in stats.names(*stage.node.address) or worker(stage.node):
            time.sleep(SAMPLE_S)
    return run_of(watch, begin, end)


def window(watch: Watch, stage: Stage) -> tuple[Mark, Mark]:
    """Watch until the window is over; return its begin and end."""
    moved = time.monotonic()
    while True:
        known = len(watch.marks)
        watch.sample()
        if len(watch.marks) > known:
            moved = time.monotonic()
        elif time.monotonic() - moved > STALLED_S_MAX:
            raise BenchError(f"no record for {STALLED_S_MAX:.0f} s after {watch.marks[-1:]}")
        begin = next((mark for mark in watch.marks if mark.time >= watch.marks[0].time + stage.warm_s), None)
        if begin is None:
            continue
        end = watch.marks[-1]
        if end.time >= begin.time + stage.window_s or end.count >= stage.records:
            return begin, end


def run_of(watch: Watch, begin: Mark, end: Mark) -> Run:
    """Return the measurements."""
    measured, before, after = end.count - begin.count, watch.at(begin.time), watch.at(end.time)
    cpu = {piece: (after[piece] - before[piece]) / measured * 1e6 for piece in PIECES}
    last = watch.marks[-1]
    return Run(measured / (end.time - begin.time), cpu, last.count, sum(watch.at(last.time).values()))


# --- checks ---


def check(name: str, parts: Parts, stage: Stage, group: str, notes: Path, watch: Watch) -> None:
    """Wait until all tuples of a deactivated spout are acked; check that each record read arrived once.

    Raises:
        BenchError: it did not.
    """
    deadline = time.monotonic() + DRAIN_S_MAX
    while why := open_work(parts, stage, group, notes):
        if time.monotonic() > deadline:
            raise BenchError(f"{name}: {why}")
        for _ in range(5):
            watch.sample()
    if parts.bolt != "java":
        note = last_note(notes) or {}
        wanted = expected(note["ends"])
        if any(note[key] != value for key, value in wanted.items()):
            raise BenchError(f"{name}: the bolt's figures are {note}, and should be {wanted}")


def open_work(parts: Parts, stage: Stage, group: str, notes: Path) -> str:
    """Describe the remaining work; empty: none."""
    found = stats.collect(*stage.node.address, group, with_lag=False)
    spout, bolt, offsets = found.component("spout"), found.component("bolt"), committed(stage.bootstrap, group)
    if spout.failed:
        raise BenchError(f"{spout.failed:,} tuples failed")
    if not spout.emitted or spout.acked != spout.emitted:
        return f"{spout.acked:,} of {spout.emitted:,} tuples are acked"
    note = last_note(notes) or {}
    seen = bolt.executed if parts.bolt == "java" else note["count"]
    if parts.spout != "chunks" and seen != spout.acked:
        return f"the bolt has seen {seen:,} records, and {spout.acked:,} tuples are acked"
    if parts.spout in ("ours", "chunks") and offsets != note["ends"]:
        return f"the offsets {offsets} are committed, and the bolt has seen {note['ends']}"
    if parts.spout == "java" and not 0 <= seen - sum(offsets) <= PENDING:  # it commits nothing once it is deactivated
        return f"{sum(offsets):,} records are committed, and the bolt has seen {seen:,}"
    return ""


def expected(ends: Sequence[int]) -> dict[str, int]:
    """Return what the bolt must have counted up to these offsets: records, where they lay, a number from inside."""
    places = delay = 0
    for partition, end in enumerate(ends):
        places += 2 * end * (end - 1) + partition * end  # the sum of (offset << 2) + partition
        numbers = np.arange(partition, partition + PARTITIONS * end, PARTITIONS)
        delay += pc.sum(flights_table(numbers)["dep_delay"]).as_py() or 0
    return {"count": sum(ends), "places": places, "delay": delay}
