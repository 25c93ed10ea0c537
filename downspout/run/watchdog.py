"""A watchdog thread: it answers signals at once, and detects a component's call that does not return.

The loop is one thread, and a bolt may block it: in ``time.sleep``, in a read from a socket, in an endless loop, in C
code that no signal interrupts.

===========================================  ======================================================================
event                                        action
===========================================  ======================================================================
one call of a component takes                a warning names component, record and line; another one follows each
``run.stuck_s``                              time the duration has doubled
the first SIGINT or SIGTERM                  a message says what the run waits for, how long, and how to stop at once
``run.drain_s`` and GRACE_S later,           it interrupts that call, repeatedly. The run ends: acked records are
the loop is still in a call                  committed, the others are processed again at the next start
END_S after a second signal or an            it makes the spouts commit in this thread, within LAST_S, and ends the
interrupt, the loop has not ended            process
===========================================  ======================================================================

Signals reach it through ``signal.set_wakeup_fd``: Python's own handlers run in the main thread, between two of its
instructions. To interrupt a call, it sends a signal to the loop's thread, whose handler raises KeyboardInterrupt.

**A race.** The loop may return from the call and begin to shut down just before it is interrupted. The handler, which
runs in the loop's thread, therefore raises nothing once the shutdown has begun.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from pystorm.component import Tuple

from downspout.engine.acker import trees_of
from downspout.engine.task import Task, about
from downspout.errors import coordinates
from downspout.exit_guard import leave_at_once, say
from downspout.formatting import counted, lasting
from downspout.ledger.origin import split_id
from downspout.outages import OUTAGES

if TYPE_CHECKING:
    from downspout.engine.loop import Engine

LOOK_S = 0.5
GRACE_S = 1.0  # How long beyond ``run.drain_s`` a call may take: a loop that is merely busy ends by itself
INTERRUPT_EVERY_S = 2.0  # Time until a component that swallows the interrupt is interrupted again
END_S = 4.0  # How long the loop may take to begin its shutdown after an interrupt or a second signal …
CLOSE_S = 10.0  # … and how long the shutdown may take: commits, ``close`` of components
END_IN_ORDER_S = 60.0  # How long beyond ``run.drain_s`` and GRACE_S it may take after one signal
LAST_S = 6.0  # How long spouts may take to commit if the loop does not end
log = logging.getLogger("downspout.engine")


class Watchdog:
    """Watches the loop of another thread."""

    def __init__(self, engine: Engine, thread: int, *, stuck_s: float, drain_s: float, supervised: bool) -> None:
        self._engine = engine
        self._thread = thread
        self._stuck_s = stuck_s  # a warning names a call that takes longer; 0: never
        self._drain_s = drain_s  # how long the run may take to finish the tuples in flight
        self._supervised = supervised  # a supervisor stops this process, and says how to stop it at once
        self._place: ComponentCall | None = None
        self._beat: tuple[object, ...] = ()
        self._since = 0.0
        self._warn_at = stuck_s
        self._signals: list[int] = []
        self._interrupt_at = self._end_at = float("inf")
        self._echoes = 0  # Signals sent by this thread that it will hear itself
        self.interrupts = 0  # Interrupts that the handler has not raised yet

    @property
    def has_ended(self) -> bool:
        """Whether the shutdown has begun: then nothing is interrupted."""
        return self._engine.ending.has_begun

    def hang(self, now: float) -> str:
        """Return the call that has blocked the loop for ``run.stuck_s``, without data of records; empty if none.

        For other threads, which show it to other programs.
        """
        took = now - self._since
        if not self._since or not self._stuck_s or took < self._stuck_s or OUTAGES.current():
            return ""
        place = self._place
        if place is not None:
            return place.at_work(took, with_values=False)
        return f"the loop has been blocked for {lasting(took)}"

    def look(self, now: float) -> None:
        """Warn of a call that has not returned, and interrupt it or end the process if that is due."""
        frame = sys._current_frames().get(self._thread)
        place = current_call(frame) if frame is not None else None
        beat = (place.call if place else None, self._engine.beats, *(self._counts(place) if place else ()))
        if beat != self._beat:
            self._beat, self._since, self._warn_at = beat, now, self._stuck_s
        self._place = place
        took = now - self._since
        # A call that waits for a service that is away has a log line already, which blames no record.
        if place is not None and self._stuck_s and took >= self._warn_at and not OUTAGES.current():
            self._warn_at *= 2
            log.warning("%s", place.at_work(took))
        if now >= self._interrupt_at and not self.has_ended:
            self._interrupt(now)
        if now >= self._end_at + (CLOSE_S if self.has_ended else 0.0):
            self._end()

    @staticmethod
    def _counts(place: ComponentCall) -> tuple[int, ...]:
        task = place.task
        return task.emitted, task.executed, task.acked, len(getattr(task, "queue", ()))

    def hear(self, number: int, now: float) -> None:
        """Handle a signal."""
        if self._echoes:
            self._echoes -= 1
            return
        self._signals.append(number)
        if len(self._signals) > 1:
            self._end_at = min(self._end_at, now + END_S)
            return
        self._interrupt_at = now + self._drain_s + GRACE_S
        self._end_at = self._interrupt_at + END_IN_ORDER_S
        again = "Ctrl-C again" if number == signal.SIGINT else f"a second {signal.Signals(number).name}"
        text = f"{signal.Signals(number).name}: waiting for {self._open()}, at most {self._drain_s:g} s (run.drain_s)"
        say(text if self._supervised else f"{text}; {again} stops at once")

    def _open(self) -> str:
        try:
            what = f"{counted(self._engine.in_flight, 'tuple')} in flight"
        except RuntimeError:  # the loop has changed what was being counted
            what = "what is in flight"
        took = time.monotonic() - self._since
        if self._place is not None and took >= 1:
            what += f"; {self._place.at_work(took)}"
        return what

    def _interrupt(self, now: float) -> None:
        """Interrupt the call that blocks the loop."""
        if self._place is not None:
            log.warning("%s: interrupted, because run.drain_s has passed", self._place.at_work(now - self._since))
        self._end_at = min(self._end_at, now + END_S)
        self._interrupt_at = now + INTERRUPT_EVERY_S
        self._echoes += 1
        self.interrupts += 1
        signal.pthread_kill(self._thread, self._signals[0])

    def _end(self) -> None:
        """Commit without the loop, which does not end, and end the process."""
        self._engine.ending.force_shutdown(LAST_S)
        where = f" ({self._place.at_work(time.monotonic() - self._since)})" if self._place is not None else ""
        again = "Records that are not committed will be processed again"
        say(f"the run does not end{where}: ending the process. {again}", is_error=True)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        leave_at_once(128 + self._signals[0])


@contextlib.contextmanager
def watched(watchdog: Watchdog) -> Iterator[None]:
    """Run a watchdog while the context lasts; it hears signals if this is the main thread."""
    ours, its = socket.socketpair()
    ours.setblocking(False)
    its.settimeout(LOOK_S)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False) if is_main else -1
    thread = threading.Thread(target=_watch, args=(watchdog, its), name="downspout-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if is_main:
            signal.set_wakeup_fd(before)
        ours.close()
        thread.join()
        its.close()


def _watch(watchdog: Watchdog, end: socket.socket) -> None:
    while True:
        try:
            heard = end.recv(64)
        except TimeoutError:
            heard = b""
        else:
            if not heard:
                return
        watchdog.look(time.monotonic())  # first, so that ``hear`` can name the current call
        for number in heard:
            if number in (signal.SIGINT, signal.SIGTERM):
                watchdog.hear(number, time.monotonic())


# --- the current call ---

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FOREIGN = (_OURS, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_METHODS = {"build": "initialize", "drain_due": "drain_at"}
"""Methods of a task that call the component's by another name."""


