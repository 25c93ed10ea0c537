"""Process groups: a process and those of its descendants that stayed in its group.

A daemon or JVM that we start leads its own group and session. Storm's workers and their Python processes stay in the
group of their supervisor, also after its death. So ending a group ends exactly these.

A group's id is the process id of its leader, and the kernel does not reuse that id while the group has members. Once
the group is empty, an unrelated process may get the id; while it lives, its birth shows the difference. If it has ended
but left a group, the two are indistinguishable; for that, we must have crashed and the id been reused within one boot.
So only groups that are recorded as started, and not as ended, are ended.
"""

from __future__ import annotations

import os
import signal
import subprocess

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.system.process import ProcessIdentity, birth

POLL_S = 0.05


def members(leader: int) -> list[ProcessIdentity]:
    """Return the living processes of the group with this leader, alive or not."""
    return [found for pid in _listed("pgid", leader) if (found := ProcessIdentity.of(pid)).birth]


def survivors(leader: ProcessIdentity) -> list[ProcessIdentity]:
    """Return the living processes of a group; none if the group is unrelated or our own."""
    here = ProcessIdentity.of(os.getpid())
    if leader.pid == os.getpgrp() or _boot(leader.birth) != _boot(here.birth):
        return []
    return members(leader.pid) if birth(leader.pid) in (leader.birth, None) else []


def _listed(column: str, value: int) -> list[int]:
    """Return the ids of all processes with this value in a column of ``ps``."""
    listed = subprocess.run(["ps", "-A", "-o", f"pid=,{column}="], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, found in rows if found == str(value)]


def end(leader: ProcessIdentity, seconds: float, clock: Clock = SYSTEM_CLOCK) -> bool:
    """End a group by SIGTERM, after ``seconds`` by SIGKILL. Return whether it had members."""
    if not (left := survivors(leader)):
        return False
    for number, limit_s in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10.0)):
        for member in left:
            member.signal(number)
        deadline = clock.monotonic() + limit_s
        while (left := members(leader.pid)) and clock.monotonic() < deadline:
            clock.sleep(POLL_S)
        if not left:
            break
    return True


def _boot(born: str) -> str:
    """Return the part of a birth that identifies the boot; empty if births lack it."""
    boot, slash, _ = born.partition("/")
    return boot if slash else ""
