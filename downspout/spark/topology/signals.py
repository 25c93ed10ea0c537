"""Ctrl-C and SIGTERM while Spark runs.

PySpark sets a handler of SIGINT whenever a context is made, which cancels jobs through the bridge to the JVM: a second
Ctrl-C interrupts that bridge in the middle of a call, and pages of traceback are all that is left. So ours is set again
after that, and stays until the session is stopped.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Signals"]

PATIENCE = 3
"""At so many signals the process is interrupted wherever it is."""


class Signals:
    """Notes SIGINT and SIGTERM; nothing outside the main thread.

    Attributes:
        received: the signals so far. One asks for an orderly end, two for one at once.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        if len(self.received) >= PATIENCE:
            raise KeyboardInterrupt
