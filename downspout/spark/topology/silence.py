"""A sign of life from a run that has nothing to tell: a long batch, or no batch at all."""

from __future__ import annotations

from collections.abc import Callable

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.spark.topology.batches import Batches

__all__ = ["Silence"]

FIRST_S = 15.0
"""After so long without a word something is said; then after twice as long, and so on."""
LONGEST_S = 300.0


class Silence:
    """Watches how long nothing was said.

    Args:
        batches: tell what is under way.
        say: is given the sentence.
        clock: the time.
    """

    def __init__(self, batches: Batches, say: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._batches, self._say, self._clock = batches, say, clock
        self._since = clock.monotonic()
        self._after_s = FIRST_S
        self._done = batches.totals.batches

    def look(self) -> None:
        """Say something, if it is time."""
        now, done = self._clock.monotonic(), self._batches.totals.batches
        if done != self._done:
            self._done, self._since, self._after_s = done, now, FIRST_S
        if (silent_s := now - self._since) < self._after_s:
            return
        self._after_s = min(2 * self._after_s, self._after_s + LONGEST_S)
        if self._batches.busy:
            self._say(f"batch {self._batches.number} is under way; nothing is done since {silent_s:,.0f} s")
        else:
            self._say(f"nothing new since {silent_s:,.0f} s")
