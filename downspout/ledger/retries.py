"""How long a record that failed waits for its next try.

The reference is Storm's ``KafkaSpoutRetryExponentialBackoff``: an initial delay after the first failure, then
``delay * 2 ** (failures - 1)``, up to a limit. Its shift overflows at the 44th failure, after which it retries in a
hot loop; here the exponent is capped, so the delay never falls, for any number of failures.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """A schedule of delays in integer milliseconds. It asks no clock: callers add the delay to their own "now".

    Attributes:
        initial_ms: after the first failure.
        delay_ms: base of the later ones.
        delay_ms_max: the longest.

    >>> [Backoff(0, 2, 10_000).delay(n) for n in (1, 2, 3, 4, 13, 14, 1_000_000)]
    [0, 4, 8, 16, 8192, 10000, 10000]
    """

    initial_ms: int = 0
    delay_ms: int = 2
    delay_ms_max: int = 10_000

    def delay(self, failures: int) -> int:
        """Return the wait in ms after ``failures`` failures in all (1 is the first); it never falls as they grow."""
        if failures <= 1:
            return min(self.initial_ms, self.delay_ms_max)
        # 2 ** bit_length(limit) is above the limit, so a larger exponent can change nothing.
        exponent = min(failures - 1, self.delay_ms_max.bit_length())
        return min(self.delay_ms_max, max(self.initial_ms, self.delay_ms << exponent))
