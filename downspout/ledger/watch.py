"""Processes that die: how often in a row, and which records may be the reason.

A record that kills the process leaves no fail behind. So each commit says that somebody is at work, and only the last
one before an orderly end says that nobody is. Whoever starts from a commit of the first kind counts an *unclean start*
at its offset. From the second in a row, at the same offset, there is a *watch* over what may have been out:

====================  ==================================================  ============================================
the commit is         what may be out                                     because
====================  ==================================================  ============================================
below ``lone_until``  one record, which is written down before its emit   its death will tell who it was
below ``until``       a window of offsets, below ``until``                 a death in it leaves less to be suspected
====================  ==================================================  ============================================

After a crash nobody knows how far the dead process had read: that may have been ``reach`` offsets, too many to try
them alone. So the first ``WINDOW`` of them are tried alone, and the others in windows, each ``GROWTH`` times as large
as the one before, which has to be committed first. After a death in a window the next owner begins at its start, again
with lone records: so the distance to the record that kills shrinks by that factor with each death. The watch ends, and
the row with it, when the commit has passed everything suspicious.

An unclean start with a record out alone is a failed attempt of that record. An orderly end adds nothing to a row, hands
a watch on, and ends a row of one, unless nothing was out. Where a partition has nothing beyond the commit, nothing can
have killed anybody.

What it does not know: why a process died.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["AT_WORK", "GROWTH", "WINDOW", "Watch"]

WINDOW = 100
"""Offsets that are tried alone, and of the first window behind them."""
GROWTH = 4
WATCH_FROM = 2


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of the ends of earlier owners, at one committed offset.

    Attributes:
        starts: unclean ones in a row.
        lone_until: one record is out at a time until the commit reaches this offset.
        until: the watch ends when the commit reaches this offset; 0: there is none.
        alone: the record that is out alone, or about to be.
        ended: whether the owner has ended in order.

    >>> died = AT_WORK.start(base=10, reach=1000, end=5000)
    >>> died
    Watch(starts=1, lone_until=0, until=0, alone=None, ended=False)
    >>> again = died.start(base=10, reach=1000, end=5000)
    >>> again
    Watch(starts=2, lone_until=110, until=1010, alone=None, ended=False)
    >>> again.solo, again.at(110).solo, again.at(1010) == AT_WORK
    (True, False, True)
    """

    starts: int = 0
    lone_until: int = 0
    until: int = 0
    alone: int | None = None
    ended: bool = False

    @property
    def solo(self) -> bool:
        """Whether one record may be out at a time."""
        return self.lone_until > 0

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
        if starts < WATCH_FROM:
            return Watch(starts)
        lone_until = self.lone_until or min(base + WINDOW, end)
        return Watch(starts, lone_until, max(lone_until, self.until or min(base + reach, end)))

    def at(self, point: int, *, moved: bool = True, alone: int | None = None) -> Watch:
        """Return the watch that a commit at ``point`` tells.

        Args:
            point: the offset that is committed.
            moved: whether that is another one than before.
            alone: the record that is out alone, or about to be.
        """
        if point >= self.until:
            return AT_WORK if moved or self.until else self
        if point >= self.lone_until:
            return Watch(self.starts, 0, self.until)
        return Watch(self.starts, self.lone_until, self.until, alone)

    def end(self, *, idle: bool = False) -> Watch:
        """Return the watch that the last commit of an orderly end tells.

        Args:
            idle: whether nothing was out under this owner, so that its end proves nothing.

        >>> died = AT_WORK.start(base=10, reach=1000, end=5000)
        >>> died.end().starts, died.end(idle=True).start(base=10, reach=1000, end=5000).starts
        (0, 1)
        """
        return replace(self, alone=None, ended=True) if self.until or idle else Watch(ended=True)


AT_WORK = Watch()
"""Somebody is at work, and nothing is suspected."""
