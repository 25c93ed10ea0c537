"""Identify and end processes that outlive the one that started them.

Process ids are reused, so an id read from a file may name another process. Here a process is an id together with its
start time (:func:`birth`), and only the pair is ever signalled. psutil's start time would not do: it changes when the
system's clock is set, and one process stores it for another to compare.

Run as a program (``python process.py PID BIRTH``), this is a watchdog: it waits until its standard input ends, which
happens when the process at the other end of the pipe ends, and then terminates the process it watches. It uses only the
standard library, so it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


@contextlib.contextmanager
def handled_by(
    handle: Callable[[int, FrameType | None], object], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Handle these signals with a function while the context lasts; main thread only."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


GATED = 'read -r go && exec "$@" </dev/null'
"""A shell program: waits for a line, then executes the command; ends if the input ends first."""


def birth(pid: int) -> str | None:
    """Return a text that distinguishes this process from a later one with the same id; None if it does not run.

    On Linux it is the boot id and the start time in clock ticks, elsewhere the output of ``ps``. A zombie does not run.

    >>> birth(os.getpid()) == birth(os.getpid())
    True
    """
    if pid <= 0:
        return None
    try:
        # After the name, which is in parentheses and may contain anything: state is field 3, the start field 22.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self").exists() else _birth_by_ps(pid)
    if fields[0] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text(encoding='utf-8').strip()}/{fields[19]}"


def _birth_by_ps(pid: int) -> str | None:
    asked = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, start = asked.stdout.strip().partition(" ")
    return start.strip() if start and not state.startswith("Z") else None


class ProcessIdentity(NamedTuple):
    """A process, by its id and its start; not a dataclass, so that watchdogs start quickly."""

    pid: int
    birth: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the process that has this id now; if none runs, it is never alive."""
        return cls(pid, birth(pid) or "")

    @property
    def is_alive(self) -> bool:
        """Whether this process still runs (and not another one with its id)."""
        return birth(self.pid) == self.birth

    def signal(self, number: int) -> bool:
        """Send it a signal; return whether it was running."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def send_signal(pid: int, born: str, number: int) -> bool:
    """Send a signal to the process with this id and birth; return whether it was running."""
    return ProcessIdentity(pid, born).signal(number)


def start_gated(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that waits for :func:`let_go`, for example until its watchdog runs.

    It ends if this process ends first. So a ``kill -9`` of this process never leaves it running, not even before its
    watchdog has started. The process id does not change, and the command has an empty standard input.

    >>> process = start_gated(["echo", "begun"], stdout=subprocess.PIPE)
    >>> let_go(process)
    >>> process.communicate()[0]
    b'begun\\n'
    """
    return subprocess.Popen(["/bin/sh", "-c", GATED, "sh", *words], stdin=subprocess.PIPE, **options)


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Let a gated process execute its command."""
    gate, process.stdin = process.stdin, None
    assert gate is not None
    with suppress(BrokenPipeError):  # it has ended already
        gate.write(b"go\n")
        gate.flush()
    with suppress(BrokenPipeError):
        gate.close()


def end_with_parent() -> None:
    """End this :mod:`multiprocessing` process when its parent ends."""
    import multiprocessing  # here, so that watchdogs start quickly

    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def start_watchdog(pid: int, born: str) -> subprocess.Popen[bytes]:
    """Start a watchdog that terminates the process ``pid`` (SIGTERM) once this process has ended."""
    return run_at_our_end("-I", "-S", __file__, str(pid), born)


def run_at_our_end(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a Python program with a pipe from this process; it should begin with :func:`await_end`."""
    # In its own session, so that Ctrl-C in our terminal does not reach it.
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def await_end() -> None:
    """Wait until standard input ends, because the process at its other end has ended."""
    while os.read(0, 4096):
        pass


def stop_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
    """Stop a watchdog, and leave the process it watches running."""
    watchdog.kill()
    watchdog.wait()
    if watchdog.stdin is not None:
        watchdog.stdin.close()


if __name__ == "__main__":
    await_end()
    send_signal(int(sys.argv[1]), sys.argv[2], signal.SIGTERM)
