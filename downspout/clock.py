"""Time as an argument.

Nothing in the library asks the operating system for the time by itself: whatever needs it is handed a
:class:`Clock`, so that tests and simulations can run hours in milliseconds (``downspout.testing.VirtualClock``).
"""

from __future__ import annotations

import time


class Clock:
    """The real clock: monotonic seconds for intervals, wall seconds for stamps, and sleeping."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back; only differences mean anything."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the Unix epoch; may jump, so never used for intervals."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        time.sleep(seconds)


SYSTEM_CLOCK = Clock()
