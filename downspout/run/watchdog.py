"""A thread beside the loop: it answers signals at once, and notices a component that does not return.

The loop is one thread, and a bolt may keep it: in ``time.sleep``, in a read from a socket, in an endless loop, in C
code that no signal interrupts. What must go on nevertheless is done here.

===========================================  ======================================================================
it sees                                      and then
===========================================  ======================================================================
one call of a component, ``run.stuck_s``     a warning names component, record and line; again when that has doubled
the first SIGINT or SIGTERM                  it says what is waited for, for how long, and how to stop at once
``run.drain_s`` and GRACE_S later,           it interrupts that call, again and again. The run ends: what is acked
the loop is still in a call                  is committed, the rest comes again at the next start
a second signal, or an interrupt,            it lets the spouts commit in the loop's place, for LAST_S
and END_S later the loop is still there      at most, and ends the process
===========================================  ======================================================================

Signals reach it through ``signal.set_wakeup_fd``: Python's own handlers run in the main thread, and only between two of
its instructions. A call is interrupted by a signal to that thread, whose handler raises KeyboardInterrupt.

**A race.** The loop may leave the call, and begin to end, just before it is interrupted. So the handler, which runs in
the loop's thread, looks whether the end has begun, and then raises nothing.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from downspout.exit_guard import leave_at_once, say
from downspout.formatting import counted, lasting
from downspout.outages import OUTAGES
from downspout.run.places import Place, place_of

if TYPE_CHECKING:
    from downspout.engine.loop import Engine

LOOK_S = 0.5
GRACE_S = 1.0  # How long beyond ``run.drain_s`` a call may take: a loop that only has much to do ends by itself
INTERRUPT_EVERY_S = 2.0  # A component that swallows the interrupt is interrupted again after so long
END_S = 4.0  # How long the loop may take to begin to end once it is interrupted, or asked twice …
CLOSE_S = 10.0  # … and how long to end: commits, what components do as they are closed
END_IN_ORDER_S = 60.0  # The same beyond ``run.drain_s`` where it was asked once
LAST_S = 6.0  # How long spouts may take to commit where the loop does not end
log = logging.getLogger("downspout.engine")


class Watchdog:
    """Watches a run that another thread does."""

    def __init__(self, engine: Engine, thread: int, *, stuck_s: float, drain_s: float, supervised: bool) -> None:
        self._engine = engine
        self._thread = thread
        self._stuck_s = stuck_s  # a warning names a call that takes longer; 0: never
        self._drain_s = drain_s  # how long the run may take to finish what is in flight
        self._supervised = supervised  # a supervisor asks this process to end, and says how to stop it at once
        self._place: Place | None = None
        self._beat: tuple[object, ...] = ()
        self._since = 0.0
        self._warn_at = stuck_s
        self._signals: list[int] = []
        self._interrupt_at = self._end_at = float("inf")
        self._echoes = 0  # Signals that this thread has sent, and will hear of
        self.interrupts = 0  # Interrupts that the handler has not raised yet

    @property
    def has_ended(self) -> bool:
        """Whether the run has begun to end: then no interrupt is wanted."""
        return self._engine.ending.has_begun

    def hang(self, now: float) -> str:
        """Return what has kept the loop for ``run.stuck_s``, and where, without data; empty: nothing.

        For other threads, which show it to other programs.
        """
        took = now - self._since
        if not self._since or not self._stuck_s or took < self._stuck_s or OUTAGES.current():
            return ""
        place = self._place
        if place is not None:
            return place.at_work(took, with_values=False)
        return f"the loop has not turned for {lasting(took)}"

    def look(self, now: float) -> None:
        """See whether a call has not returned since the last look, and whether time is up."""
        frame = sys._current_frames().get(self._thread)
        place = place_of(frame) if frame is not None else None
        beat = (place.call if place else None, self._engine.beats, *(self._counts(place) if place else ()))
        if beat != self._beat:
            self._beat, self._since, self._warn_at = beat, now, self._stuck_s
        self._place = place
        took = now - self._since
        # What waits for a service that is away has a line already, which blames no record.
        if place is not None and self._stuck_s and took >= self._warn_at and not OUTAGES.current():
            self._warn_at *= 2
            log.warning("%s", place.at_work(took))
        if now >= self._interrupt_at and not self.has_ended:
            self._interrupt(now)
        if now >= self._end_at + (CLOSE_S if self.has_ended else 0.0):
            self._end()

    @staticmethod
    def _counts(place: Place) -> tuple[int, ...]:
        task = place.task
        return task.emitted, task.executed, task.acked, len(getattr(task, "queue", ()))

    def hear(self, number: int, now: float) -> None:
        """A signal has come."""
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
        """Interrupt the call that keeps the loop."""
        if self._place is not None:
            log.warning("%s: interrupted, because run.drain_s has passed", self._place.at_work(now - self._since))
        self._end_at = min(self._end_at, now + END_S)
        self._interrupt_at = now + INTERRUPT_EVERY_S
        self._echoes += 1
        self.interrupts += 1
        signal.pthread_kill(self._thread, self._signals[0])

    def _end(self) -> None:
        """The loop does not end: commit without it, and end the process."""
        self._engine.ending.force_shutdown(LAST_S)
        where = f" ({self._place.at_work(time.monotonic() - self._since)})" if self._place is not None else ""
        again = "Records that are not committed will be processed again"
        say(f"the run does not end{where}: ending the process. {again}", is_error=True)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        leave_at_once(128 + self._signals[0])


@contextlib.contextmanager
def watched(watchdog: Watchdog) -> Iterator[None]:
    """Let an watchdog watch while the context lasts; it hears signals where this is the main thread."""
    ours, its = socket.socketpair()
    for end in (ours, its):
        end.setblocking(False)
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
        heard = b""
        if select.select([end], [], [], LOOK_S)[0]:
            heard = end.recv(64)
            if not heard:
                return
        watchdog.look(time.monotonic())  # so that it can say where the run is
        for number in heard:
            if number in (signal.SIGINT, signal.SIGTERM):
                watchdog.hear(number, time.monotonic())
