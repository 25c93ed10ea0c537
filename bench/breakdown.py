"""Where the CPU time of a run goes, stage by stage, and what the libraries alone would take for the same work.

    python -m bench.breakdown [--records 1000000] [--runs 3] [--quick]

The topology of ``bench.race`` runs in a process of its own, by turns in chunk and in record mode. A stopwatch on the
few methods that records pass in bulk counts the CPU time of the thread in each stage, without that of the stages that
it calls. What starting costs (a run over four records) is taken off each stage. Beside it, what a library needs for
one stage alone, in memory, without Kafka, identities, acks or a log: no pipeline on these libraries can be below it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench import chart
from bench.columns import read_with_ours
from bench.flights import FIELDS, PARTITIONS, SCHEMA, flights, publish
from bench.harness import ROOT, BenchError, Options, begin, by_turns, load, machine, save, say, spread, table
from bench.track import RECORD_S_MAX, START_S_MAX, track
from downspout.parse.json import JsonParser
from downspout.parse.paths import Paths
from downspout.sink.columns.schema import Columns

STAGES = ("fetch and decode", "spout", "parse", "hold rows", "write Parquet", "flush", "engine", "network thread")
MODES = ("chunk", "record")
ENGINE, NETWORK = STAGES[-2:]
COLUMNS = Columns.parse([f"{name}:{kind}" for name, kind in SCHEMA.items()])
CHUNK = 4_000


class Stopwatch:
    """Counts the CPU time of this thread by stage; a stage that calls another one does not count it as its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stages: list[str] = [ENGINE]
        self._since = time.thread_time()

    def _change(self) -> None:
        now = time.thread_time()
        self.seconds[self._stages[-1]] += now - self._since
        self._since = now

    def on(self, owner: Any, name: str, stage: str) -> None:
        """Let the calls of a function or method count for a stage."""
        inner = getattr(owner, name)

        @wraps(inner)
        def timed(*given: Any, **how: Any) -> Any:
            self._change()
            self._stages.append(stage)
            try:
                return inner(*given, **how)
            finally:
                self._change()
                self._stages.pop()

        setattr(owner, name, timed)

    def read(self) -> dict[str, float]:
        """Return the seconds of each stage of this process."""
        self._change()
        return {**self.seconds, NETWORK: time.process_time() - sum(self.seconds.values())}


def measure(bootstrap: str, topic: str, mode: str, directory: str) -> dict[str, float]:
    """Run the topology in this process; return the CPU-seconds of each stage."""
    watch = Stopwatch()
    from bench.flights_topology import FlightsToParquet
    from bolts.parse import JsonParseBolt
    from downspout.engine import bolt_task, many, spout_task
    from downspout.kafka.consumer import KafkaConsumerPort
    from downspout.run.call import run
    from downspout.sink import writer
    from downspout.sink.row_sink import RowSink
    from spouts.kafka import KafkaSpout

    watch.on(KafkaConsumerPort, "poll", "fetch and decode")
    for name in ("next_tuple", "ack_many", "attend"):
        watch.on(KafkaSpout, name, "spout")
    for name in ("process_chunk", "process_many"):
        watch.on(JsonParseBolt, name, "parse")
        watch.on(RowSink, name, "hold rows")
    watch.on(RowSink, "_convert", "hold rows")
    watch.on(RowSink, "_flush", "flush")
    watch.on(writer, "encode", "write Parquet")
    for module, name in ((bolt_task, "emit_chunk"), (spout_task, "emit_chunk"), (many, "_deliver")):
        watch.on(module, name, ENGINE)
    run(
        FlightsToParquet,
        until="end",
        quiet=True,
        settings={
            "kafka.bootstrap": bootstrap, "kafka.topics": [topic], "kafka.emit": mode, "kafka.start": "EARLIEST",
            "kafka.group": f"breakdown-{time.time_ns()}", "parquet.directory": directory,
            **({"parse.types": [f"{name}:{kind}" for name, kind in SCHEMA.items()]} if mode == "chunk" else {}),
        },
    )  # fmt: skip
    return watch.read()


