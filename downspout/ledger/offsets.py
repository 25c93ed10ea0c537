"""What changes the ledger of one partition: records that go out, words that come back, commits.

The theory is in ``downspout.ledger.state``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import repeat

from downspout.ledger.retries import NEVER, Trouble
from downspout.ledger.state import LedgerState

__all__ = ["NEVER", "PartitionLedger", "Trouble"]


class PartitionLedger(LedgerState):
    """The ledger of one partition during one assignment. ``h`` is the number of holes, ``f`` of troubled
    offsets.

    Args:
        base: the offset that reading starts at: the commit, or what the start strategy resolved.
        backoff: when a failed record is tried again.
        done: ranges beyond ``base`` that an earlier owner acked.
        failures: failed attempts of offsets, as an earlier owner counted them.

    >>> ledger = PartitionLedger(base=10)
    >>> [ledger.emit(offset, now=0) for offset in (10, 11, 13)]   # 12 does not exist
    [True, True, True]
    >>> ledger.ack(10), ledger.ack(13), ledger.commit_point()
    (1, 1, 11)
    >>> _ = ledger.fail(11, now=0); ledger.earliest_ready_retry(now=0)
    11
    >>> ledger.emit(11, now=0), ledger.ack(11), ledger.commit_point()
    (True, 1, 14)
    """

    __slots__ = ()

    # --- what the reader and the topology tell ---

    def emit(self, offset: int, now: int) -> bool:
        """Take note that the record at ``offset`` was read and is about to be emitted; False: do not emit it.

        False means: done before, out already, or a retry whose time has not come. O(1) for a record seen
        first.
        """
        if offset >= self.next:
            if offset > self.next:
                self._pass_over(offset)
            self.next = offset + 1
            if self._history and offset in self._history:
                self._recall(offset, now)
            elif offset < self._known_end and offset in self._done:
                return False
            else:
                self._flying[offset] = now
                return True
        trouble = self._troubled.get(offset)
        if trouble is None or trouble.emitted_at is not None or trouble.ready_at > now:
            return False
        self._retries.send(trouble, now, self._acks)
        return True

    def emit_many(self, offsets: Sequence[int], now: int) -> int:
        """Do what :meth:`emit` does for the first of these, as many as were not seen and are not told of, without a
        gap between them; return how many. O(those).

        >>> ledger = PartitionLedger(base=10)
        >>> ledger.emit_many([10, 11, 14], now=0), ledger.emit_many([14], now=0), ledger.emit_many([11], now=0)
        (2, 1, 0)
        """
        first = offsets[0]
        if first < self.next or self._history or first < self._known_end:
            return 0
        count = len(offsets)
        if offsets[-1] - first >= count:  # a gap: what is before it
            count = bisect_left(range(count), True, key=lambda place: offsets[place] - first > place)
        if first > self.next:
            self._pass_over(first)
        self.next = first + count
        self._flying.update(zip(range(first, self.next), repeat(now), strict=False))
        return count

    def ack_many(self, start: int, end: int) -> int:
        """Take acks of the single records in ``[start, end)``; return how many of them were out. O(those).

        >>> ledger = PartitionLedger(base=10)
        >>> ledger.emit_many([10, 11, 12], now=0), ledger.ack_many(10, 12), ledger.ack_many(11, 13)
        (3, 2, 1)
        """
        flying = self._flying
        if not self._troubled and not self._spans.more and all(map(flying.__contains__, range(start, end))):
            deque(map(flying.pop, range(start, end)), maxlen=0)
            self._acks += end - start
            self._done.add_range(start, end)
            return end - start
        return sum(map(self.ack, range(start, end)))

    def emit_range(self, start: int, end: int, records: int, now: int) -> None:
        """Take note that ``records`` records, all that there are in ``[start, end)``, are about to be emitted as one.

        They were not seen before, there is one at ``start`` and one below ``end``, and :meth:`free_until` says that
        they may be emitted. O(1).
        """
        if self.free_until(start, end) < end or start < self.next:
            raise ValueError(f"[{start}, {end}) is not free")
        if start > self.next:
            self._pass_over(start)
        self.next = end
        self._flying[start] = now
        if end > start + 1:
            self._spans.add(start, end, records)

    def emit_part(self, offset: int, start: int, end: int, records: int, now: int) -> int:
        """Take note that of a range that waits at ``offset`` the part ``[start, end)`` is about to be emitted.

        It holds ``records`` records, one at ``start`` and one below ``end``, and there is none below it. What is above
        waits on. Returns how many records are not there any more. O(log f).

        >>> ledger = PartitionLedger(base=0)
        >>> ledger.emit_range(0, 8, records=8, now=0)
        >>> ledger.fail(0, now=0).most
        4
        >>> ledger.emit_part(0, 0, 4, records=4, now=0), ledger.emit_part(4, 4, 8, records=4, now=0)
        (0, 0)
        >>> ledger.ack(0), ledger.fail(4, now=0).most, ledger.commit_point()
        (4, 2, 4)
        """
        trouble = self._retries.remove(offset)
        if trouble is None:
            raise ValueError(f"nothing waits at {offset}")
        self._done.add_range(offset, start)
        left = trouble.records - records
        if (rest := min(left, trouble.end - end)) > 0:
            self._wait(end, trouble.part(end, trouble.end, rest))
        else:
            self._done.add_range(end, trouble.end)
        part = trouble.part(start, end, records)
        self._retries.add(start, part)
        self._retries.send(part, now, self._acks)
        return left - max(rest, 0)

    def recall(self, offset: int, now: int) -> None:
        """Take note that a record that failed before our time (:attr:`told`) was read; it waits, as for a retry."""
        self._pass_over(offset)
        self.next = offset + 1
        self._recall(offset, now)

    def ack(self, offset: int) -> int:
        """Take an ack of what begins at ``offset``; return how many records that is. O(1).

        0 where nothing of it is out (late, double, foreign): then nothing changed.
        """
        end, records = offset + 1, 1
        if self._flying.pop(offset, None) is None:
            trouble = self._troubled.get(offset)
            if trouble is None or trouble.emitted_at is None:
                return 0
            self._retries.remove(offset)
            end, records = trouble.end, trouble.records
        elif self._spans.more and offset in self._spans:
            end, records = self._spans.take(offset)
        self._acks += 1
        if end == offset + 1:
            self._done.add(offset)
        else:
            self._done.add_range(offset, end)
        return records

    def fail(self, offset: int, now: int) -> Trouble | None:
        """Count a failed attempt and schedule the next; None where nothing of it is out. O(log f).

        Of a range none is counted: it is split.
        """
        trouble = self._land(offset)
        if trouble is not None:
            if trouble.end == offset + 1:
                trouble.failures += 1
            else:
                trouble.most = (trouble.records + 1) // 2
            self._reschedule(offset, trouble, now)
        return trouble

    def timeout(self, offset: int, now: int) -> Trouble | None:
        """Back off without counting an attempt; None where nothing of it is out.

        A timeout says nothing about the record while nothing else gets through either. So ``timeouts``
        counts only those during which other records of the partition were acked. A range is tried again as it is,
        until the caller says :meth:`split`.
        """
        trouble = self._land(offset)
        if trouble is not None:
            trouble.timeouts += self._acks > trouble.acks_seen
            self._reschedule(offset, trouble, now)
        return trouble

    def postpone(self, offset: int, until: int) -> None:
        """Let the retry of ``offset`` wait until then (:data:`NEVER`: it is settled in another way). O(log f)."""
        trouble = self._troubled.get(offset)
        if trouble is not None and trouble.emitted_at is None:
            self._retries.wait(offset, trouble, until)

    def split(self, offset: int) -> None:
        """Let the range that waits at ``offset`` be tried again in parts, as if it had failed."""
        trouble = self._troubled[offset]
        trouble.most = (trouble.records + 1) // 2

    def resolve(self, offset: int) -> bool:
        """Take ``offset`` as done without an ack: filtered, dead-lettered. False: it was done before.

        With it, the range that waits there.
        """
        if offset >= self.next:
            self._pass_over(offset)
            self.next = offset + 1
            self._history.pop(offset, None)
        elif self._flying.pop(offset, None) is None:
            trouble = self._retries.remove(offset)
            if trouble is None:
                return False
            self._done.add_range(offset + 1, trouble.end)
        if offset in self._done:
            return False
        self._done.add(offset)
        return True

    def passed(self, position: int) -> None:
        """The reader stands at ``position``, and nothing that it read still waits to be emitted.

        So there is no record between the last one seen and there: transaction markers, perhaps.
        """
        if position > self.next:
            self._pass_over(position)
            self.next = position

    def gone(self, start: int, end: int) -> int:
        """Resolve what waits for a retry in ``[start, end)``, because the log has no record there any more.

        Those that are out stay: their ack or fail is still to come. So do those that need no retry (postponed to
        :data:`NEVER`). A range of which only the beginning is gone begins later; how many records that has taken, its
        retry will tell. Returns how many were resolved.
        """
        count = 0
        for offset in self._retries.waiting(start, end):
            trouble = self._troubled[offset]
            count += trouble.records
            if trouble.end <= end:
                self.resolve(offset)
            else:
                count -= self._cut(offset, end, min(trouble.records, trouble.end - end))
        return count

    def skip_to(self, offset: int) -> int:
        """The log begins at ``offset`` now: resolve what waits for a retry below it, and pass over what was not seen.

        Those that are out stay, as in :meth:`gone`. Returns how many offsets are lost.
        """
        lost = self.lost_below(offset)
        for start in self._retries.waiting(self.base, offset):
            if left := self._left(start, offset):
                self._cut(start, offset, left)
        self.gone(self.base, offset)
        if offset > self.next:
            self._pass_over(offset)
            self.next = offset
        return lost

    def lost_below(self, offset: int) -> int:
        """Return what :meth:`skip_to` would return, and change nothing."""
        waiting = self._retries.waiting(self.base, offset)
        lost: int = sum(self._troubled[start].records - self._left(start, offset) for start in waiting)
        if offset > self.next:
            lost += sum(end - start for start, end in self._done.missing(self.next, offset))
        return lost

    def committed(self, offset: int) -> None:
        """Forget what lies below ``offset``: the broker has it now. O(ranges dropped)."""
        if offset <= self.base:
            return
        self.passed(offset)
        self.base = offset
        self._done.discard_below(offset)
        self._absent.discard_below(offset)
        self._spans.gaps.discard_below(offset)

    # --- inside ---

    def _pass_over(self, offset: int) -> None:
        """The reader went from ``next`` to ``offset``: what lies between is not there, or was done before."""
        self._done.add_range(self.next, offset)
        self._absent.add_range(self.next, offset)
        if self._history:
            self._history = {o: n for o, n in self._history.items() if o >= offset}

    def _recall(self, offset: int, now: int) -> None:
        """An earlier owner counted failures of this record: it comes as a retry that is due."""
        count = self._history.pop(offset)
        self._wait(offset, Trouble(failures=count, setbacks=count, ready_at=now, end=offset + 1))

    def _land(self, offset: int) -> Trouble | None:
        """Take ``offset`` back from those that are out; None where it is not."""
        if self._flying.pop(offset, None) is not None:
            if self._spans.more and offset in self._spans:
                end, records = self._spans.take(offset)
                trouble = Trouble(end=end, records=records, most=records)
            else:
                trouble = Trouble(end=offset + 1)
            self._retries.add(offset, trouble)
            return trouble
        found: Trouble | None = self._troubled.get(offset)
        if found is None or found.emitted_at is None:
            return None
        self._retries.land(found)
        return found

    def _reschedule(self, offset: int, trouble: Trouble, now: int) -> None:
        trouble.setbacks += 1
        self._retries.wait(offset, trouble, now + self._backoff.delay(trouble.setbacks))

    def _wait(self, offset: int, trouble: Trouble) -> None:
        """Let an entry that is not there yet wait for its time."""
        self._retries.add(offset, trouble)
        self._retries.wait(offset, trouble, trouble.ready_at)

    def _cut(self, start: int, to: int, left: int) -> int:
        """The beginning of a range that waits is gone; the rest waits on, with so many records. Return how many."""
        trouble = self._retries.remove(start)
        assert trouble is not None
        self._done.add_range(start, to)
        self._wait(to, trouble.part(to, trouble.end, left))
        return left
