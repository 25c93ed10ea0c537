"""A worker's process, as the supervisor sees it.

It is in a session of its own: Ctrl-C on the terminal reaches the supervisor alone, and all that a worker has started
can be ended with it. What it writes to standard error comes through a pipe, and is written on with the worker's number;
standard output is the supervisor's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from downspout.run.workers.channel import Job, Message, messages, send_job

READ_S_MAX = 2.0  # How long the output of a dead process is read; another process may hold its pipes open


class Worker(Protocol):
    """One life of a worker, as the supervisor needs it."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def take(self) -> list[Message]:
        """Return its messages since the last call; of a dead one, all that are left."""

    def ask_to_end(self) -> None:
        """Let it finish what is in flight; asked twice, it stops at once."""

    def kill(self) -> None:
        """End it and all that it has started, now; return when it is gone."""

    def close(self) -> None:
        """Release it, once it is gone."""


class Process:
    """A worker: ``downspout run TARGET --member NUMBER``, with a channel to us."""

    def __init__(self, number: int, job: Job, *, options: Sequence[str] = (), say: Callable[[str], None]) -> None:
        ours, its = socket.socketpair()
        command = [sys.executable, "-m", "downspout", "run", job.target, "--member", str(number)]
        command += ["--channel", str(its.fileno()), *options]
        with its:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[its.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self.pid = self._process.pid
        self._channel = ours
        self._said: deque[Message] = deque()
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._listen, args=(job,), daemon=True),
            threading.Thread(target=self._forward, args=(self._process.stderr, say), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def take(self) -> list[Message]:
        """Return its messages since the last call; of a dead one, all that are left."""
        if self.poll() is not None:
            for thread in self._threads:
                thread.join(READ_S_MAX)
        return [self._said.popleft() for _ in range(len(self._said))]

    def ask_to_end(self) -> None:
        """Let it finish what is in flight; asked twice, it stops at once."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it has started, now; return when it is gone."""
        if self.poll() is None:  # not reaped, so no other process has its number
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Release it, once it is gone."""
        self._channel.close()

    def _listen(self, job: Job) -> None:
        send_job(self._channel, job)
        for message in messages(self._channel):
            self._said.append(message)

    @staticmethod
    def _forward(stream: IO[bytes], say: Callable[[str], None]) -> None:
        with stream:
            for line in stream:
                say(line.decode("utf-8", "replace").rstrip("\n"))
