"""Records the work of a process up to the last record before ``kill -9``.

A process that is killed cannot tell anything any more, so each writes while it works, into files that are mapped into
memory: what was written there is in the kernel's hands, and outlives the process. A listener of the spout
(``kafka.listener``) writes, the tool reads.

* A file for each process: per partition how many records are out, how many were resolved and when the last one was,
  and how far it got.
* A file for each partition, which all share: how often each offset was emitted. Two processes that count the same
  offset at the same moment could lose one; they would have to own the partition at the same moment.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from downspout.kafka import TopicPartition
from downspout.spout import SpoutListener

FOLDER = "CHAOS_FOLDER"
OFFSETS_MAX = 1 << 28
"""Offsets per partition that can be counted: three hours of them at 25,000/s; the files are sparse."""
PARTITIONS_MAX = 16

EMITTED, OUT, RESOLVED, OUT_TO, DONE_TO, MINE, LAST_MS = range(7)
"""Columns: emitted in all; out now; resolved in all; one more than the highest offset emitted, and resolved; whether
the partition is this process's; when it last resolved one, in ms on the machine's monotonic clock."""
COLUMNS = 7
SIZE = 8 * PARTITIONS_MAX * COLUMNS


def emits_file(folder: Path, partition: int) -> Path:
    """Return where the emits of a partition are counted."""
    return folder / f"emits-{partition}.u8"


def prepare(folder: Path, partitions: int) -> None:
    """Make the shared files."""
    (folder / "members").mkdir(parents=True, exist_ok=True)
    for partition in range(partitions):
        with emits_file(folder, partition).open("wb") as file:
            file.truncate(OFFSETS_MAX)


def _mapped(path: Path, size: int) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)


class Recorder(SpoutListener):
    """Writes."""

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Open the files."""
        folder = Path(os.environ[FOLDER])
        own = folder / "members" / f"{os.getpid()}.q"
        own.write_bytes(bytes(SIZE))
        self._cells = memoryview(_mapped(own, SIZE)).cast("q")
        self._emits = [_mapped(path, OFFSETS_MAX) for path in sorted(folder.glob("emits-*.u8"), key=_number)]
        self._retrying = [0] * len(self._emits)

    def on_emit(self, partition: TopicPartition, offset: int, values: Sequence[Any]) -> None:
        """Count it, before it leaves."""
        number = partition.partition
        emits, cells, at = self._emits[number], self._cells, number * COLUMNS
        if emits[offset] < 255:
            emits[offset] += 1
        if offset >= cells[at + OUT_TO]:
            cells[at + OUT_TO] = offset + 1
        elif self._retrying[number]:
            self._retrying[number] -= 1
        elif offset < cells[at + OUT_TO] - 1 and cells[at + OUT] and emits[offset] > 1:
            # Read again and no retry: the partition was lost and came back, and what was out is out no more.
            self._restarted(at, offset)
        cells[at + EMITTED] += 1
        cells[at + OUT] += 1

    def _restarted(self, at: int, offset: int) -> None:
        self._cells[at + OUT] = 0
        self._cells[at + OUT_TO] = offset + 1

    def on_ack(self, partition: TopicPartition, offset: int) -> None:
        """Count it, and look at the clock."""
        cells, at = self._cells, partition.partition * COLUMNS
        cells[at + RESOLVED] += 1
        if cells[at + OUT]:
            cells[at + OUT] -= 1
        if offset >= cells[at + DONE_TO]:
            cells[at + DONE_TO] = offset + 1
        cells[at + LAST_MS] = int(time.monotonic() * 1000)

    def on_retry(self, partition: TopicPartition, offset: int) -> None:
        """It is out no more."""
        at = partition.partition * COLUMNS
        self._retrying[partition.partition] += 1
        if self._cells[at + OUT]:
            self._cells[at + OUT] -= 1

    def on_partitions_reassigned(self, partitions: frozenset[TopicPartition]) -> None:
        """What is out of other partitions is not expected back."""
        mine = {tp.partition for tp in partitions}
        for number in range(len(self._emits)):
            self._cells[number * COLUMNS + MINE] = number in mine
            if number not in mine:
                self._cells[number * COLUMNS + OUT] = 0


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _joined(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return the figures of several processes in one table: counters added, places and times the latest."""
    stacked = np.stack(tables)
    joined = stacked.max(axis=0)
    joined[:, [EMITTED, OUT, RESOLVED]] = stacked[:, :, [EMITTED, OUT, RESOLVED]].sum(axis=0)
    return np.asarray(joined)


class Records:
    """Reads what all processes of a run have written, dead ones too."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._folder = folder
        self._partitions = partitions
        self._tables: dict[int, np.ndarray] = {}
        self._living: dict[int, np.ndarray] = {}
        self._ended = np.zeros((partitions, COLUMNS), dtype=np.int64)
        self._emits = [np.memmap(emits_file(folder, p), dtype=np.uint8, mode="r") for p in range(partitions)]

    def follow(self, pids: Collection[int]) -> None:
        """Look at these processes from now on; of the others, which have ended, the figures are kept."""
        for pid in [pid for pid in self._living if pid not in pids]:
            self._ended = _joined([self._ended, self._living.pop(pid)])
        for pid in pids:
            if pid not in self._living and (table := self.of(pid)) is not None:
                self._living[pid] = table

    def of(self, pid: int) -> np.ndarray | None:
        """Return the table of a process; None where it has not begun."""
        if pid not in self._tables:
            path = self._folder / "members" / f"{pid}.q"
            if not path.exists() or path.stat().st_size < SIZE:
                return None
            found = np.memmap(path, dtype=np.int64, mode="r", shape=(PARTITIONS_MAX, COLUMNS))
            self._tables[pid] = found[: self._partitions]
        return self._tables[pid]

    def out(self, pid: int) -> int:
        """Return how many records of a process are out, or were when it died."""
        table = self.of(pid)
        return 0 if table is None else int(table[:, OUT].sum())

    def mine(self, pid: int) -> list[int]:
        """Return the partitions that a process owns, or owned when it died."""
        table = self.of(pid)
        return [] if table is None else [int(p) for p in np.flatnonzero(table[:, MINE])]

    def _column(self, column: int) -> list[int]:
        return [int(value) for value in _joined([self._ended, *self._living.values()])[:, column]]

    def resolved(self) -> int:
        """Return how many records were resolved in all, those that were resolved again counted again."""
        return sum(self._column(RESOLVED))

    def out_to(self) -> list[int]:
        """Return by partition one more than the highest offset that was emitted."""
        return self._column(OUT_TO)

    def check_room(self) -> None:
        """Raise RuntimeError where no more offsets can be counted: nobody would write any more, for good."""
        if max(self.out_to()) >= OFFSETS_MAX:
            raise RuntimeError(f"{OFFSETS_MAX:,} offsets of a partition were emitted, and no more can be counted")

    def done_to(self) -> list[int]:
        """Return by partition one more than the highest offset that was resolved."""
        return self._column(DONE_TO)

    def last_progress_s(self) -> list[float]:
        """Return by partition when a record was last resolved, on the monotonic clock."""
        return [ms / 1000 for ms in self._column(LAST_MS)]

    def emits(self, partition: int) -> np.ndarray:
        """Return how often each offset was emitted."""
        return self._emits[partition]

    def emitted_again(self) -> tuple[int, int]:
        """Return how many records were emitted, and how many emits there were beyond the first of each."""
        records = again = 0
        for emits, end in zip(self._emits, self.out_to_ever(), strict=True):
            counts = emits[:end]
            seen = int(np.count_nonzero(counts))
            records += seen
            again += int(counts.sum(dtype=np.int64)) - seen
        return records, again

    def out_to_ever(self) -> list[int]:
        """Return by partition a bound for the offsets that were ever emitted."""
        return [max(a, b) + 100_000 for a, b in zip(self.out_to(), self.done_to(), strict=True)]

    def untold(self, partition: int, commit: int, done: Sequence[tuple[int, int]]) -> int:
        """Return how many records of a partition were emitted which a commit does not call done."""
        end = min(self.out_to_ever()[partition], OFFSETS_MAX)
        emitted = self._emits[partition][commit:end] > 0
        for start, stop in done:
            emitted[max(start - commit, 0) : max(stop - commit, 0)] = False
        return int(np.count_nonzero(emitted))
