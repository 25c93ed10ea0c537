"""The state of each record of one partition.

Everything below ``base`` (the last commit) is done. From ``base`` to ``next`` (one more than the highest
offset seen) every offset is in exactly one of three states:

========  ====================================================================================================
done      acked, filtered, dead-lettered or compacted; or passed by the reader without a record (transaction
          markers, aborted records, records compacted earlier). Kept as ranges.
flying    emitted once, neither acked nor failed yet. A plain dict: it needs no order.
retrying  failed or timed out at least once: waits for its retry, or is in flight again. A sorted map, since the
          reader seeks back to the lowest offset whose retry is due.
========  ====================================================================================================

Records emitted together as one tuple, a *range* ``[start, end)``, are one entry under its first offset; gaps in the
range share its state. A range that fails is emitted again in parts of at most half as many records each, and no attempt
is counted: only the failure of a single record is known to be its own. So one bad record among n is isolated after
O(log n) failures, and k of them cost O(k log n) tuples.

The offset to commit is the first at or above ``base`` that is not done. A gap is done once the reader has passed it, so
it never blocks a commit. Memory grows with the number of holes between ranges, not of records. Above ``next``, only
``done`` and ``earlier_failures`` hold anything: the last commit's metadata (``downspout.ledger.metadata``) about
records that this ledger has not seen.

The ledger knows no topics, consumers, threads, records or clock. Times are integer milliseconds on the caller's clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from downspout.ledger.ranges import Ranges, RangesInFlight
from downspout.ledger.retry_schedule import NEVER, Backoff, RetryPolicy, RetrySchedule, RetryState


class PartitionLedger:
    """The ledger of one partition during one assignment; ``h`` is the number of holes, ``f`` of retrying offsets.

    Args:
        base: the offset at which reading starts: the commit, or the one that the start strategy resolved.
        backoff: delays of retries.
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

    __slots__ = (
        "_absent",
        "_acks",
        "_backoff",
        "_done",
        "_flying",
        "_known_end",
        "_ranges_out",
        "_retries",
        "_retrying",
        "base",
        "earlier_failures",
        "next",
    )

    def __init__(
        self,
        base: int,
        backoff: RetryPolicy | None = None,
        done: Iterable[tuple[int, int]] = (),
        failures: Mapping[int, int] | None = None,
    ) -> None:
        self.base = base
        self.next = base
        self._backoff: RetryPolicy = backoff or Backoff(0)
        self._done = Ranges(done)
        self._done.discard_below(base)
        self._known_end = self._done.end or base  # At or above this, a new offset cannot be done: no need to search
        self._absent = Ranges()  # The part of done that was never emitted, for counting
        self._flying: dict[int, int] = {}  # lowest offset → when it was emitted
        self._ranges_out = RangesInFlight()  # Those of them that are ranges
        self._retries = RetrySchedule()
        self._retrying = self._retries.entries
        self.earlier_failures: dict[int, int] = {o: n for o, n in (failures or {}).items() if o >= base}
        """Failed attempts of unseen records, as an earlier owner counted them; 0: none, but the record is emitted
        alone."""
        self._acks = 0

    # --- events from the reader and the topology ---

    def emit(self, offset: int, now: int) -> bool:
        """Register the record at ``offset``, which was read and is about to be emitted; False: do not emit it.

        False means: done before, in flight, or a retry that is not due. O(1) for a new record.
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
        """Register the longest prefix of ``offsets`` without a gap, if all its records are new, also to earlier owners.

        Returns its length. O(that).

        >>> ledger = PartitionLedger(base=10)
        >>> ledger.emit_many([10, 11, 14], now=0), ledger.emit_many([14], now=0), ledger.emit_many([11], now=0)
        (2, 1, 0)
        """
        first = offsets[0]
        if first < self.next or self.earlier_failures or first < self._known_end:
            return 0
        count = len(offsets)
        if offsets[-1] - first >= count:  # a gap: only the offsets before it
            count = bisect_left(range(count), True, key=lambda place: offsets[place] - first > place)
        if first > self.next:
            self._pass_over(first)
        self.next = first + count
        self._flying.update(zip(range(first, self.next), repeat(now), strict=False))
        return count

    def ack_many(self, start: int, end: int) -> int:
        """Process acks of the single records in ``[start, end)``; return how many were in flight. O(records).

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
        """Register a range: ``records`` records, all those in ``[start, end)``, about to be emitted as one tuple.

        They are new, the first is at ``start``, and :meth:`free_until` permits their emit. O(1).
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
        """Register the part ``[start, end)`` of the range that waits at ``offset``, about to be emitted.

        It holds ``records`` records, from the first one left, at ``start``, to the one at ``end - 1``. Those above keep
        waiting. Returns the number of records that are gone from the log. O(log f).

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
        """Register a record of :attr:`earlier_failures` that was read; it waits like a retry."""
        self._pass_over(offset)
        self.next = offset + 1
        self._recall(offset, now)

    def ack(self, offset: int) -> int:
        """Process an ack of the entry at ``offset``; return its record count. O(1).

        0 if it is not in flight (a late, duplicate or foreign ack): nothing changes.
        """
        if offset not in self._flying:
            retry = self._retrying.get(offset)
            if retry is None or retry.emitted_at is None:
                return 0
        self._acks += 1
        return self.mark_done(offset)

    def mark_done(self, offset: int) -> int:
        """Mark the entry at ``offset`` done without an ack; return its record count. O(1). Later acks and fails are
        ignored."""
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

    def mark_done_below(self, offset: int) -> list[tuple[int, int, int]]:
        """Mark entries below ``offset`` done; return them as (start, end, records). O(those · log h).

        Stops at the first entry that extends beyond ``offset`` or needs no retry (:data:`NEVER`).

        >>> ledger = PartitionLedger(base=0)
        >>> ledger.emit_many([0, 1, 2, 3], now=0), ledger.ack(1), ledger.fail(2, now=0).ready_at
        (4, 1, 0)
        >>> ledger.mark_done_below(3), ledger.commit_point()
        ([(0, 1, 1), (2, 3, 1)], 3)
        """
        left = []
        while (start := self.commit_point()) < min(offset, self.next):
            retry = self._retrying.get(start)
            end = (self._ranges_out.end(start) or start + 1) if retry is None else retry.end
            if end > offset or (retry is not None and retry.ready_at == NEVER):
                break
            left.append((start, end, self.mark_done(start)))
        return left

    def fail(self, offset: int, now: int) -> RetryState | None:
        """Count a failed attempt and schedule the next; None if the entry is not in flight. O(log f).

        A range counts no attempt but is split. Its parts wait for the shortest back-off: if it doubled with each split,
        finding a bad record among 10,000 would take 16 s.
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
        """Back off without counting an attempt; None if the entry is not in flight.

        ``timeouts`` counts a timeout only if other records of the partition were acked meanwhile and there was no
        ``outage``; otherwise it says nothing about the record. A range is retried whole until :meth:`split`.
        """
        retry = self._take_back(offset)
        if retry is not None:
            retry.timeouts += not outage and self._acks > retry.acks_seen
            self._reschedule(offset, retry, now)
        return retry

    def postpone(self, offset: int, until: int) -> None:
        """Postpone the retry of ``offset``; :data:`NEVER` if it needs none. O(log f)."""
        retry = self._retrying.get(offset)
        if retry is not None and retry.emitted_at is None:
            self._retries.wait(offset, retry, until)

    def split(self, offset: int) -> None:
        """Retry the range that waits at ``offset`` in parts, as if it had failed."""
        retry = self._retrying[offset]
        retry.most = (retry.records + 1) // 2

    def resolve(self, offset: int) -> bool:
        """Mark ``offset``, and a range that waits there, done without an ack (filtered, dead-lettered); False: it was
        done."""
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
        """Advance ``next`` to the reader's position; the offsets in between hold no records."""
        if position > self.next:
            self._pass_over(position)
            self.next = position

    def gone(self, start: int, end: int) -> int:
        """Resolve the records in ``[start, end)`` that wait for a retry but are gone from the log; return their number.

        Records in flight stay, since their ack or fail is still to come; so do those that need no retry
        (:data:`NEVER`). If only the beginning of a range is gone, the range is cut; its retry counts the records left.
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
        """Skip to ``offset``, the log's new beginning; return how many offsets are lost.

        Below it, records that wait for a retry are resolved, and unseen ones skipped; those in flight stay.
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
        """Return the number of offsets that :meth:`skip_to` would lose."""
        waiting = self._retries.waiting(self.base, offset)
        lost: int = sum(self._retrying[start].records - self._left(start, offset) for start in waiting)
        if offset > self.next:
            lost += sum(end - start for start, end in self._done.missing(self.next, offset))
        return lost

    def committed(self, offset: int) -> None:
        """Forget everything below ``offset``, which is committed. O(ranges dropped)."""
        if offset <= self.base:
            return
        self.passed(offset)
        self.base = offset
        self._done.discard_below(offset)
        self._absent.discard_below(offset)
        self._ranges_out.gaps.discard_below(offset)

    # --- queries ---

    @property
    def known_end(self) -> int:
        """End of the ranges that an earlier owner recorded as done; it had read all records below."""
        return self._known_end

    def free_until(self, start: int, end: int) -> int:
        """Return the end, at most ``end``, of the part from ``start`` on that may be emitted as a range.

        It has no offsets done or failed earlier; the latter are emitted alone. O(1) if the commit's metadata was empty.
        """
        if self.earlier_failures:
            end = min((offset for offset in self.earlier_failures if start <= offset < end), default=end)
        if start < self._known_end:
            found, stop = next(self._done.missing(start, end), (end, end))
            end = stop if found == start else start
        return end

    def done_until(self, offset: int) -> int:
        """Return the first offset at or above this one that is not done. O(log h)."""
        return self._done.first_gap(offset)

    def first_waiting(self, offset: int) -> int | None:
        """Return the lowest offset at or above this one that waits for a retry, due or not."""
        return self._retries.first_waiting(offset)

    def out_until(self, offset: int) -> int | None:
        """Return the end of the entry in flight that begins at ``offset``; None: no such entry. O(1)."""
        if offset in self._flying:
            return self._ranges_out.end(offset) or offset + 1
        retry = self._retrying.get(offset)
        return retry.end if retry is not None and retry.emitted_at is not None else None

    def commit_point(self) -> int:
        """Return the offset to commit: the lowest that is not done. O(1) while acks come in order, else O(log h)."""
        return self._done.first_gap(self.base)

    def may_poll(self, uncommitted_max: int, now: int) -> bool:
        """Return whether more records may be read, by the rule of Storm's KafkaSpout.

        True if fewer than ``uncommitted_max`` offsets were emitted beyond the commit, or if a retry is due among the
        first ``uncommitted_max``: reading it again cannot exceed the limit.
        """
        if self.outstanding < uncommitted_max:
            return True
        retry = self.earliest_ready_retry(now)
        return retry is not None and retry <= self._nth(uncommitted_max)

    def earliest_ready_retry(self, now: int) -> int | None:
        """Return the lowest offset whose retry is due. O(log f) amortised."""
        return self._retries.earliest_ready(now)

    def next_retry(self) -> int | None:
        """Return when the next back-off ends, in ms, or an earlier time; None: none is running. O(1).

        Omits back-offs that :meth:`earliest_ready_retry` has found to be over.
        """
        return self._retries.next_at()

    @property
    def acks(self) -> int:
        """Number of acks."""
        return self._acks

    @property
    def newest_done(self) -> int:
        """The highest offset seen that is done; ``base - 1`` if none is. O(log h)."""
        return self._done.last_below(self.next, self.base - 1)

    @property
    def done_beyond_commit(self) -> int:
        """Number of offsets done above the one to commit. O(1) while acks come in order, else O(log h)."""
        return self._done.total - (self.commit_point() - self.base)

    @property
    def outstanding(self) -> int:
        """Number of records emitted (or filtered) and not yet covered by the commit, done or not."""
        return self.next - self.base - self._absent.total - self._ranges_out.gaps.total

    def outstanding_from(self, offset: int) -> int:
        """Return what :attr:`outstanding` would be if the commit were at ``offset``. O(gaps)."""
        if offset <= self.base:
            return self.outstanding
        gaps = sum(end - max(start, offset) for start, end in [*self._absent, *self._ranges_out.gaps] if end > offset)
        left: int = self.next - offset - gaps
        return max(left, 0)

    @property
    def in_flight(self) -> int:
        """Number of records in flight."""
        return len(self._flying) + self._ranges_out.more + self._retries.records_out

    @property
    def failed(self) -> int:
        """Number of records that wait for a retry."""
        return self._retries.records - self._retries.records_out

    @property
    def pending(self) -> int:
        """Number of records seen and not done."""
        return len(self._flying) + self._ranges_out.more + self._retries.records

    def emitted_at(self, offset: int) -> int | None:
        """Return when ``offset`` was last emitted, in ms, if it is in flight."""
        if (flying := self._flying.get(offset)) is not None:
            return flying
        retry = self._retrying.get(offset)
        return retry.emitted_at if retry else None

    def retry_state(self, offset: int) -> RetryState | None:
        """Return the state of an offset that failed and is not done."""
        found: RetryState | None = self._retrying.get(offset)
        return found

    def is_done(self, offset: int) -> bool:
        """Return whether ``offset`` is done."""
        return offset < self.base or offset in self._done

    def done_beyond(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges done above ``offset``, in order, for a commit's metadata."""
        for start, end in self._done:
            if end > offset:
                yield max(start, offset), end

    def failures_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, failed attempts) from ``offset`` on, in order, including those of earlier owners."""
        yield from ((o, t.failures) for o, t in self._retrying.items() if o >= offset and t.failures)
        # Earlier failures lie above all offsets seen, so the order holds.
        yield from sorted((o, n) for o, n in self.earlier_failures.items() if o >= offset and n)

    # --- inside ---

    def _left(self, start: int, to: int) -> int:
        """Return a lower bound of the records left of the entry at ``start`` if those below ``to`` are lost."""
        retry: RetryState = self._retrying[start]
        return min(retry.end - to, max(1, retry.records - (to - start))) if retry.end > to else 0

    def _nth(self, count: int) -> int:
        """Return the ``count``-th offset that was emitted beyond the commit."""
        offset = self.base + count - 1
        for start, end in self._absent:
            if start > offset:
                break
            offset += end - start
        return offset

    def check(self) -> None:
        """Raise AssertionError if the three states do not partition ``[base, next)``."""
        self._done.check()
        self._absent.check()
        self._retries.check()
        self._ranges_out.check()
        done = {o for start, end in self._done for o in range(start, min(end, self.next))}
        flying = [range(start, self._ranges_out.end(start) or start + 1) for start in self._flying]
        retrying = [range(start, retry.end) for start, retry in self._retrying.items()]
        sets = [done, *map(set, flying), *map(set, retrying)]
        union = set().union(*sets)
        assert sum(map(len, sets)) == len(union), "an offset is in two states"
        assert union == set(range(self.base, self.next)), "an offset between base and next has no state"
        assert all(self._done.covers(start, end) for start, end in self._absent), "absent, but not done"
        assert self.outstanding >= 0, "more gaps than offsets"
        assert all(o >= self.next for o in self.earlier_failures), "history of an offset that was seen"

    def _pass_over(self, offset: int) -> None:
        """Mark the offsets between ``next`` and ``offset`` done: they hold no records, or were done before."""
        self._done.add_range(self.next, offset)
        self._absent.add_range(self.next, offset)
        if self.earlier_failures:
            self.earlier_failures = {o: n for o, n in self.earlier_failures.items() if o >= offset}

    def _recall(self, offset: int, now: int) -> None:
        """Add a record that failed under an earlier owner as a retry that is due."""
        count = self.earlier_failures.pop(offset)
        self._wait(offset, RetryState(failures=count, backoffs=count, ready_at=now, end=offset + 1))

    def _take_back(self, offset: int) -> RetryState | None:
        """Take an entry back from flight; None: it is not in flight."""
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
        """Add an entry and schedule its retry."""
        self._retries.add(offset, retry)
        self._retries.wait(offset, retry, retry.ready_at)

    def _cut(self, start: int, to: int, left: int) -> int:
        """Cut the beginning off a waiting range, which keeps ``left`` records; return ``left``."""
        retry = self._retries.remove(start)
        assert retry is not None
        self._done.add_range(start, to)
        self._wait(to, retry.part(to, retry.end, left))
        return left
