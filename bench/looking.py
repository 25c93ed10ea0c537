"""What looking costs, within one run: its page, Prometheus, OpenTelemetry and spans are switched on and off by turns.

    python -m bench.looking [--records 16000000] [--slice 4] [--quick]

One process reads flights by record into Parquet. Every few seconds one of the ways to look at it is switched on, and
before and after each there is a slice without any, with which it is compared: what else the machine does then weighs on
both. What reads (a browser's requests every two seconds, a scrape each second, a collector) is a process of its own, so
what is counted is the CPU time of the run, its threads that answer included.

On a busy machine that difference is mostly noise. So what looking takes is counted by itself too: the time of the calls
that the loop makes for it, and of the threads that are there for it alone.
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
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.flights import PARTITIONS, publish
from bench.flights_topology import FlightsToParquet
from bench.harness import BenchError, Options, begin, load, machine, save, spread, table
from bench.metrics import PAGE
from downspout.broker.embedded import EmbeddedKafka
from downspout.engine.graph import from_class
from downspout.engine.loop import Engine
from downspout.engine.values import resolve
from downspout.export.server import exposed
from downspout.run import runner
from downspout.run.snapshots import Snapshots
from downspout.web.on_request import PageOnRequest

SETTLE_S = 0.5  # After a switch: imports, threads, the first request
TRACE_EVERY = 1_000
OTEL_EVERY_MS = "1000"


# --- what reads, in a process of its own ---


class Collector(BaseHTTPRequestHandler):
    """Takes what is sent by OTLP, and forgets it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def read() -> None:
    """Say where the collector is; then read what each line of standard input names: seconds and addresses."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    over = threading.Event()
    for line in sys.stdin:
        over.set()
        over = threading.Event()
        every_s, addresses = json.loads(line)
        threading.Thread(target=_reading, args=(over, every_s, addresses), daemon=True).start()


def _reading(over: threading.Event, every_s: float, addresses: Sequence[str]) -> None:
    while addresses:
        for address in addresses:
            with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
                answer.read()
        if over.wait(every_s):
            return


# --- what is measured ---


@dataclass
class Slice:
    """Some seconds of the run."""

    way: str
    cpu_s: float
    wall_s: float
    records: int
    looking_s: float  # CPU time of what looks alone

    @property
    def each_us(self) -> float:
        """CPU-microseconds per record."""
        return self.cpu_s / max(1, self.records) * 1e6


@dataclass
class Turns:
    """The view of the run: it switches the ways on and off, in the run's own thread."""

    ways: dict[str, Callable[[], AbstractContextManager[Snapshots | None]]]
    slice_s: float
    later: PageOnRequest
    scraped: Snapshots
    slices: list[Slice] = field(default_factory=list)
    engine: Engine | None = None
    _on: ExitStack = field(default_factory=ExitStack)
    _export: Snapshots | None = None
    _begun: tuple[float, float, int, float] | None = None
    _calls_s: float = 0.0  # CPU time of the loop's calls that looking makes
    _workers: frozenset[int] = frozenset()  # threads that are there without
    _due: float = 0.0
    _at: int = 0

    def update(self, engine: Engine) -> None:
        self.engine = engine
        began = time.thread_time()
        for view in (self.later, self.scraped, self._export):
            if view is not None:
                view.update(engine)
        self._calls_s += time.thread_time() - began
        now = time.monotonic()
        if now < self._due:
            return
        if self._begun is None:
            if self._way == "nothing":
                own = {thread.native_id for thread in threading.enumerate() if thread.name == "downspout-metrics"}
                self._workers = frozenset(int(each) for each in os.listdir("/proc/self/task")) - own
            self._begun = time.process_time(), now, self._done(engine), self._looking_s()
            self._due = now + self.slice_s
            return
        cpu, begun, done, looking = self._begun
        if self._at > 1:  # the first slice of each kind warms up
            records, looking = self._done(engine) - done, self._looking_s() - looking
            self.slices.append(Slice(self._way, time.process_time() - cpu, now - begun, records, looking))
        self._at += 1
        self._on.close()
        self._export = self._on.enter_context(self.ways[self._way]())
        self._begun, self._due = None, time.monotonic() + SETTLE_S

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call of the loop's whose time is that of looking."""

        def do(*given: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*given)
            finally:
                self._calls_s += time.thread_time() - began

        return do

    def _looking_s(self) -> float:
        """Return the CPU time of the calls for looking, and of all threads that are not there without."""
        found = 0
        for thread in self._workers:
            with suppress(OSError):
                found += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
        return self._calls_s + time.process_time() - found / 1e9

    @property
    def _way(self) -> str:
        names = [*self.ways]
        return names[0] if self._at % 2 == 0 else names[1 + self._at // 2 % (len(names) - 1)]

    @staticmethod
    def _done(engine: Engine) -> int:
        return sum(spout.emitted for spout in engine.spouts)

    def close(self) -> None:
        self._on.close()


def measure(bootstrap: str, scratch: Path, slice_s: float) -> list[Slice]:
    """Run over the topic; return the slices."""
    reader = subprocess.Popen(
        [sys.executable, "-c", "from bench.looking import read; read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdin is not None
    assert reader.stdout is not None
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{reader.stdout.readline().strip()}"
    os.environ["OTEL_METRIC_EXPORT_INTERVAL"] = OTEL_EVERY_MS
    graph = from_class(FlightsToParquet, "looking")
    given = {
        "kafka.bootstrap": bootstrap, "kafka.emit": "record", "kafka.start": "EARLIEST",
        "kafka.trace_every": TRACE_EVERY,
        "parquet.directory": str(scratch / "out"), "run.drain_s": 30,
    }  # fmt: skip
    settings = resolve(graph, given)
    later = PageOnRequest(graph, settings)

    def reading(every_s: float, *addresses: str) -> None:
        assert reader.stdin is not None
        reader.stdin.write(json.dumps([every_s, addresses]) + "\n")
        reader.stdin.flush()

    with exposed("127.0.0.1", 0, {}, stuck_s=0) as exposure:

        @contextmanager
        def page() -> Iterator[None]:
            with later._served("127.0.0.1:0") as shown:
                reading(2.0, *(shown.url + each for each in PAGE))
                yield None
                reading(1.0)

        @contextmanager
        def scrapes() -> Iterator[None]:
            reading(1.0, f"{exposure.url}/metrics")
            yield None
            reading(1.0)

        def exports() -> AbstractContextManager[Snapshots]:
            from downspout.export.otel import exported

            return exported("looking", {})

        @contextmanager
        def spans(on: bool = True) -> Iterator[None]:
            emitters = [spout.instance._emitter for spout in turns.engine.spouts] if turns.engine else []
            for emitter, spout in zip(emitters, turns.engine.spouts if turns.engine else (), strict=True):
                tracing = spout.instance._tracing
                if "records" not in vars(tracing):
                    tracing.records, tracing.ended = turns.timed(tracing.records), turns.timed(tracing.ended)
                emitter.tracing = tracing if on else None
            yield None
            for emitter in emitters:
                emitter.tracing = None

        @contextmanager
        def everything() -> Iterator[Snapshots]:
            with page(), exports() as export, spans():
                reading(1.0, f"{exposure.url}/metrics", *(later._page.url + each for each in PAGE if later._page))
                yield export

        ways: dict[str, Callable[[], AbstractContextManager[Snapshots | None]]] = {
            "nothing": lambda: spans(on=False),
            "the page open": page,
            "Prometheus, a scrape each second": scrapes,
            "OpenTelemetry's metrics, each second": exports,
            f"spans, one of {TRACE_EVERY:,} records": spans,
            "all of these": everything,
        }
        turns = Turns(ways, slice_s, later, exposure.snapshots)
        try:
            runner.run(graph, overrides=given, options={"run.until": "end"}, view=turns)
        finally:
            turns.close()
            reader.kill()
            reader.wait()
    return turns.slices


def compared(slices: Sequence[Slice]) -> dict[str, list[float]]:
    """Return, by way, how much dearer a record was than in the slices before and after, in percent."""
    found: dict[str, list[float]] = {}
    for before, one, after in zip(slices, slices[1:], slices[2:], strict=False):
        if before.way == after.way == "nothing" != one.way and one.records and before.records + after.records:
            alone = (before.cpu_s + after.cpu_s) / (before.records + after.records) * 1e6
            found.setdefault(one.way, []).append(100 * (one.each_us / alone - 1))
    return found


def report(slices: Sequence[Slice], records: int, slice_s: float, described: str) -> str:
    """Return the Markdown report."""
    more = compared(slices)
    if not more:
        raise BenchError("The run was over before each way had its turn: more --records, or a shorter --slice")
    rows = []
    for way in dict.fromkeys(each.way for each in slices):
        own = [each for each in slices if each.way == way]
        beside = (
            f"{statistics.median(more[way]):+.1f} % ({min(more[way]):+.1f} – {max(more[way]):+.1f})"
            if way in more
            else "–"
        )
        busy = spread([100 * each.cpu_s / each.wall_s for each in own], 0)
        looking, wall = sum(each.looking_s for each in own), sum(each.wall_s for each in own)
        run = sum(each.cpu_s for each in own) - looking
        shares = [f"{100 * looking / wall:.2f}", f"{100 * looking / run:.1f} %"]
        rows.append([way, str(len(own)), *shares, spread([each.each_us for each in own]), beside, busy])
    columns = (
        "what looks", "slices", "looking alone, % of a core", "of the run's CPU time",
        "CPU-s per million, all", "beside the slices around, by pairs", "the run, % of a core",
    )  # fmt: skip
    return "\n".join([
        "# What looking costs within one run", "",
        f"One run over {records:,} flights as JSON to typed Parquet, by record, {PARTITIONS} partitions, in slices of "
        f"{slice_s:g} s; median (min – max). `python -m bench.looking`",
        "", described, "", table(columns, rows), "",
        "*Looking alone* is counted by itself: calls of the loop, and threads that are there for nothing else. Its "
        "share of the run's time is larger the less of a core the run gets, because pages and scrapes come by the "
        "clock. The last columns compare whole slices, which holds on a quiet machine only.",
    ])  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Publish, measure, print and save."""
    options = Options(__doc__, runs=1)
    options.size("--records", 16_000_000, 300_000, type=int)
    options.size("--slice", 4.0, 0.4, type=float)
    given: Any = options.read(arguments)
    before = load()
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "kafka") as kafka:
        publish(kafka.bootstrap, "bench-flights", given.records)
        slices = measure(kafka.bootstrap, Path(folder), given.slice)
    save(given.results, "looking", report(slices, given.records, given.slice, machine(before)), slices)


if __name__ == "__main__":
    begin(main)
