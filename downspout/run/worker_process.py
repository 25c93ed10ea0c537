"""A worker's process, and its messages to and from the supervisor.

It has its own session: Ctrl-C on the terminal reaches only the supervisor, and a worker can be killed with all its
child processes. The supervisor forwards its standard error, with the worker's number; it shares the supervisor's
standard output.

**The worker's side** is an ordinary run that sends its metrics to the supervisor. If the supervisor is killed, the
channel closes: then the worker sends itself SIGTERM, and if shutdown takes too long, SIGKILL. (PR_SET_PDEATHSIG exists
only on Linux, and fires when the *thread* that started the worker ends.)

**The messages** are lines of JSON over a socket pair. The supervisor sends one, the :class:`WorkerJob`. The worker
sends a :class:`WorkerReport` twice a second, a last one, and the error that ended it, if any. A suspended supervisor
blocks no worker: reports that do not fit into the socket's buffer are dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any, NamedTuple, Protocol

from downspout import errors
from downspout.engine.load import load
from downspout.engine.loop import Bounds, Engine
from downspout.engine.result import RunResult
from downspout.errors import DownspoutError
from downspout.run import runner
from downspout.run.run_snapshots import metrics_of

LINE_BYTES_MAX = 1024 * 1024  # A longer line is forwarded in parts: a progress bar never ends its line
READ_S_MAX = 2.0  # How long a dead process's output is read; another process may hold its pipes open


class Worker(Protocol):
    """One life of a worker."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def take(self) -> list[WorkerMessage]:
        """Return its new messages; after its death, all that are left."""

    def ask_to_end(self) -> None:
        """Ask it to drain and stop; asked twice, it stops at once."""

    def kill(self) -> None:
        """Kill it and its child processes; return when it is gone."""

    def close(self) -> None:
        """Release its resources, once it is gone."""


class WorkerProcess:
    """A worker: ``downspout run TARGET --member NUMBER``, with a channel to the supervisor."""

    def __init__(self, number: int, job: WorkerJob, *, options: Sequence[str] = (), say: Callable[[str], None]) -> None:
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
        self._said: deque[WorkerMessage] = deque()
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

    def take(self) -> list[WorkerMessage]:
        """Return its new messages; after its death, all that are left."""
        if self.poll() is not None:
            for thread in self._threads:
                thread.join(READ_S_MAX)
        return [self._said.popleft() for _ in range(len(self._said))]

    def ask_to_end(self) -> None:
        """Ask it to drain and stop; asked twice, it stops at once."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and its child processes; return when it is gone."""
        if self.poll() is None:  # not reaped, so no other process has its number
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Release its resources, once it is gone."""
        self._channel.close()

    def _listen(self, job: WorkerJob) -> None:
        send_job(self._channel, job)
        for message in messages(self._channel):
            self._said.append(message)

    @staticmethod
    def _forward(stream: IO[bytes], say: Callable[[str], None]) -> None:
        with stream:
            while line := stream.readline(LINE_BYTES_MAX):
                say(line.decode("utf-8", "replace").rstrip("\n"))


# --- the worker's side ---

EVERY_S = 0.5  # Time between reports
ORPHAN_S = 10.0  # How long beyond ``run.drain_s`` an orphan may take to end
ORPHANED = 143


class Reporter:
    """The view of a worker's run: it reports to the supervisor."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._due = float("-inf")
        self._engine: Engine | None = None

    def update(self, engine: Engine) -> None:
        """Send the metrics if it is time."""
        self._engine = engine
        now = engine.clock.monotonic()
        if now >= self._due:
            self._due = now + EVERY_S
            self._uplink.report(self._report(engine))

    def finish(self, result: RunResult | None, error: DownspoutError | None = None) -> None:
        """Send the last metrics; without a result, the current ones."""
        if self._engine is None and result is None:
            self._uplink.finish(None, error)
        elif self._engine is None:
            assert result is not None
            self._uplink.finish(WorkerReport(result, is_last=True), error)
        else:
            self._uplink.finish(self._report(self._engine, result, is_last=error is None), error)

    @staticmethod
    def _report(engine: Engine, result: RunResult | None = None, is_last: bool = False) -> WorkerReport:
        metrics = metrics_of(engine)
        return WorkerReport(result or metrics.result, metrics.queues, metrics.latencies, engine.stopping, is_last)


def serve(descriptor: int, exit_code: Callable[[RunResult], int]) -> int:
    """Run as a worker; return the exit code."""
    os.set_inheritable(descriptor, False)  # a bolt's child processes must not keep the channel open
    end = socket.socket(fileno=descriptor)
    job = read_job(end)
    if job is None:
        return ORPHANED
    bounds = Bounds(**job.bounds)
    threading.Thread(target=_watch, args=(end, bounds.drain_s + ORPHAN_S), daemon=True).start()
    reporter = Reporter(Uplink(end))
    try:
        graph = load(job.target, job.topology)
        result = runner.run(
            graph, overrides=job.overrides, options=job.options, view=reporter, bounds=bounds, supervised=True
        )
    except DownspoutError as error:
        reporter.finish(None, error)
        return error.exit_code
    reporter.finish(result)
    return exit_code(result)


