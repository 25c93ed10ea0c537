"""What changes the ledger of one partition: records that go out, words that come back, commits.

The theory is in ``downspout.ledger.state``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import repeat

from downspout.ledger.retry_schedule import NEVER, RetryState
from downspout.ledger.state import LedgerState

__all__ = ["NEVER", "PartitionLedger", "RetryState"]


class PartitionLedger(LedgerState):
    """The ledger of one partition during one assignment. ``h`` is the number of holes, ``f`` of retrying
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

    # --- what the reader and the topology report ---

    def emit(self, offset: int, now: int) -> bool:
        """Take note that the record at ``offset`` was read and is about to be emitted; False: do not emit it.

        False means: done before, out already, or a retry whose time has not come. O(1) for a record seen
        first.
        """
        if offset >= self.next:
            if offset > self.next:
                self._pass_over(offset)
            self.next = offset + 1
            if self.earlier_failures and offset in self.earlier_failures:
                self._recall(offset, now)
            elif offset < self._known_end and offset in self._done:
                return False
            else:
                self._flying[offset] = now
                return True
        retry = self._retrying.get(offset)
        if retry is None or retry.emitted_at is not None or retry.ready_at > now:
            return False
        self._retries.mark_out(retry, now, self._acks)
        return True

    def emit_many(self, offsets: Sequence[int], now: int) -> int:
        """Do what :meth:`emit` does for the first of these, as many as are new, also to earlier owners, without a gap
        between them; return how many. O(those).

        >>> ledger = PartitionLedger(base=10)
        >>> ledger.emit_many([10, 11, 14], now=0), ledger.emit_many([14], now=0), ledger.emit_many([11], now=0)
        (2, 1, 0)
        """
        first = offsets[0]
        if first < self.next or self.earlier_failures or first < self._known_end:
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
        if not self._retrying and not self._ranges_out.more and all(map(flying.__contains__, range(start, end))):
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
            self._ranges_out.add(start, end, records)

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
        retry = self._retries.remove(offset)
        if retry is None:
            raise ValueError(f"nothing waits at {offset}")
        self._done.add_range(offset, start)
        left = retry.records - records
        if (rest := min(left, retry.end - end)) > 0:
            self._wait(end, retry.part(end, retry.end, rest))
        else:
            self._done.add_range(end, retry.end)
        part = retry.part(start, end, records)
        self._retries.add(start, part)
        self._retries.mark_out(part, now, self._acks)
        return left - max(rest, 0)

    def recall(self, offset: int, now: int) -> None:
        """Take note that a record of :attr:`earlier_failures` was read; it waits, as for a retry."""
        self._pass_over(offset)
        self.next = offset + 1
        self._recall(offset, now)

    def ack(self, offset: int) -> int:
        """Take an ack of what begins at ``offset``; return how many records that is. O(1).

        0 where nothing of it is out (late, double, foreign): then nothing changed.
        """
        if offset not in self._flying:
            retry = self._retrying.get(offset)
            if retry is None or retry.emitted_at is None:
                return 0
        self._acks += 1
        return self.leave(offset)

    def leave(self, offset: int) -> int:
        """Take what begins at ``offset``, and is out or waits, as done without an ack; return how many records. O(1).

        What is said of it later changes nothing any more.
        """
        end, records = offset + 1, 1
        if self._flying.pop(offset, None) is None:
            if (retry := self._retries.remove(offset)) is None:
                return 0
            end, records = retry.end, retry.records
        elif self._ranges_out.more and offset in self._ranges_out:
            end, records = self._ranges_out.take(offset)
        if end == offset + 1:
            self._done.add(offset)
        else:
            self._done.add_range(offset, end)
        return records

    def leave_below(self, offset: int) -> list[tuple[int, int, int]]:
        """Take all that is out or waits below ``offset`` as done; return it as (start, end, records). O(that · log h).

        It goes as far as the first that reaches beyond ``offset``, or waits for no retry, as another way settles it.

        >>> ledger = PartitionLedger(base=0)
        >>> ledger.emit_many([0, 1, 2, 3], now=0), ledger.ack(1), ledger.fail(2, now=0).ready_at
        (4, 1, 0)
        >>> ledger.leave_below(3), ledger.commit_point()
        ([(0, 1, 1), (2, 3, 1)], 3)
        """
        left = []
        while (start := self.commit_point()) < min(offset, self.next):
            retry = self._retrying.get(start)
            end = (self._ranges_out.end(start) or start + 1) if retry is None else retry.end
            if end > offset or (retry is not None and retry.ready_at == NEVER):
                break
            left.append((start, end, self.leave(start)))
        return left

    def fail(self, offset: int, now: int) -> RetryState | None:
        """Count a failed attempt and schedule the next; None where nothing of it is out. O(log f).

        Of a range none is counted: it is split. Its parts were not tried yet, so they wait for the shortest back-off:
        were it twice as long with each split, a bad record among 10,000 would take 16 s to find.
        """
        retry = self._take_back(offset)
        if retry is not None:
            if retry.end == offset + 1:
                retry.failures += 1
            else:
                retry.most, retry.backoffs = (retry.records + 1) // 2, 0
            self._reschedule(offset, retry, now)
        return retry

    def timeout(self, offset: int, now: int, *, outage: bool = False) -> RetryState | None:
        """Back off without counting an attempt; None where nothing of it is out.

        A timeout says nothing about the record while nothing else gets through either. So ``timeouts``
        counts only those during which other records of the partition were acked, and no ``outage``. A range is tried
        again as it is, until the caller says :meth:`split`.
        """
        retry = self._take_back(offset)
        if retry is not None:
            retry.timeouts += not outage and self._acks > retry.acks_seen
            self._reschedule(offset, retry, now)
        return retry

    def postpone(self, offset: int, until: int) -> None:
        """Let the retry of ``offset`` wait until then (:data:`NEVER`: it is settled in another way). O(log f)."""
        retry = self._retrying.get(offset)
        if retry is not None and retry.emitted_at is None:
            self._retries.wait(offset, retry, until)

    def split(self, offset: int) -> None:
        """Let the range that waits at ``offset`` be tried again in parts, as if it had failed."""
        retry = self._retrying[offset]
        retry.most = (retry.records + 1) // 2

    def resolve(self, offset: int) -> bool:
        """Take ``offset`` as done without an ack: filtered, dead-lettered. False: it was done before.

        With it, the range that waits there.
        """
        if offset >= self.next:
            self._pass_over(offset)
            self.next = offset + 1
            self.earlier_failures.pop(offset, None)
        elif self._flying.pop(offset, None) is None:
            retry = self._retries.remove(offset)
            if retry is None:
                return False
            self._done.add_range(offset + 1, retry.end)
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
        :data:`NEVER`). A range of which only the beginning is gone begins later; its retry
        finds how many records that has taken. Returns how many were resolved.
        """
        count = 0
        for offset in self._retries.waiting(start, end):
            retry = self._retrying[offset]
            count += retry.records
            if retry.end <= end:
                self.resolve(offset)
            else:
                count -= self._cut(offset, end, min(retry.records, retry.end - end))
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
        lost: int = sum(self._retrying[start].records - self._left(start, offset) for start in waiting)
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
        self._ranges_out.gaps.discard_below(offset)

    # --- inside ---

    def _pass_over(self, offset: int) -> None:
        """The reader went from ``next`` to ``offset``: what lies between is not there, or was done before."""
        self._done.add_range(self.next, offset)
        self._absent.add_range(self.next, offset)
        if self.earlier_failures:
            self.earlier_failures = {o: n for o, n in self.earlier_failures.items() if o >= offset}

    def _recall(self, offset: int, now: int) -> None:
        """An earlier owner counted failures of this record: it comes as a retry that is due."""
        count = self.earlier_failures.pop(offset)
        self._wait(offset, RetryState(failures=count, backoffs=count, ready_at=now, end=offset + 1))

    def _take_back(self, offset: int) -> RetryState | None:
        """Take ``offset`` back from those that are out; None where it is not."""
        if self._flying.pop(offset, None) is not None:
            if self._ranges_out.more and offset in self._ranges_out:
                end, records = self._ranges_out.take(offset)
                retry = RetryState(end=end, records=records, most=records)
            else:
                retry = RetryState(end=offset + 1)
            self._retries.add(offset, retry)
            return retry
        found: RetryState | None = self._retrying.get(offset)
        if found is None or found.emitted_at is None:
            return None
        self._retries.mark_waiting(found)
        return found

    def _reschedule(self, offset: int, retry: RetryState, now: int) -> None:
        retry.backoffs += 1
        self._retries.wait(offset, retry, now + self._backoff.delay(retry.backoffs))

    def _wait(self, offset: int, retry: RetryState) -> None:
        """Let an entry that is not there yet wait for its time."""
        self._retries.add(offset, retry)
        self._retries.wait(offset, retry, retry.ready_at)

    def _cut(self, start: int, to: int, left: int) -> int:
        """The beginning of a range that waits is gone; the rest waits on, with so many records. Return how many."""
        retry = self._retries.remove(start)
        assert retry is not None
        self._done.add_range(start, to)
        self._wait(to, retry.part(to, retry.end, left))
        return left
