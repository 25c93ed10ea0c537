"""What an emitter task knows of its batches: where each partition starts, and what is to be stored when.

See ``downspout.batches.emitting`` for why this is exact. ``stored`` is always what the store holds of one partition, by
transaction.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from downspout.batches.core.attempt import Attempt, BatchRange
from downspout.batches.core.held import Held
from downspout.batches.core.metadata import after

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
        self._held: Held[dict[P, BatchRange]] = Held(dict)

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

    def begin(self, attempt: Attempt, ranges: Mapping[P, BatchRange]) -> None:
        """Note what an attempt holds; it is not stale."""
        held = self._held.of(attempt)
        assert held is not None
        held.update(ranges)
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
        return self._held.of(attempt) if self._held.may_commit(attempt) else None

    def in_flight(self) -> dict[P, int]:
        """Return by partition how many records the attempts hold that are not done."""
        found: dict[P, int] = {}
        for _, ranges in self._held.before(None):
            for partition, each in ranges.items():
                count = each.last - each.first + 1 if each.records is None else each.records
                found[partition] = found.get(partition, 0) + count
        return found

    def success(self, txid: int) -> None:
        """Forget what is done."""
        self._held.success(txid)