def _watch(end: socket.socket, seconds: float) -> None:
    """Wait until the supervisor is gone, then send this process SIGTERM, and SIGKILL after ``seconds``."""
    try:
        while end.recv(1):
            continue
    except OSError:  # reset
        pass
    # The reader of our standard error is gone: a write into the pipe would raise in the component that writes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


# --- messages ---

LAST_REPORT_S = 10  # How long a worker's last report may wait for a supervisor that does not read
CHUNK = 65_536


@dataclass(frozen=True)
class WorkerJob:
    """A worker's instructions."""

    target: str  # the file, or module and class, of the topology
    topology: str | None  # the class, if the file has several
    overrides: Sequence[str]  # ``--set`` options, those of the supervisor's plan last
    options: Mapping[str, Any]  # values of ``run.*`` settings
    # when it stops: the fields of the engine's ``Bounds``
    bounds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerReport:
    """A worker's metrics at one moment."""

    result: RunResult  # as if it ended now
    # by component: queued tuples, and held tuples
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    latencies: Mapping[int, float] = field(default_factory=dict)  # trees by bucket
    stopping: bool = False
    is_last: bool = False  # whether the worker has ended in order

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> WorkerReport:
        """Return the result of ``asdict``, which has passed through JSON, as a WorkerReport."""
        return cls(
            result=RunResult.from_dict(stored["result"]),
            queues={name: (queued, held) for name, (queued, held) in stored["queues"].items()},
            latencies={int(bucket): count for bucket, count in stored["latencies"].items()},
            stopping=stored["stopping"],
            is_last=stored["is_last"],
        )


class WorkerMessage(NamedTuple):
    """One line from a worker: metrics, or the error that ended it."""

    report: WorkerReport | None = None
    error: DownspoutError | None = None


# --- the supervisor's side ---


def send_job(end: socket.socket, job: WorkerJob) -> None:
    """Send a new worker its job; the supervisor's poll notices if it is dead already."""
    try:
        end.sendall(_line(asdict(job)))
    except OSError:
        return


def messages(end: socket.socket) -> Iterator[WorkerMessage]:
    """Yield a worker's messages until it is gone; an incomplete last line is ignored."""
    for line in _lines(end):
        stored = json.loads(line)
        if "error" in stored:
            yield WorkerMessage(error=error_from(stored["error"]))
        else:
            yield WorkerMessage(report=WorkerReport.from_dict(stored))


def error_from(stored: Mapping[str, Any]) -> DownspoutError:
    """Return the error that a worker has described, of its class.

    >>> error_from({"kind": "SinkError", "message": "the disk is full", "cure": "more space", "exit_code": 7})
    SinkError('the disk is full. Try: more space')
    """
    kind = getattr(errors, stored["kind"], DownspoutError)
    error: DownspoutError = kind(stored["message"], cure=stored["cure"])
    error.exit_code = stored["exit_code"]
    return error


def described(error: DownspoutError) -> dict[str, Any]:
    """Return an error in the form that :func:`error_from` takes, under the most specific of our classes."""
    kind = next(cls.__name__ for cls in type(error).__mro__ if vars(errors).get(cls.__name__) is cls)
    return {"kind": kind, "message": error.message, "cure": error.cure, "exit_code": error.exit_code}


# --- the worker's side ---


def read_job(end: socket.socket) -> WorkerJob | None:
    """Return the job; None if the supervisor died before sending one."""
    line = next(_lines(end), None)
    return None if line is None else WorkerJob(**json.loads(line))


class Uplink:
    """Sends messages to the supervisor; never from two threads."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""
        # Not settimeout: that would apply to the thread that listens on the same socket too.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", LAST_REPORT_S, 0))

    def report(self, report: WorkerReport) -> None:
        """Send metrics if that does not block."""
        if self._flush(socket.MSG_DONTWAIT):
            self._rest = _line(asdict(report))
            self._flush(socket.MSG_DONTWAIT)

    def finish(self, report: WorkerReport | None, error: DownspoutError | None = None) -> None:
        """Send the last messages, waiting at most LAST_REPORT_S."""
        if report is not None:
            self._rest += _line(asdict(report))
        if error is not None:
            self._rest += _line({"error": described(error)})
        self._flush(0)

    def _flush(self, flags: int) -> bool:
        """Send the rest; return whether all was sent. ``_watch`` notices if the supervisor is gone."""
        try:
            while self._rest:
                self._rest = self._rest[self._end.send(self._rest, flags) :]
        except OSError:
            return False
        return True


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, default=str).encode() + b"\n"


def _lines(end: socket.socket) -> Iterator[bytes]:
    rest = b""
    while True:
        try:
            chunk = end.recv(CHUNK)
        except OSError:  # reset: it died with something unread
            return
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
