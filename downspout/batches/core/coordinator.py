"""The coordinator's state machine: which batches begin, which is committed, and how failures are handled.

::

    begin ─▶ PROCESSING ──acked─▶ PROCESSED ──it is the current one─▶ COMMITTING ──acked─▶ success
                 │                    │                                   │
                 └────────────────────┴──── an attempt fails: it and all later ones begin again

Up to ``max_active`` batches are processed concurrently, and committed strictly in the order of their transaction ids.
The active ones start at ``current``, without a gap. Methods return actions that the caller must perform in order; each
state is stored before tuples that depend on it are emitted.

Two bugs of Trident are avoided. A late time-out of an attempt that is no longer active has no effect. And the attempt
ids of all transactions from ``current`` on survive a restart, so a new attempt has a higher id than any that the tasks
have seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from downspout.batches.core.protocol import FIRST_ATTEMPT, Attempt, CoordinatorState


class Status(Enum):
    """The status of an attempt."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True)
class Store:
    """Make this state durable before performing the next action."""

    state: CoordinatorState


@dataclass(frozen=True, slots=True)
class EmitBatch:
    """Make the tasks process an attempt; the tree's end is reported with ``processed`` or ``failed``."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class EmitCommit:
    """Make the tasks commit an attempt; the tree's end is reported with ``committed`` or ``failed``."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class EmitSuccess:
    """Tell the tasks that a transaction is done."""

    attempt: Attempt


Action: TypeAlias = Store | EmitBatch | EmitCommit | EmitSuccess


class Coordinator:
    """The state machine of a series of batches.

    >>> coordinator = Coordinator(CoordinatorState(), max_active=2)
    >>> coordinator.next_txid()
    1
    >>> coordinator.begin(1)[1]
    EmitBatch(attempt=Attempt(txid=1, attempt=0))
    >>> coordinator.processed(Attempt(1, 0))
    [EmitCommit(attempt=Attempt(txid=1, attempt=0))]
    >>> coordinator.committed(Attempt(1, 0))[1], coordinator.current
    (EmitSuccess(attempt=Attempt(txid=1, attempt=0)), 2)

    Args:
        state: as stored.
        max_active: the maximum of active transactions.
    """

    def __init__(self, state: CoordinatorState, max_active: int = 1) -> None:
        self.current = state.current
        self.max_active = max_active
        self._attempts = {txid: attempt for txid, attempt in state.attempts.items() if txid >= state.current}
        self._active: dict[int, tuple[Attempt, Status]] = {}

    @property
    def active(self) -> Iterator[tuple[Attempt, Status]]:
        """The active attempts, in order."""
        return iter(self._active.values())

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is active."""
        return not self._active

    def next_txid(self) -> int | None:
        """Return the transaction that begins next; None: ``max_active`` is reached."""
        return self.current + len(self._active) if len(self._active) < self.max_active else None

    def is_replay(self, txid: int) -> bool:
        """Return whether a transaction had an attempt before."""
        return txid in self._attempts

    def begin(self, txid: int) -> list[Action]:
        """Begin the next attempt of a transaction.

        Raises:
            ValueError: it is not :meth:`next_txid`.
        """
        if txid != self.next_txid():
            raise ValueError(f"transaction {txid} cannot begin now")
        number = self._attempts[txid] + 1 if txid in self._attempts else FIRST_ATTEMPT
        attempt = Attempt(txid, number)
        self._attempts[txid] = number
        self._active[txid] = attempt, Status.PROCESSING
        return [Store(self.state()), EmitBatch(attempt)]

    def processed(self, attempt: Attempt) -> list[Action]:
        """Record that all tasks have the whole batch."""
        if not self._is(attempt, Status.PROCESSING):
            return []
        self._active[attempt.txid] = attempt, Status.PROCESSED
        return self._commit_current()

    def committed(self, attempt: Attempt) -> list[Action]:
        """Record that all tasks have committed."""
        if not self._is(attempt, Status.COMMITTING):
            return []
        del self._active[attempt.txid], self._attempts[attempt.txid]
        self.current += 1
        return [Store(self.state()), EmitSuccess(attempt), *self._commit_current()]

    def failed(self, attempt: Attempt) -> list[Attempt]:
        """Record that an attempt has failed; return the attempts that are given up: this one and all later ones."""
        if attempt.txid not in self._active or self._active[attempt.txid][0] != attempt:
            return []
        given_up = [txid for txid in self._active if txid >= attempt.txid]
        return [self._active.pop(txid)[0] for txid in given_up]

    def state(self) -> CoordinatorState:
        """Return the state to store."""
        return CoordinatorState(self.current, dict(self._attempts))

    def _is(self, attempt: Attempt, status: Status) -> bool:
        return self._active.get(attempt.txid) == (attempt, status)

    def _commit_current(self) -> list[Action]:
        attempt, status = self._active.get(self.current, (None, None))
        if attempt is None or status is not Status.PROCESSED:
            return []
        self._active[self.current] = attempt, Status.COMMITTING
        return [EmitCommit(attempt)]
