"""Process deaths: counting them, and isolating the record that may be the cause.

A record that kills the process produces no fail. So each commit marks its owner as running, except the last commit of
an orderly shutdown. A start from a commit marked as running is an *unclean start* at its offset. After the second
consecutive unclean start at the same offset, *crash isolation* searches the records that may have been in flight: the
spout emits them in windows, each after the previous window is committed. The search is a binary search with a larger
factor:

====================  =============================================================================================
event                 reaction
====================  =============================================================================================
the second death      windows of ``WINDOW`` offsets, up to the last record that may have been in flight (``until``)
a window is done      the record is not in it: the next window is ``GROWTH`` times as large
a death in a window   the record is in it, or none is to blame: windows are ``SHRINK`` times smaller up to the end of
                      that window (``narrow_until``)
a process died with   windows end before that record, and it is emitted alone once the commit reaches it, even after
a known record        a single death
a window of one       that record is emitted alone, and recorded before its emit, so a death identifies it
====================  =============================================================================================

So a process killed from outside costs a few small windows, each finished once the sinks have written it. A record is
emitted alone only after several deaths at one offset, each in a smaller window. An unclean start with a record
emitted alone is a failed attempt of that record, unless it is known that no process died with it
(``downspout.spout.partition``). An orderly shutdown is no death; it keeps a search, and resets a count of one unless no
record was in flight. A partition without records beyond the commit cannot have killed a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW = 1_000  # Offsets of the first window
GROWTH = 4
SHRINK = 8
ISOLATION_FROM = 2


@dataclass(frozen=True, slots=True)
class Isolation:
    """The state of the search at one committed offset: how earlier owners stopped, and which records are suspected.

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

    starts: int = 0  # consecutive unclean starts
    window: int = 0  # how many offsets beyond the commit may be in flight; 0: no search
    narrow_until: int = 0  # windows do not grow below this offset; 0: they grow
    until: int = 0  # the search ends when the commit reaches this offset; 0: no search
    alone: int | None = None  # the record that is emitted alone, or about to be
    ended: bool = False  # whether the owner shut down in order
    died_with: int | None = None  # a record with which a process died; not in the metadata

    @property
    def single(self) -> bool:
        """Whether only one record may be in flight."""
        return self.window == 1

    def start(self, base: int, reach: int, end: int, died_with: int | None = None) -> Isolation:
        """Return the state of an owner that starts from a commit at ``base`` with this state.

        Args:
            base: the committed offset.
            reach: offsets beyond the commit that may be in flight without a search.
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
        """Return the end of the window that begins at a commit."""
        end = min(point + self.window, self.until)
        return min(end, self.died_with) if self.died_with is not None else end

    def at(self, point: int, *, moved: bool = True, through: bool = False, alone: int | None = None) -> Isolation:
        """Return the state to store in a commit at ``point``.

        Args:
            point: the offset that is committed.
            moved: whether it differs from the previous commit.
            through: whether it is at or beyond the end of a window.
            through: whether it is at or beyond the end of a window.
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
        """Return the state to store in the last commit of an orderly shutdown.

        Args:
            idle: whether this owner had no record in flight, so its shutdown proves nothing.

        >>> died = AT_WORK.start(base=10, reach=1000, end=5000)
        >>> died.end().starts, died.end(idle=True).start(base=10, reach=1000, end=5000).starts
        (0, 1)
        """
        return replace(self, alone=None, died_with=None, ended=True) if self.until or idle else Isolation(ended=True)


AT_WORK = Isolation()  # The owner is running, and no record is suspected
