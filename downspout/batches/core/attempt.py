"""The values of batch transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FIRST_TXID = 1
FIRST_ATTEMPT = 0


class Attempt(NamedTuple):
    """One try of a transaction. The first field of each tuple of a batch; over Storm's pipe it is a JSON list."""

    txid: int  # from 1
    attempt: int  # from 0, as in Trident; of one transaction, later tries have higher ones

    @classmethod
    def of(cls, value: Sequence[Any]) -> Attempt:
        """Return ``value`` as an Attempt; it may have become a plain list on Storm's pipe.

        >>> Attempt.of([3, 0])
        Attempt(txid=3, attempt=0)

        Raises:
            ValueError: it is no attempt.
        """
        if type(value) is cls:
            return value
        try:
            txid, attempt = value
            return cls(int(txid), int(attempt))
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is not an attempt (txid, attempt)") from None

    @staticmethod
    def may_be(value: Any) -> bool:
        """Return whether a value has the form of an attempt.

        >>> Attempt.may_be([3, 0]), Attempt.may_be("30"), Attempt.may_be(("t", "", 0, 7, ""))
        (True, False, False)
        """
        return type(value) is Attempt or (isinstance(value, list) and [*map(type, value)] == [int, int])

    def __str__(self) -> str:
        """Return how messages name it: ``transaction 3, attempt 0``."""
        return f"transaction {self.txid}, attempt {self.attempt}"


class BatchRange(NamedTuple):
    """Which records of a partition are in a batch: from ``first`` to ``last``, both included.

    An empty one has ``last = first - 1`` and ``first`` is the position, so the next start is ``last + 1`` in each case.
    """

    first: int
    last: int
    topology_id: str = ""  # of the topology that stored it; empty where unknown
    topic_id: str = ""  # Kafka's id of the topic; empty where unknown
    records: int | None = None  # how many there were; None: not known

    @property
    def next(self) -> int:
        """Where the next batch starts.

        >>> BatchRange(5, 9).next, BatchRange.empty(10).next
        (10, 10)
        """
        return self.last + 1

    @classmethod
    def empty(cls, position: int, topology_id: str = "", topic_id: str = "") -> BatchRange:
        """Return the range of a partition that has no records in a batch."""
        return cls(position, position - 1, topology_id, topic_id)


class CoordinatorState(NamedTuple):
    """What a coordinator stores: the transaction to commit next, and the last attempt of each that may be active."""

    current: int = FIRST_TXID
    attempts: Mapping[int, int] = {}
