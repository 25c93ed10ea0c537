"""What opening a sink's directory costs, by the length of its history: with checkpoints, and entry by entry.

    python -m bench.opening [--flushes 100 1000 10000 100000] [--live 200]

Each flush makes one entry; of the data files the last ``--live`` count, as after a compaction, and with ``--live 0``
all of them. Entries and data files are made without fsync. CPU time of this process, best of three.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from downspout.sink.identity.coverage import Coverage, Stream
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.log.entry import COMPACT, DataFile, Entry
from downspout.sink.storage.disk import Disk
from downspout.sink.writer import SinkWriter

ROWS = 1000


class Unsynced(Disk):
    """Leaves it to the kernel when something reaches the disk."""

    def sync(self, path: Path) -> None:
        """Do nothing."""


def fill(directory: Path, flushes: int, live: int) -> None:
    """Append entries, and make the files that count (empty ones: nothing reads them here)."""
    log = CommitLog(directory, Unsynced())
    log.refresh()
    for number in range(flushes):
        covered = Coverage()
        covered.add_range(Stream("t", "id", number % 4, ""), number // 4 * ROWS, (number // 4 + 1) * ROWS)
        file = DataFile(f"part-w-{number}.parquet", ROWS, 0)
        assert log.append(Entry(log.length, "w", "t", ("n:int64",), 0, (file,), covered, "sink", {"parse": ""}))
        if live and len(log.files) >= 2 * live:
            gone = tuple(log.files)[:-live]
            assert log.append(
                Entry(
                    log.length,
                    "c",
                    "t",
                    ("n:int64",),
                    0,
                    (),
                    component="sink",
                    kind=COMPACT,
                    removed=gone,
                    gone_before=log.length,
                )
            )
    for path in log.files:
        (directory / path).write_bytes(b"")


def opened(directory: Path) -> None:
    """Open it as a sink does."""
    SinkWriter(directory, topology="t", component="sink", columns=["n:int64"], writer="new", inputs=["parse"]).open()


def best(work: Callable[[], object]) -> float:
    """Return CPU-seconds, best of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flushes", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--live", type=int, default=200)
    arguments = parser.parse_args()
    print("| flushes | data files | open, CPU-ms | read all entries, CPU-ms |\n| --- | --- | --- | --- |")
    for flushes in arguments.flushes:
        with tempfile.TemporaryDirectory() as name:
            fill(Path(name), flushes, arguments.live)
            log = CommitLog(Path(name))
            log.refresh()
            quick = best(lambda name=name: opened(Path(name)))  # type: ignore[misc]
            slow = best(lambda name=name: CommitLog(Path(name), checkpoints=False).refresh())  # type: ignore[misc]
            print(f"| {flushes:,} | {len(log.files):,} | {quick * 1000:.0f} | {slow * 1000:.0f} |", flush=True)


if __name__ == "__main__":
    main()
