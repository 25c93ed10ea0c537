"""One task's share of a batch is applied to a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from downspout.batches.core.attempt import Attempt
from downspout.batches.core.values import Commit, StateKind
from downspout.batches.stores import Key, StateStore, StateTransaction
from downspout.errors import ConfigError

Change: TypeAlias = Callable[[Commit[Key], Mapping[Key, Any]], Iterable[Sequence[Any]]]
"""Is given the state and the batch by key; changes the one by the other, and returns rows."""


class Applied(NamedTuple):
    """What became of a batch."""

    rows: Sequence[Sequence[Any]]
    changed: int = 0  # values that were written


def apply(store: StateStore, kind: StateKind, attempt: Attempt, batch: Mapping[Key, Any], change: Change) -> Applied:
    """Change a state by a batch, in one transaction.

    Raises:
        BatchStoreError: the state cannot be written, or a later attempt was begun.
        ForeignValueError: a stored value is of another kind, or of a later transaction.
    """
    with store.transaction(attempt) as transaction:
        replaced = transaction.replaced()
        stored = _Stored(transaction, {**replaced, **transaction.read(batch)}, batch)
        commit: Commit[Key] = Commit(kind, attempt.txid, stored, replaced)
        rows = list(change(commit, batch))
        changes = commit.changes()
        transaction.write(changes)
    return Applied(rows, len(changes))


def check_beginning(store: StateStore, name: str, txid: int, first: int) -> None:
    """Raise a ConfigError where a state is new, and batches before this one are in no state of that name.

    Args:
        store: the state.
        name: of the state.
        txid: the transaction that is to be applied.
        first: the number of the first transaction that there ever is.
    """
    if txid > first and store.newest() is None:
        raise ConfigError(
            f"{store.location}: state {name} is new, and these batches are at transaction {txid}: what came before "
            "would be missing in its values",
            cure="the store and the state.name as before; or another batch.id, so that all is read again; or "
            "state.exactly_once=False, if counts may be wrong",
        )


class _Stored(dict[Key, Any]):
    """Stored forms; a key that was not asked for beforehand is read when it is looked at."""

    def __init__(self, transaction: StateTransaction, known: Mapping[Key, Any], asked: Iterable[Key]) -> None:
        super().__init__(known)
        self._transaction, self._asked = transaction, {*asked, *known}

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the stored form of a key; ``default``: there is none."""
        if key not in self._asked:
            self._asked.add(key)
            self.update(self._transaction.read([key]))
        return super().get(key, default)
