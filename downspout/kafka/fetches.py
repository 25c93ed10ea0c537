"""What a consumer has fetched, and how long brokers took to answer.

A broker that has nothing waits with its answer, up to ``fetch_max_wait_ms``: at the end of a log the mean is near that.
"""

from __future__ import annotations

PERIOD_S = 30.0  # Mean and maximum are of the last one to two of these


class Fetches:
    """Requests for records that were answered; times are seconds on the caller's clock.

    >>> fetches = Fetches()
    >>> fetches.answered(0.2, now=1.0)
    >>> fetches.answered(0.4, now=2.0)
    >>> fetches.calls, round(fetches.mean_s(3.0), 1), fetches.max_s(3.0), fetches.max_s(70.0)
    (2, 0.3, 0.4, 0.0)
    """

    __slots__ = ("_before", "_latest", "_since", "calls", "records")

    def __init__(self) -> None:
        self.calls = 0
        self.records = 0  # which polls have returned
        # By the client's thread; others read. How many, their sum and the longest, of a period and of the one before.
        self._latest: tuple[int, float, float] = (0, 0.0, 0.0)
        self._before: tuple[int, float, float] = (0, 0.0, 0.0)
        self._since = 0.0

    def answered(self, took_s: float, now: float) -> None:
        """Note an answer."""
        self._turn(now)
        self.calls += 1
        calls, total_s, longest_s = self._latest
        self._latest = calls + 1, total_s + took_s, max(longest_s, took_s)

    def mean_s(self, now: float) -> float:
        """Return how long answers took lately on average; 0 where there was none."""
        periods = self._lately(now)
        calls = sum(calls for calls, _, _ in periods)
        return sum(total_s for _, total_s, _ in periods) / calls if calls else 0.0

    def max_s(self, now: float) -> float:
        """Return how long the slowest answer of late took; 0 where there was none."""
        return max((longest_s for _, _, longest_s in self._lately(now)), default=0.0)

    def _lately(self, now: float) -> list[tuple[int, float, float]]:
        """Return the periods that count. It changes nothing: who reads is another thread than who notes."""
        age_s = now - self._since
        if age_s < PERIOD_S:
            return [self._latest, self._before]
        return [self._latest] if age_s < 2 * PERIOD_S else []

    def _turn(self, now: float) -> None:
        if now - self._since >= PERIOD_S:
            self._before = self._latest if now - self._since < 2 * PERIOD_S else (0, 0.0, 0.0)
            self._latest, self._since = (0, 0.0, 0.0), now
