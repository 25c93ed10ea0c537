"""Time as an argument.

Code that depends on time takes a :class:`Clock`, so tests and simulations can run hours in milliseconds
(``downspout.testing.VirtualClock``).
"""

from __future__ import annotations

import time


class Clock:
    """The real clock: monotonic seconds for intervals, wall seconds for stamps, and sleeping."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back; only differences are meaningful."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the Unix epoch; may jump, so not for intervals."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


SYSTEM_CLOCK = Clock()
