"""The three kinds of state value, and how a transaction updates them.

=================  ===========================  ================================================================
kind               stored                       an update by a transaction
=================  ===========================  ================================================================
non_transactional  ``value``                    is always applied
transactional      ``[txid, value]``            is applied if its txid is later; the same txid is in it already
opaque             ``[txid, value, previous]``  is applied if its txid is later; the same txid replaces ``value``,
                                                starting from ``previous``
=================  ===========================  ================================================================

A stored txid later than the committing one is an error: the state belongs to another series of transactions. The forms
are those of Trident's JSON serializers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from copy import deepcopy
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class StateKind(Enum):
    """How a value is stored, to distinguish a repeated update from a new one."""

    NON_TRANSACTIONAL = "non_transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class ForeignValueError(ValueError):
    """A stored value is of another kind, or was written by a later transaction."""


class Base(NamedTuple):
    """The value of a key to which a transaction's updates are applied."""

    value: Any  # None: no value
    is_applied: bool = False  # whether it includes this transaction's updates already


LENGTHS = {StateKind.TRANSACTIONAL: 2, StateKind.OPAQUE: 3}


def base(kind: StateKind, stored: Any, txid: int) -> Base:
    """Return the value to which a transaction's updates are applied.

    >>> base(StateKind.TRANSACTIONAL, [3, 4], 3), base(StateKind.TRANSACTIONAL, [1, 3], 3)
    (Base(value=4, is_applied=True), Base(value=3, is_applied=False))
    >>> base(StateKind.OPAQUE, [2, 4, 1], 3).value, base(StateKind.OPAQUE, [2, 4, 1], 2).value
    (4, 1)

    Args:
        kind: how the value is stored.
        stored: the stored form; None: nothing is stored.
        txid: the committing transaction.

    Raises:
        ForeignValueError: the stored form is of another kind, or of a later transaction.
    """
    if kind is StateKind.NON_TRANSACTIONAL or stored is None:
        return Base(stored)
    if not isinstance(stored, list | tuple) or len(stored) != LENGTHS[kind] or type(stored[0]) is not int:
        raise ForeignValueError(f"{stored!r} is not the stored form of a value of kind {kind.value}")
    if stored[0] > txid:
        raise ForeignValueError(f"{stored!r} was written by transaction {stored[0]}, which is later than {txid}")
    if stored[0] < txid:
        return Base(stored[1])
    return Base(stored[1], is_applied=True) if kind is StateKind.TRANSACTIONAL else Base(stored[2])


def stored_form(kind: StateKind, before: Any, txid: int, value: Any) -> Any:
    """Return the stored form of a value.

    >>> stored_form(StateKind.OPAQUE, 4, 3, 6)
    [3, 6, 4]

    Args:
        kind: how the value is stored.
        before: the value before the transaction's updates.
        txid: the committing transaction.
        value: the value after them.
    """
    if kind is StateKind.NON_TRANSACTIONAL:
        return value
    return [txid, value] if kind is StateKind.TRANSACTIONAL else [txid, value, before]


class Commit(Generic[Key]):
    """The updates of one transaction by one task, visible to its reads; :meth:`changes` returns what to store.

    The examples of Trident's documentation. Transactional: batch 3 has man, man, dog.

    >>> stored = {"man": [1, 3], "dog": [3, 4], "apple": [2, 10]}
    >>> commit = Commit(StateKind.TRANSACTIONAL, 3, stored)
    >>> for word in ("man", "man", "dog"):
    ...     commit.update(word, lambda count: (count or 0) + 1)
    >>> commit.changes()
    {'man': [3, 5]}

    Opaque, with a partial count of 2: a later transaction, and the same one again.

    >>> def after(txid):
    ...     commit = Commit(StateKind.OPAQUE, txid, {"key": [2, 4, 1]})
    ...     commit.update("key", lambda count: count + 2)
    ...     return commit.changes()
    >>> after(3), after(2)
    ({'key': [3, 6, 4]}, {'key': [2, 3, 1]})

    An opaque attempt may have other records, and lack a key that an earlier attempt of the same transaction has stored.
    That key is reset to its previous value: its records come again in a later transaction.

    >>> Commit(StateKind.OPAQUE, 2, {"key": [2, 4, 1]}, replaced=["key"]).changes()
    {'key': [2, 1, 1]}

    Args:
        kind: how values are stored.
        txid: the transaction.
        stored: the stored form of each used key; without an entry, a key has no value.
        replaced: keys that earlier attempts of this transaction have stored.
    """

    def __init__(self, kind: StateKind, txid: int, stored: Mapping[Key, Any], replaced: Collection[Key] = ()) -> None:
        self._kind, self._txid, self._stored, self._replaced = kind, txid, stored, replaced
        self._bases: dict[Key, Base] = {}
        self._values: dict[Key, Any] = {}

    def _base(self, key: Key) -> Base:
        found = self._bases.get(key)
        if found is None:
            try:
                found = self._bases[key] = base(self._kind, self._stored.get(key), self._txid)
            except ForeignValueError as error:
                raise ForeignValueError(f"key {key!r}: {error}") from None
        return found

    def get(self, key: Key) -> Any:
        """Return the value of a key, including this transaction's updates; None if it has none."""
        if key in self._values:
            return self._values[key]
        value = self._base(key).value
        # The caller may change a list or dict in place; the base must not change.
        return deepcopy(value) if isinstance(value, list | dict) else value

    def put(self, key: Key, value: Any) -> None:
        """Set the value of a key, unless the stored value includes this transaction already."""
        if not self._base(key).is_applied:
            self._values[key] = value

    def update(self, key: Key, change: Callable[[Any], Any]) -> None:
        """Set the value of a key to ``change(value)``, called with None if it has none, as :meth:`put` does."""
        if not self._base(key).is_applied:
            self._values[key] = change(self.get(key))

    def changes(self) -> dict[Key, Any]:
        """Return the stored form of each key that has changed."""
        if self._kind is StateKind.OPAQUE:
            for key in self._replaced:
                self._values.setdefault(key, self._base(key).value)
        return {
            key: stored_form(self._kind, self._bases[key].value, self._txid, value)
            for key, value in self._values.items()
        }
