"""What supervisor and worker say to each other: lines of JSON over a socket pair.

Down goes one line, the :class:`Job`. Up come a :class:`Report` twice a second, a last one, and the error that ended the
worker, if one did. A supervisor that reads nothing (it may be stopped) holds no worker up: figures that do not fit
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
from downspout.errors import DownspoutError
from downspout.local.latencies import Sketch
from downspout.local.result import RunResult

__all__ = ["Job", "Message", "Report", "Uplink", "messages", "read_job", "send_job", "told"]

LAST_WORDS_S = 10
"""How long the last report of a worker may wait for a supervisor that reads nothing."""
CHUNK = 65_536


@dataclass(frozen=True)
class Job:
    """What a worker is to do.

    Attributes:
        target: the file, or module and class, of the topology.
        topology: which class, where the file holds several.
        overrides: ``--set`` options, those of the supervisor's plan last.
        options: values of ``run.*`` settings.
        bounds: when it stops by itself: the fields of the engine's ``Bounds``.
    """

    target: str
    topology: str | None
    overrides: Sequence[str]
    options: Mapping[str, Any]
    bounds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A worker's figures as of one moment.

    Attributes:
        result: what would be its outcome if it ended now.
        queues: by component, tuples that wait, and tuples held.
        latencies: in few figures.
        stopping: whether it is on its way out.
        is_last: whether it has ended in order with this.
    """

    result: RunResult
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    latencies: Sketch = field(default_factory=lambda: Sketch(0, []))
    stopping: bool = False
    is_last: bool = False

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Report:
        """Return what ``asdict`` made of one, after its way through JSON."""
        return cls(
            result=RunResult.from_dict(stored["result"]),
            queues={name: (queued, held) for name, (queued, held) in stored["queues"].items()},
            latencies=Sketch(**stored["latencies"]),
            stopping=stored["stopping"],
            is_last=stored["is_last"],
        )


class Message(NamedTuple):
    """One line from a worker: figures, or the error that ended it."""

    report: Report | None = None
    error: DownspoutError | None = None


# --- the supervisor's side ---


def send_job(end: socket.socket, job: Job) -> None:
    """Tell a worker that has just been started what to do; one that is dead already is noticed elsewhere."""
    try:
        end.sendall(_line(asdict(job)))
    except OSError:
        return


def messages(end: socket.socket) -> Iterator[Message]:
    """Yield what a worker says until it is gone. A line that it could not finish is nothing."""
    for line in _lines(end):
        stored = json.loads(line)
        if "error" in stored:
            yield Message(error=told(stored["error"]))
        else:
            yield Message(report=Report.from_dict(stored))


def told(stored: Mapping[str, Any]) -> DownspoutError:
    """Return the error that a worker has described, of the class of ours that says most about it.

    >>> told({"kind": "SinkError", "message": "the disk is full", "cure": "room", "exit_code": 7})
    SinkError('the disk is full. Try: room')
    """
    kind = getattr(errors, stored["kind"], DownspoutError)
    error: DownspoutError = kind(stored["message"], cure=stored["cure"])
    error.exit_code = stored["exit_code"]
    return error


def described(error: DownspoutError) -> dict[str, Any]:
    """Return an error as :func:`told` takes it."""
    kind = next(cls.__name__ for cls in type(error).__mro__ if vars(errors).get(cls.__name__) is cls)
    return {"kind": kind, "message": error.message, "cure": error.cure, "exit_code": error.exit_code}


# --- the worker's side ---


def read_job(end: socket.socket) -> Job | None:
    """Return what to do; None if the supervisor is gone before it said so."""
    line = next(_lines(end), None)
    return None if line is None else Job(**json.loads(line))


class Uplink:
    """Sends messages to the supervisor; never from two threads.

    Args:
        end: the worker's end of the socket pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""
        # Not settimeout: that would hold for the thread that listens on the same socket too.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", LAST_WORDS_S, 0))

    def report(self, report: Report) -> None:
        """Send figures, if that takes no waiting."""
        if self._flush(socket.MSG_DONTWAIT):
            self._rest = _line(asdict(report))
            self._flush(socket.MSG_DONTWAIT)

    def finish(self, report: Report | None, error: DownspoutError | None = None) -> None:
        """Send the last words, and wait for their being taken, at most LAST_WORDS_S."""
        if report is not None:
            self._rest += _line(asdict(report))
        if error is not None:
            self._rest += _line({"error": described(error)})
        self._flush(0)

    def _flush(self, flags: int) -> bool:
        """Send what is left; return whether nothing is. Nobody is told of a supervisor that is gone: that is seen."""
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
