"""What happened to each record of one partition.

The theory. Below ``base`` (the last commit) everything is done. From ``base`` to ``next`` (one more than the
highest offset seen) every offset is in exactly one of three states:

========  ====================================================================================================
done      acked, filtered, dead-lettered or compacted; or never there at all (transaction markers, aborted
          records, compacted before we read them: the reader went past it). Kept as ranges.
flying    emitted once, no word yet. A plain dict: it needs no order.
troubled  failed or timed out at least once: waits for its retry, or is out for it. A sorted map, since the
          lowest one that is ready decides where the reader goes back to.
========  ====================================================================================================

So the offset to commit is the first one at or above ``base`` that is not done. An offset that was never
emitted is done as soon as the reader has gone past it, so a gap never blocks. Ranges make memory grow with
the number of holes, not of records.

Above ``next`` only ``done`` and ``history`` know anything: what the metadata of the last commit told (see
``downspout.ledger.metadata``) about records that this ledger has not seen.

What it does not know: topics, consumers, time, threads, records. Times are integer milliseconds on the
caller's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from sortedcontainers import SortedDict

from downspout.ledger.ranges import Ranges
from downspout.ledger.retries import Backoff

__all__ = ["NEVER", "PartitionLedger", "Trouble"]

NEVER = 1 << 62
"""A time that does not come."""


@dataclass(slots=True)
class Trouble:
    """The state of an offset that failed.

    Attributes:
        failures: attempts that failed; a timeout is none.
        timeouts: attempts that timed out while other records of the partition were acked.
        setbacks: failures and all timeouts: the back-off grows with them.
        ready_at: when it may be tried again, in ms.
        emitted_at: when it was emitted again, in ms; None while it waits.
        acks_seen: acks of the partition as of its last emit.
    """

    failures: int = 0
    timeouts: int = 0
    setbacks: int = 0
    ready_at: int = 0
    emitted_at: int | None = None
    acks_seen: int = 0


class PartitionLedger:
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
    (True, True, 11)
    >>> _ = ledger.fail(11, now=0); ledger.earliest_ready_retry(now=0)
    11
    >>> ledger.emit(11, now=0), ledger.ack(11), ledger.commit_point()
    (True, True, 14)
    """

    __slots__ = (
        "_absent",
        "_acks",
        "_backoff",
        "_done",
        "_flying",
        "_history",
        "_known_end",
        "_ready",
        "_retrying",
        "_schedule",
        "_troubled",
        "base",
        "next",
    )

    def __init__(
        self,
        base: int,
        backoff: Backoff | None = None,
        done: Iterable[tuple[int, int]] = (),
        failures: Mapping[int, int] | None = None,
    ) -> None:
        self.base = base
        self.next = base
        self._backoff = backoff or Backoff()
        self._done = Ranges(done)
        self._done.discard_below(base)
        self._known_end = self._done.end or base
        """Above this, an offset seen first cannot be done: no need to search."""
        self._absent = Ranges()
        """The part of done that was never emitted: only for counting what was."""
        self._flying: dict[int, int] = {}
        """offset → when it was emitted"""
        self._troubled: SortedDict = SortedDict()
        """offset → Trouble"""
        self._retrying = 0
        """How many troubled ones are out again."""
        self._schedule: list[tuple[int, int]] = []
        """Heap of (ready_at, offset); entries of the past are skipped when they come up."""
        self._ready: list[int] = []
        """Heap of troubled offsets whose time has come; those that are out or done are skipped when they come up."""
        self._history: dict[int, int] = {o: n for o, n in (failures or {}).items() if o >= base and n > 0}
        self._acks = 0

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
        trouble.emitted_at = now
        trouble.acks_seen = self._acks
        self._retrying += 1
        return True

    def recall(self, offset: int, now: int) -> None:
        """Take note that a record that failed before our time (:attr:`told`) was read; it waits, as for a retry."""
        self._pass_over(offset)
        self.next = offset + 1
        self._recall(offset, now)

    def ack(self, offset: int) -> bool:
        """Take an ack. O(1). False where nothing of it is out (late, double, foreign): then nothing changed."""
        if self._flying.pop(offset, None) is None:
            trouble = self._troubled.get(offset)
            if trouble is None or trouble.emitted_at is None:
                return False
            del self._troubled[offset]
            self._retrying -= 1
        self._acks += 1
        self._done.add(offset)
        return True

    def fail(self, offset: int, now: int) -> Trouble | None:
        """Count a failed attempt and schedule the next; None where nothing of it is out. O(log f)."""
        trouble = self._land(offset)
        if trouble is not None:
            trouble.failures += 1
            self._reschedule(offset, trouble, now)
        return trouble

    def timeout(self, offset: int, now: int) -> Trouble | None:
        """Back off without counting an attempt; None where nothing of it is out.

        A timeout says nothing about the record while nothing else gets through either. So ``timeouts``
        counts only those during which other records of the partition were acked.
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
            trouble.ready_at = until
            if until != NEVER:
                heappush(self._schedule, (until, offset))

    def resolve(self, offset: int) -> bool:
        """Take ``offset`` as done without an ack: filtered, dead-lettered. False: it was done before."""
        if offset >= self.next:
            self._pass_over(offset)
            self.next = offset + 1
            self._history.pop(offset, None)
        elif self._flying.pop(offset, None) is None:
            trouble = self._troubled.pop(offset, None)
            if trouble is None:
                return False
            self._retrying -= trouble.emitted_at is not None
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
        :data:`NEVER`). Returns how many were resolved.
        """
        waiting = self._waiting(start, end)
        for offset in waiting:
            self.resolve(offset)
        return len(waiting)

    def skip_to(self, offset: int) -> int:
        """The log begins at ``offset`` now: resolve what waits for a retry below it, and pass over what was not seen.

        Those that are out stay, as in :meth:`gone`. Returns how many offsets are lost.
        """
        lost = self.lost_below(offset)
        self.gone(self.base, offset)
        if offset > self.next:
            self._pass_over(offset)
            self.next = offset
        return lost

    def lost_below(self, offset: int) -> int:
        """Return what :meth:`skip_to` would return, and change nothing."""
        lost = len(self._waiting(self.base, offset))
        if offset > self.next:
            lost += sum(end - start for start, end in self._done.missing(self.next, offset))
        return lost

    # --- what the spout asks ---

    @property
    def told(self) -> Mapping[int, int]:
        """Failed attempts as an earlier owner counted them, of records that were not seen yet."""
        return self._history

    def commit_point(self) -> int:
        """Return the offset to commit: the lowest that is not done. O(1) while acks come in order, else O(log h)."""
        return self._done.first_gap(self.base)

    def committed(self, offset: int) -> None:
        """Forget what lies below ``offset``: the broker has it now. O(ranges dropped)."""
        if offset <= self.base:
            return
        self.passed(offset)
        self.base = offset
        self._done.discard_below(offset)
        self._absent.discard_below(offset)

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
        while self._schedule and self._schedule[0][0] <= now:
            ready_at, offset = heappop(self._schedule)
            trouble = self._troubled.get(offset)
            if trouble is not None and trouble.emitted_at is None and trouble.ready_at == ready_at:
                heappush(self._ready, offset)
        while self._ready:
            trouble = self._troubled.get(self._ready[0])
            waits = trouble is not None and trouble.emitted_at is None and trouble.ready_at != NEVER
            if waits and trouble.ready_at <= now:
                return self._ready[0]
            offset = heappop(self._ready)
            if waits:  # postponed, or failed again
                heappush(self._schedule, (trouble.ready_at, offset))
        return None

    def next_retry(self) -> int | None:
        """Return when the next back-off ends, in ms; None where none is under way. It may be too early, never too late.

        Of those that :meth:`earliest_ready_retry` has found to be over, it says nothing. O(1).
        """
        return self._schedule[0][0] if self._schedule else None

    @property
    def outstanding(self) -> int:
        """How many offsets were emitted (or filtered) and are not yet covered by the commit, done or not."""
        return self.next - self.base - self._absent.total

    @property
    def in_flight(self) -> int:
        """How many are out and wait for an ack or a fail."""
        return len(self._flying) + self._retrying

    @property
    def failed(self) -> int:
        """How many wait for a retry."""
        return len(self._troubled) - self._retrying

    @property
    def pending(self) -> int:
        """How many of the offsets seen are not done."""
        return len(self._flying) + len(self._troubled)

    @property
    def holes(self) -> int:
        """How many ranges beyond the commit are done: what memory grows with."""
        return len(self._done)

    def oldest_pending(self) -> int | None:
        """Return the offset that holds the commit back; None where all that was seen is done."""
        return self.commit_point() if self.pending else None

    def emitted_at(self, offset: int) -> int | None:
        """Return when ``offset`` was last emitted, in ms, if it is out."""
        if (flying := self._flying.get(offset)) is not None:
            return flying
        trouble = self._troubled.get(offset)
        return trouble.emitted_at if trouble else None

    def trouble(self, offset: int) -> Trouble | None:
        """Return the state of a troubled offset."""
        found: Trouble | None = self._troubled.get(offset)
        return found

    def is_done(self, offset: int) -> bool:
        """Return whether nothing is left to do for ``offset``."""
        return offset < self.base or offset in self._done

    def done_beyond(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are done above ``offset``, in order: what a commit's metadata should tell."""
        for start, end in self._done:
            if end > offset:
                yield max(start, offset), end

    def failures_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, failed attempts) from ``offset`` on, in order, of this and of earlier owners."""
        yield from ((o, t.failures) for o, t in self._troubled.items() if o >= offset and t.failures)
        # History lies above all that was seen, so the order holds.
        yield from sorted((o, n) for o, n in self._history.items() if o >= offset)

    # --- inside ---

    def _waiting(self, start: int, end: int) -> list[int]:
        """Return the offsets in ``[start, end)`` that wait for a retry and need the log for it."""
        return [
            offset
            for offset in self._troubled.irange(start, end - 1)
            if self._troubled[offset].emitted_at is None and self._troubled[offset].ready_at != NEVER
        ]

    def _pass_over(self, offset: int) -> None:
        """The reader went from ``next`` to ``offset``: what lies between is not there, or was done before."""
        self._done.add_range(self.next, offset)
        self._absent.add_range(self.next, offset)
        if self._history:
            self._history = {o: n for o, n in self._history.items() if o >= offset}

    def _recall(self, offset: int, now: int) -> None:
        """An earlier owner counted failures of this record: it comes as a retry that is due."""
        count = self._history.pop(offset)
        self._troubled[offset] = Trouble(failures=count, setbacks=count, ready_at=now)
        heappush(self._schedule, (now, offset))

    def _land(self, offset: int) -> Trouble | None:
        """Take ``offset`` back from those that are out; None where it is not."""
        if self._flying.pop(offset, None) is not None:
            trouble = Trouble()
            self._troubled[offset] = trouble
            return trouble
        found: Trouble | None = self._troubled.get(offset)
        if found is None or found.emitted_at is None:
            return None
        found.emitted_at = None
        self._retrying -= 1
        return found

    def _reschedule(self, offset: int, trouble: Trouble, now: int) -> None:
        trouble.setbacks += 1
        trouble.ready_at = now + self._backoff.delay(trouble.setbacks)
        heappush(self._schedule, (trouble.ready_at, offset))

    def _nth(self, count: int) -> int:
        """Return the ``count``-th offset that was emitted beyond the commit."""
        offset = self.base + count - 1
        for start, end in self._absent:
            if start > offset:
                break
            offset += end - start
        return offset

    def _check(self) -> None:
        """Raise AssertionError where the three states do not partition ``[base, next)``."""
        self._done._check()
        self._absent._check()
        done = {o for start, end in self._done for o in range(start, min(end, self.next))}
        sets = [done, set(self._flying), set(self._troubled)]
        union = set().union(*sets)
        assert sum(map(len, sets)) == len(union), "an offset is in two states"
        assert union == set(range(self.base, self.next)), "an offset between base and next has no state"
        assert all(self._done.covers(start, end) for start, end in self._absent), "absent, but not done"
        out = sum(t.emitted_at is not None for t in self._troubled.values())
        assert out == self._retrying, f"{out} retries are out, but the count says {self._retrying}"
        known = {offset for _, offset in self._schedule} | set(self._ready)
        waiting = {o for o, t in self._troubled.items() if t.emitted_at is None and t.ready_at != NEVER}
        assert waiting <= known, "a retry waits, but for no time"
        assert all(o >= self.next for o in self._history), "history of an offset that was seen"
