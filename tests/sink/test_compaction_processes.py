"""Writers, compactors and readers at work at once, as processes, on a real disk."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from downspout.audit.audit import audit
from downspout.sink import CommitLog, Compactor, Disk, Layout, read_entries, wherever
from tests.sink.compaction_support import expected, opened, plain, through_the_log, write

ROWS = 40
ENOUGH = {"a": 25, "b": 25, "first compactor": 3, "second compactor": 3, "reader": 5, "auditor": 3}
"""What each must have done before all stop: flushes, compactions, looks."""
PAUSE_S = 0.1
"""Writers rest after a flush: where fsync costs little they would make files faster than anybody merges them."""
Results = Any
Count = Any


def write_all(directory: Path, name: str, start: int, stop: Event, results: Results, count: Count) -> None:
    """Flush some rows again and again, each second flush with rows of the one before, until told to stop."""
    sink, end = opened(directory, name, Disk()), start
    while not stop.is_set():
        write(sink, range(max(start, end - ROWS // 2), end + ROWS, 1))
        end += ROWS
        count.value += 1
        stop.wait(PAUSE_S)
    results.put((name, start, end))


def compact_all(directory: Path, name: str, start: int, stop: Event, results: Results, count: Count) -> None:
    while not stop.is_set():
        if any(Layout(directory).log.glob("*.json")):
            Compactor(directory, say=lambda line: None, target_bytes=40_000).run()
            count.value += 1
    results.put((name, 0, 0))


def read_all(directory: Path, name: str, start: int, stop: Event, results: Results, count: Count) -> None:
    """Read through the log again and again: no row twice, none of before gone, and as many as are covered."""
    seen = set[Any]()
    while not stop.is_set():
        log = CommitLog(directory)
        log.refresh()
        rows: Counter[Any] = Counter()
        for path in log.files:
            table = _table(directory, path)
            rows.update(zip(*(table.column(name).to_pylist() for name in ("_partition", "_offset")), strict=True))
        if max(rows.values(), default=1) > 1 or not seen <= rows.keys() or len(rows) != log.coverage.total:
            results.put((name, 0, f"{len(rows)} of {log.coverage.total} rows, {len(seen - rows.keys())} gone again"))
            return
        seen = set(rows)
        count.value += 1
    results.put((name, 0, ""))


def _table(directory: Path, path: str) -> pa.Table:
    content = wherever(Layout(directory), path, Path.read_bytes)
    return pq.ParquetFile(pa.BufferReader(content)).read()


def audit_all(directory: Path, name: str, start: int, stop: Event, results: Results, count: Count) -> None:
    """Audit again and again: nothing is ever out of order."""
    wrong = ""
    while not stop.is_set():
        if any(Layout(directory).log.glob("*.json")):
            report = audit(directory)
            wrong = wrong or (report.verdict if report.exit_code else "")
            count.value += 1
    results.put((name, 0, wrong))


@pytest.mark.sweep
@pytest.mark.slow
def test_writers_compactors_readers_and_auditors_at_once(tmp_path: Path) -> None:
    """Two writers, two compactors, a reader through the log and an auditor, all at once for a while: the reader always
    sees each row once, the auditor never raises a false alarm, and in the end each row is in sight once."""
    context = multiprocessing.get_context("spawn")
    stop, results, directory = context.Event(), context.Queue(), tmp_path / "out"
    work = [write_all, write_all, compact_all, compact_all, read_all, audit_all]
    counts = {name: context.Value("i", 0) for name in ENOUGH}
    starts = {"a": 0, "b": 1_000_000}
    processes = [
        context.Process(target=target, args=(directory, name, starts.get(name, 0), stop, results, counts[name]))
        for target, name in zip(work, ENOUGH, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        while any(counts[name].value < least for name, least in ENOUGH.items()):
            assert all(process.is_alive() for process in processes)
            time.sleep(0.2)
        stop.set()
        told = {name: rest for name, *rest in (results.get(timeout=120) for _ in processes)}
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
    assert (told["reader"], told["auditor"]) == ([0, ""], [0, ""])
    offsets = [offset for name in ("a", "b") for offset in range(*told[name])]
    assert plain(directory) == through_the_log(directory) == expected(offsets)
    assert "compact" in {entry.kind for entry in read_entries(directory)}
