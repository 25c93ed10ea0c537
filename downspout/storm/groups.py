"""Process groups: a process with all that it started, directly or not, and that stayed in its group.

A daemon or a JVM that we start leads a group (and a session) of its own. Storm's workers and their Python processes
stay in the group of the supervisor that started them, also after its death. So ending a group ends exactly these.

A group goes by the id of the process that led it, and the kernel gives that id to no new process while the group has
members. Once the group is empty, an unrelated process may get it. Its birth differs as long as it lives. A group that
it left behind cannot be distinguished, which takes a crash of ours, the same process id within the same boot, and the
end of that process: so only groups are ended that we have noted as started and not as ended.
"""

from __future__ import annotations

import os
import signal
import subprocess

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.system.process import ProcessIdentity, birth

POLL_S = 0.05


def members(leader: int) -> list[ProcessIdentity]:
    """Return the living processes of the group that this process leads or led."""
    return [found for pid in _listed("pgid", leader) if (found := ProcessIdentity.of(pid)).birth]


def survivors(leader: ProcessIdentity) -> list[ProcessIdentity]:
    """Return the living processes of a group; none where the group is an unrelated one, or our own."""
    here = ProcessIdentity.of(os.getpid())
    if leader.pid == os.getpgrp() or _boot(leader.birth) != _boot(here.birth):
        return []
    return members(leader.pid) if birth(leader.pid) in (leader.birth, None) else []


def _listed(column: str, value: int) -> list[int]:
    """Return the ids of all processes that have this value in a column of ``ps``."""
    listed = subprocess.run(["ps", "-A", "-o", f"pid=,{column}="], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, found in rows if found == str(value)]


def end(leader: ProcessIdentity, seconds: float, clock: Clock = SYSTEM_CLOCK) -> bool:
    """End a group: by SIGTERM, and what is left after ``seconds`` by SIGKILL. Return whether there was any."""
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
    """Return the part of a birth that names the boot; empty where births do not name it."""
    boot, slash, _ = born.partition("/")
    return boot if slash else ""
