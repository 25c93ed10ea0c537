"""CPU time of a running process and all its descendants.

When a process ends, the kernel adds its CPU time to that of the parent that waits for it. PySpark's daemon does not
wait for its Python workers (it ignores SIGCHLD), so their time is lost when they end. Therefore a thread samples all
processes every 30 ms, and an ended process counts with its last sample.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.harness import Process, processes

EVERY_S = 0.03


@dataclass
class _Seen:
    """The last sample of a process."""

    parent: tuple[int, int] | None
    waited_before_s: float
    own_s: float = 0.0
    waited_s: float = 0.0
    runs: bool = True


class CpuMeter:
    """Counts from its creation until it is closed. The last 30 ms of a process that ends may be missing.

    Args:
        pid: the root process. If it is our own, the time for sampling does not count.
    """

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._seen: dict[tuple[int, int], _Seen] = {}  # by number and start: numbers are used again
        self._looking_s = 0.0
        self._lock, self._over = threading.Lock(), threading.Event()
        self._look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __enter__(self) -> CpuMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop sampling."""
        self._over.set()
        self._thread.join()

    @property
    def cpu_s(self) -> float:
        """User and system time in seconds; only differences are meaningful."""
        with self._lock:
            self._look()
            children: dict[tuple[int, int] | None, list[tuple[int, int]]] = {}
            for key, one in self._seen.items():
                children.setdefault(one.parent, []).append(key)

            def total(key: tuple[int, int]) -> float:
                one, below = self._seen[key], children.get(key, [])
                running, ended = (
                    sum(total(each) for each in below if self._seen[each].runs is so) for so in (True, False)
                )
                # The parent's time for children it waited for is exact, and includes their samples.
                return one.own_s + running + max(one.waited_s - one.waited_before_s, ended)

            return sum(total(key) for key in self._seen if key[0] == self._root) - self._looking_s

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._lock:
                self._look()
                if self._root == os.getpid():
                    self._looking_s = time.thread_time()

    def _look(self) -> None:
        table = processes()
        now = {(pid, process.started): process for pid, process in table.items()}
        for key, process in now.items():
            if key not in self._seen:
                if self._root not in _ancestry(table, key[0]):
                    continue
                # It may become an orphan later, but keeps its present parent here.
                parent = table.get(process.parent)
                above = None if parent is None else (process.parent, parent.started)
                self._seen[key] = _Seen(above, process.waited_s)
            self._seen[key].own_s, self._seen[key].waited_s = process.own_s, process.waited_s
        for key, one in self._seen.items():
            one.runs = key in now


def _ancestry(table: dict[int, Process], pid: int) -> Iterator[int]:
    """Yield a process, its parent, and so on."""
    while pid in table:
        yield pid
        pid = table[pid].parent
