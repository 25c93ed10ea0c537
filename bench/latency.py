"""Latency from ``send`` to durable in Parquet at a fixed rate: p50, p99, maximum.

    python -m bench.latency [--rate 20000] [--seconds 60] [--ages 1 8] [--trigger 1] [--only spark] [--quick]

A topology reads while another process sends (``bench/producer.py``) and records the times. A row is durable once its
entry in the sink's commit log is: the last status change (``ctime``) of the entry's file is the removal of its
temporary name, after its folder was synced. So a latency includes the producer's lingering, the broker, the poll, the
wait for the flush, and the fsyncs.

Only the age triggers flushes here, so the goal is: p99 at most that age plus half a second.

On Spark, a batch starts at each trigger, and its rows become durable together at its end. It has no goal.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.contenders import DOWNSPOUT, TYPES, Contender, downspout, filled, topology
from bench.cpu_meter import CpuMeter
from bench.flights import PARTITIONS, publish
from bench.harness import ROOT, BenchError, Options, begin, load, machine, save, say, table
from bench.track import Track, track
from downspout.sink.log import CommitLog

GRACE_S = 0.5
READY_S_MAX = 180.0  # Spark starts slowly on a busy machine
LOOK_S = 0.05
RATE_SHARE_MIN = 0.98
"""A slower producer has missed its rate."""
SPARK_RATE_MAX = 5_000.0
"""Records per second on Spark: at 20,000, the backlog of its first batches remained after 45 s."""
SPARK = downspout("spark", "chunk mode, on Spark", "kafka.emit=chunk", TYPES, note="a batch at each trigger")


class Latency(NamedTuple):
    """The measurements of a contender at one flush age.

    Attributes:
        seconds: of each record, from ``send`` to durable.
        cpu_s: CPU-seconds of the topology's process tree during the measurement, per million records.
        rate: records per second actually sent.
    """

    seconds: np.ndarray
    cpu_s: float
    rate: float


def durable_ns(out: Path, records: int) -> np.ndarray:
    """Return when each record became durable, by its entry in the log, in ns since the epoch; 0: not yet."""
    log, found = CommitLog(out, checkpoints=False), np.zeros(records, np.int64)
    for entry in log.refresh():
        when = log.path(entry.number).stat().st_ctime_ns
        for stream in entry.coverage.streams():
            for start, end in entry.coverage.ranges(stream):
                numbers = np.arange(start, end) * PARTITIONS + stream.partition
                found[numbers[numbers < records]] = when
    return found


def measure(course: Track, contender: Contender, age_s: float, rate: float, seconds: float) -> Latency:
    """Run a topology while a producer sends; return the latencies.

    Raises:
        BenchError: the rate was missed, or a row never arrived.
    """
    name, count = f"latency-{contender.key}-{age_s:g}", int(rate * seconds)
    place = course.scratch / name
    place.mkdir()
    times, environment = place / "times.npy", os.environ | {"PYTHONPATH": str(ROOT)}
    sender = [sys.executable, "-m", "bench.producer", course.bootstrap, name, str(rate), str(seconds), str(times)]
    # The first records, one per partition, are not measured: they show that the group has been joined.
    publish(course.bootstrap, name, PARTITIONS)
    with _reading(course.bootstrap, contender, age_s, name, place) as process, CpuMeter(process.pid) as meter:
        _wait_for(place, PARTITIONS, process)
        before = meter.cpu_s
        subprocess.run(sender, check=True, env=environment, cwd=place)
        _wait_for(place, PARTITIONS + count, process)
        cpu_s = (meter.cpu_s - before) / count * 1e6
    sent, durable = np.load(times), durable_ns(place / "out", PARTITIONS + count)[PARTITIONS:]
    really = (count - 1) / ((sent[-1] - sent[0]) / 1e9)
    if really < rate * RATE_SHARE_MIN:
        raise BenchError(f"{really:,.0f} records/s were sent, and {rate:,.0f} were asked for: use a lower --rate")
    shutil.rmtree(place)
    return Latency((durable - sent) / 1e9, cpu_s, really)


@contextmanager
def _reading(bootstrap: str, contender: Contender, age_s: float, name: str,
             place: Path) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """Start the topology, which reads on; in the end, stop it in order."""
    command = filled(
        _command(contender, age_s, place), python=sys.executable, bootstrap=bootstrap, topic=name, group=name,
        out=place / "out",
    )  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DOWNSPOUT_HOME": str(place / "home")}
    with (place / "log").open("wb") as output:
        process = subprocess.Popen(command, cwd=place, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _command(contender: Contender, age_s: float, place: Path) -> tuple[str, ...]:
    """Return the command of the topology, which flushes by age or, on Spark, at each trigger."""
    if contender is SPARK:
        options = ("--trigger", f"{age_s:g}s", "--checkpoint", str(place / "checkpoint"))
        return (*topology(*contender.settings, on=("spark", "run")), *options)
    return topology(*contender.settings, f"parquet.flush_age_s={age_s:g}", "parquet.flush_rows=100000000")


def _wait_for(place: Path, records: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the first records are durable."""
    deadline = time.monotonic() + READY_S_MAX
    while not durable_ns(place / "out", records).all():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"rows did not come:\n{(place / 'log').read_text()[-3000:]}")
        time.sleep(LOOK_S)


