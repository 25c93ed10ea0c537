"""A clock for tests on a real broker."""

from __future__ import annotations

import time

from downspout.clock import Clock


class JumpingClock(Clock):
    """Real time, and on top of it all that was slept: a sleep takes none.

    ``jumped`` is how much that is, in seconds.
    """

    def __init__(self) -> None:
        self.jumped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.jumped

    def wall(self) -> float:
        return time.time() + self.jumped

    def sleep(self, seconds: float) -> None:
        self.jumped += max(0.0, seconds)
