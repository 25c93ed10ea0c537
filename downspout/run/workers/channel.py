"""The messages between supervisor and worker: lines of JSON over a socket pair.

Down goes one line, the :class:`Job`. Up come a :class:`Report` twice a second, a last one, and the error that ended the
worker, if one did. A supervisor that reads nothing (it may be stopped) holds no worker up: metrics that do not fit
into the socket are left out.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from downspout import errors
from downspout.engine.acker import Sketch
from downspout.engine.result import RunResult
from downspout.errors import DownspoutError

LAST_REPORT_S = 10  # How long a worker's last report may wait for a supervisor that reads nothing
CHUNK = 65_536


@dataclass(frozen=True)
class Job:
    """What a worker is to do."""

    target: str  # the file, or module and class, of the topology
    topology: str | None  # which class, where the file holds several
    overrides: Sequence[str]  # ``--set`` options, those of the supervisor's plan last
    options: Mapping[str, Any]  # values of ``run.*`` settings
    # when it stops by itself: the fields of the engine's ``Bounds``
    bounds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A worker's metrics as of one moment."""

    result: RunResult  # what would be its outcome if it ended now
    # by component, tuples that wait, and tuples held
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    latencies: Sketch = field(default_factory=lambda: Sketch(0, []))  # in few metrics
    histogram: Mapping[int, float] = field(default_factory=dict)  # the same by bucket
    stopping: bool = False  # whether it is on its way out
    is_last: bool = False  # whether it has ended in order with this

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Report:
        """Return what ``asdict`` made of one, after its way through JSON."""
        return cls(
            result=RunResult.from_dict(stored["result"]),
            queues={name: (queued, held) for name, (queued, held) in stored["queues"].items()},
            latencies=Sketch(**stored["latencies"]),
            histogram={int(bucket): count for bucket, count in stored["histogram"].items()},
            stopping=stored["stopping"],
            is_last=stored["is_last"],
        )


class Message(NamedTuple):
    """One line from a worker: metrics, or the error that ended it."""

    report: Report | None = None
    error: DownspoutError | None = None


# --- the supervisor's side ---


def send_job(end: socket.socket, job: Job) -> None:
    """Send a worker that was just started its job; a worker that is dead already is noticed elsewhere."""
    try:
        end.sendall(_line(asdict(job)))
    except OSError:
        return


def messages(end: socket.socket) -> Iterator[Message]:
    """Yield a worker's messages until it is gone. A line that it could not finish is ignored."""
    for line in _lines(end):
        stored = json.loads(line)
        if "error" in stored:
            yield Message(error=error_from(stored["error"]))
        else:
            yield Message(report=Report.from_dict(stored))


def error_from(stored: Mapping[str, Any]) -> DownspoutError:
    """Return the error that a worker has described, of the most specific of our classes.

    >>> error_from({"kind": "SinkError", "message": "the disk is full", "cure": "more space", "exit_code": 7})
    SinkError('the disk is full. Try: more space')
    """
    kind = getattr(errors, stored["kind"], DownspoutError)
    error: DownspoutError = kind(stored["message"], cure=stored["cure"])
    error.exit_code = stored["exit_code"]
    return error


def described(error: DownspoutError) -> dict[str, Any]:
    """Return an error as :func:`error_from` takes it."""
    kind = next(cls.__name__ for cls in type(error).__mro__ if vars(errors).get(cls.__name__) is cls)
    return {"kind": kind, "message": error.message, "cure": error.cure, "exit_code": error.exit_code}


# --- the worker's side ---


def read_job(end: socket.socket) -> Job | None:
    """Return the job; None if the supervisor is gone before it has sent one."""
    line = next(_lines(end), None)
    return None if line is None else Job(**json.loads(line))


class Uplink:
    """Sends messages to the supervisor; never from two threads."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""
        # Not settimeout: that would hold for the thread that listens on the same socket too.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", LAST_REPORT_S, 0))

    def report(self, report: Report) -> None:
        """Send metrics, if that takes no waiting."""
        if self._flush(socket.MSG_DONTWAIT):
            self._rest = _line(asdict(report))
            self._flush(socket.MSG_DONTWAIT)

    def finish(self, report: Report | None, error: DownspoutError | None = None) -> None:
        """Send the last messages, and wait at most LAST_REPORT_S until they are taken."""
        if report is not None:
            self._rest += _line(asdict(report))
        if error is not None:
            self._rest += _line({"error": described(error)})
        self._flush(0)

    def _flush(self, flags: int) -> bool:
        """Send what is left; return whether all of it is sent. That the supervisor is gone is noticed elsewhere."""
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
