"""Slots whose workers do not come up, by the supervisor's log, and the process that is in their way.

The supervisor may take a worker for dead that is just starting, and start another one in its slot. If the first comes
up all the same, it has the slot's port, nobody minds it any more, and each worker that follows ends with a
BindException, which shows in its own log alone: the supervisor only says that it "failed to launch".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from downspout.storm.node_files import is_free

LOG_BYTES = 2 * 1024 * 1024
PROC = Path("/proc")
_FAILED = re.compile(r"\bSLOT (\d+): Container .* failed to launch in \d+ ms")
_STATE = re.compile(r"\[SLOT_(\d+)\] STATE .*-> (\S+) msInState: \d+(?: topo:\S+ worker:(\S+))?")


@dataclass(frozen=True)
class StuckSlot:
    """A slot whose last workers failed to launch."""

    port: int
    failures: int  # in a row
    is_taken: bool  # whether a process has its port
    holder: int | None  # that process, where it can be told
    held_by: str  # what it is: "a worker of TOPOLOGY-ID", or its program

    def __str__(self) -> str:
        times = "once" if self.failures == 1 else f"{self.failures} times in a row"
        text = f"slot {self.port}: its worker failed to launch {times}"
        if self.holder is not None:
            return f"{text}; process {self.holder} ({self.held_by}) has its port. Try: kill {self.holder}"
        if self.is_taken:
            return f"{text}; another process has its port. Try: `lsof -i :{self.port}`, and end that process"
        return f"{text}. Try: `downspout storm logs`, which has the worker's own log"


def stuck_slots(log: Path) -> list[StuckSlot]:
    """Return the slots that, by the end of the supervisor's log, have no worker because it failed to launch."""
    failures: dict[int, int] = {}
    starting: dict[int, str] = {}  # the id of the worker that is being started
    for line in _tail(log):
        if failed := _FAILED.search(line):
            failures[int(failed[1])] = failures.get(int(failed[1]), 0) + 1
        elif state := _STATE.search(line):
            port, name, worker = int(state[1]), state[2], state[3]
            if name in ("running", "empty"):
                failures.pop(port, None)
            starting[port] = worker or ""
    found = []
    for port, count in sorted(failures.items()):
        is_taken = not is_free(port)
        holder = _listener(port) if is_taken else None
        words = _command(holder) if holder is not None else []
        if f"-Dworker.id={starting.get(port)}" not in words:  # else it is just coming up
            found.append(StuckSlot(port, count, is_taken, holder, _named(words)))
    return found


def _tail(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return
    yield from text.splitlines()


def _listener(port: int) -> int | None:
    """Return the process that listens at a port; None where Linux does not tell: another user's, or another system."""
    sockets = set()
    for table in (PROC / "net" / "tcp", PROC / "net" / "tcp6"):
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{rest[5]}]")
    for entry in PROC.glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if str(entry.readlink()) in sockets:
                return int(entry.parent.parent.name)
    return None


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    return []


def _named(words: list[str]) -> str:
    """Return what a process is, in a few words.

    >>> _named(["/usr/bin/java", "-Dstorm.id=rows-1-17", "-Dworker.id=7c1f"]), _named(["/usr/bin/python3", "-m", "x"])
    ('a worker of rows-1-17', 'python3')
    """
    topology = next((word.partition("=")[2] for word in words if word.startswith("-Dstorm.id=")), "")
    return f"a worker of {topology}" if topology else Path(words[0]).name if words else ""
