"""Keyed state in memory, for tests: what any number of tasks of one process share."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from downspout.batches.core.attempt import Attempt
from downspout.batches.core.values import StateKind
from downspout.batches.stores import BatchStoreError, Key, StaleAttemptError, StateContext


@dataclass
class StateMemory:
    """The place where states are; it outlives those who open it."""

    values: dict[tuple[str, Key], tuple[Any, Attempt]] = field(default_factory=dict)
    newest: dict[str, tuple[str, StateKind, Attempt]] = field(default_factory=dict)  # owner, kind, latest attempt


class MemoryState:
    """One task's handle of a state. See :class:`~downspout.batches.stores.StateStore`.

    >>> state = MemoryState(StateMemory(), StateContext("counts"))
    >>> with state.transaction(Attempt(1, 0)) as change:
    ...     change.write({("the",): [1, 4, None]})
    >>> state.read_all()
    {('the',): [1, 4, None]}
    """

    location = "memory://"

    def __init__(self, memory: StateMemory, context: StateContext) -> None:
        self._memory, self._context = memory, context
        owner, kind, _ = memory.newest.setdefault(context.name, (context.owner, context.kind, Attempt(-1, -1)))
        if (owner, kind) != (context.owner, context.kind):
            raise BatchStoreError(f"{self.location}: state {context.name} belongs to {owner}, and is {kind.value}")

    @contextmanager
    def transaction(self, attempt: Attempt) -> Iterator[MemoryTransaction]:
        """Begin an attempt, and store what the block writes."""
        name, is_fenced = self._context.name, self._context.kind is not StateKind.NON_TRANSACTIONAL
        newest = self._memory.newest[name][2]
        if is_fenced and attempt < newest:
            raise StaleAttemptError(f"{self.location}: state {name} has seen {newest}; {attempt} comes too late")
        change = MemoryTransaction(self._memory, name, attempt)
        yield change
        self._memory.newest[name] = (self._context.owner, self._context.kind, max(newest, attempt))
        self._memory.values |= {(name, key): (value, attempt) for key, value in change.written.items()}

    def read_all(self) -> Mapping[Key, Any]:
        """Return all keys."""
        name = self._context.name
        return {key: copy.deepcopy(value) for (of, key), (value, _) in self._memory.values.items() if of == name}

    def close(self) -> None:
        """Release nothing."""


class MemoryTransaction:
    """See :class:`~downspout.batches.stores.StateTransaction`."""

    def __init__(self, memory: StateMemory, name: str, attempt: Attempt) -> None:
        self._memory, self._name, self._attempt = memory, name, attempt
        self.written: dict[Key, Any] = {}

    def read(self, keys: Collection[Key]) -> Mapping[Key, Any]:
        """Return the stored form of each key that is there."""
        found = {key: self._memory.values.get((self._name, key)) for key in keys}
        return {key: copy.deepcopy(entry[0]) for key, entry in found.items() if entry is not None}

    def replaced(self) -> Mapping[Key, Any]:
        """Return what earlier attempts of this transaction have stored."""
        return {
            key: copy.deepcopy(value)
            for (name, key), (value, by) in self._memory.values.items()
            if name == self._name and by.txid == self._attempt.txid and by < self._attempt
        }

    def write(self, values: Mapping[Key, Any]) -> None:
        """Store the form of each key."""
        self.written |= copy.deepcopy(dict(values))
