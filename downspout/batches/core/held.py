"""What a task holds of batches that are not committed: an emitter their ranges, a state their tuples.

The rules are those of ``downspout.batches.streams``. Each batch is in one of three states: unknown, *begun* (the tuple
of ``$batch`` was seen by this process), or only *heard of* (tuples came before that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

from downspout.batches.core.attempt import Attempt

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
