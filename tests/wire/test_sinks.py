"""Sinks on Storm's pipe: the rows they hold when Storm ends, and the stream of late rows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from downspout.sink import read_table
from downspout.testing import VirtualClock
from tests.sink.support import rows_of
from tests.sink.test_watermark import HOUR, SCHEMA, START, task, warm_up
from tests.wire.storm_pipe import Storm, handshake

ROWS = 40
FLUSH = 25


def start(directory: Path, scratch: Path) -> Storm:
    """Start a ParquetBolt as Storm does; it flushes every 25 rows."""
    conf = {"parquet.directory": str(directory), "parquet.schema": ["n:int64"], "parquet.flush_rows": FLUSH}
    context = {"source->stream->fields": {"parse": {"default": ["origin", "n"]}}, "stream->outputfields": {}}
    return Storm("bolts.parquet.ParquetBolt", handshake(scratch, conf, context, "sink"))


def tup(number: int) -> Any:
    row = [["orders", "", 0, number, ""], number]
    return {"id": str(number), "comp": "parse", "stream": "default", "task": 2, "tuple": row}


@pytest.fixture
def sinks() -> Iterator[list[Storm]]:
    """Sinks that are killed at the end of the test if they still run."""
    started: list[Storm] = []
    yield started
    for storm in started:
        if storm.process.poll() is None:
            storm.process.kill()
        storm.process.wait()
        for stream in (storm.process.stdout, storm.process.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_rows_that_were_held_come_again(tmp_path: Path, sinks: list[Storm], how: str) -> None:
    """Acked rows are in the files, the others are not, not even in part; sent again, each row is there once."""
    directory = tmp_path / "out"
    sink = start(directory, tmp_path)
    sinks.append(sink)
    sink.send(*map(tup, range(ROWS)))
    acked = [m["id"] for m in sink.until(lambda m: m.get("id") == str(FLUSH - 1)) if m.get("command") == "ack"]
    if how == "SIGTERM":
        sink.process.send_signal(signal.SIGTERM)
        sink.process.wait(120)
    else:
        assert sink.end_input() == 2
    assert sorted(row["n"] for row in rows_of(directory)) == sorted(map(int, acked)) == list(range(FLUSH))

    after = start(directory, tmp_path)
    sinks.append(after)
    after.send(*map(tup, range(ROWS)), *map(tup, range(ROWS, 2 * FLUSH + FLUSH)))
    acked = []
    while len(acked) < 3 * FLUSH:
        (*_, last) = after.until(lambda m: m.get("command") == "ack")
        acked.append(last["id"])
    after.end_input()
    assert sorted(row["n"] for row in rows_of(directory)) == list(range(3 * FLUSH))


@pytest.mark.slow
def test_a_late_row_leaves_by_its_stream(tmp_path: Path, sinks: list[Storm]) -> None:
    """Over Storm's pipe, too: with its columns and its origin, anchored to its tuple, which is acked."""
    directory, clock = tmp_path / "hours", VirtualClock()
    settings = {"schema": SCHEMA, "keys": ["key", "window(at, 1 hour)"], "aggregates": ["count"], "late": "stream"}
    warm_up(task(directory, clock, **settings), clock)
    conf = {f"parquet.{name}": value for name, value in {**settings, "flush_rows": 2}.items()}
    conf |= {"parquet.directory": str(directory), "topology.name": "t"}
    fields = ["origin", "key", "at"]
    context = {"source->stream->fields": {"parse": {"default": fields}}, "stream->outputfields": {}}
    storm = Storm("bolts.aggregate.AggregateBolt", handshake(tmp_path, conf, context, "sink"))
    sinks.append(storm)
    given = {"comp": "parse", "stream": "default", "task": 2}
    times = (START - 9 * HOUR, START + HOUR)
    rows = [[["t", "id", 0, 20 + number, ""], "a", at.isoformat()] for number, at in enumerate(times)]
    storm.send(*({"id": str(number), **given, "tuple": row} for number, row in enumerate(rows)))
    found = storm.until(lambda m: m.get("command") == "ack" and m["id"] == "1")
    [late] = [m for m in found if m.get("command") == "emit"]
    assert (late["stream"], late["anchors"], late["tuple"][0], late["tuple"][2]) == ("late", ["0"], "a", rows[0][0])
    assert [m["id"] for m in found if m.get("command") == "ack"] == ["0", "1"]
    storm.end_input()
    assert sum(read_table(directory).column("count").to_pylist()) == 9 + 1
