"""Where a thread is just now: in which component, at which tuple, in which line of the user's code."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pystorm.component import Tuple

from downspout.engine.acker import trees_of
from downspout.engine.task import Task, about
from downspout.errors import coordinates
from downspout.formatting import counted, lasting
from downspout.ledger.message_id import split_id

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FOREIGN = (_OURS, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_METHODS = {"build": "initialize", "drain_due": "drain_at"}
"""Methods of a task that call the component's by another name."""


@dataclass(frozen=True)
class Place:
    """A call of a component."""

    task: Task  # whose component
    method: str  # that was called, where it was given no tuple
    tups: Sequence[Any]  # that it was given
    line: str  # ``file:line`` of the user's code, or of what it calls where there is none

    @property
    def name(self) -> str:
        """The component's name."""
        return self.task.name

    @property
    def call(self) -> tuple[object, ...]:
        """What tells this call from another one of the same component."""
        return self.task.task_id, self.method, *(tup.id for tup in self.tups[:1])

    @property
    def what(self) -> str:
        """What the component works on: a record, a tuple, or its method's name."""
        if not self.tups:
            return self.method
        more = f" and {counted(len(self.tups) - 1, 'more tuple')}" if len(self.tups) > 1 else ""
        return f"{_record_of(self.task, self.tups[0])}{more}"

    @property
    def doing(self) -> str:
        """What it does and where, to follow on what it did."""
        return f" {'on' if self.tups else 'in'} {self.what} ({self.line})"

    def at_work(self, seconds: float, *, with_values: bool = True) -> str:
        """Return how long it has worked, on what, and where: `b has worked on clicks[0]@0 for 30 s, bad.py:10`.

        Args:
            seconds: how long.
            with_values: show what a tuple holds that has no place in Kafka; False: for other eyes than the log's.
        """
        how = "has worked on" if self.tups else "has been in"
        what = self.what if with_values or not self.what.startswith("tuple ") else "a tuple"
        return f"{self.name} {how} {what} for {lasting(seconds)}, {self.line}"


def place_of(frame: FrameType | None) -> Place | None:
    """Return the call of a component that a frame belongs to; None where it belongs to none."""
    inner: list[FrameType] = []
    at = frame
    while at is not None:
        if (task := _task_of(at)) is not None and inner:
            return Place(task, _method(at, inner[-1]), _tuples(task, at), _line(inner))
        if task is None:
            inner.append(at)
        at = at.f_back
    return None


def _task_of(frame: FrameType) -> Task | None:
    if not frame.f_code.co_filename.startswith(_OURS):
        return None
    local = frame.f_locals
    return next((local[name] for name in ("self", "task") if isinstance(local.get(name), Task)), None)


def _method(frame: FrameType, called: FrameType) -> str:
    name = frame.f_code.co_name
    return _METHODS.get(name, called.f_code.co_name if called.f_code.co_name != "<lambda>" else name)


def _tuples(task: Task, frame: FrameType) -> list[Any]:
    if frame.f_code.co_name in _METHODS or task.component.is_spout:
        return []
    found = getattr(task.instance, "_current_tups", None) or ()
    return [tup for tup in found if isinstance(tup, Tuple)]


def _record_of(task: Task, tup: Any) -> str:
    """Return a tuple's coordinates in Kafka: its own, those of the record that it came of, else what it holds."""
    text = about(tup)
    root = getattr(task, "held", {}).get(tup.id)
    if text.startswith("tuple ") and root is not None:
        found = split_id(trees_of(root)[0].msg_id)
        parts = found[0].split("/") if found is not None else []
        if found is not None and len(parts) == 4 and parts[3].isdecimal():
            return coordinates(parts[1], int(parts[3]), found[1])
    return text


def _line(inner: Sequence[FrameType]) -> str:
    """Return the innermost line that is the user's own, given frames from the innermost one outwards."""
    own = (frame for frame in inner if not frame.f_code.co_filename.startswith((*_FOREIGN, "<")))
    frame = next(own, inner[0])
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def short(file: str) -> str:
    """Return a path from the working directory, where it is below that."""
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if relative.startswith("..") else relative
