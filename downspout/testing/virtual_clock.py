"""A clock that moves only when a test moves it, so that hours of a topology's life take milliseconds."""

from __future__ import annotations

from downspout.clock import Clock


class VirtualClock(Clock):
    """A :class:`~downspout.clock.Clock` whose time passes only by :meth:`advance` and :meth:`sleep`.

    Args:
        wall: seconds since the Unix epoch at the start; the default is a round number, so that stamps are easy to read.

    >>> clock = VirtualClock()
    >>> clock.sleep(90)
    >>> clock.monotonic(), clock.wall()
    (90.0, 1700000090.0)
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._start = wall
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the seconds that have passed since the clock was made."""
        return self._now

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        return self._start + self._now

    def sleep(self, seconds: float) -> None:
        """Let that much time pass at once."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Let that much time pass.

        Raises:
            ValueError: ``seconds`` is negative; time does not run back.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._now += seconds
