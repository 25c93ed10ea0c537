"""When something is due."""

from __future__ import annotations


class Timer:
    """Something that is due every ``period_ms``, first after ``period_ms + delay_ms``.

    >>> timer = Timer(30_000, delay_ms=500, now=0)
    >>> timer.due(30_499), timer.due(30_500)
    (False, True)
    >>> timer.restart(30_500); timer.due(60_499), timer.due(60_500)
    (False, True)
    """

    def __init__(self, period_ms: float, now: int, delay_ms: int = 0) -> None:
        self._period = period_ms
        self._at = now + period_ms + delay_ms

    def due(self, now: int) -> bool:
        """Return whether the time has come."""
        return now >= self._at

    def left_ms(self, now: int) -> float:
        """Return how long it is until then.

        >>> Timer(30_000, now=0).left_ms(29_000)
        1000
        """
        return max(0, self._at - now)

    def restart(self, now: int) -> None:
        """Wait one more period from now."""
        self._at = now + self._period

    def expedite(self) -> None:
        """Be due at once."""
        self._at = 0
