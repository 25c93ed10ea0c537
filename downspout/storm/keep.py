"""A daemon's keeper: starts it, and starts it again whenever it ends.

Nimbus and supervisor end themselves at whatever they did not expect, keep all they know in ZooKeeper and on disk, and
count on somebody to start them again; workers do not notice ("Daemon Fault Tolerance" in Storm's documentation). The
supervisor does so, for example, where the files of a topology that is killed go while it replaces one of its workers.

A keeper leads the process group of its daemon, which so stays the same over the lives of the daemon: who ends the group
(:mod:`downspout.storm.groups`) ends the keeper, the daemon and its workers alike. Until the node has started, the end
of a daemon is that of its keeper, with the same exit code: whoever starts the node has to hear of it, unless it is gone
itself. So it is with a daemon that ends over and over. And where the kernel can see to it (Linux), the end of a keeper
is that of its daemon: none runs that nobody keeps.

Nimbus does not fail fast where it should: it registers itself in ZooKeeper through one connection (``zkWriter`` of its
``ZKStateStorage``) and listens for lost sessions on another (``zkReader``). Where a pause of some 20 s, by the machine
or by its own garbage, ends the session of the first alone, it is registered no more and never hears of it: it goes on
to answer, even to take topologies, while everybody who asks it for the leader is told of none, and a supervisor halts
at every assignment. So its keeper asks, as a supervisor would, and ends a nimbus that does not know.

It uses the standard library alone, and runs without the rest of the package, whose state must not end it:
``python keep.py NAME FILE STARTER PORT COMMAND...``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
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
ASK_S = 5.0
"""Between two questions to nimbus, and how long it has for an answer."""
LEADERLESS_MAX = 4
"""So many times in a row it may know of no leader: during an election, and after it has lost touch for a moment."""
_PR_SET_PDEATHSIG = 1
_NAME = b"getLeader"
_HEAD = len(_NAME).to_bytes(4, "big") + _NAME + bytes(4)
_CALL, _REPLY = b"\x80\x01\x00\x01" + _HEAD, b"\x80\x01\x00\x02" + _HEAD
_STOP = b"\0"


def keep(name: str, daemons: Path, starter: int, port: int, command: Sequence[str]) -> int:
    """Run a daemon, and again when it ends; return the exit code of the end that was its last.

    Args:
        name: the daemon's.
        daemons: the node's ``daemons.json``, which says whether it has started.
        starter: the process that starts the node; ours is its child.
        port: of nimbus, which is asked whether it knows a leader; 0: this is another daemon.
        command: the command line.
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
            _say(f"{name} {how}, for the {len(ends)}th time within {WINDOW_S / 60:g} minutes, and is given up")
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
            leaderless = leaderless + 1 if knows_leader(port, ASK_S) is False else 0
        if leaderless > LEADERLESS_MAX:
            _say("nimbus answers and knows of no leader: it has lost its session with ZooKeeper, and is ended")
            daemon.terminate()  # in order, or the next one would wait for the sessions of this one to expire
            leaderless = 0


def knows_leader(port: int, timeout_s: float = ASK_S) -> bool | None:
    """Ask the nimbus at a port who leads, as its clients do first; return None where it does not answer.

    The question is one frame of Thrift's binary protocol, by hand: a name without arguments. The answer is a struct:
    that of the leader, or one that stops at once.
    """
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout_s) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(len(_CALL + _STOP).to_bytes(4, "big") + _CALL + _STOP)
            answer = answers.read(int.from_bytes(answers.read(4), "big"))
    except OSError:
        return None
    return answer[len(_REPLY) : len(_REPLY) + 1] != _STOP if answer.startswith(_REPLY) else None


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
