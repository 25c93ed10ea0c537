"""What a task holds of batches that are not committed: an emitter their ranges, a state their tuples.

The rules are those of ``downspout.batches.core.protocol``. Each batch is in one of three states: unknown, *begun* (the
tuple of ``$batch`` was seen by this process), or only *heard of* (tuples came before that).

:class:`EmitterBatches` knows where each partition starts, and what is to be stored when; see
``downspout.batches.batch_ranges`` for why this is exact. ``stored`` is always what the store holds of one partition, by
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from sortedcontainers import SortedDict

from downspout.batches.core.protocol import Attempt, BatchRange, after

Content = TypeVar("Content")


class Held(Generic[Content]):
    """The newest attempt of each transaction that is not done, and what is held of it.

    >>> held = Held(list)
    >>> held.of(Attempt(1, 0)).append("early")  # a tuple that came before the beginning
    >>> held.may_commit(Attempt(1, 0))
    False
    >>> held.begin(Attempt(1, 0)), held.may_commit(Attempt(1, 0)), held.of(Attempt(1, 0))
    (True, True, ['early'])
    >>> held.begin(Attempt(1, 1)), held.of(Attempt(1, 0)), held.of(Attempt(1, 1))
    (True, None, [])

    Args:
        new: makes what is held of a batch.
    """

    def __init__(self, new: Callable[[], Content]) -> None:
        self._new = new
        self._batches: SortedDict[int, _Batch[Content]] = SortedDict()
        self._done = 0

    def __len__(self) -> int:
        return len(self._batches)

    def of(self, attempt: Attempt) -> Content | None:
        """Return what is held of an attempt, which may be heard of for the first time; None: it is stale.

        A tuple of a stale attempt is acked and dropped. What was held of older attempts is dropped.
        """
        batch = self._newest(attempt)
        return None if batch is None else batch.content

    def begin(self, attempt: Attempt) -> bool:
        """Note that an attempt begins; return whether it is not stale."""
        batch = self._newest(attempt)
        if batch is None:
            return False
        batch.has_begun = True
        return True

    def has_begun(self, attempt: Attempt) -> bool:
        """Return whether this process has seen the beginning of an attempt that is not stale."""
        batch = self._batches.get(attempt.txid)
        return batch is not None and batch.attempt == attempt.attempt and batch.has_begun

    may_commit = has_begun
    """A commit of any other attempt is answered with a fail: something of it may be lost."""

    def before(self, txid: int | None) -> Iterator[tuple[Attempt, Content]]:
        """Yield the attempts of earlier transactions (None: of all) that have begun, the latest first."""
        for earlier in self._batches.irange(maximum=txid, inclusive=(True, False), reverse=True):
            batch = self._batches[earlier]
            if batch.has_begun:
                yield Attempt(earlier, batch.attempt), batch.content

    def drop_after(self, txid: int) -> None:
        """Drop what is held of later transactions: their coordinator has given them up with this one.

        Only where tuples of ``$batch`` alone are held, since those come in order.
        """
        for later in list(self._batches.irange(minimum=txid, inclusive=(False, True))):
            del self._batches[later]

    def success(self, txid: int) -> None:
        """Drop what is held up to a transaction, which is done."""
        self._done = max(self._done, txid)
        for done in list(self._batches.irange(maximum=txid)):
            del self._batches[done]

    def _newest(self, attempt: Attempt) -> _Batch[Content] | None:
        txid, number = attempt
        if txid <= self._done:
            return None
        batch = self._batches.get(txid)
        if batch is None or batch.attempt < number:
            batch = self._batches[txid] = _Batch(number, self._new())
        return batch if batch.attempt == number else None


class _Batch(Generic[Content]):
    __slots__ = ("attempt", "content", "has_begun")

    def __init__(self, attempt: int, content: Content) -> None:
        self.attempt, self.content, self.has_begun = attempt, content, False


P = TypeVar("P", bound=Hashable)


class Plan(NamedTuple):
    """What a transactional batch has of a partition.

    ``again`` is the range that its first attempt had. If that is None, and it ``is_new``, it has what comes next;
    otherwise a later batch is stored and this one is not, and it has nothing.
    """

    again: BatchRange | None
    is_new: bool


class EmitterBatches(Generic[P]):
    """The ranges of the batches that are not done, by partition.

    >>> batches = EmitterBatches[str]()
    >>> batches.begin(Attempt(1, 0), {"p": BatchRange(0, 4)})
    >>> batches.before("p", 2, {})
    BatchRange(first=0, last=4, topology_id='', topic_id='', records=None)
    >>> batches.to_commit(Attempt(1, 0)) == {"p": BatchRange(0, 4)}
    True
    >>> batches.to_commit(Attempt(1, 1)) is None  # its beginning was not seen
    True
    """

    def __init__(self) -> None:
        self._held: Held[dict[P, BatchRange | None]] = Held(dict)  # None: left out, and no batch before has it

    def hear(self, attempt: Attempt) -> bool:
        """Note that an attempt is about to begin, which gives up those before and behind it; False: it is stale."""
        ranges = self._held.of(attempt)
        if ranges is None:
            return False
        # Batches reach an emitter in the order in which they begin. So one that was seen before, and lies behind this
        # one, is given up too; it would say where the next batch starts.
        self._held.drop_after(attempt.txid)
        ranges.clear()
        return True

    def begin(self, attempt: Attempt, ranges: Mapping[P, BatchRange], left_out: Collection[P] = ()) -> None:
        """Note what an attempt holds; it is not stale.

        Args:
            attempt: which one.
            ranges: what it holds of each partition.
            left_out: partitions that it leaves out, and that no batch before it has. The store may have a range of
                them for an attempt of this transaction that failed.
        """
        held = self._held.of(attempt)
        assert held is not None
        held.update(ranges)
        held.update(dict.fromkeys(left_out))
        self._held.begin(attempt)

    def before(self, partition: P, txid: int, stored: Mapping[int, BatchRange]) -> BatchRange | None:
        """Return the range of a partition in the batch before, or in the last one that holds it."""
        latest = max((earlier for earlier in stored if earlier < txid), default=0)
        for attempt, ranges in self._held.before(txid):
            if attempt.txid < latest:
                break  # of the same transaction, memory has the newer attempt: the store may have one that failed
            if partition in ranges:
                return ranges[partition]
        return stored.get(latest)

    def plan(self, partition: P, txid: int, stored: Mapping[int, BatchRange]) -> Plan:
        """Return what a transactional batch has of a partition."""
        if txid in stored:
            return Plan(after(stored[txid], self.before(partition, txid, stored)), is_new=False)
        return Plan(None, is_new=all(other < txid for other in stored))

    def to_commit(self, attempt: Attempt) -> dict[P, BatchRange] | None:
        """Return the ranges that are committed with an attempt; None: this process has not seen its beginning."""
        held = self._held.of(attempt) if self._held.may_commit(attempt) else None
        return None if held is None else {partition: each for partition, each in held.items() if each is not None}

    def in_flight(self) -> dict[P, int]:
        """Return by partition how many records the attempts hold that are not done."""
        found: dict[P, int] = {}
        for _, ranges in self._held.before(None):
            for partition, each in ranges.items():
                if each is None:
                    continue
                count = each.last - each.first + 1 if each.records is None else each.records
                found[partition] = found.get(partition, 0) + count
        return found

    def success(self, txid: int) -> None:
        """Forget what is done."""
        self._held.success(txid)
