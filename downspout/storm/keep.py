"""A daemon's keeper: starts it, and restarts it whenever it ends.

Nimbus and supervisor end themselves at any unexpected error, keep their state in ZooKeeper and on disk, and rely on
being restarted; workers do not notice ("Daemon Fault Tolerance" in Storm's documentation). The supervisor ends itself,
for example, when the files of a killed topology vanish while it replaces one of the topology's workers.

A keeper leads the process group of its daemon, which stays the same however often the daemon is restarted: ending the
group (:mod:`downspout.storm.groups`) ends keeper, daemon and workers. Until the node has started, a keeper ends with
its daemon and its exit code, because the process that starts the node has to notice, unless that is gone itself. A
daemon that ends too often is not restarted either. On Linux the kernel ends a daemon whose keeper has ended.

Nimbus does not fail fast where it should: it registers itself in ZooKeeper through one connection (``zkWriter`` of its
``ZKStateStorage``) and listens for lost sessions on another (``zkReader``). Where a pause of some 20 s, of the machine
or of its garbage collector, ends the session of the first alone, it is no longer registered and never learns that: it
still answers, and even takes topologies, but names no leader to those that ask, and a supervisor halts at every
assignment. So its keeper asks for the leader, as a supervisor would, and ends a nimbus that knows of none.

It is a program of its own: ``python -m downspout.storm.keep NAME FILE STARTER PORT COMMAND...``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from downspout.storm import nimbus
from downspout.system.ports import HOST

PAUSE_S = 1.0  # Between a daemon's end and its next start
ENDS_MAX = 10  # A daemon that ends more often within :data:`WINDOW_S` is given up
WINDOW_S = 300.0
ASK_S = 5.0  # Between two questions to nimbus, and how long it has for an answer
LEADERLESS_MAX = 4
"""So many times in a row it may know of no leader: during an election, and after it has lost touch for a moment."""
_PR_SET_PDEATHSIG = 1


def keep(name: str, daemons: Path, starter: int, port: int, command: Sequence[str]) -> int:
    """Run a daemon, and again when it ends; return the exit code of the end that was its last.

    ``starter`` starts the node, and is our parent unless it has ended. ``port`` is nimbus's, 0 for other daemons.
    """
    ends: list[float] = []
    while True:
        code = _run(command, port)
        ends = [each for each in ends if each > time.monotonic() - WINDOW_S] + [time.monotonic()]
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        exit_code = 128 - code if code < 0 else code or 1  # that of a shell; nothing ends in order by itself here
        if not _has_started(daemons) and os.getppid() == starter:
            return exit_code
        if len(ends) > ENDS_MAX:
            _say(f"{name} {how}, for the {len(ends)}th time within {WINDOW_S / 60:g} minutes, and is not started again")
            return exit_code
        _say(f"{name} {how} and is started again")
        time.sleep(PAUSE_S)


def _run(command: Sequence[str], port: int) -> int:
    """Run a daemon to its end; return its exit code, negative for a signal. A nimbus without a leader is ended."""
    daemon = subprocess.Popen(command, preexec_fn=_end_with_parent)
    leaderless = 0
    while True:
        try:
            return daemon.wait(ASK_S if port else None)
        except subprocess.TimeoutExpired:
            leaderless = leaderless + 1 if nimbus.knows_leader(HOST, port, ASK_S) is False else 0
        if leaderless > LEADERLESS_MAX:
            _say("nimbus answers and knows of no leader: it has lost its session with ZooKeeper, and is stopped")
            daemon.terminate()  # in order, or the next one would wait for the sessions of this one to expire
            leaderless = 0


def _end_with_parent() -> None:
    """Have the kernel end this process, which is about to become the daemon, in order when its keeper ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _has_started(daemons: Path) -> bool:
    try:
        return bool(json.loads(daemons.read_text(encoding="utf-8"))["complete"])
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _say(what: str) -> None:
    """Write a line like one of Storm's log, for ``downspout storm logs``, to the daemon's console."""
    print(f"{datetime.now():%Y-%m-%d %H:%M:%S}.000 ERROR downspout [keep] {what}", flush=True)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]))
