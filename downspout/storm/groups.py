"""Process groups: what a process started, and what those started, as far as they stayed in its group.

A daemon or a JVM that we start leads a group (and a session) of its own. Storm's workers and their Python processes
stay in the group of the supervisor that started them, also after its death. So to end a group is to end all of them,
and nobody else.

A group goes by the id of the process that led it, and the kernel gives that id to no new process while the group has
members. A stranger can have it once the group is empty. That is told by the stranger's birth as long as it lives; a
stranger's group without its leader cannot be told apart, which takes a crash of ours, the same process id within the
same boot, and the end of that process: so groups are ended only where we noted one that was never ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.process import birth, send_signal

POLL_S = 0.05


@dataclass(frozen=True)
class Member:
    """A process of a group."""

    pid: int
    birth: str


def members(leader: int) -> list[Member]:
    """Return the living processes of the group that this process leads or led."""
    return [Member(pid, born) for pid in _listed("pgid", leader) if (born := birth(pid)) is not None]


def survivors(leader: int, born: str) -> list[Member]:
    """Return the living processes of a group; none where the group is a stranger's, or our own.

    Args:
        leader: the process that leads or led it.
        born: its birth.
    """
    if leader == os.getpgrp() or _boot(born) != _boot(birth(os.getpid()) or "") or birth(leader) not in (born, None):
        return []
    return members(leader)


def children(parent: int) -> list[int]:
    """Return the ids of the living processes that this process has started itself."""
    return [pid for pid in _listed("ppid", parent) if birth(pid) is not None]


def _listed(column: str, value: int) -> list[int]:
    """Return the ids of all processes that have this value in a column of ``ps``."""
    listed = subprocess.run(["ps", "-A", "-o", f"pid=,{column}="], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, found in rows if found == str(value)]


def end(leader: int, born: str, seconds: float, clock: Clock = SYSTEM_CLOCK) -> bool:
    """End a group: by SIGTERM, and what is left after ``seconds`` by SIGKILL. Return whether there was any.

    Args:
        leader: the process that leads or led it.
        born: its birth, which tells it from a stranger that was given its id.
        seconds: how long the processes may take to end in order.
        clock: what waiting is.
    """
    if not (left := survivors(leader, born)):
        return False
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10.0)):
        for member in left:
            send_signal(member.pid, member.birth, number)
        deadline = clock.monotonic() + patience
        while (left := members(leader)) and clock.monotonic() < deadline:
            clock.sleep(POLL_S)
        if not left:
            break
    return True


def _boot(born: str) -> str:
    """Return the part of a birth that names the boot; empty where births do not name it."""
    boot, slash, _ = born.partition("/")
    return boot if slash else ""
