"""CPU and memory of processes."""

from __future__ import annotations

import time

import psutil

EVERY_S = 1.0  # Shortest time over which CPU is averaged


class Processes:
    """Measures processes by their ids."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._looked: dict[int, tuple[float, dict[str, float | None]]] = {}

    def use_of(self, pid: int | None) -> dict[str, float | None]:
        """Return a process's CPU in percent of one core since the last call, and its memory in bytes."""
        unknown: dict[str, float | None] = {"cpu_percent": None, "memory_bytes": None}
        if pid is None:
            return unknown
        before = self._looked.get(pid)
        now = time.monotonic()
        if before is not None and now - before[0] < EVERY_S:
            return before[1]
        try:
            process = self._known.setdefault(pid, psutil.Process(pid))
            # The first call has nothing to compare with.
            cpu = process.cpu_percent(interval=None)
            found = {"cpu_percent": None if before is None else cpu, "memory_bytes": process.memory_info().rss}
        except psutil.Error:  # it has ended
            self._known.pop(pid, None)
            self._looked.pop(pid, None)
            return unknown
        self._looked[pid] = (now, found)
        return found
