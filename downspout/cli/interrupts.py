"""Ctrl-C in commands without a handler of their own: a KeyboardInterrupt, but never during an import.

An interrupted import prints a traceback that we cannot prevent: C code turns the interrupt into an ImportError, and
callbacks swallow it ("Exception ignored in …"). So the interrupt is delayed until no import is in progress, at most
PATIENCE_S, because a topology's file may hang.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from downspout.system.process import handled_by

EVERY_S = 0.05
PATIENCE_S = 5.0


class _AfterImports:
    """The handler."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._again: threading.Timer | None = None
        self._is_sent = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if _is_importing(frame) and now - self._since < PATIENCE_S:
            self._is_sent = False
            self._again = threading.Timer(EVERY_S, self._send, (number,))
            self._again.daemon = True
            self._again.start()
            return
        self._since = None
        raise KeyboardInterrupt

    def _send(self, number: int) -> None:
        self._is_sent = True
        os.kill(os.getpid(), number)

    def finish(self) -> None:
        """Raise an interrupt that is still delayed: later, another handler would get it."""
        if self._again is not None and self._since is not None:
            self._again.cancel()
            self._again.join()  # if too late to cancel, its signal interrupts this wait
            if not self._is_sent:  # otherwise a run's own handler has handled it
                raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def after_imports() -> Iterator[None]:
    """Delay Ctrl-C during imports while the context lasts, unless the process ignores it or has its own handler."""
    before = signal.getsignal(signal.SIGINT)
    is_programs = getattr(before, "__module__", "") in ("downspout.__main__", "__main__")
    ours = before is signal.default_int_handler or is_programs
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _AfterImports()
    signal.signal(signal.SIGINT, handler)
    try:
        yield
        handler.finish()
    finally:
        signal.signal(signal.SIGINT, before)


class StopRequest:
    """Set by Ctrl-C or SIGTERM, for commands that check it and stop in order; a second signal stops them at once.

    Unlike a flag, a KeyboardInterrupt could come between two related steps, such as a write and its record.
    """

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def exit_code(self) -> int:
        """The shell's code: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.signal

    def __str__(self) -> str:
        return "Ctrl-C" if self.signal == signal.SIGINT else "SIGTERM"


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Catch Ctrl-C and SIGTERM while the context lasts, unless the process ignores them."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    with handled_by(request, numbers):
        yield request
