"""Processes that die: how often in a row, and which records may be the reason.

A record that kills the process leaves no fail behind. So each commit says that somebody is at work, and only the last
one before an orderly end says that nobody is. Whoever starts from a commit of the first kind counts an *unclean start*
at its offset, and takes care until the commit has passed every record that may have been out:

================================  ===========================================  =====================================
unclean starts in a row           what may be out                              until the commit is at
================================  ===========================================  =====================================
none since the last watch ended   anything                                     -
1                                 offsets less than WINDOW beyond the commit   the most that may have been out before
2 and more                        one record, written down before its emit     commit + WINDOW, as of the second
================================  ===========================================  =====================================

"In a row" means: at the same committed offset. Where the commit moves on, the row of one unclean start is over (the
window stays to its end); a row of two ends with its watch. The last line is why the window is there: without it, all
that may have been out before the second crash would have to be tried alone.

An unclean start with a record out alone is a failed attempt of that record. An orderly end adds nothing to a row, and
hands a watch over a lone record on. Where a partition has nothing beyond the commit, nothing can have killed anybody.

What it costs somebody who is innocent: a process that is killed twice before it has committed anything processes
WINDOW records one by one. What it does not know: why a process died.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["AT_WORK", "WINDOW", "Watch"]

WINDOW = 500
"""Offsets beyond the commit that may be out after one unclean start; so many are tried one by one after the second."""
ALONE_FROM = 2


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of the ends of earlier owners, at one committed offset.

    Attributes:
        starts: unclean ones in a row.
        until: the offset at which the watch ends when the commit reaches it; 0: there is none.
        alone: the record that is out alone, or about to be.
        ended: whether the owner has ended in order.

    >>> died = AT_WORK.start(base=10, reach=1000, end=5000)
    >>> died
    Watch(starts=1, until=1010, alone=None, ended=False)
    >>> again = died.start(base=10, reach=1000, end=5000)
    >>> again.solo, again.until, again.at(11).solo, again.at(510) == AT_WORK
    (True, 510, True, True)
    """

    starts: int = 0
    until: int = 0
    alone: int | None = None
    ended: bool = False

    @property
    def solo(self) -> bool:
        """Whether one record may be out at a time."""
        return self.starts >= ALONE_FROM

    def start(self, base: int, reach: int, end: int) -> Watch:
        """Return the watch of an owner who starts from a commit at ``base`` that tells this one.

        Args:
            base: the committed offset.
            reach: offsets beyond the commit that may be out where there is no watch.
            end: of the log, as of now.
        """
        if self.ended:
            return replace(self, ended=False)
        if end <= base:
            return AT_WORK
        starts = self.starts + 1
        if self.solo:
            return Watch(starts, self.until)
        if starts == ALONE_FROM:
            return Watch(starts, min(base + WINDOW, end))
        return Watch(starts, max(self.until, min(base + reach, end)))

    def at(self, point: int, *, moved: bool = True, alone: int | None = None) -> Watch:
        """Return the watch that a commit at ``point`` tells.

        Args:
            point: the offset that is committed.
            moved: whether that is another one than before.
            alone: the record that is out alone, or about to be.
        """
        if point >= self.until:
            return AT_WORK
        if self.solo:
            return Watch(self.starts, self.until, alone)
        return Watch(0, self.until) if moved else self

    def end(self) -> Watch:
        """Return the watch that the last commit of an orderly end tells."""
        return Watch(self.starts, self.until, ended=True) if self.solo else Watch(ended=True)


AT_WORK = Watch()
"""Somebody is at work, and nothing is suspected."""
