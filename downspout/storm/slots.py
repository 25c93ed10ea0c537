"""Slots whose workers do not come up, by the supervisor's log, and the process that is in their way.

The supervisor may take a worker for dead that is just starting, and start another one in its slot. If the first comes
up all the same, it has the slot's port, nobody minds it any more, and each worker that follows ends with a
BindException, which shows in its own log alone: the supervisor only says that it "failed to launch".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from downspout.storm.node_files import is_free

LOG_BYTES = 2 * 1024 * 1024
_FAILED = re.compile(r"\bSLOT (\d+): Container (.*?) failed to launch in (\d+) ms")
_WORKER = re.compile(r"\s*(\d+)\s+(\d+)\s.*\s-Dworker\.port=(\d+)\s.*\sorg\.apache\.storm\.daemon\.worker\.Worker\s")
_RUNS = re.compile(r"\[SLOT_(\d+)\] STATE .*-> STATE RUNNING\b")


@dataclass(frozen=True)
class StuckSlot:
    """A slot whose last workers failed to launch."""

    port: int
    failures: int  # in a row
    holder: int | None  # the process that has its port, where that is a worker of Storm's
    is_taken: bool  # whether a process has its port

    def __str__(self) -> str:
        times = "once" if self.failures == 1 else f"{self.failures} times in a row"
        text = f"slot {self.port}: its worker failed to launch {times}"
        if self.holder is not None:
            return f"{text}; process {self.holder}, a worker from before, has its port. Try: kill {self.holder}"
        if self.is_taken:
            return f"{text}; another process has its port. Try: end that process (`ss -ltnp 'sport = :{self.port}'`)"
        return f"{text}. Try: `downspout storm logs`, which has the worker's own log"


def stuck_slots(log: Path) -> list[StuckSlot]:
    """Return the slots that, by the end of the supervisor's log, have no worker because it failed to launch."""
    failures = {port: count for port, count in _failures(log).items() if count}
    if not failures:
        return []
    workers = _workers()
    taken = {port for port in failures if not is_free(port)}
    return [
        StuckSlot(port, count, workers.get(port) if port in taken else None, port in taken)
        for port, count in sorted(failures.items())
    ]


def _failures(log: Path) -> dict[int, int]:
    """Return how often in a row the worker of each slot has failed to launch, up to the end of the log."""
    found: dict[int, int] = {}
    for line in _tail(log):
        if failed := _FAILED.search(line):
            port = int(failed[1])
            found[port] = found.get(port, 0) + 1
        elif runs := _RUNS.search(line):
            found[int(runs[1])] = 0
    return found


def _tail(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return
    yield from text.splitlines()


def _workers() -> dict[int, int]:
    """Return the process of the oldest worker of each port: the later ones are those that find the port taken."""
    command = ["ps", "-A", "-ww", "-o", "pid=,etimes=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    oldest: dict[int, tuple[int, int]] = {}
    for line in listed.splitlines():
        if (found := _WORKER.match(line)) and "org.apache.storm.LogWriter" not in line:
            pid, age, port = map(int, found.groups())
            oldest[port] = max(oldest.get(port, (-1, 0)), (age, pid))
    return {port: pid for port, (_, pid) in oldest.items()}
