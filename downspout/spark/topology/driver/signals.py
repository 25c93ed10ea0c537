"""Ctrl-C and SIGTERM while Spark runs.

PySpark sets a handler of SIGINT whenever a context is made, which cancels jobs through the bridge to the JVM: a second
Ctrl-C interrupts that bridge in the middle of a call, and pages of traceback are all that is left. So ours is set again
after that, and stays until the session is stopped.

The first signal is answered at once: with what is waited for, and that a second one stops now.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from downspout.exit_guard import say

PATIENCE = 3  # This many signals interrupt the process wherever it is; one less where nothing looks at them


class Signals:
    """Notes SIGINT and SIGTERM; nothing outside the main thread."""

    def __init__(self) -> None:
        self.received: list[int] = []  # the signals so far. One asks for an orderly end, two for one at once.
        # says what is waited for; called in a signal's handler
        self.doing: Callable[[], str] = lambda: "Spark to start"
        self.watched = False  # whether somebody looks at ``received`` all the time
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Set the handlers, again where somebody has set others."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._note)
            if before != self._note:
                self._before.setdefault(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        name = signal.Signals(number).name
        if len(self.received) == 1:
            again = "Ctrl-C again" if number == signal.SIGINT else f"a second {name}"
            say(f"{name}: waiting for {self.doing()}; {again} stops at once")
        elif len(self.received) == 2:
            say(f"{name}: stops at once; what is not committed will be computed again")
        if len(self.received) >= (PATIENCE if self.watched else PATIENCE - 1):
            raise KeyboardInterrupt