def measured(bootstrap: str, topic: str, mode: str, count: int, directory: Path) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "bench.breakdown", "--measure", bootstrap, topic, mode, str(directory)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=START_S_MAX + count * RECORD_S_MAX, check=False
    )
    if done.returncode:
        raise BenchError(f"{mode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- the libraries alone ---


def _ndjson(values: Sequence[bytes]) -> bytes:
    return b"\n".join(values) + b"\n"


def by_arrow(values: Sequence[bytes]) -> pa.Table:
    from pyarrow import json as reader

    options = reader.ParseOptions(explicit_schema=COLUMNS.schema, unexpected_field_behavior="ignore")
    read = reader.ReadOptions(use_threads=False)
    return reader.read_json(pa.BufferReader(_ndjson(values)), read_options=read, parse_options=options)


def by_polars(values: Sequence[bytes]) -> int:
    import polars as pl

    kinds: Any = pl.Schema(pl.from_arrow(COLUMNS.schema.empty_table()).schema)  # type: ignore[union-attr]
    return pl.read_ndjson(_ndjson(values), schema=kinds).height


def by_ours(values: Sequence[bytes]) -> int:
    parser = JsonParser(Paths(FIELDS), COLUMNS)
    parts = (pa.array(values[at : at + CHUNK], pa.binary()) for at in range(0, len(values), CHUNK))
    return sum(len(parser.parse(part).rows) for part in parts)


def by_orjson(values: Sequence[bytes]) -> int:
    import orjson

    return sum(len(orjson.loads(value)) for value in values)


def alone(count: int, bootstrap: str) -> dict[str, Callable[[], Any]]:
    """Return what is measured alone, by name; each begins with its stage."""
    import pyarrow.parquet as pq

    values = [value for _, value in flights(count)]
    rows = by_arrow(values)
    return {
        "parse: orjson to dicts, no columns": lambda: by_orjson(values),
        "parse: Arrow's JSON reader, one thread": lambda: by_arrow(values),
        "parse: Polars' NDJSON reader": lambda: by_polars(values),
        "parse: ours, which finds the bad record": lambda: by_ours(values),
        "write Parquet: Arrow with zstd": lambda: pq.write_table(rows, pa.BufferOutputStream(), compression="zstd"),
        "fetch and decode: our consumer": lambda: read_with_ours(bootstrap, "bench-flights", count, columns=True),
    }


def limits(count: int, runs: int, bootstrap: str) -> dict[str, list[float]]:
    """Return CPU-seconds per million of each way and run; all threads count."""
    found: dict[str, list[float]] = defaultdict(list)
    ways = alone(count, bootstrap)
    for _ in range(runs):
        for name, way in ways.items():
            before = time.process_time()
            way()
            found[name].append((time.process_time() - before) / count * 1e6)
    return dict(found)


# --- the report ---


def report(
    stages: Mapping[str, Mapping[str, Sequence[float]]], beside: Mapping[str, Sequence[float]], given: Any, where: str
) -> str:
    """Return the Markdown report."""
    libraries = [[name, spread(one)] for name, one in beside.items()]
    total = {mode: [sum(run) for run in zip(*found.values(), strict=True)] for mode, found in stages.items()}
    rows = [[stage, *(spread(stages[mode][stage]) for mode in MODES)] for stage in STAGES]
    rows.append(["all", *(spread(total[mode]) for mode in MODES)])
    return "\n".join([
        "# Where the CPU time goes", "",
        f"{given.records:,} flights as JSON of 180 bytes from Kafka to typed Parquet; {given.runs} runs by turns, "
        "median (min – max), without what starting costs. `python -m bench.breakdown`", "",
        where, "", "![Where the CPU time goes](breakdown.svg)", "",
        table(("stage, CPU-s per million records", *(f"{mode} mode" for mode in MODES)), rows), "",
        "What the libraries need for a stage alone, in memory:", "",
        table(("stage and library", "CPU-s per million records"), libraries),
    ])  # fmt: skip


def main() -> None:
    """Measure, print and save."""
    if "--measure" in sys.argv:
        print(json.dumps(measure(*sys.argv[sys.argv.index("--measure") + 1 :])))
        return
    options = Options(__doc__, runs=3)
    options.size("--records", 1_000_000, 20_000, type=int)
    given: Any = options.read()
    before = load()
    stages: dict[str, dict[str, list[float]]] = {mode: defaultdict(list) for mode in MODES}
    with track() as course:
        publish(course.bootstrap, "bench-few", PARTITIONS)
        publish(course.bootstrap, "bench-flights", given.records)
        for number, mode in by_turns(MODES, given.runs):
            few, many = (
                measured(course.bootstrap, topic, mode, given.records, course.scratch / f"{topic}-{mode}-{number}")
                for topic in ("bench-few", "bench-flights")
            )
            for stage in STAGES:
                each = (many.get(stage, 0.0) - few.get(stage, 0.0)) / given.records * 1e6
                stages[mode][stage].append(each)
            say(f"run {number + 1}: {mode}: {sum(many.values()):.2f} CPU-s, {sum(few.values()):.2f} of starting")
        beside = limits(given.records, given.runs, course.bootstrap)
    text = report(stages, beside, given, machine(before))
    save(given.results, "breakdown", text, {"stages": stages, "alone": beside})
    middles = {f"{mode} mode": {stage: float(np.median(stages[mode][stage])) for stage in STAGES} for mode in MODES}
    chart.stacks(
        given.results / "breakdown.svg", middles, {name: statistics.median(one) for name, one in beside.items()}
    )


if __name__ == "__main__":
    begin(main)
