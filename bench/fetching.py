"""What Kafka's fetch settings and the poll's time-out cost, and what they save: latency, CPU, requests.

    python -m bench.fetching [--rates 200 5000] [--seconds 3] [--quick]

A spout reads on in a separate process, in record mode, and each tuple is acked as it leaves. Records are sent at a
fixed rate from another process, which notes when (``bench/producer.py``). A latency ends where the spout emits the
record, so it holds the broker, the fetch and the poll, and no bolt. Requests are fetches that were answered; CPU time
is that of the spout's process, from the first record to the last.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kafka.consumer.fetcher import Fetcher

from bench import producer
from bench.flights import PARTITIONS, publish
from bench.harness import ROOT, BenchError, Options, begin, load, machine, save, say, table
from bench.track import Track, track

READY_S_MAX = 60.0


class Choice(NamedTuple):
    """A row of the table: two properties of the client, and a setting of the spout's."""

    min_bytes: int
    max_wait_ms: int
    poll_timeout_ms: int

    @property
    def settings(self) -> dict[str, Any]:
        """Return them as settings."""
        return {
            "kafka.client.fetch_min_bytes": self.min_bytes,
            "kafka.client.fetch_max_wait_ms": self.max_wait_ms,
            "kafka.poll_timeout_ms": self.poll_timeout_ms,
        }


DEFAULT = Choice(1, 500, 200)
CHOICES = (
    DEFAULT,
    Choice(1, 100, 200),
    Choice(1, 10, 200),
    Choice(1, 500, 10),
    Choice(1, 500, 1_000),
    Choice(16 * 1024, 100, 200),
    Choice(16 * 1024, 500, 200),
    Choice(128 * 1024, 100, 200),
)
"""The default, and what differs from it in one or two of the three; the last is what chunks have by default."""


class Fetching(NamedTuple):
    """What was measured of a choice at a rate."""

    seconds: np.ndarray  # of each record, from ``send`` to the spout's emit
    cpu_s: float  # per million records
    requests: float  # per second


def measure(course: Track, choice: Choice, rate: float, seconds: float) -> Fetching:
    """Let a spout read on while a producer sends.

    Raises:
        BenchError: the spout ended early, or a record did not come.
    """
    name = f"fetching-{'-'.join(map(str, choice))}-{rate:g}"
    place = course.scratch / name
    place.mkdir()
    count, times, found = int(rate * seconds), place / "times.npy", place / "found.npz"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    publish(course.bootstrap, name, PARTITIONS)  # with these the group has been joined, and they are not measured
    given = [course.bootstrap, name, json.dumps(choice.settings), str(count), str(found)]
    with (place / "log").open("wb") as output:
        spout = subprocess.Popen(
            [sys.executable, "-m", "bench.fetching", "--spout", *given],
            cwd=place, env=environment, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + READY_S_MAX
        while not (place / "ready").exists():
            if spout.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"the spout did not begin:\n{(place / 'log').read_text()[-3000:]}")
            time.sleep(0.02)
        producer.main(course.bootstrap, name, str(rate), str(seconds), str(times))
        if spout.wait(READY_S_MAX):
            raise BenchError(f"the spout failed:\n{(place / 'log').read_text()[-3000:]}")
    finally:
        spout.kill()
        spout.wait()
    sent, read = np.load(times), np.load(found)
    return Fetching((read["emitted"] - sent) / 1e9, float(read["cpu_s"]) / count * 1e6, float(read["requests"]))


def read_on(bootstrap: str, topic: str, settings: str, count: str, out: str) -> None:
    """Be the spout: emit and ack until so many records have come, and write down when."""
    from spouts.kafka import KafkaSpout

    fetches, emitted = count_fetches(), np.zeros(int(count), np.int64)
    acks: list[str] = []
    left = PARTITIONS + len(emitted)

    def emit(values: list[int], tup_id: str | None = None, **_: Any) -> None:
        nonlocal left
        partition, offset = values
        if offset:  # the first of each partition is not measured
            emitted[(offset - 1) * PARTITIONS + partition] = time.time_ns()
        left -= 1
        acks.append(tup_id or "")

    spout = KafkaSpout(input_stream=io.BytesIO(), output_stream=io.BytesIO(), rdb_signal=None)
    spout.component_name, spout.emit = "reader", emit
    conf = {"topology.name": topic, "kafka.bootstrap": bootstrap, "kafka.topics": [topic], **json.loads(settings)}
    conf["kafka.fields"] = ["partition", "offset"]
    spout.initialize(conf, {"taskid": 1, "componentid": "reader", "task->component": {"1": "reader"}})
    spout.activate()
    measured: tuple[float, float, int] | None = None
    while left:
        spout.next_tuple()
        if acks:
            spout.ack_many(acks)
            acks.clear()
        if measured is None and left == len(emitted):
            measured = time.process_time(), time.monotonic(), fetches[0]
            Path("ready").touch()
    assert measured is not None
    cpu_s, seconds = time.process_time() - measured[0], time.monotonic() - measured[1]
    np.savez(out, emitted=emitted, cpu_s=cpu_s, requests=(fetches[0] - measured[2]) / seconds)
    spout.close()


def count_fetches() -> list[int]:
    """Let the client's fetchers count their answers; return where the number is."""
    count, answered = [0], Fetcher._handle_fetch_response

    def handle(self: Any, *args: Any, **given: Any) -> Any:
        count[0] += 1
        return answered(self, *args, **given)

    Fetcher._handle_fetch_response = handle
    return count


def report(measured: Sequence[tuple[float, Choice, Fetching]], seconds: float, described: str) -> str:
    """Return the Markdown report."""
    rows = []
    for rate, choice, found in measured:
        p50, p99 = np.percentile(found.seconds, [50, 99]) * 1000
        rows.append([
            f"{rate:,.0f}", f"{choice.min_bytes:,}", f"{choice.max_wait_ms}", f"{choice.poll_timeout_ms}",
            f"{p50:.0f}", f"{p99:.0f}", f"{found.requests:.0f}", f"{found.cpu_s:.1f}",
        ])  # fmt: skip
    columns = (
        "records/s", "fetch_min_bytes", "fetch_max_wait_ms", "poll_timeout_ms", "p50 ms", "p99 ms", "fetches/s",
        "CPU-s per million",
    )  # fmt: skip
    return "\n".join([
        "# What fetch settings cost", "",
        f"Flights as JSON, {PARTITIONS} partitions on one broker, {seconds:g} s each; from the producer's `send` to "
        "the spout's emit, in record mode. `python -m bench.fetching`", "",
        described, "", table(columns, rows),
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each choice at each rate, print and save."""
    options = Options(__doc__, runs=1)
    options.size("--rates", [200.0, 5_000.0], [200.0], type=float, nargs="+")
    options.size("--seconds", 3.0, 2.0, type=float)
    given: Any = options.read(arguments)
    before, measured = load(), []
    with track() as course:
        measure(course, DEFAULT._replace(poll_timeout_ms=201), given.rates[-1], 1.0)  # the broker's JVM compiles first
        for rate in given.rates:
            for choice in CHOICES:
                measured.append((rate, choice, measure(course, choice, rate, given.seconds)))
                say(f"{rate:g}/s, {choice}: p99 {np.percentile(measured[-1][2].seconds, 99) * 1000:.0f} ms")
    save(given.results, "fetching", report(measured, given.seconds, machine(before)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--spout"]:
        read_on(*sys.argv[2:])
    else:
        begin(main)