@dataclass(frozen=True)
class ComponentCall:
    """A call of a component."""

    task: Task  # of the component
    method: str  # the called method
    tups: Sequence[Any]  # the tuples being processed
    line: str  # ``file:line`` of the user's code, or of the innermost frame if none is the user's

    @property
    def name(self) -> str:
        """The component's name."""
        return self.task.name

    @property
    def call(self) -> tuple[object, ...]:
        """A key that distinguishes this call from other calls of the same component."""
        return self.task.task_id, self.method, *(tup.id for tup in self.tups[:1])

    @property
    def what(self) -> str:
        """The record or tuple being processed, or else the method's name."""
        if not self.tups:
            return self.method
        more = f" and {counted(len(self.tups) - 1, 'more tuple')}" if len(self.tups) > 1 else ""
        return f"{_record_of(self.task, self.tups[0])}{more}"

    @property
    def doing(self) -> str:
        """The call as the end of a sentence: `` on clicks[0]@0 (bad.py:10)``."""
        return f" {'on' if self.tups else 'in'} {self.what} ({self.line})"

    def at_work(self, seconds: float, *, with_values: bool = True) -> str:
        """Return the call as a sentence: ``b has worked on clicks[0]@0 for 30 s, bad.py:10``.

        Args:
            seconds: how long.
            with_values: whether to show the values of a tuple without Kafka coordinates; only for the log.
        """
        how = "has worked on" if self.tups else "has been in"
        what = self.what if with_values or not self.what.startswith("tuple ") else "a tuple"
        return f"{self.name} {how} {what} for {lasting(seconds)}, {self.line}"


def current_call(frame: FrameType | None) -> ComponentCall | None:
    """Return the component call that a frame belongs to; None if it belongs to none."""
    inner: list[FrameType] = []
    at = frame
    while at is not None:
        if (task := _task_of(at)) is not None and inner:
            return ComponentCall(task, _method(at, inner[-1]), _tuples(task, at), _line(inner))
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
    """Return a tuple's Kafka coordinates, or those of its source record, or else its values."""
    text = about(tup)
    root = getattr(task, "held", {}).get(tup.id)
    if text.startswith("tuple ") and root is not None:
        found = split_id(trees_of(root)[0].msg_id)
        parts = found[0].split("/") if found is not None else []
        if found is not None and len(parts) == 4 and parts[3].isdecimal():
            return coordinates(parts[1], int(parts[3]), found[1])
    return text


def _line(inner: Sequence[FrameType]) -> str:
    """Return the innermost line of the user's code, given frames from the innermost outwards."""
    own = (frame for frame in inner if not frame.f_code.co_filename.startswith((*_FOREIGN, "<")))
    frame = next(own, inner[0])
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def short(file: str) -> str:
    """Return a path below the working directory as relative, any other unchanged."""
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if relative.startswith("..") else relative
