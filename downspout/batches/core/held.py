"""A task's data for uncommitted batches: an emitter holds their ranges, a state their tuples.

The rules are those of ``downspout.batches.core.protocol``. Each batch is in one of three states: unknown, *begun* (this
process has seen the tuple of ``$batch``), or only *heard of* (other tuples came first).

:class:`EmitterBatches` decides where each partition starts and which ranges are committed; see
``downspout.batches.emitting`` for why this is exact. ``stored`` always means the store's ranges of one partition,
by transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from sortedcontainers import SortedDict

from downspout.batches.core.protocol import Attempt, BatchRange, after

Content = TypeVar("Content")


class Held(Generic[Content]):
    """The newest attempt of each unfinished transaction, with its content.

    >>> held = Held(list)
    >>> held.of(Attempt(1, 0)).append("early")  # a tuple that came before the beginning
    >>> held.may_commit(Attempt(1, 0))
    False
    >>> held.begin(Attempt(1, 0)), held.may_commit(Attempt(1, 0)), held.of(Attempt(1, 0))
    (True, True, ['early'])
    >>> held.begin(Attempt(1, 1)), held.of(Attempt(1, 0)), held.of(Attempt(1, 1))
    (True, None, [])

    Args:
        new: makes the content of a batch.
    """

    def __init__(self, new: Callable[[], Content]) -> None:
        self._new = new
        self._batches: SortedDict[int, _Batch[Content]] = SortedDict()
        self._done = 0

    def __len__(self) -> int:
        return len(self._batches)

    def of(self, attempt: Attempt) -> Content | None:
        """Return the content of an attempt, which may be new; None: it is stale, so its tuples are acked and dropped.

        The content of older attempts is dropped.
        """
        batch = self._newest(attempt)
        return None if batch is None else batch.content

    def begin(self, attempt: Attempt) -> bool:
        """Record that an attempt begins; return whether it is current."""
        batch = self._newest(attempt)
        if batch is None:
            return False
        batch.has_begun = True
        return True

    def has_begun(self, attempt: Attempt) -> bool:
        """Return whether an attempt is current and this process has seen its beginning."""
        batch = self._batches.get(attempt.txid)
        return batch is not None and batch.attempt == attempt.attempt and batch.has_begun

    may_commit = has_begun
    """A commit of any other attempt must fail: parts of it may be lost."""

    def before(self, txid: int | None) -> Iterator[tuple[Attempt, Content]]:
        """Yield the begun attempts of earlier transactions (None: of all), latest first."""
        for earlier in self._batches.irange(maximum=txid, inclusive=(True, False), reverse=True):
            batch = self._batches[earlier]
            if batch.has_begun:
                yield Attempt(earlier, batch.attempt), batch.content

    def drop_after(self, txid: int) -> None:
        """Drop later transactions: their coordinator has given them up with this one.

        Only for holders of ``$batch`` tuples alone, since these come in order.
        """
        for later in list(self._batches.irange(minimum=txid, inclusive=(False, True))):
            del self._batches[later]

    def success(self, txid: int) -> None:
        """Drop transactions up to one that is done."""
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
    """A transactional batch's part of a partition.

    ``again`` is the range of its first attempt. Without it, the batch reads on if it ``is_new``; otherwise only a later
    batch is stored, so this one has no records of the partition.
    """

    again: BatchRange | None
    is_new: bool


class EmitterBatches(Generic[P]):
    """The ranges of unfinished batches, by partition.

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
        self._held: Held[dict[P, BatchRange | None]] = Held(dict)  # None: left out, and in no earlier batch

    def hear(self, attempt: Attempt) -> bool:
        """Prepare for an attempt: drop its earlier attempts and later transactions; return False if it is stale."""
        ranges = self._held.of(attempt)
        if ranges is None:
            return False
        # Batches reach an emitter in the order in which they begin. So later transactions that came before this one
        # were given up, and must not determine where the next batch starts.
        self._held.drop_after(attempt.txid)
        ranges.clear()
        return True

    def begin(self, attempt: Attempt, ranges: Mapping[P, BatchRange], left_out: Collection[P] = ()) -> None:
        """Record the ranges of an attempt, which is not stale.

        Args:
            attempt: the attempt.
            ranges: its range of each partition.
            left_out: partitions that it leaves out and that no earlier batch has. The store may have a range of
                them from a failed attempt of this transaction.
        """
        held = self._held.of(attempt)
        assert held is not None
        held.update(ranges)
        held.update(dict.fromkeys(left_out))
        self._held.begin(attempt)

    def before(self, partition: P, txid: int, stored: Mapping[int, BatchRange]) -> BatchRange | None:
        """Return the range of a partition in the latest earlier batch that has one."""
        latest = max((earlier for earlier in stored if earlier < txid), default=0)
        for attempt, ranges in self._held.before(txid):
            if attempt.txid < latest:
                break  # for the same transaction, prefer memory: the store may have a failed attempt
            if partition in ranges:
                return ranges[partition]
        return stored.get(latest)

    def plan(self, partition: P, txid: int, stored: Mapping[int, BatchRange]) -> Plan:
        """Return a transactional batch's part of a partition."""
        if txid in stored:
            return Plan(after(stored[txid], self.before(partition, txid, stored)), is_new=False)
        return Plan(None, is_new=all(other < txid for other in stored))

    def to_commit(self, attempt: Attempt) -> dict[P, BatchRange] | None:
        """Return the ranges to commit with an attempt; None: this process has not seen its beginning."""
        held = self._held.of(attempt) if self._held.may_commit(attempt) else None
        return None if held is None else {partition: each for partition, each in held.items() if each is not None}

    def in_flight(self) -> dict[P, int]:
        """Return the number of records in unfinished batches, by partition."""
        found: dict[P, int] = {}
        for _, ranges in self._held.before(None):
            for partition, each in ranges.items():
                if each is None:
                    continue
                count = each.last - each.first + 1 if each.records is None else each.records
                found[partition] = found.get(partition, 0) + count
        return found

    def success(self, txid: int) -> None:
        """Drop transactions up to ``txid``."""
        self._held.success(txid)
