"""What happened to each record of one partition.

The theory. Below ``base`` (the last commit) everything is done. From ``base`` to ``next`` (one more than the
highest offset seen) every offset is in exactly one of three states:

========  ====================================================================================================
done      acked, filtered, dead-lettered or compacted; or never there at all (transaction markers, aborted
          records, compacted before we read them: the reader went past it). Kept as ranges.
flying    emitted once, no word yet. A plain dict: it needs no order.
retrying  failed or timed out at least once: waits for its retry, or is out for it. A sorted map, since the
          lowest one that is ready decides where the reader goes back to.
========  ====================================================================================================

What is emitted together as one tuple, a *range* ``[start, end)``, flies or is retried as one, under its first offset;
a gap in it shares its fate. A range that fails is emitted again in parts of at most half as many records each, and no
attempt is counted: only of a record alone is it known that it was the record that failed. So one culprit among n stands
alone after O(log n) failures, and k of them cost O(k log n) tuples.

So the offset to commit is the first one at or above ``base`` that is not done. An offset that was never
emitted is done as soon as the reader has gone past it, so a gap never blocks. Ranges make memory grow with
the number of holes, not of records.

Above ``next`` only ``done`` and ``earlier_failures`` know anything: what the metadata of the last commit held (see
``downspout.ledger.metadata``) about records that this ledger has not seen.

What it does not know: topics, consumers, time, threads, records. Times are integer milliseconds on the
caller's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from downspout.ledger.in_flight import RangesInFlight
from downspout.ledger.ranges import Ranges
from downspout.ledger.retry_schedule import Backoff, RetryPolicy, RetrySchedule, RetryState


class LedgerState:
    """What is known of one partition, and what can be asked; ``downspout.ledger.offsets`` changes it.

    ``h`` is the number of holes, ``f`` of entries that are retried. The arguments are those of
    :class:`~downspout.ledger.offsets.PartitionLedger`.
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
        self._known_end = self._done.end or base  # Above this, an offset seen first cannot be done: no need to search
        self._absent = Ranges()  # The part of done that was never emitted: only for counting what was
        self._flying: dict[int, int] = {}  # lowest offset → when it was emitted
        self._ranges_out = RangesInFlight()  # Which of them are ranges
        self._retries = RetrySchedule()
        self._retrying = self._retries.entries
        self.earlier_failures: dict[int, int] = {o: n for o, n in (failures or {}).items() if o >= base}
        """Failed attempts as an earlier owner counted them, of records that were not seen yet; 0: none, and the record
        leaves alone."""
        self._acks = 0

    @property
    def known_end(self) -> int:
        """The end of what an earlier owner has recorded as done: what it left open below that, it had read."""
        return self._known_end

    def free_until(self, start: int, end: int) -> int:
        """Return how far from ``start`` on, which was not seen, nothing is done or failed earlier; at most ``end``.

        What is there is to be emitted; a record that failed earlier, by itself. O(1) where no commit held anything.
        """
        if self.earlier_failures:
            end = min((offset for offset in self.earlier_failures if start <= offset < end), default=end)
        if start < self._known_end:
            found, stop = next(self._done.missing(start, end), (end, end))
            end = stop if found == start else start
        return end

    def done_until(self, offset: int) -> int:
        """Return the first offset from this one on that is not done. O(log h)."""
        return self._done.first_gap(offset)

    def first_waiting(self, offset: int) -> int | None:
        """Return the lowest offset from this one on at which something waits for a retry, ready or not."""
        return self._retries.first_waiting(offset)

    def out_until(self, offset: int) -> int | None:
        """Return the end of what is out and begins at ``offset``; None where nothing does. O(1)."""
        if offset in self._flying:
            return self._ranges_out.end(offset) or offset + 1
        retry = self._retrying.get(offset)
        return retry.end if retry is not None and retry.emitted_at is not None else None

    def commit_point(self) -> int:
        """Return the offset to commit: the lowest that is not done. O(1) while acks come in order, else O(log h)."""
        return self._done.first_gap(self.base)

    def may_poll(self, uncommitted_max: int, now: int) -> bool:
        """Return whether more records may be read, by the reference's limit.

        With fewer than ``uncommitted_max`` offsets emitted beyond the commit, yes. Else only where a retry
        is ready among the first so many: going back to it cannot lead past them.
        """
        if self.outstanding < uncommitted_max:
            return True
        retry = self.earliest_ready_retry(now)
        return retry is not None and retry <= self._nth(uncommitted_max)

    def earliest_ready_retry(self, now: int) -> int | None:
        """Return the lowest offset that waits for a retry and may have it. O(log f) amortised."""
        return self._retries.earliest_ready(now)

    def next_retry(self) -> int | None:
        """Return when the next back-off ends, in ms; None where none is under way. It may be too early, never too late.

        Of those that :meth:`earliest_ready_retry` has found to be over, it says nothing. O(1).
        """
        return self._retries.next_at()

    @property
    def acks(self) -> int:
        """How many acks there were."""
        return self._acks

    @property
    def newest_done(self) -> int:
        """The highest offset seen that is done; ``base - 1`` where none is. O(log h)."""
        return self._done.last_below(self.next, self.base - 1)

    @property
    def done_beyond_commit(self) -> int:
        """How many offsets above the one to commit are done. O(1) while acks come in order, else O(log h)."""
        return self._done.total - (self.commit_point() - self.base)

    @property
    def outstanding(self) -> int:
        """How many records were emitted (or filtered) and are not yet covered by the commit, done or not."""
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
        """How many records are out and wait for an ack or a fail."""
        return len(self._flying) + self._ranges_out.more + self._retries.records_out

    @property
    def failed(self) -> int:
        """How many records wait for a retry."""
        return self._retries.records - self._retries.records_out

    @property
    def pending(self) -> int:
        """How many of the records seen are not done."""
        return len(self._flying) + self._ranges_out.more + self._retries.records

    def emitted_at(self, offset: int) -> int | None:
        """Return when ``offset`` was last emitted, in ms, if it is out."""
        if (flying := self._flying.get(offset)) is not None:
            return flying
        retry = self._retrying.get(offset)
        return retry.emitted_at if retry else None

    def retry_state(self, offset: int) -> RetryState | None:
        """Return the state of an offset that failed and is not resolved."""
        found: RetryState | None = self._retrying.get(offset)
        return found

    def is_done(self, offset: int) -> bool:
        """Return whether nothing is left to do for ``offset``."""
        return offset < self.base or offset in self._done

    def done_beyond(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are done above ``offset``, in order: what a commit's metadata should hold."""
        for start, end in self._done:
            if end > offset:
                yield max(start, offset), end

    def failures_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, failed attempts) from ``offset`` on, in order, of this and of earlier owners."""
        yield from ((o, t.failures) for o, t in self._retrying.items() if o >= offset and t.failures)
        # History lies above all that was seen, so the order holds.
        yield from sorted((o, n) for o, n in self.earlier_failures.items() if o >= offset and n)

    # --- inside ---

    def _left(self, start: int, to: int) -> int:
        """Return how many records of what waits at ``start`` are left where those below ``to`` are lost; no fewer."""
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
        """Raise AssertionError where the three states do not partition ``[base, next)``."""
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