def report(measured: Sequence[tuple[Contender, float, Latency]], seconds: float, described: str) -> str:
    """Return the Markdown report."""
    rows = []
    for contender, age_s, found in measured:
        p50, p99 = np.percentile(found.seconds, [50, 99])
        goal = f"{age_s + GRACE_S:.1f} s: " + ("met" if p99 <= age_s + GRACE_S else "missed")
        goal = "none" if contender is SPARK else goal
        rows.append([
            contender.name, f"{age_s:g} s", f"{found.rate:,.0f}", f"{p50:.2f} s", f"{p99:.2f} s",
            f"{found.seconds.max():.2f} s", goal, f"{found.cpu_s:.2f}",
        ])  # fmt: skip
    columns = ("what", "flush age or trigger", "records/s", "p50", "p99", "worst", "goal of p99", "CPU-s per million")
    return "\n".join([
        "# From send to durable in Parquet", "",
        f"Flights as JSON for {seconds:g} s, {PARTITIONS} partitions; from the call of the producer's `send` to the "
        "durable entry of the sink's commit log. A flush is caused by age alone, and on Spark by the trigger. "
        "`python -m bench.latency`", "",
        described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each contender at each age, print and save."""
    options = Options(__doc__, runs=1)
    options.size("--rate", 20_000.0, 5_000.0, type=float)
    options.size("--seconds", 60.0, 6.0, type=float)
    options.size("--ages", [1.0, 8.0], [1.0], type=float, nargs="+")
    options.add_argument("--trigger", type=float, default=1.0, help="of Spark's batches, in seconds; default: 1")
    options.add_argument("--only", choices=[c.key for c in (*DOWNSPOUT, SPARK)], help="one of these; default: all")
    given: Any = options.read(arguments)
    before, measured = load(), []
    todo = [*((age_s, contender) for age_s in given.ages for contender in DOWNSPOUT), (given.trigger, SPARK)]
    with track() as course:
        for age_s, contender in todo:
            if given.only in (None, contender.key):
                rate = min(given.rate, SPARK_RATE_MAX) if contender is SPARK else given.rate
                measured.append((contender, age_s, measure(course, contender, age_s, rate, given.seconds)))
                say(f"{contender.name}, {age_s:g} s: p99 {np.percentile(measured[-1][2].seconds, 99):.2f} s")
    text = report(measured, given.seconds, machine(before))
    save(given.results, f"latency-{given.only}" if given.only else "latency", text)


if __name__ == "__main__":
    begin(main)
