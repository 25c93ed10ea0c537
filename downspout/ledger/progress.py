"""Whether a partition makes progress: its commit point moves while records wait.

A partition *stands still* from the moment at which its commit point moved last, or at which there was something to wait
for. It is *stuck* once that has lasted as long as a limit; that is reported once, and so is its end.

It must be looked at often. After a long time without a look (the process was stopped, or Storm did not call) the
first look decides nothing: what happened meanwhile may not have been taken in yet. The next one does.

What it does not know: why.
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_MS = 5_000  # A look that comes so long after the one before is late


@dataclass(frozen=True, slots=True)
class StallReport:
    """What is to be reported of a partition."""

    stuck: bool  # whether it is stuck; otherwise it moves again
    offset: int | None  # where it stood still; None: not even its start was known
    lasted_ms: int  # for how long


class Progress:
    """The progress of one partition; times are integer milliseconds on the caller's clock.

    >>> progress = Progress(20_000, now=0)
    >>> looks = [progress.look(7, waits=True, now=second * 1000) for second in range(1, 24)]
    >>> [word for word in looks if word]
    [StallReport(stuck=True, offset=7, lasted_ms=20000)]
    >>> progress.look(8, waits=True, now=24_000)
    StallReport(stuck=False, offset=7, lasted_ms=23000)
    """

    __slots__ = ("_limit_ms", "_looked_at", "_point", "_since", "stuck")

    def __init__(self, limit_ms: float, now: int) -> None:
        self.stuck = False  # Whether that was reported, and no end of it
        self._limit_ms = limit_ms  # how long it may stand still
        self._point: int | None = -1
        self._since = self._looked_at = now

    def look(self, point: int | None, waits: bool, now: int, emitted_at: int | None = None) -> StallReport | None:
        """Take note of how it stands; return what is to be reported.

        Args:
            point: the offset to commit: the lowest that is not done; None: not known yet.
            waits: whether there is something to do at or beyond it.
            emitted_at: when the record there was emitted for the first time; that is progress, and its retries are not.
        """
        was_late = now - self._looked_at >= LATE_MS
        self._looked_at = now
        if point != self._point or not waits:
            ended = StallReport(False, self._point, now - self._since) if self.stuck else None
            self._point, self._since, self.stuck = point, now, False
            return ended
        if not self.stuck and emitted_at is not None:
            self._since = max(self._since, emitted_at)
        if self.stuck or was_late or now - self._since < self._limit_ms:
            return None
        self.stuck = True
        return StallReport(True, point, now - self._since)

    def still_ms(self, now: int) -> int:
        """Return for how long it stands still, as of the last look."""
        return now - self._since if self._looked_at > self._since else 0
