"""Process deaths: how many in a row, and which records may be the cause.

A record that kills the process leaves no fail behind. So each commit says that its owner is at work; only the last
commit before an orderly end says that the owner has ended. A start from a commit of the first kind is an *unclean
start* at its offset. From the second unclean start in a row at the same offset, *crash isolation* searches the records
that may have been out: they are emitted in windows, each after the previous one is committed. It is like a binary
search, only faster:

====================  =============================================================================================
what happens          what follows
====================  =============================================================================================
the second death      windows of ``WINDOW`` offsets, up to all that may have been out (``until``)
a window is through   it was not among these: the next window is ``GROWTH`` times as large
a death in a window   it was one of these, or none: up to the end of that window (``narrow_until``) windows are
                      ``SHRINK`` times smaller
a process died with   windows end before that record, and it is out alone as soon as the commit has reached it, in a
a known record        row of one already
a window of one       that record is out alone, and written down before its emit: a death then names it
====================  =============================================================================================

So a process that is killed from outside costs some small windows, each finished as soon as the sinks have written it. A
record is out alone only after several deaths at one offset, each in a smaller window. An unclean start with a record
out alone is a failed attempt of that record, unless it is known that no process died with it
(``downspout.spout.partition``). An orderly end adds nothing to a row, passes a search on, and ends a row of one, unless
no record was out. If a partition has no records beyond the commit, it cannot have killed a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW = 1_000  # Offsets of the first window
GROWTH = 4
SHRINK = 8
ISOLATION_FROM = 2


@dataclass(frozen=True, slots=True)
class Isolation:
    """The state of the search at one committed offset: how earlier owners ended, and which records may be the reason.

    >>> died = AT_WORK.start(base=10, reach=9000, end=99_000)
    >>> died
    Isolation(starts=1, window=0, narrow_until=0, until=0, alone=None, ended=False, died_with=None)
    >>> again = died.start(base=10, reach=9000, end=99_000)
    >>> again
    Isolation(starts=2, window=1000, narrow_until=0, until=9010, alone=None, ended=False, died_with=None)
    >>> again.at(1010, through=True).window, again.at(9010) == AT_WORK
    (4000, True)
    >>> again.start(base=10, reach=9000, end=99_000)
    Isolation(starts=3, window=125, narrow_until=1010, until=9010, alone=None, ended=False, died_with=None)
    >>> AT_WORK.start(base=10, reach=9000, end=99_000, died_with=10).single
    True
    """

    starts: int = 0  # unclean ones in a row
    window: int = 0  # how many offsets beyond the commit may be out; 0: there is no search
    narrow_until: int = 0  # windows do not grow until the commit reaches this offset; 0: they do
    until: int = 0  # the search ends when the commit reaches this offset; 0: there is none
    alone: int | None = None  # the record that is out alone, or about to be
    ended: bool = False  # whether the owner has ended in order
    died_with: int | None = None  # a record with which a process died; it is not in the metadata

    @property
    def single(self) -> bool:
        """Whether one record may be out at a time."""
        return self.window == 1

    def start(self, base: int, reach: int, end: int, died_with: int | None = None) -> Isolation:
        """Return the state of an owner that starts from a commit at ``base`` with this state.

        Args:
            base: the committed offset.
            reach: offsets beyond the commit that may be out without a search.
            end: of the log, as of now.
            died_with: the record with which a process died, if known.
        """
        if self.ended:
            return replace(self, ended=False)
        if end <= base:
            return AT_WORK
        died_with = died_with if died_with is not None and base <= died_with < end else None
        starts = max(self.starts + 1, ISOLATION_FROM if died_with is not None else 0)
        if starts < ISOLATION_FROM:
            return Isolation(starts)
        if died_with == base:
            return Isolation(starts, 1, base + 1, max(base + 1, min(self.until or base + reach, end)))
        if not self.until:
            return Isolation(starts, WINDOW, 0, max(min(base + reach, end), (died_with or 0) + 1), died_with=died_with)
        narrow_until = max(self.narrow_until, base + 1) if self.single else base + self.window
        narrow_until = min(narrow_until, end)
        until = max(narrow_until, min(self.until, end), (died_with or 0) + 1)
        return Isolation(starts, max(1, self.window // SHRINK), narrow_until, until, died_with=died_with)

    def window_end(self, point: int) -> int:
        """Return where the window that begins at a commit ends."""
        end = min(point + self.window, self.until)
        return min(end, self.died_with) if self.died_with is not None else end

    def at(self, point: int, *, moved: bool = True, through: bool = False, alone: int | None = None) -> Isolation:
        """Return the state that a commit at ``point`` holds.

        Args:
            point: the offset that is committed.
            moved: whether it differs from the previous commit.
            through: whether it is at or beyond the end of a window.
            alone: the record that is out alone, or about to be.
        """
        if point >= self.until:
            return AT_WORK if moved or self.until else self
        if self.died_with is not None and point >= self.died_with:
            alone = alone if point == self.died_with else None
            return Isolation(self.starts, 1, max(self.died_with, point) + 1, max(self.until, point + 1), alone)
        narrow_until = self.narrow_until if point < self.narrow_until else 0
        window = self.window * GROWTH if through and not narrow_until else self.window
        alone = alone if window == 1 else None
        return Isolation(self.starts, window, narrow_until, self.until, alone, died_with=self.died_with)

    def end(self, *, idle: bool = False) -> Isolation:
        """Return the state that the last commit of an orderly end holds.

        Args:
            idle: whether this owner had no record out, so that its end proves nothing.

        >>> died = AT_WORK.start(base=10, reach=1000, end=5000)
        >>> died.end().starts, died.end(idle=True).start(base=10, reach=1000, end=5000).starts
        (0, 1)
        """
        return replace(self, alone=None, died_with=None, ended=True) if self.until or idle else Isolation(ended=True)


AT_WORK = Isolation()  # The owner is at work, and no record is suspected
