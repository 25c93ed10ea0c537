"""A daemon's keeper: starts it, and starts it again whenever it ends.

Nimbus and supervisor end themselves at whatever they did not expect, keep all they know in ZooKeeper and on disk, and
count on somebody to start them again; workers do not notice ("Daemon Fault Tolerance" in Storm's documentation). The
supervisor does so, for example, where the files of a topology that is killed go while it replaces one of its workers.

A keeper leads the process group of its daemon, which so stays the same over the lives of the daemon: who ends the group
(:mod:`downspout.storm.groups`) ends the keeper, the daemon and its workers alike. Until the node has started, the end
of a daemon is that of its keeper, with the same exit code: whoever starts the node has to hear of it, unless it is gone
itself. So it is with a daemon that ends over and over. And where the kernel can see to it (Linux), the end of a keeper
is that of its daemon: none runs that nobody keeps.

It uses the standard library alone, and runs without the rest of the package:
``python keep.py NAME FILE STARTER COMMAND...``.
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

PAUSE_S = 1.0
"""Between a daemon's end and its next start."""
ENDS_MAX = 10
"""A daemon that ends more often within :data:`WINDOW_S` is given up."""
WINDOW_S = 300.0
_PR_SET_PDEATHSIG = 1


def keep(name: str, daemons: Path, starter: int, command: Sequence[str]) -> int:
    """Run a daemon, and again when it ends; return the exit code of the end that was its last.

    Args:
        name: the daemon's.
        daemons: the node's ``daemons.json``, which says whether it has started.
        starter: the process that starts the node; ours is its child.
        command: the command line.
    """
    ends: list[float] = []
    while True:
        code = subprocess.call(command, preexec_fn=_end_with_parent)
        ends = [each for each in ends if each > time.monotonic() - WINDOW_S] + [time.monotonic()]
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        exit_code = 128 - code if code < 0 else code or 1  # that of a shell; nothing ends in order by itself here
        if not _has_started(daemons) and os.getppid() == starter:
            return exit_code
        if len(ends) > ENDS_MAX:
            _say(f"{name} {how}, for the {len(ends)}th time within {WINDOW_S / 60:g} minutes, and is given up")
            return exit_code
        _say(f"{name} {how} and is started again")
        time.sleep(PAUSE_S)


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
    sys.exit(keep(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
