"""A sign of life from a run in which nothing happens: a long batch, or no batch at all."""

from __future__ import annotations

from collections.abc import Callable

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.spark.topology.driver.batches import Batches

REPORTED_EVERY_S = 10.0  # How often a wait is reported
IDLE_S_MAX = 300.0
"""Where there is nothing new to do, that is reported after 10 s, then after twice as long, and so on up to this."""
IDLE = "Waiting for "
"""How Spark's status of a query begins that has nothing to do: for data to arrive, or for its next trigger."""


class Silence:
    """Reports where nothing was reported for some time."""

    def __init__(self, batches: Batches, report: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._batches, self._report, self._clock = batches, report, clock
        self._since = self._reported = clock.monotonic()
        self._idle_s = REPORTED_EVERY_S
        self._done = batches.totals.batches

    def look(self, doing: Callable[[], str]) -> None:
        """Report, if it is time; ``doing`` is asked only then: what Spark says that the query does."""
        now, done = self._clock.monotonic(), self._batches.totals.batches
        if done != self._done:
            self._done, self._since, self._reported, self._idle_s = done, now, now, REPORTED_EVERY_S
        if now - self._reported < REPORTED_EVERY_S:
            return
        silent_s = now - self._since
        if self._batches.busy:
            self._report(f"batch {self._batches.number} is still running; nothing was committed for {silent_s:,.0f} s")
        elif not (what := doing()).startswith(IDLE):
            self._report(f"waiting for Spark ({what}); nothing was committed for {silent_s:,.0f} s")
        elif silent_s >= self._idle_s:
            self._idle_s = min(2 * self._idle_s, self._idle_s + IDLE_S_MAX)
            self._report(f"nothing new for {silent_s:,.0f} s")
        self._reported = now
