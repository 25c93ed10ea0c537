"""Processes that outlive the one that started them: how they are identified, and ended.

A process id is used again after its process has ended, so an id alone, read from a file, may name another process. Here
a process is an id together with its start time (:func:`birth`), and only the pair is ever signalled. Not psutil's start
time, which moves when the system's clock is set: one process writes it down, and another compares it later.

Run as a program (``python process.py PID BIRTH``) this is a watchdog: it waits until its standard input ends, which
happens when the process at the other end of the pipe ends, however it does, and then terminates the process it watches.
It uses the standard library alone, so that it starts in milliseconds.
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
    """Let a function handle these signals while the context lasts; only for the main thread."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


GATED = 'read -r go && exec "$@" </dev/null'
"""A shell's program: wait for a line, and become the command; where the input ends before there is one, end as well."""


def birth(pid: int) -> str | None:
    """Return what distinguishes this process from a later one with the same id; None where there is none.

    On Linux the boot id and the start time in clock ticks, elsewhere what ``ps`` says. A process that has ended and
    only waits for its parent (a zombie) is no process.

    >>> birth(os.getpid()) == birth(os.getpid())
    True
    """
    if pid <= 0:
        return None
    try:
        # Behind the name, which stands in parentheses and may hold anything: state is field 3, the start field 22.
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
    """A process, by its id and its start; cheap to import for watchdogs, so no dataclass."""

    pid: int
    birth: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the process that has this id now; one that has ended is never found again."""
        return cls(pid, birth(pid) or "")

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs, and not another one that was given its id."""
        return birth(self.pid) == self.birth

    def signal(self, number: int) -> bool:
        """Signal it; return whether it was there."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def send_signal(pid: int, born: str, number: int) -> bool:
    """Signal the process that has this id and this birth; return whether there was one."""
    return ProcessIdentity(pid, born).signal(number)


def start_gated(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that does nothing before :func:`let_go`: until then its watchdog is started, for example.

    It ends by itself if we end before. So a ``kill -9`` of our process never leaves it running, not even before its
    watchdog has started.

    The command has the same process id before and after, and finds an empty standard input.

    >>> process = start_gated(["echo", "begun"], stdout=subprocess.PIPE)
    >>> let_go(process)
    >>> process.communicate()[0]
    b'begun\\n'
    """
    return subprocess.Popen(["/bin/sh", "-c", GATED, "sh", *words], stdin=subprocess.PIPE, **options)


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Let a gated process begin."""
    gate, process.stdin = process.stdin, None
    assert gate is not None
    with suppress(BrokenPipeError):  # it was ended already
        gate.write(b"go\n")
        gate.flush()
    with suppress(BrokenPipeError):
        gate.close()


def end_with_parent() -> None:
    """End this process of :mod:`multiprocessing` when the one that started it ends."""
    import multiprocessing  # not at the top: a watchdog starts in milliseconds

    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def start_watchdog(pid: int, born: str) -> subprocess.Popen[bytes]:
    """Start a process that terminates this one (SIGTERM) once we have ended, whatever ends us."""
    return run_at_our_end("-I", "-S", __file__, str(pid), born)


def run_at_our_end(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a Python program that holds a pipe from us: it is to begin with :func:`await_end`."""
    # A session of its own: Ctrl-C in our terminal is for us.
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def await_end() -> None:
    """Wait until standard input ends, as it does when the process that holds its other end has ended."""
    while os.read(0, 4096):
        pass


def stop_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
    """Stop a watchdog: what it watches is left alone."""
    watchdog.kill()
    watchdog.wait()
    if watchdog.stdin is not None:
        watchdog.stdin.close()


if __name__ == "__main__":
    await_end()
    send_signal(int(sys.argv[1]), sys.argv[2], signal.SIGTERM)
